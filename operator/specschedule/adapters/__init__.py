"""The only network and process I/O: ports of the experiment made real."""
