"""Whoever puts a file in its place brings its directory to the disk by one rule."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from test_layering import FILES, name_of

from edgepeer.ids import Generation, keep_generation
from edgepeer.lasting import sync_directory
from edgepeer.training.checkpoint import write_atomically
from edgepeer.trust.files import make_private_directory, write_whole

WRITERS: list[Callable[[Path], None]] = [
    sync_directory,
    lambda there: write_atomically(there / "file", b"content"),
    lambda there: write_whole(there / "file", b"content"),
    lambda there: make_private_directory(there / "directory"),
    lambda there: keep_generation(there, Generation()),
]


@pytest.mark.parametrize("write", WRITERS, ids=["alone", "checkpoint", "member", "directory", "identity"])
def test_that_a_directory_has_no_such_thing_is_no_failure_and_all_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    sync, synced = os.fsync, list[int]()
    fails_with = [0]

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            synced.append(fails_with[0])
            if fails_with[0]:
                raise OSError(fails_with[0], os.strerror(fails_with[0]))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path)
    fails_with[0] = errno.EINVAL
    write(tmp_path)
    fails_with[0] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        write(tmp_path)
    assert synced == [0, errno.EINVAL, errno.EIO]


def test_the_rule_stands_once() -> None:
    sources = {name_of(path): path.read_text() for path in FILES}
    assert [name for name, text in sources.items() if "fsync" in text and "EINVAL" in text] == ["edgepeer.lasting"]
