"""`edgepeer fleet evict` and `rotate-ca`: what the whole fleet must hear of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepeer.cli.fleet.home import print_json, registrar_of
from edgepeer.cli.fleet.telling import say_told, take_over_job, tell
from edgepeer.cli.verb import Verb
from edgepeer.errors import ConfigError, FabricError
from edgepeer.settings import FleetEvictSettings, FleetRotateSettings

if TYPE_CHECKING:
    from edgepeer.enrol.household import Household

__all__ = ["EVICT", "ROTATE"]


def evict(settings: FleetEvictSettings) -> int:
    """Throw a member out, and tell the fleet."""
    if settings.member is None:
        raise ConfigError("say whom, as in: edgepeer fleet evict p7")
    with registrar_of(settings) as (registrar, household):
        holders, tokens = registrar.evict(settings.member)
        told = tell(household, settings.timeout)
    if settings.json:
        out = [f"{holder.serial:x}" for holder in holders]
        print_json({"evicted": settings.member, "serials": out, "tokens": tokens, "told": told is None})
        return 0
    serials, count = ", ".join(f"{holder.serial:x}" for holder in holders), "counts" if len(holders) == 1 else "count"
    print(f"evicted {holders[0].common_name}: certificate {serials} {count} no more")
    for each in tokens:
        print(f"token {each}, with which it came in or was to, lets nobody in any more")
    print(f"if the broker is a mosquitto: restart it, with {household.revoked} as its crlfile")
    say_told(told)
    return 0


def rotate(settings: FleetRotateSettings) -> int:
    """Begin to use a new authority, or end the use of the old one."""
    with registrar_of(settings) as (registrar, household):
        late: list[str] = []
        tokens: list[str] = []
        if settings.finish:
            if len(registrar.authorities) > 1 and not settings.force:
                _hand_over(household, settings.timeout)
            late, tokens = registrar.finish(force=settings.force)
        else:
            registrar.rotate()
        told = tell(household, settings.timeout)
    if settings.json:
        print_json({"finished": settings.finish, "left_out": late, "tokens": tokens, "told": told is None})
        return 0
    if settings.finish:
        print("the old authority counts no more")
        if late:
            print(f"must join again: {', '.join(late)}")
        for each in tokens:
            print(f"token {each}, made under the old authority, lets nobody in any more")
    else:
        print("a new authority issues certificates; members take one as soon as they hear of it")
        print("when `edgepeer fleet list` shows nobody with the old one's: edgepeer fleet rotate-ca --finish")
    print(f"if the broker is a mosquitto: give it the files in {household.broker} again, and restart it")
    say_told(told)
    return 0


def _hand_over(household: Household, timeout: float) -> None:
    """Else a job that was announced under the old authority would not count for newcomers, nor after a restart."""
    if (why_not := take_over_job(household, timeout)) is not None:
        raise FabricError(
            f"{why_not}; a job may be announced there under the old authority, which newcomers would not take up: try "
            "again when the broker can be reached, or drop the authority all the same with --force"
        )


EVICT = Verb(
    kind=FleetEvictSettings,
    about="Throw a member out: a device that was lost, say.\n\n"
    "Its certificates count no more, at any peer that hears of it, and none is renewed. Tokens with which it came in, "
    "or that were made for it, let nobody in any more.",
    examples=[("the device p7", "edgepeer fleet evict p7"), ("the operator bob", "edgepeer fleet evict @bob")],
    run=evict,
)
ROTATE = Verb(
    kind=FleetRotateSettings,
    about="Replace the fleet's authority, in two steps, while it trains.\n\n"
    "First a new one issues certificates, and both count; members take one as soon as they hear of it, for which "
    "`edgepeer fleet serve` must run. When all have one, --finish drops the old authority; a job that the fleet has is "
    "announced anew under the new one.",
    examples=[
        ("begin", "edgepeer fleet rotate-ca"),
        ("end, when `edgepeer fleet list` shows nobody with the old one's", "edgepeer fleet rotate-ca --finish"),
    ],
    run=rotate,
)
