"""The round log: a line a round, appended over lives, and no reason to stop when the disk is full."""

from __future__ import annotations

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


def test_a_full_disk_ends_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    with RoundLog(Path("/dev/full")) as log:
        log.add(record(1), job="j", peer="ash", coordinator=True)
        log.add(record(2), job="j", peer="ash", coordinator=True)
    assert [entry.message for entry in caplog.records] == [
        "round log /dev/full: No space left on device; no more rounds are written"
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
