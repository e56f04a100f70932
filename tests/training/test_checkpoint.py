"""Checkpoints: what is read is what was written, or an error; and a crash at any moment leaves a good one."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import VersionError, WireError
from edgepeer.ids import Generation
from edgepeer.training import checkpoint as module
from edgepeer.training.checkpoint import (
    Checkpoint,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from edgepeer.training.job import new_job

JOB = new_job(id="j1", rounds=50, wait_for=3, model_config="{}")
FIRST = Checkpoint(
    job=JOB,
    round=10,
    generation=Generation(counter=2, founders=2, nonce=7),
    epoch=3,
    begun=4,
    members=("a", "b"),
    slots=("a", "b", "a"),
    digest="d1",
    state=b"state after ten rounds",
)
SECOND = replace(FIRST, round=20, digest="d2", state=b"and after twenty")


def fields(checkpoint: Checkpoint) -> tuple[Any, ...]:
    names = ("job", "round", "generation", "epoch", "begun", "members", "slots", "digest")
    return (*(getattr(checkpoint, name) for name in names), bytes(checkpoint.state))


def newest_good(directory: Path) -> Checkpoint | None:
    for path in list_checkpoints(directory):
        try:
            return read_checkpoint(path)
        except WireError:
            continue
    return None


def test_what_was_written_is_read(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "checkpoints"
    assert list_checkpoints(directory) == []
    first, second = write_checkpoint(directory, FIRST), write_checkpoint(directory, SECOND)
    assert list_checkpoints(directory) == [second, first]
    assert fields(read_checkpoint(first)) == fields(FIRST)
    assert fields(read_checkpoint(second)) == fields(SECOND)
    assert oct(first.stat().st_mode & 0o777) == "0o600"


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for number in range(12):
        write_checkpoint(tmp_path, replace(FIRST, round=number))
    (tmp_path / "00000099.checkpoint.unfinished").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    prune_checkpoints(tmp_path, 3)
    assert [read_checkpoint(path).round for path in list_checkpoints(tmp_path)] == [11, 10, 9]
    assert len(os.listdir(tmp_path)) == 4
    assert write_checkpoint(tmp_path, FIRST).name == "00000013.checkpoint"


def test_of_a_job_that_diverges_the_newest_from_before_stays(tmp_path: Path) -> None:
    def kept() -> list[tuple[str, int]]:
        prune_checkpoints(tmp_path, 2)
        return [(found.job.id, found.round) for path in list_checkpoints(tmp_path) for found in [read_checkpoint(path)]]

    for number in range(4):
        write_checkpoint(tmp_path, replace(FIRST, round=number))
    for number in range(4, 9):
        write_checkpoint(tmp_path, replace(FIRST, round=number, diverged=4))
        kept()
    assert kept() == [("j1", 8), ("j1", 7), ("j1", 3)]
    other = new_job(id="j2", rounds=50)
    write_checkpoint(tmp_path, replace(FIRST, job=other, round=1, diverged=1))  # from its beginning: it has no such
    assert kept() == [("j2", 1), ("j1", 8)]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_checkpoint(tmp_path_factory.mktemp("good"), FIRST).read_bytes()


def test_a_file_torn_at_any_byte_is_refused(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "00000001.checkpoint"
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(WireError):
            read_checkpoint(path)
        path.write_bytes(good[:length] + bytes(len(good) - length))  # the length is there, the content is not
        if any(good[length:]):
            with pytest.raises(WireError):
                read_checkpoint(path)


@given(st.data())
def test_damage_is_found(tmp_path_factory: pytest.TempPathFactory, good: bytes, data: st.DataObject) -> None:
    damaged = bytearray(good)
    for position in data.draw(st.sets(st.integers(0, len(good) - 1), min_size=1, max_size=5)):
        damaged[position] ^= data.draw(st.integers(1, 255))
    damaged += data.draw(st.binary(max_size=3))
    path = tmp_path_factory.mktemp("damaged") / "00000001.checkpoint"
    path.write_bytes(damaged)
    with pytest.raises(WireError):
        read_checkpoint(path)


@given(st.binary(max_size=200))
def test_garbage_is_refused(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    path = tmp_path_factory.mktemp("garbage") / "00000001.checkpoint"
    for content in (garbage, b"EPCHKPT\x01" + garbage):
        path.write_bytes(content)
        with pytest.raises(WireError):
            read_checkpoint(path)


def test_a_header_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path, header = tmp_path / "00000001.checkpoint", b"\x81\xa1x" + b"\x91" * 60_000
    path.write_bytes(struct.pack("<7sBI", b"EPCHKPT", 1, len(header)) + header)
    with pytest.raises(WireError, match="damaged"):
        read_checkpoint(path)


def forged(header: Any, state: bytes = b"", *, version: int = 1, length: int | None = None) -> bytes:
    packed = msgspec.msgpack.encode(header)
    body = struct.pack("<7sBI", b"EPCHKPT", version, len(packed) if length is None else length) + packed + state
    return body + xxhash.xxh3_128_digest(body)


HEADER = {
    "job": msgspec.to_builtins(JOB),
    "round": 1,
    "epoch": 1,
    "members": ["a"],
    "digest": "",
    "state_bytes": 3,
}


def test_what_the_header_says_is_checked_before_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "00000001.checkpoint"

    def reason(content: bytes) -> str:
        path.write_bytes(content)
        with pytest.raises(WireError) as refused:
            read_checkpoint(path)
        assert str(path) in str(refused.value)
        return str(refused.value)

    path.write_bytes(forged(HEADER, b"abc"))
    assert bytes(read_checkpoint(path).state) == b"abc"
    assert "header of 4294967295 bytes" in reason(forged(HEADER, b"abc", length=2**32 - 1))
    assert "cut short" in reason(forged(HEADER | {"state_bytes": 1 << 31}, b"abc"))
    assert "damaged" in reason(forged(HEADER | {"state_bytes": 1 << 40}, b"abc"))
    assert "damaged" in reason(forged(HEADER | {"round": -1}, b"abc"))
    assert "damaged" in reason(forged(HEADER | {"job": {"id": "../../etc"}}, b"abc"))
    assert "damaged" in reason(forged([1], b"abc"))
    path.write_bytes(forged(HEADER, b"abc", version=2))
    with pytest.raises(VersionError, match="version 2"):
        read_checkpoint(path)


class PowerFailure(BaseException):
    """The machine is off: no clean-up runs that the disk would notice."""


class Disk:
    """The operating system's calls, until the power fails before one of them.

    What was not brought to the disk by then is lost: of a file's content, everything but `survives` of its bytes.
    """

    def __init__(self, fails_before: int, survives: float) -> None:
        self.calls: list[str] = []
        self._fails_before = fails_before
        self._survives = survives
        self._paths: dict[int, Path] = {}
        self._unsynced: set[Path] = set()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("open", "write", "fsync", "close", "replace", "unlink"):
            patch.setattr(module.os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if len(self.calls) > self._fails_before:
                raise PowerFailure
            if len(self.calls) == self._fails_before:
                self.calls.append("off")
                self._lose()
                raise PowerFailure
            self.calls.append(name)
            done = real(*arguments)
            if name == "open":
                self._paths[done] = Path(arguments[0])
            elif name == "write":
                self._unsynced.add(self._paths[arguments[0]])
            elif name == "fsync":
                self._unsynced.discard(self._paths[arguments[0]])
            elif name == "replace" and Path(arguments[0]) in self._unsynced:
                self._unsynced.add(Path(arguments[1]))
            return done

        return call

    def _lose(self) -> None:
        for path in self._unsynced:
            if path.exists():
                os.truncate(path, int(path.stat().st_size * self._survives))


@pytest.mark.parametrize("survives", [0.0, 0.5, 1.0])
def test_a_power_failure_before_any_call_leaves_the_old_or_the_new(tmp_path: Path, survives: float) -> None:
    for fails_before in range(100):
        directory = tmp_path / str(fails_before)
        write_checkpoint(directory, FIRST)
        disk = Disk(fails_before, survives)
        with pytest.MonkeyPatch.context() as patch:
            disk.install(patch)
            try:
                write_checkpoint(directory, SECOND)
                failed = False
            except PowerFailure:
                failed = True
        for path in list_checkpoints(directory):
            read_checkpoint(path)  # whatever has a checkpoint's name is one
        found = newest_good(directory)
        assert found is not None
        assert fields(found) in (fields(FIRST), fields(SECOND))
        if not failed:
            assert fields(found) == fields(SECOND)
            assert disk.calls == ["open", "write", "write", "write", "write", "fsync", "close", "replace", *LAST_CALLS]
            assert fails_before == len(disk.calls)
            return
        # The next life writes on as if nothing had been.
        third = write_checkpoint(directory, replace(SECOND, round=30))
        prune_checkpoints(directory, 2)
        assert read_checkpoint(third).round == 30
        assert all(path.suffix == ".checkpoint" for path in directory.iterdir())
    raise AssertionError("never got through")


LAST_CALLS = ["open", "fsync", "close"]  # of the directory: else the new name may be lost


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    write_checkpoint(tmp_path, FIRST)

    def full(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(module.os, call, full)
        with pytest.raises(OSError, match="No space left"):
            write_checkpoint(tmp_path, SECOND)
    assert len(os.listdir(tmp_path)) == 1
    found = newest_good(tmp_path)
    assert found is not None
    assert fields(found) == fields(FIRST)


def test_a_write_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(module.os, "write", lambda handle, view: real(handle, view[:7]))
    assert fields(read_checkpoint(write_checkpoint(tmp_path, FIRST))) == fields(FIRST)
