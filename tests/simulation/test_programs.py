"""Whatever happens to a fleet, the programs of its peers get through all rounds, as their machines do.

The simulator's own tests say that machines agree. Here the calls of `Peer`, and the state of a run, are those of
devices, and what a program computes, packs and loads takes its time, in which everything else goes on: nobody may wait
for a round that is over, or be told of one twice, and all have the same state in the end.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from fleet_stories import drawn, told
from job_program import JobPeer, JobStory
from programmed_peer import ProgrammedStory

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.peer.calls import Calls
from edgepeer.protocol import effects as fx
from edgepeer.simulation.schedule import Schedule

MIXES: Final[dict[str, dict[str, Any]]] = {
    "newcomers": {"kinds": ("join",), "peers": (5, 7), "most_faults": 6},
    "deaths": {"kinds": ("kill", "power", "restart", "join"), "peers": (2, 7)},
    "slow": {"kinds": ("slow", "freeze", "timeout", "leave", "kill"), "peers": (2, 7)},
    "links": {"kinds": ("cut", "oneway", "reset", "isolate", "slow"), "peers": (2, 7)},
    "coded": {"coded": True, "kinds": ("slow", "restart", "join", "timeout", "cut"), "peers": (3, 7)},
    "split": {"split": True, "kinds": ("slow", "restart", "join", "leave", "cut"), "peers": (3, 6), "most_faults": 3},
}
SLOW_LINKS: Final = {
    "run": "run",
    "fanout": 1,
    "lanes": 1,
    "latency_s": 2e-2,
    "jitter_s": 0.3,
    "compute_s": 0.5,
    "rounds": 6,
}
"""In a chain of these peers stand a round apart, and a newcomer is given a state that is a round old."""
EACH: Final = 3


def as_mixed(mix: str, schedule: Schedule) -> Schedule:
    return replace(schedule, **SLOW_LINKS) if mix == "newcomers" else schedule


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_whatever_happens(mix: str) -> None:
    for schedule in drawn(EACH, mix, **MIXES[mix]):
        told(as_mixed(mix, schedule), ProgrammedStory)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few samples."""
    path = tmp_path_factory.mktemp("data") / "few.npz"
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.standard_normal((24, 4)).astype(np.float32), y=rng.integers(0, 3, 24))
    return path


@pytest.mark.slow
def test_whatever_happens_to_a_job(data: Path) -> None:
    for schedule in drawn(EACH, "job", peers=(2, 6), kinds=("join", "kill", "restart", "slow", "cut", "leave")):
        told(replace(schedule, dtype="<f4", run="run", size=16), partial(JobStory, data=data))


def test_a_job_that_fails_has_not_done_the_round_that_nobody_has_decided(data: Path) -> None:
    """Its state is handed to whoever asks, and must not be taken for that after the round."""
    story = JobStory(Schedule.parse("peers 3\nrounds 40\n2..16 isolate p2\n3 timeout p2\n"), data=data)
    world = story.tell()
    p2 = world.peers[PeerId("p2")]
    assert story.ended_well
    assert isinstance(p2, JobPeer)
    assert p2.report is not None
    assert (p2.report.state, p2.report.round) == ("failed", p2.outcomes[-1].round)


def test_who_has_done_all_of_a_job_is_there_for_those_who_have_not(data: Path) -> None:
    """Without power when the job was about to be over, one has the state after its last round on its disk: the others,
    who have not, wait for it to ask for the run."""
    text = """
        peers 3
        seed 49044
        fanout 1
        rounds 20
        precision int8
        compute_s 0.02
        latency_s 0.02
        jitter_s 0.001
        3.46..23.46  power p1
        3.51..8.51   kill p0
        3.51..23.51  kill p2
        """
    story = told(Schedule.parse(text), partial(JobStory, data=data))
    assert story.ended_well
    assert {peer.incarnation for peer in story.world.alive} == {1 << 16}


HAPPENED: Final = {
    "a newcomer is told of a round before it has computed for it": """
        peers 6
        fanout 1
        seed {seed}
        compute_s 0.5
        latency_s 0.02
        jitter_s 0.3
        2.68  join q2
        4.24  join q1
        5.16  join q0
        """,
    "rounds are dropped before all have computed": """
        peers 3
        rounds 6
        seed 3
        1    timeout p1
        1.5  timeout p2
        2    timeout p0
        """,
}
"""What has left programs waiting for ever."""


@pytest.mark.parametrize("what", HAPPENED)
def test_nobody_waits_for_what_is_over(what: str) -> None:
    for seed in range(1, 31):
        story = told(Schedule.parse(HAPPENED[what].replace("{seed}", str(seed))), ProgrammedStory)
        assert story.ended_well
        ends: list[fx.RoundCommitted | fx.RoundAborted] = []
        for peer in story.world.alive:
            ends += [*peer.outcomes, *peer.aborts]
        if any(not end.mine for end in ends):
            return
    raise AssertionError("it has not happened to anybody")


@pytest.mark.parametrize("what", ["freeze", "isolate"])
def test_who_was_out_between_two_calls_is_told(what: str) -> None:
    """It computes when it is taken for lost, and is let in again before it calls: it lacks what it has missed."""
    story = told(Schedule.parse(f"peers 3\nrounds 20\ncompute_s 0.5\n2.6..7.6 {what} p2\n"), ProgrammedStory)
    assert story.ended_well
    p2 = story.world.peers[PeerId("p2")]
    assert p2.views[0].first_round > 1  # it was out


def test_what_ends_a_call_is_of_that_call() -> None:
    """Some are cancelled in mid-round, and the time that they had is over while a later one waits."""
    story = told(Schedule.parse("peers 3\nrounds 20\njitter_s 0.1\nrun none\n"), ProgrammedStory)
    assert story.ended_well


# -- the checks themselves ---------------------------------------------------------------------------------------


def broken_by_hand(monkeypatch: pytest.MonkeyPatch, name: str, do: Any) -> str:
    """What is said where the calls of all peers do something else."""
    monkeypatch.setattr(Calls, name, do)
    with pytest.raises(ProtocolBug) as caught:
        ProgrammedStory(Schedule.parse(HAPPENED["rounds are dropped before all have computed"])).tell()
    return str(caught.value)


def test_a_program_that_is_never_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken_by_hand(monkeypatch, "aborted", lambda calls, effect: None).startswith("no round ended for ")


def test_the_outcome_of_another_round_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Calls.committed

    def wrong(calls: Calls, effect: fx.RoundCommitted) -> None:
        real(calls, replace(effect, round=effect.round + 1))

    said = broken_by_hand(monkeypatch, "committed", wrong)
    assert said.startswith("the program of p")
    assert said.endswith("round 2 came out where round 1 was due")


def test_the_same_schedule_comes_to_the_same_in_virtual_time() -> None:
    digests = set()
    for _ in range(2):
        story = ProgrammedStory(Schedule.parse(HAPPENED["rounds are dropped before all have computed"]))
        digests.add(story.tell().trace_digest)
    assert len(digests) == 1
