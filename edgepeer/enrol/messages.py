"""What a device and the enrolment service say to each other over TLS: one question, one answer, then both hang up.

Each is four bytes of length and a msgpack document. Nobody waits for longer than PATIENCE_S, or reads more than the
bounds here.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Annotated, Final, TypeAlias

import msgspec

from edgepeer.errors import WireError
from edgepeer.trust.directory import Whereabouts

__all__ = [
    "ANSWER_BYTES",
    "PATIENCE_S",
    "QUESTION_BYTES",
    "Answer",
    "Ask",
    "Authorities",
    "Enrol",
    "Granted",
    "Question",
    "Refused",
    "Renew",
    "answer",
    "question",
    "receive",
    "send",
]

PATIENCE_S: Final = 10.0
QUESTION_BYTES: Final = 8 << 10
ANSWER_BYTES: Final = 2 << 20
_LENGTH: Final = struct.Struct(">I")

_Certificate = Annotated[bytes, msgspec.Meta(min_length=1, max_length=4096)]
_Certificates = Annotated[tuple[_Certificate, ...], msgspec.Meta(min_length=1, max_length=4)]


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Which authorities say who is of the fleet?"""


class Enrol(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Let me in. Only ever sent to whom the authority in the join string vouches for."""

    token: Annotated[bytes, msgspec.Meta(min_length=4, max_length=4)]
    secret: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    request: _Certificate
    """For a certificate, DER."""
    name: Annotated[str, msgspec.Meta(max_length=63)]
    """How the device would like to be called."""
    exact: bool
    """Whether so and not otherwise."""

    def __repr__(self) -> str:
        return f"Enrol(token={self.token.hex()})"


class Renew(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Another certificate for the key that this connection was opened with."""


class Authorities(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """To Ask: certificates, DER."""

    certificates: _Certificates


class Granted(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """To Enrol and Renew."""

    certificate: _Certificate
    authorities: _Certificates
    evictions: Annotated[bytes, msgspec.Meta(max_length=1 << 20)]
    where: Whereabouts


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """To anything: why not, and what to do."""

    reason: Annotated[str, msgspec.Meta(max_length=500)]


Question: TypeAlias = Ask | Enrol | Renew
Answer: TypeAlias = Authorities | Granted | Refused

_QUESTIONS: Final = msgspec.msgpack.Decoder(Question)
_ANSWERS: Final = msgspec.msgpack.Decoder(Answer)


def send(writer: asyncio.StreamWriter, message: Question | Answer) -> None:
    """Queue it."""
    data = msgspec.msgpack.encode(message)
    writer.write(_LENGTH.pack(len(data)) + data)


async def receive(reader: asyncio.StreamReader, limit: int) -> bytes:
    """The document that comes next.

    Raises:
        WireError: it is longer than that; asyncio.IncompleteReadError: the other end has hung up.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > limit:
        raise WireError(f"a message of {length} bytes")
    return await reader.readexactly(length)


def question(data: bytes) -> Question:
    """What is asked. Raises WireError."""
    try:
        asked: Question = _QUESTIONS.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):  # without its words, which might quote a secret
        raise WireError("not a question") from None
    return asked


def answer(data: bytes) -> Answer:
    """What is answered. Raises WireError."""
    try:
        answered: Answer = _ANSWERS.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise WireError("not an answer") from None
    return answered
