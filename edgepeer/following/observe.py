"""Looking at a fabric without being one of its peers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from edgepeer.cancelling import mind_cancellation
from edgepeer.errors import FabricError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.connection import ECHO_S
from edgepeer.fabric.events import FabricEvent, Synced
from edgepeer.fabric.topics import Group
from edgepeer.following.picture import Picture

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["BACK_WITHIN_S", "hear_out", "hear_the_end", "observe", "question"]

_ANSWER_WITHIN_S: Final = 2.0
"""A peer that lives answers within this time."""
BACK_WITHIN_S: Final = 7.0
"""A peer that has lost its broker tries again every five seconds at least ..."""
_ITS_JOB_S: Final = 1.0
"""... and the head of a fleet, once it is back, says at once what the job is. If it is gone again, another does."""
_FETCHED_WITHIN_S: Final = 4.0
"""Who has followed a job to its end, and wants the model, comes for it within this time."""


@asynccontextmanager
async def observe(
    broker: BrokerAddress,
    fabric: str,
    on_event: Callable[[FabricEvent], None],
    *,
    interests: Group = Group.EVERYTHING,
    timeout: float = 6.0,
    identity: Identity | None = None,
) -> AsyncIterator[FabricClient]:
    """A client of the fabric; when the context opens, `on_event` was told all that the broker retains.

    Whatever ends the client, as that we are evicted, ends the body, too.

    Args:
        identity: who looks, in a fleet.

    Raises:
        FabricError: the broker refused us, or did not answer, each within `timeout` seconds.
        TrustError: we are of the fleet no more.
        ConfigError: the fabric's name is none.
    """
    synced = asyncio.Event()

    def tell(event: FabricEvent) -> None:
        on_event(event)
        if isinstance(event, Synced):
            synced.set()

    name = f"observer-{secrets.token_hex(6)}"
    client = FabricClient(broker, fabric, name, on_event=tell, interests=interests, identity=identity)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run(), name="observer")
            try:
                await client.connected(timeout)
                await _within(timeout, synced, broker)
                yield client
            finally:
                await client.close()
    except BaseExceptionGroup as group:
        mind_cancellation()
        raise group.exceptions[0] from None  # the client's own comes first, being why the body has failed


async def _within(timeout: float, synced: asyncio.Event, broker: BrokerAddress) -> None:
    try:
        async with asyncio.timeout(timeout):
            await synced.wait()
    except TimeoutError:
        raise FabricError(f"broker {broker}: let us in, but did not answer within {timeout:g} s") from None


async def hear_out(picture: Picture, news: asyncio.Event) -> None:
    """Give others the time to say what they are at. A broker that tells of neither view nor job, nor that one is over,
    may have lost its memory a moment ago, as one may that tells of a view at a job, and nothing of that; and who has
    followed the job that is done may be about to fetch its model.

    Args:
        news: set whenever the picture has taken an event.
    """
    knows_nothing = picture.view is None and not (picture.has_job or picture.over)
    if knows_nothing and await _until(lambda: picture.told or picture.view is not None, news, BACK_WITHIN_S):
        await _until(lambda: picture.told, news, _ITS_JOB_S)
    if picture.run:
        await _until(lambda: not picture.run, news, BACK_WITHIN_S)
    if picture.is_done and not picture.busy:
        done = picture.job
        await _until(lambda: picture.job != done or bool(picture.busy), news, _FETCHED_WITHIN_S)


async def hear_the_end(picture: Picture, news: asyncio.Event, job: str | None) -> bool:
    """Whether the broker passes on that a job is over, which it has taken: it acknowledges what its rules forbid, too.

    Args:
        job: its id; None: it could not be read.
    """

    def over() -> bool:
        return picture.told and (not picture.has_job or (picture.job is not None and picture.job.id != job))

    return await _until(over, news, ECHO_S)


async def _until(so: Callable[[], bool], news: asyncio.Event, within_s: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not so():
                news.clear()
                await news.wait()
    return so()


async def question(client: FabricClient, picture: Picture, news: asyncio.Event) -> None:
    """Ask all peers in the picture whether they live, and doubt those that don't answer.

    Args:
        news: set whenever the picture has taken an event.
    """
    client.ask()
    await _until(lambda: not picture.unheard, news, _ANSWER_WITHIN_S)
    picture.doubt()
