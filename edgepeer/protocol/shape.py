"""Which trees the members of a view should form: order, fan-out, lanes and leaves, from what is known of the network.

The cost of a round, for a vector of V bytes in l lanes over machines i that send s_i and receive r_i bytes/s:

    lines     | each tree link carries V/l up and V/l down. A machine's line is busy for what it sends / s_i, or what it
              | receives / r_i; the line between two sites for what crosses it; the broker for what it relays
    processor | each frame costs both its ends FRAME_S, each byte BYTE_S. A machine has CORES
    way       | from the leaf that is the furthest to its root and down again, each link takes a round trip, and what a
              | segment waits for others at both ends: QUEUE segments, or the vector itself where it is not cut; on the
              | line of a leaf of all trees, which these share till the end, one of each of them
    agreement | from the holder that is the furthest to the coordinator and down again, each link takes a round trip
    one host  | what goes from member to member of one host is work of its processor, and nothing else
    broken    | what two members exchange that can't connect goes twice over the line of a third, or of several by
              | turns where they do so in several trees (tunnel.py), and takes another round trip

    seconds   = the busiest of all lines and processors + the longest way + agreement, of which in l lanes a part of
                ALONE + (1 - ALONE)/l: while the first segments of one lane are on their way, lines carry others

Segments are as large as `segment_bytes` makes them. Of 407,050 float32 at 100 Mbit/s and 10 ms this says what was
measured within 13 % (tests/protocol/test_shape.py), at 7 and 15 peers, with 1 to 15 lanes of fan-out 2. Of those, of as
many in bf16 and int8, and of 31 peers and other lines, it says what simulated fleets take within 16 %, whose processors
cost nothing; of fan-out 4 and 6 up to a quarter too little, for which a price stands.

`search` looks for the cheapest shape: it tries fan-outs, lanes and whom to make a leaf of all trees, each with orders
that keep sites together, and improves the best of them by exchanging members, as long as its work does not exceed a
bound. It is deterministic. What it finds takes at most a quarter longer than the best of all, with up to
five members.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from statistics import median
from typing import Final, TypeAlias

from edgepeer.protocol.segments import WHOLE_BELOW_S, segment_bytes
from edgepeer.protocol.tunnel import MOST_HOPS
from edgepeer.topology.tree import Trees

__all__ = ["Choice", "Machine", "Network", "Search", "Shape", "round_s", "search"]

FRAME_S: Final = 1e-4
BYTE_S: Final = 2e-10
CORES: Final = 2
QUEUE: Final = 1.5
"""Measured: at an inner peer a segment often finds one of another neighbour before it."""
ALONE: Final = 0.7
"""The part of the ways that counts however many lanes there are."""
RELAY_BYTES_PER_S: Final = 1e6
RELAY_TRIP_S: Final = 0.1
"""What a way around costs where neither end can be dialled: more than it takes, as others need the broker, too."""
SMALLEST_BYTES: Final = 16 << 10
_FANOUTS: Final = (2, 3, 4, 6, 8, 12, 16)
"""Not 1: in a chain nobody has a brother, and so nobody a way around its parent."""
_LANES: Final = (1, 2, 3, 4, 6, 8, 12, 16)
"""And as many as there are members, if that is not more: then each has exactly as much to carry as every other."""
_LANE_PRICE: Final = 0.01
"""By how much each lane more has to be better: it takes more links, and more frames at once. Fifteen peers, each the
root of a tree, take a third more of the processor than one tree does, four trees next to nothing more ..."""
_CHILD_PRICE: Final = 0.05
"""... and so does each child: what several send at once comes late of each. Seven peers, each the root of a tree of
fan-out 2, and 3: 287 and 314 ms."""
_NEAR_PRICE: Final = 0.5
"""Of shapes that cost the same, the one with shorter links."""
_SLOWER: Final = 1.3
"""Who needs so many times as long as the next one for a vector of its own may be worth being made a leaf ..."""
_CUTS: Final = 3
"""... and so many such limits are tried."""
_FEW: Final = 8
"""Among fewer, all of them are."""
_IMPROVED: Final = 8
"""Of at least so many different trees the best order is improved."""
WORK: Final = 15_000
"""Links to be looked at, for one proposal: some 40 ms of a processor ..."""
_AT_A_TIME: Final = 500
"""... and before whoever searches may do something else."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One member, as far as it is known."""

    send: float
    """Bytes/s ..."""
    receive: float
    host: str
    """Members of one host share its processor."""
    dialable: bool = True
    """Whether others can connect to it."""
    site: int = 0
    """Members of one site are near each other."""


@dataclass(frozen=True, slots=True)
class Network:
    """Members by number, and what lies between them."""

    machines: tuple[Machine, ...]
    trips: tuple[tuple[float, ...], ...]
    """Round trips, in seconds."""
    lines: dict[tuple[int, int], float]
    """What the lines from one site to another are known to carry, in bytes/s."""
    broken: frozenset[tuple[int, int]] = frozenset()
    """Pairs, either way round, that can't connect, and exchange what they have to by way of a third."""

    @property
    def typical(self) -> tuple[float, float]:
        """Median rate and round trip, for people to read."""
        trips = [self.trips[i][j] for i, j in combinations(range(len(self.machines)), 2)]
        return median(min(m.send, m.receive) for m in self.machines), median(trips) if trips else 0.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Trees over an order of members."""

    order: tuple[int, ...]
    trees: Trees

    @property
    def leaves(self) -> tuple[int, ...]:
        """Who is a leaf of all trees."""
        return self.order[self.trees.core :]


@dataclass(frozen=True, slots=True)
class Choice:
    """What may be chosen; the rest stays as it is."""

    fanout: bool
    lanes: bool


@lru_cache(maxsize=256)
def _links(trees: Trees) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Of each tree (position, its parent), parents first."""
    found = []
    for lane in range(trees.count):
        root = trees.at(0, lane)
        below = trees.subtree(root, lane)[1:]
        found.append(
            tuple((position, above) for position in below if (above := trees.parent(position, lane)) is not None)
        )
    return tuple(found)


Search: TypeAlias = Generator[None, None, Shape]
"""Looks for a shape, and rests now and then."""


class _Cost:
    """The cost of rounds of one vector over one network.

    Args:
        of: the network.
        total_bytes: of the vector.
    """

    def __init__(self, of: Network, total_bytes: int) -> None:
        self.of = of
        self.total_bytes = total_bytes
        self.work = 0
        """How many links were looked at."""
        self._rested_at = 0
        self._filled: dict[tuple[int, int], tuple[list[float], ...]] = {}
        self._broken = of.broken | {(j, i) for i, j in of.broken}
        self._usual = of.typical[0] if of.broken else 0.0

    def _fill(self, count: int, hops: int) -> tuple[list[float], ...]:
        """For each member: how long a segment waits where it is sent and where it is received, the same for a leaf of
        all trees, and frames a link."""
        found = self._filled.get((count, hops))
        if found is None:
            part = -(-self.total_bytes // count)

            def segment(rate: float) -> int:
                size = segment_bytes(part, rate, hops, smallest=SMALLEST_BYTES, unknown=SMALLEST_BYTES)
                return max(min(size, part), 1)

            def fill(rate: float, trees: int = 1) -> float:
                return min(max(QUEUE, trees) * segment(rate), trees * part) / rate

            found = self._filled[count, hops] = (
                [fill(m.send) for m in self.of.machines],
                [fill(m.receive) for m in self.of.machines],
                [fill(m.send, count) for m in self.of.machines],
                [fill(m.receive, count) for m in self.of.machines],
                [2.0 * -(-part // segment(min(m.send, m.receive))) for m in self.of.machines],
            )
        return found

    def __call__(self, order: Sequence[int], trees: Trees) -> tuple[float, float]:
        """Seconds of a round; and the sum of the round trips of all links, of the mean lane."""
        machines, trips, size = self.of.machines, self.of.trips, len(order)
        lines, broken = self.of.lines, self._broken
        links = _links(trees)
        count, hops = trees.count, max(2 * trees.height, 1)
        part = self.total_bytes / count
        sending, receiving, sending_all, receiving_all, frames = self._fill(count, hops)
        core = trees.core
        load, moved, told = [0] * size, [0] * size, [0.0] * size
        crossed: dict[tuple[int, int], int] = {}
        around: dict[tuple[int, int], int] = {}
        relayed, longest, near, agreement = 0, 0.0, 0.0, 0.0
        self.work += count * size
        holders = (size + 1) // 2
        # Thousands of links for each proposal: that is why `max` is written out here.
        for number, lane in enumerate(links):
            way, only = [0.0] * size, [0.0] * size
            for position, above in lane:
                i, j = order[position], order[above]
                moved[i] += 1
                moved[j] += 1
                each = frames[i] if frames[i] > frames[j] else frames[j]
                told[i] += each
                told[j] += each
                trip = trips[i][j]
                near += trip
                one, other = machines[i], machines[j]
                if not (one.dialable or other.dialable):
                    relayed += 2
                    trip += RELAY_TRIP_S
                if broken and (i, j) in broken:
                    pair = (min(i, j), max(i, j))
                    around[pair] = around.get(pair, 0) + 1
                    trip *= 2
                if lines and one.site != other.site:
                    crossed[one.site, other.site] = crossed.get((one.site, other.site), 0) + 1
                    crossed[other.site, one.site] = crossed.get((other.site, one.site), 0) + 1
                so_far = way[above] + trip
                only[position] = alone = only[above] + trip
                if alone > agreement and not number and position < holders:
                    agreement = alone
                if one.host != other.host:
                    load[i] += 1
                    load[j] += 1
                    sent, received = (sending, receiving) if position < core else (sending_all, receiving_all)
                    up = sent[i] if sent[i] > receiving[j] else receiving[j]
                    down = sending[j] if sending[j] > received[i] else received[i]
                    so_far += up + down
                way[position] = so_far
                if so_far > longest:
                    longest = so_far
        busiest = part * relayed / RELAY_BYTES_PER_S
        hosts: dict[str, float] = {}
        for i in range(size):
            machine = machines[i]
            seconds = told[i] * FRAME_S + 2 * moved[i] * part * BYTE_S
            hosts[machine.host] = hosts.get(machine.host, 0.0) + seconds
            loaded = load[i] * part / (machine.send if machine.send < machine.receive else machine.receive)
            if loaded > busiest:
                busiest = loaded
            if seconds > busiest:
                busiest = seconds
        busiest = max(busiest, max(hosts.values()) / CORES)
        for times in around.values():
            hops = min(MOST_HOPS, times, max(size - 2, 1))
            busiest = max(busiest, (sum(load) / size + 2 * times / hops) * part / self._usual)
        for line, times in crossed.items():
            if line in self.of.lines:
                busiest = max(busiest, times * part / self.of.lines[line])
        return busiest + (longest + agreement) * (ALONE + (1 - ALONE) / count), near / count

    @property
    def is_enough(self) -> bool:
        """Whether as much was looked at as may be at a time; then it counts anew."""
        if enough := self.work >= self._rested_at + _AT_A_TIME:
            self._rested_at = self.work
        return enough

    def score(self, shape: Shape) -> float:
        """What is to be as small as possible."""
        seconds, near = self(shape.order, shape.trees)
        price = _LANE_PRICE * (shape.trees.count - 1) + _CHILD_PRICE * max(shape.trees.fanout - 2, 0)
        return (seconds + _NEAR_PRICE * near) * (1 + price)


def round_s(of: Network, shape: Shape, total_bytes: int) -> float:
    """How long a round is expected to take, in seconds.

    Args:
        of: the network.
        shape: order and trees of its members.
        total_bytes: of the vector.
    """
    return _Cost(of, total_bytes)(shape.order, shape.trees)[0]


def search(
    of: Network, now: Shape, total_bytes: int, *, choice: Choice, heads: Sequence[int] = (), work: int = WORK
) -> Search:
    """The cheapest shape that is found, a little at a time.

    Args:
        of: the network; its machines' rates are above 0.
        now: the shape of these members as it is.
        total_bytes: of the vector.
        choice: what may be chosen besides the order.
        heads: who may stand at position 0; empty: only who does.
        work: links to be looked at; what is found first is improved as far as that goes.

    Returns:
        `now` if nothing is better.
    """
    cost, heads = _Cost(of, total_bytes), heads or now.order[:1]
    found = {now: cost.score(now)}
    for shape in _candidates(of, now, total_bytes, choice, heads):
        if shape not in found:
            found[shape] = cost.score(shape)
        if cost.is_enough:
            yield
        if cost.work > work // 2:
            break
    ranked = sorted(found, key=found.__getitem__)
    first: dict[Trees, Shape] = {}
    for shape in ranked:
        first.setdefault(shape.trees, shape)
    best, least = now, found[now]
    for shape in dict.fromkeys((*first.values(), *ranked)):
        if cost.work >= work:
            break
        upto = min(cost.work + work // _IMPROVED, work)
        improved, score = yield from _improved(shape, found[shape], cost, frozenset(heads), upto)
        if score < least:
            best, least = improved, score
    return best


def _candidates(of: Network, now: Shape, total_bytes: int, choice: Choice, heads: Sequence[int]) -> Iterator[Shape]:
    """Shapes to begin with."""
    size = len(now.order)
    fanouts = [k for k in _FANOUTS if k < max(size, 3)] if choice.fanout else [now.trees.fanout]
    # No lane is so short that it would not be worth cutting.
    most = max(total_bytes / (of.typical[0] * WHOLE_BELOW_S), 1)
    counts = sorted({*_LANES, min(size, _LANES[-1])})
    lanes = [count for count in counts if count <= min(most, size)] if choice.lanes else [now.trees.lanes]
    own = [total_bytes / min(m.send, m.receive) for m in of.machines]  # seconds, for a vector of one's own
    needs = [seconds + 2 * median(trips) for seconds, trips in zip(own, of.trips, strict=True)]
    behind = frozenset(i for i in now.order if not of.machines[i].dialable)
    leaves = {head: _last(now, needs, behind, head) for head in heads}
    for count, head, fanout in product(lanes, heads, fanouts):
        for last in leaves[head]:
            rest = [i for i in now.order if i not in last]
            if choice.lanes and count > len(rest):
                continue
            trees = Trees(size, fanout, count, len(last))
            for place in (_as_now, _by_site, _by_rate):
                yield Shape((*place(of, head, rest, trees), *(i for i in now.order if i in last)), trees)


def _last(now: Shape, needs: Sequence[float], behind: frozenset[int], head: int) -> list[frozenset[int]]:
    """Sets of members to make leaves of all trees: nobody; the slowest and furthest; and whom nobody can dial."""

    others, most = [i for i in now.order if i != head], len(now.order) // 2
    ranked = sorted(others, key=lambda i: (-needs[i], i))
    cuts = [(needs[ranked[at - 1]] / max(needs[ranked[at]], 1e-9), at) for at in range(1, min(most + 1, len(ranked)))]
    gaps = sorted((cut for cut in cuts if cut[0] >= _SLOWER or len(ranked) < _FEW), key=lambda cut: (-cut[0], cut[1]))[
        :_CUTS
    ]
    found = [frozenset[int](), *(frozenset(ranked[:at]) for _, at in gaps)]
    behind -= {head}
    if head not in now.leaves:
        found.append(frozenset(now.leaves))
    found += [each | behind for each in found]
    return [each for each in dict.fromkeys(found) if len(each) <= most]


def _as_now(of: Network, head: int, rest: list[int], trees: Trees) -> list[int]:
    return [head, *(i for i in rest if i != head)]


def _by_rate(of: Network, head: int, rest: list[int], trees: Trees) -> list[int]:
    """The fastest before the others."""
    machines = of.machines
    return [head, *sorted((i for i in rest if i != head), key=lambda i: -min(machines[i].send, machines[i].receive))]


def _by_site(of: Network, head: int, rest: list[int], trees: Trees) -> list[int]:
    """Sites one after the other, that of the head first, along the first tree: each in as few subtrees as it takes."""
    site = of.machines[head].site
    sites = {of.machines[i].site for i in rest}
    sizes = {each: sum(of.machines[i].site == each for i in rest) for each in sites}
    members = sorted(
        (i for i in rest if i != head),
        key=lambda i: (of.machines[i].site != site, -sizes[of.machines[i].site], of.machines[i].site),
    )
    order, walk = [head] * len(rest), _walk(Trees(trees.core, trees.fanout))
    for place, member in zip(walk[1:], members, strict=True):
        order[place] = member
    return order


@lru_cache(maxsize=64)
def _walk(trees: Trees) -> tuple[int, ...]:
    """The positions of a tree, each followed by those below it."""
    found, waiting = [], [0]
    while waiting:
        found.append(at := waiting.pop())
        waiting.extend(reversed(trees.children(at)))
    return tuple(found)


def _improved(
    shape: Shape, score: float, cost: _Cost, heads: frozenset[int], work: int
) -> Generator[None, None, tuple[Shape, float]]:
    """The shape with members exchanged, as long as each exchange makes it better."""
    size, going = len(shape.order), True
    while going:
        going = False
        for a, b in combinations(range(size), 2):
            order = list(shape.order)
            order[a], order[b] = order[b], order[a]
            if (a == 0 and order[0] not in heads) or cost.work >= work:
                continue
            tried = Shape(tuple(order), shape.trees)
            if (then := cost.score(tried)) < score * (1 - 1e-6):
                shape, score, going = tried, then, True
            if cost.is_enough:
                yield
    return shape, score
