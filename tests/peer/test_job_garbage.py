"""What is no job, on the topic of the fabric's job, disturbs neither the training nor those who join it."""

from __future__ import annotations

import asyncio
import contextlib

import aiomqtt
import msgpack
import pytest
from peer_agents import agents
from peer_fleet import DEADLINE_S

from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.events import FabricEvent, JobSeen
from edgepeer.fabric.topics import Topics
from edgepeer.following.follow import run_job
from edgepeer.following.observe import observe
from edgepeer.following.progress import JobProgress
from edgepeer.training.job import Job, new_job
from edgepeer.wire.documents import pack, unpack

JOB = new_job(
    id="j1",
    model="linear",
    trainer="numpy",
    optimizer="adam",
    batch_size=20,
    rounds=100_000,
    wait_for=2,
    eval_every=1000,
)
TOPIC = Topics("lab").job
GARBAGE = {
    "no document": b"\xc1garbage",
    "cut short": pack(JOB)[:-1],
    "a job that breaks its bounds": msgpack.packb({**msgpack.unpackb(pack(JOB)), "rounds": -1}),
    "of a version to come": msgpack.packb({"v": 2, "id": "j2"}),
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_in_the_place_of_a_job(what: str, broker: EmbeddedBroker) -> None:
    heard: asyncio.Queue[bytes | None] = asyncio.Queue(1000)
    moved = asyncio.Event()

    def hear(event: FabricEvent) -> None:
        if isinstance(event, JobSeen):
            heard.put_nowait(event.payload)

    progress = JobProgress(JOB, broker="embedded")

    async def at_round(number: int) -> None:
        while progress.round < number:
            moved.clear()
            await moved.wait()

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(DEADLINE_S))
        await stack.enter_async_context(agents(broker, 2))
        following = asyncio.create_task(
            run_job(progress, lambda _: moved.set(), broker=broker.address, fabric="lab", timeout=DEADLINE_S)
        )
        stack.callback(following.cancel)
        await at_round(5)
        await stack.enter_async_context(observe(broker.address, "lab", hear))
        assert unpack(await heard.get() or b"", Job) == JOB
        raw = await stack.enter_async_context(aiomqtt.Client(broker.address.host, broker.address.port))
        await raw.publish(TOPIC, GARBAGE[what], qos=1, retain=True)
        while (payload := await heard.get()) == GARBAGE[what]:
            pass
        assert unpack(payload or b"", Job) == JOB  # said again, for those who join
        await at_round(progress.round + 5)
        assert not progress.withdrawn
        assert not following.done()
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
