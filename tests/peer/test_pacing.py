"""Pacing: a device that computes as slowly as it is told to."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from edgepeer.coding.speed import parse_speed
from edgepeer.peer.pacing import Pacing, read_slowed, slow_down


async def rest(pacing: Pacing, *, began: float | None = None, share: float = 1.0) -> float:
    """How long it rested."""
    start = time.monotonic()
    await pacing.rest(start if began is None else began, round_=1, chunk=0, seed=0, among=("a", "b"), share=share)
    return time.monotonic() - start


async def test_a_batch_takes_as_long_as_the_model_says() -> None:
    pacing = Pacing(parse_speed("constant:0.05"), "a")
    assert 0.045 < await rest(pacing) < 0.5
    assert 0.095 < await rest(pacing, share=2) < 0.5
    assert await rest(pacing, began=time.monotonic() - 1) < 0.04  # computing took longer than that


async def test_without_a_model_nothing_is_waited_for(tmp_path: Path) -> None:
    slow_down(tmp_path, 50)
    assert await rest(Pacing(parse_speed("none"), "a", tmp_path)) < 0.04
    assert read_slowed(tmp_path).batches == 0


async def test_slowed_down_and_freed_again(tmp_path: Path) -> None:
    pacing = Pacing(parse_speed("constant:0.01"), "a", tmp_path)
    slow_down(tmp_path, 6)
    assert await rest(pacing) > 0.055
    assert await rest(pacing) > 0.055
    slowed = read_slowed(tmp_path)
    assert (slowed.factor, slowed.batches) == (6, 2)
    assert slowed.unslowed_seconds == pytest.approx(0.02)
    assert slowed.seconds > 0.11
    slow_down(tmp_path, 1)
    await rest(pacing)
    assert read_slowed(tmp_path).batches == 2
    slow_down(tmp_path, 6)  # what was before is forgotten
    assert read_slowed(tmp_path).batches == 0
    await rest(pacing)
    assert read_slowed(tmp_path).batches == 1


async def test_a_batch_that_is_given_up_counts_as_begun(tmp_path: Path) -> None:
    pacing = Pacing(parse_speed("constant:60"), "a", tmp_path)
    slow_down(tmp_path, 2)
    task = asyncio.create_task(rest(pacing))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (read_slowed(tmp_path).batches, read_slowed(tmp_path).seconds) == (1, 0)


@pytest.mark.parametrize("text", ["", "quickly", "nan", "inf", "-3", "1e9", "0.5"])
async def test_a_file_that_makes_no_sense_is_ignored(text: str, tmp_path: Path) -> None:
    (tmp_path / "slow-down").write_text(text)
    assert await rest(Pacing(parse_speed("constant:0.001"), "a", tmp_path)) < 0.04
