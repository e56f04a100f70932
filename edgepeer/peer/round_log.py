"""A device's own record of the rounds that it took part in: a file with one JSON object a line.

A line is there as soon as the round is over, needs no broker, and survives the process. The file is only ever
appended to, and may be renamed or removed meanwhile: then there is another at its path. What can't be written is lost,
and the training goes on; it is tried again and again, and the log says when that began and when it was over.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

import msgspec

from edgepeer.errors import ConfigError, WireError
from edgepeer.fabric.documents import RoundRecord, SoftError
from edgepeer.readable import readable

__all__ = ["LoggedRound", "RoundLog", "read_round"]

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""How often to look, at most, whether the file is still at its path; and how long after a failure to try again. Beside
the write that each round costs anyway, that is nothing."""


@readable
class LoggedRound(RoundRecord, frozen=True, kw_only=True):
    """One line: a round as this device saw it."""

    job: str
    peer: str
    """Who writes."""
    coordinator: bool
    """Whether it was the coordinator when the round ended."""
    made: tuple[SoftError, ...] = ()
    """Soft errors that this device has made on purpose since the line before."""


def read_round(line: bytes) -> LoggedRound:
    """A line of the record. A number that JSON has no word for, such as a loss that is not finite, is null there.

    Raises:
        WireError: it is no round.
    """
    try:
        fields = msgspec.json.decode(line)
        for name in ("loss", "error"):
            if isinstance(fields, dict) and name in fields and fields[name] is None:
                fields[name] = math.nan
        return msgspec.convert(fields, LoggedRound)
    except msgspec.DecodeError as error:
        raise WireError(str(error)) from error


class RoundLog:
    """Appends to `path` while its context is open; does nothing without a path.

    Raises:
        ConfigError: the file can't be opened for writing; raised by the context.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._file: BinaryIO | None = None
        self._looked_at = math.inf
        """So, while the context is not open, it is never looked."""
        self._lost = 0
        """How many rounds could not be written since the last that could."""

    def __enter__(self) -> Self:
        if self._path is not None:
            try:
                self._file = self._path.open("ab", buffering=0)
            except OSError as error:
                raise ConfigError(f"round_log = {self._path}: can't write there: {error.strerror or error}") from error
            self._looked_at = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._looked_at = math.inf
        self._close()

    def add(
        self, record: RoundRecord, *, job: str, peer: str, coordinator: bool, made: tuple[SoftError, ...] = ()
    ) -> None:
        """Write a round as one line of JSON."""
        try:
            self._look()
        except OSError as error:
            self._fail(error)
        if self._file is None:
            self._lost += 1
            return
        fields = {name: getattr(record, name) for name in RoundRecord.__struct_fields__}
        line = msgspec.json.encode(LoggedRound(**fields, job=job, peer=peer, coordinator=coordinator, made=made))
        try:
            _write_whole(self._file, line + b"\n")
        except OSError as error:
            self._fail(error)
            self._lost += 1
            return
        if self._lost:
            _log.warning("round log %s: is written again; rounds that are not in it: %d", self._path, self._lost)
            self._lost = 0

    def _look(self) -> None:
        """Open what is at the path, if that is not what is open."""
        now = self._clock()
        if self._path is None or now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        if self._file is not None and not _is_at(self._path, self._file):
            self._close()
        if self._file is None:
            self._file = _open_at_once(self._path)

    def _fail(self, error: OSError) -> None:
        if not self._lost:
            text = "round log %s: %s; rounds are not written until they can be"
            _log.error(text, self._path, error.strerror or error)
        self._looked_at = self._clock()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _open_at_once(path: Path) -> BinaryIO:
    """A pipe that nobody reads is refused, where to open it would wait for somebody, and rounds with it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666)
    os.set_blocking(file, True)
    return os.fdopen(file, "ab", buffering=0)


def _write_whole(file: BinaryIO, line: bytes) -> None:
    """All of it, or nothing: of a disk that has become full, a part of a line would be taken for one later."""
    written = file.write(line)
    if written < len(line):
        file.truncate(file.tell() - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
