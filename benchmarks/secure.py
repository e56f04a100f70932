"""What it costs to be of a fleet: the same peers plain and secure, in turns in one run. Processor time over loopback;
the time of a round over links of 100 Mbit/s; what a cut link costs; the memory of a peer that waits; and what hundreds
of connections do that never show who they are, while rounds go on and a member wants to be let in."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from allreduce import measure
from broker import running_broker
from common import SINGLE_THREADED, members, positive, show, warn_if_busy, write_json

_SYSTEMS = ["edgepeer", "edgepeer-secure"]
_WORKER = Path(__file__).with_name("secure_worker.py")
_PEERS = 7
_LINK = "100mbit,5ms"
_RUDE = 400
_ADDRESSES = 100
_FLOOD_S = 6.0
_CLAIMED = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"
"""The beginning of a ClientHello of 16 kB."""
_COLUMNS = {"what": "what", "plain": "plain", "secure": "secure", "comes_to": "comes to", "target": "target"}

Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"loopback": loopback, "links": links, "cuts": cuts, "memory": memory, "half-open": half_open}
    parser.add_argument("--only", choices=sorted(parts), action="append", help="of these parts; default: all")
    parser.add_argument("--blocks", type=positive, default=8, help="turns of each; default: 8")
    parser.add_argument("--trials", type=positive, default=6, help="cut links in each turn of two; default: 6")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    arguments = parser.parse_args()
    warn_if_busy()
    rows: list[Row] = []
    for name, part in parts.items():
        if not arguments.only or name in arguments.only:
            print(f"{name} ...", file=sys.stderr)
            rows += part(arguments)
    show(f"plain and secure, {_PEERS} peers where no other number stands", _COLUMNS, [_line(row) for row in rows])
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


# -- rounds ------------------------------------------------------------------------------------------------------


def loopback(arguments: argparse.Namespace) -> list[Row]:
    """Processor time of a round, of all peers together."""
    plain, secure = measure(_SYSTEMS, _PEERS, 407_050, 20, arguments.blocks)
    return [
        _ratio("processor time of a round over loopback", plain["cpu_s"], secure["cpu_s"], 1.6),
        _ratio("a round over loopback", plain["median_s"], secure["median_s"], None),
    ]


def links(arguments: argparse.Namespace) -> list[Row]:
    """The time of a round where the network is what takes it."""
    plain, secure = measure(_SYSTEMS, _PEERS, 407_050, 10, arguments.blocks, [_LINK])
    return [_ratio(f"a round over links of {_LINK}", plain["median_s"], secure["median_s"], 1.03)]


def cuts(arguments: argparse.Namespace) -> list[Row]:
    """A round in which a link is cut."""
    found = asyncio.run(_cuts(arguments))
    plain, secure = (statistics.median(found[system]) for system in _SYSTEMS)
    row = _row("a round in which a link is cut", "s", plain, secure, comes_to=secure - plain, target=0.02)
    return [row | {"trials": len(found[_SYSTEMS[0]])}]


async def _cuts(arguments: argparse.Namespace) -> dict[str, list[float]]:
    from recovery import Bench

    from edgepeer.emulation.network import open_network

    names = [f"p{number:02}" for number in range(_PEERS)]
    found: dict[str, list[float]] = {system: [] for system in _SYSTEMS}
    own = argparse.Namespace(seed=1, elements=407_050, rounds=20)
    async with open_network(names, mode="auto") as network:
        print(f"network: {network.mode}, {network.description}", file=sys.stderr)
        with ExitStack() as stack:
            place = network.broker_address(), network.broker_prefix()
            fleet = stack.enter_context(members(names))
            plain = Bench(network, stack.enter_context(running_broker(*place)), own)
            secure = Bench(network, stack.enter_context(running_broker(*place, fleet)), own)
            secure.fleet = fleet
            for block in range(2):
                for system in _SYSTEMS[:: 1 - 2 * (block % 2)]:
                    bench = secure if system == _SYSTEMS[1] else plain
                    clean_s, took = await bench.single_cuts(_PEERS, arguments.trials)
                    found[system] += [seconds - clean_s for seconds in took]
    return found


# -- single peers ------------------------------------------------------------------------------------------------


class _Probe:
    """One such peer, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def start(cls, **options: Any) -> Iterator[_Probe]:
        command = [sys.executable, str(_WORKER), json.dumps(options)]
        with subprocess.Popen(
            command, env=os.environ | SINGLE_THREADED, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield cls(process)
            finally:
                process.kill()

    def told(self) -> dict[str, Any]:
        """The next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a peer has ended; its error stands above")
        told: dict[str, Any] = json.loads(line)
        return told

    def ask(self) -> dict[str, Any]:
        """How it stands."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.told()


def memory(arguments: argparse.Namespace) -> list[Row]:
    """Resident memory of a peer that waits among others, and has done nothing else."""
    found: dict[str, dict[str, float]] = {}
    names = [f"p{number}" for number in range(_PEERS)]
    with members(names) as fleet:
        for system, of in zip(_SYSTEMS, (None, fleet), strict=True):
            with ExitStack() as stack:
                broker = stack.enter_context(running_broker(members=of))
                options = {"broker": broker, "fleet": str(of or ""), "peers": _PEERS, "rounds": False}
                probes = [stack.enter_context(_Probe.start(name=name, **options)) for name in names]
                for probe in probes:
                    probe.told()
                time.sleep(3)
                told = [probe.ask() for probe in probes]
                found[system] = {key: max(each[key] for each in told) / 1e6 for key in ("rss", "own")}
    plain, secure = (found[system] for system in _SYSTEMS)
    return [
        _row("memory of a peer that waits", "MB", plain["rss"], secure["rss"], secure["rss"], 62.0),
        _row("of that no file's", "MB", plain["own"], secure["own"], secure["own"], None),
    ]


def half_open(arguments: argparse.Namespace) -> list[Row]:
    """Memory, rounds and the next member's way in, while as many as can be never show who they are."""
    names = ["p0", "p1", "p2", "late"]
    with members(names) as fleet, running_broker(members=fleet) as broker, ExitStack() as stack:
        options = {"broker": broker, "fleet": str(fleet), "peers": 3, "rounds": True}
        probes = [stack.enter_context(_Probe.start(name=name, **options)) for name in names[:3]]
        addresses = [probe.told()["address"] for probe in probes]
        victim = probes[0]
        time.sleep(1)
        before = victim.ask()
        found = asyncio.run(_flood(addresses[0], fleet / "late", victim))
    per_s = (found["rounds"] - before["rounds"]) / _FLOOD_S
    more = (found["rss"] - before["rss"]) / 1e6
    under = f"under {_RUDE} half-open handshakes: "
    return [
        _row(f"{under}memory more", "MB", None, more, comes_to=more, target=10.0),
        _row(f"{under}{found['dials']} members in, the slowest", "s", None, found["in_s"], found["in_s"], 1.0),
        _row(f"{under}rounds a second", "", None, per_s, per_s, None),
    ]


async def _flood(address: str, late: Path, victim: _Probe) -> dict[str, Any]:
    from edgepeer.transport.options import parse_address
    from edgepeer.transport.secure import SecureTransport
    from edgepeer.trust.identity import Identity

    where, loop = parse_address(address), asyncio.get_running_loop()
    sockets: list[socket.socket] = []

    def connect(number: int) -> socket.socket:
        source = f"127.9.{number % _ADDRESSES // 50}.{number % 50 + 1}"
        sock = socket.create_connection(where, source_address=(source, 0))
        sock.sendall(_CLAIMED if number % 2 else b"")
        sock.setblocking(False)
        return sock

    class Ear:
        """Takes no notice."""

        def received(self, *_: Any) -> None: ...

        def closed(self, reason: str) -> None: ...

    took: list[float] = []
    transport = SecureTransport(Identity.load(late))
    try:
        sockets = [connect(number) for number in range(_RUDE)]
        end = loop.time() + _FLOOD_S
        while loop.time() < end:
            for number, sock in enumerate(sockets[:]):
                with contextlib.suppress(BlockingIOError):
                    try:
                        gone = not sock.recv(1)
                    except ConnectionError:
                        gone = True
                    if gone and (number + len(took)) % 10 == 0:  # a tenth of them come again each time
                        sock.close()
                        sockets[number] = connect(number)
            began = loop.time()
            channel = await transport.dial(address, lambda _: Ear(), timeout=30)  # type: ignore[arg-type, return-value]  # no whole receiver
            took.append(loop.time() - began)
            channel.abort("enough")
            await asyncio.sleep(0.2)
        return await asyncio.to_thread(victim.ask) | {"in_s": max(took), "dials": len(took)}
    finally:
        for sock in sockets:
            sock.close()
        transport.close()


# -- the table -----------------------------------------------------------------------------------------------------


def _row(what: str, unit: str, plain: float | None, secure: float, comes_to: float, target: float | None) -> Row:
    return {"what": what, "unit": unit, "plain": plain, "secure": secure, "comes_to": comes_to, "target": target}


def _ratio(what: str, plain: float, secure: float, target: float | None) -> Row:
    return _row(what, "s", plain, secure, secure / plain, target) | {"ratio": True}


def _line(row: Row) -> dict[str, Any]:
    unit = row["unit"]

    def shown(value: float | None) -> str | None:
        if value is None:
            return None
        return f"{value * 1e3:.1f} ms" if unit == "s" else f"{value:.1f} {unit}".strip()

    comes = f"{row['comes_to']:.2f} times" if row.get("ratio") else shown(row["comes_to"])
    target = f"{row['target']:.2f} times" if row.get("ratio") and row["target"] else shown(row["target"])
    return {"what": row["what"], "plain": shown(row["plain"]), "secure": shown(row["secure"])} | {
        "comes_to": comes,
        "target": f"<= {target}" if target else None,
    }


if __name__ == "__main__":
    sys.exit(main())
