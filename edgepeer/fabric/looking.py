"""Looking for a broker that comes before the one in use in the list."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from edgepeer.errors import FabricError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.connection import connection

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["Back", "look_for"]

_JITTER: Final = random.SystemRandom()  # nobody's seed is disturbed


class Back(FabricError):
    """A broker that comes before ours in the list can be reached again."""


async def look_for(
    earlier: Sequence[BrokerAddress],
    identifier: str,
    *,
    every: float,
    timeout: float,
    identity: Identity | None = None,
    too_soon: Callable[[BrokerAddress], bool],
) -> None:
    """Look until one lets us in, as a client of a name like that; for ever, if there is none.

    Args:
        every: seconds, on average, between two looks.
        timeout: for finding and reaching a broker, and again for its answer.
        identity: as of `connection`.
        too_soon: whether one is not to be looked for yet.

    Raises:
        Back: one has let us in.
    """
    while True:
        # With jitter: a fleet that goes back does not do so in one wave.
        await asyncio.sleep(every * _JITTER.uniform(0.5, 1.5))
        for broker in earlier:
            if too_soon(broker):
                continue
            try:
                async with connection(
                    broker,
                    identifier=f"{identifier}:look",
                    will_topic=None,
                    on_message=lambda topic, payload, kept: None,
                    timeout=timeout,
                    identity=identity,
                ):
                    pass
            except FabricError:
                continue
            raise Back(f"left, for {broker} is back")  # without a word: its will takes our presence back there
