"""Who is to be in: joiners, leavers, the lost, and what the next view should be.

    role         | is                           | may
    -------------+------------------------------+----------------------------------------------------------
    outside      | in no view                   | begin a generation (outside.py)
    member       | in a view, not at its head   | report the lost to the coordinator; stand for its place when its own
                 |                              | parent is lost and nobody before it in the order has
    coordinator  | position 0                   | propose the next view: at a round's end or between rounds for
                 |                              | joiners, leavers and runs, at once for the lost

A coordinator that wants to leave first hands its place to somebody who stays, and then leaves like any member: not
before the new coordinator has the result of the last round that it took part in.

This module says what is wanted; what is to happen, the lives of the view decide (succession.py); `node` sends and
installs. Where so many lives of a view have ended that no quorum of it can ever be there again, those who live begin a
new generation with what they have (`anew`).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import Final

import msgspec

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.rollcall import RollCall
from edgepeer.topology.view import LAST_LIFE, MAX_EPOCH, MAX_GUARDS, MAX_MEMBERS, Form, Member, View

__all__ = ["LOST_S", "Membership"]

LOST_S: Final = 1.5
"""How long the word of a loss counts, or of who wants to leave. It is said again every half a second, or sooner, for as
long as it is true."""
_SHOWN_S: Final = 1.0
"""Where all are there, a view is mostly settled sooner."""
_FORGIVEN: Final = 10
"""Who has been in for so many times as long as it was kept out, or could have been, is not kept out the next time."""


class Membership:
    """The membership of one peer."""

    def __init__(self, me: Member, fanout: int, lanes: int, limits: Limits, rolls: RollCall, quorum: int = 0) -> None:
        self.me = me
        self.id = PeerId(me.id)
        self.fanout = fanout
        self.lanes = lanes
        self.quorum = quorum
        self._limits = limits
        self._rolls = rolls
        self.view: View | None = None
        self.settled = False
        """Whether nothing of the views before this one can be lost any more."""
        self._fewer = False
        """Whether somebody who was in a view before is in this one no more, and none has been settled since."""
        self.cleared: set[PeerId] = set()
        """Members of the view whose presence has been cleared."""
        self.leaving = False
        self.coordinator = False
        """Whether this peer stands at the head of its view."""
        self.coded = False
        """Whether the owner wants rounds to be coded: then members own slots."""
        self.slots: tuple[str, ...] = ()
        """Whose the slots of the run that the owner wants were, if it goes on from a checkpoint of that."""
        self.waits = ""
        """Why nothing comes of the view that this peer wants; empty if something does, or if it wants none."""
        self.run: tuple[str, int] | None = None
        """The run that is wanted, and how many peers it takes ..."""
        self._expected: tuple[str, int] | None = None
        """... or the one that is to be."""
        self._penalties: dict[PeerId, tuple[float, float]] = {}  # how long who was lost is kept out, and until when
        self._ended: set[PeerId] = set()  # members that have spoken in a later life
        self._refused: dict[PeerId, float] = {}  # members where nobody listens, and since when
        self._lost: dict[PeerId, float] = {}  # until when, unless that is said again
        self._answering: dict[PeerId, float] = {}  # of these, who answers while the others are too few, and since when
        self._leavers: dict[PeerId, tuple[int, int, float]] = {}  # incarnation, last round that needs it, until when
        self._changed_at: float | None = None
        self._entered_at = 0.0
        self._copied = 0  # the latest life that somebody else has led under this peer's name
        self._disowned = False

    # -- roles -------------------------------------------------------------------------------------------

    def contains_me(self, view: View) -> bool:
        """Whether the view means this peer in this life, and not another that has the same number."""
        return self.id in view and view.member(self.id) == self.me

    def enter(self, view: View, now: float) -> None:
        """This peer works in `view` from now on."""
        before = self.view
        stay = {PeerId(m.id) for m in view.members if before is not None and _contains(before, m)}
        fewer = before is not None and len(stay) < before.size
        self._fewer = fewer or (self._fewer and not self.settled)
        self.view, self.waits, self.settled = view, "", not view.guards
        self.coordinator = view.coordinator == self.id
        self._entered_at = now
        self._disowned = False
        # Not of who is back anew, nor of who was kept: those who have said so may be out now.
        self._lost = {peer: until for peer, until in self._lost.items() if peer in stay - {*self._answering}}
        self._answering.clear()
        self._refused = {peer: since for peer, since in self._refused.items() if peer in stay}
        self._ended = {PeerId(m.id) for m in view.members if self._rolls.life(PeerId(m.id)) > m.incarnation}
        self.cleared &= set(view.ids)
        self._leavers = {peer: said for peer, said in self._leavers.items() if _has(view, peer, said[0])}
        # Who came before this peer became coordinator waits still.
        self._changed_at = now if self.coordinator else None

    def exit(self) -> None:
        """This peer is in no view any more."""
        self.view, self.waits, self.coordinator, self._changed_at = None, "", False, None
        self.cleared.clear()

    def new_life(self, *, after: int = 0) -> None:
        """What this life has promised is over: come back as another."""
        life = max(self.me.incarnation, self._copied, after) + 1
        self.me = msgspec.structs.replace(self.me, incarnation=life)

    def settle(self) -> None:
        """Nothing of the views before can be lost any more."""
        self.settled = True

    def introduce(self, addresses: tuple[str, ...]) -> None:
        """Where this peer listens."""
        self.me = msgspec.structs.replace(self.me, addresses=addresses)

    def wait_for(self, why: str) -> None:
        """Why nothing comes of the view that this peer wants; empty if something does."""
        self.waits = why

    def want_code(self, coded: bool) -> None:
        """Whether the owner wants rounds to be coded."""
        self.coded = coded

    # -- what is heard -------------------------------------------------------------------------------------

    def on_life(self, peer: PeerId, incarnation: int, now: float) -> None:
        """A peer has spoken in this life: a member's earlier one has ended."""
        view = self.view
        if view is not None and peer in view and view.member(peer).incarnation < incarnation:
            self._ended.add(peer)
            self.note_change(now)

    def on_own_life(self, incarnation: int) -> bool:
        """Somebody else lives, or has lived, under this peer's name. Whether that is a later life than this one: who
        has heard of it takes this one for dead."""
        if not self.me.incarnation < incarnation < LAST_LIFE:
            return False
        self._copied = max(self._copied, incarnation)
        return True

    def disown(self) -> None:
        """Others take this life for dead, and say so."""
        self._disowned = True

    @property
    def disowned(self) -> bool:
        """Whether others may take this life for dead, since they have heard of a later one."""
        return self._disowned or self._copied > self.me.incarnation

    def on_refused(self, peers: Iterable[PeerId], now: float) -> None:
        """Of those whom this peer tries to be connected with, these members' machines say that nobody listens there. Of
        others that is of the past."""
        self._refused = {peer: self._refused.get(peer, now) for peer in peers}

    @property
    def refusing(self) -> set[PeerId]:
        """Members whose machines say that nobody listens there."""
        return {*self._refused}

    def excuse(self, seconds: float, now: float) -> None:
        """This peer was stopped for so long, and has tried nobody."""
        self._refused = {peer: min(since + seconds, now) for peer, since in self._refused.items()}

    def on_presence(self, peer: PeerId, now: float) -> None:
        """A peer is announced."""
        self.cleared.discard(peer)
        self.note_change(now)

    def on_gone(self, peer: PeerId) -> None:
        """A peer's presence has been cleared."""
        if self.view is not None and peer in self.view:
            self.cleared.add(peer)

    def leave(self, now: float) -> None:
        """The owner wants to leave."""
        self.leaving = True
        if self.coordinator:
            self.note_change(now)

    def come_back(self) -> None:
        """The owner, which wanted to leave, wants to be in."""
        self.leaving = False

    def expect_run(self, run: str, peers: int) -> None:
        """The owner is to want that run, of at least so many peers."""
        self._expected = run, peers

    @property
    def cares_for(self) -> tuple[str, int] | None:
        """The run that is wanted, or is to be, and how many peers it takes."""
        return self.run or self._expected

    def want_run(self, run: str | None, peers: int, now: float, *, slots: tuple[str, ...] = ()) -> None:
        """The owner wants a run, of at least so many peers. `slots`: whose those of its code were, if the owner has a
        checkpoint of it: a code may not be to be had of fewer, if fewer peers come together again."""
        self.run, self._expected = (run, peers) if run is not None else None, None
        self.slots = slots
        self.note_change(now)

    def takes_part(self, run: str) -> bool:
        """Whether the owner wants that run."""
        return self.run is not None and self.run[0] == run

    def on_leaver(self, peer: PeerId, incarnation: int, until: int, now: float) -> None:
        """Coordinator: a member wants to leave, for as long as it says so again: its owner may change its mind."""
        # What it asked for itself as a member, before it became coordinator, is settled; so is an earlier life's word.
        if peer != self.id and self.view is not None and _has(self.view, peer, incarnation):
            self._leavers[peer] = incarnation, until, now + LOST_S
            self.note_change(now)

    def on_stayer(self, peer: PeerId, incarnation: int) -> None:
        """Coordinator: it has changed its mind."""
        if self._leavers.get(peer, (0, 0, 0.0))[0] <= incarnation:
            self._leavers.pop(peer, None)

    @property
    def ended(self) -> set[PeerId]:
        """Members that were heard of in a later life."""
        return self._ended - {self.id}

    def leavers(self, now: float) -> dict[PeerId, int]:
        """Coordinator: who wants to leave, and after which round."""
        return {peer: until for peer, (_, until, said_until) in self._leavers.items() if said_until > now}

    def lose(self, peer: PeerId, now: float) -> bool:
        """Coordinator: a member is gone, for as long as somebody goes on to say so. Whether that is news."""
        if self.view is None or peer not in self.view or peer == self.id:
            return False
        news = self._lost.get(peer, 0.0) <= now
        self._lost[peer] = max(self._lost.get(peer, 0.0), now + LOST_S)
        return news

    def lost(self, now: float) -> set[PeerId]:
        """Coordinator: the members that are gone."""
        return {peer for peer, until in self._lost.items() if until > now} | self.ended

    def doubts(self, now: float) -> bool:
        """Coordinator: whether others may be lost together with those whom this view does without, as it has not shown
        in time that all are there."""
        return self._fewer and not self.settled and now >= self._entered_at + _SHOWN_S

    def note_change(self, now: float) -> None:
        """There may be a reason for another view."""
        if self._changed_at is None:
            self._changed_at = now

    # -- who might be let in ---------------------------------------------------------------------------------

    def callees(self) -> list[PeerId]:
        """Coordinator: who is announced, and not in the view in that life."""
        view = self.view
        if view is None or self.leaving:
            return []
        found = ((peer, self._rolls.announced(peer)) for peer in self._rolls.order)
        return [peer for peer, member in found if member is not None and not _contains(view, member)]

    def _joiners(self, view: View, now: float) -> list[Member]:
        found = (self._rolls.joiner(peer, now) for peer in self.callees())
        return [m for m in found if m is not None and not _contains_later(view, m)]

    def _barred_until(self, peer: PeerId) -> float:
        return self._penalties.get(peer, (0.0, float("-inf")))[1]

    def barred(self, now: float) -> dict[PeerId, float]:
        """Coordinator: who is not to be let in yet, and for how much longer."""
        return {peer: until - now for peer, (_, until) in sorted(self._penalties.items()) if until > now}

    # -- the next view -----------------------------------------------------------------------------------------

    def consider(
        self,
        *,
        first_round: int,
        boundary: bool,
        idle: bool,
        needed: bool,
        over: bool,
        there: Container[PeerId],
        present: Container[PeerId],
        now: float,
        answering: Container[PeerId] = (),
        lets_go: bool = True,
    ) -> View | None:
        """Coordinator: make up one's mind. Returns the view to propose now, None when there is no need or it is not
        time; why it can't be had then stands in `waits`.

        A run in which nobody takes part any more is over: the next view has none. There is one at once if this one is
        not settled, for it never will be: who comes after the last round is given no state, and stands after none; or
        if the owner wants that run again, which begins anew then.

        Args:
            over: the run of the view is over (`Over`).
            there: whom it has heard of just now; what can't be decided by these is not proposed.
            present: who has answered since somebody wanted to leave.
            answering: who was heard of in a later life, and has answered since.
            lets_go: those who want to leave, if the others can go on without them.
        """
        view, self.waits = self.view, ""
        if view is None or (self.leaving and view.size == 1):
            return None
        # Till the view is settled each of its lives may be needed to decide what follows; but not for longer than it
        # takes to know who is lost: a round that waits for a leaver may be what keeps it from being settled.
        settled = self.settled or now >= self._entered_at + self._limits.silence_s + self._limits.takeover_s
        leaving = self.leavers(now)
        lost = self._spared(view, self.lost(now), there, answering, now)
        leavers = leaving if lets_go and settled and self._spares(view, {*leaving, *lost}, present) else {}
        due = self._changed_at is not None and now >= self._changed_at + self._limits.join_batch_s
        # The round in progress can't end without somebody who will not contribute to it, and needs nothing of it.
        stuck = any(until < first_round for until in leavers.values()) or (self.leaving and due and not needed)
        if not (lost or boundary or stuck or (idle and due)):
            return None
        wanted = self._joiners(view, now)
        joiners = [member for member in wanted if self._barred_until(PeerId(member.id)) <= now]
        if not self.settled:
            # As another life: this one counts as one that has seen what was decided before (`View.all_guards`).
            joiners = [member for member in joiners if not view.has_left_out(member)]
        later = [until for member in wanted if (until := self._barred_until(PeerId(member.id))) > now]
        gone = lost | set(leavers)
        if leavers and not view.may_go_on({p for p in view.ids if p not in gone}, settled=self.settled):
            # Nothing could be decided in the next view before all of it have what counts here. Who stays has it.
            joiners = []
        if not self.settled and len(view.guards) >= MAX_GUARDS // 2:
            joiners = []  # there must be room for views without the lost: with one of them in it none is ever settled
        joiners = joiners[: MAX_MEMBERS - view.size + len(gone)]
        staying = [peer for peer in view.ids if peer not in gone and peer not in leaving and peer != self.id]
        head = staying[0] if self.leaving and due and staying else None
        size = view.size - len(gone) + len(joiners)
        run = None
        if self.run is not None and self.run[0] != view.run and size >= self.run[1]:
            run = self.run[0]
        elif over:
            run = ""
        can_stay = run is None or (not run and lets_go and self.settled and not self.takes_part(view.run))
        if not gone and not joiners and can_stay and head is None:
            if not self.leaving and lets_go:
                self._changed_at = min(later, default=None)
            return None
        # Without those who are lost it takes a quorum of the others, who should be there before they are bound to it.
        here = {p for p in view.ids if (p in there or p in leavers) and p not in lost} if lost else view.ids
        if not self.may_succeed(view, here):
            return None
        return view.successor(
            first_round=first_round,
            without=gone,
            joined=joiners,
            coordinator=head,
            run=run,
            coded=self.coded,
            settled=self.settled,
            slots=self.slots,
        )

    def _spared(
        self, view: View, lost: set[PeerId], there: Container[PeerId], answering: Container[PeerId], now: float
    ) -> set[PeerId]:
        """Of the lost those whom the others can do without: all, if these are enough.

        Else somebody is kept who answers, as far as that is still a reason for another view. First who lives in the
        life that the view means, though a later one was heard of: its device was copied. Then, in the order of the
        view, whom others can't reach: of two that are cut off from each other one is enough to be out.

        What was said may be of a time when they could not be reached. So once one of them has come to answer, nobody is
        done without before all that was said until then is over; and who answers not before it has for as long as it
        takes to be lost anew.
        """

        def enough(without: set[PeerId]) -> bool:
            return view.may_go_on({p for p in view.ids if p in there and p not in without}, settled=self.settled)

        if not lost or enough(lost):
            self._answering.clear()
            return lost
        self._answering = {p: self._answering.get(p, now) for p in lost if p in there and p not in self._ended}
        lost = lost - {p for p in self._ended if p in answering}
        if enough(lost):
            return lost
        back = self._answering
        if now < max(back.values(), default=float("-inf")) + LOST_S:
            return lost
        fewer = {p for p in lost if p not in back or now >= back[p] + self._limits.silence_s}
        for peer in view.ids:
            if enough(fewer):
                break
            if peer in there and peer not in self._ended:
                fewer.discard(peer)
        return fewer if fewer and enough(fewer) else lost

    def _spares(self, view: View, going: Collection[PeerId], present: Container[PeerId]) -> bool:
        """Whether the others can go on without those who leave: all of them are there, or enough. Else one of them may
        be dead, and the vote of who leaves is needed to decide on a view without that one."""
        staying = [peer for peer in view.ids if peer not in going]
        here = {peer for peer in staying if peer in present}
        return len(here) == len(staying) or view.may_go_on(here, settled=self.settled)

    def reform(self, form: Form, *, first_round: int, now: float) -> View | None:
        """Coordinator: the same members with other trees. None while anything else is pending."""
        view = self.view
        if view is None or not self.settled or self.leaving or self.waits or self.lost(now):
            return None
        if view.slots or self.coded or self.leavers(now) or self._joiners(view, now):
            return None
        if sorted(form.order) != sorted(view.ids) or not self.may_succeed(view, view.ids):
            return None
        return view.successor(first_round=first_round, form=form, settled=self.settled)

    def may_succeed(self, view: View, there: Container[PeerId]) -> bool:
        """Whether these can decide what follows, and the chain has room for it. If not, `waits` says why."""
        if not view.may_go_on(there, settled=self.settled):
            count = sum(peer in there for peer in view.ids)
            self.waits = f"{count} of {view.size} peers are in reach, too few to go on without the others"
            if view.may_go_on(there, settled=True):
                self.waits += " while not all have what was decided before"
        elif view.epoch == MAX_EPOCH or (not self.settled and len(view.all_guards) > MAX_GUARDS):
            self.waits = "some peers have not heard of the last views yet"
        else:
            self.waits = ""
        return not self.waits

    def penalise_lost(self, wanted: View, now: float) -> None:
        """Coordinator: that view is proposed. Who is lost by it is kept out for a while."""
        for peer in self.lost(now):
            if self.view is not None and not _contains(wanted, self.view.member(peer)):
                self._penalise(peer, now)

    def _penalise(self, peer: PeerId, now: float) -> None:
        """A peer that is lost again and again must not hold up the others each time. One that has been in for long
        enough since it was let in, for what it had to wait, is forgiven: else it would be out for most of the time."""
        least, most = self._limits.penalty_s, self._limits.penalty_limit_s
        self._penalties = {
            other: (pause, until)
            for other, (pause, until) in self._penalties.items()
            if now - until <= _FORGIVEN * max(pause, least)
        }
        before = self._penalties.get(peer)
        pause = 0.0 if before is None else min(max(2 * before[0], least), most)
        self._penalties[peer] = pause, now + pause

    def my_turn(self, lost_at: float, now: float) -> bool:
        """Whether this peer may stand for the head's place, its parent having been lost."""
        since = max(lost_at, self._entered_at)
        return self.view is not None and now >= since + (self.view.position(self.id) - 1) * self._limits.takeover_s

    def gone(self, now: float) -> set[PeerId]:
        """Whose life in the view has ended, as far as that is known: its peer has spoken in a later one, or nobody has
        listened on its machine for `anew_s`."""
        return self.ended | {peer for peer, since in self._refused.items() if now >= since + self._limits.anew_s}

    def left(self, view: View, now: float, answering: set[PeerId]) -> set[PeerId]:
        """Whose life in the view may not have ended. If these are no quorum, the view is over for good.

        Args:
            view: that this peer works in.
            now: the time.
            answering: who has answered in that life since it was taken to have ended: a device that was copied, or one
                that nobody can dial any more. It lives.
        """
        gone = self.gone(now) - answering
        return {peer for peer in view.ids if peer not in gone}

    def anew(self, survivors: Iterable[PeerId], first_round: int, now: float) -> View | None:
        """The first view of a new generation, of a view that is over for good: of those who are left of it, and all
        others who are there. It goes on with what the survivors have."""
        view = self.view
        if view is None or self.leaving:
            return None
        stay = {*survivors, self.id}
        joiners = [member for member in self._joiners(view, now) if member.id not in stay][: MAX_MEMBERS - len(stay)]
        if len(stay) + len(joiners) < min(view.quorum, view.size):
            return None  # so many are to be together to go on without the others, be it in another generation
        lives = sorted((m.id, m.incarnation) for m in (*(view.member(p) for p in stay), *joiners))
        mine = (self.me.id, self.me.incarnation)
        generation = Generation.after(max(self._rolls.newest or view.generation, view.generation), [mine, *lives])
        generation = msgspec.structs.replace(generation, founders=len(lives))
        return view.successor(
            first_round=first_round,
            without=set(view.ids) - stay,
            joined=joiners,
            coordinator=self.id,
            coded=self.coded,
            generation=generation,
        )

    # -- time --------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When the coordinator may have to act although nothing happens; the node's tick covers the rest."""
        if self.coordinator and self._changed_at is not None:
            return self._changed_at + self._limits.join_batch_s
        return None


def _has(view: View, peer: PeerId, life: int) -> bool:
    """Whether it has that life of a peer, or an earlier one."""
    return peer in view and view.member(peer).incarnation <= life


def _contains(view: View, member: Member) -> bool:
    """Whether the view means this peer in this life."""
    return PeerId(member.id) in view and view.member(PeerId(member.id)).incarnation == member.incarnation


def _contains_later(view: View, member: Member) -> bool:
    """Whether the view means this peer in a later life."""
    return PeerId(member.id) in view and view.member(PeerId(member.id)).incarnation > member.incarnation
