"""A simulated peer: the real protocol machine, simulated I/O, and an application that runs rounds.

Whatever happens to its process goes through `soon`: a frozen process handles nothing until it goes on, and then
all of it, timers that are long due included; a slow one takes its time for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.machine import Machine
from edgepeer.simulation.broker import Broker, Client
from edgepeer.simulation.clock import Clock
from edgepeer.simulation.coded_app import CodedApp
from edgepeer.simulation.disk import OUTSIDE, REGATHER_S, Checkpoint, Disk
from edgepeer.simulation.ledger import END_BYTES, NO_SUM, Ledger, end_of
from edgepeer.simulation.lines import Lines
from edgepeer.simulation.network import Network
from edgepeer.simulation.split_app import SplitApp
from edgepeer.simulation.task import Task
from edgepeer.topology.view import Member, View
from edgepeer.wire.codec import encode, has_document
from edgepeer.wire.frames import Frame

__all__ = ["LEAVE_S", "PeerFactory", "SimulatedPeer", "Surroundings"]

_NO_STATE: Final = b"-"
_NO_RUN: Final = "-"
"""The run of an owner that takes part in none: no run is called so."""
HANDLING_S: Final = 5e-5
"""How long a slowed process takes for an event, times its factor."""
_AGAIN_S: Final = 0.01
LEAVE_S: Final = 5.0
"""A peer waits for so long for the others to let it go (peer/api.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a peer finds around it."""

    clock: Clock
    network: Network
    broker: Broker
    task: Task
    ledger: Ledger
    disks: dict[PeerId, Disk]
    """What devices keep over restarts; a peer enters its own, if the task has checkpoints."""
    living: dict[PeerId, SimulatedPeer]
    """Who is alive; a peer enters itself."""
    machine: Callable[[Member, float], Machine]
    """Makes the protocol's machine for a life that begins now, which is so late by its own clock."""
    ahead_s: Callable[[PeerId, int], float]
    """By how much the clock of a life of a peer is ahead of that which everything happens by."""
    trace: Callable[[PeerId, fx.Effect], None]
    """Is told of everything that a peer does."""
    note: Callable[[PeerId, str], None]


class SimulatedPeer:
    """One life of a peer. Its application contributes `task.brought_by(peer, round)` after a compute time.

    The application's state is the list of digests of the run's rounds; joiners receive it like a model's. As in a
    real application, the vector's memory is written anew for each round.
    """

    def __init__(self, around: Surroundings, peer: PeerId, incarnation: int) -> None:
        self._around = around
        self._task = around.task
        self.id = peer
        self.alive = False
        self.frozen = False
        """Whether its process is stopped; its kernel is not."""
        self.slowness = 1.0
        self.ahead_s = around.ahead_s(peer, incarnation)
        """By how much its clock is ahead."""
        self._said_now = 0.0
        self.node = around.machine(Member(id=peer, incarnation=incarnation), self._now)
        self.client = Client(self)
        self.lines = Lines(around.network, self)
        self.bytes_sent = 0
        self.digests: dict[int, bytes] = {}
        """By round, generation and digest: of all rounds of its run, else of those that this peer took part in."""
        self.run_id = around.task.run_id
        """The run that its application wants; empty: none."""
        self.over = 0
        """The last round that is over at this peer's application."""
        self.views: list[View] = []
        self.outcomes: list[fx.RoundCommitted] = []
        self.aborts: list[fx.RoundAborted] = []
        self.gaps = 0
        """How often rounds were decided without this peer ..."""
        self.times_out = 0
        """... and how often the others have put it out of their view."""
        self.left = False
        """Whether it has left, and not just died."""
        self.leaving = False
        self.aside = False
        """Whether its owner wants to be out, and may come back."""
        self._out = False
        """Whether it is out because of that."""
        self.busy_until = 0.0
        """Till when its owner works on nothing that is to be done."""
        self._brought_before = 0
        """The round that it had brought something to when it quit the run last: a program is not told how that ends."""
        self._gave_up: str | None = None
        """Which run it takes no part in any more."""
        self._without = False
        """Whether its application has no state of the run, and waits for a neighbour's ..."""
        self._loses = False
        """... or is to lose it, once the round is over."""
        self.paused = False
        """While set, the application contributes to nothing."""
        self._app = CodedApp(around.task, self)
        self.split: SplitApp | None = None
        """Its application, if that trains a part of a network."""
        if (split := around.task.split) is not None:
            self.split = split.app(self.id, incarnation, lambda text: around.trace(peer, fx.Note("info", text)))
        self.disk: Disk | None = None
        if (every := around.task.workload.checkpoint) and around.task.run is not None:
            self.disk = around.disks.setdefault(peer, Disk(every))
        self.restored: Checkpoint | None = None
        """What its application has, as long as that is from its own disk."""
        self._from_disk = False
        """Whether what it has been given, and has seen no round end after, is from another's."""
        self._gathers: Checkpoint | None = None
        """While it waits for all that there were then ..."""
        self._begun_since = False
        """... whether the run has begun meanwhile; then it is over ..."""
        self._beside = 0
        """... and a number that changes whenever it comes into the run, or is out: views without it are waited out."""
        self._may_restore = False
        self._begun = 0
        """How often it has begun to take part: what it was to do of an earlier time it does no more."""
        self._computing = 0
        self._owed = 0  # rounds that were dropped before this peer had contributed to them
        self._loads: fx.StateReceived | None = None  # the state that is being put to use
        self._memory: dict[tuple[int, str], ev.FloatVector] = {}
        self._timer = float("inf")
        self._inbox: deque[Callable[[], None]] = deque()
        self._working = False
        self._handlers: dict[type, Callable[..., None]] = {
            fx.Send: self._do_send,
            fx.Relay: self._do_relay,
            fx.Dial: lambda e: self.lines.dial(PeerId(e.member.id)),
            fx.CloseLink: lambda e: self.lines.hang_up(e.peer, e.reason, abrupt=e.abrupt),
            fx.PublishView: lambda e: around.broker.publish_view(self.client, e.view),
            fx.PublishPresence: lambda e: around.broker.present(self.client, self.node.me),
            fx.ClearPresence: lambda e: around.broker.clear_presence(self.client, e.member),
            fx.ViewInstalled: self._do_view,
            fx.Removed: self._do_removed,
            fx.RoundCommitted: self._do_committed,
            fx.EncodeWanted: self._app.encode,
            fx.RoundAborted: self._do_aborted,
            fx.ProvideState: self._do_provide,
            fx.StateReceived: self._do_state,
            fx.Behind: self._do_behind,
            fx.Note: lambda e: around.note(self.id, f"{e.level}: {e.text}"),
            fx.Refused: lambda e: None,
        }

    def start(self) -> None:
        self.alive = True
        self._around.living[self.id] = self
        self._around.broker.connect(self.client)
        self._around.broker.present(self.client, self.node.me)
        if self._task.scheme is not None:
            self.receive(ev.CodeWanted(self._task.scheme))
        self._begin_run()
        if self.disk is not None and self.disk.view is not None:
            self.receive(ev.ViewSeen(self.disk.view))
        self._arm()

    def _begin_run(self) -> None:
        """Want the run, or say that it is to be wanted, once the checkpoint is read."""
        self.run_id = self._task.run_id  # which may be another one than when it was made
        self._begun += 1
        self._gathers = None
        kept = self.disk.newest(self.run_id) if self.disk is not None else None
        self._may_restore = kept is not None
        if kept is not None:
            if kept.round < self._task.rounds:
                self.receive(ev.RunExpected(self.run_id, kept.majority))
        elif self._task.run is not None:
            self.receive(ev.RunWanted(*self._task.run))

    def die(self, *, will: bool = True, silently: bool = False) -> None:
        """The process is killed: its kernel closes its connections; the broker notices if `will`.

        `silently`: its machine is gone. Nobody hears of that, and the broker only after a while.
        """
        self._stop()
        network, broker = self._around.network, self._around.broker
        network.died(self, silently=silently)
        if silently:
            network.off.add(self.id)
            broker.check(self.client)
        else:
            broker.disconnect(self.client, will=will)

    def _stop(self) -> None:
        """The process has ended."""
        self.alive = self.frozen = False
        self._inbox.clear()
        if self._around.living.get(self.id) is self:
            del self._around.living[self.id]

    @property
    def done(self) -> int:
        """The last round that this peer will not take part in any more; without a run it may begin with a later one."""
        return max(self.over, 0 if self.run_id else self.node.allreduce.committed)

    @property
    def finished(self) -> bool:
        """Whether there is nothing left for its application to contribute to."""
        return self.split.program.done if self.split is not None else self.done >= self._task.rounds

    @property
    def up_to_date(self) -> bool:
        """Whether its application has the state after the last round that it has heard the end of, where it has one."""
        return not self.run_id or self.split is not None or len(self.digests) >= self.over

    @property
    def incarnation(self) -> int:
        return self.node.me.incarnation

    @property
    def powered(self) -> bool:
        """Whether its machine runs, and answers for a process that is no more."""
        return self.id not in self._around.network.off

    # -- what a process does when it gets to it --------------------------------------------------------------

    @property
    def attentive(self) -> bool:
        """Whether it handles what happens at once."""
        return not (self.frozen or self._inbox or self.slowness > 1)

    def soon(self, do: Callable[[], None]) -> None:
        """Do what has happened to the process when it gets to it; of a dead one, its kernel does."""
        if self.attentive or not self.alive:
            do()
        else:
            self._inbox.append(do)
            self._work()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT."""
        self.frozen = False
        self._work()

    def _work(self) -> None:
        if self._inbox and not self._working and not self.frozen:
            self._working = True
            self._around.clock.after(HANDLING_S * self.slowness if self.slowness > 1 else 0.0, self._work_off)

    def _work_off(self) -> None:
        self._working = False
        if self._inbox and not self.frozen:
            self._inbox.popleft()()
            self._work()

    # -- events in, effects out ----------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        """How late it is here. It never goes back, be it by what the sum of two numbers is rounded by."""
        self._said_now = max(self._said_now, self._around.clock.now + self.ahead_s)
        return self._said_now

    def receive(self, event: ev.Event) -> None:
        if self.alive:
            self._do(self.node.handle(event, self._now))

    def sink(self, source: PeerId, frame: Frame, payload_bytes: int) -> memoryview | None:
        if not self.alive or has_document(frame):
            return None
        sink = self.node.sink(source, frame, payload_bytes)
        if sink is not None and len(sink) != payload_bytes:
            raise ProtocolBug(f"sink of {len(sink)} bytes for {payload_bytes}")
        return sink

    def receive_frame(
        self,
        source: PeerId,
        frame: Frame,
        payload: memoryview | bytes | None,
        sink: memoryview | None,
        seconds: float,
    ) -> None:
        data = payload if payload is not None else b""
        if has_document(frame):
            self.receive(ev.FrameReceived(source, frame, bytes(data), len(data), True, seconds))
            return
        if sink is not None:
            sink[:] = data
        self.receive(ev.FrameReceived(source, frame, None, len(data), sink is not None, seconds))

    def _do(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            self._around.trace(self.id, effect)
            self._handlers[type(effect)](effect)
        self._arm()

    def _arm(self) -> None:
        deadline = self.node.next_deadline()
        if deadline >= self._timer:
            return
        self._timer = deadline

        def fire() -> None:
            if self._timer == deadline:
                self._timer = float("inf")
                if self.alive:
                    for peer in self.lines.receiving():
                        self.receive(ev.Heard(peer, self._now))
                    self._said_now = max(self._now, deadline)  # and not a little less
                    self._do(self.node.tick(self._said_now))

        self._around.clock.at(deadline - self.ahead_s, lambda: self.soon(fire))

    def _do_send(self, effect: fx.Send) -> None:
        self.bytes_sent += self.lines.send(effect.peer, effect.frame, effect.payload)

    def _do_relay(self, effect: fx.Relay) -> None:
        payload = bytes(effect.payload or b"")
        size = len(encode(effect.frame, len(payload))) + len(payload)
        self.bytes_sent += size
        self._around.broker.carry(self.client, effect.peer, ev.Relayed(effect.frame, payload), size)

    def later(self, delay: float, do: Callable[[], None]) -> None:
        """What the application does after a while. However slow its process is: that is not by how much it waits
        longer."""
        self._around.clock.after(delay, lambda: self.soon(do))

    def work(self, seconds: float, do: Callable[[], None]) -> None:
        """What the application's worker does, when it comes to it."""
        waits_s = max(0.0, self.busy_until - self._around.clock.now)
        self._around.clock.after(waits_s + seconds * self.slowness, lambda: self.soon(do))

    # -- the application -------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Leave gracefully: nothing more is contributed. If the others can't let it go in time, it goes anyway."""
        self.leaving = True
        if self._out:
            self._go()
            return
        self.receive(ev.LeaveWanted())
        self.later(LEAVE_S, lambda: self.die() if self.alive else None)

    def stand_aside(self) -> None:
        """Leave, and stay in reach; not in a call."""
        if self.alive and not self.leaving:
            self._end_call()
            self.aside = True
            self.receive(ev.LeaveWanted())

    def come_back(self) -> None:
        """Be in again, or stay: its owner has changed its mind."""
        if self.alive and self.aside and not self.leaving:
            was_out, self.aside, self._out = self._out, False, False
            if was_out:  # else it is in the same view still, and as long as before
                self._beside += 1
                self._wait_outside()
            self.receive(ev.JoinWanted())
            self._call_again()

    def quit_run(self) -> None:
        """Take no part in the run, and have no state of it."""
        if self.alive and self._task.run is not None and self.run_id != _NO_RUN:
            self._end_call()
            self._brought_before = self.node.allreduce.committed + 1 if self.node.allreduce.contributed else 0
            self.run_id, self.restored, self._may_restore, self._loads = _NO_RUN, None, False, None
            self._gathers = None
            self._forget()
            self.receive(ev.RunWanted(None, 1))

    def take_part_again(self) -> None:
        """Take part in it again, as one that has just started; unless that is done already, in another run."""
        if self.alive and self.run_id == _NO_RUN:
            self._begin_run()
            self._without = True
            if self.node.view is not None:
                self._go_on_from_disk()
            self._call_again()

    def _end_call(self) -> None:
        """Cancel the call that the application is in. Of a coded round what it has computed still counts."""
        self.cancel()
        if self._task.scheme is not None:
            self._app.give_up()
            if self.node.allreduce.contributed:
                self.receive(ev.Abandoned())

    def _call_again(self) -> None:
        """The time of a call that was cancelled is over, if its round goes on: others may wait for what does not come
        any more."""
        if self._app.given_up and self.node.allreduce.contributed:
            self.time_out()
        self._next_round()

    def lose_state(self) -> None:
        """Have no state of the run any more, once the round is over that the application is in."""
        self._loses = True
        self._next_round()

    def _lose(self) -> None:
        self._loses, self.restored = False, None
        self._forget()
        self._without = True
        self.receive(ev.StateLost())

    @property
    def has_state(self) -> bool:
        """Whether it can give the state of the run to others."""
        return self.node.allreduce.has_state and not self._without

    def pause(self) -> None:
        """Contribute to nothing until `resume`."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._next_round()

    def give_up_run(self) -> None:
        """Take no part in the run any more."""
        self._gave_up, self._gathers = self.run_id, None
        self.receive(ev.RunWanted(None, 1))

    def take_up_another_run(self) -> None:
        """Take part in the run that is wanted now, and in the one before no more."""
        if self.alive and self._task.run is not None and self.run_id != self._task.run_id:
            self.run_id, self.restored, self._may_restore = self._task.run_id, None, False
            self._begun += 1
            self._gathers = None
            self._forget()
            self.receive(ev.RunWanted(*self._task.run))

    @property
    def waits(self) -> bool:
        """Whether the application has brought a vector of its own to the round that is not over."""
        return self.alive and self._task.scheme is None and self.node.allreduce.contributed

    def cancel(self) -> None:
        """Do not wait for the round any more. The vector's memory is used for something else from now on."""
        if self.waits:
            self.receive(ev.Abandoned())
            self._use_memory()

    def _use_memory(self) -> None:
        """The call has ended: its vector's memory is the program's again, which puts something else there at once."""
        for memory in self._memory.values():
            memory.fill(np.nan)

    def time_out(self) -> None:
        """Give up on the round."""
        self.receive(ev.TimedOut(f"timed out at {self.id}"))

    def _do_view(self, effect: fx.ViewInstalled) -> None:
        before = self._last_view
        if before is None or before.beginning != effect.view.beginning:
            if before is not None and effect.view.run in ("", before.run) and self._works_on(before.run):
                self._around.ledger.begun_anew(self.id, before, effect.view, self.over)
            self._loads = None  # a program's worker is done with that before it does anything of what begins
            self._forget()
        self.views.append(effect.view)
        if self.disk is not None:
            self.disk.view = effect.view
        self._go_on_from_disk()
        if self._gathers is not None and (before is None or (before.run == self.run_id) != self._in_run):
            self._beside += 1
            self._begun_since |= self._in_run
            if not self._in_run:
                self._wait_beside_it(REGATHER_S)
        self.later(0.0, self._next_round)

    def _go_on_from_disk(self) -> None:
        if self._may_restore:
            self._may_restore = False
            self.work(self._task.compute_s(), partial(self._restore, self._begun))

    def _restore(self, begun: int) -> None:
        """Go on from the disk, unless the fleet is at work already: its rounds may have gone another way."""
        if (
            not self.alive
            or begun != self._begun
            or self._task.run is None
            or self.disk is None
            or (found := self.disk.newest(self.run_id)) is None
        ):
            return
        view = self.node.view
        if view is None:
            self._may_restore = True
        elif view.run == self.run_id and view.first_round > 1:
            self.receive(ev.RunWanted(self.run_id, self._task.run[1]))  # others may want the next one already
        else:
            self.restored = self._gathers = found
            self._forget()
            self._begun_since = self._in_run
            self._ask_for_run(found, found.peers)
            if not self._in_run:
                self._wait_beside_it(REGATHER_S)

    def _wait_beside_it(self, seconds: float) -> None:
        """In a view without the run, or in none: go on with fewer after a while."""
        found, beside = self._gathers, self._beside

        def go_on() -> None:
            if found is None or self._gathers is not found or self._beside != beside:
                return
            self._gathers = None
            if self._begun_since:
                self.receive(ev.RunWanted(self.run_id, found.majority, slots=found.slots))
            else:
                self._ask_for_run(found, found.majority)

        self.later(seconds, go_on)

    def _ask_for_run(self, found: Checkpoint, peers: int) -> None:
        if self.alive and self._task.run is not None:
            self.receive(ev.RunWanted(self.run_id, peers, found.round, found.lineage, found.slots))
            self._next_round()  # the run may have begun before: then this was what it waited for

    def _forget(self) -> None:
        found = self.restored
        self.digests = dict(found.ends) if found is not None else {}
        self.over, self._computing, self._owed = found.round if found is not None else 0, 0, 0
        self._without = self._from_disk = False
        if self.split is not None:
            self.split.begin()

    def _do_removed(self, effect: fx.Removed) -> None:
        self.views.clear()
        self._beside += 1
        if not effect.wanted:
            self.times_out += 1
            self._forget()
        elif self.leaving:
            self._go()
        else:
            self._out = True
            self._forget()
        self._wait_outside()

    def _wait_outside(self) -> None:
        if self._gathers is not None and not self._out:
            self._wait_beside_it(OUTSIDE * REGATHER_S)

    def _go(self) -> None:
        """It is let go, and ends."""
        self.left = True
        self._around.broker.disconnect(self.client)
        self.lines.hang_up_all("left")
        self._stop()

    def _next_round(self) -> None:
        """Compute for the next round, unless that is being done or there is nothing to do."""
        begins = self._in_run and self.node.allreduce.committed == 0 and self.node.allreduce.has_state
        if self.restored is not None and begins:
            self.restored = None  # the run begins here: this peer's state is everybody's
            self._forget()
        if self._loses and not self.node.allreduce.contributed and self._in_run:
            self._lose()
        if begins and (self._without or (self.run_id and self.over)):
            self._forget()  # likewise, whatever has been put to use meanwhile, of when it began before
        number = self._number
        if self._task.scheme is not None:
            view = self.node.view
            if self._app.given_up and not self.node.allreduce.contributed:
                self._app.call_again()
            if not self.finished and view is not None and (self._in_step or self._is_given_up(number)):
                self._app.go_on(number, view)
            return
        if self.finished or self._computing == number or not self._may_contribute:
            return
        self._computing = number

        def computed() -> None:
            if self._computing != number or not self.alive:
                return
            self._computing = 0
            if number != self._number and not self._owed:
                self._next_round()
            elif self._may_contribute:
                vector, weight = self._bring(number)
                memory = self._memory.setdefault((vector.size, vector.dtype.str), np.empty_like(vector))
                memory[:] = vector
                precision = self._task.workload.precision if self.split is None else "float32"
                self.receive(ev.Contribute(memory, weight, precision))

        self.work(self._task.compute_s() + (self.split.pause_s if self.split is not None else 0.0), computed)

    def _bring(self, number: int) -> tuple[ev.FloatVector, float]:
        return (
            (self.split.contribute(number), 1.0)
            if self.split is not None
            else self._task.brought_by(self.id, number, self.run_id, self.incarnation)
        )

    @property
    def _number(self) -> int:
        return self.done + 1

    @property
    def _in_step(self) -> bool:
        at = self.node.allreduce.committed
        ready = self._in_run and self.node.allreduce.has_state and (self.restored is None or self.over == at)
        lost = self._without or (self.split is not None and self.split.lost)
        return self.alive and not self.leaving and not self.aside and not self.paused and ready and not lost

    def _is_given_up(self, number: int) -> bool:
        """Whether the call of that round was cancelled, and the round goes on."""
        return self.alive and number == self._app.given_up and self.node.allreduce.contributed

    @property
    def _in_run(self) -> bool:
        return (view := self.node.view) is not None and view.run == self.run_id

    @property
    def _may_contribute(self) -> bool:
        return self._in_step and not self.node.allreduce.contributed

    def _ended(self, number: int, end: bytes) -> None:
        if self.run_id and number != self.over + 1:
            raise ProtocolBug(f"{self.id}: round {number} ends after round {self.over}")
        if number <= self.over:
            raise ProtocolBug(f"{self.id}: round {number} ends again, after round {self.over}")
        self.over, self.restored, self._from_disk = number, None, False
        self.digests[number] = end
        if self.disk is not None and (view := self.node.view) is not None:
            self.disk.keep(number, self.digests, view)

    def _takes(self, run: str, number: int) -> bool:
        """Whether the end of a round concerns its application: that may want another run by now, or be without a state,
        or have one from its disk that is of another round."""
        fits = self.restored is None or number == self.over + 1
        return run == self.run_id and fits and not self._without

    def _works_on(self, run: str) -> bool:
        """Whether its application takes part in a run, and has a state of it that neither it nor who has given it that
        has gone back to. Not where all are about to give that up for another one."""
        wants = run == self._task.run_id == self.run_id != self._gave_up and self.over != self._brought_before
        has = wants and self.split is None and not self._without and self.over > 0
        return has and self.restored is None and not self._from_disk

    @property
    def _last_view(self) -> View | None:
        return self.views[-1] if self.views else None

    def _do_committed(self, effect: fx.RoundCommitted) -> None:
        if effect.mine:
            self._use_memory()
        if not self._takes(effect.run, effect.round):
            self._around.ledger.committed(self.id, effect, self._last_view)
            return
        self._ended(effect.round, end_of(effect.generation, effect.digest))
        self.outcomes.append(effect)
        self._around.ledger.committed(self.id, effect, self._last_view)
        if self.run_id:
            self._around.ledger.follows(self.id, effect, self.digests, self._last_view)
        if self.split is not None:
            self.split.settle(effect)
            if self.split.lost:
                self.later(0.0, self._ask_for_state)
        self._next_round()

    def _ask_for_state(self) -> None:
        """What the application has is not what the others have."""
        if self.alive and self.split is not None and self.split.lost:
            self.receive(ev.StateLost())

    def _do_aborted(self, effect: fx.RoundAborted) -> None:
        if effect.cause == "mismatch" and self.split is not None:
            raise ProtocolBug(f"{self.id}, at {self.split.program.phase}, brings another vector: {effect.reason}")
        if effect.mine:
            self._use_memory()
        if not self._takes(effect.run, effect.round):
            if effect.cause in ("mismatch", "nonfinite", "timeout"):
                self._around.ledger.aborted(self.id, self._last_view, effect)
        elif effect.cause in ("mismatch", "nonfinite", "timeout") and effect.round > self.over:
            self._ended(effect.round, NO_SUM)
            self.aborts.append(effect)
            self._around.ledger.aborted(self.id, self._last_view, effect)
            self._owed += not effect.mine
        elif effect.mine and self._owed:
            self._owed -= 1
            self._app.call_again()  # what it had said of the next one, this one was answered with
        if effect.mine and effect.cause == "run":
            self._app.call_again()  # though it may be of the same number, and in the same view
        if effect.mine:
            self.later(0.0, self._next_round)  # not at once: where no round can have a sum, that would never return

    def _do_behind(self, effect: fx.Behind) -> None:
        self.gaps += 1
        self.over, self._owed = effect.committed, 0
        self._next_round()

    def _do_provide(self, effect: fx.ProvideState) -> None:
        def provide() -> None:
            if effect.run != self.run_id:
                return  # it is given up here
            if self._without or (self.split is not None and self.split.lost):
                self.later(max(self._task.compute_s(), _AGAIN_S), provide)  # once there is something to give
                return
            state = b"".join(self.digests.values()) + (self.split.program.state() if self.split is not None else b"")
            state = state or _NO_STATE
            self.receive(ev.StateReady(effect.peer, effect.run, self.over, state))

        self.work(self._task.compute_s(), provide)

    def _do_state(self, effect: fx.StateReceived) -> None:
        def load() -> None:
            if self._loads is not effect or {self.node.allreduce.run, self.run_id} != {effect.run}:
                return  # a later one has come, and a program's worker does one after the other
            blob = bytes(effect.state)
            ends, rest = blob[: effect.round * END_BYTES], blob[effect.round * END_BYTES :]
            self.digests = {at // END_BYTES + 1: ends[at : at + END_BYTES] for at in range(0, len(ends), END_BYTES)}
            if len(ends) != effect.round * END_BYTES or (self.split is None and rest not in (b"", _NO_STATE)):
                raise ProtocolBug(f"state of {len(blob)} bytes for round {effect.round}")
            if self.split is not None:
                self.split.load(rest)
            self.over, self._owed, self.restored = effect.round, 0, None
            self._from_disk = effect.of is not None
            self._without = effect.round < self.node.allreduce.committed  # the round has ended meanwhile
            self._around.ledger.adopted(self.id, self.digests)
            self.receive(ev.Adopted(effect.run, effect.round, effect.of, effect.life))
            self._next_round()

        self._loads = effect
        self.work(self._task.compute_s(), load)


PeerFactory: TypeAlias = Callable[[Surroundings, PeerId, int], SimulatedPeer]
"""Makes a life of a peer, by its incarnation."""
