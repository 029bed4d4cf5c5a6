"""The load generator: puts one server under a planned load and counts what comes back.

Pure parts decide what counts (``windows``, ``steadiness``, ``arrivals``, ``records``); the
shell sends and waits (``client``, ``streams``, ``openloop``, ``visit``).
"""
