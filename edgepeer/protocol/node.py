"""One peer's protocol: events in, effects out, one deadline. What is in this file is about views.

`handle(event, now)` never fails because of what came from outside: a frame that makes no sense is ignored or
costs its sender the link. It raises ProtocolBug only for a state that must not exist.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from edgepeer.errors import WireError
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.diagnosis import diagnose
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.outside import Outside
from edgepeer.protocol.place import UNKNOWN
from edgepeer.protocol.rollcall import Word, in_view, letter
from edgepeer.protocol.succession import Standing
from edgepeer.protocol.waking import Waking
from edgepeer.protocol.wiring import Wiring
from edgepeer.topology.view import Member, View
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack, unpack

__all__ = ["ASKED_BEFORE_ANEW", "Node"]

_OF_ROUNDS: Final = frozenset({fr.Reduce, fr.Result, fr.Have, fr.Decide, fr.Progress, fr.Release})
"""Frames that give no reason for another view, as long as they end no round."""

EXCUSED_S: Final = 0.02
"""A tick that comes later than this finds the peer's own machine busy."""
SUSPECT_AGAIN_S: Final = 0.5
"""The coordinator is told of the same loss this often, until there is a new view."""
CALL_ROUND_S: Final = 0.1
CALL_BATCH_S: Final = 0.01
"""Presences come in swarms: those of so long a time are called together."""
CALLED_OF_HINT: Final = 8
HINT_S: Final = 3.0
"""How long somebody may take to confirm a view that is only retained."""
ASKED_BEFORE_ANEW: Final = 4
"""Nobody begins a generation from a view before all of it have been asked so many times who is there."""


class Node(Wiring):
    """The machine that a peer runs.

    Args:
        me: this peer as it introduces itself.
        fanout: the tree's fan-out, if this peer makes the first view.
        quorum: how many members must be together to go on, if more than a majority, and if this peer makes the first
            view; 0: the majority.
        limits: within which bounds to give up on what.
        known: the newest generation that this peer was ever in.
        now: the current time; all later `now` come from the same clock and never go back.
    """

    def __init__(
        self,
        me: Member,
        *,
        fanout: int = 2,
        quorum: int = 0,
        limits: Limits | None = None,
        known: Generation | None = None,
        now: float,
    ) -> None:
        super().__init__(me, fanout, quorum, limits or Limits(), now)
        self.rolls.learn(known)
        self.outside = Outside(self.membership, self.rolls, self.limits)
        self.waking = Waking(self.allreduce.place, self.rolls, self.limits)
        self._tick_at = now
        self._call_at = now
        self._left = False
        self._hint_at = 0.0
        self._suspect_again: dict[PeerId, float] = {}
        self._on_event |= {
            ev.PresenceSeen: self._on_presence_seen,
            ev.PresenceGone: self._on_presence_gone,
            ev.ViewSeen: lambda e: self._on_hint(e.view),
            ev.ControlSynced: lambda e: self._on_control_synced(),
            ev.ControlLost: lambda e: None,
            ev.Contribute: self._on_contribute,
            ev.CodeWanted: self._on_code_wanted,
            ev.RunWanted: self._on_run_wanted,
            ev.LeaveWanted: self._on_leave_wanted,
            ev.JoinWanted: self._on_join_wanted,
        }
        self._on_frame |= {
            fr.Sync: self._on_sync,
            fr.ViewFrame: self._on_view_frame,
            fr.Suspect: self._on_suspect,
            fr.Leave: lambda p, f, e: self._on_leave(f),
            fr.Poll: lambda p, f, e: self._on_poll(p, f),
            fr.Propose: self._on_propose,
            fr.Vote: self._on_vote,
        }

    # -- the interface -------------------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        """This peer in its present life."""
        return self.membership.me

    @property
    def view(self) -> View | None:
        return self.membership.view

    @property
    def waits(self) -> str:
        """Why nothing comes of the view that this peer wants, and who does not answer; empty if something does."""
        why, view = self.membership.waits, self.view
        silent = [peer for peer in view.ids if peer not in self.succession.there] if view is not None and why else []
        if not silent:
            return why
        names = ", ".join(silent[:5]) + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
        return f"{why}; no answer from {names}"

    def introduce(self, addresses: tuple[str, ...]) -> None:
        """Where this peer listens: to be said before it takes part in anything."""
        self.membership.me = msgspec.structs.replace(self.membership.me, addresses=addresses)

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        """What to do about `event`, which happened at `now`."""
        self._pass_time(now)
        before = self.allreduce.committed
        self._on_event[type(event)](event)
        self._look_awake()
        if self.allreduce.committed > before:
            self.vitals.round_ended(now)
        boundary = self.allreduce.committed != before
        if self.membership.coordinator and (boundary or not _is_of_a_round(event)):
            self._coordinate(boundary=boundary)
        return self._drain()

    def tick(self, now: float) -> list[fx.Effect]:
        """What to do because `next_deadline()` has come."""
        late = self._pass_time(now)
        self._look_awake()
        if late >= 0:
            if late > EXCUSED_S:
                self.links.excuse(late, now)  # this peer was not listening; what has come meanwhile is still to be read
            self._check_links()
            self._tick_at = self.vitals.next_due(now)
        self.paths.tick(now)
        self.allreduce.look_again()
        if self.waking.over and (first := self.outside.first_view(now)) is not None:
            self._install(first)
        if self.membership.coordinator:
            self._coordinate(boundary=False)
        if now >= self._call_at:
            self._call_round()
        return self._drain()

    def next_deadline(self) -> float:
        """When to call `tick`, at the latest."""
        due = min(self._tick_at, self._call_at)
        deadlines = (
            self.outside.next_deadline(),
            self.waking.next_deadline(),
            self.membership.next_deadline(),
            self.paths.next_deadline(),
            self.allreduce.next_deadline(),
        )
        for other in deadlines:
            if other is not None and self._now < other < due:  # what has passed without effect waits for the next tick
                due = other
        return due

    def _pass_time(self, now: float) -> float:
        """It is now so late. Returns by how much this peer is later than it wanted to be."""
        self._now = self.allreduce.place.now = now
        late = now - self._tick_at
        if late >= self.limits.silence_s and self.waking.over:
            self.waking.begin(late, now)
            self._write_to_myself()
        return late

    def _write_to_myself(self) -> None:
        self._emit(letter(self.id, self.id, self._call(view=True)))

    def _look_awake(self) -> None:
        if self.waking.look(self._now):
            self.allreduce.go_on()

    def diagnosis(self, now: float) -> dict[str, Any]:
        """All that decides what this peer does next, as JSON has it."""
        return diagnose(self, now)

    # -- neighbours -----------------------------------------------------------------------------------------

    def _on_sync(self, peer: PeerId, frame: fr.Sync, event: ev.FrameReceived) -> None:
        link, view = self.links[peer], self.view
        link.sync = frame
        self._heed(peer, Word(self._now, link.life, frame.generation, frame.epoch), None)
        if view is not None and _earlier(frame, view):
            self._send_view(peer, view)
            self.neighbours.send_sync(peer)
        elif self.neighbours.is_level(peer):
            self.neighbours.on_sync(peer, frame, self._now)

    def _check_links(self) -> None:
        for peer in self.vitals.tick(self._now):
            self._on_path_down(peer)
        view = self.view
        for member, end in self.links.all():
            self.membership.on_refused(member, self._now, refused=end.refused and not end.up)
        orphan = False
        for peer, reason, since in list(self.links.lost(self._now, others=view is None)):
            self.membership.on_life(peer, self.links[peer].life, self._now)
            if view is None:
                self.outside.on_refused(peer, refused=self.links[peer].refused)
            elif peer == view.parent(self.id):
                orphan = True
                if self.membership.leaving:
                    self._exit(None, "left")  # whoever takes over will find us gone
                    return
                if self._try_takeover(view, peer, reason, since):
                    return
            else:
                self._suspect(peer, reason)
        if not orphan and not self.membership.coordinator:
            self.succession.rest()
        for peer in list(self.allreduce.laggards(self._now)):
            link = self.links.get(peer)
            if link is not None and not link.waiting:
                self._suspect(peer, f"kept the round waiting for {self.limits.stall_s:g} s")
        if self.view is None:
            self.links.want([(member, "other") for member in self.outside.probes()], self._now)
        elif self.membership.leaving:
            self._ask_to_leave()
        self.neighbours.ask_for_state(self._now, patient=False)
        self.vitals.say_if_waiting(self._now)

    def _on_contribute(self, event: ev.Contribute) -> None:
        self.allreduce.contribute(event.vector, event.weight, self._now)
        self._tick_at = min(self._tick_at, self._now + self.vitals.every_s(self._now))

    def _on_code_wanted(self, event: ev.CodeWanted) -> None:
        self.membership.coded = event.coding is not None
        self.allreduce.use_code(event.coding)
        self.neighbours.sync_all()  # children may have spoken of their progress before it could be understood here

    # -- who is there ----------------------------------------------------------------------------------------

    def _on_presence_seen(self, event: ev.PresenceSeen) -> None:
        peer = PeerId(event.member.id)
        if peer == self.id:
            return
        self.links.on_presence(peer)
        self.membership.cleared.discard(peer)
        self.membership.note_change(self._now)
        if self.rolls.on_presence(event.member, self._now):
            self._call_at = min(self._call_at, self._now + CALL_BATCH_S)

    def _on_presence_gone(self, event: ev.PresenceGone) -> None:
        if event.peer != self.id:
            self.rolls.on_gone(event.peer)
            self.membership.on_gone(event.peer)
            self.links.on_gone(event.peer)

    def _on_control_synced(self) -> None:
        self.outside.on_synced(self._now)
        self._call_at = self._now
        if not self.waking.over:
            self._write_to_myself()

    def _call_round(self) -> None:
        """Call whoever matters and has not spoken for a while."""
        view, hint = self.view, self.outside.hint
        callees = self.outside.callees(self._now) if view is None else []
        if view is not None and (self.membership.coordinator or self.succession.asked):
            callees = self.membership.callees()
            if callees and self.membership.coordinator:  # members answer, if the broker brings answers at all
                callees = [*view.ids[1:CALLED_OF_HINT], *callees]
        if view is not None and hint is not None:
            if self._doubt(hint, view):
                return
            callees = [*hint.ids[:CALLED_OF_HINT], *callees]
        callees = [peer for peer in callees if peer != self.id]
        if self.membership.coordinator and (stale := self.rolls.stale()):
            if self.rolls.answered(self._now):
                self._clear(stale)
            else:
                callees.append(self.id)
        self.rolls.call(self.id, callees, self._call(), self._now)
        self._call_at = self._now + CALL_ROUND_S if callees or view is None else float("inf")

    def _clear(self, stale: list[Member]) -> None:
        """Nobody answers for these."""
        names = ", ".join(member.id for member in stale[:5]) + (", ..." if len(stale) > 5 else "")
        self._emit(fx.Note("info", f"cleared the presence of {len(stale)} who did not answer: {names}"))
        for member in stale:
            self.rolls.on_gone(PeerId(member.id))
            self._emit(fx.ClearPresence(member))

    def _call(self, *, view: bool = False) -> fr.Call:
        generation, epoch = in_view(self.view)
        me = self.membership.me
        return fr.Call(
            incarnation=me.incarnation, generation=generation, epoch=epoch, known=self.rolls.newest, view=view
        )

    def _on_letter(self, source: PeerId, frame: fr.Frame, payload: memoryview | bytes) -> None:
        match frame:
            case fr.Call() if source == self.id:
                self.rolls.on_word(source, Word(self._now, frame.incarnation, frame.generation, frame.epoch))
                if frame.view:
                    self.waking.on_letter()
            case fr.Call():
                aside = self._left or self.membership.leaving
                generation, epoch = in_view(self.view)
                incarnation, known = self.membership.me.incarnation, self.rolls.newest
                here = fr.Here(incarnation=incarnation, generation=generation, epoch=epoch, known=known, aside=aside)
                self._emit(letter(self.id, source, here))
                theirs = Word(self._now, frame.incarnation, frame.generation, frame.epoch)
                if self.view is not None and (frame.view or (theirs.epoch and _earlier(theirs, self.view))):
                    self._emit(letter(self.id, source, fr.ViewFrame(epoch=self.view.stamp), _packed(self.view)))
                self._heed(source, theirs, frame.known)
            case fr.Here():
                word = Word(self._now, frame.incarnation, frame.generation, frame.epoch, frame.aside)
                self._heed(source, word, frame.known)
            case fr.ViewFrame(epoch):
                said = self.rolls.word(source, self._now)
                if said is not None and said.epoch == epoch and (view := self._unpack(payload)) is not None:
                    self._on_view(view)

    def _heed(self, peer: PeerId, word: Word, known: Generation | None) -> None:
        """A peer has spoken: it is there, in that life, in that view or in none."""
        self.rolls.on_word(peer, word, known)
        self.membership.on_life(peer, word.life, self._now)
        self.links.on_life(peer, word.life, self._now)
        self.outside.on_refused(peer, refused=False)
        if self.membership.coordinator and self.rolls.joiner(peer, self._now) is not None:
            self.membership.note_change(self._now)
        view, hint = self.view, self.outside.hint
        if not word.epoch or (view is not None and not _earlier(view, word)):
            return
        if hint is not None and hint.stamp == word.epoch:
            self._on_view(hint)  # what was retained is true
        elif view is not None or hint is None or _earlier(hint, word):
            self._emit(letter(self.id, peer, self._call(view=True)))

    # -- views that are only heard of -------------------------------------------------------------------------

    def _on_hint(self, view: View) -> None:
        """A view is retained: it may be of the dead, or nobody's at all. Whoever is in it may say so."""
        mine = self.view
        if mine is None or mine.precedes(view):
            self.outside.on_hint(view)
            self._hint_at = self._now
            self._call_at = self._now
        elif self.membership.coordinator and view.precedes(mine):
            self._emit(fx.PublishView(mine))  # ours is the newer one: MQTT should hold it

    def _doubt(self, hint: View, view: View) -> bool:
        """Nobody has confirmed a retained view yet. Whether this peer has made up its mind.

        Who can go on in its own view does not believe it. To who can't, it is what it is to a newcomer: it may be what
        the others have gone on with, and then died.
        """
        waiting = bool(self.membership.waits)
        if self._now < self._hint_at + (self.limits.anew_s if waiting else HINT_S):
            return False
        if waiting and not self.membership.contains_me(hint):
            self._exit(hint, f"view {hint.epoch} followed without this peer, and nobody of it answers")
            return True
        self.outside.hint = None
        if self.membership.coordinator:
            self._emit(fx.PublishView(view))
        return False

    # -- what follows this view --------------------------------------------------------------------------------

    def _standing(self) -> Standing:
        return Standing(max(self.allreduce.committed, UNKNOWN), self.allreduce.holding)

    def _first_round(self) -> int:
        """The round that comes next, as far as those who speak in the decision have come."""
        view, rounds = self.view, self.allreduce
        if view is None or view.run != rounds.run:
            return view.first_round if view is not None else 1
        others = (each.committed for each in self.succession.standings.values())
        return max(view.first_round, rounds.committed + 1, *(committed + 1 for committed in others), 1)

    def _coordinate(self, *, boundary: bool) -> None:
        """The head: propose another view if there is reason to, and see that it is decided."""
        view, succession = self.view, self.succession
        if view is None:
            return
        lost = self.membership.lost(self._now)
        if succession.proposed or succession.highest:
            self._lead(view)
            return
        if lost:
            self._ask(lead=False)
        wanted = self.membership.next_view(
            first_round=self._first_round(),
            boundary=boundary,
            # A round of a run that the owner has given up may never end: others have given it up as well.
            idle=self.allreduce.idle or view.run not in ("", self.neighbours.wanted_run),
            needed=self.allreduce.needed,
            there=succession.there,
            now=self._now,
        )
        if wanted is not None:
            self._propose(wanted)
        elif lost and not self._begin_anew(view):
            self.vitals.reach_out(view, self._now)

    def _try_takeover(self, view: View, parent: PeerId, reason: str, since: float) -> bool:
        """Stand for the head's place, if it is this peer's turn."""
        if not self.membership.my_turn(since, self._now):
            return False
        self._lead(view)
        if self.view is view:
            self.vitals.reach_out(view, self._now)
            return False
        self._emit(fx.Note("warning", f"{parent} is gone ({reason}); taking over"))
        return True

    def _lead(self, view: View) -> None:
        """See that something is decided, by a ballot that this peer leads."""
        if self._begin_anew(view):
            return
        succession = self.succession
        self._ask(lead=succession.highest > 0 or not self.membership.coordinator)
        possible = self.membership.may_succeed(view, succession.there)
        if not succession.proposed and succession.leads(settled=self.membership.settled):
            self._propose(self._wanted(view) if possible else None)
        self._conclude()
        if self.view is view and not possible and succession.asked >= ASKED_BEFORE_ANEW:
            self.vitals.reach_out(view, self._now)  # others may be there, or their machines say that they are not

    def _wanted(self, view: View) -> View:
        """What this peer proposes for want of anything that is to be proposed again."""
        membership, parent = self.membership, view.parent(self.id)
        gone = membership.lost(self._now)
        if not view.may_go_on(self.succession.there - gone, settled=membership.settled):
            gone = set()
        if parent is not None and not self.links.is_up(parent):
            gone.add(parent)
        gone -= self.succession.followers  # who has promised lives, and what it holds may be needed
        return view.successor(
            first_round=self._first_round(),
            without=gone,
            coordinator=self.id,
            coded=membership.coded,
            settled=membership.settled,
        )

    def _ask(self, *, lead: bool) -> None:
        members, again_s = self.vitals.members(), self.limits.poll_s
        self.succession.ask(members, self._now, again_s, self._standing(), lead=lead)
        self._freeze()

    def _propose(self, wanted: View | None) -> None:
        members, again_s = self.vitals.members(), self.limits.poll_s
        mine = self._standing()
        self.succession.propose(wanted, members, self._now, again_s, mine, is_spare=self._is_spare)
        self._freeze()
        self._conclude()

    def _is_spare(self, proposal: View, *, again: bool = True) -> bool:
        """Whether those in a view can do without this peer: what it has, they have as well, or get, or don't need.

        What it has committed it hands to its neighbours, and they to theirs. What it holds undecided counts for nothing
        any more where that round is over for them. Where it is still to come, the holders who stay will speak of it, if
        a quorum stays; but who leaves would not hear how it ends, and waits, unless the candidate is bound (`again`).
        Where no quorum stays, that one who does has seen the end is for the candidate to see (`Succession.chosen`).
        """
        view, rounds = self.view, self.allreduce
        if view is None or not rounds.holding:
            return view is not None
        if again and self.succession.keeps_quorum(proposal, settled=self.membership.settled):
            return True
        return proposal.run == view.run and rounds.committed + 1 < proposal.first_round

    def _conclude(self) -> None:
        """Work in the view that follows as soon as it is known which that is."""
        following = self.succession.chosen(settled=self.membership.settled)
        if following is not None:
            self._on_view(following)

    def _freeze(self) -> None:
        self.allreduce.place.promised = self.succession.frozen

    def _begin_anew(self, view: View) -> bool:
        """Go on in a new generation where no quorum of the view can ever be there again, and all have been asked."""
        if self.succession.asked < ASKED_BEFORE_ANEW or not self.membership.over_for_good(view, self._now):
            return False
        first = self.membership.anew(self.succession.there, self._first_round(), self._now)
        if first is None:
            return False
        self._emit(fx.Note("warning", f"most of view {view.epoch} have started anew: generation {first.generation}"))
        self._on_view(first)
        return True

    def _on_poll(self, peer: PeerId, poll: fr.Poll) -> None:
        view = self.view
        if view is not None and poll.epoch == view.stamp:
            free = self.vitals.orphan
            self.succession.on_poll(peer, poll, self.vitals.members(), self._standing(), free=free)
            self._freeze()
        elif view is not None:
            self._send_view(peer, view)

    def _on_propose(self, peer: PeerId, frame: fr.Propose, event: ev.FrameReceived) -> None:
        view = self.view
        if view is None or frame.epoch != view.stamp:
            if view is not None:
                self._send_view(peer, view)
            return
        if (proposal := self._received(peer, event)) is None:
            return
        # Who is left out by a candidate that is free to do otherwise lets it know that this peer is there.
        wanted = frame.again or self.membership.leaving
        self.succession.on_propose(
            peer,
            frame,
            proposal,
            bytes(event.payload or b""),
            self.vitals.members(),
            self._standing(),
            fits=self.membership.contains_me(proposal) or (wanted and self._is_spare(proposal, again=frame.again)),
        )
        self._freeze()

    def _on_vote(self, peer: PeerId, vote: fr.Vote, event: ev.FrameReceived) -> None:
        view = self.view
        if view is None or vote.epoch != view.stamp:
            return
        accepted = None
        if event.payload_bytes and vote.candidate == self.id and (accepted := self._received(peer, event)) is None:
            return
        self.succession.on_vote(vote, accepted, bytes(event.payload) if event.payload_bytes and event.payload else None)
        if vote.candidate == self.id and self.succession.promised and not self.membership.coordinator:
            self._lead(view)  # of the coordinator, `_coordinate` sees to it

    # -- views -----------------------------------------------------------------------------------------------

    def _unpack(self, payload: memoryview | bytes) -> View | None:
        try:
            return _unpacked(bytes(payload))
        except WireError:
            return None

    def _received(self, peer: PeerId, event: ev.FrameReceived) -> View | None:
        """The view that has come as a document; garbage costs the link."""
        try:
            return _unpacked(bytes(event.payload or b""))
        except WireError as error:
            self._fail_link(peer, f"bad view: {error}")
            return None

    def _on_view_frame(self, peer: PeerId, frame: fr.ViewFrame, event: ev.FrameReceived) -> None:
        if (view := self._received(peer, event)) is None:
            return
        if self.view is not None and view.precedes(self.view):
            self.allreduce.learn(peer, view)
        else:
            self._on_view(view)

    def _on_view(self, view: View) -> None:
        """A view that has been decided."""
        if self._left or (self.view is not None and not self.view.precedes(view)):
            return
        if self.membership.contains_me(view):
            self._install(view)
        elif self.view is not None:
            self._exit(view, _why_out(self.view, view))
        else:
            self.outside.on_hint(view)
            life = view.member(self.id).incarnation if self.id in view else -1
            if life >= self.membership.me.incarnation:
                # Its identity was lost, and counts anew: begin after that.
                self.membership.new_life(after=life)
                self._emit(fx.PublishPresence())

    def _install(self, view: View) -> None:
        was_coordinator = self.membership.coordinator
        self.membership.enter(view, self._now)
        self.succession.enter(view)
        self.rolls.learn(view.generation)
        self.rolls.admitted(view)
        self.outside.hint = None
        self._suspect_again.clear()
        self.paths.view, self.paths.incarnation = view, self.membership.me.incarnation
        self.vitals.enter(view, self._now)
        for peer in view.neighbours(self.id):
            if peer in self.membership.cleared:
                self.links.on_gone(peer)
        run = self.allreduce.run
        self._emit(fx.ViewInstalled(view))
        self.allreduce.install(view, self._now)
        if run != view.run:
            self.neighbours.reset()
        self._spread(view)
        for peer in view.neighbours(self.id):
            self.neighbours.hear_again(peer)
        self.neighbours.hope()
        self.neighbours.ask_for_state(self._now, patient=True)
        if self.membership.coordinator:
            self._call_at = self._now
            self._emit(fx.PublishView(view))
        elif was_coordinator:
            self._emit(fx.PublishView(None))
        if self.membership.leaving:
            self._ask_to_leave()

    def _spread(self, view: View) -> None:
        """Tell everybody we are connected to, who does not know it yet."""
        neighbours = view.neighbours(self.id) if self.id in view else ()
        for peer, link in self.links.connected():
            if link.sync is None or _earlier(link.sync, view):
                self._send_view(peer, view)
            if peer in neighbours:
                self.neighbours.send_sync(peer)

    def _send_view(self, peer: PeerId, view: View) -> None:
        self._emit(fx.Send(peer, fr.ViewFrame(epoch=view.stamp), _packed(view)))

    def _exit(self, view: View | None, reason: str) -> None:
        """Out of the view, because we left or because others go on without us."""
        was_coordinator, wanted = self.membership.coordinator, self.membership.leaving
        if self._left:
            return
        self._left = wanted
        if view is not None:
            # Over the links, behind the last commit; MQTT, which might overtake it, hears from the next coordinator.
            self._spread(view)
        if was_coordinator:
            self._emit(fx.PublishView(None))
        before = self.view
        anew = view is not None and before is not None and view.generation != before.generation
        self.allreduce.leave(reason, anew=anew)
        self.neighbours.reset()
        self.membership.exit()
        self.succession.enter(None)
        self.outside.enter(view or before, self._now)
        self._call_at = self._now
        if view is not None:
            self.membership.new_life()
        self.links.want((), self._now)
        self.paths.view = None
        self._emit(fx.Removed(reason, wanted, anew))
        if not wanted:
            self._emit(fx.PublishPresence())

    def _on_run_wanted(self, event: ev.RunWanted) -> None:
        self.neighbours.wanted_run = event.run
        self.membership.want_run(event.run, event.peers, self._now)
        if event.run is not None and event.have:
            self.allreduce.own_state(event.run, event.have, event.of)
            self.neighbours.sync_all()
        self.neighbours.ask_for_state(self._now, patient=True)

    # -- what is meant for the coordinator -------------------------------------------------------------------

    def _tell_coordinator(self, frame: fr.Suspect | fr.Leave) -> None:
        parent = self.view.parent(self.id) if self.view is not None else None
        if parent is not None and self.links.is_up(parent):
            self._emit(fx.Send(parent, frame))

    def _suspect(self, peer: PeerId, reason: str) -> None:
        view = self.view
        if view is None or peer not in view or self._now < self._suspect_again.get(peer, 0.0):
            return
        self._suspect_again[peer] = self._now + SUSPECT_AGAIN_S
        if not self.membership.coordinator:
            self._tell_coordinator(fr.Suspect(epoch=view.stamp, peer=peer, reason=reason))
        elif self.membership.lose(peer, self._now):
            self._emit(fx.Note("warning", f"{peer} is gone: {reason}"))

    def _on_suspect(self, peer: PeerId, frame: fr.Suspect, event: ev.FrameReceived) -> None:
        if self.view is not None and frame.epoch == self.view.stamp:
            self._suspect(PeerId(frame.peer), frame.reason)

    def _on_leave(self, frame: fr.Leave) -> None:
        if self.membership.coordinator:
            self.membership.on_leaver(PeerId(frame.peer), frame.incarnation, frame.until, self._now)
        else:
            self._tell_coordinator(frame)

    def _on_leave_wanted(self, event: ev.LeaveWanted) -> None:
        self.membership.leave(self._now)
        self._ask_to_leave()

    def _ask_to_leave(self) -> None:
        if self.view is None or self.view.size == 1:
            self._exit(None, "left")
        elif not self.membership.coordinator:
            until = self.allreduce.committed + (1 if self.allreduce.needed else 0)
            incarnation = self.membership.me.incarnation
            self._tell_coordinator(fr.Leave(peer=self.id, incarnation=incarnation, until=until))

    def _on_join_wanted(self, event: ev.JoinWanted) -> None:
        self.membership.leaving = False
        if self._left:
            self._left = False
            self.membership.new_life()
            self.outside.enter(None, self._now)
            self._emit(fx.PublishPresence())


def _place(of: View | Word | fr.Sync) -> tuple[Generation, int] | None:
    """Where a view, or what somebody says of one, stands among all views; None: there is none."""
    if isinstance(of, View):
        return of.place
    return (of.generation, of.epoch >> 32) if of.generation is not None and of.epoch else None


def _earlier(one: View | Word | fr.Sync, other: View | Word) -> bool:
    """Whether the first is of an earlier view than the second, or of none."""
    here, there = _place(one), _place(other)
    return there is not None and (here is None or here < there)


def _why_out(before: View, view: View) -> str:
    if view.generation != before.generation:
        return f"generation {view.generation} has begun, and what was done in {before.generation} is given up"
    return "the others go on without this peer"


@lru_cache(maxsize=4)
def _packed(view: View) -> bytes:
    """The same view goes to many."""
    return pack(view)


@lru_cache(maxsize=4)
def _unpacked(payload: bytes) -> View:
    """The same view comes from many."""
    return unpack(payload, View)


def _is_of_a_round(event: ev.Event) -> bool:
    return type(event) is ev.FrameReceived and type(event.frame) in _OF_ROUNDS
