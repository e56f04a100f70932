"""The rounds of a split program over a peer: what it brings is added up along the tree, and what comes out it takes.

    program.contribute()  ->  Peer.allreduce  ->  program.settle()          one after the other, until it is done

Where the root may close rounds without those who are slow, they run as coded ones: each slot's chunk is its owner's
vector. Who owns several, for others have died, brings its vector once, and nothing for the rest.

What the program computes, it computes in the worker's thread; the event loop goes on meanwhile. Who falls behind, or
finds that it has gone on from something else than the others, takes a neighbour's state (`RunState`) and follows; its
blocks of weights come from the others' in the next rounds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ContributionMismatch, FellBehind, JobError, LeftFabric, NotReady, OutOfStep, RoundTimeout
from edgepeer.peer.api import Peer
from edgepeer.peer.coded_call import Gradient
from edgepeer.peer.outcome import Outcome
from edgepeer.peer.run_state import RunState
from edgepeer.protocol.effects import Phases
from edgepeer.topology.view import View
from edgepeer.training.split.program import Ended, Program

__all__ = ["Iteration", "SplitRounds"]

_log = logging.getLogger(__name__)
Array = NDArray[Any]
WAIT_S: Final = 0.5
"""From one look at who is there to the next, as long as too few are."""
_NO_TIME: Final = Phases()


@dataclass(frozen=True, kw_only=True, slots=True)
class Iteration:
    """An iteration that is over: what came of it, and how long it took."""

    ended: Ended
    outcome: Outcome
    """Of its last round; but `round` is the iteration, and the times are those of all its rounds together."""
    seconds: float
    """From the end of the one before."""
    compute_seconds: float


class SplitRounds:
    """Of one program at one peer.

    Args:
        state: what neighbours are given, and whoever has fallen behind takes.
        coded: whether the peer's rounds are.
        rest: awaited after each contribution has been computed, with when that began: emulates a slower device.
        failed: told of rounds that had no result for this peer.
        waits: told why nothing goes on, when that changes; of an empty text when it does again.
        ended: told of each iteration that is over, in the worker, before the state counts as that after it.
        over: whether no round is left to be done, by what is in the state; so that all peers say the same.
    """

    def __init__(
        self,
        peer: Peer,
        program: Program,
        state: RunState,
        *,
        coded: bool = False,
        rest: Callable[[float, View], Awaitable[None]] | None = None,
        failed: Callable[[int, Exception], None] = lambda number, error: None,
        waits: Callable[[str], None] = lambda reason: None,
        ended: Callable[[Ended], None] = lambda ended: None,
        over: Callable[[], bool] | None = None,
    ) -> None:
        self._peer = peer
        self._program = program
        self._state = state
        self._coded = coded
        self._rest = rest
        self._failed = failed
        self._tell_why = waits
        self._tell_end = ended
        self._over = over if over is not None else lambda: program.done
        self._started = time.monotonic()
        self._computed = 0.0
        self._reduced = 0.0
        self._phases = _NO_TIME
        self._waits = ""

    async def iterations(self) -> AsyncIterator[Iteration]:
        """All of them, as they end.

        Raises:
            JobError: the run can't go on.
            LeftFabric: the peer has left, and comes back no more.
            Undecodable: too much was wrong or missing, as often as the program has patience.
        """
        program, state = self._program, self._state
        first = True
        while not self._over():
            view = await state.in_step()
            if self._over():
                return
            if first:
                first, self._started = False, time.monotonic()
            number = state.applied + 1
            try:
                if self._coded:
                    outcome = await self._peer.allreduce_chunks(self._chunks(view, number))
                else:
                    vector = await self._compute(view, number)
                    if not state.is_due(number):
                        continue  # out of the view and in again meanwhile, with the others' state
                    outcome = await self._peer.allreduce(vector)
                if outcome.round != number:
                    raise JobError(f"round {outcome.round} came out where round {number} was due")
                ended = await self._settle(number, outcome)
            except (FellBehind, LeftFabric, NotReady) as error:
                self._failed(number, error)
                continue
            except (ContributionMismatch, RoundTimeout) as error:
                self._failed(number, error)
                state.given_up(number)
                raise JobError(str(error)) from error
            self._peer.bell.ring()
            if program.waiting != self._waits:
                self._waits = program.waiting
                self._tell_why(self._waits)
                if self._waits:
                    _log.warning("%s", self._waits)
            if self._waits:
                await asyncio.sleep(WAIT_S)  # rounds that only ask who is there need not follow each other closely
            if ended is not None:
                yield self._iteration(ended, outcome)

    async def _compute(self, view: View, number: int) -> Array:
        began = time.monotonic()
        vector = await self._state.before(number, self._program.contribute)
        if self._rest is not None:
            await self._rest(began, view)
        self._computed += time.monotonic() - began
        return vector

    def _chunks(self, view: View, number: int) -> Gradient:
        """What this peer brings to a round: its vector in the chunk that it is asked for first."""
        brought: Array | None = None

        async def chunk(which: int, chunks: int) -> tuple[Array, float]:
            nonlocal brought
            if brought is not None:
                return np.zeros_like(brought), 0.0
            brought = await self._compute(view, number)
            return brought, 1.0

        return chunk

    async def _settle(self, number: int, outcome: Outcome) -> Ended | None:
        program, state = self._program, self._state
        contributors = tuple(map(str, outcome.contributors))

        def settle() -> Ended | None:
            ended = program.settle(outcome.vector, contributors)
            if ended is not None:
                self._tell_end(ended)
            state.applied = number  # in this thread: nobody is to be given a state with another's number
            return ended

        began = time.monotonic()
        try:
            return await state.take(number, settle)
        except OutOfStep as error:
            _log.warning("reseeded: %s", error)
            state.lost()
            return None
        finally:
            self._computed += time.monotonic() - began
            self._reduced += outcome.seconds
            self._phases = _together(self._phases, outcome.phases)

    def _iteration(self, ended: Ended, last: Outcome) -> Iteration:
        now = time.monotonic()
        outcome = dataclasses.replace(last, round=ended.iteration, seconds=self._reduced, phases=self._phases)
        found = Iteration(ended=ended, outcome=outcome, seconds=now - self._started, compute_seconds=self._computed)
        self._started, self._computed, self._reduced, self._phases = now, 0.0, 0.0, _NO_TIME
        return found


def _together(one: Phases, other: Phases) -> Phases:
    return Phases(*(a + b for a, b in zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True)))
