"""A new connection hears all that was said before: from the broker, or, where that does not say it, from the others.

the broker gives back ...                  | it tells of all that it retains | so we
-------------------------------------------+---------------------------------+---------------------------------
what it retains of ours, then our note     | yes                             | are done
the same, or the other way round, and then | yes, but in no order (aedes)    | wait till all is quiet
more of what it retains                    |                                 |
our note alone                             | not to wildcards (RabbitMQ)     | ask the others, till all is quiet
nothing                                    | who knows                       | go on, and say so

A broker that is kept from working is quiet, too. So quiet is: nothing for a while, nor before it answers once more.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

import aiomqtt

from edgepeer.fabric.connection import publish
from edgepeer.fabric.hearing import Hearing

__all__ = ["catch_up"]

_LOG = logging.getLogger(__name__)
_LATE_S: Final = 0.2
"""What a broker retains may come so long after what is said now ..."""
_SLOWER: Final = 4
"""... or so many times what it took for that to come back: the broker may be busy."""
_QUIET_S: Final = 0.5
"""Who has not answered for so long has nothing to say."""


async def catch_up(client: aiomqtt.Client, hearing: Hearing, *, broker: str, timeout: float) -> None:
    """Settle what is heard: Synced follows.

    Args:
        timeout: seconds that the broker has for an answer, and the others for theirs.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    told = await _within(hearing.told, timeout)
    late_s = max(_LATE_S, _SLOWER * (loop.time() - began))
    if not told:
        _LOG.warning("broker %s: no echo of our own message; what it retains may come later", broker)
    elif hearing.probed.is_set():
        if not await _answers_with_nothing_more(client, hearing, timeout):
            await _till_no_more_comes(client, hearing, late_s, timeout)
    elif await _within(hearing.probed, late_s):
        await _till_no_more_comes(client, hearing, late_s, timeout)
    else:
        _LOG.info("broker %s: does not tell newcomers all that it retains; asking the others", broker)
        await publish(client, *hearing.question(), timeout=timeout)
        await _till_quiet(hearing.answers, _QUIET_S, timeout)
    hearing.settle()
    await publish(client, hearing.probe, b"", retain=True, timeout=timeout)


async def _till_no_more_comes(client: aiomqtt.Client, hearing: Hearing, late_s: float, timeout: float) -> None:
    """Until nothing that was retained has come for so long, or time is up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            while True:
                await _till_quiet(hearing.retained, late_s, timeout)
                if await _answers_with_nothing_more(client, hearing, timeout):
                    return


async def _answers_with_nothing_more(client: aiomqtt.Client, hearing: Hearing, timeout: float) -> bool:
    """Whether the broker gives back a note, and has told nothing that it retains since the last one."""
    before = hearing.kept_before
    hearing.echoed.clear()
    await publish(client, hearing.marker, hearing.note, timeout=timeout)
    return await _within(hearing.echoed, timeout) and hearing.kept_before == before


async def _till_quiet(event: asyncio.Event, quiet_s: float, timeout: float) -> None:
    """Until it has not happened for so long, or time is up."""
    try:
        async with asyncio.timeout(timeout):
            while await _within(event, quiet_s):
                event.clear()
    except TimeoutError:
        _LOG.debug("still not quiet after %g s", timeout)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
