"""The directory that a fleet's peers keep their things in: gone with the emulator, or, had that no time to clean up,
when the next one starts."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["fleet_home"]

_PREFIX: Final = "edgepeer-emulation-"
_LOCK: Final = "lock"


@contextmanager
def fleet_home() -> Iterator[Path]:
    """A fresh directory, locked for as long as this process has it in use."""
    _sweep()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        home = Path(name)
        with (home / "unlocked").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel opens it when this process ends, however that comes
            (home / "unlocked").rename(home / _LOCK)  # now that it is locked, others may find it
            yield home


def _sweep() -> None:
    """Remove what this user's emulators have left behind that were killed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            if lock.parent.lstat().st_uid != os.geteuid():
                continue
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # it is in use, or somebody else has just removed it
            continue
