"""The state of a run at one device: which round it is of, given to neighbours that ask, and taken from one.

What a state is, its owner knows: how to pack it, and how to put another's to use. Both block, and belong into the
worker's thread, which does one thing at a time: so no round can come between a state and its number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from edgepeer.errors import FellBehind, JobError, LeftFabric, WireError
from edgepeer.ids import PeerId
from edgepeer.peer.api import Peer
from edgepeer.topology.view import View
from edgepeer.training.models import first_line

__all__ = ["RunState"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_NONE: Final = -1
_ASKED: Final = 64


class RunState:
    """Of one run at one peer.

    Args:
        run: its name.
        pack: the state as bytes.
        load: puts a state to use; raises WireError if it is none of this run.
        part: gives a peer what it asks for by name, if there are parts that whoever asks may have.
    """

    def __init__(
        self,
        peer: Peer,
        run: str,
        worker: Executor,
        *,
        pack: Callable[[], bytes],
        load: Callable[[memoryview], None],
        part: Callable[[PeerId, str], None] | None = None,
    ) -> None:
        self.applied = _NONE
        """The last round in the state; -1 before there is one that counts."""
        self._peer = peer
        self._run = run
        self._worker = worker
        self._pack = pack
        self._put_to_use = load
        self._give_part = part
        self._incoming: tuple[int, memoryview] | None = None
        self._wanted: dict[PeerId, int] = {}
        self._asked: dict[PeerId, str] = {}
        """Who is in no view, and has asked for it by which name."""
        self._packed: tuple[int, bytes | memoryview] | None = None
        self._fresh: int | None = None
        """The last round in a neighbour's state, from when the worker has put it to use until the peer knows."""
        self.taken = 0
        """How many states of neighbours have been put to use ..."""
        self._stepped = 0
        """... when this peer was in step the last time."""

    def open(self) -> None:
        """Hear of who needs the state, and of the one that was asked for.

        Raises:
            PeerError: the peer takes part in another run.
        """
        self._peer.attach(self)

    def close(self) -> None:
        """The run is over for this peer."""
        self._peer.detach(self)

    # -- what the peer asks (keeper.StateKeeper) -------------------------------------------------------------

    def state_came(self, run: str, number: int, state: memoryview) -> None:
        if run == self._run:
            self._incoming = number, state
            self._peer.bell.ring()

    def state_wanted(self, peer: PeerId, run: str, number: int) -> None:
        if run == self._run:
            self._wanted[peer] = number
            self._peer.bell.ring()

    def part_wanted(self, peer: PeerId, name: str) -> None:
        if self._give_part is not None:
            self._give_part(peer, name)
        else:
            self._peer.give_part(peer, name, 0, b"")

    def hand_out(self, peer: PeerId, name: str) -> None:
        """Give the state that is here to one that is in no view, as a part of that name."""
        if peer in self._asked or len(self._asked) < _ASKED:
            self._asked[peer] = name
            self._peer.bell.ring()
        else:
            self._peer.give_part(peer, name, 0, b"")

    # -- work ------------------------------------------------------------------------------------------------

    async def in_worker(self, call: Callable[[], _T]) -> _T:
        """Let the worker do it."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    @property
    def at(self) -> int:
        """The last round in the state, for the worker."""
        return self.applied if self._fresh is None else self._fresh

    async def before(self, number: int, call: Callable[[], _T]) -> _T:
        """Let the worker do it, if the state is still that before this round when its turn comes.

        Raises:
            FellBehind: a neighbour's state has come in the meantime. It has the round, or one that is to come does.
        """

        def checked() -> _T:
            if self.at != number - 1:
                raise FellBehind(f"round {number} is not what comes next: the state here is that after {self.at}")
            return call()

        return await self.in_worker(checked)

    async def take(self, number: int, call: Callable[[], _T]) -> _T:
        """The same with a call that takes the round into the state, and sets `applied` when it is in. Where it raises
        something before that, what is here counts no more: some of it may be of before the round and some of after.

        Raises:
            FellBehind: as above.
        """

        def taken() -> _T:
            try:
                result = call()
            except BaseException:
                if self.applied != number:
                    # In this thread: nobody is to be given that.
                    self.applied, self._fresh, self._packed = _NONE, None, None
                raise
            self._packed = None  # of the round before, which nobody is given any more, and as large as what is here
            return result

        return await self.before(number, taken)

    # -- giving and taking -----------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Give the state to neighbours that ask, and take the one that was asked for. Until cancelled.

        Raises:
            JobError: the state that has come does not fit what is here.
        """
        while True:
            count = self._peer.bell.count
            if self._incoming is not None:
                await self._load(*self._incoming)
            elif not await self._give():
                await self._peer.bell.wait(count)

    async def hand_over(self) -> None:
        """Having failed, give the state that is here to whoever asks, and may need it to go on. Where there is none, or
        it can't be packed, give that which a neighbour has, as it has come: who asks may have no other way to it.
        Who is in no view is not to wait for that: others have it, too. Until cancelled."""
        self.lost()
        while True:
            count = self._peer.bell.count
            if self._incoming is not None:
                self._pass_on(*self._incoming)
            if self.applied == _NONE:
                asked, self._asked = self._asked, {}
                for peer, name in asked.items():
                    self._peer.give_part(peer, name, 0, b"")
            try:
                if not await self._give():
                    await self._peer.bell.wait(count)
            except Exception as error:  # of the job's own code: whatever was wrong with it may be wrong with its state
                _log.warning("job %s: its state can't be handed on: %s", self._run, first_line(error))
                self.applied, self._fresh, self._packed = _NONE, None, None
                self._peer.lose_state()

    def _pass_on(self, number: int, state: memoryview) -> None:
        self._incoming = None
        self.applied, self._fresh, self._packed = number, None, (number, state)
        self._peer.adopt(self._run, number, state)

    async def _give(self) -> bool:
        """Give the state to one that has asked for it. Returns whether there was one, and the state was here. Where it
        can't be packed, whoever has asked is still to be answered: it does not ask again soon."""
        if self._asked and self.applied >= 0:
            asker = next(iter(self._asked))
            number, state = packed = await self._as_packed()
            if number == self.applied:  # who asks again, and reads nothing, is sent the same memory
                self._packed = packed
            self._peer.give_part(asker, self._asked.pop(asker), number, state)
            return True
        ready = next((peer for peer, number in self._wanted.items() if 0 <= number <= self.applied), None)
        if ready is None:
            return False
        wanted = self._wanted.pop(ready)
        try:
            packed = await self._as_packed()
        except BaseException:
            self._wanted.setdefault(ready, wanted)
            raise
        number, state = packed
        if number < wanted:  # what was here counts no more
            self._wanted.setdefault(ready, wanted)  # or it has asked again meanwhile
            return False
        self._packed = packed
        self._peer.give_state(ready, self._run, number, state)
        return True

    async def _as_packed(self) -> tuple[int, bytes | memoryview]:
        packed = self._packed
        if packed is None or packed[0] != self.applied:
            packed = await self.in_worker(lambda: (self.at, self._pack()))
        return packed

    async def _load(self, number: int, state: memoryview) -> None:
        def load() -> None:
            self._put_to_use(state)
            self._fresh = number

        self._incoming = None  # before: another may come meanwhile
        try:
            await self.in_worker(load)
        except WireError as error:
            raise JobError(f"the run's state does not fit the model here: {error}") from error
        # Together: no round may begin here before the peer knows that it has the state for it.
        self.applied, self._fresh, self._packed = number, None, None  # it may be another of the same round
        self.taken += 1
        self._peer.adopt(self._run, number, state)
        self._peer.bell.ring()
        if number:
            fields = {"job": self._run, "round": number}
            text = "job %s: goes on after round %d, from a neighbour's state"
            _log.info(text, self._run, number, extra={"fields": fields})

    def lost(self) -> None:
        """What is here is not what the others have: a neighbour's state is wanted in its place, unless it has come."""
        if self.at == _NONE:
            self._peer.lose_state()

    # -- rounds ----------------------------------------------------------------------------------------------

    async def in_step(self) -> View:
        """Wait until this peer is in the run, and its state is that after the last committed round; and for the end of
        one that an earlier program of this peer has brought something to, and has not waited for.

        Raises:
            LeftFabric: this peer has left, and comes back no more.
        """
        while True:
            count = self._peer.bell.count
            if self._peer.closed:
                raise LeftFabric("this peer has left the fabric")
            view = self._peer.view
            if view is not None and view.run == self._run and self._peer.has_state:
                if self._peer.committed == 0 != self.applied:
                    # The run begins here: this peer's state is everybody's, and not what it was when it began before.
                    self.applied, self._packed = 0, None
                    self._peer.bell.ring()
                if self.applied > self._peer.committed - self._peer.missed >= 0:
                    # It was put to use while the run began anew.
                    self.applied, self._packed = _NONE, None
                    self._peer.lose_state()
                elif self.applied == self._peer.committed - self._peer.missed >= 0 and not self._peer.engaged:
                    self._stepped = self.taken
                    return view
            await self._peer.bell.wait(count)

    def given_up(self, number: int) -> None:
        """That round has no result: the state after it is what it was before, if all have given it up. Whoever has
        timed out may not have heard, and then does not know what the others' is."""
        if self.applied == number - 1 and self._peer.committed >= number:
            self.applied = number

    def is_due(self, number: int) -> bool:
        """Whether this is still the round that comes next here, and to the state that it came to when this peer was in
        step: what has been computed of another counts no more."""
        return self._stepped == self.taken and self.applied == self._peer.committed - self._peer.missed == number - 1
