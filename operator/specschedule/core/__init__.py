"""The pure core: values and decisions. No clock, no chance of its own, no I/O, no logging."""
