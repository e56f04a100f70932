"""What a failed link, and a killed peer, cost a round: the thesis' Tables 1 and 2 (Padrão 2020, §7.2) for the static
protocol at both of its timeouts, and the same for ft-tree, also where rounds follow each other without a pause, with
short and large vectors, and where a link fails in one direction; and what tolerance costs where nothing fails. Real
processes, a network namespace each, and links cut by firewall rules, each of which is confirmed by its drop counter."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from arena import PAUSE_S, Arena, ArenaError
from broker import running_broker
from common import counts, positive, show, warn_if_busy, write_json

from edgepeer.emulation.network import EmulatedNetwork, open_network
from edgepeer.errors import EdgepeerError
from edgepeer.topology import tree

_WARM_UP = 5
_FAULTS = ("1 fault", "2 parallel", "2 serial")
_ONE_WAY = "1 one-way"
_MOMENTS = ("pause", "mid-round")
_NO_PAUSE = "no pause"
"""Rounds follow each other at once: no link ever rests, and a cut hits any moment of them."""
_VICTIMS = ("leaf", "inner", "root")
_THESIS = {  # by timeout and peers: without faults, with one, two parallel, two serial
    0.5: {7: (0.033, 1.449, 1.495, 2.822), 15: (0.062, 1.510, 1.513, 2.890), 31: (0.091, 1.497, 1.494, 2.880)},
    1.0: {7: (0.034, 2.441, 2.473, 4.839), 15: (0.065, 2.541, 2.498, 4.860), 31: (0.093, 2.509, 2.541, 4.911)},
}
_HEADINGS = {"protocol": "protocol", "timeout_s": "timeout", "peers": "peers", "none": "no faults"} | {
    faults: faults for faults in (*_FAULTS, _ONE_WAY)
}

Row = dict[str, Any]
Link = tuple[int, int]


class Bench:
    """One run: the network, and what is measured in it."""

    def __init__(self, network: EmulatedNetwork, broker: str, arguments: argparse.Namespace) -> None:
        self._network = network
        self._broker = broker
        self._arguments = arguments
        self._random = random.Random(arguments.seed)
        self.fleet: Path | None = None
        """Directories that make peers members of one, by their names; None: they are of none."""
        self._fabrics = itertools.count(1)

    def _arena(
        self,
        peers: int,
        protocol: str,
        timeout_s: float | None,
        *,
        pause_s: float = PAUSE_S,
        elements: int | None = None,
    ) -> Any:
        return Arena.open(
            self._network,
            [_name(number) for number in range(peers)],
            broker=self._broker,
            fabric=f"recovery-{next(self._fabrics)}",
            protocol=protocol,
            static_timeout=timeout_s or 0.5,
            elements=elements or self._arguments.elements,
            pause=pause_s,
            fleet=str(self.fleet) if self.fleet is not None else "",
        )

    # -- nothing fails -----------------------------------------------------------------------------------------

    async def clean(self, peers: int) -> list[Row]:
        """Rounds without faults of all protocols, in turns, so that the ratios mean something: while the others rest,
        though what they do at rest they do."""
        protocols = ("tree", "ft-tree", "ft-tree-static")
        seconds: dict[str, list[float]] = {protocol: [] for protocol in protocols}
        sent: dict[str, list[float]] = {protocol: [] for protocol in protocols}
        used: dict[str, list[float]] = {protocol: [] for protocol in protocols}
        rounds = self._arguments.rounds
        async with AsyncExitStack() as stack:
            fleets = {p: await stack.enter_async_context(self._arena(peers, p, None)) for p in protocols}
            for block in range(self._arguments.blocks):
                for protocol in protocols[block % 3 :] + protocols[: block % 3]:
                    arena = fleets[protocol]
                    first, before = arena.last + _WARM_UP, arena.cpu_seconds()
                    arena.begin(_WARM_UP + rounds)
                    await arena.over(first + rounds)
                    used[protocol].append((arena.cpu_seconds() - before) / (_WARM_UP + rounds))
                    seconds[protocol] += [arena.seconds(n) for n in range(first + 1, first + rounds + 1)]
                    sent[protocol].append(arena.bytes_between(first, first + rounds) / rounds)
        return [
            _row(
                protocol,
                timeout_s,
                peers,
                "none",
                clean_s=statistics.median(seconds[protocol]),
                bytes_per_round=statistics.median(sent[protocol]),
                cpu_s_per_round=statistics.median(used[protocol]),
            )
            for protocol in protocols
            for timeout_s in (self._arguments.timeouts if protocol == "ft-tree-static" else [None])
        ]

    # -- links fail --------------------------------------------------------------------------------------------

    async def cuts(self, peers: int, protocol: str, timeout_s: float | None) -> list[Row]:
        """Links fail after a pause or in mid-round, stay so for some rounds, and heal."""
        ours = protocol == "ft-tree"
        repeats = self._arguments.trials if ours else min(2, self._arguments.trials)
        kinds = [(faults, when) for faults in ((*_FAULTS, _ONE_WAY) if ours else _FAULTS) for when in _MOMENTS]
        async with self._arena(peers, protocol, timeout_s) as arena:
            return await self._cut_each(arena, peers, protocol, timeout_s, kinds, repeats, self._arguments.elements)

    async def cuts_without_pause(self, peers: int, elements: int) -> list[Row]:
        """The same while rounds follow each other at once."""
        kinds = [(faults, _NO_PAUSE) for faults in (*_FAULTS, _ONE_WAY)]
        async with self._arena(peers, "ft-tree", None, pause_s=0.0, elements=elements) as arena:
            return await self._cut_each(arena, peers, "ft-tree", None, kinds, self._arguments.trials, elements)

    async def single_cuts(self, peers: int, trials: int) -> tuple[float, list[float]]:
        """One link at a time is cut in mid-round. Seconds of a round without that, and of each that has met one."""
        took: list[float] = []
        async with self._arena(peers, "ft-tree", None) as arena:
            arena.begin()
            clean_s = await self._clean_s(arena)
            while len(took) < trials:
                trial = await self._cut(arena, self._links(peers, "1 fault"), "1 fault", "mid-round", clean_s, 8)
                took += [trial[0]] if trial is not None else []
                await arena.calm(clean_s)
        return clean_s, took

    async def _cut_each(
        self,
        arena: Arena,
        peers: int,
        protocol: str,
        timeout_s: float | None,
        kinds: Iterable[tuple[str, str]],
        repeats: int,
        elements: int,
    ) -> list[Row]:
        """One row for each kind of fault and moment."""
        rows = []
        arena.begin()
        clean_s = await self._clean_s(arena)
        for faults, when in kinds:
            trials: list[tuple[float, float, int]] = []
            while len(trials) < repeats:
                later = 8 if protocol == "ft-tree" else 2
                trial = await self._cut(arena, self._links(peers, faults), faults, when, clean_s, later)
                trials += [trial] if trial is not None else []
                await arena.calm(clean_s)
            first, rest, incomplete = zip(*trials, strict=True)
            rows.append(
                _row(
                    protocol,
                    timeout_s,
                    peers,
                    faults,
                    when=when,
                    elements=elements,
                    clean_s=clean_s,
                    first_faulty_s=statistics.median(first),
                    first_faulty_worst_s=max(first),
                    later_faulty_s=statistics.median(rest),
                    incomplete=sum(incomplete),
                )
            )
            _tell(rows[-1])
        return rows

    async def _clean_s(self, arena: Arena) -> float:
        first = arena.last + _WARM_UP
        await arena.over(first + self._arguments.rounds)
        return arena.median(range(first + 1, first + self._arguments.rounds + 1))

    def _links(self, peers: int, faults: str) -> list[Link]:
        """Positions (child, parent) of the links to cut (figure 12)."""
        links = [(child, (child - 1) // 2) for child in range(1, peers)]
        if faults in ("1 fault", _ONE_WAY):
            return [self._random.choice(links)]
        if faults == "2 serial":
            child, parent = self._random.choice([link for link in links if link[1] > 0])
            return [(child, parent), (parent, (parent - 1) // 2)]
        # At one height, below different parents. (Both of the root's links would leave the static protocol no way.)
        pairs = [
            [one, other]
            for one, other in itertools.combinations(links, 2)
            if tree.depth(one[0], 2) == tree.depth(other[0], 2) and one[1] != other[1]
        ]
        return self._random.choice(pairs)

    async def _cut(
        self, arena: Arena, links: list[Link], faults: str, when: str, clean_s: float, later: int
    ) -> tuple[float, float, int] | None:
        """Seconds of the slowest round that can have met the fault at first, the median of `later` ones, and how many
        lack somebody.

        None if the cut was to come in the pause and came too late for it.
        """
        names = [(arena.view[child], arena.view[parent]) for child, parent in links]
        ways = [way for child, parent in names for way in ((child, parent), (parent, child))]
        if faults == _ONE_WAY:
            ways = [self._random.choice(ways)]
        number = arena.last + 1
        await arena.over(number)
        ended = min(part.end for part in arena.rounds[number].values())
        if when == "pause":
            await asyncio.sleep(self._random.uniform(0, 0.4) * PAUSE_S)
        else:
            pause_s = PAUSE_S if when == "mid-round" else 0.0
            await asyncio.sleep(max(0.0, ended + pause_s - time.monotonic() + self._random.uniform(0, clean_s)))
        began = time.monotonic()
        await arena.network.cut(*ways)
        cut_at = time.monotonic()
        await arena.until(lambda: bool(arena.begun_since(cut_at)))
        next_one = min(arena.begun_since(cut_at))
        await arena.over(next_one + later)
        healed = await arena.network.heal(*ways)
        dropped = [healed.get(way, 0) for way in ways]
        if faults == _ONE_WAY:
            dropped *= 2
        if not all(there + back for there, back in zip(dropped[::2], dropped[1::2], strict=True)):
            raise ArenaError(f"the cuts {ways} have dropped {dropped} packets: they took no effect")
        if when == "pause" and next_one > number + 1:
            return None
        first = min(n for n in range(number, next_one + 1) if arena.ended(n) > began)
        worst = max(arena.seconds(n) for n in range(first, next_one + 1))
        rest = range(next_one + 1, next_one + 1 + later)
        return worst, arena.median(rest), arena.incomplete(range(first, next_one + later))

    # -- peers are killed --------------------------------------------------------------------------------------

    async def kills(self, peers: int) -> list[Row]:
        """A peer is killed at any moment; how long until all others have the result of a round without it."""
        rows = []
        async with self._arena(peers, "ft-tree", None) as arena:
            arena.begin()
            clean_s = await self._clean_s(arena)
            for victim in _VICTIMS:
                took = []
                for _ in range(self._arguments.trials):
                    took.append(await self._kill(arena, self._victim(peers, victim), clean_s))
                rows.append(
                    _row(
                        "ft-tree",
                        None,
                        peers,
                        f"killed {victim}",
                        clean_s=clean_s,
                        recovered_s=statistics.median(took),
                        recovered_worst_s=max(took),
                    )
                )
                _tell(rows[-1])
        return rows

    def _victim(self, peers: int, victim: str) -> int:
        if victim == "root":
            return 0
        inner = range(1, (peers - 1) // 2)
        return self._random.choice(inner if victim == "inner" else range((peers - 1) // 2, peers))

    async def _kill(self, arena: Arena, position: int, clean_s: float) -> float:
        name, last = arena.view[position], arena.last
        await arena.over(last + 1)
        await asyncio.sleep(self._random.uniform(0, PAUSE_S + clean_s))
        at = await arena.kill(name)

        def without() -> list[int]:
            """Rounds that all others have, and that it is not in."""
            return [
                number
                for number, parts in arena.rounds.items()
                if number > last and parts.keys() >= arena.alive and name not in next(iter(parts.values())).contributors
            ]

        await arena.until(lambda: bool(without()))
        number = min(without())
        took = max(part.end for part in arena.rounds[number].values()) - at
        await arena.restart(name)
        await arena.let_in(name)
        await arena.calm(clean_s)
        return took


def main() -> int:
    arguments = _arguments()
    warn_if_busy()
    try:
        rows = asyncio.run(_measure(arguments))
    except (ArenaError, EdgepeerError) as error:
        print(error, file=sys.stderr)
        return 1
    _show(rows, arguments.elements)
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


async def _measure(arguments: argparse.Namespace) -> list[Row]:
    names = [_name(number) for number in range(max(arguments.peers))]
    rows: list[Row] = []
    async with open_network(names, mode=arguments.network) as network:
        print(f"network: {network.mode}, {network.description}", file=sys.stderr)
        with ExitStack() as stack:
            broker = stack.enter_context(running_broker(network.broker_address(), network.broker_prefix()))
            bench = Bench(network, broker, arguments)
            static: list[tuple[str, float | None]] = [("ft-tree-static", t) for t in arguments.timeouts]
            for peers in arguments.peers:
                print(f"{peers} peers ...", file=sys.stderr)
                rows += await bench.clean(peers)
                for protocol, timeout_s in [("ft-tree", None), *static]:
                    rows += await bench.cuts(peers, protocol, timeout_s)
                large = [arguments.large] if peers == min(arguments.peers) else []
                for elements in (arguments.elements, arguments.short, *large):
                    rows += await bench.cuts_without_pause(peers, elements)
                rows += await bench.kills(peers)
    return rows


def _show(rows: list[Row], elements: int) -> None:
    """The thesis' tables, and more like them."""
    kinds = sorted({(row["peers"], row["protocol"], row["timeout_s"] or 0.0) for row in rows})
    cells = {
        (r["peers"], r["protocol"], r["timeout_s"] or 0.0, r["faults"], r.get("when")): r
        for r in rows
        if r.get("when") != _NO_PAUSE
    }
    print(f"Allreduce of {elements:,} float32 after a pause of 100 ms, in seconds (the worst in brackets)")
    for title, when, key, worst in (
        ("links are cut in the pause: the next round", "pause", "first_faulty_s", "first_faulty_worst_s"),
        ("links are cut in mid-round: that round or the next", "mid-round", "first_faulty_s", "first_faulty_worst_s"),
        ("later rounds, with the links still cut", "pause", "later_faulty_s", ""),
    ):
        lines: list[Row] = []
        for kind in kinds:
            clean = cells[*kind, "none", None]
            head = {"protocol": kind[1], "timeout_s": clean["timeout_s"], "peers": kind[0]}
            line = head | {"none": _short(clean["clean_s"])}
            for faults in (*_FAULTS, _ONE_WAY):
                cell = cells.get((*kind, faults, when), {})
                line[faults] = _short(cell.get(key)) + (f" ({_short(cell[worst])})" if worst in cell else "")
            lines.append(line)
        if when == "pause" and worst:
            lines += [_of_thesis(*of) for of in itertools.product(sorted({k[0] for k in kinds}), _THESIS)]
        show(title, _HEADINGS, lines)
    lines = []
    without_pause = [row for row in rows if row.get("when") == _NO_PAUSE]
    for peers, size in sorted({(row["peers"], row["elements"]) for row in without_pause}):
        of = {row["faults"]: row for row in without_pause if (row["peers"], row["elements"]) == (peers, size)}
        line = {"peers": peers, "elements": f"{size:,}", "none": _short(of["1 fault"]["clean_s"])}
        lines.append(line | {faults: _with_worst(row, "first_faulty") for faults, row in of.items()})
    headings = {"peers": "peers", "elements": "float32", "none": "no faults"}
    faults = {faults: faults for faults in (*_FAULTS, _ONE_WAY)}
    show("ft-tree: links are cut while rounds follow each other without a pause", headings | faults, lines)
    killed = {"peers": "peers", **{victim: f"{victim} killed" for victim in _VICTIMS}}
    lines = []
    for peers in sorted({kind[0] for kind in kinds}):
        of = {victim: cells[peers, "ft-tree", 0.0, f"killed {victim}", None] for victim in _VICTIMS}
        lines.append({"peers": peers} | {victim: _with_worst(row, "recovered") for victim, row in of.items()})
    show("ft-tree: a peer is killed; from then until all others have a round without it", killed, lines)
    for text in _comparisons(rows):
        print(text)


def _with_worst(row: Row, key: str) -> str:
    return f"{_short(row[f'{key}_s'])} ({_short(row[f'{key}_worst_s'])})"


def _of_thesis(peers: int, timeout_s: float) -> Row:
    seconds = _THESIS[timeout_s].get(peers, (None,) * 4)
    head = {"protocol": "(the thesis)", "timeout_s": timeout_s, "peers": peers}
    return head | {faults: _short(s) for faults, s in zip(("none", *_FAULTS), seconds, strict=True)} | {_ONE_WAY: ""}


def _comparisons(rows: list[Row]) -> Iterator[str]:
    """What the figures come to, line by line."""

    def one(peers: int, protocol: str, faults: str, key: str, when: str | None = None) -> float | None:
        found = [
            r
            for r in rows
            if (r["peers"], r["protocol"], r["faults"], r.get("when")) == (peers, protocol, faults, when)
        ]
        return found[0].get(key) if found else None

    for peers in sorted({row["peers"] for row in rows}):
        parts = []
        clean, tree_s = (one(peers, protocol, "none", "clean_s") for protocol in ("ft-tree", "tree"))
        sent, tree_sent = (one(peers, protocol, "none", "bytes_per_round") for protocol in ("ft-tree", "tree"))
        cpu, tree_cpu = (one(peers, protocol, "none", "cpu_s_per_round") for protocol in ("ft-tree", "tree"))
        if clean and tree_s and sent and tree_sent and cpu and tree_cpu:
            ratios = f"{clean / tree_s:.2f} times tree's, {sent / tree_sent - 1:+.2%} bytes"
            parts.append(f"clean rounds {ratios}, {cpu / tree_cpu:.2f} times its processor time")
        for when in _MOMENTS:
            single = one(peers, "ft-tree", "1 fault", "first_faulty_s", when)
            if single and clean:
                parts.append(f"a link cut in {when} adds {(single - clean) * 1e3:.0f} ms")
                for faults in _FAULTS[1:]:
                    if several := one(peers, "ft-tree", faults, "first_faulty_s", when):
                        parts.append(f"{faults} {several / single:.2f} times that round")
        yield f"ft-tree, {peers} peers: {'; '.join(parts)}"


def _name(number: int) -> str:
    return f"p{number:02}"


def _row(protocol: str, timeout_s: float | None, peers: int, faults: str, **figures: Any) -> Row:
    row = {"protocol": protocol, "timeout_s": timeout_s, "peers": peers, "faults": faults}
    return row | dict.fromkeys(("clean_s", "first_faulty_s", "later_faulty_s")) | figures


def _tell(row: Row) -> None:
    print(", ".join(f"{key} {_short(value)}" for key, value in row.items() if value is not None), file=sys.stderr)


def _short(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if value > 1000 else f"{value:.3g}"
    return str(value)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=counts, default=[7, 15, 31], help="default: 7,15,31")
    parser.add_argument("--timeouts", type=_seconds, default=[0.5, 1.0], help="of ft-tree-static; default: 0.5,1")
    parser.add_argument("--elements", type=positive, default=407_050, help="float32 per vector; default: 407050")
    parser.add_argument("--short", type=positive, default=250, help="float32 per short vector; default: 250")
    parser.add_argument(
        "--large", type=positive, default=4 << 20, help="the same of the smallest fleet's large one; default: 4194304"
    )
    parser.add_argument("--rounds", type=positive, default=20, help="timed clean rounds of a fleet; default: 20")
    parser.add_argument("--blocks", type=positive, default=6, help="turns of each protocol without faults; default: 6")
    parser.add_argument("--trials", type=positive, default=5, help="of every fault, static ones 2; default: 5")
    parser.add_argument("--seed", type=int, default=1, help="of which links, which peers and when; default: 1")
    parser.add_argument("--network", choices=["auto", "namespaces", "loopback"], default="auto", help="default: auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    arguments = parser.parse_args()
    if small := [peers for peers in arguments.peers if peers < 7]:
        parser.error(f"argument --peers: {small[0]}: at least 7, to have links at consecutive heights and in parallel")
    return arguments


def _seconds(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [0.0]
    if min(values) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: seconds above 0, such as 0.5,1")
    return values


if __name__ == "__main__":
    sys.exit(main())
