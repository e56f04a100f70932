"""What peers seal for each other that others carry: a neighbour, or the broker.

Each life of a peer has an X25519 key, whose public half is told with its presence and in views. Two lives know from
these, without a word between them, one key for each direction: HKDF-SHA256 over what both halves make together, with
the fabric, both ids and both public keys. What is sealed begins with its number, which is its nonce; a number counts
once, and one that is far behind the highest does not count. So nothing that is changed, said again, said to somebody
else or sent back opens, and neither does what was said to an earlier life.
"""

from __future__ import annotations

import struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from edgepeer.errors import TrustError
from edgepeer.trust.ciphers import KEY_BYTES, TAG_BYTES, Cipher, cipher, derive

__all__ = ["OVERHEAD_BYTES", "Correspondence", "Window"]

_COUNT: Final = struct.Struct("!Q")
_NONCE: Final = struct.Struct("!4xQ")
OVERHEAD_BYTES: Final = _COUNT.size + TAG_BYTES
_LAST: Final = (1 << 62) - 1
_BEHIND: Final = 1024
_OTHERS: Final = 8192
"""Peers whose keys are kept."""


class Window:
    """Which numbers have come: each counts once, and none that is too far behind."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = -1
        self._seen = 0
        """Bit n: the number n below the highest."""

    def fresh(self, number: int) -> bool:
        """Whether it may still come."""
        behind = self._highest - number
        return behind < 0 or (behind < _BEHIND and not self._seen >> behind & 1)

    def came(self, number: int) -> None:
        """It has."""
        if number > self._highest:
            self._seen = (self._seen << min(number - self._highest, _BEHIND)) & ((1 << _BEHIND) - 1)
            self._highest = number
        self._seen |= 1 << (self._highest - number)


class _Other:
    """One life of another peer."""

    def __init__(self, incarnation: int, key: bytes, window: Window) -> None:
        self.incarnation = incarnation
        self.key = key
        self.window = window
        self.sealer: Cipher | None = None
        self.opener: Cipher | None = None


class Correspondence:
    """Of one life of a peer with all others of its fabric."""

    def __init__(self, fabric: str, me: str) -> None:
        self._fabric, self._me = fabric, me
        self._private = X25519PrivateKey.generate()
        self.key: Final = self._private.public_key().public_bytes_raw()
        """The public half."""
        self._others: dict[str, _Other] = {}
        self._myself = _Other(0, self.key, Window())
        """What this life writes to itself shows that the broker brings letters."""
        self._sent = 0
        """To all together: whatever is forgotten and learned again, no nonce comes twice ..."""
        self._windows: dict[bytes, Window] = {}
        """... and, by their keys, nothing of theirs counts twice."""

    def learn(self, peer: str, incarnation: int, key: bytes, *, hearsay: bool = False) -> None:
        """A life of another peer has that key. What the peer says itself last counts; what others say of it
        (`hearsay`), if it is of a later life."""
        known = self._others.get(peer)
        if len(key) != KEY_BYTES or peer == self._me:
            return
        if known is not None and hearsay and incarnation <= known.incarnation:
            return
        if known is not None and known.key == key:
            known.incarnation = incarnation
            return
        if known is None and len(self._others) >= _OTHERS:
            del self._others[next(iter(self._others))]
        if key not in self._windows and len(self._windows) >= 2 * _OTHERS:
            del self._windows[next(iter(self._windows))]
        self._others[peer] = _Other(incarnation, key, self._windows.setdefault(key, Window()))

    def forget(self, peer: str) -> None:
        """No life of that peer that is known may be written to, or heard, any more."""
        if (known := self._others.get(peer)) is not None:
            self._others[peer] = _Other(known.incarnation, b"", Window())

    def seal(self, peer: str, data: bytes, about: bytes) -> bytes:
        """Data for that peer alone; `about` is what it must be told beside it, unchanged.

        Raises:
            TrustError: no key of it is known.
        """
        other = self._known(peer)
        number = self._sent
        if number > _LAST:
            raise TrustError(f"no number is left for what is said to {peer}")
        if other.sealer is None:
            other.sealer = self._cipher(other, self._me, peer, self.key, other.key)
        self._sent += 1
        sealed = other.sealer.encrypt(_NONCE.pack(number), data, about)
        return _COUNT.pack(number) + sealed

    def open(self, peer: str, sealed: bytes | memoryview, about: bytes) -> bytes:
        """What that peer has sealed for this one, and told `about` beside it.

        Raises:
            TrustError: it hasn't, or this has come before.
        """
        other = self._known(peer)
        if len(sealed) < OVERHEAD_BYTES:
            raise TrustError(f"{len(sealed)} bytes, said to be sealed by {peer}")
        (number,) = _COUNT.unpack_from(sealed)
        if number > _LAST or not other.window.fresh(number):
            raise TrustError(f"what {peer} has sealed has come before, or far too late (its number is {number})")
        if other.opener is None:
            other.opener = self._cipher(other, peer, self._me, other.key, self.key)
        try:
            data = other.opener.decrypt(_NONCE.pack(number), sealed[_COUNT.size :], about)
        except InvalidTag:
            raise TrustError(f"not sealed by {peer} as it lives now for this life, or changed on the way") from None
        other.window.came(number)
        return data

    def _known(self, peer: str) -> _Other:
        other = self._others.get(peer) if peer != self._me else self._myself
        if other is None or not other.key:
            raise TrustError(f"no key of {peer} is known: neither its presence nor a view has told of it")
        return other

    def _cipher(self, other: _Other, sender: str, receiver: str, sends: bytes, receives: bytes) -> Cipher:
        """Of one direction."""
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(other.key))
        except ValueError:  # a key that makes the same with every other
            raise TrustError(f"the key that {sender if sends == other.key else receiver} tells is none") from None
        info = "\0".join(("edgepeer-letters-1", self._fabric, sender, receiver)).encode()
        # By a cipher that is quick enough everywhere: nobody knows whether the other end has instructions for AES.
        return cipher(derive(secret, info + b"\0" + sends + receives), aes=False)
