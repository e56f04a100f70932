"""Files that are there whole or not at all, whenever the power fails; and private ones, that others can't read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from edgepeer.errors import ConfigError
from edgepeer.lasting import sync_directory

__all__ = ["alone_in", "clear_leftovers", "make_private_directory", "read_private", "try_to_write", "write_whole"]


def make_private_directory(path: Path) -> None:
    """A directory that nobody else can look into. One that is there must be so.

    Raises:
        ConfigError: it isn't; OSError: it can't be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022:
        raise ConfigError(f"{path}: others may write there (mode {mode:o}): chmod 700 {path}")
    sync_directory(path.parent)


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Such a directory, where nobody else makes a member meanwhile: of two that are run at once one may write its
    certificate beside the other's key.

    Raises:
        ConfigError: somebody else is at it, or others may write there; OSError: it can't be made.
    """
    make_private_directory(directory)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)  # the kernel lets go of it when this process ends
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{directory}: another edgepeer makes a member of it just now: wait until it ends"
            ) from None
        yield
    finally:
        os.close(handle)


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Let the file hold that, and last: who loses power here finds what it was before, or this.

    Raises:
        OSError: it can't be written; nothing has changed.
    """
    with _fresh(path, data, private=private) as fresh:
        fresh.replace(path)
    sync_directory(path.parent)


def try_to_write(path: Path, data: bytes) -> None:
    """See whether `write_whole` could just now; nothing has changed afterwards.

    Raises:
        OSError: it could not.
    """
    with _fresh(path, data, private=True) as fresh:
        fresh.unlink()


@contextlib.contextmanager
def _fresh(path: Path, data: bytes, *, private: bool) -> Iterator[Path]:
    """A file beside that one, with that content, which is on the disk. It is gone if what is done with it fails."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644), "wb") as file:
            owner = path.parent.stat()
            if os.geteuid() == 0 and owner.st_uid != 0:  # what root writes for a service is the service's
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield fresh
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def clear_leftovers(directory: Path) -> None:
    """Remove what was half written when the power failed. Nobody else may be writing there."""
    for path in directory.glob(".*.new"):
        path.unlink()


def read_private(path: Path) -> bytes:
    """What a file holds that only its owner may read: this user, root or, for root, anybody.

    Raises:
        ConfigError: others may read it, or have written it; OSError: it can't be read.
    """
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            raise ConfigError(
                f"{path}: others on this machine can read the key (mode {mode:o}): chmod 600 {path}, and if it may "
                "have been read, evict this device and join again"
            )
        if os.geteuid() != 0 and found.st_uid not in (0, os.geteuid()):
            raise ConfigError(f"{path}: belongs to user {found.st_uid}, not to this one ({os.geteuid()}): chown it")
        return file.read(1 << 16)
