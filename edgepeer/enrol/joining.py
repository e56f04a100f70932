"""What a device does to join a fleet. Its key is made here, and stays here.

Whenever the power fails on the way, it is one of the fleet afterwards or it isn't, and then the same command goes on:
with the key that is there, to which the service gives the same certificate again. The certificate is written last.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from edgepeer.enrol.client import enrol
from edgepeer.enrol.messages import Granted
from edgepeer.enrol.renewal import renew_now
from edgepeer.enrol.strings import JoinString, fingerprint
from edgepeer.errors import ConfigError, EdgepeerError, TrustError
from edgepeer.processes import os_reason
from edgepeer.trust.certificates import (
    Authority,
    check,
    key_bytes,
    load_key,
    make_key,
    pem,
    private_pem,
    request,
)
from edgepeer.trust.directory import CERTIFICATE, FILES, KEY, Whereabouts, is_joined, keep
from edgepeer.trust.evictions import Listed
from edgepeer.trust.files import alone_in, clear_leftovers, read_private, write_whole
from edgepeer.trust.identity import Identity
from edgepeer.trust.names import is_name

__all__ = ["Joined", "device_key", "follow", "join", "keep_granted"]

_NEXT_KEY: Final = "next-key.pem"
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]+")

_GRANTED: Final = (
    "the fleet has let the device in, but what it says could not be kept: make room, keep the directory, whose key is "
    "what was let in, and give the same command again"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Joined:
    """How it went."""

    where: Whereabouts
    directory: Path
    anew: bool
    """Whether it was no member before, or has found its fleet elsewhere."""


async def join(
    directory: Path, host: str, port: int, string: JoinString, *, name: str | None = None, again: bool = False
) -> Joined:
    """Make the directory that of a member. One that is a member of that fleet already stays as it is.

    Args:
        name: how the device is to be called; else as its state directory says, or its host name.
        again: leave another fleet, or another name, for this one.

    Raises:
        ConfigError: the directory can't be used, or is a member's of another fleet; FabricError: nobody answers;
        TrustError: who answers is somebody else, or says no.
    """
    kept = _kept_name(directory)
    if name is not None and not is_name(name):
        raise ConfigError(f"id {name!r}: must be 1 to 63 letters, digits, '.', '_' and '-', a letter or digit first")
    if kept is not None and name not in (None, kept):
        raise ConfigError(f"id {name}: {directory.parent} belongs to peer {kept}: leave --id out")
    with _written(directory), alone_in(directory):
        if is_joined(directory) and not again and (there := _still(directory, string)) is not None:
            return Joined(there, directory, anew=False)
        clear_leftovers(directory)
        # Who joins anew takes another key, for the old one may be known to whoever it was evicted for; and stays who it
        # was until it is let in.
        anew = is_joined(directory) or (directory / _NEXT_KEY).exists()
        key = device_key(directory, _NEXT_KEY if anew else KEY)
        wish = name or kept or _host_name()
        granted = await enrol(host, port, string, request(key), wish, exact=wish in (name, kept))
        with _written(directory, _GRANTED):
            keep_granted(directory, granted, key.public_key(), string.authority)
            _hand_over(directory)
    return Joined(granted.where, directory, anew=True)


async def follow(directory: Path, host: str, port: int) -> Joined:
    """Let the directory's member ask the service, which is there by now, where its fleet is.

    Raises:
        ConfigError: it is no member's, or can't be used; FabricError: nobody answers; TrustError: who answers is
        somebody else, or says no.
    """
    identity = Identity.load(directory)
    with _written(directory), alone_in(directory):
        news = await renew_now(identity, (host, port))
        _hand_over(directory)
    return Joined(identity.where, directory, anew=news)


def device_key(directory: Path, file: str = KEY) -> ec.EllipticCurvePrivateKey:
    """The key that is there, or a new one.

    Raises:
        ConfigError: others can read it; OSError: it can't be written.
    """
    path = directory / file
    with contextlib.suppress(FileNotFoundError, ValueError):  # a spoilt one was never used
        return load_key(read_private(path))
    key = make_key()
    write_whole(path, private_pem(key), private=True)
    return key


def keep_granted(directory: Path, granted: Granted, key: ec.EllipticCurvePublicKey, authority: bytes) -> None:
    """Write what was granted, if it is what it should be: by that authority (its fingerprint), for that key.

    Raises:
        TrustError: it isn't; OSError: it can't be written.
    """
    authorities = [Authority.read(each) for each in granted.authorities]
    root = [each for each in authorities if fingerprint(each.der) == authority]
    listed = Listed.read(granted.evictions, granted.where.fabric, root)
    checked = check(granted.certificate, listed.authorities)
    holder, where = checked.holder, granted.where
    if (holder.fabric, holder.role, holder.id) != (where.fabric, where.role, where.id):
        raise TrustError(f"the enrolment service says {where.role} {where.id}, its certificate {holder}")
    if key_bytes(checked.key) != key_bytes(key):
        raise TrustError("the enrolment service has issued a certificate for another key than this device's")
    if (directory / _NEXT_KEY).exists():
        (directory / CERTIFICATE).unlink(missing_ok=True)  # from here on it is nobody, until the last file is there
        (directory / _NEXT_KEY).replace(directory / KEY)
    keep(
        directory,
        where,
        certificate=pem([granted.certificate]),
        authorities=pem(each.der for each in listed.authorities),
        evictions=granted.evictions,
    )


def _still(directory: Path, string: JoinString) -> Whereabouts | None:
    """Who the device is, if it is one of the fleet that the string is for; None if it is nobody any more.

    Raises:
        ConfigError: it is one of another.
    """
    try:
        identity = Identity.load(directory)
    except EdgepeerError as error:
        _log.warning("joining anew: %s", error)
        return None
    if string.authority in map(fingerprint, (each.der for each in identity.evictions.authorities)):
        return identity.where
    raise ConfigError(
        f"dir = {directory}: is {identity.holder}, another fleet than the join string is for, or the same "
        "before its authority was rotated: --again leaves it, and joins there"
    )


def _kept_name(directory: Path) -> str | None:
    """What the state directory around it calls the device."""
    try:
        kept = (directory.parent / "identity").read_text().split()
    except (OSError, UnicodeDecodeError):
        return None
    return kept[0] if kept and is_name(kept[0]) else None


def _host_name() -> str:
    name = _ODD.sub("-", socket.gethostname().partition(".")[0]).strip("-._")[:63]
    return name if is_name(name) else "device"


def _hand_over(directory: Path) -> None:
    """Root joins for a service: what it has written belongs to whose state directory it is in."""
    owner = directory.parent.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        for path in (directory, *(directory / file for file in FILES)):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


@contextlib.contextmanager
def _written(directory: Path, so: str = "the device has not joined") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"dir = {directory}: can't write there: {os_reason(error)}; {so}") from None
