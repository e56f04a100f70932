"""Rounds from the peers' own logs: each line once, whole lines only, whoever writes them first."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from told import Told

from edgepeer.errors import WireError
from edgepeer.following.progress import JobProgress
from edgepeer.following.round_feed import RoundFeed
from edgepeer.peer.round_log import LoggedRound, RoundLog


def logged(told: Told, number: int, *, coordinator: bool = False, peer: str = "birch", **fields: object) -> LoggedRound:
    record = msgspec.structs.asdict(told.record(number, **fields))  # type: ignore[arg-type]
    return LoggedRound(**record, job="j1", peer=peer, coordinator=coordinator)


def test_lines_as_they_come(tmp_path: Path, told: Told) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with RoundFeed(paths) as feed:
        assert list(feed.read()) == []
        with RoundLog(paths[1]) as log:
            log.add(told.record(1), job="j1", peer="birch", coordinator=False)
            assert list(feed.read()) == [logged(told, 1)]
            log.add(told.record(2), job="j1", peer="birch", coordinator=True)
            with RoundLog(paths[0]) as other:
                other.add(told.record(3), job="j1", peer="ash", coordinator=False)
            assert list(feed.read()) == [logged(told, 2, coordinator=True), logged(told, 3, peer="ash")]
        assert list(feed.read()) == []


def test_a_loss_that_is_not_finite_comes_through(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "a"
    with RoundFeed([path]) as feed, RoundLog(path) as log:
        for loss in (math.nan, math.inf, -math.inf):
            log.add(told.record(1, loss=loss, mae=math.inf), job="j1", peer="birch", coordinator=False)
            (found,) = feed.read()
            assert math.isnan(found.loss)
            assert found.mae is None


def test_half_a_line_waits_for_its_rest(tmp_path: Path, told: Told) -> None:
    line = msgspec.json.encode(logged(told, 1)) + b"\n"
    path = tmp_path / "a"
    with RoundFeed([path]) as feed:
        for at in range(len(line) - 1):
            path.write_bytes(line[: at + 1])
            assert list(feed.read()) == []
        path.write_bytes(line)
        assert list(feed.read()) == [logged(told, 1)]


def test_a_line_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{}\n")
    with RoundFeed([tmp_path / "a"]) as feed, pytest.raises(WireError, match=r"round log .*a: Object missing"):
        list(feed.read())


@given(data=st.data())
def test_the_coordinators_word_counts_whoever_is_first(data: st.DataObject) -> None:
    told = Told()
    ours = logged(told, 3, coordinator=True, peer="ash", seconds=0.5)
    others = [logged(told, 3, peer=peer, seconds=0.1, accuracy=None) for peer in ("birch", "cedar")]
    foreign = LoggedRound(**msgspec.structs.asdict(logged(told, 9)) | {"job": "other"})
    progress = JobProgress(told.job, broker="")
    progress.see_logged(data.draw(st.permutations([ours, *others, foreign])))
    assert progress.round == 3
    assert progress.records == {3: told.record(3, seconds=0.5)}
    progress.see_logged([logged(told, 3, epoch=4, seconds=0.7), logged(told, 4)])
    assert progress.records[3].epoch == 4
    assert progress.round == 4
