"""What goes through others, a neighbour or the broker, sealed from end to end: they see who writes to whom, and how
much, and nothing else.

A sealed Via has the kind SEALED, no header, and as its payload kind, header and payload of what it carries. Source,
target, number and serial number of the tunnel, and through how many it goes, are sealed with it: none of them can be
changed.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Final

import msgspec

from edgepeer.complaints import Complaints
from edgepeer.errors import TrustError
from edgepeer.topology.view import View
from edgepeer.transport.base import Traffic
from edgepeer.wire.frames import Via

if TYPE_CHECKING:
    from edgepeer.trust.sealing import Correspondence

__all__ = ["SEALED", "Letters"]

_log = logging.getLogger(__name__)

SEALED: Final = 255
_INSIDE: Final = struct.Struct("!BH")


class Letters:
    """Of one peer.

    Args:
        correspondence: with the keys of this life and of others.
        traffic: counts what is dropped.
    """

    def __init__(self, me: str, correspondence: Correspondence, traffic: Traffic) -> None:
        self._me = me
        self._correspondence = correspondence
        self._traffic = traffic
        self._dropped = Complaints(_log)
        self._unsent = Complaints(_log)

    @property
    def key(self) -> bytes:
        """What others seal with what is for this life."""
        return self._correspondence.key

    def learn(self, peer: str, incarnation: int, key: bytes) -> None:
        """A life of a peer has said, as it is signed, which key it has."""
        self._correspondence.learn(peer, incarnation, key)

    def forget(self, peer: str) -> None:
        """A peer has been evicted: no life of it that is known has a key any more."""
        self._correspondence.forget(peer)

    def view(self, view: View) -> None:
        """A view tells of the keys of all its members, though not in their own words."""
        for member in view.members:
            self._correspondence.learn(member.id, member.incarnation, member.key or b"", hearsay=True)

    def seal(self, via: Via, payload: memoryview | bytes | None) -> tuple[Via, bytes] | None:
        """What is to be sent in place of a Via that this peer has written; None: it can't be."""
        inside = b"".join((_INSIDE.pack(via.kind, len(via.header)), via.header, payload or b""))
        try:
            sealed = self._correspondence.seal(via.target, inside, _about(via))
        except TrustError as error:
            self._unsent.add("not sent to %s: %s", via.target, error)
            return None
        return msgspec.structs.replace(via, kind=SEALED, header=b""), sealed

    def open(self, via: Via, payload: memoryview | bytes | None) -> tuple[Via, memoryview] | None:
        """The Via that its source has written to this peer; None: it is dropped."""
        try:
            if via.kind != SEALED or via.header:
                raise TrustError(f"what is said to be of {via.source} is not sealed")
            inside = memoryview(self._correspondence.open(via.source, payload or b"", _about(via)))
            if len(inside) < _INSIDE.size or len(inside) < _INSIDE.size + inside[1] * 256 + inside[2]:
                raise TrustError(f"what {via.source} has sealed is no frame")
        except TrustError as error:
            self._traffic.frames_rejected += 1
            self._dropped.add("dropped on its way through others: %s", error)
            return None
        kind, header_bytes = _INSIDE.unpack_from(inside)
        end = _INSIDE.size + header_bytes
        if not kind:
            return None
        return msgspec.structs.replace(via, kind=kind, header=bytes(inside[_INSIDE.size : end])), inside[end:]


def _about(via: Via) -> bytes:
    """What is told beside what is sealed. Through one hop it is what peers say that know of no more."""
    about = (via.source, via.target, via.tunnel, via.serial)
    return msgspec.msgpack.encode((*about, via.hops) if via.hops > 1 else about)
