"""Frames out of a stream of bytes, however it is cut up.

Whoever has bytes asks for `room`, writes them there, and says how many they were. For a vector's segment that is its
final buffer: the very memory that the protocol machine will add from. Only what a header's read has caught of the
payload (at most WINDOW bytes) is copied once.
"""

from __future__ import annotations

from typing import Final

from edgepeer.elapsed import elapsed
from edgepeer.transport.base import Receiver
from edgepeer.wire.codec import PRELUDE, decode_header, decode_prelude, has_document, is_bare
from edgepeer.wire.frames import Bye, Frame

__all__ = ["FrameReader"]

WINDOW: Final = 2048
_SCRATCH: Final = PRELUDE.size + 65535 + WINDOW  # the longest header and a window's worth behind it
_WASTE: Final = memoryview(bytearray(256 << 10))
"""Where all that is thrown away is written to, of whatever connection: nobody reads it."""


class FrameReader:
    """Takes one stream of bytes apart, and tells a receiver of its frames."""

    def __init__(self, receiver: Receiver) -> None:
        self.farewell = ""
        """Why the other end closes the connection, as it has said itself."""
        self._receiver = receiver
        self._stopped = False
        # Bytes of preludes and headers: scratch[at:filled] is yet to be read.
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._at = 0
        self._filled = 0
        # The payload that is arriving, if any.
        self._frame: Frame | None = None
        self._payload_bytes = 0
        self._missing = 0
        self._target: memoryview | None = None
        self._since = 0.0
        self._progress: float | None = None

    @property
    def in_payload(self) -> bool:
        """Whether what comes next is of a payload that has begun."""
        return self._frame is not None

    @property
    def missing(self) -> int:
        """How many bytes of a payload that has begun are still to come."""
        return self._missing

    def stop(self) -> None:
        """Tell of nothing any more, whatever comes."""
        self._stopped = True

    def progressed(self) -> float | None:
        """When a part of a payload that is still under way has last come; None if not since this was last asked."""
        progress, self._progress = self._progress, None
        return progress

    def go_on(self) -> None:
        """Something of the payload has come that can't be read yet."""
        if self._frame is not None:
            self._progress = elapsed()

    def room(self) -> memoryview:
        """Where the next bytes belong: never empty, and good until anything is said to have come."""
        if self._frame is not None:
            if self._target is not None:
                return self._target[self._payload_bytes - self._missing :]
            return _WASTE[: min(self._missing, len(_WASTE))]
        return self._scratch[self._filled : self._filled + WINDOW]

    def came(self, count: int) -> None:
        """So many bytes stand in `room`.

        Raises:
            WireError: they are no frame, or not one that is allowed.
        """
        if self._frame is not None:
            self._missing -= count
            if self._missing == 0:
                self._complete(self._frame)
            else:
                self._progress = elapsed()
            return
        self._filled += count
        self._read_scratch()

    def _read_scratch(self) -> None:
        """Take all frames that lie in the scratch buffer, the last perhaps without all of its payload."""
        while not self._stopped and self._filled - self._at >= PRELUDE.size:
            kind, header_bytes, payload_bytes = decode_prelude(self._scratch, self._at)
            start = self._at + PRELUDE.size
            if self._filled < start + header_bytes:
                break
            self._at = start + header_bytes
            frame = decode_header(kind, self._scratch[start : self._at], payload_bytes)
            if is_bare(kind):
                self._received(frame)
                continue
            self._begin(frame, payload_bytes)
            if self._frame is not None:
                self._at = self._filled = 0
                return
        if self._at == self._filled:
            self._at = self._filled = 0
        elif self._at:
            rest = self._filled - self._at
            self._scratch[:rest] = bytes(self._scratch[self._at : self._filled])
            self._at, self._filled = 0, rest

    def _begin(self, frame: Frame, payload_bytes: int) -> None:
        """A header is there: find a place for its payload, and move what has come of it already."""
        self._since = elapsed()
        self._payload_bytes = payload_bytes
        if not has_document(frame):
            self._target = self._receiver.sink(frame, payload_bytes)
        elif self._receiver.admits(frame, payload_bytes):
            self._target = memoryview(bytearray(payload_bytes))
        if self._stopped:
            return
        here = min(payload_bytes, self._filled - self._at)
        if self._target is not None and here:
            self._target[:here] = self._scratch[self._at : self._at + here]
        self._at += here
        self._missing = payload_bytes - here
        if self._missing:
            self._frame = frame
        else:
            self._complete(frame)

    def _complete(self, frame: Frame) -> None:
        target, self._target, self._frame = self._target, None, None
        self._progress = None  # the frame itself is heard of
        if self._stopped:
            return
        document = target if has_document(frame) else None
        seconds = elapsed() - self._since
        self._receiver.received(frame, document, self._payload_bytes, target is not None, seconds)

    def _received(self, frame: Frame) -> None:
        """A frame without a payload: most are."""
        if type(frame) is Bye:
            self.farewell = self.farewell or f"closed by the other end: {frame.reason}"
        self._receiver.received(frame, None, 0, True, 0.0)
