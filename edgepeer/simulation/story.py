"""Lets a schedule happen to a simulated fleet, and checks that it is survived.

What must hold, besides the ledger's word on every round:

- Every round ends at every living peer: no peer goes for longer than `calm_s` without the end of a round, while
  there are rounds to come, not counting the time in the shadow of a fault. A fault's shadow reaches from its
  beginning to `recovery_s` after its end; while shadows last, a round may wait.
- In shadows, too, but while nothing begins or ends to be wrong, some round ends somewhere within `pause_s`, if so many
  members of the newest view reach each other that they are a quorum of it (`there`), and of what they know of.
- Nobody is put out of a view while no fault, of late, may have kept anybody from being heard.
- `recovery_s` after the last fault all living peers work in one view that holds exactly them.
- In the end all have the same history.
- Of a split run: all have the same in common, their weights are those of undivided training, and of the soft errors
  that matter none was unseen (`split_app`).

If so many have died for good that no majority of the last view lives, nobody may go on, and none of this is asked.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.neighbours import PACKING_S
from edgepeer.protocol.node import Node
from edgepeer.protocol.shape import Choice
from edgepeer.simulation.account import Account
from edgepeer.simulation.broker import GRACE_S
from edgepeer.simulation.disk import REGATHER_S
from edgepeer.simulation.network import DIAL_TIMEOUT_S
from edgepeer.simulation.peer import LEAVE_S, PeerFactory, SimulatedPeer
from edgepeer.simulation.schedule import KINDS, Fault, Schedule, names
from edgepeer.simulation.split_app import SplitApp, SplitWork
from edgepeer.simulation.task import Workload
from edgepeer.simulation.ways import BROKER, LinkModel
from edgepeer.simulation.world import Everybody, World
from edgepeer.topology import tree
from edgepeer.topology.view import View
from edgepeer.training.split.faults import parse_flip

__all__ = ["SMALL_SEGMENTS", "Story", "recovery_s", "there"]

SMALL_SEGMENTS: Final = Limits(smallest_segment_bytes=256, first_segment_bytes=512, anew_s=5.0, anew_run_s=10.0)
"""Vectors of a few hundred elements are cut in many segments, and faults that last for so long that others give up on a
view are not rare."""
BEGIN_S: Final = 60.0
_LOOK_EVERY_S: Final = 1.0
_WAITED_FOR: Final = ("slow", "busy", "quit")
"""All wait for those to whom this happens, and they are there."""
STORM: Final = 4000
"""No peer does so much in a second."""
_PIECES: Final = 3
"""Of what comes over lines of their own more happens: each piece is put on one, and comes off it, and on the next."""


def recovery_s(schedule: Schedule, limits: Limits) -> float:
    """How long after the end of a fault its consequences may last: every patience that may have to end, once each."""
    patience = limits.anew_run_s + _succession_s(schedule, limits) + (REGATHER_S if schedule.checkpoint else 0.0)
    return GRACE_S + patience + 100 * (schedule.latency_s + schedule.jitter_s) + 40 * schedule.compute_s


def _succession_s(schedule: Schedule, limits: Limits) -> float:
    """How long another view may take where enough for one are there: who is gone, and then who is counted on instead,
    is found silent; the last in the order stands for the head's place; somebody is dialled in vain, and once more."""
    fleet = schedule.peers + schedule.after + sum(fault.kind == "join" for fault in schedule.faults)
    return 2 * limits.silence_s + limits.takeover_s * fleet + DIAL_TIMEOUT_S + limits.redial_max_s


def _lines(schedule: Schedule) -> dict[PeerId, float]:
    """Whose line is how fast, where these differ: the logarithm of that is drawn evenly."""
    if schedule.uneven == 1:
        return {}
    come = [each.who[0] for each in schedule.faults if each.kind == "join"]
    devices = [*names(schedule.peers), *come, *(f"z{number}" for number in range(schedule.after))]
    rng = random.Random(schedule.seed)
    return {PeerId(device): schedule.rate_bytes_per_s / schedule.uneven ** rng.random() for device in devices}


def there(world: World, view: View) -> set[PeerId]:
    """Members of a view, in the lives that it means, that attend to what happens and all reach each other, directly or
    through the broker: the most that are found from any of them in the order of the view. There may be more."""
    ways, living = world.network.ways, world.living
    members = [
        peer
        for p in view.ids
        if (peer := living.get(p)) is not None and peer.attentive and not peer.leaving and not peer.aside
        and peer.incarnation == view.member(p).incarnation
    ]  # fmt: skip

    apart: defaultdict[PeerId, set[PeerId]] = defaultdict(set)  # whom no link of one's own leads to and back
    for one, other in ways.cuts:
        apart[one].add(other)
        apart[other].add(one)
    hidden = ways.model.hidden
    for one in hidden:  # who nobody can dial can't connect to each other
        apart[one] |= hidden - {one}
    heard = {peer.id for peer in members if world.broker.up and BROKER not in apart[peer.id]}
    for one in heard:
        apart[one] -= heard
    most: set[PeerId] = set()
    for first in members:
        if len(most) == len(members):
            break
        found = {first.id}
        for peer in members:
            if found.isdisjoint(apart[peer.id]):
                found.add(peer.id)
        most = max(most, found, key=len)
    return most


def _newest(peers: Iterable[SimulatedPeer]) -> View | None:
    """The newest view that any of them works in."""
    views = [view for peer in peers if (view := peer.node.view) is not None]
    return max(views, key=lambda each: each.place, default=None)


class Story:
    """One schedule, told once. `peer` makes those whom it happens to."""

    def __init__(
        self,
        schedule: Schedule,
        limits: Limits = SMALL_SEGMENTS,
        account: Account | None = None,
        peer: PeerFactory = SimulatedPeer,
    ) -> None:
        self.schedule = schedule
        self._storm = float(STORM * schedule.peers * (_PIECES if schedule.uneven > 1 else 1))
        """Nothing so often in a second."""
        self._account = account
        if schedule.window:
            piece = max(1, schedule.window // 4)
            limits = replace(limits, state_window_bytes=schedule.window, state_segment_bytes=piece)
        self.limits = limits
        self._split: SplitWork | None = None
        if schedule.split != "none":
            self._split = SplitWork(
                schedule.split, schedule.soft_errors, iterations=schedule.rounds, seed=schedule.seed
            )
        self.world = World(
            seed=schedule.seed,
            fanout=schedule.fanout,
            lanes=schedule.lanes,
            quorum=schedule.quorum,
            choice=Choice(fanout=True, lanes=True) if schedule.shape == "auto" else None,
            workload=Workload(
                rounds=schedule.rounds,
                size=schedule.size,
                dtype=schedule.dtype,
                precision=schedule.precision,
                compute_s=schedule.compute_s,
                run=schedule.run if schedule.run != "none" else None,
                wait_for=schedule.peers,
                checkpoint=schedule.checkpoint,
                odd=schedule.odd,
            ),
            link=LinkModel(
                latency_s=schedule.latency_s,
                jitter_s=schedule.jitter_s,
                rate_bytes_per_s=schedule.rate_bytes_per_s,
                lines=_lines(schedule),
                loss=schedule.loss,
                hidden=frozenset(map(PeerId, names(schedule.peers)[: -schedule.hidden - 1 : -1])),
            ),
            limits=self.limits,
            code=schedule.code,
            wait=schedule.wait,
            split=self._split,
            clocks_s=schedule.clocks_s,
            twice=schedule.twice,
            peer=peer,
        )
        self.world.on_effect = account.on_effect if account is not None else None
        self._owners = random.Random(schedule.seed)
        """When owners of peers do what they do."""
        self._happened: list[str] = []
        self.ended_well = False
        """Whether everybody who lives was asked to finish, and did."""
        self._began = 0.0
        self._run_is_over = False
        """Whether nobody takes part in it any more."""
        self._all_in = Everybody(self.world.living)
        self._all_done = Everybody(self.world.living)
        self._disturbed = True
        """Whether anything has begun or ended to be wrong since the last look."""
        self._ends, self._pause = 0, 0.0  # of rounds so far, and for how long there has been none though there might
        self.longest_pause_s = 0.0
        self._progress: dict[SimulatedPeer, tuple[int, float]] = {}  # last round over, and the calm spent since
        self._put_out: dict[SimulatedPeer, int] = {}  # how often, when that was last looked at
        self._bring_infinite()
        for name in names(schedule.peers):
            self.world.add(name)

    def _bring_infinite(self) -> None:
        schedule = self.schedule
        if not schedule.infinite:
            return
        rng, members = random.Random(schedule.seed), names(schedule.peers)
        vector = np.full(schedule.size, np.inf, schedule.dtype)
        for number in range(1, schedule.rounds + 1):
            if rng.random() < schedule.infinite:
                self.world.task.brought[PeerId(rng.choice(members)), number] = vector, 1.0

    @property
    def happened(self) -> list[str]:
        """The kinds of the faults that found somebody to happen to; each soft error when it was made."""
        return [*self._happened, *(self._split.errors.elements() if self._split is not None else ())]

    # -- the bounds ----------------------------------------------------------------------------------------

    @property
    def recovery_s(self) -> float:
        return recovery_s(self.schedule, self.limits)

    @property
    def calm_s(self) -> float:
        """How long a round may take while nothing is wrong."""
        schedule = self.schedule
        size = schedule.size * (4 if schedule.dtype == "<f4" else 8)
        if self._split is not None:
            size = 8 * self._split.numbers
        count = schedule.peers + sum(f.kind == "join" for f in schedule.faults)
        fanout = schedule.fanout if schedule.shape == "given" else count  # at most; and links in a row, if it is 1
        transfer = fanout * (size + 2000) * schedule.uneven / schedule.rate_bytes_per_s
        hop = schedule.latency_s + schedule.jitter_s + transfer + (10.0 if schedule.loss else 0.0)
        if schedule.hidden > 1:
            hop *= 2  # to the broker, and on
        height = tree.height(schedule.fanout, count)
        # A run's first state goes down the tree; every application on its way takes its time to take and to give it.
        handed = 2 * (height + 1) * schedule.compute_s if self.world.task.run_id else 0.0
        chunks = 1 if schedule.code == "none" else 6  # of one peer, that of one that is gone included
        return 3.0 + 20 * chunks * schedule.compute_s + 4 * (height + 1) * hop + handed

    @property
    def pause_s(self) -> float:
        """How long there may be no round while the same members of the view reach each other, and are a quorum of it:
        until they have another view, and a round in it; and what an owner has lost that was asked for is given up."""
        lost = PACKING_S if any(fault.kind == "lose" for fault in self.schedule.faults) else 0.0
        return _succession_s(self.schedule, self.limits) + self.calm_s + lost

    def _in_shadow(self, now: float, kinds: Collection[str] = KINDS) -> bool:
        """Whether a fault, of one of these kinds, may still have consequences."""
        at = now - self._began
        return any(fault.at <= at <= self._over(fault) for fault in self.schedule.faults if fault.kind in kinds)

    def _over(self, fault: Fault) -> float:
        """When a fault's consequences must be over: what a slowed application has begun, it ends slowly."""
        slowed = float(fault.extra[1:]) * 10 * self.schedule.compute_s if fault.kind == "slow" else 0.0
        return fault.end + self.recovery_s + slowed

    # -- telling ---------------------------------------------------------------------------------------------

    def tell(self) -> World:
        """Let everything happen.

        Raises:
            ProtocolBug: something that must hold does not.
        """
        world, schedule = self.world, self.schedule
        world.clock.budget = self._storm * BEGIN_S
        self._tell(f"{' '.join(world.peers)} start")
        if not world.run_until(self._together, BEGIN_S):
            raise ProtocolBug(f"the fleet did not come together: {self._where()}")
        self._began = world.clock.now
        self._put_out = {peer: peer.times_out for peer in world.alive}
        for fault in schedule.faults:
            world.clock.after(fault.at, partial(self._happen, fault))
        world.clock.after(_LOOK_EVERY_S, self._look)
        world.run_until(lambda: False, schedule.end)
        patience = max((self._over(fault) for fault in schedule.faults), default=self.recovery_s) - schedule.end
        together = world.run_until(world.settled, patience)
        if not self._possible():
            self._tell("too few are left to go on")
            return world
        if not together:
            raise ProtocolBug(f"no common view {patience:.0f} s after the last fault: {self._where()}")
        each = 1 if self._split is None else self._split.rounds
        limit_s = (each * schedule.rounds + 2) * self.calm_s + 2 * self.recovery_s
        world.run_until(lambda: self._all_over() or self._stands(), limit_s)
        if self._stands() or not self._possible():
            self._tell("too few are left to go on")
            return world
        if not world.run_until(self._over_and_done, self.calm_s + self.recovery_s):
            raise ProtocolBug(f"rounds did not end everywhere: {self._where()}")
        self._compare()
        if self._split is not None and not self._split.check(self._apps()):
            self._tell("too few were left to have all of the network, and to see all errors")
            return world
        self.ended_well = True
        self._tell(self._result())
        if schedule.after and world.living:
            self._after_the_run()
        return world

    def _after_the_run(self) -> None:
        """Nobody takes part any more, others come, and the coordinator's machine fails. The fleet is idle, and as one.

        Raises:
            ProtocolBug: it is not.
        """
        world, rng = self.world, random.Random(self.schedule.seed)
        self._run_is_over, world.task.run = True, None
        self._tell(f"the run is over, and {self.schedule.after} more come")
        for peer in world.alive:
            world.clock.after(rng.uniform(0.0, 0.5), peer.give_up_run)
        for number in range(self.schedule.after):
            world.add(f"z{number}", delay_s=rng.uniform(0.0, 3.0))
        world.run_until(lambda: False, 3.0)
        # Who is leaving still ends by itself: with the coordinator these may be too many.
        world.run_until(lambda: not any(peer.leaving for peer in world.alive), LEAVE_S)
        self._be_as_one()
        view = world.alive[0].node.view
        if view is not None and view.may_go_on(view.ids[1:], settled=True):
            self._tell(f"power {view.coordinator}")
            world.living[view.coordinator].die(silently=True)
            self._happened.append("power")
            self._be_as_one()

    def _be_as_one(self) -> None:
        def settled(peer: SimulatedPeer) -> bool:
            return not isinstance(peer.node, Node) or peer.node.parts.membership.settled

        world, everybody = self.world, Everybody(self.world.living)
        if not world.run_until(lambda: world.settled() and everybody(settled), self.recovery_s):
            raise ProtocolBug(f"no common view that is settled after the run: {self._where()}")

    def _together(self) -> bool:
        peers, run = self.schedule.peers, self.world.task.run_id

        def in_it(peer: SimulatedPeer) -> bool:
            return (view := peer.node.view) is not None and (view.size, view.run) == (peers, run)

        return len(self.world.living) == peers and self._all_in(in_it)

    def _over_and_done(self) -> bool:
        """Whether all who live have come to the last round, with the state after it, in one view; or all have left."""
        if not self.world.living:
            return True
        return self._all_over() and self.world.settled() and all(peer.up_to_date for peer in self.world.alive)

    def _all_over(self) -> bool:
        return bool(self.world.living) and self._all_done(lambda peer: peer.finished)

    def _apps(self) -> list[SplitApp]:
        return [peer.split for peer in self.world.alive if peer.split is not None]

    def _stands(self) -> bool:
        """Whether a split run waits for those who are gone for good, as all who live say together."""
        alive = self.world.living
        if self._split is None or not 0 < len(alive) < self._split.split.nodes:
            return False

        def waits(peer: SimulatedPeer) -> bool:
            told = bool(peer.outcomes) and {*peer.outcomes[-1].contributors} == {*alive}
            return told and peer.split is not None and peer.split.program.waiting != ""

        return all(map(waits, alive.values()))

    def _possible(self) -> bool:
        """Whether those who are alive are to go on: a quorum of the newest view that any of them is in, in the lives
        that it means; or those who are left of it, where so many others have ended, and their machines say so or they
        have started anew, that there will be none any more, if with who has come they are as many as it is to take; or,
        where no run has begun, as many as that asks for.
        """
        alive = {peer.id: peer for peer in self.world.alive if not peer.leaving}
        view = _newest(alive.values())
        if view is None:
            return len(alive) >= (self.world.task.run or ("", 1))[1]
        lives = {p: peer for p, peer in alive.items() if p in view and peer.incarnation == view.member(p).incarnation}
        nodes = [peer.node for peer in lives.values() if isinstance(peer.node, Node)]
        settled = any(node.view == view and node.parts.membership.settled for node in nodes)
        # Of these machines nobody hears that they are no more: they are off, or nobody gets through to them.
        silent = {*self.world.network.off, *(p for p in self.world.network.ways.model.hidden if p not in alive)}
        rest = [p for p in view.ids if p in lives or p in silent]
        if not view.may_go_on(lives, settled=settled):
            over = not view.may_go_on(rest, settled=settled)
            if not over or len(alive) < min(view.quorum, view.size):
                return False
            most, left = (view.may_go_on(of, settled=settled, majority=True) for of in (lives, rest))
            if left and not most:
                return False  # as it would be without a `quorum`
        return view.run == self.world.task.run_id or len(alive) >= self._asked_for(view.coordinator)

    def _asked_for(self, coordinator: PeerId) -> int:
        """How many peers its run takes."""
        found = self.world.living[coordinator].restored if coordinator in self.world.living else None
        return (self.world.task.run or ("", 1))[1] if found is None else found.majority

    def _compare(self) -> None:
        histories = {tuple(sorted(peer.digests.items())) for peer in self.world.alive}
        if self.world.task.run_id and len(histories) > 1:
            raise ProtocolBug("living peers have different histories")
        views = [peer.node.view for peer in self.world.alive]
        if any(view != views[0] for view in views):
            raise ProtocolBug(f"two views have one stamp: {self._where()}")

    def _look(self) -> None:
        """Once a second: has anybody waited for too long?"""
        self.world.clock.budget = self.world.clock.events + self._storm
        shadow = self._in_shadow(self.world.clock.now) or not self._possible()
        for peer in self.world.alive:
            over, calm = self._progress.get(peer, (-1, 0.0))
            idle = peer.finished or peer.leaving or shadow or peer.done != over or self._run_is_over
            calm = 0.0 if peer.done != over else calm + (0.0 if idle else _LOOK_EVERY_S)
            self._progress[peer] = peer.done, calm
            if calm > self.calm_s:
                raise ProtocolBug(
                    f"round {peer.done + 1} did not end at {peer.id} within {self.calm_s:.1f} s: {self._where()}"
                )
        self._look_for_pause()
        self._look_who_is_out()
        self.world.clock.after(_LOOK_EVERY_S, self._look)

    def _look_who_is_out(self) -> None:
        """Has anybody been put out of a view though nothing has kept it from being heard for long?"""
        for peer in self.world.alive:
            if peer.times_out > self._put_out.get(peer, 0) and not self._is_silencing(peer, self.world.clock.now):
                raise ProtocolBug(f"{peer.id} was put out, though nothing was wrong: {self._where()}")
            self._put_out[peer] = peer.times_out

    def _is_silencing(self, peer: SimulatedPeer, now: float) -> bool:
        """Whether it may be out because of a fault: as somebody is not heard, or not heard of; or as it wanted to
        leave, and has changed its mind."""
        if self.schedule.loss:
            return True
        at, patience = now - self._began, _succession_s(self.schedule, self.limits) + GRACE_S
        return any(
            f.at <= at <= f.end + patience and (KINDS[f.kind].silences or (f.kind == "aside" and peer.id in f.who))
            for f in self.schedule.faults
        )

    def _look_for_pause(self) -> None:
        """Has nothing come of anything for too long, though enough are there, and nothing new is wrong?"""
        ends, disturbed = self.world.ledger.checked, self._disturbed
        goes_on = disturbed or ends != self._ends or not self._might_go_on()
        self._disturbed, self._ends = False, ends
        self._pause = 0.0 if goes_on else self._pause + _LOOK_EVERY_S
        self.longest_pause_s = max(self.longest_pause_s, self._pause)
        if self._pause > self.pause_s:
            raise ProtocolBug(f"no round ended for {self.pause_s:.1f} s, though enough are there: {self._where()}")

    def _might_go_on(self) -> bool:
        """Whether there is a round to come for which nobody waits but those who are there, or are gone."""
        alive = self.world.alive
        if self._run_is_over or self._split is not None or self._in_shadow(self.world.clock.now, _WAITED_FOR):
            return False
        view = _newest(alive)
        if view is None or view.run != self.world.task.run_id:
            return False
        enough = self._enough(view)
        if any(self.world.living[peer].finished for peer in enough):
            return False
        known = _newest(self.world.living[peer] for peer in enough)
        # Where none of them has heard of it, they go on from what they know.
        return known is not None and (known == view or bool(self._enough(known)))

    def _enough(self, view: View) -> set[PeerId]:
        """Who is there of a view, if they are a quorum of it."""
        found = there(self.world, view)
        nodes = [peer.node for peer in self.world.alive if isinstance(peer.node, Node)]
        settled = any(node.view == view and node.parts.membership.settled for node in nodes)
        return found if view.may_go_on(found, settled=settled) else set()

    def _result(self) -> str:
        alive = sorted(self.world.alive, key=lambda peer: peer.id)
        if not alive:
            return "nobody is left"
        done = " ".join(str(number) for number in sorted({peer.done for peer in alive}))
        said = f"{' '.join(peer.id for peer in alive)} have come to round {done} in one view"
        if self._split is not None:
            said += f", with the weights of undivided training; {self._split.seen}"
        return said

    def _tell(self, title: str) -> None:
        if self._account is not None:
            self._account.begin(title, self.world.clock.now)

    def _where(self) -> str:
        """Where everybody stands, for people."""
        told = []
        for peer in self.world.alive:
            view = peer.node.view
            told.append(f"{peer.id} {peer.done} in {'no view' if view is None else f'{view.epoch}{list(view.ids)}'}")
        return ", ".join(told) or "nobody is alive"

    # -- what happens ----------------------------------------------------------------------------------------

    def _happen(self, fault: Fault) -> None:
        happen: dict[str, Callable[[Fault], bool]] = {
            "oneway": self._cut, "cut": self._cut, "isolate": self._cut, "partition": self._cut, "reset": self._reset,
            "kill": self._kill, "power": self._kill, "freeze": self._freeze, "slow": self._slow,
            "broker": self._broker, "leave": self._leave, "join": self._join, "timeout": self._timeout,
            "run": self._run, "cancel": self._cancel, "flip": self._flip, "sleep": self._sleep,
            "aside": self._aside, "quit": self._quit, "lose": self._lose, "busy": self._busy,
        }  # fmt: skip
        self._tell(str(fault))
        self._disturbed = True
        if fault.until is not None:
            self._later(fault, partial(self._is_over, fault))
        if not happen[fault.kind](fault):
            self._tell("            meets nobody")
        elif fault.kind != "flip":  # what it has asked for comes with the next chance, if at all
            self._happened.append(fault.kind)

    def _is_over(self, fault: Fault) -> None:
        self._tell(f"{fault.until:<11g} end of {fault.deed}")
        self._disturbed = True

    def _later(self, fault: Fault, do: Callable[[], object]) -> None:
        if fault.until is not None:
            self.world.clock.after(fault.until - fault.at, do)

    def _victim(self, fault: Fault) -> SimulatedPeer | None:
        """Whom it happens to, if it lives."""
        return self.world.living.get(PeerId(fault.who[0]))

    def _ways(self, fault: Fault) -> list[tuple[PeerId, PeerId]]:
        """What a cut cuts."""
        world, who = self.world, [PeerId(name) for name in fault.who]
        if fault.kind == "oneway":
            return [(who[0], who[1])]
        others = who[1:] if fault.kind == "cut" else [p for p in (*world.peers, BROKER) if p not in who]
        inside = who[:1] if fault.kind == "cut" else who
        return [way for one in inside for other in others for way in ((one, other), (other, one))]

    def _cut(self, fault: Fault) -> bool:
        ways = self._ways(fault)
        for source, target in ways:
            self.world.cut(source, target)
        for source, target in ways:
            self._later(fault, partial(self.world.heal, source, target))
        return bool(ways)

    def _reset(self, fault: Fault) -> bool:
        one, other = (PeerId(name) for name in fault.who)
        connected = (min(one, other), max(one, other)) in self.world.network.connections()
        self.world.network.reset(one, other)
        return connected

    def _kill(self, fault: Fault) -> bool:
        peer = self._victim(fault)
        if peer is None:
            return False
        self.world.kill(peer, silently=fault.kind == "power")
        self._later(fault, lambda: self.world.restart(peer) if not peer.alive else None)
        return True

    def _freeze(self, fault: Fault) -> bool:
        peer = self._victim(fault)
        if peer is None or peer.frozen:
            return False
        self.world.freeze(peer)
        self._later(fault, lambda: self.world.thaw(peer))
        return True

    def _sleep(self, fault: Fault) -> bool:
        peer = self._victim(fault)
        if peer is None or peer.frozen:
            return False
        self._cut(fault)  # first, so that in the end its kernel hears before its process goes on
        return self._freeze(fault)

    def _slow(self, fault: Fault) -> bool:
        peer = self._victim(fault)
        if peer is None or peer.slowness > 1:
            return False
        peer.slowness = float(fault.extra[1:])

        def recover() -> None:
            peer.slowness = 1.0

        self._later(fault, recover)
        return True

    def _broker(self, fault: Fault) -> bool:
        broker = self.world.broker
        if not broker.up:
            return False
        broker.go_down(forget=fault.extra == "forget")
        self._later(fault, broker.come_up)
        return True

    def _leave(self, fault: Fault) -> bool:
        peer = self._victim(fault)
        if peer is None or peer.leaving:
            return False
        peer.soon(peer.leave)
        return True

    def _join(self, fault: Fault) -> bool:
        if PeerId(fault.who[0]) in self.world.peers:
            return False
        self.world.add(fault.who[0])
        return True

    def _timeout(self, fault: Fault) -> bool:
        peer = self._victim(fault)
        if peer is None:
            return False
        peer.soon(peer.time_out)
        return True

    def _run(self, fault: Fault) -> bool:
        task, alive = self.world.task, self.world.alive
        if not task.run or not alive or self._split is not None:
            return False
        task.ask_for_another_run(len(alive) // 2 + 1)
        for peer in alive:
            self.world.clock.after(self._owners.uniform(0.0, 1.0), partial(peer.soon, peer.take_up_another_run))
        return True

    def _cancel(self, fault: Fault) -> bool:
        peer = self._victim(fault)
        if peer is None or not peer.waits:
            return False
        peer.soon(peer.cancel)
        return True

    def _owners_of(self, fault: Fault) -> list[SimulatedPeer]:
        """Whom it happens to, of those who live; not to parts of a divided network, which are gone with their state."""
        living = self.world.living
        return [living[PeerId(name)] for name in fault.who if name in living] if self._split is None else []

    def _aside(self, fault: Fault) -> bool:
        met = [peer for peer in self._owners_of(fault) if not (peer.aside or peer.leaving)]
        for peer in met:
            peer.soon(peer.stand_aside)
            self._later(fault, partial(peer.soon, peer.come_back))
        return bool(met)

    def _quit(self, fault: Fault) -> bool:
        met = self._owners_of(fault) if self.world.task.run is not None else []
        for peer in met:
            peer.soon(peer.quit_run)
            self._later(fault, partial(peer.soon, peer.take_part_again))
        return bool(met)

    def _lose(self, fault: Fault) -> bool:
        met = self._owners_of(fault) if self.world.task.run is not None else []
        for peer in met:
            peer.soon(peer.lose_state)
        return bool(met)

    def _busy(self, fault: Fault) -> bool:
        peer = self._victim(fault)
        if peer is None or fault.until is None:
            return False
        peer.busy_until = max(peer.busy_until, self.world.clock.now + fault.until - fault.at)
        return True

    def _flip(self, fault: Fault) -> bool:
        peer = self._victim(fault)
        if peer is None or peer.split is None:
            return False
        error = parse_flip(f"0@0:{fault.extra}")
        peer.split.err(error.place, error.kind)
        return True
