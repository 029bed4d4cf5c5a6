"""The command line: every command in a module of its own, put together in ``main``."""
