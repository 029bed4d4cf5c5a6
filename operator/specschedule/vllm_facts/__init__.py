"""What vLLM says and means, by version: arguments, metrics, log lines, what works with what.

Pure: text and plain data in, values of the core out.
"""
