"""A simulated process, as seen by what happens to it: connections, the broker, and the application that it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edgepeer.ids import PeerId
from edgepeer.protocol import events as ev
from edgepeer.wire.frames import Frame

__all__ = ["Process"]


class Process(Protocol):
    """One life of a peer."""

    @property
    def id(self) -> PeerId: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    @property
    def ahead_s(self) -> float:
        """By how much its clock is ahead of that which everything happens by."""

    @property
    def frozen(self) -> bool:
        """Whether the process is stopped; its kernel is not."""

    @property
    def powered(self) -> bool:
        """Whether its machine runs, and answers for a process that is no more."""

    @property
    def attentive(self) -> bool:
        """Whether it handles what happens at once."""

    def soon(self, do: Callable[[], None]) -> None:
        """Do what has happened to the process when it gets to it."""

    def later(self, delay: float, do: Callable[[], None]) -> None:
        """Do something after a while."""

    def work(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something when its owner has worked on it for so long."""

    def receive(self, event: ev.Event) -> None: ...

    def sink(self, source: PeerId, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Where the payload of a frame that arrives goes."""

    def receive_frame(
        self,
        source: PeerId,
        frame: Frame,
        payload: memoryview | bytes | None,
        sink: memoryview | None,
        seconds: float,
    ) -> None: ...
