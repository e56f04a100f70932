"""The join string: what a device needs to know whom to trust, and to be let in. 63 characters, to be pasted.

epj1-  and, in base32:  16 bytes of the authority's SHA-256 | 4 of the token's id | 16 of its secret
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from edgepeer.errors import ConfigError

__all__ = ["TOKEN_BYTES", "JoinString", "fingerprint", "hidden", "server_name"]

_PREFIX: Final = "epj1-"
_AUTHORITY: Final = 16
TOKEN_BYTES: Final = 4
_SECRET: Final = 16
_CHARACTERS: Final = -(-8 * (_AUTHORITY + TOKEN_BYTES + _SECRET) // 5)
_ANY: Final = re.compile(
    r"(?i)epj1-[^\s()'\",]{16,}|(?<![\w./:\\])(?=[a-z]*[2-7])[a-z2-7]{24,}(?![\w/\\-]|[.:]\w)",
)
"""One, or what is left of one: where a line was broken, its last 26 characters are the secret. One in 200 of these has
no digit; but a word without any, or a part of a path or of a host's name, is what somebody has called a thing."""


def hidden(text: str) -> str:
    """The text without the join strings in it: whoever reads a refusal must not have one."""
    return _ANY.sub(f"{_PREFIX}...", text)


def fingerprint(authority: bytes) -> bytes:
    """Of an authority's certificate, DER."""
    return hashlib.sha256(authority).digest()[:_AUTHORITY]


def server_name(fingerprint: bytes) -> str:
    """How a client says in TLS whom it trusts: the service may have certificates of two authorities."""
    return f"{fingerprint.hex()}.authority.edgepeer"


@dataclass(frozen=True)
class JoinString:
    """A join string, taken apart."""

    authority: bytes
    """The fingerprint of the certificate that says who is of the fleet."""
    token: bytes
    """Which token it is; no secret."""
    secret: bytes = field(repr=False)

    @classmethod
    def fresh(cls, authority: bytes) -> JoinString:
        """With a new token, for the fleet of that authority (DER)."""
        return cls(fingerprint(authority), secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(_SECRET))

    @classmethod
    def parse(cls, text: str) -> JoinString:
        """Read one.

        Raises:
            ConfigError: it is none; the text is not shown, for it may hold a secret.
        """
        given = text.strip().lower()
        body = given.removeprefix(_PREFIX)
        if body == given or len(body) != _CHARACTERS:
            raise ConfigError(
                f"join string: must be {_PREFIX} and {_CHARACTERS} letters and digits (these are {len(given)} "
                "characters): copy the whole line that `edgepeer fleet token` has printed"
            )
        try:
            data = base64.b32decode(body.encode("ascii").upper() + b"=" * (-len(body) % 8))
        except ValueError:
            raise ConfigError("join string: has a character that none has: copy it, don't type it") from None
        return cls(data[:_AUTHORITY], data[_AUTHORITY : _AUTHORITY + TOKEN_BYTES], data[_AUTHORITY + TOKEN_BYTES :])

    def text(self) -> str:
        """The string; whoever has it can join."""
        data = self.authority + self.token + self.secret
        return _PREFIX + base64.b32encode(data).decode().rstrip("=").lower()
