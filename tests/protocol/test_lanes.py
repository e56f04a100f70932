"""A vector in ranges, each over a tree of its own: what one `Lane` knows is enough for it."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.headers import Address, Shape
from edgepeer.protocol.inview import Edges
from edgepeer.protocol.lane import Lane
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.streams import NOTHING, digest_of
from edgepeer.topology import tree
from edgepeer.wire.frames import Commit, Reduce, Result, pack_set, unpack_set

LIMITS = Limits(first_segment_bytes=16, smallest_segment_bytes=16)
AT = Address(7, 1)
COMMIT = Commit(decided_in=7, contributors=b"", weight=0.0, exact=True, digest=digest_of(NOTHING))


class Striped:
    """Peers 0 to n - 1, and of each a lane in every tree. Tree number k has them in an order of its own."""

    def __init__(self, orders: list[list[int]], vectors: list[np.ndarray], weights: list[float]) -> None:
        self.vectors, self.weights, self.size = vectors, weights, len(vectors)
        total = vectors[0].size
        cuts = [total * k // len(orders) for k in range(len(orders) + 1)]
        self.over = [slice(start, end) for start, end in pairwise(cuts)]
        self.rates = [Rates(LIMITS) for _ in vectors]
        self.lanes: dict[tuple[int, int], Lane] = {}
        self.links: dict[tuple[int, int, int], deque[fx.Send]] = {}
        for number, order in enumerate(orders):
            for position, peer in enumerate(order):
                above = tree.parent(position, 2)
                children = tree.children(position, 2, self.size)
                below = {name(order[c]): sum(1 << order[p] for p in tree.subtree(c, 2, self.size)) for c in children}
                edges = Edges(name(order[above]) if above is not None else None, below, 1 << peer)
                around = [*below, *((edges.parent,) if edges.parent is not None else ())]
                self.rates[peer].keep(
                    {*around, *(p for k, lane in self.lanes.items() if k[1] == peer for p in neighbours(lane.edges))}, 4
                )
                self.lanes[number, peer] = Lane(
                    edges, self.rates[peer], number=number + 1, over=self.over[number], whole=total
                )

    def go_on(self, number: int, peer: int) -> None:
        lane, rates = self.lanes[number, peer], self.rates[peer]
        own = lane.part(self.vectors[peer])
        lane.reduce(own, self.weights[peer], Shape.of(own))
        commit = COMMIT if lane.edges.parent is not None or lane.complete else None
        for send in (*lane.up(AT, rates, Shape.of(own)), *lane.down(AT, rates, commit, lambda peer: True)):
            self.links.setdefault((number, peer, int(send.peer)), deque()).append(send)

    def deliver(self, number: int, source: int, target: int) -> None:
        send = self.links[number, source, target].popleft()
        lane, frame, payload = self.lanes[number, target], send.frame, bytes(send.payload or b"")
        assert isinstance(frame, Reduce | Result)
        prefix = lane.streams[name(source)] if isinstance(frame, Reduce) else lane.source(name(source), anew=False)
        assert prefix is not None
        room = prefix.room(lane.shape_of(Shape(frame.total, frame.dtype)), frame.offset, len(payload) // 4)
        assert room is not None
        room[:] = payload
        if isinstance(frame, Reduce):
            lane.stored(name(source), frame, unpack_set(frame.contributors), len(payload), 1e-3, 1.0)
        else:
            lane.result.stored(frame.offset, len(payload) // 4)
        self.go_on(number, target)

    def total(self, peer: int) -> np.ndarray:
        """What a peer has in the end: its own sum where it is the root, else what has come down."""
        parts = []
        for number in range(len(self.over)):
            lane = self.lanes[number, peer]
            root = lane.edges.parent is None
            assert lane.complete if root else lane.result.complete
            part = lane.partial if root else lane.result.buffer
            assert part is not None
            parts.append(part)
        return np.concatenate(parts)


def name(peer: int) -> PeerId:
    return PeerId(str(peer))


def neighbours(edges: Edges) -> list[PeerId]:
    return [*edges.below, *((edges.parent,) if edges.parent is not None else ())]


def recursive(
    order: list[int], position: int, part: slice, vectors: list[np.ndarray], weights: list[float]
) -> np.ndarray:
    """The sum as it is defined: one's own part, then the children's in position order."""
    own, weight = vectors[order[position]][part], np.float32(weights[order[position]])
    sum_ = own * weight if weight else np.zeros_like(own)
    for child in tree.children(position, 2, len(order)):
        sum_ = sum_ + recursive(order, child, part, vectors, weights)
    return sum_


@given(st.data())
def test_two_trees_carry_one_vector(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 9), "peers")
    length = data.draw(st.integers(0, 60), "elements")
    orders = data.draw(st.lists(st.permutations(range(size)), min_size=1, max_size=3), "trees")
    random = np.random.default_rng(data.draw(st.integers(0, 1000), "seed"))
    vectors = [random.standard_normal(length).astype("<f4") for _ in range(size)]
    weights = [float(data.draw(st.sampled_from([0, 1, 2]))) for _ in range(size)]
    striped = Striped([list(order) for order in orders], vectors, weights)
    begun = data.draw(st.permutations([(number, peer) for number, peer in striped.lanes]), "order")
    for number, peer in begun:
        striped.go_on(number, peer)
    while waiting := sorted(link for link, queue in striped.links.items() if queue):
        striped.deliver(*waiting[data.draw(st.integers(0, len(waiting) - 1))])
    ranges = zip(orders, striped.over, strict=True)
    expected = [recursive(list(order), 0, part, vectors, weights) for order, part in ranges]
    for peer in range(size):
        assert striped.total(peer).tobytes() == np.concatenate(expected).tobytes()
    for number, order in enumerate(orders):
        root = striped.lanes[number, order[0]]
        assert root.contributors == (1 << size) - 1
        assert root.weight_sum == sum(weights)


def test_nothing_is_added_twice() -> None:
    rates = Rates(LIMITS)
    rates.keep([name(1), name(2)], 2)
    lane = Lane(Edges(None, {name(1): 0b10, name(2): 0b100}, 1), rates)
    for child in (1, 2):
        stream = lane.streams[name(child)]
        room = stream.room(Shape(2, "<f4"), 0, 2)
        assert room is not None
        frame = Reduce(
            epoch=7, round=1, offset=0, total=2, dtype="<f4", contributors=pack_set(0b10), weight=1.0,
            rate_bytes_per_s=0.0,
        )  # fmt: skip
        lane.stored(name(child), frame, 0b10, 8, 1e-3, 1.0)
    with pytest.raises(ProtocolBug, match="a contribution would count twice: 0x2"):
        lane.reduce(np.ones(2, "<f4"), 1.0, Shape(2, "<f4"))
