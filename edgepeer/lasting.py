"""Directories whose names last: a file that has come into its place, whole and on the disk, may lose it with the power
as long as the directory that names it is only in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["sync_directory"]


def sync_directory(directory: Path) -> None:
    """Bring to the disk what is called how in it, where its file system has such a thing.

    Raises:
        OSError: it has, and the disk has not taken it: what is there may not last.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems have no such thing for directories: 9p, shared folders
            raise
    finally:
        os.close(handle)
