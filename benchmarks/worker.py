"""One rank of one system under measurement: `python worker.py SYSTEM CONTROL_SOCKET RANK PEERS ELEMENTS OPTIONS`.

The worker holds a connection to the benchmark (one JSON document per line each way) and is blocked in it whenever
its system is not being measured, so that an idle system leaves the cores to the one whose turn it is.
Commands: `{"start": [address of every rank]}`, `{"prepare": round}`, `{"go": round}`, `{"check": round}`,
`{"sample": 1}` and `{"sample": 0}` (what used the processor's time in between), and `{"stop": 0}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import uvloop
from bare_lanes import BareLanes
from bare_tree import BareTree
from fleet import rank_name
from numpy.typing import NDArray
from sampling import Sampling

if TYPE_CHECKING:
    from edgepeer.protocol.machine import ProtocolName
    from edgepeer.wire.precision import Precision

Vector = NDArray[np.float32]
_MATCHMAKING_S = 5.0
"""A group of all peers begins at once; until then this is how long one is looked for."""
_DEADLINE_S = 60.0


class System(Protocol):
    """What a worker needs of a system. Synchronous libraries just never suspend."""

    rank: int

    async def address(self) -> Any:
        """What the other ranks need to know of this one."""

    async def start(self, addresses: list[Any]) -> None:
        """Every rank is there: connect."""

    async def prepare(self, vector: Vector) -> None:
        """Not timed: put this round's input where the system wants it."""

    async def allreduce(self, vector: Vector) -> Vector:
        """Timed. Returns the sum; it need not outlive the next call."""

    async def stop(self) -> None: ...


class Bare:
    def __init__(self, rank: int, peers: int, elements: int, options: dict[str, Any]) -> None:
        self.rank = rank
        self._tree = BareTree(rank, peers, elements, options["address"])
        self.allreduce = self._tree.allreduce
        self.address = self._tree.listen
        self.start = self._tree.connect
        self.stop = self._tree.close

    async def prepare(self, vector: Vector) -> None:
        pass


class Lanes:
    """With the transport's own sockets and receive windows: what it leaves of the network's time is the protocol's."""

    def __init__(self, rank: int, peers: int, elements: int, options: dict[str, Any]) -> None:
        from edgepeer.transport.options import tune
        from edgepeer.transport.window import ReceiveWindows

        self.rank = rank
        self._lanes = BareLanes(
            rank,
            peers,
            elements,
            options["address"],
            lanes=min(options["lanes"], peers),
            segment_bytes=options["segment_bytes"],
            tune=tune,
            windows=ReceiveWindows(),
        )
        self.allreduce = self._lanes.allreduce
        self.address = self._lanes.listen
        self.start = self._lanes.connect
        self.stop = self._lanes.close

    async def prepare(self, vector: Vector) -> None:
        pass


class Gloo:
    def __init__(self, rank: int, peers: int, elements: int, options: dict[str, Any]) -> None:
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        self.rank = rank
        self._peers, self._store = peers, options["store"]
        self._distributed = torch.distributed
        self._result = np.empty(elements, np.float32)
        self._tensor = torch.from_numpy(self._result)

    async def address(self) -> None:
        return None

    async def start(self, addresses: list[Any]) -> None:
        self._distributed.init_process_group(
            "gloo", init_method=f"file://{self._store}", rank=self.rank, world_size=self._peers
        )

    async def prepare(self, vector: Vector) -> None:
        self._result[:] = vector  # all_reduce works in place

    async def allreduce(self, vector: Vector) -> Vector:
        self._distributed.all_reduce(self._tensor)
        return self._result

    async def stop(self) -> None:
        self._distributed.destroy_process_group()


class Mpi:
    def __init__(self, rank: int, peers: int, elements: int, options: dict[str, Any]) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.rank = MPI.COMM_WORLD.rank
        if MPI.COMM_WORLD.size != peers:
            raise SystemExit(
                f"mpi4py sees {MPI.COMM_WORLD.size} ranks, mpirun started {peers}: "
                "mpirun and the libmpi that mpi4py loads are of two installations"
            )
        self._result = np.empty(elements, np.float32)

    async def address(self) -> None:
        return None

    async def start(self, addresses: list[Any]) -> None:
        pass

    async def prepare(self, vector: Vector) -> None:
        pass

    async def allreduce(self, vector: Vector) -> Vector:
        self._mpi.COMM_WORLD.Allreduce(vector, self._result)
        return self._result

    async def stop(self) -> None:
        self._mpi.Finalize()


class Hivemind:
    """Its averager: who is of a group is agreed anew for each round. Its average times the peers is the sum, and since
    that is a whole number, what the average was rounded by is taken off again."""

    def __init__(self, rank: int, peers: int, elements: int, options: dict[str, Any]) -> None:
        import hivemind
        import torch

        torch.set_num_threads(1)
        self.rank = rank
        self._peers, self._hivemind = peers, hivemind
        self._tensor = torch.zeros(elements)
        self._listen = f"/ip4/{options['address']}/tcp/0"
        self._first = hivemind.DHT(host_maddrs=[self._listen], start=True) if rank == 0 else None

    async def address(self) -> list[str]:
        return [str(each) for each in self._first.get_visible_maddrs()] if self._first is not None else []

    async def start(self, addresses: list[Any]) -> None:
        hivemind = self._hivemind
        self._dht = self._first or hivemind.DHT(host_maddrs=[self._listen], initial_peers=addresses[0], start=True)
        self._averager = hivemind.DecentralizedAverager(
            [self._tensor],
            self._dht,
            start=True,
            prefix="benchmark",
            target_group_size=self._peers,
            min_group_size=self._peers,
            min_matchmaking_time=_MATCHMAKING_S,
            request_timeout=_MATCHMAKING_S / 2,
        )

    async def prepare(self, vector: Vector) -> None:
        with self._averager.get_tensors() as (tensor,):
            tensor.numpy()[:] = vector

    async def allreduce(self, vector: Vector) -> Vector:
        if len(self._averager.step(timeout=_DEADLINE_S)) != self._peers:
            raise SystemExit("a group without all peers")
        with self._averager.get_tensors() as (tensor,):
            return np.rint(tensor.numpy() * np.float32(self._peers))

    async def stop(self) -> None:
        self._averager.shutdown()
        self._dht.shutdown()


class Edgepeer:
    """The public interface, with nothing switched off."""

    protocol: ProtocolName = "ft-tree"
    precision: Precision = "float32"
    lanes: int | Literal["auto"] = "auto"

    def __init__(self, rank: int, peers: int, elements: int, options: dict[str, Any]) -> None:
        self.rank = rank
        self._peers = peers
        self._options = options
        self._stack = AsyncExitStack()
        self._waited = 0

    async def address(self) -> None:
        return None  # peers find each other over MQTT

    async def start(self, addresses: list[Any]) -> None:
        import edgepeer
        from edgepeer.baselines import MachineMaker

        peer = edgepeer.Peer(
            listen=f"{self._options['address']}:0",
            insecure=True,  # in network namespaces of our own
            machine=MachineMaker(self.protocol),
            lanes=self.lanes,
            **self.belongs(),
        )
        self._peer = await self._stack.enter_async_context(peer)
        await self._peer.ready(peers=self._peers)

    def belongs(self) -> dict[str, Any]:
        """Which fabric the peer is of, and where that meets."""
        fabric = f"{self._options['fabric']}-{self.protocol}-{self.precision}-{self.lanes}"
        return {"broker": self._options["broker"], "fabric": fabric}

    async def prepare(self, vector: Vector) -> None:
        """Where other systems had the processor for long, a peer may have been taken for dead: it is to be in again."""
        view = self._peer.view
        if view is None or view.size < self._peers:
            await self._peer.ready(peers=self._peers)
            self._waited += 1
            said = f"rank {self.rank}: not all were in the view before a round; waited till they were ({self._waited})"
            print(said, file=sys.stderr, flush=True)

    async def allreduce(self, vector: Vector) -> Vector:
        outcome = await self._peer.allreduce(vector, precision=self.precision)
        if outcome.precision != self.precision:
            raise SystemExit(f"asked for {self.precision}, the sum is of {outcome.precision}")
        if len(outcome.contributors) != self._peers:
            raise SystemExit(f"{len(outcome.contributors)} of {self._peers} peers are in the sum")
        result: Vector = outcome.sum
        return result

    async def stop(self) -> None:
        await self._stack.aclose()


class Tree(Edgepeer):
    """The same without any tolerance."""

    protocol: ProtocolName = "tree"


class EdgepeerBf16(Edgepeer):
    """In half the bytes."""

    precision = "bf16"


class EdgepeerInt8(Edgepeer):
    """In a quarter of the bytes."""

    precision = "int8"


class EdgepeerOneLane(Edgepeer):
    """Over a single tree, whatever the links are."""

    lanes: int | Literal["auto"] = 1


class EdgepeerSecure(Edgepeer):
    """Between members of a fleet: who it is is proven, and all that is said is sealed."""

    def belongs(self) -> dict[str, Any]:
        from edgepeer.trust.identity import Identity

        trust = Identity.load(Path(self._options["fleet"]) / rank_name(self.rank))
        return {"broker": self._options["its broker"], "fabric": trust.holder.fabric, "trust": trust}


SYSTEMS: dict[str, Any] = {
    "bare": Bare,
    "edgepeer": Edgepeer,
    "edgepeer-bf16": EdgepeerBf16,
    "edgepeer-int8": EdgepeerInt8,
    "edgepeer-lane": EdgepeerOneLane,
    "edgepeer-secure": EdgepeerSecure,
    "gloo": Gloo,
    "hivemind": Hivemind,
    "lanes": Lanes,
    "mpi": Mpi,
    "tree": Tree,
}


class Input:
    """Small whole numbers, other ones for every rank and round: their float32 sums are exact in any order.

    Where a system rounds, each of the partial sums of one depth of the tree is off by a share of itself (bf16) or of
    its largest number (int8) at most, and together they are no more than the sum.
    """

    def __init__(self, rank: int, peers: int, elements: int, precision: Precision) -> None:
        self._precision = precision
        self._pattern = (np.arange(elements) % 1021).astype(np.float32)
        self._rank, self._peers = rank, peers
        self.vector = np.empty(elements, np.float32)

    def fill(self, round_: int) -> None:
        np.add(self._pattern, np.float32(self._rank + round_ % 1000), out=self.vector)

    def mistakes(self, result: Vector, round_: int) -> int:
        n = self._peers
        expected = self._pattern * np.float32(n) + np.float32(n * (n - 1) // 2 + n * (round_ % 1000))
        if self._precision == "float32":
            return int(np.count_nonzero(result != expected))
        share = expected / 2**8 if self._precision == "bf16" else expected.max() / 253.9
        return int(np.count_nonzero(np.abs(result - expected) > 1.1 * n.bit_length() * share))


async def serve(system: System, control: str, peers: int, elements: int) -> None:
    reader, writer = await asyncio.open_unix_connection(control, limit=1 << 20)

    def reply(**document: object) -> None:
        writer.write(json.dumps(document).encode() + b"\n")

    data = Input(system.rank, peers, elements, getattr(system, "precision", "float32"))
    result, sampling = data.vector, Sampling()
    reply(rank=system.rank, pid=os.getpid(), address=await system.address(), network=os.readlink("/proc/self/ns/net"))
    while line := await reader.readline():
        ((command, argument),) = json.loads(line).items()
        if command == "go":
            begin = time.perf_counter()
            result = await system.allreduce(data.vector)
            reply(seconds=time.perf_counter() - begin)
        elif command == "prepare":
            data.fill(argument)
            await system.prepare(data.vector)
            reply()
        elif command == "check":
            reply(mistakes=data.mistakes(result, argument))
        elif command == "sample" and argument:
            sampling.__enter__()
            reply()
        elif command == "sample":
            sampling.__exit__(None, None, None)
            reply(met=[[*which, times] for which, times in sampling.met.items()])
        elif command == "start":
            await system.start(argument)
            reply()
        else:
            break
    await system.stop()


def main() -> None:
    name, control, rank, peers, elements, options = sys.argv[1:]
    system = SYSTEMS[name](int(rank), int(peers), int(elements), json.loads(options))
    uvloop.run(serve(system, control, int(peers), int(elements)))


if __name__ == "__main__":
    main()
