"""`edgepeer fleet serve`: lets devices in, and keeps the members on this machine."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from edgepeer.cli.fleet.home import registrar_of
from edgepeer.cli.fleet.telling import bring
from edgepeer.cli.signals import run_until_stopped
from edgepeer.cli.verb import Verb
from edgepeer.errors import EdgepeerError
from edgepeer.notify import ready
from edgepeer.settings import FleetServeSettings

if TYPE_CHECKING:
    from edgepeer.enrol.household import Household
    from edgepeer.enrol.registrar import Registrar

__all__ = ["SERVE"]

_log = logging.getLogger(__name__)

_HOUSEKEEPING_S: Final = 2.0
_HOUR_S: Final = 3600.0


def serve(settings: FleetServeSettings) -> int:
    """Let devices in and renew certificates until SIGTERM or Ctrl-C."""
    with registrar_of(settings) as (registrar, household):
        return run_until_stopped(lambda stop: _serve(settings, registrar, household, stop))


async def _serve(settings: FleetServeSettings, registrar: Registrar, household: Household, stop: asyncio.Event) -> None:
    from edgepeer.enrol.service import EnrolmentService

    host, _, port = settings.listen.rpartition(":")
    async with EnrolmentService(registrar, host.strip("[]"), int(port)) as service:
        print(f"enrolment of fleet {registrar.fabric} ready at {service.address}", flush=True)
        async with asyncio.TaskGroup() as tasks:
            house = tasks.create_task(_keep_house(registrar, household))
            async with ready(f"listens on {service.address}"):
                await stop.wait()
            house.cancel()


async def _keep_house(registrar: Registrar, household: Household) -> None:
    """Until cancelled: what another process evicts, the members here and the fleet are told; and they renew."""
    loop = asyncio.get_running_loop()
    seen, untold, again_at, pause, complaint = b"", False, 0.0, _HOUSEKEEPING_S, ""
    while True:
        try:
            signed = await asyncio.to_thread(lambda: registrar.evictions)
            if signed != seen or loop.time() >= again_at:
                # At first, too, for the fleet may know more: an older copy that was put back renews who is out.
                untold, seen = untold or signed != seen, signed
                pause = min(2 * pause, _HOUR_S)  # if this fails
                again_at = loop.time() + (pause if untold else _HOUR_S)
                members = await asyncio.to_thread(household.update)
                why_not = await bring(household, members, _HOUSEKEEPING_S)
                if untold:
                    untold = why_not is not None
                    _log.warning("not told yet: %s", why_not) if untold else _log.info("the fleet has been told")
                if not untold:
                    pause = _HOUSEKEEPING_S
                again_at = loop.time() + (pause if untold else _HOUR_S)
            complaint = ""
        except Exception as error:  # nothing that a file or the network says is the end of who lets devices in
            if str(error) != complaint:  # a disk that is broken is told of once
                complaint = str(error)
                _log.error("%s", error, exc_info=None if isinstance(error, EdgepeerError) else error)
        await asyncio.sleep(_HOUSEKEEPING_S)


SERVE = Verb(
    kind=FleetServeSettings,
    about="Let devices in that have a token, and renew certificates.\n\n"
    "Training never needs it: it may be off but for the time in which devices join, and now and then for a while in "
    "the months in which certificates are to be renewed.",
    examples=[("on the machine where `edgepeer fleet init` was run", "edgepeer fleet serve")],
    run=serve,
)
