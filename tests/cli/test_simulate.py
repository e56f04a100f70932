"""`edgepeer simulate` as a user meets it: help, one-line errors, exit codes, and what it prints and writes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import msgspec
import pytest

import edgepeer.cli
from edgepeer.cli import simulate
from edgepeer.cli.simulate import VERBS
from edgepeer.cli.verb import Verb
from edgepeer.errors import ProtocolBug
from edgepeer.settings import SoakSettings, settings_of
from edgepeer.simulation.exploration.calls import OTHER_CALLS
from edgepeer.simulation.exploration.state import FAULTS
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.story import Story
from edgepeer.simulation.world import World
from edgepeer.topology.view import View

KILL = "peers 3\nrounds 5\n\n0.5 kill p2\n"
ALONE = "peers 2\nrounds 5\n\n0.5 power p0\n0.5 kill p1\n"


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but a test's own, and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    for name in [name for name in os.environ if name.startswith("EDGEPEER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def _fragile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fleets do not survive faults."""
    real = Story.tell

    def tell(self: Story) -> World:
        world = real(self)
        if self.schedule.faults:
            raise ProtocolBug("it broke")
        return world

    monkeypatch.setattr(Story, "tell", tell)


class Run:
    """`edgepeer simulate ...`, run in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        self._monkeypatch.setattr(sys, "argv", ["edgepeer", "simulate", *arguments])
        with pytest.raises(SystemExit) as caught:
            edgepeer.cli.main()
        written = self._capsys.readouterr()
        return int(caught.value.code or 0), written.out, written.err


@pytest.fixture
def edgepeer_simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capsys)


# -- help --------------------------------------------------------------------------------------------------------


def test_the_list_of_verbs_says_in_whole_sentences_what_each_does(edgepeer_simulate: Run) -> None:
    code, text, _ = edgepeer_simulate("--help")
    assert code == 0
    for name in ("run", "soak", "explore", "isolation"):
        assert re.search(rf"^  {name} +\w.*\w\.$", text, re.MULTILINE)
    assert edgepeer_simulate()[0] == 2


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.kind.verb)
def test_help_names_every_setting_and_teaches_by_example(verb: Verb[SoakSettings], edgepeer_simulate: Run) -> None:
    name = verb.kind.verb.removeprefix("simulate-")
    code, text, _ = edgepeer_simulate(name, "--help")
    assert code == 0
    for setting in settings_of(verb.kind).values():
        assert (setting.flag in text) or (setting.name == "files" and "FILE..." in text)
    assert f"$ edgepeer simulate {name}" in text
    assert f"EDGEPEER_SIMULATE_{name.upper()}_" in text
    assert "(7, 15" not in text
    for _, line in verb.examples:
        assert line.startswith(f"edgepeer simulate {name}")
        assert set(re.findall(r"--[a-z-]+", line)) <= {setting.flag for setting in settings_of(verb.kind).values()}


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "files: name at least one, as in: edgepeer simulate run partition.txt"),
        (["run", "none.txt"], "none.txt: can't read it: No such file or directory"),
        (["run", "/dev/zero"], "/dev/zero: can't read it: has more than 16 MiB"),
        (["run", "."], ".: can't read it: Is a directory"),
        (["run", "bytes.txt"], "bytes.txt: can't read it: it is not UTF-8 text"),
        (["run", "good.txt", "bad.txt"], "bad.txt, line 2: eat is unknown; what happens must be one of oneway, "),
        (["soak", "--hours", "0"], "hours = 0 (from --hours): must be a number above 0, at most 10000"),
        (["soak", "--seconds", "soon"], "seconds = soon (from --seconds): must be a number above 0, "),
        (["soak", "--schedules", "1.5"], "schedules = 1.5 (from --schedules): must be an integer from 1 to "),
        (["soak", "--seed", "-1"], "seed = -1 (from --seed): must be an integer from 0 to "),
        (["soak", "--jobs", "0"], "jobs = 0 (from --jobs): must be an integer from 1 to 256"),
        (["soak", "--hours", "1", "--seconds", "2"], "seconds = 2: hours say how long already; give one of them"),
        (["explore", "--peers", "6"], "peers = 6 (from --peers): must be an integer from 2 to 5"),
        (["explore", "--kinds", "kill,eat"], "kinds = kill,eat (from --kinds): must be of kill, power, isolate, cut, "),
        (
            ["explore", "--kinds", "kill,plain"],
            "kinds = plain: only in coded rounds; add a code, such as fractional:s=1",
        ),
        (
            ["explore", "--kinds", "kill,lose", "--code", "fractional:s=1"],
            "kinds = lose: not in coded rounds; leave the code out",
        ),
        (["explore", "--kinds", "lose", "--plain"], "kinds = lose: plain calls have no state of a run"),
        (["explore", "--wait", "deadline:1"], "wait = deadline:1: only coded rounds can end early; add a code, "),
        (["isolation", "--peers", "7,1"], "peers = 7,1 (from --peers): must be integers from 2 to 255, with commas "),
        (["isolation", "--peers", ","], "peers = , (from --peers): must be integers from 2 to 255, with commas "),
        (["isolation", "--trials", "0"], "trials = 0 (from --trials): must be an integer from 1 to 1000000"),
        (["isolation", "--peers", "2", "--json", "no/x"], "json = no/x: can't write it: No such file or directory"),
        (["isolation", "--peers", "2", "--plot", "."], "plot = .: can't write it: Is a directory"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], said: str, edgepeer_simulate: Run, tmp_path: Path
) -> None:
    (tmp_path / "good.txt").write_text(KILL)
    (tmp_path / "bad.txt").write_text("peers 2\n1 eat p0\n")
    (tmp_path / "bytes.txt").write_bytes(b"peers 2 # \xff\n")
    code, out, error = edgepeer_simulate(*arguments)
    assert code == 2
    assert error.startswith(f"edgepeer: {said}")
    assert error.count("\n") == 1
    assert "virtual time" not in out


def test_unknown_flags_are_refused(edgepeer_simulate: Run) -> None:
    code, _, error = edgepeer_simulate("soak", "--wings", "2")
    assert code == 2
    assert "No such option" in error


# -- run ---------------------------------------------------------------------------------------------------------


def test_run_says_a_line_for_each_file(edgepeer_simulate: Run, tmp_path: Path) -> None:
    (tmp_path / "kill.txt").write_text(KILL)
    (tmp_path / "alone.txt").write_text(ALONE)
    code, out, error = edgepeer_simulate("run", "kill.txt", "alone.txt")
    assert (code, error) == (0, "")
    first, second = out.splitlines()
    said = r"\d+ ends of rounds checked in \d+\.\d s of virtual time; "
    assert re.fullmatch(rf"kill\.txt: {said}all who live have the same history", first)
    assert re.fullmatch(rf"alone\.txt: {said}too few were left for anybody to go on", second)


@pytest.mark.usefixtures("_fragile")
def test_run_goes_on_after_what_breaks_and_fails_in_the_end(edgepeer_simulate: Run, tmp_path: Path) -> None:
    (tmp_path / "kill.txt").write_text(KILL)
    (tmp_path / "calm.txt").write_text("peers 2\nrounds 2\n")
    code, out, _ = edgepeer_simulate("run", "kill.txt", "calm.txt")
    assert code == 1
    first, second = out.splitlines()
    assert first == "kill.txt: broken: it broke"
    assert second.startswith("calm.txt: ")


def test_run_tells_what_happens_if_asked(edgepeer_simulate: Run, tmp_path: Path) -> None:
    (tmp_path / "kill.txt").write_text(KILL)
    code, out, _ = edgepeer_simulate("run", "--tell", "kill.txt")
    assert code == 0
    first, *rest = out.splitlines()
    assert first == "p0 p1 p2 start"
    assert "0.5         kill p2" in rest
    assert rest[-1].startswith("kill.txt: ")


# -- soak --------------------------------------------------------------------------------------------------------


def test_a_soak_of_so_many_schedules_is_the_same_each_time(edgepeer_simulate: Run) -> None:
    arguments = ("soak", "--schedules", "4", "--peers", "4", "--seed", "11")
    code, out, error = edgepeer_simulate(*arguments)
    assert (code, error) == (0, "")
    seeds, tally, end = out.splitlines()
    assert seeds == "seeds from 11"
    assert tally.startswith("4 schedules, 0.")
    assert end == "nothing broke"
    assert edgepeer_simulate(*arguments)[1] == out


def test_a_soak_may_draw_what_owners_do_alone(edgepeer_simulate: Run) -> None:
    code, out, error = edgepeer_simulate("soak", "--schedules", "3", "--seed", "11", "--mix", "owners")
    assert (code, error) == (0, "")
    assert any(f" {kind}" in out for kind in ("aside", "quit", "lose", "busy"))
    code, _, error = edgepeer_simulate("soak", "--mix", "none")
    assert code == 2
    assert "mix = none (from --mix): must be" in error


@pytest.mark.slow
def test_several_processes_come_to_the_same(edgepeer_simulate: Run) -> None:
    arguments = ("soak", "--schedules", "5", "--peers", "4", "--seed", "11")
    code, out, error = edgepeer_simulate(*arguments, "--jobs", "2")
    assert (code, error) == (0, "")
    assert out == edgepeer_simulate(*arguments)[1]


def test_seeds_that_are_not_given_are_others_each_time_and_are_told(edgepeer_simulate: Run) -> None:
    told = [edgepeer_simulate("soak", "--schedules", "1", "--peers", "2")[1].splitlines()[0] for _ in range(2)]
    first, second = (int(line.removeprefix("seeds from ")) for line in told)
    assert 0 < first < second <= 2**53


def test_a_soak_ends_when_time_is_up(edgepeer_simulate: Run) -> None:
    assert edgepeer_simulate("soak", "--seconds", "0.1", "--peers", "2")[0] == 0
    code, out, _ = edgepeer_simulate("soak", "--hours", "1e-9", "--schedules", "9")
    assert code == 0
    assert re.match(r"seeds from \d+\n0 schedules, ", out)


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        (SoakSettings(), 3600.0),
        (SoakSettings(hours=2), 7200.0),
        (SoakSettings(seconds=5, schedules=7), 5.0),
        (SoakSettings(schedules=7), float("inf")),
    ],
)
def test_how_long_a_soak_lasts(settings: SoakSettings, seconds: float) -> None:
    assert simulate._seconds(settings) == seconds


@pytest.mark.usefixtures("_fragile")
def test_a_soak_prints_the_smallest_schedule_that_breaks_something(edgepeer_simulate: Run) -> None:
    code, out, error = edgepeer_simulate("soak", "--schedules", "20", "--peers", "4", "--seed", "0")
    assert (code, error) == (1, "")
    before, _, text = out.partition(": it broke\nmaking the schedule smaller ...\n\n")
    found = re.fullmatch(
        r"seeds from 0\n\d+ schedules, .*\n"
        r"broken by seed (\d+) \(again: edgepeer simulate (soak --schedules 1 --seed (\d+) --peers 4 --mix all)\)",
        before,
    )
    assert found is not None
    assert found[1] == found[3]
    assert "broken by seed" in edgepeer_simulate(*found[2].split())[1]
    assert text.startswith("# it broke\npeers ")
    assert len(Schedule.parse(text).faults) == 1


# -- explore -----------------------------------------------------------------------------------------------------


def test_all_kinds_of_faults_can_be_explored(edgepeer_simulate: Run) -> None:
    coded, plain = set(FAULTS) - {"cancel", "lose"}, set(FAULTS) - set(OTHER_CALLS)
    assert coded | plain == set(FAULTS)
    for code, kinds in (("first", coded), ("none", plain)):
        status, out, _ = edgepeer_simulate("explore", "--code", code, "--kinds", ",".join(kinds), "--depth", "0")
        assert status == 0, out


def test_an_exploration_prints_what_it_has_gone_through(edgepeer_simulate: Run) -> None:
    arguments = ("explore", "--peers", "2", "--faults", "1", "--kinds", "reset,damage", "--depth", "1")
    code, out, error = edgepeer_simulate(*arguments)
    assert (code, error) == (0, "")
    told = re.search(r"^(\d+) states, (\d+) transitions, the longest way \d+ steps, in ", out, re.MULTILINE)
    assert told is not None
    assert int(told[1]) == sum(int(found) for found in re.findall(r"^│ +\d+ │ +(\d+) │$", out, re.MULTILINE)) > 50
    assert "checked: " in out
    assert out.endswith("all states within these bounds: nothing broke\n")


def test_an_exploration_ends_after_so_many_states(edgepeer_simulate: Run) -> None:
    code, out, _ = edgepeer_simulate("explore", "--states", "30")
    assert code == 0
    assert out.endswith("not all states: nothing broke so far\n")


def test_an_exploration_prints_how_it_comes_to_what_breaks(
    edgepeer_simulate: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(View, "may_go_on", lambda self, peers, *, settled: True)
    code, out, error = edgepeer_simulate("explore", "--peers", "2", "--faults", "1", "--depth", "1")
    assert (code, error) == (1, "")
    assert "\nbroken: two views of epoch 2: p0/1; p1/1\n" in out
    lines = out.partition("broken: ")[2].splitlines()[2:]
    assert lines[0] == "   2 peers work in one view, round 1 is over"
    assert [line for line in lines if line.startswith(" ! ")] == [" ! isolate p0"]
    assert any(line.startswith("   p0 contributes") for line in lines)


# -- isolation ---------------------------------------------------------------------------------------------------


def test_isolation_prints_a_table_and_writes_numbers_and_a_picture(edgepeer_simulate: Run, tmp_path: Path) -> None:
    code, out, error = edgepeer_simulate(
        "isolation", "--peers", "3,7", "--trials", "50", "--json", "x.json", "--plot", "x.png"
    )
    assert (code, error) == (0, "")
    head, *lines = out.splitlines()
    assert head.split() == ["peers", "height", "system", "links", "failed", "percent", "5th", "percentile"]
    written = msgspec.json.decode((tmp_path / "x.json").read_bytes())
    assert (written["trials"], written["seed"]) == (50, 0)
    told = [(str(row["peers"]), row["system"], f"{row['failed']:.2f}") for row in written["rows"]]
    assert told == [(peers, system, failed) for peers, _, system, _, failed, *_ in map(str.split, lines)]
    assert {row["system"] for row in written["rows"]} == {"tree", "thesis", "ours", "thesis-hop", "ours-hop"}
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_isolation_without_matplotlib_measures_nothing_that_it_can_not_draw(
    edgepeer_simulate: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "edgepeer.simulation.isolation_plot", raising=False)
    code, out, error = edgepeer_simulate("isolation", "--peers", "3", "--plot", "x.png")
    assert (code, out) == (2, "")
    assert "plot needs matplotlib: pip install 'edgepeer[plot]'" in error
