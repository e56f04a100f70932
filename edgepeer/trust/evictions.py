"""The list of who is out, and of the authorities that count, numbered and signed by these.

It travels by any way there is, and who has an older one takes it. While the authority is rotated the list names two,
and both sign it, so that who knows only one of them learns of the other. As msgpack:

    [1, body, [signature, ...]]        each over b"edgepeer-evictions-1\\0" + body
    body: [fabric, number, [serial, ...], [certificate of an authority, ...], [when, ...]]

When each of these serial numbers was evicted is told in seconds since 1970, 0 where nobody knows; it is for people, and
lists of before it was told count, too. So do those that say more, as later builds may: an authority has signed it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from edgepeer.errors import TrustError
from edgepeer.printable import printable
from edgepeer.readable import readable
from edgepeer.trust.certificates import Authority
from edgepeer.trust.clock import minute
from edgepeer.trust.names import Holder

__all__ = ["LONGEST", "Evictions", "Listed", "eviction", "sign_list"]

LONGEST: Final = 65_536
"""Certificates that can be out at once."""
_LARGEST: Final = 1 << 20
_PREFIX: Final = b"edgepeer-evictions-1\0"

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


@readable
class _Body(msgspec.Struct, frozen=True, array_like=True):
    fabric: Annotated[str, msgspec.Meta(max_length=63)]
    number: _Count
    serials: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=LONGEST)]
    authorities: Annotated[tuple[bytes, ...], msgspec.Meta(min_length=1, max_length=4)]
    times: Annotated[tuple[_Seconds, ...], msgspec.Meta(max_length=LONGEST)] = ()


@readable
class _Signed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=1, le=1)]
    body: bytes
    signatures: Annotated[tuple[bytes, ...], msgspec.Meta(min_length=1, max_length=4)]


@dataclass(frozen=True)
class Listed:
    """One such list, which an authority that counts has signed."""

    number: int
    out: Mapping[int, int]
    """Serial numbers, and when each was evicted."""
    authorities: tuple[Authority, ...]
    signed: bytes

    @classmethod
    def read(cls, signed: bytes, fabric: str, authorities: Sequence[Authority]) -> Listed:
        """The list that those bytes are.

        Raises:
            TrustError: none of this fleet's.
        """
        try:
            if len(signed) > _LARGEST:
                raise ValueError(f"{len(signed)} bytes")
            outer = msgspec.msgpack.decode(signed, type=_Signed)
            data = _PREFIX + outer.body
            if not any(each.verify(signature, data) for each in authorities for signature in outer.signatures):
                raise TrustError("an eviction list is signed by no authority of this fleet")
            body = msgspec.msgpack.decode(outer.body, type=_Body)
            out = dict(zip(body.serials, body.times or [0] * len(body.serials), strict=True))
        except (ValueError, msgspec.DecodeError, RecursionError):
            raise TrustError("an eviction list is malformed") from None
        if body.fabric != fabric:
            raise TrustError(f"an eviction list is of fabric {printable(body.fabric)}, not of {fabric}")
        named = tuple(map(Authority.read, body.authorities))
        return cls(body.number, out, named, bytes(signed))


def sign_list(
    fabric: str,
    number: int,
    out: Mapping[int, int],
    authorities: Sequence[bytes],
    signers: Iterable[ec.EllipticCurvePrivateKey],
) -> bytes:
    """The list, signed by all of these; `out`: when each certificate was evicted, as in `Listed`."""
    serials = tuple(sorted(out))
    times = tuple(out[serial] for serial in serials)
    body = msgspec.msgpack.encode(_Body(fabric, number, serials, tuple(authorities), times))
    signatures = tuple(signer.sign(_PREFIX + body, ec.ECDSA(hashes.SHA256())) for signer in signers)
    return msgspec.msgpack.encode(_Signed(1, body, signatures))


def eviction(holder: Holder, at: int, number: int | None = None) -> str:
    """That a member was evicted, in words: since when, if that is known, which certificate, by which list."""
    when = f" on {minute(at)}" if at else ""
    listed = "" if number is None else f", list {number}"
    return f"{holder} was evicted{when} (certificate {holder.serial:x}{listed})"


class Evictions:
    """The newest list that this device has heard of."""

    def __init__(self, fabric: str, newest: Listed, accepted: Callable[[Listed], None]) -> None:
        self._fabric = fabric
        self._newest = newest
        self._accepted = accepted

    @property
    def serials(self) -> Collection[int]:
        """Of the certificates that count no more."""
        return self._newest.out

    def told(self, holder: Holder) -> str:
        """In words, that a member is out who is in the list."""
        return eviction(holder, self._newest.out[holder.serial], self.number)

    @property
    def number(self) -> int:
        return self._newest.number

    @property
    def signed(self) -> bytes:
        """The list, to be passed on as it is."""
        return self._newest.signed

    @property
    def authorities(self) -> tuple[Authority, ...]:
        """Those that count."""
        return self._newest.authorities

    def accept(self, signed: bytes) -> bool:
        """Take that list if it is newer, keep it, and tell who asked to be told. Whether it was.

        Raises:
            TrustError: it is none of this fleet's.
        """
        if signed == self._newest.signed:
            return False
        listed = Listed.read(signed, self._fabric, self._newest.authorities)
        if listed.number <= self._newest.number:
            return False
        self._newest = listed
        self._accepted(listed)
        return True
