"""Rounds as the peers of this machine write them down: there within milliseconds, with or without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from edgepeer.errors import WireError
from edgepeer.peer.round_log import LoggedRound, read_round

__all__ = ["RoundFeed"]


class RoundFeed(AbstractContextManager["RoundFeed"]):
    """Reads what is new in some round logs (see peer.round_log). A log may not be there yet, and is never rewritten."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._waiting = list(paths)
        self._files: dict[Path, BinaryIO] = {}
        self._parts: dict[Path, bytes] = {}
        self._stack = ExitStack()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def read(self) -> Iterator[LoggedRound]:
        """All lines since the last time, of one log after the other.

        Raises:
            WireError: a line is not a round.
        """
        self._open()
        for path, file in self._files.items():
            text = file.read()
            if not text:
                continue
            *lines, self._parts[path] = (self._parts[path] + text).split(b"\n")
            for line in lines:
                try:
                    yield read_round(line)
                except WireError as error:
                    raise WireError(f"round log {path}: {error}") from error

    def _open(self) -> None:
        for path in [path for path in self._waiting if path.exists()]:
            self._waiting.remove(path)
            self._files[path] = self._stack.enter_context(path.open("rb"))
            self._parts[path] = b""
