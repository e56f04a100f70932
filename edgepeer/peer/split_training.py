"""Split training for a program with a network and data of its own: one call, that all peers make alike."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from edgepeer.errors import ConfigError, JobError
from edgepeer.peer.api import Peer
from edgepeer.peer.run_state import RunState
from edgepeer.peer.split_rounds import SplitRounds
from edgepeer.peer.tasks import task_group
from edgepeer.peer.worker import Worker
from edgepeer.training.split.counts import Counts
from edgepeer.training.split.faults import ErrorInjector, Injected, PlannedError, SoftErrors
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
from edgepeer.training.split.program import Program
from edgepeer.training.trainer import Evaluation

__all__ = ["SplitOutcome", "train_split"]

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SplitOutcome:
    """What split training comes to at one peer."""

    node: int | None
    """Which of the split's nodes this peer was at the end; None: a spare."""
    cell: bytes | None = field(repr=False)
    """Its blocks, for `edgepeer.training.split.assemble`; None: it has none."""
    held_bytes: int
    """What the blocks take in memory."""
    losses: tuple[float, ...]
    """Mean loss of the batch in each iteration that this peer has seen, before its update."""
    evaluation: Evaluation | None
    """Of the held-out data at the end; None where there were none."""
    counts: Counts
    """What was wrong in the whole fleet, and what became of it."""
    soft_errors: tuple[Injected, ...]
    """Those that this peer was told to make."""
    digest: str
    """Of what all peers have in common: the same at all of them."""


_LEFT: Final[WeakKeyDictionary[Peer, set[str]]] = WeakKeyDictionary()
"""Runs that peers have been in, to the end or not: they count as having what is gone with the call."""


async def train_split(
    peer: Peer,
    network: Network,
    split: str,
    batches: Callable[[int], tuple[Array, Array]],
    *,
    iterations: int,
    peers: int = 0,
    test: tuple[Array, Array] | None = None,
    evaluate_every: int = 0,
    scrub_every: int = 10,
    guarantee: str = "adversarial",
    soft_errors: SoftErrors | None = None,
    faults: Sequence[PlannedError] = (),
    on_iteration: Callable[[int, float], None] | None = None,
    name: str = "",
) -> SplitOutcome:
    """Train a dense network that is divided over the peers, each of which holds its blocks of weights and no others.

    All peers call it with the same network, split, batches and numbers. A peer that comes later, or again, takes the
    place of one that is gone; peers beyond the split's nodes are spares. To be awaited by one call of a peer at a time,
    and not together with `allreduce`. Whoever has ended answers no more: who comes after all have waits, as for others
    that are yet to come; put a limit to that with `asyncio.timeout`. Whose call was cancelled, or has raised, after the
    run has begun leaves, and comes again as another `Peer`, which may have the same id: until it has left, the others
    wait for it, and its last round goes on, so that `allreduce` is refused too.

    Args:
        network: what is trained, and how.
        split: how it is divided, such as "codenet:m=5,n=4,t=1" (`edgepeer.training.split.named`).
        batches: x and y of an iteration, from 0 on, as `Network.batch` takes them; the same at all peers.
        iterations: how many.
        peers: so many must be there before the first; 0: as many as the split has nodes.
        test: x and y that are held out, for `evaluate_every` and the end.
        scrub_every: iterations from one look at all weights, and checkpoint, to the next; 0: only at the end.
        guarantee: adversarial: correct whatever errors there are; generic: more of those that don't conspire.
        soft_errors, faults: make errors on purpose, by chance at this peer, or at stated times at whoever holds a node.
        on_iteration: told the number of each iteration that is over, and its loss.
        name: tells this run from an earlier one of the same peers that was alike in all else.

    Raises:
        ConfigError: the network can't be divided so, or a number makes no sense.
        JobError: the run can't go on; or this peer has been in one that was alike, and of the same name.
        Undecodable: too much was wrong or missing, again and again.
        LeftFabric: the peer was closed meanwhile.
    """
    if guarantee not in ("adversarial", "generic"):
        raise ConfigError(f"guarantee = {guarantee!r}: must be adversarial or generic")
    if not isinstance(split, str):
        raise ConfigError(f"split = {split!r}: must be text, such as 'codenet:m=2,n=2,t=1'")
    for number, value in (("iterations", iterations), ("peers", peers)):
        if not isinstance(value, int) or value < 0:
            raise ConfigError(f"{number} = {value!r}: must be a whole number, 0 or more")
    if not (soft_errors is None or isinstance(soft_errors, SoftErrors)):
        raise ConfigError(f"soft_errors = {soft_errors!r}: must be SoftErrors; parse_soft_errors makes them of text")
    divided = parse_split(split, network.dtype, guarantee)  # type: ignore[arg-type]  # looked at above
    if 0 < peers < divided.nodes:
        raise ConfigError(f"peers = {peers}: split {split} has {divided.nodes} nodes and takes as many peers or more")
    for fault in faults:
        if not isinstance(fault, PlannedError):
            raise ConfigError(f"faults: {fault!r} must be a PlannedError; parse_flip makes one of text")
        if fault.node >= divided.nodes or fault.iteration >= iterations:
            raise ConfigError(
                f"faults: {fault} never happens: nodes are 0 to {divided.nodes - 1}, iterations 0 to {iterations - 1}"
            )
    program = Program(
        peer.id,
        network,
        divided,
        batches,
        iterations=iterations,
        test=test,
        evaluate_every=evaluate_every,
        checkpoint_every=scrub_every,
        scrub_every=scrub_every,
        injector=ErrorInjector(soft_errors, faults, seed=zlib.crc32(peer.id.encode())),
    )
    # Peers that differ in any of this are of different runs, and would wait for each other.
    about = f"{network} {split} {guarantee} {iterations} {evaluate_every} {scrub_every} {test is None} {name}"
    run = f"split-{hashlib.blake2b(about.encode(), digest_size=8).hexdigest()}"
    left = _LEFT.setdefault(peer, set())
    if run in left:
        raise JobError(
            "this peer has been in this run: "
            "give the next one a name of its own, name=..., or come again as another Peer"
        )
    losses: list[float] = []
    evaluation: Evaluation | None = None
    async with Worker() as worker:
        state = RunState(peer, run, worker, pack=program.state, load=program.load_state)
        state.open()
        try:
            async with task_group() as tasks:
                serving = tasks.create_task(state.serve())
                peer.want_run(run, peers or divided.nodes)
                async for iteration in SplitRounds(peer, program, state).iterations():
                    losses.append(iteration.ended.loss)
                    evaluation = iteration.ended.evaluation or evaluation
                    if on_iteration is not None:
                        on_iteration(iteration.ended.iteration, iteration.ended.loss)
                serving.cancel()
        finally:
            state.close()
            peer.want_run(None)
            if program.done or (peer.view is not None and peer.view.run == run):
                left.add(run)
    saved = program.saved
    return SplitOutcome(
        node=program.node,
        cell=None if saved is None else saved[2],
        held_bytes=program.held_bytes,
        losses=tuple(losses),
        evaluation=evaluation,
        counts=program.counts,
        soft_errors=tuple(program.injector.record),
        digest=program.digest(),
    )
