"""An engine that answers like vLLM: a pure event engine in an HTTP shell.

``physics`` says how long a step takes, ``worlds`` names sets of physics, ``engine`` batches
requests continuously, ``virtual`` drives it in virtual time, ``server`` in real time over HTTP.
"""
