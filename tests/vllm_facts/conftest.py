"""Generated input: a few examples in every run, many in ``make fuzz``."""

import os

from hypothesis import settings


def pytest_configure(config):
    config.addinivalue_line("markers", "fuzz: generated input of which make fuzz takes far more")


settings.register_profile("fuzz", max_examples=2_000, deadline=None)
if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz":
    settings.load_profile("fuzz")
