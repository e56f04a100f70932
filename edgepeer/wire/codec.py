"""Frames as bytes.

    prelude (10 bytes, big-endian): magic "EP" | version u8 | kind u8 | header length u16 | payload length u32
    header: one msgpack array, the fields of the frame in order
    payload: raw bytes (vector elements little-endian, a document, or nothing)

The length of everything is known, and checked against a limit, before a byte of it is stored.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from edgepeer.errors import VersionError, WireError
from edgepeer.printable import printable
from edgepeer.wire.frames import (
    Abort,
    Bye,
    Call,
    Decide,
    Frame,
    Have,
    Hello,
    Here,
    Knock,
    Leave,
    Measured,
    Meta,
    NoWay,
    Ping,
    Poll,
    Progress,
    Propose,
    Reduce,
    Release,
    Result,
    State,
    StateRequest,
    Suspect,
    Sync,
    Via,
    ViewFrame,
    Vote,
)  # fmt: skip
from edgepeer.wire.precision import block_of, elements_in

__all__ = [
    "FRAME_VERSION",
    "MAX_PAYLOAD_BYTES",
    "PRELUDE",
    "decode_header",
    "decode_prelude",
    "encode",
    "has_document",
    "is_bare",
    "unwrap",
    "wrap",
]

FRAME_VERSION: Final = 5
MAGIC: Final = b"EP"
_TLS: Final = b"\x16\x03"
"""What a TLS connection begins with."""
PRELUDE: Final = struct.Struct("!2sBBHI")
MAX_PAYLOAD_BYTES: Final = 1 << 30
"""No frame may announce more than this; what a receiver accepts is usually far less."""
MAX_DOCUMENT_BYTES: Final = 4 << 20

_KINDS: Final[tuple[type[Frame], ...]] = (
    Hello, Sync, ViewFrame, Ping, Reduce, Result, Abort, Suspect, Leave, StateRequest, State, Bye,
    Have, Decide, Knock, Via, NoWay, Poll, Vote, Meta,
    Progress, Release, Propose, Call, Here, Measured,
)  # fmt: skip
_CODES: Final = {kind: code for code, kind in enumerate(_KINDS, start=1)}
_WITH_VECTOR: Final = frozenset({Reduce, Result, State})
_WITH_DOCUMENT: Final = frozenset({ViewFrame, Propose, Vote, Via})
_DOCUMENTS: Final = _WITH_DOCUMENT - {Via}
_NEVER_WRAPPED: Final = frozenset({Hello, Via, Bye})
_LONGEST_REASON: Final = 200
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODERS: Final[dict[type[Frame], msgspec.msgpack.Decoder[Frame]]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in _KINDS
}
_LIMITS: Final = {
    kind: MAX_PAYLOAD_BYTES if kind in _WITH_VECTOR else MAX_DOCUMENT_BYTES if kind in _WITH_DOCUMENT else 0
    for kind in _KINDS
}
"""Of the payload of each kind."""


def encode(frame: Frame, payload_bytes: int = 0) -> bytes:
    """Prelude and header of a frame whose payload of that many bytes follows."""
    header = _ENCODER.encode(frame)
    return PRELUDE.pack(MAGIC, FRAME_VERSION, _CODES[type(frame)], len(header), payload_bytes) + header


def decode_prelude(data: bytes | bytearray | memoryview, at: int = 0) -> tuple[type[Frame], int, int]:
    """The kind, header length and payload length that stand at `data[at:]`.

    Raises:
        VersionError: a frame of another version.
        WireError: not a frame, an unknown kind, or longer than that kind may be.
    """
    magic, version, code, header_bytes, payload_bytes = PRELUDE.unpack_from(data, at)
    if magic == _TLS:
        raise WireError("not an edgepeer frame but TLS: the other end is in a fleet, this peer isn't (`edgepeer join`)")
    if magic != MAGIC:
        raise WireError(f"not an edgepeer frame: starts with {bytes(magic)!r}")
    if version != FRAME_VERSION:
        raise VersionError(f"frame of version {version}; this build speaks {FRAME_VERSION}")
    if not 1 <= code <= len(_KINDS):
        raise WireError(f"unknown frame kind {code}")
    kind = _KINDS[code - 1]
    if payload_bytes > _LIMITS[kind]:
        raise WireError(f"{kind.__name__} frame announces {payload_bytes} payload bytes, limit {_LIMITS[kind]}")
    return kind, header_bytes, payload_bytes


def decode_header(kind: type[Frame], header: bytes | bytearray | memoryview, payload_bytes: int) -> Frame:
    """The frame of that header.

    Raises:
        WireError: not msgpack, or fields of the wrong number, type or size.
    """
    try:
        frame = _DECODERS[kind].decode(header)
    except (ValueError, RecursionError) as error:  # msgspec.DecodeError is a ValueError
        what = printable(str(error) or type(error).__name__, _LONGEST_REASON)  # it may quote what has come
        raise WireError(f"{kind.__name__} header: {what}") from error
    if isinstance(frame, (Reduce, Result)):
        end = _end(frame, payload_bytes)
        # Of a lane only the receiver knows where it ends.
        if isinstance(frame, Result) and not frame.lane and (frame.commit is not None) != (end == frame.total):
            raise WireError("Result: the commit comes with the last segment, and only with that")
    elif isinstance(frame, State) and frame.offset + payload_bytes > frame.total:
        raise WireError(f"State of {payload_bytes} bytes at {frame.offset} of {frame.total}")
    return frame


def _end(frame: Reduce | Result, payload_bytes: int) -> int:
    """The element that a segment ends before."""
    precision, block = frame.precision, block_of(frame.precision)
    if precision != "float32" and frame.dtype != "<f4":
        raise WireError(f"{type(frame).__name__}: {frame.dtype} in {precision}, which is for float32")
    items = elements_in(precision, payload_bytes, 4 if frame.dtype == "<f4" else 8)
    end = frame.offset + items
    ends = end % block == 0 or end == frame.total or (frame.lane and (frame.total - end) % block == 0)
    if items < 0 or end > frame.total or frame.offset % block or not ends:
        place = f"at element {frame.offset} of {frame.total}"
        rounded = "" if precision == "float32" else f", in {precision}"
        raise WireError(f"{type(frame).__name__} of {payload_bytes} bytes {place}{rounded}")
    return end


def wrap(frame: Frame) -> tuple[int, bytes]:
    """Kind and header of a frame, for a Via."""
    return _CODES[type(frame)], _ENCODER.encode(frame)


def unwrap(via: Via, payload_bytes: int) -> Frame:
    """The frame that a Via carries.

    Raises:
        WireError: none, or one that can't be carried.
    """
    kind = _KINDS[via.kind - 1] if via.kind <= len(_KINDS) else None
    if kind is None or kind in _NEVER_WRAPPED:
        raise WireError(f"Via carries a frame of kind {via.kind}")
    if payload_bytes and kind not in _WITH_VECTOR and kind not in _DOCUMENTS:
        raise WireError(f"{kind.__name__} frame in a Via has {payload_bytes} payload bytes")
    return decode_header(kind, via.header, payload_bytes)


def is_bare(kind: type[Frame]) -> bool:
    """Whether such a frame has no payload, ever."""
    return not _LIMITS[kind]


def has_document(frame: Frame) -> bool:
    """Whether the transport itself must hold the payload: a document, or what is only passed on."""
    return type(frame) in _WITH_DOCUMENT
