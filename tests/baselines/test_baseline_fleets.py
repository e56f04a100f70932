"""Every baseline in the simulator: plain sums over whatever fleet, and standstill where a link fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from post import Post

from edgepeer.baselines import MachineMaker
from edgepeer.errors import ConfigError
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.node import Node
from edgepeer.simulation.peer import SimulatedPeer
from edgepeer.simulation.task import Workload
from edgepeer.simulation.ways import LinkModel
from edgepeer.simulation.world import World
from edgepeer.topology.view import Member
from edgepeer.wire.frames import Ping
from edgepeer.wire.protocols import PROTOCOLS, ProtocolName

BASELINES = tuple(protocol for protocol in PROTOCOLS if protocol != "ft-tree")
EQUAL = tuple(protocol for protocol in BASELINES if protocol != "ps-async")
"""Those whose peers commit the same bits."""
SMALL_SEGMENTS = Limits(smallest_segment_bytes=256, first_segment_bytes=512)


def fleet(
    protocol: ProtocolName, peers: int, *, seed: int = 1, fanout: int = 2, link: LinkModel | None = None,
    weights: tuple[float, ...] = (0.5, 1.0, 2.0, 0.0), rounds: int = 4, size: int = 100, dtype: str = "<f4",
    run: str | None = "run", compute_s: float = 0.01,
) -> World:  # fmt: skip
    world = World(
        seed=seed,
        protocol=protocol,
        fanout=fanout,
        link=link,
        limits=SMALL_SEGMENTS,
        workload=Workload(
            rounds=rounds,
            size=size,
            dtype=dtype,
            run=run,
            wait_for=peers,
            weights=weights,
            compute_s=compute_s,
        ),
    )
    for number in range(peers):
        world.add(f"p{number:02}")
    return world


def everyone(world: World, condition: Callable[[SimulatedPeer], object]) -> bool:
    """Whether a condition holds for all peers; not before they are there."""
    return bool(world.alive) and all(condition(peer) for peer in world.alive)


fleets = st.fixed_dictionaries(
    {
        "peers": st.integers(1, 16),
        "fanout": st.integers(1, 5),
        "rounds": st.integers(1, 4),
        "size": st.sampled_from([0, 1, 2, 15, 16, 17, 1000, 4999]),
        "dtype": st.sampled_from(["<f4", "<f8"]),
        "weights": st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=5).map(tuple),
        "compute_s": st.sampled_from([0.0, 0.05]),
        "link": st.builds(
            LinkModel,
            latency_s=st.sampled_from([1e-5, 1e-3, 5e-2]),
            jitter_s=st.sampled_from([0.0, 1e-2]),
            rate_bytes_per_s=st.sampled_from([1e5, 1e7, 1e9]),
        ),
        "seed": st.integers(0, 1 << 16),
    }
)


@given(st.sampled_from(EQUAL), st.sampled_from(["run", None]), fleets)
@example("ring", "run", {"peers": 16, "size": 4999, "link": LinkModel(rate_bytes_per_s=1e5)})
@example("ps-sync", "run", {"peers": 16, "size": 4999, "fanout": 1})
def test_every_peer_commits_the_plain_sum(protocol: ProtocolName, run: str | None, drawn: dict[str, Any]) -> None:
    world = fleet(protocol, run=run, **drawn)
    if world.task.run_id:
        assert world.run_rounds(limit_s=500)
        # Each end of a round was compared with the plain sum, or with a peer's that was.
        assert world.ledger.checked == world.task.rounds * len(world.alive)
    else:
        assert world.run_until(lambda: len(world.alive) > 0 and all(peer.views for peer in world.alive), 60)
        assert world.run_rounds(limit_s=500)
    for peer in world.alive:
        for outcome in peer.outcomes:
            assert outcome.exact
            assert outcome.contributors == peer.views[-1].ids
            assert outcome.sum.dtype == np.dtype(world.task.workload.dtype)


@given(fleets)
def test_ps_async_brings_every_contribution_to_every_peer_once(drawn: dict[str, Any]) -> None:
    """Each contribution has an element of its own, so the sums tell what is in them, and how often."""
    world = fleet("ps-async", **drawn | {"dtype": "<f8", "size": 1})
    names, rounds = sorted(world.peers), world.task.rounds
    size = len(names) * rounds
    for at, name in enumerate(names):
        for number in range(1, rounds + 1):
            vector = np.zeros(size)
            vector[at * rounds + number - 1] = 1.0
            world.task.brought[name, number] = vector, 1.0
    assert world.run_rounds(limit_s=500)
    for at, peer in enumerate(sorted(world.alive, key=lambda peer: peer.id)):
        assert [outcome.round for outcome in peer.outcomes] == list(range(1, rounds + 1))
        seen: Counter[int] = Counter()
        for outcome in peer.outcomes:
            there = np.flatnonzero(outcome.sum)
            assert set(outcome.sum[there]) == {1.0}
            assert outcome.weight == len(there)
            assert set(outcome.contributors) == {names[index // rounds] for index in there}
            assert at * rounds + outcome.round - 1 in there  # its own is in the answer to it
            assert not outcome.exact
            seen.update(there.tolist())
        assert set(seen.values()) == {1}
    last = max(world.alive, key=lambda peer: len(np.flatnonzero(sum(o.sum for o in peer.outcomes))))
    assert np.count_nonzero(sum(outcome.sum for outcome in last.outcomes)) == size  # who is answered last has them all


def test_ps_async_waits_for_nobody() -> None:
    world = fleet("ps-async", 5, rounds=20)
    slow = world.peers[PeerId("p03")]
    assert world.run_until(lambda: slow.done >= 2)
    slow.pause()
    assert world.run_until(lambda: all(peer.done == 20 for peer in world.alive if peer is not slow), 60)
    assert slow.done < 20
    slow.resume()
    assert world.run_rounds(limit_s=60)
    catching_up = slow.outcomes[-18:]
    assert max(len(outcome.contributors) for outcome in catching_up) == 5
    assert len({peer.outcomes[-1].digest for peer in world.alive}) > 1  # peers do not commit equal bits


@pytest.mark.parametrize("protocol", EQUAL)
def test_the_same_seed_gives_the_same_trace(protocol: ProtocolName) -> None:
    traces = set()
    for _ in range(2):
        world = fleet(protocol, 7, link=LinkModel(jitter_s=1e-2))
        assert world.run_rounds()
        traces.add(world.trace_digest)
    assert len(traces) == 1


@pytest.mark.parametrize("protocol", BASELINES)
def test_peers_that_come_before_the_first_round_are_in_and_later_ones_are_not(protocol: ProtocolName) -> None:
    world = fleet(protocol, 4, rounds=30, compute_s=0.2)
    late = world.add("a-late", delay_s=8.0)
    assert world.run_until(lambda: everyone(world, lambda peer: peer.done >= 3), 30)
    views = {peer.node.view for peer in world.alive}
    assert len(views) == 1
    assert world.run_until(lambda: late.alive, 30)
    assert world.run_until(lambda: all(peer.done >= 25 for peer in world.alive if peer is not late), 60)
    assert {peer.node.view for peer in world.alive if peer is not late} == views
    assert late.node.view is None


def test_the_view_grows_until_all_have_come() -> None:
    world = World(seed=3, protocol="ring", workload=Workload(rounds=3, wait_for=6))
    for number in range(6):
        world.add(f"p{number}", delay_s=number * 1.5)
    assert world.run_rounds(limit_s=60)
    assert len(world.alive) == 6
    assert all(outcome.contributors == tuple(f"p{n}" for n in range(6)) for p in world.alive for outcome in p.outcomes)


@pytest.mark.parametrize("protocol", ["tree", "ring", "ps-sync"])
def test_a_cut_link_stops_the_round_until_the_callers_timeout(protocol: ProtocolName) -> None:
    """That is their nature: they wait for ever, and their callers don't."""
    world = fleet(protocol, 7, rounds=40, compute_s=0.1)
    assert world.run_until(lambda: everyone(world, lambda peer: peer.done >= 2))
    one, other = world.alive[0], world.alive[1]  # neighbours in the tree, in the ring and at the server
    world.cut(one.id, other.id)
    world.cut(other.id, one.id)
    assert not world.run_until(lambda: everyone(world, lambda peer: peer.done >= 7), 10)
    stuck = {peer.id: peer.done for peer in world.alive}
    assert max(stuck.values()) - min(stuck.values()) <= 1
    assert not world.run_until(lambda: any(peer.done > stuck[peer.id] for peer in world.alive), 20)
    for peer in world.alive:
        peer.time_out()
    assert everyone(world, lambda peer: peer.aborts or peer.done == max(stuck.values()))
    # Healed, it goes on once TCP has noticed and all have given up the same round.
    world.heal(one.id, other.id)
    world.heal(other.id, one.id)
    for _ in range(5):
        if world.run_rounds(limit_s=30):
            break
        for peer in world.alive:
            peer.time_out()
    assert everyone(world, lambda peer: peer.done == 40 and len(peer.outcomes) >= 30)


@pytest.mark.parametrize("protocol", EQUAL)
@pytest.mark.parametrize("down", [(0, 1), (0, 2), (1, 2)])
def test_who_is_not_linked_as_a_round_is_given_up_hears_of_it_later(
    protocol: ProtocolName, down: tuple[int, int]
) -> None:
    post = Post(3, protocol=protocol)
    post.cut(*down)
    for one, other in (down, down[::-1]):
        post.tell(one, ev.LinkDown(PeerId(str(other)), "reset"))
    post.contribute([1.0] * 3, [1.0] * 3, [1.0] * 4)
    post.cuts.clear()
    post.pass_time(20.0)
    assert {position: [abort.cause for abort in aborts] for position, aborts in post.aborted.items()} == {
        position: ["mismatch"] for position in range(3)
    }
    post.contribute([1.0] * 3, [1.0] * 3, [1.0] * 3)
    assert post.finish(1) is not None


@pytest.mark.parametrize("protocol", EQUAL)
def test_who_is_alone_tells_nobody_that_a_round_is_given_up(protocol: ProtocolName) -> None:
    post = Post(1, protocol=protocol)
    post.machines[0].allreduce._abort("timeout", "nobody else is there")
    assert not post.machines[0].allreduce._held


@pytest.mark.parametrize("timeout_s", [0.5, 1.0])
def test_the_static_tree_pays_a_timeout_up_and_one_down_over_connections_too(timeout_s: float) -> None:
    world = World(
        seed=5, protocol="ft-tree-static", static_timeout_s=timeout_s,
        workload=Workload(rounds=12, wait_for=7, compute_s=0.0),
    )  # fmt: skip
    for number in range(7):
        world.add(f"p{number}")
    assert world.run_until(lambda: everyone(world, lambda peer: peer.done >= 3))
    world.cut(PeerId("p3"), PeerId("p1"))
    world.cut(PeerId("p1"), PeerId("p3"))
    began = world.clock.now
    assert world.run_until(lambda: everyone(world, lambda peer: peer.done >= 5), 60)
    took = world.clock.now - began
    assert 2 * timeout_s <= took <= 2 * (2 * timeout_s) + 0.1
    assert world.run_rounds(limit_s=200)
    assert all(outcome.exact for peer in world.alive for outcome in peer.outcomes)


@pytest.mark.parametrize("protocol", BASELINES)
def test_baselines_send_no_heartbeats(protocol: ProtocolName) -> None:
    world = fleet(protocol, 5, rounds=2)
    sent: list[fx.Effect] = []
    world.on_effect = lambda now, peer, effect: sent.append(effect)
    assert world.run_rounds()
    before = len(sent)
    world.run_until(lambda: False, 120)
    assert len(sent) == before
    assert not [effect for effect in sent if isinstance(effect, fx.Send) and isinstance(effect.frame, Ping)]


def test_machines_are_made_by_name() -> None:
    me = Member(id="a", incarnation=1)
    assert isinstance(MachineMaker("ft-tree")(me, now=0.0), Node)
    with pytest.raises(ConfigError, match="protocol = 'gossip': must be one of ft-tree, ft-tree-static, tree, ring"):
        MachineMaker("gossip")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="static_timeout = 0: must be more than 0"):
        MachineMaker("ft-tree-static", static_timeout_s=0)


def test_link_states_say_what_a_neighbour_is() -> None:
    roles = {}
    for protocol in BASELINES:
        world = fleet(protocol, 7)
        assert world.run_rounds()
        states = world.peers[PeerId("p01")].node.link_states()
        assert all(state.up and state.path == "direct" for state in states)
        roles[protocol] = " ".join(f"{state.peer[1:]}:{state.role}" for state in states)
    tree_links = "00:parent 03:child 04:child"
    assert roles == {
        "ft-tree-static": "00:parent 02:backup 03:child 04:child 05:backup 06:backup",
        "tree": tree_links,
        "ring": "00:other 02:other",
        "ps-sync": "00:parent",
        "ps-async": "00:other",
    }
