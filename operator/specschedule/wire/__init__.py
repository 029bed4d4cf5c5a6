"""What goes over the wire: manifests, patches and queries built, answers read. Pure."""
