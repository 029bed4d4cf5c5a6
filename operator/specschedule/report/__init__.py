"""How a run is shown to people."""
