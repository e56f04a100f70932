"""Pacing: a device that computes as slowly as it is told to."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from edgepeer.coding.speed import parse_speed
from edgepeer.peer.pacing import Pacing, read_slowed, slow_down


class Clock:
    """The time of a device whose waits take none of ours."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("edgepeer.peer.pacing.time", clock)
    monkeypatch.setattr("edgepeer.peer.pacing.asyncio", clock)
    return clock


async def rest(pacing: Pacing, clock: Clock, *, computed_for: float = 0.0, share: float = 1.0) -> float:
    """How long it rested."""
    start = clock.now
    await pacing.rest(start - computed_for, round_=1, chunk=0, seed=0, among=("a", "b"), share=share)
    return clock.now - start


async def test_a_batch_takes_as_long_as_the_model_says(clock: Clock) -> None:
    pacing = Pacing(parse_speed("constant:0.05"), "a")
    assert await rest(pacing, clock) == pytest.approx(0.05)
    assert await rest(pacing, clock, share=2) == pytest.approx(0.1)
    assert await rest(pacing, clock, computed_for=0.02) == pytest.approx(0.03)
    assert await rest(pacing, clock, computed_for=1.0) == 0


async def test_without_a_model_nothing_is_waited_for(clock: Clock, tmp_path: Path) -> None:
    slow_down(tmp_path, 50)
    assert await rest(Pacing(parse_speed("none"), "a", tmp_path), clock) == 0
    assert read_slowed(tmp_path).batches == 0


async def test_slowed_down_and_freed_again(clock: Clock, tmp_path: Path) -> None:
    pacing = Pacing(parse_speed("constant:0.01"), "a", tmp_path)
    slow_down(tmp_path, 6)
    assert await rest(pacing, clock) == pytest.approx(0.06)
    assert await rest(pacing, clock) == pytest.approx(0.06)
    slowed = read_slowed(tmp_path)
    assert (slowed.factor, slowed.batches) == (6, 2)
    assert slowed.unslowed_seconds == pytest.approx(0.02)
    assert slowed.seconds == pytest.approx(0.12)
    slow_down(tmp_path, 1)
    await rest(pacing, clock)
    assert read_slowed(tmp_path).batches == 2
    slow_down(tmp_path, 6)  # what was before is forgotten
    assert read_slowed(tmp_path).batches == 0
    await rest(pacing, clock)
    assert read_slowed(tmp_path).batches == 1


async def test_a_batch_that_is_given_up_counts_as_begun(tmp_path: Path) -> None:
    pacing = Pacing(parse_speed("constant:60"), "a", tmp_path)
    slow_down(tmp_path, 2)
    task = asyncio.create_task(pacing.rest(time.monotonic(), round_=1, chunk=0, seed=0, among=("a",)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (read_slowed(tmp_path).batches, read_slowed(tmp_path).seconds) == (1, 0)


@pytest.mark.parametrize("text", ["", "quickly", "nan", "inf", "-3", "1e9", "0.5"])
async def test_a_file_that_makes_no_sense_is_ignored(text: str, clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "slow-down").write_text(text)
    assert await rest(Pacing(parse_speed("constant:0.001"), "a", tmp_path), clock) == pytest.approx(0.001)


async def test_that_it_is_ignored_is_said_once(clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not with every batch: that would fill a disk."""
    pacing, path = Pacing(parse_speed("constant:0.001"), "a", tmp_path), tmp_path / "slow-down"
    for text, lines in (("quickly", 1), ("slowly", 2), ("", 3)):
        path.write_text(text)
        await rest(pacing, clock)
        await rest(pacing, clock)
        assert len(caplog.messages) == lines
    path.unlink()
    await rest(pacing, clock)
    path.write_text("")
    await rest(pacing, clock)
    assert len(caplog.messages) == 4


async def test_where_nothing_can_be_written_it_is_slow_and_says_so_once(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow_down(tmp_path, 4)
    pacing, there = Pacing(parse_speed("constant:0.01"), "a", tmp_path), tmp_path / "slowed-down"
    there.mkdir()  # a file can't take its place, whoever asks for it
    for _ in range(2):
        assert await rest(pacing, clock) == pytest.approx(0.04)
    assert len(caplog.messages) == 1
    assert str(there) in caplog.messages[0]
    there.rmdir()
    await rest(pacing, clock)
    assert read_slowed(tmp_path).batches > 0
