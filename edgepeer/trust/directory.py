"""The directory that makes a device one of a fleet. `edgepeer join` makes it; this much needs no cryptography.

key.pem          the device's own, made here, and never anywhere else
certificate.pem  who it is; written last, so that a directory with one is complete
authorities.pem  who may say so: one authority or, while it is rotated, two
evictions        who is out, as signed
fleet.toml       where the fleet is

Peers put two files of theirs there: announced (fabric/announced.py), and life (lives.py).
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Final

import msgspec

from edgepeer.errors import ConfigError
from edgepeer.printable import printable
from edgepeer.processes import os_reason
from edgepeer.readable import readable
from edgepeer.sockets import host_and_port
from edgepeer.trust.files import write_whole
from edgepeer.trust.names import Role

__all__ = [
    "AUTHORITIES",
    "AUTHORITY",
    "CERTIFICATE",
    "EVICTIONS",
    "FILES",
    "JOIN_AGAIN",
    "JOIN_ANEW",
    "KEY",
    "WHERE",
    "Whereabouts",
    "is_begun",
    "is_joined",
    "keep",
    "not_joined",
]

KEY: Final = "key.pem"
CERTIFICATE: Final = "certificate.pem"
AUTHORITIES: Final = "authorities.pem"
EVICTIONS: Final = "evictions"
WHERE: Final = "fleet.toml"
AUTHORITY: Final = "fleet.db"
"""Where no member is, but the authority: it is the file of its database."""
FILES: Final = (KEY, CERTIFICATE, AUTHORITIES, EVICTIONS, WHERE)

JOIN_AGAIN: Final = "bring the device in again: edgepeer join HOST STRING"
JOIN_ANEW: Final = "if it is to be in again, bring it in anew: edgepeer join HOST STRING"
"""What to do about who was evicted."""

_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


@readable
class Whereabouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What fleet.toml says."""

    fabric: _Name
    role: Role
    id: _Name
    broker: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1, max_length=16)]
    """URLs, the best first."""
    service: _Text
    """host:port where certificates are renewed."""

    def __post_init__(self) -> None:
        try:
            host_and_port(self.service, None, "service")
        except ConfigError as error:
            raise ValueError(str(error)) from None  # msgspec takes it up, and says in which file

    @classmethod
    def read(cls, directory: Path) -> Whereabouts:
        """What the directory's file says.

        Raises:
            ConfigError: there is none, or it is not what it should be; says what to do.
        """
        path = directory / WHERE
        try:
            if not is_joined(directory):
                raise not_joined(directory)
            return msgspec.convert(tomllib.loads(path.read_text()), cls)
        except PermissionError:  # joining again would not help, and cost the place in the fleet
            raise ConfigError(f"{path}: can't read it: permission denied; start as the user whose it is") from None
        except OSError as error:
            raise ConfigError(f"{path}: can't read it: {os_reason(error)}; {JOIN_AGAIN}") from None
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise ConfigError(f"{path}: {printable(str(error))}; {JOIN_AGAIN}") from None

    def toml(self) -> bytes:
        """The file."""
        lines = [f"{name} = {json.dumps(value)}" for name, value in msgspec.to_builtins(self).items()]
        return ("\n".join(["# Made by `edgepeer join`.", *lines]) + "\n").encode()


def keep(directory: Path, where: Whereabouts, *, certificate: bytes, authorities: bytes, evictions: bytes) -> None:
    """Let the directory, which holds the key, be that of a member. Until the last file is there, it is nobody's.

    Raises:
        OSError: it can't be written.
    """
    write_whole(directory / WHERE, where.toml())
    write_whole(directory / AUTHORITIES, authorities)
    write_whole(directory / EVICTIONS, evictions)
    write_whole(directory / CERTIFICATE, certificate)


def is_joined(directory: Path) -> bool:
    """Whether a device has joined a fleet there."""
    return (directory / CERTIFICATE).exists()


def is_begun(directory: Path) -> bool:
    """Whether a device has joined a fleet there, or has begun to, or had before some of it was lost."""
    return any((directory / name).exists() for name in FILES)


def not_joined(directory: Path) -> ConfigError:
    """That no device has."""
    if (directory / AUTHORITY).exists():
        return ConfigError(
            f"fleet = {directory}: the fleet's authority lives there; what its operator and its broker need is in "
            f"{directory / 'operator'} and {directory / 'broker'}"
        )
    return ConfigError(
        f"fleet = {directory}: no fleet was joined there ({CERTIFICATE} is missing): on the administrator's machine, "
        "`edgepeer fleet token` prints the line that does it"
    )
