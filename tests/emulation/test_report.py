"""The report: its exact form, written whole or not at all, refused early where it can't be written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from told import Told

from edgepeer.emulation.progress import Progress
from edgepeer.emulation.report import prepare_report, write_report
from edgepeer.errors import ConfigError, EdgepeerError

Finish = Callable[..., Progress]


def test_report(tmp_path: Path, running: Progress, told: Told, finish: Finish) -> None:
    directory = tmp_path / "a" / "b"
    prepare_report(directory)
    assert list(directory.iterdir()) == []
    result = finish(running).result()
    assert write_report(directory, result) == [directory / "report.json", directory / "report.png"]
    assert sorted(path.name for path in directory.iterdir()) == ["report.json", "report.png"]
    report = json.loads((directory / "report.json").read_text())
    detail = report.pop("rounds_detail")
    assert report == {
        "peers": 3,
        "rounds": 10,
        "trainer": "numpy",
        "dataset": "digits",
        "broker": "embedded",
        "final": {"accuracy": 0.97, "loss": 0.125},
        "round_seconds": {"median": pytest.approx(0.1), "p95": pytest.approx(0.1)},
        "allreduce_seconds": {"median": pytest.approx(0.02), "p95": pytest.approx(0.02)},
        "bytes_sent_per_peer": dict.fromkeys(told.peers, 1_600_000),
        "parameter_digests": dict.fromkeys(told.peers, "ab" * 8),
        "view_epochs": 1,
    }
    assert [entry["round"] for entry in detail] == list(range(1, 11))
    assert detail[0] == {"round": 1, "seconds": 0.1, "contributors": list(told.peers), "exact": True}
    assert (directory / "report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("error")
def test_reports_of_odd_runs(tmp_path: Path, told: Told) -> None:
    progress = Progress(told.job, broker="embedded")
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


def test_a_name_with_a_dollar_sign_is_no_formula(tmp_path: Path, running: Progress, finish: Finish) -> None:
    running.job = running.job.__class__(id="j1", rounds=10, dataset="npz:$x^{.npz")
    assert len(write_report(tmp_path, finish(running).result())) == 2


def test_without_matplotlib_the_json_is_written(
    tmp_path: Path,
    running: Progress,
    finish: Finish,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delitem(sys.modules, "edgepeer.emulation.plot", raising=False)
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


def test_a_directory_that_went_away(tmp_path: Path, running: Progress, finish: Finish) -> None:
    with pytest.raises(EdgepeerError, match="can't be written: No such file or directory"):
        write_report(tmp_path / "gone", finish(running).result())
