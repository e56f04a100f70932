"""The directory that a fleet's peers, or its broker, keep their things in: gone with the emulator, or, had that no time
to clean up, when the next one starts; unless the user wants to keep it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from edgepeer.errors import ConfigError

__all__ = ["fleet_home"]

_PREFIX: Final = "edgepeer-emulation-"
_LOCK: Final = "lock"


@contextmanager
def fleet_home(keep: Path | None = None) -> Iterator[Path]:
    """A fresh directory, locked for as long as this process has it in use; or `keep`, which must be empty, and stays.

    Raises:
        ConfigError: `keep` is not empty, or can't be made.
    """
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
            empty = not any(keep.iterdir())
        except OSError as error:
            raise ConfigError(f"keep = {keep}: can't be used: {error.strerror or error}") from error
        if not empty:
            raise ConfigError(f"keep = {keep}: is not empty; peers would go on from what is there")
        yield keep.resolve()
        return
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
