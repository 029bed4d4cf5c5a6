"""Finds, proves and promotes vLLM speculative-decoding schedules by experiment."""

__version__ = "0.1.0"
