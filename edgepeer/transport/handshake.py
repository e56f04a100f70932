"""How two peers meet who trust nobody but their fleet: mutual TLS 1.3, and inside of it one card from each end.

    this end                                   | the other end
    -------------------------------------------+------------------------------------------------
    TLS 1.3, with certificates of both         | the same
    card: does this processor have AES, which  | the same, once it has found our certificate to be
    evictions are known, and 32 fresh bytes    | of its fleet; else a refusal, which says why
    sealed records (records.py), with keys derived from both cards

No I/O: bytes go in and come out. TLS records are taken one at a time, so that what follows the card is not touched. TLS
itself ends there, for what comes out of it would be copied three times, and encrypted by a cipher that is not ours
to choose.
"""

from __future__ import annotations

import secrets
import ssl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgepeer.errors import TrustError, WireError
from edgepeer.printable import printable
from edgepeer.transport.records import Opener, Sealer
from edgepeer.trust.ciphers import KEY_BYTES, derive, has_aes
from edgepeer.trust.names import Role

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity
    from edgepeer.trust.names import Holder

__all__ = ["MOST_BYTES", "Handshake", "Met", "Refused"]

MOST_BYTES: Final = 64 << 10
"""More than this nobody has to say before records begin: certificates of two authorities are 2 kB."""
_TLS_HEAD: Final = 5
_TLS_MOST: Final = (16 << 10) + 256
_TLS_TYPES: Final = frozenset({20, 21, 22, 23})
_CARD: Final = struct.Struct("!4sB3xQ32s")
_CARD_MAGIC: Final = b"EPL1"
_REFUSAL: Final = struct.Struct("!4sB")
_REFUSAL_MAGIC: Final = b"EPNO"
_CHUNK: Final = 16 << 10
_ROLES: Final = {True: (Role.PEER, Role.OPERATOR), False: (Role.PEER,)}
"""Whom a peer lets in, and whom it expects where it has dialled."""


class Refused(WireError):
    """Who is at the other end is not let in, or does not let us in."""


@dataclass(frozen=True, slots=True)
class Met:
    """Who is at the other end, and what is said from here on."""

    holder: Holder
    certificate: bytes
    evictions: int
    """Number of the list of evictions that is known there."""
    sealer: Sealer
    opener: Opener


class Handshake:
    """One end of it. `server`: whether the other end has opened the connection."""

    def __init__(self, identity: Identity, *, server: bool) -> None:
        self._identity = identity
        self._server = server
        self._raw = bytearray()
        """What has come and TLS has not taken."""
        self._taken = 0
        self._said = bytearray()
        """What has come out of TLS."""
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = identity.context(server=server)
        self._tls: ssl.SSLObject | None = context.wrap_bio(self._in, self._out, server_side=server)
        self._aes = has_aes()
        self._key = secrets.token_bytes(KEY_BYTES)
        self._certificate = b""
        self._holder: Holder | None = None
        self.met: Met | None = None
        """Set when all is said."""

    def begin(self) -> None:
        """Whoever has opened the connection speaks first."""
        if not self._server:
            self._step()

    def outgoing(self) -> bytes:
        """What is to be sent now."""
        return self._out.read()

    @property
    def rest(self) -> bytes:
        """What has come behind the other end's card."""
        return bytes(self._raw)

    def take(self, data: bytes | memoryview) -> None:
        """Some bytes have come.

        Raises:
            Refused: this is nobody to talk to; whatever is outgoing says so to the other end.
        """
        self._raw += data
        while self.met is None and (record := self._record()):
            self._in.write(record)
            self._step()

    def _record(self) -> bytes:
        """The next TLS record that is whole."""
        raw = self._raw
        if raw and (raw[0] not in _TLS_TYPES or (self._taken == 0 and raw[0] != 22)):
            raise Refused(_not_tls(bytes(raw[:16])))
        if len(raw) < _TLS_HEAD:
            return b""
        length = _TLS_HEAD + int.from_bytes(raw[3:5], "big")
        if raw[1] != 3 or length > _TLS_HEAD + _TLS_MOST:
            raise Refused(_not_tls(bytes(raw[:16])))
        if self._taken + length > MOST_BYTES:
            raise Refused(f"says more than {MOST_BYTES} bytes and not yet who it is")
        if len(raw) < length:
            return b""
        record = bytes(raw[:length])
        del raw[:length]
        self._taken += length
        return record

    def _step(self) -> None:
        """Go on as far as what has come allows."""
        tls = self._tls
        assert tls is not None
        try:
            if self._holder is None:
                tls.do_handshake()
                self._show(tls)
            while True:
                chunk = tls.read(_CHUNK)
                if not chunk:
                    raise Refused("closed by the other end before it said who it is")
                self._said += chunk
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise Refused(_tls_error(error)) from None
        self._read_card()

    def _show(self, tls: ssl.SSLObject) -> None:
        """TLS stands: see whether the other end may be here, and show our card."""
        self._certificate = tls.getpeercert(binary_form=True) or b""
        try:
            holder = self._identity.check(self._certificate).holder
            ours = self._identity.holder
            if holder.fabric != ours.fabric:
                raise TrustError(f"the certificate is of fabric {holder.fabric!r}, this is {ours.fabric!r}")
            if holder.role not in _ROLES[self._server]:
                raise TrustError(
                    f"certificate {holder.serial:x} is that of {holder}, and not a peer's: on the device, edgepeer "
                    "join HOST STRING"
                )
        except TrustError as error:
            text = str(error).encode()[:250]
            tls.write(_REFUSAL.pack(_REFUSAL_MAGIC, len(text)) + text)
            raise Refused(str(error)) from None
        self._holder = holder
        tls.write(_CARD.pack(_CARD_MAGIC, self._aes, self._identity.evictions.number, self._key))

    def _read_card(self) -> None:
        said = self._said
        if said[:4] == _REFUSAL_MAGIC and len(said) >= _REFUSAL.size:
            if len(said) >= _REFUSAL.size + said[4]:
                text = bytes(said[_REFUSAL.size : _REFUSAL.size + said[4]]).decode(errors="replace")
                raise Refused(f"the other end refuses this device: {printable(text, 255)}")
            return
        if len(said) < min(_CARD.size, 4):
            return
        if said[:4] != _CARD_MAGIC or len(said) > _CARD.size:
            raise Refused(f"says {bytes(said[:4])!r} inside of TLS, where its card should be: another version?")
        if len(said) == _CARD.size:
            _, aes, evictions, key = _CARD.unpack(said)
            self._begin_records(bool(aes), evictions, key)

    def _begin_records(self, aes: bool, evictions: int, key: bytes) -> None:
        assert self._holder is not None
        dialler, listener = (key, self._key) if self._server else (self._key, key)
        keys = {by: derive(dialler + listener, b"edgepeer-records-1 by " + by) for by in (b"dialler", b"listener")}
        mine, theirs = (b"listener", b"dialler") if self._server else (b"dialler", b"listener")
        aes = aes and self._aes
        self.met = Met(
            self._holder,
            self._certificate,
            evictions,
            Sealer(keys[mine], aes=aes),
            Opener(keys[theirs], aes=aes),
        )
        self._tls = None  # it holds 40 kB


def _not_tls(begins: bytes) -> str:
    if begins.startswith(b"EP"):
        return "it speaks without encryption: it is in no fleet (see `edgepeer join`), this device is"
    return f"not TLS: starts with {begins[:8]!r}"


def _tls_error(error: ssl.SSLError) -> str:
    """In words that say whose certificate is not liked."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this fleet: {error.verify_message}"
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "peer did not return a certificate" in reason:
        return "it shows no certificate: only devices of the fleet are let in"
    if "alert" in reason:
        return f"the other end refuses this device's certificate, or ends TLS: {reason}"
    return f"TLS fails: {reason}"
