"""A device's own record of the rounds that it took part in: a file with one JSON object a line.

A line is there as soon as the round is over, needs no broker, and survives the process. The file is only ever
appended to; what can't be written is lost with one line in the log, and the training goes on.
"""

from __future__ import annotations

import errno
import logging
import math
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from edgepeer.errors import ConfigError, WireError
from edgepeer.fabric.documents import RoundRecord, SoftError
from edgepeer.readable import readable

__all__ = ["LoggedRound", "RoundLog", "read_round"]

_log = logging.getLogger(__name__)


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

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            try:
                self._file = self._path.open("ab", buffering=0)
            except OSError as error:
                raise ConfigError(f"round_log = {self._path}: can't write there: {error.strerror or error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(
        self, record: RoundRecord, *, job: str, peer: str, coordinator: bool, made: tuple[SoftError, ...] = ()
    ) -> None:
        """Write a round as one line of JSON."""
        if self._file is None:
            return
        fields = {name: getattr(record, name) for name in RoundRecord.__struct_fields__}
        line = msgspec.json.encode(LoggedRound(**fields, job=job, peer=peer, coordinator=coordinator, made=made))
        try:
            _write_whole(self._file, line + b"\n")
        except OSError as error:
            _log.error("round log %s: %s; no more rounds are written", self._path, error.strerror or error)
            self._file.close()
            self._file = None


def _write_whole(file: BinaryIO, line: bytes) -> None:
    """All of it, or nothing: of a disk that has become full, a part of a line would be taken for one later."""
    written = file.write(line)
    if written < len(line):
        file.truncate(file.tell() - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
