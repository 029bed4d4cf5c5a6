"""The demo: the main job, live, on a cluster."""
