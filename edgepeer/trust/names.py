"""Whom a certificate names: a role in a fabric, and an id.

The name is a URI, edgepeer://FABRIC/ROLE/ID. The common name is what brokers show as a user: a peer's is its id, and
nobody else's is any peer's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from edgepeer.errors import TrustError
from edgepeer.printable import printable

__all__ = ["LONGEST_ID", "Holder", "Role", "is_name"]

LONGEST_ID: Final = 48
"""Of all but peers, whose ids may have 63 characters: with its prefix, it must go into a common name."""
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
_URI: Final = re.compile(rf"edgepeer://({_NAME})/([a-z]+)/({_NAME})\Z")


class Role(StrEnum):
    """What a certificate is for."""

    PEER = "peer"
    OPERATOR = "operator"
    VIEWER = "viewer"
    BROKER = "broker"
    ENROLMENT = "enrolment"


_PREFIXES: Final = {
    Role.PEER: "",
    Role.OPERATOR: "@",
    Role.VIEWER: "viewer:",
    Role.BROKER: "broker:",
    Role.ENROLMENT: "enrolment:",
}
_COUNTS: Final = 1 << 16


def is_name(text: str) -> bool:
    """Whether a fabric, or a peer, can be called so."""
    return re.fullmatch(_NAME, text) is not None


@dataclass(frozen=True, slots=True)
class Holder:
    """Whom a certificate names."""

    fabric: str
    role: Role
    id: str
    serial: int
    """Of the certificate. Later ones of a fleet have higher ones."""

    @property
    def uri(self) -> str:
        return f"edgepeer://{self.fabric}/{self.role}/{self.id}"

    @property
    def common_name(self) -> str:
        """What brokers show as a user name: p7, @bob, broker:raspberrypi."""
        return _PREFIXES[self.role] + self.id

    @property
    def issued(self) -> float:
        """When the certificate was, as its serial number says: milliseconds since 1970, and a count."""
        return (self.serial // _COUNTS) / 1000

    @classmethod
    def parse(cls, uri: str, serial: int) -> Holder:
        """Whom a URI names.

        Raises:
            TrustError: nobody.
        """
        found = _URI.match(uri)
        if found is None or found[2] not in list(Role):
            raise TrustError(f"certificate {serial:x} names {printable(uri)}, which is nobody in a fleet")
        return cls(found[1], Role(found[2]), found[3], serial)

    def __str__(self) -> str:
        return f"{self.role} {self.id} of {self.fabric}"

    @staticmethod
    def serial_after(last: int, now: float) -> int:
        """A serial number for a certificate that is issued now."""
        return max(last + 1, int(now * 1000) * _COUNTS)
