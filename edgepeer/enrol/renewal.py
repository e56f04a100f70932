"""Keeps a member one while it runs: a new certificate when a third of its life is left, or when the fleet has a new
authority; and whatever another process puts into its directory. Who was off while the authority was rotated does not
know the broker any more: the service, which also has a certificate of the old one, says why.

Who has no clock can't know when that is: it asks the service about every hour, which gives it the same certificate
again until it is time.

A service that can't be reached is asked again, ever more rarely; there are months for it. Nothing else waits for it,
and nothing that a file or the network says is the end of it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from edgepeer.enrol.client import renew
from edgepeer.errors import EdgepeerError, FabricError, TrustError
from edgepeer.processes import os_reason
from edgepeer.trust.clock import aging, believable, date
from edgepeer.trust.identity import Identity

__all__ = ["due", "keep_renewed", "renew_now"]

_LOOK_S: Final = 2.0
_AT_FIRST_S: Final = 30.0
_AT_MOST_S: Final = 3600.0
_SPREAD_S: Final = 5.0
"""Over so long a fleet spreads what all are told at once."""

_log = logging.getLogger(__name__)


def due(identity: Identity) -> bool:
    """Whether it is time for a new certificate."""
    if identity.evicted:
        return False  # nobody would give it one
    if identity.authority.der != identity.evictions.authorities[-1].der:
        return True
    return aging(identity.holder.issued, identity.ends)


async def renew_now(identity: Identity) -> None:
    """Take a new certificate.

    Raises:
        FabricError: the service can't be reached; TrustError: it says no, or the certificate can't be kept.
    """
    host, _, port = identity.where.service.rpartition(":")
    try:
        await identity.could_keep_another()
        granted = await renew(identity, host.strip("[]"), int(port))
        identity.evictions.accept(granted.evictions)
        await identity.renewed_beside(granted.certificate)
    except OSError as error:
        raise TrustError(f"{identity.directory}: can't write a new certificate there: {os_reason(error)}") from None


async def keep_renewed(
    identity: Identity, *, look_s: float = _LOOK_S, spread_s: float = _SPREAD_S, blind_s: float = _AT_MOST_S
) -> None:
    """Do so until cancelled."""
    loop = asyncio.get_running_loop()
    chance = random.Random(identity.certificate)
    pause, at, complaint = _AT_FIRST_S, 0.0, ""
    unsure_at = loop.time() + chance.uniform(0, blind_s)
    told = -1
    while True:
        try:
            identity.refresh()
            complaint = ""
        except Exception as error:
            if str(error) != complaint:
                complaint = str(error)
                _log.warning("%s", error, exc_info=_unless_it_is_known(error))
        doubted = _is_doubted(identity, told)
        unsure = believable() is None and not identity.evicted and loop.time() >= unsure_at
        if not doubted and not unsure and not due(identity):
            pause, at = _AT_FIRST_S, 0.0
        elif not at:
            at = loop.time() + (0.0 if doubted or unsure else chance.uniform(0, spread_s))
        if at and loop.time() >= at:
            before, unsure_at = identity.certificate, loop.time() + chance.uniform(0.5, 1) * blind_s
            try:
                await renew_now(identity)
                told = identity.evictions.number
                if not unsure or identity.certificate != before:
                    _log.info("%s has a new certificate, until %s", identity.holder, date(identity.ends))
            except Exception as error:
                level = logging.INFO if unsure and isinstance(error, FabricError) else logging.WARNING
                _log.log(level, "%s", _told(identity, error), exc_info=_unless_it_is_known(error))
            if due(identity) or _is_doubted(identity, told):  # by a clock that is far ahead, or it was refused
                at = loop.time() + chance.uniform(0.5, 1) * pause
                pause = min(2 * pause, _AT_MOST_S)
            else:
                pause, at = _AT_FIRST_S, 0.0
        await asyncio.sleep(look_s)


def _is_doubted(identity: Identity, told: int) -> bool:
    """Whether the broker that is there may be of an authority that only the service knows: not if this device has the
    list that it told when it was asked last, the one of that number."""
    return identity.doubted and not identity.evicted and identity.evictions.number != told


def _told(identity: Identity, error: Exception) -> str:
    """What is wrong; first of all, that it is too late: then it is no help that the service is there again."""
    if (late := identity.expired) is None:
        return f"certificate of {identity.holder}, until {date(identity.ends)}: {error}"
    return str(late) if isinstance(error, TrustError) else f"{late}; nor is there a new one: {error}"


def _unless_it_is_known(error: Exception) -> Exception | None:
    """What is none of our refusals is a mistake of ours, and told as one."""
    return None if isinstance(error, EdgepeerError) else error
