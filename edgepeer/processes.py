"""What the operating system says and does: children that never outlive their parent, reasons in words."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Final

__all__ = ["dies_with_parent", "os_reason"]

_PR_SET_PDEATHSIG: Final = 1


def os_reason(error: OSError) -> str:
    """Why something failed, without the address: asyncio puts that behind it, as a tuple."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return error.strerror or str(error) or type(error).__name__


def dies_with_parent(number: signal.Signals = signal.SIGTERM, parent: int | None = None) -> Callable[[], None] | None:
    """What a child must do before it becomes another program (`preexec_fn`), to get that signal when we are gone.

    A child that is stopped then ends only by SIGKILL. One that asks for itself says who its parent is.
    """
    try:
        prctl = ctypes.CDLL(None).prctl
    except (AttributeError, OSError):
        return None  # not Linux: only a regular end stops it
    expected = os.getpid() if parent is None else parent

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != expected:  # too late to be told
            os._exit(1)

    return ask
