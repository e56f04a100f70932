"""What a transport is: channels that carry frames in order, and say when they are gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from edgepeer.trust.names import Holder
from edgepeer.wire.frames import Frame

__all__ = ["Accept", "Channel", "Listener", "Receiver", "Traffic", "Transport"]


@dataclass(slots=True)
class Traffic:
    """What has gone over a transport's channels."""

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_rejected: int = 0
    """What others had no business to send: bytes that were no frame, or none that is allowed; by ft-tree, not now."""


class Receiver(Protocol):
    """Who hears of what arrives. Called on the loop's thread; must not block."""

    def sink(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Where the payload that follows belongs: memory of exactly that size, or None to throw it away. Of frames
        that never have one this is not asked."""

    def admits(self, frame: Frame, payload_bytes: int) -> bool:
        """Whether a document of that size may be held until it is complete; who says no has closed the channel."""

    def received(
        self, frame: Frame, payload: memoryview | None, payload_bytes: int, stored: bool, seconds: float
    ) -> None:
        """A frame is complete. `payload`: only a document's; `seconds`: how long its payload took."""

    def closed(self, reason: str) -> None:
        """The channel is gone, for whatever reason; called exactly once."""


class Channel(Protocol):
    """One connection."""

    @property
    def remote(self) -> str:
        """Where the other end is, for people to read."""

    @property
    def holder(self) -> Holder | None:
        """Who the other end is, as its certificate proves; None where nobody has to prove it."""

    def send(self, frame: Frame, payload: memoryview | bytes | None = None) -> None:
        """Queue a frame; its payload must not change until it is out. Nothing happens on a closed channel."""

    def progressed(self) -> float | None:
        """When a part of a frame that is still under way has last come, by elapsed(); None if not since this was
        last asked."""

    def missing(self, now: float) -> tuple[float, float] | None:
        """From when on the other end's machine has acknowledged nothing of what is under way, by elapsed(), and
        how long that takes on this path at most, in seconds; None if nothing is under way. To be asked often."""

    @property
    def undelivered(self) -> int:
        """How many of the bytes that were sent have not arrived at the other end's machine, as far as is known."""

    def close(self, reason: str) -> None:
        """Send what is queued and a Bye, then close. Nothing more is received."""

    def abort(self, reason: str) -> None:
        """Close at once. Nothing more is received."""


Accept: TypeAlias = Callable[[Channel], Receiver]


class Listener(Protocol):
    """An open door."""

    @property
    def address(self) -> str:
        """host:port as bound."""

    async def close(self) -> None:
        """Accept nobody any more."""


class Transport(Protocol):
    """A way to listen and to connect."""

    @property
    def traffic(self) -> Traffic:
        """What has gone over all channels so far."""

    async def listen(self, address: str, accept: Accept) -> Listener:
        """Let others connect. Raises ConfigError if that address can't be used."""

    async def dial(self, address: str, accept: Accept, *, timeout: float, quiet: bool = False) -> Channel:
        """Connect. `quiet`: whoever is there need not be one of us, and is not complained of.

        Raises:
            OSError: nobody answers; TimeoutError is one.
        """
