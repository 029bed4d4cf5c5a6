"""What runs inside vLLM: recorder, schedulers, fingerprint.

Pure Python for every minor version that vLLM runs on; imports vllm, torch, prometheus_client and
the standard library, and of this package ``core/schedule.py`` only. Each part does nothing until
its environment variables (``settings.py``) turn it on. ``deliver.py`` lays the files into a
folder for PYTHONPATH.
"""
