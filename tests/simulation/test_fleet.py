"""Fleets without faults: every sum is right, whatever the tree, the sizes, the links and the weights."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fleet_stories import examples, told
from hypothesis import example, given
from hypothesis import strategies as st

from edgepeer.errors import ProtocolBug
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.rollcall import letter
from edgepeer.simulation.ledger import NO_SUM, Ledger, end_of
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.story import SMALL_SEGMENTS, Story
from edgepeer.simulation.task import Workload
from edgepeer.simulation.ways import LinkModel
from edgepeer.simulation.world import World
from edgepeer.topology.view import Member, View
from edgepeer.wire.frames import Call, Reduce, Result

calm = st.builds(
    Schedule,
    peers=st.integers(1, 20),
    fanout=st.integers(1, 5),
    rounds=st.integers(1, 4),
    size=st.sampled_from([0, 1, 2, 15, 16, 17, 1000, 4999]),
    dtype=st.sampled_from(["<f4", "<f8"]),
    compute_s=st.sampled_from([0.0, 0.05]),
    run=st.sampled_from(["run", "none"]),
    latency_s=st.sampled_from([1e-5, 1e-3, 5e-2]),
    jitter_s=st.sampled_from([0.0, 1e-2]),
    rate_bytes_per_s=st.sampled_from([1e5, 1e7, 1e9]),
    seed=st.integers(0, 1 << 16),
)


@given(calm)
@examples(15)
@example(Schedule(peers=20, fanout=5, rounds=4, size=4999, rate_bytes_per_s=1e5))
def test_every_peer_commits_the_plain_sum(schedule: Schedule) -> None:
    world = told(schedule).world
    assert world.ledger.checked >= schedule.rounds  # each commit was compared with a plain float64 sum
    if schedule.run == "run":
        assert world.ledger.checked >= schedule.rounds * schedule.peers
    for peer in world.alive:
        for outcome in peer.outcomes:
            assert outcome.sum.dtype == np.dtype(schedule.dtype)
            assert outcome.sum.size == schedule.size


@given(schedule=calm, weights=st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=5))
@examples(15)
def test_weights_count_and_a_weight_of_zero_hides_even_nan(schedule: Schedule, weights: list[float]) -> None:
    story = Story(schedule)
    story.world.task.workload = dataclasses.replace(story.world.task.workload, weights=tuple(weights))
    world = story.tell()
    assert all(np.isfinite(outcome.sum).all() for peer in world.alive for outcome in peer.outcomes)


def copied(world: World, device: PeerId, *, by: list[PeerId]) -> None:
    """A copy of a device has been there for a moment, and was heard by these."""
    copy = Member(id=device, incarnation=5)
    for name in by:
        world.peers[name].receive(ev.PresenceSeen(copy))
        if name != device:
            world.peers[name].receive(ev.Relayed(letter(device, name, Call(incarnation=5)).frame, b""))


def test_whose_device_was_copied_still_counts_where_the_others_are_too_few() -> None:
    """Two of five have died without a trace; a third is taken for dead, but lives, and answers."""
    world = World(seed=1, workload=Workload(rounds=1000, compute_s=0.1, wait_for=5), limits=SMALL_SEGMENTS)
    names = [PeerId(f"p{number}") for number in range(5)]
    for name in names:
        world.add(name)
    assert world.run_rounds(2)
    copied(world, PeerId("p2"), by=[PeerId("p0"), PeerId("p1")])
    for name in ("p3", "p4"):
        world.kill(world.peers[PeerId(name)], silently=True)
    over = world.peers[PeerId("p0")].done
    assert world.run_until(lambda: world.peers[PeerId("p0")].done > over + 4, 12.0)
    assert world.run_until(lambda: sorted(world.peers[PeerId("p0")].views[-1].ids) == ["p0", "p1"], 12.0)


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize(("peers", "fanout", "lanes", "latency_s"), [(4, 1, 1, 0.02), (8, 1, 2, 0.02), (6, 2, 2, 0.1)])
def test_a_head_whose_device_was_copied_lets_the_others_go_on(
    peers: int, fanout: int, lanes: int, latency_s: float, knows: bool
) -> None:
    """All others have heard of the copy, which has ended, and take the head for dead: but it lives, leads and votes."""
    world = World(
        seed=1,
        workload=Workload(rounds=1000, compute_s=0.3, wait_for=peers),
        fanout=fanout,
        lanes=lanes,
        link=LinkModel(latency_s=latency_s),
        limits=SMALL_SEGMENTS,
    )
    names = [PeerId(f"p{number}") for number in range(peers)]
    for name in names:
        world.add(name)
    head, *others = names
    assert world.run_rounds(2)
    copied(world, head, by=[*others, head] if knows else others)
    over = world.peers[others[0]].done
    assert world.run_until(lambda: all(world.peers[name].done > over + 2 for name in others), 10.0)
    views = {(view.generation, view.epoch) for name in others for view in world.peers[name].views}
    assert len(views) < 8


def test_vectors_are_really_cut_in_segments_in_both_directions() -> None:
    world = World(
        seed=1,
        workload=Workload(rounds=4, size=3000, compute_s=0.0),
        link=LinkModel(rate_bytes_per_s=1e5),
        limits=SMALL_SEGMENTS,
    )
    for number in range(7):
        world.add(f"p{number}")
    offsets: dict[type, set[tuple[int, int]]] = {Reduce: set(), Result: set()}

    def look(now: float, peer: PeerId, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Send) and isinstance(effect.frame, Reduce | Result):
            offsets[type(effect.frame)].add((effect.frame.round, effect.frame.offset))

    world.on_effect = look
    assert world.run_rounds()
    for kind in (Reduce, Result):
        for number in (1, 4):  # before the rate is known, and after
            assert len({offset for of, offset in offsets[kind] if of == number}) >= 8, (kind, number)


def test_segments_go_down_while_later_ones_still_come_up() -> None:
    world = World(
        seed=1,
        workload=Workload(rounds=1, size=3000, compute_s=0.0),
        link=LinkModel(rate_bytes_per_s=1e5),
        limits=SMALL_SEGMENTS,
    )
    for number in range(7):
        world.add(f"p{number}")
    world.log = []
    assert world.run_rounds()
    down = next(i for i, line in enumerate(world.log) if " p0 to " in line and "Result(" in line)
    assert any(" p1 to p0: Reduce(" in line for line in world.log[down:])


@pytest.mark.parametrize("run", ["run", None])
def test_neighbours_say_where_they_stand_a_few_times_and_not_for_ever(run: str | None) -> None:
    world = World(seed=1, workload=Workload(rounds=50, run=run, compute_s=0.5))
    for number in range(15):
        world.add(f"p{number:02}", delay_s=number / 2)
    world.log = []
    assert world.run_rounds(limit_s=120)
    views = max(peer.node.view.epoch for peer in world.alive if peer.node.view is not None)
    assert sum("Sync(" in line for line in world.log) <= 10 * 15 * views


# -- the checker itself ------------------------------------------------------------------------------------


def small_world(run: str | None = "run") -> World:
    world = World(seed=3, workload=Workload(rounds=3, size=8, run=run, weights=(1.0, 2.0)), limits=SMALL_SEGMENTS)
    for number in range(3):
        world.add(f"p{number}")
    return world


def tampering(world: World, victim: str, change: dict[str, object]) -> None:
    """From now on `victim` believes to have committed something else."""
    peer = world.peers[victim]  # type: ignore[index]
    real = peer._handlers[fx.RoundCommitted]

    def commit(effect: fx.RoundCommitted) -> None:
        real(dataclasses.replace(effect, **change))

    peer._handlers[fx.RoundCommitted] = commit


@pytest.mark.parametrize(
    ("victim", "change", "complaint"),
    [
        ("p0", {"sum": np.ones(8, dtype="<f4")}, "is not the sum"),
        ("p0", {"weight": 17.0}, "contributors have"),
        ("p0", {"contributors": ("p0", "p1")}, "contributors have"),
        ("p2", {"sum": np.ones(8, dtype="<f4")}, "other bits or contributors"),
        ("p2", {"contributors": ("p0", "p1")}, "other bits or contributors"),
        ("p1", {"round": 2}, "ends after round 0"),
    ],
)
def test_the_checker_notices_a_wrong_commit(victim: str, change: dict[str, object], complaint: str) -> None:
    world = small_world()
    tampering(world, victim, change)
    with pytest.raises(ProtocolBug, match=complaint):
        world.run_rounds()


LEDGER_ROUND = fx.RoundCommitted(
    run="", round=1, generation=Generation(), epoch=1, sum=np.full(4, 3.0, "<f4"), weight=2.0,
    contributors=(PeerId("a"), PeerId("b")), exact=True, digest=bytes(16), mine=True,
)  # fmt: skip


def ledger() -> Ledger:
    """a brings 1, b 2, to each of four elements, in all rounds."""
    return Ledger(lambda outcome, peer: [(np.full(4, 1.0 if peer == "a" else 2.0, "<f4"), 1.0)])


P0, P1, P2 = PeerId("p0"), PeerId("p1"), PeerId("p2")


def test_a_round_ends_in_one_way_in_each_generation() -> None:
    """Another generation may end the same round otherwise: what was done in the earlier one is given up there."""
    book = ledger()
    book.committed(P0, LEDGER_ROUND)
    book.committed(P1, LEDGER_ROUND)
    other = dataclasses.replace(LEDGER_ROUND, sum=np.full(4, 1.0, "<f4"), weight=1.0, contributors=(PeerId("a"),))
    with pytest.raises(ProtocolBug, match="p2 commits other bits or contributors for round 1 of no run, generation 1"):
        book.committed(P2, other)
    book.committed(P2, dataclasses.replace(other, generation=Generation(2)))
    with pytest.raises(ProtocolBug, match="generation 2-00000000, which p2 has committed"):
        book.committed(P0, dataclasses.replace(LEDGER_ROUND, generation=Generation(2)))
    assert book.checked == 5


def test_another_run_has_a_round_of_the_same_number() -> None:
    book = ledger()
    book.committed(P0, dataclasses.replace(LEDGER_ROUND, run="one"))
    other = dataclasses.replace(LEDGER_ROUND, sum=np.full(4, 1.0, "<f4"), weight=1.0, contributors=(PeerId("a"),))
    book.committed(P1, dataclasses.replace(other, run="other"))
    with pytest.raises(ProtocolBug, match="round 1 of other, generation 1-00000000, which p1 has committed"):
        book.committed(P2, dataclasses.replace(LEDGER_ROUND, run="other"))


def test_a_run_that_begins_anew_has_a_round_of_the_same_number() -> None:
    """In the same generation: all had given it up, and want it again."""
    book, members = ledger(), tuple(Member(id=peer, incarnation=1) for peer in ("a", "b"))
    view = View(generation=Generation(), epoch=1, members=members, fanout=2, run="one", first_round=1)
    again = view.successor(first_round=2, run="").successor(first_round=2, run="one")
    first = dataclasses.replace(LEDGER_ROUND, run="one")
    other = dataclasses.replace(first, sum=np.full(4, 1.0, "<f4"), weight=1.0, contributors=(PeerId("a"),))
    book.committed(P0, first, view)
    book.committed(P1, other, again)
    with pytest.raises(ProtocolBug, match="which p0 has committed"):
        book.committed(P2, other, view)


def test_a_sum_against_an_abort_is_noticed_whoever_comes_first() -> None:
    world = small_world()
    assert world.run_until(lambda: len(world.alive) == 3 and all(peer.views for peer in world.alive), 10)
    view = world.peers[P0].views[-1]
    committed = dataclasses.replace(LEDGER_ROUND, generation=view.generation)
    aborted = fx.RoundAborted("", 1, "timeout", "too late", mine=True)
    book = ledger()
    book.aborted(P0, view, aborted)
    with pytest.raises(ProtocolBug, match="which p0 has dropped"):
        book.committed(P1, committed)
    book = ledger()
    book.committed(P1, committed)
    with pytest.raises(ProtocolBug, match=r"p0 drops round 1 of no run, generation .* which p1 has committed"):
        book.aborted(P0, view, aborted)


def test_who_counts_twice_is_noticed() -> None:
    twice = dataclasses.replace(LEDGER_ROUND, contributors=(PeerId("a"), PeerId("a")))
    with pytest.raises(ProtocolBug, match="counts somebody twice"):
        ledger().committed(P0, twice)


def test_a_state_is_of_rounds_that_somebody_has_seen_the_end_of_in_that_generation() -> None:
    book = ledger()
    book.committed(P0, LEDGER_ROUND)
    book.adopted(P1, {1: end_of(Generation(), LEDGER_ROUND.digest), 2: NO_SUM})
    with pytest.raises(ProtocolBug, match="p1 adopts a state with an end of round 1 that nobody has seen"):
        book.adopted(P1, {1: end_of(Generation(2), LEDGER_ROUND.digest)})


def test_the_checker_notices_a_buffer_that_is_written_too_early() -> None:
    world = small_world()
    peer = world.peers["p2"]  # type: ignore[index]
    real = peer._handlers[fx.Send]

    def send(effect: fx.Send) -> None:
        real(effect)
        if isinstance(effect.frame, Reduce):
            next(iter(peer._memory.values()))[:] = 0.0

    peer._handlers[fx.Send] = send
    with pytest.raises(ProtocolBug, match="is not the sum"):
        world.run_rounds()


# -- determinism -------------------------------------------------------------------------------------------


def digest_of(seed: int) -> str:
    return told(Schedule(peers=6, seed=seed, jitter_s=1e-3, rounds=5)).world.trace_digest


def test_whoever_comes_as_another_run_is_wanted_wants_that() -> None:
    assert told(Schedule.parse("peers 6\n5.96 join q2\n5.96 run\n")).ended_well


def test_who_is_hidden_is_reached_through_the_broker_or_dials() -> None:
    """Where one of them dies no machine says so: of two, the other may wait for ever."""
    story = told(Schedule.parse("peers 6\nhidden 3\nrounds 20\n1 kill p0\n3..4 kill p5\n"))
    assert story.ended_well
    assert told(Schedule.parse("peers 2\nhidden 2\n1 kill p0\n")).ended_well is False


def test_a_machine_sleeps_with_its_kernel() -> None:
    story = told(Schedule.parse("peers 5\nrounds 40\n1..9 sleep p0\n12..13 sleep p3\n"))
    assert story.ended_well
    assert story.happened == ["sleep", "sleep"]


def test_what_the_broker_brings_comes_twice() -> None:
    story = told(Schedule.parse("peers 5\nhidden 5\nrounds 20\ntwice 0.5\n1..2 isolate p0\n2 kill p3\n"))
    assert story.ended_well


def test_each_life_goes_by_a_clock_of_its_own() -> None:
    """Nobody may compare its own time with another's. That it does is seen only where clocks differ."""
    text = "peers 5\nrounds 20\nclocks_s 100000\n1..3 cut p1 p0\n2 kill p0\n4..5 power p3\n6..12 freeze p2\n"
    story = told(Schedule.parse(text))
    assert story.ended_well
    clocks = [peer.ahead_s for peer in story.world.peers.values()]
    assert len(set(clocks)) == 5
    assert max(clocks) > 10_000


def test_the_same_seed_gives_the_same_trace() -> None:
    assert digest_of(7) == digest_of(7)


def test_another_seed_gives_another_trace() -> None:
    assert digest_of(7) != digest_of(8)


# -- scale -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)  # 15 s of processor time, on a machine that may have other work to do
def test_two_hundred_peers_allreduce_a_small_vector() -> None:
    world = World(seed=1, workload=Workload(rounds=1, size=16, wait_for=200))
    for number in range(200):
        world.add(f"p{number:04d}")
    assert world.run_rounds()
    assert world.ledger.checked == 200
    assert world.settled()
