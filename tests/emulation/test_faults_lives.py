"""Killed, started again, frozen, slowed: on real processes, looked up in the process table."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import msgspec
import pytest
from stage import DEADLINE_S, Crew, crew, scene_of, until

from edgepeer.coding.speed import parse_speed
from edgepeer.emulation.faults.kinds import Slow, Span, Who
from edgepeer.emulation.faults.lives import KillFault, PaceFault, PauseFault, RestartFault, SlowFault
from edgepeer.emulation.faults.proc import Throttle, cpu_seconds, state_of
from edgepeer.emulation.faults.scene import Unconfirmed
from edgepeer.peer.pacing import Pacing, Slowed, read_slowed


async def passed(seconds: float) -> None:
    """That much time, by the loop's clock."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.call_later(seconds, over.set)
    async with asyncio.timeout(DEADLINE_S):
        await over.wait()


async def test_kill_and_restart() -> None:
    async with crew() as running:
        pid = running.process("p00").pid
        kill = KillFault("p00", scene_of(running))
        await kill.inject()
        assert kill.confirmed == {"pid": pid, "exit_code": -9}
        assert state_of(pid) == ""
        with pytest.raises(Unconfirmed, match="p00 had ended before, with exit code -9"):
            await kill.inject()
        restart = RestartFault("p00", scene_of(running))
        await restart.inject()
        assert restart.confirmed == {"pid": running.process("p00").pid, "pid_before": pid}
        with pytest.raises(Unconfirmed, match=r"p00 \(pid \d+\) is still there"):
            await restart.inject()


async def test_pause() -> None:
    async with crew(busy=True) as running:
        pid = running.process("p00").pid
        pause = PauseFault("p00", scene_of(running))
        await pause.inject()
        assert state_of(pid) == "T"
        used = cpu_seconds(pid)
        await passed(0.1)
        assert cpu_seconds(pid) == used
        await pause.lift()
        after = pause.confirmed.pop("state_after")
        assert after in ("R", "S")
        assert pause.confirmed == {"pid": pid, "state": "T"}


async def test_a_pause_that_somebody_else_ends_is_not_confirmed() -> None:
    async with crew() as running:
        pause = PauseFault("p00", scene_of(running))
        await pause.inject()
        running.resume("p00")
        await until(lambda: state_of(running.process("p00").pid) != "T")
        with pytest.raises(Unconfirmed, match=r"was continued by somebody else: state [RS]"):
            await pause.lift()


class Stubborn(Crew):
    def pause(self, name: str) -> None:
        """Does not."""


async def test_a_pause_that_does_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepeer.emulation.faults.lives._SOON_S", 0.05)
    stubborn = Stubborn()
    await stubborn.start("p00")
    try:
        with pytest.raises(Unconfirmed, match=r"p00 \(pid \d+\) did not stop: it is in state [RS]"):
            await PauseFault("p00", scene_of(stubborn)).inject()
    finally:
        stubborn.kill("p00")
        await stubborn.process("p00").wait()


@pytest.mark.parametrize("factor", [2.0, 4.0, 10.0])
async def test_slow(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepeer.emulation.faults.proc._PAYS_BACK_S", DEADLINE_S)  # on however busy a machine
    async with crew(busy=True) as running:
        fault = Slow(peer=Who("number", 0), factor=factor, span=Span("round", 1))
        slow = SlowFault(fault, "p00", scene_of(running))
        await slow.inject()
        await passed(1.0)
        await slow.lift()
        confirmed = slow.confirmed
        assert confirmed["share_asked"] == 1 / factor
        assert 0 < confirmed["share"] < 1.25 / factor  # less, where it was let go on late
        assert confirmed["cpu_share"] < 1.25 * confirmed["share"] + 0.03
        assert confirmed["seen_stopped"] > 0.5 * confirmed["stops"] >= 1
        pid = running.process("p00").pid
        used = cpu_seconds(pid)
        await until(lambda: cpu_seconds(pid) > used)  # it runs freely again, as soon as others let it


async def test_a_slow_peer_that_dies() -> None:
    async with crew(busy=True) as running:
        throttle = Throttle(running.process("p00").pid, 4)
        await passed(0.05)
        running.kill("p00")
        await running.process("p00").wait()
        await passed(0.05)
        throttle.stop()
        throttle.stop()  # once is enough


async def test_a_slow_peer_that_ends_is_not_confirmed() -> None:
    async with crew(busy=True) as running:
        slow = SlowFault(Slow(peer=Who("number", 0), factor=4, span=Span("round", 1)), "p00", scene_of(running))
        await slow.inject()
        throttle = slow._throttle
        assert throttle is not None
        await until(lambda: throttle.stops > 2)
        running.kill("p00")
        await running.process("p00").wait()
        with pytest.raises(Unconfirmed, match="p00 had ended before, with exit code -9"):
            await slow.lift()


async def test_a_slow_peer_that_is_not_stopped_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with crew(busy=True) as running:
        slow = SlowFault(Slow(peer=Who("number", 0), factor=4, span=Span("round", 1)), "p00", scene_of(running))
        monkeypatch.setattr("signal.pidfd_send_signal", lambda handle, number: None)
        await slow.inject()
        await passed(0.3)
        with pytest.raises(Unconfirmed, match=r"p00 was in state T after 0 of \d+ stops only"):
            await slow.lift()


def test_no_such_process() -> None:
    free = next(pid for pid in range(2**22 - 1, 0, -1) if not os.path.exists(f"/proc/{pid}"))
    assert state_of(free) == ""
    assert cpu_seconds(free) == 0.0
    with pytest.raises(ProcessLookupError):
        Throttle(free, 2)


async def test_slow_where_speed_follows_a_model(tmp_path: Path) -> None:
    """The stand-in for a peer is this test: it computes as slowly as a peer would."""
    pacing = Pacing(parse_speed("constant:0.002"), "p00", tmp_path)

    async def compute() -> None:
        await pacing.rest(time.monotonic(), round_=1, chunk=0, seed=0, among=("p00",))

    async with crew() as running:
        fault = Slow(span=Span("round", 1), peer=Who("number", 0), factor=5)
        slow = PaceFault(fault, "p00", tmp_path, scene_of(running))
        await slow.inject()
        assert state_of(running.process("p00").pid) != "T"
        with pytest.raises(Unconfirmed, match="p00 has not begun to compute anything meanwhile"):
            await slow.lift()
        await slow.inject()
        await compute()
        await compute()
        await slow.lift()
        assert slow.confirmed["batches"] == 2
        assert slow.confirmed["seconds"] > 0.019
        await compute()  # as fast as ever
        assert read_slowed(tmp_path).batches == 2
        await slow.inject()
        write_slowed(tmp_path, Slowed(factor=5, batches=3, seconds=0.006, unslowed_seconds=0.006))
        with pytest.raises(Unconfirmed, match=r"p00 took 0.006 s for what takes 0.006 s, not 5 times as long"):
            await slow.lift()
        await slow.inject()
        slow.release()
        await compute()
        assert read_slowed(tmp_path).batches == 0


def write_slowed(state_dir: Path, slowed: Slowed) -> None:
    (state_dir / "slowed-down").write_bytes(msgspec.json.encode(slowed))
