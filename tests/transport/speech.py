"""What is said over a channel in tests, and who hears it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from edgepeer.transport.base import Channel
from edgepeer.wire.codec import encode, wrap
from edgepeer.wire.frames import Frame, Have, Hello, Ping, Reduce, State, Via, ViewFrame

__all__ = ["BYTES", "PATIENCE_S", "SPEECH", "WANTED", "Ear", "FakeSocketTransport", "payload_of", "until", "vector"]

PATIENCE_S: Final = 60.0


class Ear:
    """Writes down what arrives, payloads included."""

    def __init__(self, channel: Channel | None = None) -> None:
        self.heard: list[tuple[Frame, bytes | None]] = []
        self.reasons: list[str] = []
        self.room: bytearray | None = None
        self.gone = asyncio.Event()

    def admits(self, frame: Frame, payload_bytes: int) -> bool:
        return True

    def sink(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        if isinstance(frame, Reduce) and frame.round == 13:
            return None
        self.room = bytearray(payload_bytes)
        return memoryview(self.room)

    def received(
        self, frame: Frame, payload: memoryview | None, payload_bytes: int, stored: bool, seconds: float
    ) -> None:
        data = payload if payload is not None else self.room if stored and payload_bytes else b"" if stored else None
        self.heard.append((frame, bytes(data) if data is not None else None))

    def closed(self, reason: str) -> None:
        self.reasons.append(reason)
        self.gone.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


class FakeSocketTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.9", 9)})
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0


def vector(items: int, number: int = 1) -> tuple[Reduce, bytes]:
    frame = Reduce(
        epoch=1, round=number, offset=0, total=items, dtype="<f4", contributors=b"\1", weight=1.0, rate_bytes_per_s=1.0
    )
    return frame, bytes(n % 251 for n in range(4 * items))


SPEECH: list[tuple[Frame, bytes]] = [
    (Hello(fabric="f", peer="p", incarnation=3), b""),
    vector(7),
    (Ping(waiting=False), b""),
    vector(5, number=13),  # nobody wants it
    vector(0),
    (ViewFrame(epoch=1), b"a document"),
    (State(run="r", round=2, offset=0, total=9), b"123456789"),
    (
        Via(source="a", target="b", tunnel=1, serial=2, kind=wrap(vector(3)[0])[0], header=wrap(vector(3)[0])[1]),
        bytes(12),
    ),
    (Have(epoch=1, round=2), b""),
    (Ping(waiting=True, stamp=12.5, every=0.1, reaches=b"\x05"), b""),
]
BYTES = b"".join(encode(frame, len(payload)) + payload for frame, payload in SPEECH)
WANTED = [(frame, None if isinstance(frame, Reduce) and frame.round == 13 else payload) for frame, payload in SPEECH]


def payload_of(heard: list[tuple[Frame, bytes | None]]) -> list[tuple[Frame, bytes | None]]:
    return [(frame, payload or b"" if payload is not None else None) for frame, payload in heard]
