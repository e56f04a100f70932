"""A simulated peer whose program is a real one: `Peer`, its calls, the state of its run, in virtual time.

In the place of the simulator's own model of a program: what devices run between a job and the protocol machine. A
worker computes, packs and loads meanwhile, so that rounds, states and views come while it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import xxhash
from virtual_loop import VirtualLoop, VirtualWorker

from edgepeer.errors import (
    ContributionMismatch,
    FellBehind,
    JobError,
    LeftFabric,
    NotFinite,
    NotReady,
    OutOfStep,
    PeerError,
    ProtocolBug,
    RoundTimeout,
    WireError,
    first_error,
)
from edgepeer.ids import PeerId
from edgepeer.peer.api import Peer
from edgepeer.peer.calls import ROUND_TIMEOUT_S
from edgepeer.peer.coded_call import Gradient
from edgepeer.peer.outcome import Outcome
from edgepeer.peer.run_state import RunState
from edgepeer.peer.split_rounds import SplitRounds
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.simulation.account import Account
from edgepeer.simulation.ledger import END_BYTES, NO_SUM, end_of
from edgepeer.simulation.peer import PeerFactory, SimulatedPeer, Surroundings
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.story import Story
from edgepeer.simulation.task import chunk_vector
from edgepeer.simulation.world import World

__all__ = ["Program", "ProgrammedPeer", "ProgrammedStory"]

_NO_STATE: Final = b"-"
_IMPATIENT: Final = 4
"""One in so many calls without a run is cancelled, unless it is quick. Not if they are coded: nobody would compute for
them any more until they time out."""
_HURRY: Final = 4
"""How much longer the round of such a call may take, than it takes until the call is cancelled."""
_AGAIN_S: Final = 0.1
"""So much of all rounds."""
_LONGEST: Final = 4.0
"""Nothing takes longer than this times its mean: how soon a round must end is known from the mean."""


class ProgrammedPeer(SimulatedPeer):
    """One life of a peer, which is a `Peer`'s driver."""

    switchboard = None

    def __init__(self, around: Surroundings, peer: PeerId, incarnation: int) -> None:
        super().__init__(around, peer, incarnation)
        self.loop = VirtualLoop(around.clock, self)
        self.failure = self.loop.create_future()
        self.worker = VirtualWorker(self, self.half_s)
        self.peer = _peer_of(self)
        self.program = self._its_program()
        self._program: asyncio.Task[None] | None = None
        told = self.peer
        self._handlers |= {
            fx.EncodeWanted: told.encode_wanted,
            fx.ProvideState: told.provide_state,
            fx.StateReceived: told.state_received,
        }

    def _its_program(self) -> Program:
        if self._task.split is not None:
            return SplitProgram(self)
        return RunProgram(self) if self._task.run is not None else Program(self)

    @property
    def around(self) -> Surroundings:
        return self._around

    def half_s(self) -> float:
        """What the worker does takes twice as long."""
        return min(self._task.compute_s(), _LONGEST * self._task.workload.compute_s) / 2

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.alive = True
        self._around.living[self.id] = self
        self._around.broker.connect(self.client)
        self._around.broker.present(self.client, self.node.me)
        with self.loop.running():
            self._arm()
            self._program = self._begin(self.program.run())

    def _begin(self, work: Any) -> asyncio.Task[None]:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                if isinstance(error, BaseExceptionGroup):
                    error = first_error(error)
                raise ProtocolBug(f"the program of {self.id} ends by {type(error).__name__}: {error}") from error

        task: asyncio.Task[None] = self.loop.create_task(work)
        task.add_done_callback(ended)
        return task

    def _stop(self) -> None:
        super()._stop()
        self._around.clock.after(0.0, self.loop.end)  # perhaps it is within this loop that it ends

    def leave(self) -> None:
        if self.leaving:
            return
        self.leaving = True
        with self.loop.running():
            self._begin(self._leave())

    async def _leave(self) -> None:
        assert self._program is not None
        self._program.cancel()
        await asyncio.gather(self._program, return_exceptions=True)
        self.program.close()
        await self.peer._leave()
        if self.alive:
            self.die()
            self.left = True

    def time_out(self) -> None:
        """The call that the program is in gives up."""
        with self.loop.running():
            if (waiting := self.peer._calls._waiting) is not None:
                self.peer._calls._time_out(self.program.timeout_s, waiting)

    @property
    def done(self) -> int:
        return self.program.over

    @property
    def finished(self) -> bool:
        return self.program.rests and self.program.is_over

    # -- events in, effects out ------------------------------------------------------------------------------

    def dispatch(self, event: ev.Event) -> None:
        """As a driver."""
        self.receive(event)

    def _do(self, effects: list[fx.Effect]) -> None:
        with self.loop.running():
            super()._do(effects)

    def _do_view(self, effect: fx.ViewInstalled) -> None:
        self.views.append(effect.view)
        self.peer.view_installed(effect.view)

    def _do_removed(self, effect: fx.Removed) -> None:
        self.views.clear()
        self.peer.removed(effect)

    def _do_committed(self, effect: fx.RoundCommitted) -> None:
        self.outcomes.append(effect)
        self._around.ledger.committed(self.id, effect)
        self.peer.round_committed(effect)

    def _do_aborted(self, effect: fx.RoundAborted) -> None:
        if effect.cause in ("mismatch", "nonfinite", "timeout"):
            self.aborts.append(effect)
            self._around.ledger.aborted(self.id, self.views[-1] if self.views else None, effect)
        self.peer.round_aborted(effect)

    def _do_behind(self, effect: fx.Behind) -> None:
        self.gaps += 1
        self.peer.behind(effect)


def _peer_of(process: ProgrammedPeer) -> Peer:
    """A Peer whose driver is the simulated process: its own start would open sockets."""
    peer = Peer(peer_id=process.id)
    peer.id = process.id
    peer._driver = process  # type: ignore[assignment]
    peer._calls.run_on(process)  # type: ignore[arg-type]
    peer.fabric = SimpleNamespace(works_in=lambda view: None)  # type: ignore[assignment]
    return peer


class Program:
    """Allreduces without a run: the k-th call of a peer belongs to the k-th of every other."""

    def __init__(self, process: ProgrammedPeer) -> None:
        self._process = process
        self._peer = process.peer
        self._task = process.around.task
        self._memory: dict[tuple[int, str], ev.FloatVector] = {}
        self.rests = False
        """Whether it has nothing left to do."""
        self.calls = 0
        self.timeout_s = ROUND_TIMEOUT_S
        """Of the last call."""
        self._heard: int | None = None
        """The last round of which the program knows how it has ended; None: it has been told that it missed some, or
        has itself given up a call of which nobody has said more."""

    async def run(self) -> None:
        """On and on, also after the last round: a fleet that has begun anew may have to do it again."""
        self._peer.use_scheme(self._task.scheme)
        await self.train()

    def close(self) -> None:
        """The peer is about to leave."""

    @property
    def over(self) -> int:
        """The last round that this program will not take part in any more."""
        return max(self._peer.committed - self._peer.missed, 0)

    @property
    def is_over(self) -> bool:
        return self.over >= self._task.rounds

    async def train(self) -> None:
        while True:
            count = self._peer.bell.count
            if self._peer.view is None or self.is_over:
                await self._rest(count)
                continue
            await self._compute(lambda: None)
            number = self._peer.committed - self._peer.missed + 1
            if self._peer.view is None or number > self._task.rounds:
                continue
            impatient = self._task.scheme is None and self.calls % _IMPATIENT == _IMPATIENT - 1
            self.timeout_s = _HURRY * self._process.half_s() or ROUND_TIMEOUT_S if impatient else ROUND_TIMEOUT_S
            try:
                async with asyncio.timeout(self._process.half_s() if impatient else None):
                    outcome = await self._call(number)
            except TimeoutError:
                self._heard = None
                continue  # the call was cancelled: its round goes on, and ends in time
            except PeerError as error:
                self._hear(error)
                mine = f"timed out after {self.timeout_s:g} s at {self._process.id}"
                if isinstance(error, RoundTimeout) and not str(error).startswith(("round ", mine)):
                    raise ProtocolBug(f"{self._process.id}: what ends a call is not of it: {error}") from error
                if "has not ended" in str(error) or isinstance(error, NotReady):
                    await asyncio.sleep(_AGAIN_S)  # virtual seconds
                continue
            if outcome.round != number:
                raise ProtocolBug(f"{self._process.id}: round {outcome.round} came out where round {number} was due")
            if self._heard is not None and number != self._heard + 1:
                raise ProtocolBug(f"{self._process.id}: round {number} came out after {self._heard}, without a word")
            self._heard = number

    def _hear(self, error: PeerError) -> None:
        """Who is told only that it has left, or is in no view yet, has to hear of what is decided until it is back."""
        if isinstance(error, FellBehind):
            self._heard = None
        elif isinstance(error, ContributionMismatch | NotFinite | RoundTimeout):
            number = re.match(r"round (\d+): ", str(error))
            self._heard = int(number[1]) if number and self._heard is not None else None

    async def _rest(self, count: int) -> None:
        self.rests = True
        await self._peer.bell.wait(count)
        self.rests = False

    async def _compute(self, call: Any) -> Any:
        return await self._process.loop.run_in_executor(self._process.worker, call)

    async def _call(self, number: int) -> Outcome:
        """Take part in that round, as the peer's next call is of it."""
        self.calls += 1
        if self._task.scheme is not None:
            return await self._peer.allreduce_chunks(self._chunks(number))
        vector, weight = self._bring(number)
        try:
            outcome = await self._peer.allreduce(
                vector, weight=weight, timeout=self.timeout_s, precision=self._task.workload.precision
            )
        finally:
            if self._process.alive:  # else it was cancelled by death, and what was sent is on its way
                vector.fill(np.nan)  # it is the program's again
        return outcome

    def _bring(self, number: int) -> tuple[ev.FloatVector, float]:
        """The vector's memory is written anew for each round."""
        vector, weight = self._task.brought_by(self._process.id, number, self._task.run_id, self._process.incarnation)
        memory = self._memory.setdefault((vector.size, vector.dtype.str), np.empty_like(vector))
        memory[:] = vector
        return memory, weight

    def _chunks(self, number: int) -> Gradient:
        scheme, load = self._task.scheme, self._task.workload
        assert scheme is not None

        def compute(chunk: int) -> tuple[ev.FloatVector, float]:
            vector = chunk_vector(chunk, number, load.size, load.dtype, scheme.blocks)
            return vector[: load.size] / vector[-1], float(vector[-1])

        async def gradient(chunk: int, chunks: int) -> tuple[ev.FloatVector, float]:
            if not load.compute_s:
                return compute(chunk)  # without leaving the loop to others
            found: tuple[ev.FloatVector, float] = await self._compute(lambda: compute(chunk))
            return found

        return gradient


class RunProgram(Program):
    """The rounds of a run, as `JobRun` does them; but rounds that are dropped don't end the job. The state of the run
    is how each of its rounds has ended."""

    def __init__(self, process: ProgrammedPeer) -> None:
        super().__init__(process)
        self._state = RunState(process.peer, self._task.run_id, process.worker, pack=self._pack, load=self._load)

    @property
    def over(self) -> int:
        return max(self._state.applied, 0)

    async def run(self) -> None:
        state, task = self._state, self._task
        state.open()
        await state.in_worker(lambda: None)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(state.serve())
            self._peer.use_scheme(task.scheme)
            assert task.run is not None
            self._peer.want_run(*task.run)
            await self.train()

    def close(self) -> None:
        self._state.close()
        self._peer.want_run(None)
        self._peer.use_scheme(None)

    # -- the state, in the worker ----------------------------------------------------------------------------

    @property
    def _ends(self) -> dict[int, bytes]:
        return self._process.digests

    def _pack(self) -> bytes:
        if self._state.at == 0:
            self._ends.clear()  # a run that begins begins with whatever is here
        return b"".join(self._ends.values()) or _NO_STATE

    def _load(self, state: memoryview) -> None:
        self._take(state)
        self._process.around.ledger.adopted(self._process.id, self._ends)

    def _take(self, state: memoryview) -> None:
        blob = b"" if state == _NO_STATE else bytes(state)
        if len(blob) % END_BYTES:
            raise WireError(f"a state of {len(blob)} bytes")
        self._ends.clear()
        self._ends.update({at // END_BYTES + 1: blob[at : at + END_BYTES] for at in range(0, len(blob), END_BYTES)})

    def _apply(self, number: int, end: bytes) -> None:
        if number == 1:
            self._ends.clear()
        if len(self._ends) != number - 1:
            raise ProtocolBug(f"{self._process.id}: round {number} is applied to a state after {len(self._ends)}")
        self._ends[number] = end
        self._state.applied = number

    # -- rounds ----------------------------------------------------------------------------------------------

    async def train(self) -> None:
        state = self._state
        while True:
            count = self._peer.bell.count
            if self.is_over:
                await self._rest(count)
                continue
            await state.in_step()
            if self.is_over:
                continue
            number = state.applied + 1
            try:
                if self._task.scheme is None:
                    await state.in_worker(lambda: None)
                    if not state.is_due(number):
                        continue
                outcome = await self._call(number)
            except (FellBehind, LeftFabric, NotReady):
                continue
            except (ContributionMismatch, NotFinite, RoundTimeout) as error:
                if not str(error).startswith("round "):
                    # Nobody has said whether it counts: what is here may not be what the others have.
                    self._process.leave()
                    return
                if not str(error).startswith(f"round {number}: "):
                    raise ProtocolBug(f"{self._process.id}, where round {number} was due: {error}") from error
                await self._try(number, NO_SUM)
                continue
            if outcome.round != number:
                raise ProtocolBug(f"{self._process.id}: round {outcome.round} came out where round {number} was due")
            await self._try(number, end_of(outcome.generation, bytes.fromhex(outcome.digest)), outcome)

    async def _try(self, number: int, end: bytes, outcome: Outcome | None = None) -> None:
        def apply() -> None:
            whole = outcome is not None and (self._task.scheme, outcome.precision) == (None, "float32")
            if whole and xxhash.xxh3_128_hexdigest(outcome.vector) != outcome.digest:
                raise ProtocolBug(f"{self._process.id}: the outcome of round {number} has changed")
            self._apply(number, end)

        with contextlib.suppress(FellBehind):
            await self._state.before(number, apply)
            self._peer.bell.ring()  # who has asked for the state may have it now


class SplitProgram(RunProgram):
    """Trains its part of a divided network, by `SplitRounds`."""

    def __init__(self, process: ProgrammedPeer) -> None:
        super().__init__(process)
        assert process.split is not None
        self._app = process.split
        self._rounds = SplitRounds(process.peer, self, self._state)  # type: ignore[arg-type]

    @property
    def is_over(self) -> bool:
        return self.done

    async def train(self) -> None:
        while True:
            count = self._peer.bell.count
            if self.is_over:
                await self._rest(count)
                continue
            try:
                async for _ in self._rounds.iterations():
                    pass
            except JobError:
                self._process.leave()
                return

    # -- what SplitRounds asks of a program, in the worker ---------------------------------------------------

    @property
    def done(self) -> bool:
        return self._app.program.done

    @property
    def waiting(self) -> str:
        return self._app.program.waiting

    def contribute(self) -> ev.FloatVector:
        return self._app.contribute(self._state.applied + 1)

    def settle(self, vector: ev.FloatVector, contributors: tuple[str, ...]) -> None:
        self._app.settle(SimpleNamespace(sum=vector, contributors=contributors))  # type: ignore[arg-type]
        if self._app.lost:
            raise OutOfStep("not what the others have")
        self._apply(self._state.applied + 1, xxhash.xxh3_128_digest(vector).rjust(END_BYTES))

    def _pack(self) -> bytes:
        return struct.pack("<I", len(self._ends)) + super()._pack() + self._app.program.state()

    def _load(self, state: memoryview) -> None:
        (rounds,) = struct.unpack_from("<I", state)
        ends = max(rounds * END_BYTES, 1)
        self._take(state[4 : 4 + ends])
        self._app.load(bytes(state[4 + ends :]))


class ProgrammedStory(Story):
    """A schedule that happens to such peers."""

    def __init__(self, schedule: Schedule, account: Account | None = None, peer: PeerFactory = ProgrammedPeer) -> None:
        # What a program does after its run, it does by itself.
        super().__init__(replace(schedule, after=0), account=account, peer=peer)

    def tell(self) -> World:
        try:
            return super().tell()
        finally:
            for peer in self.world.peers.values():
                assert isinstance(peer, ProgrammedPeer)
                peer.loop.end()
