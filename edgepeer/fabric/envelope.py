"""What travels signed: who says it, where, and what. As msgpack: [1, certificate, signature, body].

The signature is over the topic, too: what was said on one counts on no other.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from edgepeer.errors import WireError

__all__ = ["MARGIN_BYTES", "Envelope"]

MARGIN_BYTES: Final = 4608
"""So much longer than its body may one be."""
_PREFIX: Final = b"edgepeer-document-1\0"


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One document, signed."""

    version: Annotated[int, msgspec.Meta(ge=1, le=1)]
    certificate: Annotated[bytes, msgspec.Meta(min_length=1, max_length=4096)]
    """Of who has signed it, DER."""
    signature: Annotated[bytes, msgspec.Meta(min_length=1, max_length=128)]
    body: bytes

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, payload: bytes) -> Envelope:
        """The envelope that those bytes are.

        Raises:
            WireError: none.
        """
        try:
            return _DECODER.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            raise WireError("not signed: this fleet takes no other documents") from None

    @staticmethod
    def signed_bytes(topic: str, body: bytes) -> bytes:
        """What the signature is over."""
        return b"".join((_PREFIX, topic.encode(), b"\0", body))


_DECODER: Final = msgspec.msgpack.Decoder(Envelope)
