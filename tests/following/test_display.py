"""What a user sees: words, lines, panels."""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Callable

import pytest
from rich.console import Console
from told import Told

from edgepeer.emulation.faults.record import FaultRecord
from edgepeer.emulation.faults.schedule import Instant
from edgepeer.emulation.faults.texts import read
from edgepeer.following.display import LiveDisplay, PlainDisplay, open_display
from edgepeer.following.marks import Marks
from edgepeer.following.panels import job_panel, peer_tree, summary_panel
from edgepeer.following.progress import JobProgress
from edgepeer.following.texts import amount, duration, progress_line, summary

Finish = Callable[..., JobProgress]


def drawn(renderable: object, *, width: int = 110) -> str:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(renderable)
    return console.export_text()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0.0031234, "3.12 ms"),
        (0.9996, "1.0 s"),
        (1.54, "1.5 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3725, "1 h 02 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_628_200, "1.63 MB"), (4.2e12, "4.2 TB")]
)
def test_amounts(count: float, text: str) -> None:
    assert amount(count) == text


def test_a_loss_of_an_earlier_round_says_so(running: JobProgress, told: Told) -> None:
    """Peers say how far they are before the coordinator tells of its rounds."""
    running.see_report(told.report("p0", round=9))
    assert progress_line(running).startswith("round 9/10  loss 0.3286 (of round 7)  ")


def test_progress_line(running: JobProgress, told: Told) -> None:
    assert progress_line(running) == (
        "round 7/10  loss 0.3286  accuracy 0.9250  3/3 contributed  10 rounds/s  300 ms left"
    )
    waiting = JobProgress(told.job, broker="embedded")
    assert progress_line(waiting) == "waiting for peers: 0 of 3 in"
    waiting.see_view(told.view())
    assert progress_line(waiting) == "getting ready: 0 of 3 peers"


def test_the_tree_is_the_views(told: Told) -> None:
    from rich.text import Text

    text = drawn(peer_tree(told.view(), Text))
    assert text.split() == ["ash", "├──", "birch", "└──", "cedar"]


def test_job_panel(running: JobProgress, told: Told) -> None:
    running.see_report(told.report("birch", "failed", error="out of [memory]", round=7))
    text = drawn(job_panel(running, elapsed=3.2))
    for part in ("mlp on digits", "round 7/10", "300 ms left", "0.3286", "0.9250", "3 of 3", "epoch 3, fan-out 2"):
        assert part in text
    assert "✘ birch  failed" in text
    assert "birch failed: out of [memory]" in text
    assert "● ash  coordinator" in text


def test_what_is_broken_is_seen(running: JobProgress, told: Told) -> None:
    running.marks = Marks(
        cut=frozenset({("cedar", "ash"), ("birch", "broker")}),
        paused=frozenset({"birch"}),
        killed=frozenset({"elder"}),
        labels=("cut cedar>ash", "birch paused", "elder killed"),
    )
    text = drawn(job_panel(running, elapsed=3.2))
    assert "├── ‖ birch  paused" in text
    assert "└╌× ● cedar" in text
    assert "✗ elder  killed" in text
    assert "faults" in text
    for label in running.marks.labels:
        assert label in text
    running.marks = Marks(slow=frozenset({"cedar"}))
    text = drawn(job_panel(running, elapsed=3.2))
    assert "└── ◐ cedar  slow" in text
    assert "faults" not in text


def test_the_summary_names_all_faults(running: JobProgress, finish: Finish) -> None:
    cut = FaultRecord(
        fault=read("cut", "3-1@3..5"),
        target="p03-p01",
        begun=Instant(2, 0.5),
        ended=Instant(5, 1.25),
        confirmed={"dropped": {"p03>p01": 4, "p01>p03": 3}},
    )
    slow = FaultRecord(
        fault=read("slow", "6x4"), target="p06", begun=Instant(0, 0.0), ended=Instant(10, 1), confirmed={"share": 0.249}
    )
    kill = FaultRecord(fault=read("kill", "4@6"), target="p04", begun=Instant(5, 1.5))
    faults = tuple(record.reported() for record in (slow, cut, kill))
    rows = list(summary(dataclasses.replace(finish(running).result(), faults=faults)))
    assert ("faults, all confirmed", "p06 4 times slower: rounds 1 to 10, it ran for 25% of the time", True) in rows
    assert ("", "cut p03-p01: rounds 3 to 5, 7 packets dropped", True) in rows
    assert ("", "p04 killed: rounds 6 to the end", True) in rows


def test_job_panel_before_anything_is_known(told: Told) -> None:
    progress = JobProgress(told.job, broker="embedded")
    assert "waiting for peers: 0 of 3 in" in drawn(job_panel(progress, elapsed=0))
    progress.see_presence("ash", told.presence("ash"))
    text = drawn(job_panel(progress, elapsed=0))
    assert "no tree yet" in text
    assert "○ ash  joined" in text


def test_job_panel_with_a_diverged_loss(running: JobProgress, told: Told) -> None:
    running.see_telemetry(told.telemetry(told.record(8, loss=float("nan")), told.record(9, loss=float("inf"))))
    assert "inf" in drawn(job_panel(running, elapsed=1))


def test_a_job_that_has_diverged(running: JobProgress, told: Told, finish: Finish) -> None:
    running.see_telemetry(told.telemetry(told.record(8, loss=float("nan"))))
    assert list(running.notes)[-1] == "the loss of round 8 is not finite: the training diverges"
    finish(running)
    result = running.result()
    assert result.diverged == 8
    assert ("diverged", "the loss is not finite from round 8 on", False) in list(summary(result))
    for peer in told.peers:
        running.see_report(told.report(peer, round=8, diverged=7, mae=0.25, rmse=1e9, loss=2.5e9))
    early = running.result()
    assert (early.rounds, early.diverged, early.quality) == (8, 7, ("mae", 0.25))
    rows = {what: value for what, value, _ in summary(early)}
    assert rows["test mae"] == "0.25 (rmse 1e+09, loss 2.5e+09)"
    assert rows["rounds"].startswith("8 of 10, ended early,")


def test_numbers_instead_of_classes(told: Told) -> None:
    progress = JobProgress(told.job, broker="embedded")
    progress.see_view(told.view())
    record = told.record(5, accuracy=None, mae=0.125, rmse=0.5)
    progress.see_telemetry(told.telemetry(record))
    assert "mae 0.125" in progress_line(progress)
    text = drawn(job_panel(progress, elapsed=1))
    assert "test mae" in text
    assert "0.125" in text


def test_summary(running: JobProgress, told: Told, finish: Finish) -> None:
    result = finish(running).result()
    rows = {what: value for what, value, _ in summary(result)}
    assert rows["test accuracy"] == "0.9700 (loss 0.1250)"
    assert rows["rounds"] == "10 in 1.0 s"
    assert rows["round time"] == "median 100 ms, p95 100 ms"
    assert rows["bytes sent"] == "median 1.6 MB a peer"
    assert rows["parameters bit-identical on all 3 peers"] == "yes (abababababababab)"
    assert all(good for _, _, good in summary(result))
    assert "ash 1.6 MB, birch 1.6 MB, cedar 1.6 MB" in drawn(summary_panel(result))


def test_summary_of_who_was_started_again(running: JobProgress, told: Told, finish: Finish) -> None:
    def sent(*again: str) -> list[str]:
        rows = list(summary(dataclasses.replace(result, again=frozenset(again))))
        at = [what for what, _, _ in rows].index("bytes sent")
        more = itertools.takewhile(lambda row: not row.what, rows[at + 1 :])
        return [rows[at].value, *(row.value for row in more)]

    result = finish(running).result()
    without = "not known of cedar: started again on the way"
    assert sent("cedar") == ["median 1.6 MB a peer", "ash 1.6 MB, birch 1.6 MB", without]
    assert sent(*told.peers) == ["not known", "not known of ash, birch, cedar: started again on the way"]


def test_summary_of_rounds_that_nobody_heard_of(told: Told) -> None:
    progress = JobProgress(told.job, broker="embedded")
    for peer in told.peers:
        progress.see_report(told.report(peer))
    progress.see_telemetry(told.telemetry(*(told.record(number) for number in (1, 2, 3, 9, 10))))
    rows = list(summary(progress.result()))
    assert ("rounds", "10, 5 of them in 500 ms", True) in rows
    assert ("", "5 rounds were not reported (broker outage, or who reports was lost)", True) in rows
    progress.see_telemetry(told.telemetry(*(told.record(number) for number in range(4, 8))))
    rows = list(summary(progress.result()))
    assert ("", "1 round was not reported (broker outage, or who reports was lost)", True) in rows


def test_summary_of_detours_and_of_who_came_late(running: JobProgress, told: Told, finish: Finish) -> None:
    running.see_logged([told.logged("birch", told.record(number, paths=("direct", "via ash"))) for number in (4, 5)])
    running.see_logged([told.logged("cedar", told.record(5, paths=("relay",)))])
    finish(running, "ash", "birch")
    running.see_presence("cedar", None)
    running.see_report(told.report("cedar", "starting", round=0, digest=""))
    rows = list(summary(running.result()))
    assert ("", "2 of them with links on detours: relay, via ash", True) in rows
    assert ("not ready in time", "cedar", True) in rows
    assert "gone before the end" not in [what for what, _, _ in rows]


def test_summary_of_different_bits_is_loud(running: JobProgress, told: Told, finish: Finish) -> None:
    finish(running, "ash", "birch")
    running.see_report(told.report("cedar", digest="cd" * 8))
    rows = list(summary(running.result()))
    assert ("parameters bit-identical on all 3 peers", "NO", False) in rows
    assert ("", "cedar cdcdcdcdcdcdcdcd", False) in rows


def test_what_peers_say_does_nothing_to_a_terminal(running: JobProgress, told: Told, finish: Finish) -> None:
    """They are of the fleet; it need not be they who speak for their devices."""
    odd = "\x1b[2J\x9b8m"
    finish(running, "ash")
    running.see_report(told.report("birch", digest=odd))
    running.see_report(told.report("cedar", "failed", error=f"it{odd}failed"))
    running.see_telemetry(told.telemetry(told.record(10, paths=(f"via {odd}",))))
    stream = io.StringIO()
    display = PlainDisplay(stream)
    display.update(running)
    display.summarise(running.result())
    assert all(line.isprintable() for line in stream.getvalue().splitlines())
    assert r"birch \x1b[2J\x9b8m" in stream.getvalue()
    assert r"it\x1b[2J\x9b8mfailed" in stream.getvalue()
    console = Console(file=io.StringIO(), color_system=None, width=110)
    console.print(job_panel(running, elapsed=3.2), summary_panel(running.result()))
    assert all(line.isprintable() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def test_plain_lines_come_neither_too_often_nor_too_seldom(told: Told) -> None:
    now = 0.0
    stream = io.StringIO()
    job = told.job.__class__(id="j1", rounds=1000)
    progress = JobProgress(job, broker="embedded")
    progress.see_view(told.view())
    with PlainDisplay(stream, clock=lambda: now) as display:
        display.update(progress)
        for number in range(1, 1001):
            now += 0.01
            progress.see_telemetry(told.telemetry(told.record(number)))
            display.update(progress)
        progress.note("ash is tired")
        display.update(progress)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("job j1: mlp on digits")
    assert lines[1] == "getting ready: 0 of 3 peers"
    assert [line.split()[1] for line in lines[2:-1]] == [f"{number}/1000" for number in range(100, 1001, 100)]
    assert lines[-1] == "ash is tired"


def test_slow_rounds_are_shown_every_other_second(told: Told) -> None:
    now = 0.0
    stream = io.StringIO()
    progress = JobProgress(told.job.__class__(id="j1", rounds=1000), broker="embedded")
    display = PlainDisplay(stream, clock=lambda: now)
    display.update(progress)
    for number in range(1, 7):
        now += 1
        progress.see_telemetry(told.telemetry(told.record(number)))
        display.update(progress)
    assert [line.split()[1] for line in stream.getvalue().splitlines()[2:]] == ["2/1000", "4/1000", "6/1000"]


def test_a_pipe_gets_lines_of_its_own_encoding(running: JobProgress, finish: Finish) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    display = open_display(stream)
    assert isinstance(display, PlainDisplay)
    running.note("bïrch")
    display.update(running)
    display.summarise(finish(running).result())
    assert b"b\\xefrch\n" in raw.getvalue()
    assert b"  test accuracy " in raw.getvalue()


def test_a_terminal_gets_the_picture_and_the_summary(running: JobProgress, finish: Finish) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40, record=True)
    now = 0.0
    with LiveDisplay(console, clock=lambda: now) as display:
        display.update(running)
        drawn_before = console.file.getvalue()  # type: ignore[attr-defined]
        display.update(running)
        assert console.file.getvalue() == drawn_before, "not more often than eyes want"  # type: ignore[attr-defined]
        now = 1.0
        display.update(finish(running))
    display.summarise(running.result())
    text = console.export_text()
    assert "round 10/10" in text
    assert "bit-identical on all 3 peers  yes" in text


@pytest.mark.parametrize("width", [50, 60, 71, 72, 80])
def test_nothing_is_cut_on_a_narrow_terminal(width: int, running: JobProgress, told: Told, finish: Finish) -> None:
    running.see_report(told.report("birch", "failed", error="out of memory", round=7))
    picture = drawn(job_panel(running, elapsed=3.2, width=width), width=width)
    for part in ("● ash  coordinator", "✘ birch  failed", "test accuracy", "0.9250", "3 of 3", "epoch 3, fan-out 2"):
        assert part in picture
    ended = drawn(summary_panel(finish(running).result(), width=width), width=width)
    for part in ("test accuracy", "0.9700 (loss 0.1250)", "bytes sent", "bit-identical on all 3 peers", "abababab"):
        assert part in ended
    for text in (picture, ended):
        assert all(len(line) <= width for line in text.splitlines())
    body = [line for line in picture.splitlines() if not line.startswith("╭")]  # the title may be cut
    assert not any("…" in line for line in [*body, *ended.splitlines()])


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "kind"), [(49, PlainDisplay), (50, LiveDisplay)])
def test_a_very_narrow_terminal_gets_lines(columns: int, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    assert isinstance(open_display(Terminal()), kind)
