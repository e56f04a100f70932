"""The time that has passed, by a clock that goes on while the machine sleeps.

time.monotonic() stands still meanwhile on most systems: by it, a laptop whose lid was closed for an hour has missed
nothing. Event loops and their timers go by it all the same, so whoever wakes up is late by what was left to wait.
"""

from __future__ import annotations

import sys
import time
from typing import Final

__all__ = ["elapsed"]

# Linux counts sleep in this one only; macOS in the other, which is not what its time.monotonic() goes by.
_CLOCK: Final = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC


def elapsed() -> float:
    """Seconds since some time before; never goes back."""
    return time.clock_gettime(_CLOCK)
