"""The round log: a line a round, appended over lives, and no reason to stop when the disk is full."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import msgspec
import pytest

from edgepeer.errors import ConfigError
from edgepeer.fabric.documents import RoundRecord
from edgepeer.peer.round_log import LoggedRound, RoundLog, read_round


def record(number: int) -> RoundRecord:
    return RoundRecord(
        round=number,
        epoch=2,
        seconds=0.5,
        allreduce_seconds=0.1,
        compute_seconds=0.2,
        contributors=("ash", "birch"),
        exact=True,
        loss=0.25,
    )


def test_a_line_a_round_over_two_lives(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    for life in (1, 2):
        with RoundLog(path) as log:
            log.add(record(life), job="j", peer="ash", coordinator=life == 2)
            assert len(path.read_bytes().splitlines()) == life, "it is there at once"
    first, second = (msgspec.json.decode(line, type=LoggedRound) for line in path.read_bytes().splitlines())
    assert first == LoggedRound(**msgspec.structs.asdict(record(1)), job="j", peer="ash", coordinator=False)
    assert (second.round, second.coordinator) == (2, True)


def test_without_a_path_nothing_is_written() -> None:
    with RoundLog(None) as log:
        log.add(record(1), job="j", peer="ash", coordinator=True)


def test_a_file_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"round_log = .*: can't write there: Is a directory"), RoundLog(tmp_path):
        pass


class Rounds:
    """A round log, and a clock that goes when it is told to."""

    def __init__(self, path: Path) -> None:
        self.now = 100.0
        self.log = RoundLog(path, clock=lambda: self.now)

    def add(self, *numbers: int, after: float = 0.0) -> None:
        self.now += after
        for number in numbers:
            self.log.add(record(number), job="j", peer="ash", coordinator=True)


def rounds_in(path: Path) -> list[int]:
    return [read_round(line).round for line in path.read_bytes().splitlines()]


def test_a_full_disk_is_said_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rounds.jsonl"
    path.symlink_to("/dev/full")
    rounds = Rounds(path)
    with rounds.log:
        rounds.add(1, 2)
        rounds.add(3, after=1.1)
        path.unlink()  # there is room from now on
        rounds.add(4, after=0.9)
        rounds.add(5, 6, after=0.2)
        assert rounds_in(path) == [5, 6]
        path.unlink()
        path.symlink_to("/dev/full")
        rounds.add(7, after=1.1)
    full = f"round log {path}: No space left on device; rounds are not written until they can be"
    assert [entry.message for entry in caplog.records] == [
        full,
        f"round log {path}: is written again; rounds that are not in it: 4",
        full,
    ]
    rounds.add(8, after=1.1)  # it is closed


def test_another_file_at_its_path_is_written_from_then_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, old = tmp_path / "rounds.jsonl", tmp_path / "rounds.jsonl.1"
    rounds = Rounds(path)
    with rounds.log:
        rounds.add(1)
        path.rename(old)
        rounds.add(2, after=0.9)
        rounds.add(3, after=0.2)
        assert (rounds_in(old), rounds_in(path)) == ([1, 2], [3])
        path.rename(old)
        path.touch()
        rounds.add(4, after=1.1)
        assert (rounds_in(old), rounds_in(path)) == ([3], [4])
        path.unlink()
        rounds.add(5, after=1.1)
        assert rounds_in(path) == [5]
    assert not caplog.records


def test_a_path_that_leads_nowhere_and_a_pipe_that_nobody_reads_hold_nobody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "away" / "rounds.jsonl"
    path.parent.mkdir()
    rounds = Rounds(path)
    with rounds.log:
        rounds.add(1)
        path.unlink()
        path.parent.rmdir()
        rounds.add(2, after=1.1)
        path.parent.mkdir()
        os.mkfifo(path)
        rounds.add(3, after=1.1)
        path.unlink()
        rounds.add(4, after=1.1)
    assert rounds_in(path) == [4]
    assert [entry.message.removeprefix(f"round log {path}: ") for entry in caplog.records] == [
        "No such file or directory; rounds are not written until they can be",
        "is written again; rounds that are not in it: 2",
    ]


def test_of_a_disk_that_is_full_in_the_middle_of_a_line_no_half_line_stays(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RoundLog(path) as log:
        log.add(record(1), job="j", peer="ash", coordinator=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, most))
        try:
            log.add(record(2), job="j", peer="ash", coordinator=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    with RoundLog(path) as log:  # there is room again
        log.add(record(3), job="j", peer="ash", coordinator=True)
    assert [read_round(line).round for line in path.read_bytes().splitlines()] == [1, 3]
