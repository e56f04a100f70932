"""How the fleet hears of a change: its operator on this machine brings it to the broker."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from edgepeer.cli.signals import run as run_async
from edgepeer.errors import EdgepeerError
from edgepeer.trust.names import Role

if TYPE_CHECKING:
    from edgepeer.enrol.household import Household
    from edgepeer.fabric.client import FabricClient
    from edgepeer.trust.identity import Identity

__all__ = ["bring", "say_told", "take_over_job", "tell"]


def tell(household: Household, timeout: float) -> str | None:
    """Bring the newest list to the broker; why not, if it isn't."""
    return run_async(bring(household, household.update(), timeout))


async def bring(household: Household, members: list[Identity], timeout: float) -> str | None:
    """Bring the newest list to the broker, as one of these, and take away what is left there of the evicted; and say
    the fleet's job once more, if what it is signed with ends soon; why not, if it isn't done."""

    async def say(client: FabricClient, operator: Identity) -> bool:
        household.agree(operator, client.listed_there)
        client.take_over_job()
        client.clear_outdated()
        return await client.spread(timeout)

    return await _as_operator(members, say, timeout)


def take_over_job(household: Household, timeout: float) -> str | None:
    """Let the job that the fleet has, if any, be said under the new authority; why not, if it isn't done."""

    async def say(client: FabricClient, _: Identity) -> bool:
        client.take_over_job()
        return await client.flush(timeout)

    return run_async(_as_operator(household.update(), say, timeout))


async def _as_operator(
    members: list[Identity], say: Callable[[FabricClient, Identity], Awaitable[bool]], timeout: float
) -> str | None:
    """Say something at the broker as the operator among these, when all was heard that it has; why not, if it isn't
    said."""
    from edgepeer.fabric.address import BrokerAddress
    from edgepeer.fabric.topics import Group
    from edgepeer.following.observe import observe

    operated = next((each for each in members if each.holder.role is Role.OPERATOR), None)
    if operated is None:
        return (
            "this machine has no operator that can: where a line before this one names its directory, mend that; "
            "else it was evicted: edgepeer fleet operator add NAME, then edgepeer join as that says, with --dir "
            "DIR/operator, DIR being the authority's"
        )
    where = operated.where
    try:
        broker = BrokerAddress.parse(",".join(where.broker))
        async with observe(
            broker, where.fabric, lambda _: None, interests=Group.KEPT, timeout=timeout, identity=operated
        ) as client:
            return None if await say(client, operated) else f"the broker did not confirm within {timeout:g} s"
    except EdgepeerError as error:
        return str(error)


def say_told(why_not: str | None) -> None:
    """Whether it is told, for people."""
    if why_not is None:
        print("the fleet has been told")
    else:
        print(f"edgepeer: not told yet: {why_not}", file=sys.stderr)
        print("edgepeer: `edgepeer fleet serve` tells it, and whoever renews its certificate", file=sys.stderr)
