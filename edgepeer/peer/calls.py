"""The rounds that a program takes part in: one at a time, each a call that waits for its outcome."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import numpy as np

from edgepeer.coding.scheme import CodingScheme
from edgepeer.errors import BegunAnew, FellBehind, LeftFabric, NotReady, PeerError, RoundTimeout
from edgepeer.ids import Generation, PeerId
from edgepeer.peer.bell import Bell
from edgepeer.peer.coded_call import CodedCall, Gradient, Pace
from edgepeer.peer.driver import Driver
from edgepeer.peer.outcome import (
    ABORTED,
    FloatArray,
    Outcome,
    Shapes,
    as_seconds,
    check_precision,
    check_weight,
    flatten,
    of_another_kind,
)
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.topology.view import View
from edgepeer.wire.precision import Precision

__all__ = ["ROUND_TIMEOUT_S", "Calls"]

ROUND_TIMEOUT_S: Final = 600.0
_MOST_MISSED: Final = 8
_REASON_CHARS: Final = 250  # others are told no longer one
_REFUSAL_CHARS: Final = 150
_WORDS: Final = re.compile(r"[\w.-]+")
_VERDICT_S: Final = 5.0  # after a timeout: how long the root may take to say whether the round still counts


class Calls:
    """One peer's calls, and what the machine says to them."""

    _driver: Driver

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self.view: View | None = None
        """The view that this peer works in."""
        self.closed = False
        """Whether the peer is about to leave."""
        self.scheme: CodingScheme | None = None
        """How rounds are coded, if they are."""
        self._waiting: asyncio.Future[fx.RoundCommitted] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Of the last call: a round goes on, and is given up in time, where that was cancelled."""
        self._coded: CodedCall | None = None
        """The call that computes, or was cancelled in mid-round: what it has still counts."""
        self._like: CodedCall | None = None
        """The last coded call, of whatever round."""
        self._missed: deque[fx.RoundCommitted] = deque()
        self._behind = 0
        """The last of the rounds whose outcomes are lost, since the program did not ask for them; 0: none."""
        self._done: tuple[str, Generation] | None = None
        """The run and the generation of the last round whose outcome the program has had."""
        self._heard: int | None = None
        """The last plain round of whose end the program has been told, or has not wanted to be; None: it has had no
        outcome since it was in a run."""
        self._undecided = False
        """Whether its call of the round in progress has ended, and it wants to know how the round does."""
        self._refused: tuple[int, PeerId, str] | None = None
        """In which round the machine has last refused what a neighbour sent, whose that was, and why."""
        self._given_up = ""
        """Why such rounds count no more, until the program is told."""

    def run_on(self, driver: Driver) -> None:
        """The peer has started: calls go to this driver's machine."""
        self._driver = driver

    def use(self, scheme: CodingScheme | None) -> None:
        """Rounds are coded from the next view on, or no more."""
        if not hasattr(self, "_driver"):
            raise PeerError("use_scheme: this peer is in no fabric yet: enter it first, or give Peer `code` and `wait`")
        if scheme is None and self.scheme is None:
            return
        self.scheme = scheme
        self._driver.dispatch(ev.CodeWanted(scheme))

    # -- calls -------------------------------------------------------------------------------------------

    async def allreduce(
        self, value: FloatArray | Sequence[FloatArray], weight: float, timeout: float, precision: Precision
    ) -> Outcome:
        """See `Peer.allreduce`."""
        vector, shapes = flatten(value)
        check_precision(precision, vector)
        weight = check_weight(weight, vector.dtype)
        began = time.monotonic()
        with await self._call(timeout) as waiting:
            if (missed := self._next_missed()) is not None:
                return _outcome(missed, began, shapes, vector.dtype)
            self._driver.dispatch(ev.Contribute(vector, weight, precision))
            if waiting.done():
                # Nobody else is in. So that others can come, who calls on and on gives them turns.
                await asyncio.sleep(0)
            return _outcome(await waiting, began, shapes, vector.dtype)

    async def allreduce_chunks(self, gradient: Gradient, timeout: float, pace: Pace | None) -> Outcome:
        """See `Peer.allreduce_chunks`."""
        scheme = self.scheme
        if scheme is None:
            raise PeerError("this peer's rounds are not coded: give it a code, as in Peer(code='cyclic:s=1')")
        began = time.monotonic()
        call = CodedCall(self._due, scheme, gradient, self._driver.dispatch, pace, like=self._like)
        with await self._call(timeout) as waiting:
            self._like = call
            committed = self._next_missed()
            if committed is None:
                self._coded = call  # not before: one that was cancelled in mid-round has still to encode
                committed = await self._computed(call, waiting)
        seconds = time.monotonic() - began
        await call.learn(committed)
        return call.outcome(committed, seconds)

    async def _computed(self, call: CodedCall, waiting: asyncio.Future[fx.RoundCommitted]) -> fx.RoundCommitted:
        """Compute until the round is over."""
        if self.view is not None:
            call.enter(self.view, self._me, self._due)
        if waiting.done():
            return waiting.result()  # of a round that was dropped before: nothing is computed for it
        computing = asyncio.create_task(self._compute(call))
        try:
            await asyncio.wait((waiting, computing), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                computing.result()  # it only ends by an error
            return waiting.result()
        finally:
            computing.cancel()
            await asyncio.gather(computing, return_exceptions=True)

    async def _compute(self, call: CodedCall) -> None:
        """Compute chunk after chunk; who owns which may change with the view."""
        while True:
            count = self._bell.count
            if not await call.compute_next():
                await self._bell.wait(count)

    @property
    def _due(self) -> int:
        """The round in progress; 0 while the state of the run is still to come."""
        return self._driver.node.allreduce.committed + 1

    @property
    def _me(self) -> PeerId:
        return PeerId(self._driver.node.me.id)

    async def _call(self, timeout: float) -> _Call:
        """The future of this peer's next round, for as long as the program waits for it."""
        try:
            return self._begin(timeout)
        except PeerError:
            await asyncio.sleep(0)  # what is in the way may go only if a program that tries again and again gives turns
            raise

    def _begin(self, timeout: float) -> _Call:
        seconds = as_seconds(timeout)
        if self._waiting is not None or (self.view is not None and self._driver.node.allreduce.contributed):
            raise PeerError(
                "another allreduce of this peer has not ended, or was cancelled in mid-round: one at a time; if it was "
                "cancelled, try again when the others have ended the round, or come again as another Peer"
            )
        if self.closed:
            raise LeftFabric("this peer has left the fabric")
        self._tell_what_is_given_up()
        if self.view is None:
            raise NotReady("this peer is in no view yet: await ready() first")
        self._stop_timer()  # of a call that was cancelled, whose round is over
        loop = asyncio.get_running_loop()
        waiting = self._waiting = loop.create_future()
        self._timer = loop.call_later(seconds, self._time_out, seconds, waiting)
        return _Call(waiting, self._called)

    def _called(self) -> None:
        """The call has returned, or was cancelled."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.cancel() and not waiting.cancelled():
            waiting.exception()  # the program's own may have come first: what nobody hears is no error
        if self._driver.node.allreduce.contributed:
            # Cancelled in mid-round. The round goes on, and ends in time, but the array is the caller's again.
            self._driver.dispatch(ev.Abandoned())
        else:
            self._coded = None  # no view that comes before the next call is to hear of it
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell_what_is_given_up(self) -> None:
        if self._given_up:
            why, self._given_up = self._given_up, ""
            raise BegunAnew(why)

    def _next_missed(self) -> fx.RoundCommitted | None:
        """The outcome of the round that this call is of, if that was decided before the program asked for it.

        Raises:
            FellBehind: outcomes that this peer has missed are lost.
        """
        rounds = self._driver.node.allreduce
        due = rounds.committed - rounds.owed - len(self._missed) + 1
        if self._heard is not None and due > self._heard + 1:
            self._behind = max(self._behind, due - 1)  # while this peer was in no view, say
        if self._behind:
            behind, self._behind = self._behind, 0
            self._hear(behind)
            raise FellBehind(f"rounds up to {behind} were decided without this peer")
        if not self._missed or self._missed[0].round != due:
            return None  # it goes on, or was dropped: then the machine says so
        missed = self._missed.popleft()
        self._have(missed)
        return missed

    def _time_out(self, seconds: float, waiting: asyncio.Future[fx.RoundCommitted]) -> None:
        """A call has taken too long, or the round that goes on since it was cancelled."""
        if waiting.done() and not self._driver.node.allreduce.contributed:
            return
        missing = self._driver.node.allreduce.missing()
        refusal = self._refusal(self._due, missing)
        reason = f"timed out after {seconds:g} s at {self._me}, waiting for {', '.join(missing) or 'peers'}"
        reason = reason[: _REASON_CHARS - len(refusal)] + refusal
        self._driver.dispatch(ev.TimedOut(reason))
        if not waiting.done():
            error = RoundTimeout(f"{reason}; the coordinator has not said whether the round counts")
            asyncio.get_running_loop().call_later(_VERDICT_S, self._end_undecided, error, waiting)

    def _end_undecided(self, error: RoundTimeout, waiting: asyncio.Future[fx.RoundCommitted]) -> None:
        """The call ends, and its round has not. Should that count all the same, the program hears of it."""
        self._undecided = self._undecided or not waiting.done()
        self.fail(error, waiting)

    # -- what the machine says -------------------------------------------------------------------------------

    def end(self) -> None:
        """The peer has left: nobody is told of anything any more."""
        self._stop_timer()  # it would hold all of the peer for as long as the call had
        if self._driver.node.allreduce.contributed:
            self._driver.dispatch(ev.Abandoned())  # what is queued would go out of an array that is the caller's again
        self.fail(LeftFabric("this peer has left the fabric"))

    def fail(self, error: Exception, waiting: asyncio.Future[fx.RoundCommitted] | None = None) -> None:
        """The call that waits, if any, will have no outcome."""
        waiting = waiting or self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def installed(self, view: View | None) -> None:
        """The peer works in another view, or in none: the round in progress goes on there, or waits."""
        if view is None or (self.view is not None and view.beginning != self.view.beginning):
            self._missed.clear()
            self._coded, self._like, self._behind = None, None, 0
            self._refused = None  # rounds are numbered anew
        if self.view is None and view is not None and self._done is not None:
            run, generation = self._done
            if run == view.run and generation != view.generation:  # it began while this peer was out of the view
                self._give_up(f"generation {view.generation} has begun, and what was done in {generation} is given up")
        self._undecided = self._undecided and view is not None
        if view is not None and view.run:
            self._heard = None  # plain rounds are numbered on after a run, but for one
        self.view = view
        if view is not None and self._coded is not None:  # also of a call that was cancelled: what it has still counts
            asyncio.get_running_loop().call_soon(self._enter, view)

    def removed(self, effect: fx.Removed) -> None:
        """In no view any more."""
        if effect.anew and self._done is not None:
            self._give_up(effect.reason)
        self.installed(None)

    def _give_up(self, why: str) -> None:
        self._done, self._heard, self._given_up = None, None, why

    def _have(self, effect: fx.RoundCommitted) -> None:
        """The program has that outcome."""
        self._done = effect.run, effect.generation
        self._heard = None if effect.run else effect.round

    def _hear(self, number: int) -> None:
        """The program is told how that round has ended, or that it has missed it."""
        if self._heard is not None:
            self._heard = number

    def _enter(self, view: View) -> None:
        if self.view is view and self._coded is not None:
            self._coded.enter(view, self._me, self._due)

    def committed(self, effect: fx.RoundCommitted) -> None:
        if effect.mine and not self._undecided:
            self._have(effect)
        self._undecided = self._undecided and not effect.mine
        if effect.mine and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(effect)
        elif not effect.mine and self.view is not None:
            # Decided without this peer: coded, by those who were faster; or in an earlier view, which neighbours have
            # told of since this peer has their state of before.
            self._missed.append(effect)
            if len(self._missed) > _MOST_MISSED:
                self._lose_missed(effect.round)

    def _lose_missed(self, until: int) -> None:
        """The outcomes until that round can't be had any more."""
        self._missed.clear()
        self._behind = until
        self._driver.dispatch(ev.StateLost())

    def adopted(self, number: int) -> None:
        """The state after that round is in use here."""
        self._behind = 0
        while self._missed and self._missed[0].round <= number:
            self._missed.popleft()

    @property
    def missed(self) -> int:
        """How many rounds have an outcome that this peer's program has not asked for yet: its next calls return it."""
        return len(self._missed)

    def aborted(self, effect: fx.RoundAborted) -> None:
        if effect.mine:
            self._undecided = False
            if effect.cause == "run":
                self._coded = None  # what was computed beside a state that is given up is not for another one
            if effect.cause == "anew":
                self._done = self._heard = None  # the program hears of it now
            elif effect.cause not in ("left", "run"):
                self._hear(effect.round)
            reason = effect.reason
            if effect.cause == "timeout" and " was refused: " not in reason:  # whoever gave up first did not know
                reason += self._refusal(effect.round, _WORDS.findall(reason.partition("waiting for ")[2]))
            self.fail(ABORTED[effect.cause](f"round {effect.round}: {reason}"))

    def refused(self, effect: fx.Refused) -> None:
        self._refused = self._due, effect.peer, effect.reason

    def _refusal(self, number: int, awaited: Collection[str]) -> str:
        """Why that round may wait for one of these in vain, as the end of a text that says for whom it does."""
        if self._refused is None or self._refused[0] != number or self._refused[1] not in awaited:
            return ""
        _, peer, reason = self._refused
        return f"; {peer} was refused: {reason}"[:_REFUSAL_CHARS]

    def behind(self, effect: fx.Behind) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            self.fail(FellBehind(f"rounds up to {effect.committed} were decided without this peer"))
        elif waiting is None or waiting.cancelled() or not isinstance(waiting.exception(), FellBehind):
            self._lose_missed(effect.committed)
            return
        self._hear(effect.committed)  # now, or when it has its turn

    def encode_wanted(self, effect: fx.EncodeWanted) -> None:
        """Answered even if the call was cancelled: others count on what this peer said it has."""
        if self._coded is not None:
            asyncio.get_running_loop().call_soon(self._coded.encode, effect)


class _Call:
    """A program waits for its round; a context manager, made once a round, so no generator."""

    __slots__ = ("_called", "_waiting")

    def __init__(self, waiting: asyncio.Future[fx.RoundCommitted], called: Callable[[], None]) -> None:
        self._waiting = waiting
        self._called = called

    def __enter__(self) -> asyncio.Future[fx.RoundCommitted]:
        return self._waiting

    def __exit__(self, *error: object) -> None:
        self._called()


def _outcome(effect: fx.RoundCommitted, began: float, shapes: Shapes, dtype: np.dtype[Any]) -> Outcome:
    found = effect.sum
    if found.size != shapes.size:
        raise of_another_kind(effect, str(found.size), str(shapes.size))
    if found.dtype != dtype:
        raise of_another_kind(effect, f"{found.size} {found.dtype}", f"{shapes.size} {dtype}")
    return Outcome(
        round=effect.round,
        generation=str(effect.generation),
        epoch=effect.epoch,
        contributors=effect.contributors,
        exact=effect.exact,
        weight=effect.weight,
        seconds=time.monotonic() - began,
        digest=effect.digest.hex(),
        paths=effect.paths,
        phases=effect.phases,
        vector=effect.sum,
        shapes=shapes,
        precision=effect.precision,
    )
