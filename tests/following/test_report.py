"""The report: its exact form, written whole or not at all, refused early where it can't be written."""

from __future__ import annotations

import csv
import dataclasses
import errno
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from told import Told

from edgepeer.emulation.faults.record import FaultRecord
from edgepeer.emulation.faults.schedule import Instant
from edgepeer.emulation.faults.texts import read
from edgepeer.errors import ConfigError, EdgepeerError
from edgepeer.following.marks import ReportedFault
from edgepeer.following.progress import JobProgress
from edgepeer.following.report import prepare_report, write_report

Finish = Callable[..., JobProgress]


def test_report(tmp_path: Path, running: JobProgress, told: Told, finish: Finish) -> None:
    directory = tmp_path / "a" / "b"
    prepare_report(directory)
    assert list(directory.iterdir()) == []
    result = finish(running).result()
    assert write_report(directory, result) == [directory / "report.json", directory / "report.png"]
    assert sorted(path.name for path in directory.iterdir()) == ["report.json", "report.png"]
    report = json.loads((directory / "report.json").read_text())
    detail = report.pop("rounds_detail")
    assert report == {
        "job": "j1",
        "peers": 3,
        "rounds": 10,
        "trainer": "numpy",
        "dataset": "digits",
        "broker": "embedded",
        "code": "none",
        "wait": "exact",
        "precision": "float32",
        "computed": pytest.approx(1.0),
        "final": {"accuracy": 0.97, "loss": 0.125},
        "diverged": None,
        "round_seconds": {"median": pytest.approx(0.1), "p95": pytest.approx(0.1)},
        "allreduce_seconds": {"median": pytest.approx(0.02), "p95": pytest.approx(0.02)},
        "bytes_sent_per_peer": dict.fromkeys(told.peers, 1_600_000),
        "parameter_digests": dict.fromkeys(told.peers, "ab" * 8),
        "view_epochs": 1,
        "generations": ["1-00c0ffee"],
        "faults": [],
    }
    assert [entry["round"] for entry in detail] == list(range(1, 11))
    assert detail[0] == {
        "round": 1,
        "generation": "1-00c0ffee",
        "epoch": 3,
        "seconds": 0.1,
        "phases": {"compute": 0.05, "waited": 0.012, "broadcast": 0.007, "decided": 0.001},
        "contributors": list(told.peers),
        "exact": True,
        "chunks": 0,
        "chunks_covered": 0,
        "error": 0.0,
        "precision": "float32",
        "paths": {"direct": ["ash"]},
        "faults": [],
    }
    assert (directory / "report.png").read_bytes().startswith(b"\x89PNG")


def broken() -> tuple[ReportedFault, ...]:
    """A cut with a count, a kill, and a pause that is never over."""
    cut = FaultRecord(
        fault=read("cut", "3-1@3..5"),
        target="p03-p01",
        begun=Instant(2, 0.5),
        ended=Instant(5, 1.25),
        confirmed={"rules": ["p03>p01", "p01>p03"], "dropped": {"p03>p01": 4, "p01>p03": 3}},
    )
    kill = FaultRecord(fault=read("kill", "4@1.5s"), target="p04", begun=Instant(5, 1.5), confirmed={"pid": 7})
    partition = FaultRecord(fault=read("partition", "0|rest@9.."), target="p00|p01", begun=Instant(8, 3.0))
    return cut.reported(), kill.reported(), partition.reported()


def test_report_of_faults(tmp_path: Path, running: JobProgress, told: Told, finish: Finish) -> None:
    for peer in ("birch", "cedar"):  # what they ran over is in their own logs alone
        running.see_logged([told.logged(peer, told.record(4, paths=("direct", "via ash")))])
    running.see_logged([told.logged("birch", told.record(5, paths=("relay",)))])
    result = dataclasses.replace(finish(running).result(), faults=broken())
    names = ["report.json", "rounds.csv", "faults.md", "report.png", "faults.png"]
    assert write_report(tmp_path, result) == [tmp_path / name for name in names]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["faults"][0] == {
        "kind": "cut",
        "target": "p03-p01",
        "asked": "3-1@3..5",
        "unit": "round",
        "from": 3,
        "to": 5,
        "first_round": 3,
        "last_round": 5,
        "began_s": 0.5,
        "ended_s": 1.25,
        "confirmed": {"rules": ["p03>p01", "p01>p03"], "dropped": {"p03>p01": 4, "p01>p03": 3}},
    }
    kill = report["faults"][1]
    assert [kill[name] for name in ("from", "to", "unit", "last_round", "ended_s")] == [1.5, None, "second", None, None]
    by_round = {detail["round"]: detail["faults"] for detail in report["rounds_detail"]}
    assert by_round[2] == []
    assert by_round[3] == by_round[5] == ["cut p03-p01"]
    assert by_round[6] == ["p04 killed"]
    assert by_round[10] == ["p04 killed", "partition p00|p01"]
    rows = list(csv.DictReader((tmp_path / "rounds.csv").read_text().splitlines()))
    assert len(rows) == 10
    assert rows[9] == {
        "round": "10",
        "seconds": "0.100000",
        "allreduce_seconds": "0.020000",
        "compute_seconds": "0.050000",
        "waited_seconds": "0.012000",
        "broadcast_seconds": "0.007000",
        "decided_seconds": "0.001000",
        "paths": "direct",
        "contributors": "3",
        "exact": "true",
        "covered": "0",
        "error": "0",
        "faults": "p04 killed; partition p00|p01",
    }
    assert [rows[at]["paths"] for at in (2, 3, 4)] == ["direct", "direct; via ash", "direct; relay"]
    assert report["rounds_detail"][3]["paths"] == {"direct": ["ash", "birch", "cedar"], "via ash": ["birch", "cedar"]}
    table = (tmp_path / "faults.md").read_text().splitlines()
    assert table[2] == "3 peers, 10 rounds; a clean round takes - (median of 0, the first 3 left out)."
    phases = "waiting 12 ms, broadcast 7 ms, deciding 1 ms"
    assert table[6] == (
        f"| cut p03-p01 | `3-1@3..5` | 3 to 5 | 100 ms | {phases} | - | 0 | relay, via ash "
        "| 2 rules in force, 7 packets dropped |"
    )
    assert table[7].startswith(f"| p04 killed | `4@1.5s` | 6 to end | 100 ms | {phases} | 100 ms | 0 | - | pid 7 ")
    assert table[8].count("\\|") == 2, "a bar in a cell is written so"
    assert (tmp_path / "faults.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("error")
def test_reports_of_odd_runs(tmp_path: Path, told: Told) -> None:
    progress = JobProgress(told.job, broker="embedded")
    progress.see_report(told.report("ash"))
    write_report(tmp_path, progress.result())  # no telemetry at all
    assert json.loads((tmp_path / "report.json").read_text())["final"] == {"accuracy": None, "loss": None}
    progress.see_telemetry(
        told.telemetry(
            told.record(1, loss=float("nan"), seconds=0.0, allreduce_seconds=0.0),
            told.record(2, loss=float("inf"), exact=False, epoch=4),
        )
    )
    write_report(tmp_path, progress.result())
    assert json.loads((tmp_path / "report.json").read_text())["view_epochs"] == 2


def test_no_line_goes_over_rounds_that_nobody_reported(told: Told) -> None:
    from edgepeer.following.plot import with_gaps

    progress = told.running()
    progress.see_telemetry(told.telemetry(*(told.record(number) for number in (1, 2, 3, 6, 7, 9))))
    progress.see_report(told.report("ash"))
    result = progress.result()
    drawn = with_gaps([(record.round, 0.5) for record in result.records], result)
    assert [at for at, value in drawn if math.isnan(value)] == [5.5, 8.5]
    assert [at for at, value in drawn if value == 0.5] == [1, 2, 3, 6, 7, 9]
    assert [at for at, value in with_gaps([(1, 0.9), (3, 0.9), (7, 0.9)], result) if math.isnan(value)] == [6.5]
    assert with_gaps([], result) == []
    thinned = dataclasses.replace(result, thinned=4)  # a long run, of which not all is kept
    assert not [value for _, value in with_gaps([(1, 0.9), (6, 0.9)], thinned) if math.isnan(value)]


def test_a_name_with_a_dollar_sign_is_no_formula(tmp_path: Path, running: JobProgress, finish: Finish) -> None:
    running.job = running.job.__class__(id="j1", rounds=10, dataset="npz:$x^{.npz")
    assert len(write_report(tmp_path, finish(running).result())) == 2


def test_without_matplotlib_the_json_is_written(
    tmp_path: Path,
    running: JobProgress,
    finish: Finish,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delitem(sys.modules, "edgepeer.following.plot", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write_report(tmp_path, finish(running).result()) == [tmp_path / "report.json"]
    assert "pip install 'edgepeer[plot]'" in caplog.text


def test_an_unusable_directory_is_refused_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=r"report = .*file: can't write there: "):
        prepare_report(file)
    with pytest.raises(ConfigError, match="can't write there: Not a directory"):
        prepare_report(file / "below")


def test_a_directory_that_went_away(tmp_path: Path, running: JobProgress, finish: Finish) -> None:
    with pytest.raises(EdgepeerError, match="can't be written: No such file or directory"):
        write_report(tmp_path / "gone", finish(running).result())


def test_a_full_disk_leaves_nothing_half_done(
    tmp_path: Path, running: JobProgress, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EdgepeerError, match="can't be written: No space left on device"):
        write_report(tmp_path, finish(running).result())
    assert not list(tmp_path.iterdir())
