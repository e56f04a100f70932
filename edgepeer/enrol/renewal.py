"""Keeps a member one while it runs: a new certificate when a third of its life is left, or when the fleet has a new
authority; and whatever another process puts into its directory. Who was off while the authority was rotated does not
know the broker any more: the service, which also has a certificate of the old one, says why. And whoever is let in by
no broker asks it where the fleet is by now: each answer says that.

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
from edgepeer.enrol.places import BROKER_PORT
from edgepeer.errors import ConfigError, EdgepeerError, FabricError, TrustError
from edgepeer.printable import printable
from edgepeer.processes import os_reason
from edgepeer.sockets import host_and_port
from edgepeer.trust.clock import aging, believable, date
from edgepeer.trust.directory import Whereabouts
from edgepeer.trust.identity import Identity

__all__ = ["due", "keep_renewed", "renew_now"]

_LOOK_S: Final = 2.0
_AT_FIRST_S: Final = 30.0
_AT_MOST_S: Final = 3600.0
_CUT_OFF_S: Final = 300.0
"""Who is let in by no broker waits no longer than that before it asks again."""
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


async def renew_now(identity: Identity, place: tuple[str, int] | None = None) -> bool:
    """Take a new certificate, and where the fleet is. Whether that is elsewhere than before.

    Args:
        place: host and port where the service is, if not where the fleet was found till now.

    Raises:
        FabricError: the service can't be reached; TrustError: it says no, or the certificate can't be kept.
    """
    host, port = place or host_and_port(identity.where.service, None, "service")
    try:
        await identity.could_keep_another()
        granted = await renew(identity, host, port)
        identity.evictions.accept(granted.evictions)
        if granted.certificate != identity.certificate:
            await identity.renewed_beside(granted.certificate)
        _check(granted.where)
        return await identity.moved_beside(granted.where)
    except OSError as error:
        raise TrustError(f"{identity.directory}: can't write a new certificate there: {os_reason(error)}") from None


def _check(where: Whereabouts) -> None:
    """Refuse what nobody could use: with it in its directory, this device would not start again.

    Raises:
        TrustError: it is none of what a fleet's brokers are called.
    """
    try:
        for url in where.broker:
            if not url.startswith("mqtts://"):
                raise ConfigError(f"broker = {printable(url)}: must be mqtts://host:port")
            host_and_port(url.removeprefix("mqtts://"), BROKER_PORT, "broker")
    except ConfigError as error:
        raise TrustError(f"the enrolment service says that the fleet has moved, but not where to: {error}") from None


async def keep_renewed(
    identity: Identity, *, look_s: float = _LOOK_S, spread_s: float = _SPREAD_S, blind_s: float = _AT_MOST_S
) -> None:
    """Do so until cancelled."""
    loop = asyncio.get_running_loop()
    chance = random.Random(identity.certificate)
    pause, at, complaint = _AT_FIRST_S, 0.0, ""
    unsure_at = loop.time() + chance.uniform(0, blind_s)
    told, has_met = -1, False
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
        cut_off, has_met = identity.reached is False and not identity.evicted, has_met or identity.reached is True
        if not doubted and not unsure and not cut_off and not due(identity):
            pause, at = _AT_FIRST_S, 0.0
        elif not at:
            # Whoever has only just started, and finds no broker, may not be there for long.
            at_once = doubted or unsure or (cut_off and not has_met)
            at = loop.time() + (0.0 if at_once else chance.uniform(0, spread_s))
        if at and loop.time() >= at:
            before, unsure_at = identity.certificate, loop.time() + chance.uniform(0.5, 1) * blind_s
            try:
                await renew_now(identity)
                told = identity.evictions.number
                if identity.certificate != before or not (unsure or cut_off):
                    _log.info("%s has a new certificate, until %s", identity.holder, date(identity.ends))
            except Exception as error:
                level = logging.WARNING
                if isinstance(error, FabricError) and not due(identity):  # asked only in case it knows more
                    level = logging.INFO if unsure else logging.DEBUG if cut_off else level
                _log.log(level, "%s", _told(identity, error), exc_info=_unless_it_is_known(error))
            if due(identity) or cut_off or _is_doubted(identity, told):  # clock far ahead, or refused, or nobody there
                at = loop.time() + chance.uniform(0.5, 1) * pause
                pause = min(2 * pause, _CUT_OFF_S if cut_off else _AT_MOST_S)
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
