"""Lines of the engine's log that a launch's receipt is read from."""

import json
import sys
from typing import Any


def printed(beginning: str, told: Any) -> None:
    """Print what is told as JSON, in one line.

    Args:
        beginning: What the line is found by.
        told: Plain data.
    """
    # Not through the logger, whose level may hide it; at one go, as others write there too.
    sys.stdout.write(f"{beginning}{json.dumps(told)}\n")
    sys.stdout.flush()
