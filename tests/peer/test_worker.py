"""The thread that foreign code runs in: what that does there ends neither the thread nor the peer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from edgepeer.errors import JobError, PeerError
from edgepeer.peer.worker import Worker, still_at_work

DEADLINE_S = 90.0


def raiser(error: BaseException) -> Callable[[], NoReturn]:
    def call() -> NoReturn:
        raise error

    return call


async def test_calls_are_done_one_after_the_other_in_one_thread() -> None:
    loop = asyncio.get_running_loop()
    async with Worker() as worker:
        calls = [loop.run_in_executor(worker, lambda at=at: (at, threading.get_ident())) for at in range(20)]
        found = await asyncio.gather(*calls)
    assert [at for at, _ in found] == list(range(20))
    (thread,) = {thread for _, thread in found}
    assert thread != threading.get_ident()
    assert not still_at_work()


async def test_nothing_that_is_raised_ends_it() -> None:
    class Mute(BaseException):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    loop = asyncio.get_running_loop()
    async with Worker() as worker:
        for error, said in (
            (SystemExit(0), "code of the job raised SystemExit: 0"),
            (KeyboardInterrupt(), "code of the job raised KeyboardInterrupt"),
            (GeneratorExit(), "code of the job raised GeneratorExit"),
            (asyncio.CancelledError(), "code of the job raised CancelledError"),
            (StopIteration(3), "code of the job raised StopIteration: 3"),
            (Mute(), "code of the job raised Mute"),
        ):
            with pytest.raises(JobError) as raised:
                async with asyncio.timeout(DEADLINE_S):
                    await loop.run_in_executor(worker, raiser(error))
            assert str(raised.value) == said
        with pytest.raises(ValueError, match="as it is"):
            await loop.run_in_executor(worker, raiser(ValueError("as it is")))
        assert await loop.run_in_executor(worker, lambda: 5) == 5


async def test_where_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    worker = Worker()
    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(PeerError, match=r"no thread can be had to compute in: can't start new thread; let the service"):
        await worker.__aenter__()


async def test_a_call_that_does_not_end_keeps_nobody_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    loop, begun, end, late = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), threading.Event()

    def stuck() -> None:
        loop.call_soon_threadsafe(begun.set)
        end.wait(DEADLINE_S)

    async with asyncio.timeout(DEADLINE_S):
        async with Worker(ending_s=0.01) as worker:
            running, waiting = worker.submit(stuck), worker.submit(late.set)
            await begun.wait()
        assert still_at_work()
        assert waiting.cancelled()
        assert not running.done()
        assert "does not come to an end: ending without it" in caplog.text
        end.set()
        await asyncio.wrap_future(running)
    for thread in threading.enumerate():
        if thread.name == "trainer":
            thread.join(DEADLINE_S)
    assert not still_at_work()
    assert not late.is_set()


async def test_far_too_many_calls_are_refused() -> None:
    end = threading.Event()
    async with Worker() as worker:
        worker.submit(end.wait, DEADLINE_S)
        refused: list[str] = []
        while not refused:
            try:
                worker.submit(int)
            except RuntimeError as error:
                refused.append(str(error))
        end.set()
    assert refused == ["more than 64 calls are waiting for the trainer's thread"]
