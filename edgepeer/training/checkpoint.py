"""Checkpoints: a replica's state in a file, together with all that it takes to go on from it.

A file is complete or it is not there: it is written beside its place, brought to the disk, and renamed. Whoever
reads one finds every damage, by length and digest, and may fall back to the file before it.

Layout: 8 bytes magic and version; header length, 32 bits, little-endian; a msgpack header with the job, the round,
the view's generation, epoch and members, which beginning of the run it is of, the digest of the parameters, since
which round the loss has not been finite, and the length of the state; the state, as `state.pack_state` makes it; a
128-bit xxHash of all before it. It detects damage, not forgery.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
import xxhash

from edgepeer.errors import VersionError, WireError
from edgepeer.given import open_regular
from edgepeer.ids import Generation, Lineage
from edgepeer.lasting import sync_directory
from edgepeer.readable import readable
from edgepeer.training.job import Job
from edgepeer.training.state import STATE_LIMIT_BYTES

__all__ = [
    "Checkpoint",
    "list_checkpoints",
    "peek_checkpoint",
    "prune_checkpoints",
    "read_checkpoint",
    "write_atomically",
    "write_checkpoint",
]

_MAGIC: Final = b"EPCHKPT"
_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<7sBI")
_DIGEST_BYTES: Final = 16
_HEADER_LIMIT_BYTES: Final = 4 << 20
_NAME: Final = re.compile(r"(\d{8,18})\.checkpoint\Z")
_UNFINISHED: Final = ".unfinished"

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=63)]


@readable
class _CheckpointHeader(msgspec.Struct, frozen=True, kw_only=True):
    job: Job
    round: Annotated[int, msgspec.Meta(ge=0)]
    generation: Generation | None = None
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    begun: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    members: Annotated[tuple[_Id, ...], msgspec.Meta(max_length=4096)]
    slots: Annotated[tuple[_Id, ...], msgspec.Meta(max_length=4096)] = ()
    digest: Annotated[str, msgspec.Meta(max_length=64)]
    diverged: Annotated[int, msgspec.Meta(ge=0)] = 0
    state_bytes: Annotated[int, msgspec.Meta(ge=0, le=STATE_LIMIT_BYTES)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Where a replica was in a job."""

    job: Job
    round: int
    """The last round in the parameters."""
    generation: Generation | None
    """That the round ended in; None in files from before there were any."""
    epoch: int
    """Of the view that the round ended in."""
    members: tuple[str, ...]
    """Of that view, in its order."""
    digest: str
    """`state.parameter_digest` of the parameters."""
    state: bytes | memoryview
    """Parameters and optimizer, for `Trainer.load_state`; of a split job, one node's blocks (`split.part`)."""
    diverged: int = 0
    """The first round whose loss was not finite; 0: there was none, or it is an older build's."""
    begun: int = 0
    """Which beginning of the run in that generation it was (`Lineage.begun`); 0: an older build's file."""
    slots: tuple[str, ...] = ()
    """Of that view, whose the slots of a code were; none: rounds were not coded, or it is an older build's file."""

    @property
    def lineage(self) -> Lineage | None:
        """What the round is counted in, if that is known."""
        return Lineage(self.generation, self.begun) if self.generation is not None else None


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write it as the newest of the directory, which is made if need be. Returns the file.

    Raises:
        OSError: as `write_atomically`; those that are there are as they were.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fields = {name: getattr(checkpoint, name) for name in _CheckpointHeader.__struct_fields__ if name != "state_bytes"}
    header = msgspec.msgpack.encode(_CheckpointHeader(**fields, state_bytes=len(checkpoint.state)))
    parts = [_PREFIX.pack(_MAGIC, _VERSION, len(header)), header, checkpoint.state]
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    there = list_checkpoints(directory)
    path = directory / f"{_number(there[0]) + 1 if there else 1:08d}.checkpoint"
    write_atomically(path, *parts, digest.digest())
    return path


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a file, after checking every byte of it.

    Raises:
        OSError: the file can't be read.
        VersionError: it is of another version than this build reads.
        WireError: it is damaged, cut short, or no checkpoint at all.
    """
    with open_regular(path) as file:
        prefix, encoded, header = _read_header(path, file)
        size = os.fstat(file.fileno()).st_size
        if size != len(prefix) + len(encoded) + header.state_bytes + _DIGEST_BYTES:
            raise WireError(f"{path}: cut short, or longer than it says: {size} bytes")
        rest = file.read(header.state_bytes + _DIGEST_BYTES)
    state = memoryview(rest)[: header.state_bytes]
    digest = xxhash.xxh3_128(prefix)
    digest.update(encoded)
    digest.update(state)
    if digest.digest() != rest[header.state_bytes :]:
        raise WireError(f"{path}: damaged: its digest differs")
    return _checkpoint(header, state)


def peek_checkpoint(path: Path) -> Checkpoint:
    """What a file says of itself, without its state: that may be large, and is neither read nor checked.

    Raises:
        OSError: the file can't be read.
        VersionError: it is of another version than this build reads.
        WireError: it is damaged, cut short, or no checkpoint at all, as far as that shows.
    """
    with open_regular(path) as file:
        header = _read_header(path, file)[-1]
    return _checkpoint(header, b"")


def _checkpoint(header: _CheckpointHeader, state: bytes | memoryview) -> Checkpoint:
    return Checkpoint(
        job=header.job,
        round=header.round,
        generation=header.generation,
        epoch=header.epoch,
        begun=header.begun,
        members=header.members,
        slots=header.slots,
        digest=header.digest,
        diverged=header.diverged,
        state=state,
    )


def _read_header(path: Path, file: BinaryIO) -> tuple[bytes, bytes, _CheckpointHeader]:
    """What comes before the state: the prefix, the header's bytes, the header."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        raise WireError(f"{path}: {len(prefix)} bytes are too short for a checkpoint")
    magic, version, header_length = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise WireError(f"{path}: is not a checkpoint")
    if version != _VERSION:
        raise VersionError(f"{path}: checkpoint of version {version}; this build reads {_VERSION}")
    if header_length > _HEADER_LIMIT_BYTES:
        raise WireError(f"{path}: damaged: a header of {header_length} bytes is over the limit")
    encoded = file.read(header_length)
    try:
        return prefix, encoded, msgspec.msgpack.decode(encoded, type=_CheckpointHeader)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"{path}: damaged or cut short: {error}") from error


def list_checkpoints(directory: Path) -> list[Path]:
    """The files of a directory, the newest first; none if there is no directory.

    Raises:
        OSError: the directory can't be read.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted((directory / name for name in names if _NAME.match(name)), key=_number, reverse=True)


def prune_checkpoints(directory: Path, keep: int) -> None:
    """Delete all but the newest `keep`, and what an interrupted write has left. Of a job that has diverged the newest
    from before that stays, too, while the job's are the newest: those after it may be of no use.

    Raises:
        OSError: a file can't be deleted.
    """
    there = list_checkpoints(directory)
    sound = _newest_sound(there)
    leftover = [directory / name for name in os.listdir(directory) if name.endswith(_UNFINISHED)]
    for path in (*there[keep:], *leftover):
        if path != sound:
            path.unlink(missing_ok=True)


def _newest_sound(there: Sequence[Path]) -> Path | None:
    """The newest file of the newest one's job in which the loss had always been finite; None: there is none."""
    job = None
    for path in there:
        with contextlib.suppress(OSError, WireError):
            found = peek_checkpoint(path)
            job = job or found.job.id
            if found.job.id == job and not found.diverged:
                return path
    return None


def write_atomically(path: Path, *parts: bytes | memoryview, mode: int = 0o600) -> None:
    """Put a file in its place so that, whenever the power fails, either the old content is there or the new.

    Args:
        mode: who may read and write it, but for what the process's umask takes away.

    Raises:
        OSError: it can't be written, and what was there is as it was; or it is there, and may not last.
    """
    fresh = path.with_name(path.name + _UNFINISHED)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        try:
            for part in parts:
                view = memoryview(part).cast("B")
                while view:
                    view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):  # a full disk: give back what was taken
            os.unlink(fresh)
        raise
    sync_directory(path.parent)


def _number(path: Path) -> int:
    found = _NAME.match(path.name)
    assert found is not None
    return int(found[1])
