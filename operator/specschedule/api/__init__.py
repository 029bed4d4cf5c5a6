"""The promise to users: the two objects, their conditions and reasons, and the CRD generator."""
