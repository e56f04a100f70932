"""Child processes that never outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Final

__all__ = ["dies_with_parent"]

_PR_SET_PDEATHSIG: Final = 1


def dies_with_parent() -> Callable[[], None] | None:
    """What a child must do before it becomes another program (`preexec_fn`), to get SIGTERM when we are gone."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (AttributeError, OSError):
        return None  # not Linux: only a regular end stops it
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # too late to be told
            os._exit(1)

    return ask
