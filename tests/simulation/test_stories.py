"""Single stories of fleets with faults: what happens, to whom, and how soon all is well again."""

from __future__ import annotations

import random
from itertools import permutations

import numpy as np
import pytest

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol.limits import Limits
from edgepeer.simulation.account import Account
from edgepeer.simulation.ledger import Ledger
from edgepeer.simulation.peer import SimulatedPeer
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.story import SMALL_SEGMENTS, Story, there
from edgepeer.simulation.task import Task, Workload
from edgepeer.simulation.ways import BROKER, LinkModel
from edgepeer.simulation.world import World


def fleet(
    peers: int, *, rounds: int = 10, run: str | None = "run", limits: Limits = SMALL_SEGMENTS, **more: float
) -> World:
    world = World(
        seed=1,
        workload=Workload(rounds=rounds, size=200, run=run, wait_for=peers, compute_s=more.pop("compute_s", 0.1)),
        link=LinkModel(**more),
        limits=limits,
    )
    for number in range(peers):
        world.add(f"p{number}")
    return world


def peer(world: World, name: str) -> SimulatedPeer:
    return world.peers[name]  # type: ignore[index]


def beginnings(world: World) -> set[tuple[str, int]]:
    return {view.beginning for each in world.alive if (view := each.node.view) is not None}


def at_round(world: World, number: int) -> None:
    assert world.run_rounds(number, limit_s=60)


def test_the_coordinator_dies_and_the_next_takes_over_within_a_second() -> None:
    world = fleet(7, rounds=1000)
    at_round(world, 3)
    world.kill(peer(world, "p0"))
    assert world.run_until(world.settled, 2.0)
    assert peer(world, "p1").node.parts.membership.coordinator


def test_a_machine_that_goes_silent_is_noticed_after_the_limit() -> None:
    world = fleet(5, rounds=1000)
    at_round(world, 3)
    world.kill(peer(world, "p4"), silently=True, will=False)
    assert not world.run_until(world.settled, SMALL_SEGMENTS.silence_s - 1.0)
    assert world.run_until(world.settled, SMALL_SEGMENTS.silence_s + 2.0)


def test_a_process_that_is_stopped_does_not_say_hello() -> None:
    """Its kernel lets others connect, but who has dialled it takes it for no more alive than before."""
    world = fleet(7, rounds=1000)
    at_round(world, 3)
    stopped = [peer(world, name) for name in ("p0", "p1")]
    for each in stopped:
        world.freeze(each)
    others = [each for each in world.alive if not each.frozen]

    def alone(each: SimulatedPeer) -> bool:
        return each.node.view is not None and {*each.node.view.ids} == {other.id for other in others}

    def connected() -> bool:
        return any(each.lines.get(other.id) for each in others for other in stopped)

    assert world.run_until(lambda: all(map(alone, others)), 10.0)
    assert not world.run_until(connected, 30.0)
    for each in stopped:
        world.thaw(each)
    assert world.run_until(connected, 5.0)


def test_the_coordinator_and_the_next_in_line_die_at_once() -> None:
    world = fleet(7, rounds=30)
    at_round(world, 3)
    for name in ("p0", "p1"):
        world.kill(peer(world, name))
    assert world.run_rounds(limit_s=60)
    assert world.settled()


def test_who_restarts_at_once_is_let_in_with_its_new_life() -> None:
    world = fleet(3, rounds=30)
    at_round(world, 3)
    for name in ("p2", "p0"):
        old = peer(world, name)
        world.kill(old, will=False)
        new = world.restart(old, delay_s=0.01)
        assert world.run_until(lambda new=new: new.done >= 3 and world.settled(), 30)  # type: ignore[misc]
    assert world.run_rounds(limit_s=60)


def out_for(world: World, name: str) -> float:
    """How long it takes until a peer is in again that is killed, and started anew a second later."""
    world.kill(peer(world, name))
    world.restart(peer(world, name), delay_s=1.0)
    began = world.clock.now
    assert world.run_until(lambda: name in world.living and world.settled(), 120)
    return world.clock.now - began


def pass_time(world: World, seconds: float) -> None:
    assert not world.run_until(lambda: False, seconds)


def test_who_is_lost_again_and_again_waits_longer_each_time_and_is_forgiven_once_it_stays() -> None:
    world = fleet(3, rounds=0, run=None)
    assert world.run_until(world.settled, 5)
    waited = []
    for _ in range(7):
        waited.append(out_for(world, "p2"))
        pass_time(world, 5.0)
    assert waited == pytest.approx([1, 2, 4, 8, 16, 32, 32], abs=1.5)
    pass_time(world, 321.0)
    assert out_for(world, "p2") < 2


def test_who_is_lost_now_and_then_is_let_in_at_once_each_time() -> None:
    world = fleet(3, rounds=0, run=None)
    assert world.run_until(world.settled, 5)
    for _ in range(12):
        assert out_for(world, "p2") < 2
        pass_time(world, 21.0)


def test_soon_after_a_change_all_know_that_all_have_made_it() -> None:
    """Until then nobody may go on without a majority of the view before, too."""
    world = fleet(7, rounds=1000)
    at_round(world, 3)
    for name in ("p0", "p5"):
        world.kill(peer(world, name))
        assert world.run_until(world.settled, 5)
        assert world.run_until(lambda: all(p.node.parts.membership.settled for p in world.alive), 1.0)


def test_a_leaver_does_not_hold_up_the_round() -> None:
    world = fleet(4, rounds=20, compute_s=0.0)
    at_round(world, 3)
    leavers = [peer(world, "p3"), peer(world, "p0")]
    for each in leavers:
        each.leave()
    assert world.run_until(lambda: all(each.left for each in leavers) and world.settled(), 0.5)
    assert world.run_rounds(limit_s=10)


def test_everybody_leaves_at_once() -> None:
    world = fleet(6, rounds=1000)
    at_round(world, 3)
    for each in world.alive:
        each.leave()
    assert world.run_until(lambda: not world.alive, 5.0)
    assert all(each.left for each in world.peers.values())


def test_everybody_leaves_after_the_last_round_with_the_same_result() -> None:
    """Whoever has the last commit may be gone before the others have it; they get it nevertheless."""
    world = fleet(7, rounds=5, run=None, latency_s=5e-3, jitter_s=5e-3, rate_bytes_per_s=1e5)
    leaving: set[str] = set()

    def done() -> bool:
        for each in world.alive:
            if each.done >= 5 and each.id not in leaving:
                leaving.add(each.id)
                each.leave()
        return len(leaving) == 7 and not world.alive

    assert world.run_until(done, 60)
    assert {each.digests[5] for each in world.peers.values()} == {peer(world, "p0").digests[5]}


def test_a_broker_outage_costs_a_running_job_nothing() -> None:
    calm, dark = fleet(7, rounds=20, compute_s=0.0), fleet(7, rounds=20, compute_s=0.0)
    for world in (calm, dark):
        at_round(world, 2)
    began = calm.clock.now, dark.clock.now
    dark.broker.go_down()
    for world in (calm, dark):
        assert world.run_rounds(limit_s=5)
    assert dark.clock.now - began[1] <= calm.clock.now - began[0] + 1e-6


def test_a_coordinator_that_dies_while_the_broker_is_away_is_replaced() -> None:
    world = fleet(5, rounds=30)
    at_round(world, 3)
    world.broker.go_down()
    world.kill(peer(world, "p0"))
    assert world.run_rounds(limit_s=120)
    late = world.add("p9")
    world.broker.come_up()
    assert world.run_until(world.settled, 60)
    assert world.run_until(lambda: late.done == 30, 60)


def test_joiners_get_the_state_and_go_on_with_the_next_round() -> None:
    world = fleet(3, rounds=40)
    at_round(world, 5)
    late = [world.add(f"late{number}") for number in range(4)]
    assert world.run_rounds(limit_s=60)
    for each in late:
        assert each.digests == peer(world, "p0").digests
        assert 5 < each.outcomes[0].round < 40
    assert world.settled()


def test_when_all_want_another_run_nothing_of_the_one_before_is_counted_in_it() -> None:
    """Each gives the first up when its owner says so, in the middle of a round, too."""
    schedule = "peers 5\nrounds 12\n\n3 run\n6.2 kill p0\n6.5 run\n"
    world = Story(Schedule.parse(schedule)).tell()
    runs = {p.id: {outcome.run for outcome in p.outcomes} for p in world.alive}
    assert set.union(*runs.values()) == {"run", "run2", "run3"}
    for p in world.alive:
        assert p.node.view is not None
        assert p.node.view.run == p.run_id == "run3"
        last = {o.round: o.sum.tobytes() for o in p.outcomes if o.run == "run3"}
        assert last.keys() <= {*range(1, 13)}
    world.task.contribution = lambda peer, number, run: Task.contribution(  # type: ignore[method-assign]
        world.task, peer, number, "run"
    )
    late = next(o for o in world.alive[0].outcomes if o.run == "run3" and o.weight)
    with pytest.raises(ProtocolBug, match="is not the sum over"):
        Ledger(world._brought).committed(world.alive[0].id, late)


# -- owners that change their minds ------------------------------------------------------------------------


def happens(text: str) -> tuple[Story, str]:
    """What happens in a schedule, as it is told."""
    account = Account()
    story = Story(Schedule.parse(text), account=account)
    story.tell()
    assert story.ended_well
    return story, str(account)


def test_who_has_stood_aside_is_in_again_as_another_life_and_the_others_went_on() -> None:
    story, told = happens("peers 5\nrounds 30\n\n2..5 aside p0\n")
    p0 = peer(story.world, "p0")
    assert (p0.left, p0.times_out) == (False, 0)
    assert p0.incarnation > 1
    assert "p0 took a state over" in told
    assert any(outcome.contributors == ("p1", "p4", "p2", "p3") for outcome in peer(story.world, "p1").outcomes)


def test_nobody_goes_on_for_ever_to_do_without_a_majority_that_has_changed_its_mind() -> None:
    story, _ = happens("peers 7\nrounds 60\n\n2..2.3 aside p0 p1 p2 p3\n")
    view = peer(story.world, "p6").node.view
    assert view is not None
    assert view.epoch <= 6


def test_who_leaves_for_good_while_it_stands_aside_goes_at_once() -> None:
    world = fleet(4, rounds=1000)
    at_round(world, 3)
    p3 = peer(world, "p3")
    p3.stand_aside()
    pass_time(world, 2.0)
    assert p3.alive
    p3.leave()
    assert p3.left
    assert not p3.alive
    p3.come_back()
    assert world.run_until(world.settled, 1.0)


def test_nobody_waits_for_ever_for_a_coded_round_of_which_calls_were_cancelled() -> None:
    story, _ = happens("peers 4\nrounds 20\ncode cyclic:s=1\n\n1..1.1 aside p1\n2..3 quit p0 p1\n")
    assert {each.outcomes[-1].round for each in story.world.alive} == {20}


def test_all_wait_for_whose_owner_quits_the_run_and_it_takes_a_state_over_when_it_is_back() -> None:
    story, told = happens("peers 4\nrounds 30\n\n3..9 quit p2\n")
    before, after = told.split("end of quit p2\n")
    assert "p2 took a state over" not in before
    assert "p2 took a state over" in after
    assert peer(story.world, "p2").node.view == peer(story.world, "p0").views[0]


def test_a_run_that_all_have_quit_begins_anew() -> None:
    story, told = happens("peers 4\nrounds 12\n\n1.5..2.5 quit p0 p1 p2 p3\n")
    assert "rounds 1-" in told.split("quit")[0]
    for each in story.world.alive:
        assert each.node.view is not None
        assert each.node.view.plain_round > 1
        assert [*each.digests] == [*range(1, 13)]


def test_who_goes_on_from_its_checkpoint_in_the_same_process_does_so_beside_the_others() -> None:
    story, _ = happens("peers 4\nrounds 30\ncheckpoint 3\n\n3..4 quit p0 p1 p2 p3\n")
    assert all(each.outcomes[-1].round == 30 for each in story.world.alive)


def test_a_state_that_is_lost_comes_from_a_neighbour_once_the_round_is_over() -> None:
    story, told = happens("peers 4\nrounds 30\n\n3 lose p0\n4 lose p2\n")
    assert "p0 took a state over" in told.split("lose p0")[1]
    assert "p2 took a state over" in told.split("lose p2")[1]
    assert all(each.has_state for each in story.world.alive)


def test_a_run_of_which_the_last_to_have_it_has_lost_the_state_begins_anew() -> None:
    story, _ = happens("peers 1\nrounds 30\n\n3 lose p0\n")
    assert story.ended_well
    assert [*peer(story.world, "p0").digests] == [*range(1, 31)]
    assert len({view.beginning for view in peer(story.world, "p0").views}) == 3  # with one that has no run


def test_a_run_is_over_where_all_have_only_an_earlier_state_than_one_has_seen() -> None:
    """Of one generation a round ends in one way only. Who has come to a later one, and lost the state of it, waits, and
    the others for it; but not for ever."""
    world = fleet(2, rounds=1000)
    at_round(world, 3)
    p0, p1 = (peer(world, name) for name in ("p0", "p1"))
    p1.node.parts.course.forget(loading=p0.over + 1)
    p1.node.parts.place.loading = False
    world.ledger._newest["run", 1] = p0.over + 1
    assert not world.run_until(lambda: beginnings(world) != {("run", 1)}, SMALL_SEGMENTS.anew_s - 0.5)
    assert world.run_until(lambda: beginnings(world) == {("run", 2)}, SMALL_SEGMENTS.anew_s)


def test_nor_may_it_be_over_while_somebody_has_the_last_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be if the head did not look for one: the ledger sees it."""
    world = fleet(2, rounds=1000)
    at_round(world, 3)
    vitals = type(peer(world, "p0").node.parts.vitals)
    monkeypatch.setattr(vitals, "over", property(lambda _: True))
    with pytest.raises(ProtocolBug, match="over, or begun anew, though it has"):
        world.run_until(lambda: beginnings(world) != {("run", 1)}, 10.0)


def test_all_wait_for_an_owner_that_is_busy_and_its_process_is_there() -> None:
    story, told = happens("peers 4\nrounds 30\n\n3..20 busy p1\n")
    assert [peer(story.world, name).times_out for name in ("p0", "p1", "p2", "p3")] == [0, 0, 0, 0]
    assert "view 2" not in told
    assert story.world.clock.now > 20


def test_without_a_run_joiners_begin_with_the_next_call() -> None:
    world = fleet(3, rounds=40, run=None)
    at_round(world, 5)
    late = world.add("late")
    assert world.run_rounds(limit_s=60)
    assert late.outcomes[0].round > 5
    assert late.outcomes[-1].round == 40
    assert late.outcomes[-1].contributors == ("p0", "p1", "p2", "late")


def test_when_all_who_had_the_state_have_died_the_run_begins_again_in_a_new_generation() -> None:
    """Not before they have shown up anew: until then they might come back with what they know."""
    world = fleet(2, rounds=1000)
    at_round(world, 3)
    late = [world.add(f"late{number}") for number in range(3)]
    assert world.run_until(lambda: all(p.node.view is not None and p.node.view.size == 5 for p in late), 30)
    for each in late:
        each.node.allreduce.forget()  # as if the state had not come yet
        each.node.parts.place.loading = False
        each.digests, each.over = {}, 0
    dead = [peer(world, name) for name in ("p0", "p1")]
    for each in dead:
        world.kill(each, silently=True)
    assert not world.run_until(lambda: any(p.done for p in late), 20)
    for each in dead:
        world.restart(each)
    assert world.run_until(lambda: all(p.done >= 3 for p in world.alive) and len(world.alive) == 5, 60)
    assert [p.node.view.generation.counter for p in world.alive if p.node.view is not None] == [2] * 5
    assert late[0].digests[2] == late[1].digests[2]


# -- rounds that come to nothing ---------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["run", None])
@pytest.mark.parametrize("odd", ["p0", "p2", "p6"])
@pytest.mark.parametrize("vector", [np.zeros(199, "<f4"), np.zeros(200, "<f8"), np.zeros(0, "<f4")])
def test_vectors_that_do_not_fit_end_the_round_for_everybody(run: str | None, odd: str, vector: np.ndarray) -> None:
    world = fleet(7, rounds=4, run=run)
    world.task.brought[odd, 2] = vector, 1.0  # type: ignore[index]
    assert world.run_rounds(limit_s=30)
    for each in world.alive:
        assert [outcome.round for outcome in each.outcomes] == [1, 3, 4]
        (abort,) = each.aborts
        assert (abort.round, abort.cause) == (2, "mismatch")
        assert "200 x float32" in abort.reason
    assert world.settled()


@pytest.mark.parametrize("run", ["run", None])
@pytest.mark.parametrize("impatient", ["p0", "p1", "p6"])
def test_a_timeout_ends_the_round_for_everybody(run: str | None, impatient: str) -> None:
    world = fleet(7, rounds=6, run=run)
    assert world.run_rounds(1, limit_s=30)
    slow = peer(world, "p5")
    slow.pause()
    last = max(p.done for p in world.alive)
    assert not world.run_rounds(last + 1, limit_s=5)
    peer(world, impatient).time_out()
    assert world.run_rounds(last + 1, limit_s=1)
    slow.resume()
    assert world.run_rounds(limit_s=30)
    for each in world.alive:
        assert [(abort.round, abort.cause) for abort in each.aborts] == [(last + 1, "timeout")]
        assert [outcome.round for outcome in each.outcomes] == [n for n in range(1, 7) if n != last + 1]


def test_a_peer_that_stalls_is_removed_though_its_link_lives() -> None:
    world = fleet(4, rounds=4, limits=Limits(stall_s=20.0))
    assert world.run_rounds(1, limit_s=30)
    peer(world, "p3").pause()
    others = [p for p in world.alive if p.id != "p3"]
    assert world.run_until(lambda: all(p.done >= 4 for p in others), 120)
    assert any("kept the round waiting" in note for note in world.notes)


def thawed_after_a_newcomer_has_begun(run: str | None, frozen_s: float) -> tuple[World, list[str], int]:
    """One peer alone is stopped, and goes on after another has begun a generation. Returns what it commits from then
    on until both are together, and how many rounds the newcomer had done by then."""
    world = fleet(1, rounds=10_000, run=run)
    old = peer(world, "p0")
    at_round(world, 30)
    world.freeze(old)
    pass_time(world, 5.0)
    new = world.add("q5")
    pass_time(world, frozen_s - 5.0)
    assert new.node.view is not None
    assert new.node.view.generation.counter == 2
    done, before = len(old.outcomes), new.done
    world.thaw(old)
    assert world.run_until(lambda: old.node.view == new.node.view, 10)
    assert world.run_until(lambda: len(old.outcomes) > done + 5 and old.done == new.done, 10)
    return world, [str(outcome.generation) for outcome in old.outcomes[done:]], before


# A broker has given up who was stopped for more than 22.5 s: it must connect anew before it can hear of anything.
@pytest.mark.parametrize("frozen_s", [20.0, 45.0])
@pytest.mark.parametrize("run", ["run", None])
def test_who_comes_back_from_an_older_generation_learns_so_before_it_commits_anything_more(
    run: str | None, frozen_s: float
) -> None:
    world, generations, _ = thawed_after_a_newcomer_has_begun(run, frozen_s)
    newest = peer(world, "q5").node.view
    assert newest is not None
    assert generations
    assert set(generations) == {str(newest.generation)}


def test_who_was_stopped_and_finds_no_broker_goes_on_without_it() -> None:
    world = fleet(1, rounds=10_000)
    alone = peer(world, "p0")
    at_round(world, 30)
    world.broker.go_down()
    world.freeze(alone)
    pass_time(world, 6.0)
    world.thaw(alone)
    done = alone.done
    pass_time(world, 4.9)
    assert alone.done == done
    assert world.run_until(lambda: alone.done > done + 5, 2.0)


def test_a_short_stop_costs_nobody_alone_anything() -> None:
    world = fleet(1, rounds=10_000)
    alone = peer(world, "p0")
    at_round(world, 30)
    world.freeze(alone)
    pass_time(world, 2.9)
    world.thaw(alone)
    done = alone.done
    assert world.run_until(lambda: alone.done > done, 0.11)


def test_presences_of_nobody_are_cleared_though_nobody_else_has_anything_to_say() -> None:
    world = fleet(3, rounds=0, run=None)
    for number in range(3):
        gone = world.add(f"gone{number}")
        assert world.run_until(lambda gone=gone: world.settled() and gone.node.view is not None, 5)  # type: ignore[misc]
        world.kill(gone, will=False)
        assert world.run_until(world.settled, 5)
    assert peer(world, "p1").node.parts.rolls.order == ["gone0", "gone1", "gone2", "p0", "p2"]
    assert world.run_until(lambda: peer(world, "p1").node.parts.rolls.order == ["p0", "p2"], 60)


def test_those_who_are_there_reach_each_other_whatever_is_cut() -> None:
    """`there` looks links up by peer; asked for pair by pair it is the same."""
    world = fleet(7, rounds=1)
    at_round(world, 1)
    view, ways, rng = peer(world, "p0").node.view, world.network.ways, random.Random(7)
    assert view is not None
    assert there(world, view) == {*view.ids}

    def joined(one: PeerId, other: PeerId) -> bool:
        return not (ways.is_cut(one, other) or ways.is_cut(other, one))

    sizes = set()
    pairs = [*permutations([*view.ids, BROKER], 2)]
    for _ in range(300):
        ways.cuts.clear()
        ways.cuts.update(rng.sample(pairs, rng.randrange(20)))
        heard = {p for p in view.ids if joined(p, BROKER)}
        grown: list[set[PeerId]] = []
        for first in view.ids:
            found = {first}
            for p in view.ids:
                if all(joined(p, other) or {p, other} <= heard for other in found):
                    found.add(p)
            grown.append(found)
        assert there(world, view) == max(grown, key=len)
        sizes.add(len(there(world, view)))
    assert len(sizes) > 2, sizes
