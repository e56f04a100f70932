"""What follows a view, and what a peer does when one comes: the chain of views as one life of it sees it.

this peer                               | does
----------------------------------------+------------------------------------------------------------------------
is the head, and there is reason for    | proposes it in ballot 0 (membership.py says which, succession.py what
another view                            | becomes of it)
is the head, and other trees would be   | proposes the same members in that form (shaping.py)
faster                                  |
is the head, and a higher ballot than   | leads one of its own
0 is known                              |
has lost its parent, and it is its turn | stands for the head's place
has asked all of a view that can never  | begins a new generation with those who are left
have a quorum again                     |
hears of a view that follows its own    | installs it, if it is in it; else leaves, and comes back as another life
loses a member that is not the head     | tells the head
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache, partial
from typing import Final

from edgepeer.errors import WireError
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.parts import Parts
from edgepeer.protocol.place import UNKNOWN
from edgepeer.protocol.rollcall import CALL_ROUND_S, Word
from edgepeer.protocol.succession import CURRENT, Standing
from edgepeer.topology.view import View, enough
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack, unpack

__all__ = ["ASKED_BEFORE_ANEW", "Views", "earlier", "packed", "unpacked"]

SUSPECT_AGAIN_S: Final = 0.5
"""The coordinator is told of the same loss this often, until there is a new view."""
ASKED_BEFORE_ANEW: Final = 4
"""Nobody begins a generation from a view before all of it have been asked so many times who is there, since that is
over: and those who may live have answered, or been silent for as long as it takes to be lost."""
_GIVES_S: Final = 120.0
"""How long after the last sign of it a leaver may yet give its state to a head that waits for it."""


class Views:
    """The views of one peer: the one that it works in, and the next.

    Args:
        of: the parts of the peer.
    """

    def __init__(self, of: Parts) -> None:
        self._me = of.id
        self._emit = of.emit
        self._place = of.place
        self._membership = of.membership
        self._succession = of.succession
        self._links = of.links
        self._rolls = of.rolls
        self._outside = of.outside
        self._vitals = of.vitals
        self._neighbours = of.neighbours
        self._paths = of.paths
        self._course = of.course
        self._allreduce = of.allreduce
        self._wiring = of.wiring
        self._limits = of.limits
        self._measuring = of.measuring
        self._shaping = of.shaping
        self.left = False
        """Whether this peer has left because its owner wanted to."""
        self._suspect_again: dict[PeerId, float] = {}
        self._correct_again: dict[PeerId, float] = {}
        self.gone_before: dict[PeerId, int] = {}
        """The number of the last Poll before a member was heard of in a later life, or had refused for long."""
        self._over_since = float("inf")
        """Since when so many of the view's lives have ended that it is over for good ..."""
        self.over_before = 0
        """... and the number of the last Poll before."""
        self._kept_s, self._kept_at = 0.0, float("inf")
        """The head: for how long in all somebody has not been let go only as nobody who stays has the state that would
        go with it, and nothing of that was on its way; and when it was last so."""
        self._in_touch_since = float("inf")
        """The head: since when it has heard of enough to go on with, whenever it has asked."""
        self.asked_before = 0
        """The number of the last Poll before somebody wanted to leave."""
        self._deserted_since = float("inf")
        """Since when nobody answers of the view that this peer is bound to, and not in."""

    # -- what follows this view --------------------------------------------------------------------------------

    def _standing(self) -> Standing:
        rounds, over, coming = self._course, self._place.over, self._neighbours.coming
        if rounds.committed == UNKNOWN and over != UNKNOWN:
            # It can't tell how that has ended; nor may others who have not seen the end go on as if there were none.
            return Standing(over - 1, holding=True, coming=coming)
        if self._place.missing and rounds.committed != UNKNOWN and not rounds.holding:
            return Standing(rounds.committed - 1, holding=True, coming=coming)
        return Standing(max(rounds.committed, UNKNOWN), rounds.holding, rounds.held, coming)

    def _first_round(self) -> int:
        """The round that comes next, as far as those who speak in the decision have come."""
        view, rounds = self._membership.view, self._course
        if view is None or view.run != rounds.run:
            return view.first_round if view is not None else 1
        all_said = (self._standing(), *self._succession.standings.values())
        return max(view.first_round, *(each.seen + 1 for each in all_said))

    def coordinate(self, *, boundary: bool) -> None:
        """The head: propose another view if there is reason to, and see that it is decided."""
        view, succession = self._membership.view, self._succession
        if view is None:
            return
        lost = self._membership.lost(self._place.now)
        doubts = self._membership.doubts(self._place.now)
        if lost or doubts:
            self._look_for_the_silent(view, known=bool(lost))
        if succession.proposed or succession.highest:
            self._lead(view)
            return
        leavers = self._membership.leavers(self._place.now)
        if not leavers:
            self.asked_before = succession.number
            self._keep_no_more()
        if lost or leavers or doubts:
            self._ask(lead=False)
        over = self._vitals.over
        consider = partial(
            self._membership.consider,
            first_round=self._first_round(),
            boundary=boundary,
            # A round of a run that the owner has given up may never end: others have given it up as well.
            idle=self._course.idle or over or view.run not in ("", self._neighbours.wanted_run),
            needed=self._course.needed,
            over=over,
            there=succession.there,
            present=succession.answered_since(self.asked_before),
            answering=self._answering(),
            now=self._place.now,
        )
        for lets_go in (True, False):  # where who leaves can't be let go, that is to keep back nothing else
            wanted = consider(lets_go=lets_go)
            if wanted is None or self._can_be_chosen(view, wanted, over=over):
                break
        else:
            wanted = None
        if wanted is None and boundary and (form := self._shaping.wanted(self._place.now)) is not None:
            wanted = self._membership.reform(form, first_round=self._first_round(), now=self._place.now)
        if wanted is not None:
            self._membership.penalise_lost(wanted, self._place.now)
            self._propose(wanted)
        elif (lost or self._is_never_settled(view)) and not self._begin_anew(view) and lost:
            self._vitals.reach_out(view, self._place.now)

    def _can_be_chosen(self, view: View, wanted: View, *, over: bool) -> bool:
        """Whether all that is needed accept it, and who stays has been given the state of those who are let go. If the
        run is over, nobody is to be; nor if all leave, and none has any; nor where nothing of it has been on its way
        for so long that nobody who stays waits for it; or that who leaves has none to give, as far as this peer can
        tell that waits itself."""
        waits = self._membership.takes_part(view.run) and not self._course.has_state
        now, settled = self._place.now, self._membership.settled
        can = partial(
            self._succession.can_be_chosen, wanted, self._standing(), settled=settled, since=self.asked_before
        )
        leavers = self._membership.leavers(now)
        if can(keep=leavers if view.run and not over and not self._all_go(view, leavers) else ()):
            if not all(peer in wanted for peer in leavers):
                self._keep_no_more()
            return True
        if not self._vitals.is_known or not can(keep=()):
            self._kept_at = float("inf")  # links and views that come and go don't begin it anew
            if self._vitals.is_on_its_way:
                self._keep_no_more()
            return False
        if self._kept_at <= now:
            self._kept_s += min(now - self._kept_at, self._limits.heartbeat_s)
        self._kept_at = now
        return self._kept_s >= (_GIVES_S if waits else self._limits.anew_s)

    def _all_go(self, view: View, leavers: Collection[PeerId]) -> bool:
        """Whether all want to leave, and none has a state of the run to give."""
        if not self._membership.leaving or not {self._me, *leavers}.issuperset(view.ids):
            return False
        return self._succession.nobody_gives(self._standing(), since=self.asked_before)

    def _keep_no_more(self) -> None:
        """Nobody is kept for the state that would go with it."""
        self._kept_s, self._kept_at = 0.0, float("inf")

    def _is_never_settled(self, view: View) -> bool:
        """Whether not even all of the view together may decide what follows it: who was needed for that is in it no
        more, and comes back as another life."""
        settled = self._membership.settled
        if settled or view.may_go_on(view.ids, settled=settled):
            return False
        said = (self._standing(), *self._succession.standings.values())
        have = max(each.committed for each in said)
        return self._vitals.over or any(each.is_without and each.upto > have for each in said)

    def _look_for_the_silent(self, view: View, *, known: bool) -> None:
        """The head: connect to those who answer nothing. Where that comes to nothing either, they are lost as well once
        a loss is `known`, if the others can go on, and have been heard for as long: their parents may be lost, and then
        nobody reports them. Else, of a part of the tree that is gone, one would be found after the other, each by the
        parent that the next view gives it. Not so if it was this peer that heard of nobody just now."""
        succession, now = self._succession, self._place.now
        answered = succession.answered_since(succession.begun)
        if succession.asked < CURRENT or answered.issuperset(view.ids):
            return
        self._vitals.reach_out(view, now, but=answered)
        if not view.may_go_on(succession.there, settled=self._membership.settled):
            self._in_touch_since = float("inf")
            return
        self._in_touch_since = min(self._in_touch_since, now)
        if known and now >= self._in_touch_since + self._limits.silence_s:
            for peer in self._vitals.unheard(now) - answered:
                self.suspect(peer, f"nothing heard on any path for {self._limits.silence_s:g} s, and no answer")

    def _answering(self) -> set[PeerId]:
        """Who would count as gone, and has answered since that is known, and lately."""
        number, there = self._succession.number, self._succession.there
        gone = self._membership.gone(self._place.now)
        self.gone_before = {peer: self.gone_before.get(peer, number) for peer in gone}
        answered_since = self._succession.answered_since
        return {peer for peer, before in self.gone_before.items() if peer in there & answered_since(before)}

    def do_without(self, lost: Iterable[tuple[PeerId, str, float]]) -> bool:
        """See to it that these, who are gone, why, and since when, hold up nobody. False: there is another view now, or
        none."""
        view, orphan = self._membership.view, False
        for peer, reason, since in lost:
            self._membership.on_life(peer, self._links[peer].life, self._place.now)
            if view is None:
                self._outside.on_refused(peer, refused=self._links[peer].refused)
            elif peer == view.parent(self._me):
                orphan = True
                if not self._membership.leaving:
                    if self._try_takeover(view, peer, reason, since):
                        return False
                elif not self._is_needed(view, peer):
                    self.exit(None, "left")  # whoever takes over will find us gone
                    return False
            else:
                self.suspect(peer, reason)
        if not orphan and not self._membership.coordinator:
            self._succession.rest()
            if view is not None:
                self._membership.wait_for("")  # why it could not take over says nothing any more
        return True

    def _try_takeover(self, view: View, parent: PeerId, reason: str, since: float) -> bool:
        """Stand for the head's place, if it is this peer's turn."""
        if not self._membership.my_turn(since, self._place.now):
            return False
        if self._links.is_up(parent):
            self._say_it_is_gone(view, parent, reason)  # to itself, which may not know of its later life
        self._lead(view)
        if self._membership.view is view:
            self._vitals.reach_out(view, self._place.now)
            return False
        self._emit(fx.Note("warning", f"{parent} is gone ({reason}); taking over"))
        return True

    def _is_needed(self, view: View, parent: PeerId) -> bool:
        """Whether the others can decide what follows without that parent if this peer votes, and not otherwise."""
        settled = self._membership.settled
        others = {*view.ids} - {self._me, parent}
        return view.may_go_on(others | {self._me}, settled=settled) and not view.may_go_on(others, settled=settled)

    def _lead(self, view: View) -> None:
        """See that something is decided, by a ballot that this peer leads."""
        if self._begin_anew(view):
            return
        succession = self._succession
        self._ask(lead=succession.highest > 0 or not self._membership.coordinator)
        possible = self._membership.may_succeed(view, succession.there)
        leads = succession.leads(settled=self._membership.settled)
        if leads and not succession.proposed and not succession.patient:
            self._propose(self._wanted(view) if possible else None)
        self._conclude()
        if self._membership.view is view and self._is_deserted():
            self.exit(None, "others may have gone on without this peer, and nobody of them answers")
        elif self._membership.view is view and not possible and succession.asked >= ASKED_BEFORE_ANEW:
            # Others may be there, or their machines say that they are not.
            self._vitals.reach_out(view, self._place.now)

    def _is_deserted(self) -> bool:
        """Whether this peer is bound to what follows without it, and of those who are to go on nobody answers. They may
        have done so, and be gone since. It may be that nothing else can follow, nor that, since nobody who stays can
        say what is known there. So it is to this peer what a retained view is of which nobody answers. That this life
        ends is always safe."""
        succession, now = self._succession, self._place.now
        bound = succession.accepted[1] if succession.accepted is not None else None
        there = bound is None or self._membership.contains_me(bound) or not succession.there.isdisjoint(bound.ids)
        # What was so before a pause, in which there was no reason to ask, says nothing of now.
        since = min(self._deserted_since, now) if succession.asked > 1 else now
        self._deserted_since = float("inf") if there else since
        return now >= self._deserted_since + self._limits.anew_s

    def _wanted(self, view: View) -> View:
        """What this peer proposes for want of anything that is to be proposed again."""
        membership, parent = self._membership, view.parent(self._me)
        gone = membership.lost(self._place.now)
        if not view.may_go_on(self._succession.there - gone, settled=membership.settled):
            gone = set()
        if parent is not None and not self._links.is_here(parent, self._place.now):
            gone.add(parent)
        followers = self._succession.followers
        gone -= followers  # who has promised lives, and what it holds may be needed
        # Whoever takes this peer for dead would stand for the head's place again at once, whatever is decided.
        others = [peer for peer in view.ids if peer in followers and peer != self._me] if membership.disowned else []
        return view.successor(
            first_round=self._first_round(),
            without=gone,
            coordinator=others[0] if others else self._me,
            coded=membership.coded,
            settled=membership.settled,
        )

    def _ask(self, *, lead: bool) -> None:
        members, again_s = self._vitals.members(), self._limits.poll_s
        self._succession.ask(
            members,
            self._place.now,
            again_s,
            self._standing(),
            lead=lead,
            settled=self._membership.settled,
            silence_s=self._limits.silence_s,
        )

    def _propose(self, wanted: View | None) -> None:
        members, again_s = self._vitals.members(), self._limits.poll_s
        mine = self._standing()
        self._succession.propose(wanted, members, self._place.now, again_s, mine, is_spare=self._is_spare)
        self._conclude()

    def _is_spare(self, proposal: View, *, again: bool = True) -> bool:
        """Whether those in a view can do without this peer: what it has, they have as well, or get, or don't need.

        What it has committed it hands to its neighbours, and they to theirs. What it holds undecided counts for nothing
        any more where that round is over for them. Where it is still to come, who leaves would not hear how it ends,
        and waits, unless the candidate is bound (`again`). Then nothing else can follow, and it is for the candidate to
        see that who stays speaks of what is held here (`Succession.chosen`).
        """
        view, mine = self._membership.view, self._standing()
        if view is None or not mine.holding or again:
            return view is not None
        return proposal.run == view.run and mine.upto < proposal.first_round

    def _conclude(self) -> None:
        """Work in the view that follows as soon as it is known which that is."""
        following = self._succession.chosen(settled=self._membership.settled)
        if following is not None:
            self.on_view(following)

    def _begin_anew(self, view: View) -> bool:
        """Go on in a new generation where no quorum of the view can ever be there again, or of what follows it if that
        may have been chosen, and all have been asked."""
        membership, succession, now = self._membership, self._succession, self._place.now
        answering = self._answering()
        left = membership.left(view, now, answering)
        over = not view.may_go_on(left, settled=membership.settled)
        if not over and not self._leads_nowhere(view, left):
            self._over_since = float("inf")
            return False
        if self._over_since > now:
            self._over_since, self.over_before = now, succession.number
        # Not who has answered, and ended after that. But a life that answers has not, though a later one was heard of.
        there = (succession.answered_since(self.over_before) & succession.there) - (membership.ended - answering)
        # Of two that begin at once one would be put out again: who has others before it asks once more for each.
        before = sum(peer in there for peer in view.ids[: view.position(self._me)])
        if succession.number < self.over_before + ASKED_BEFORE_ANEW + before:
            return False
        # On slow paths answers take longer than that, and what only those have who give them is not to be lost. Who
        # would be too few without them, were the view settled, may be one side of a partition, and each begin one.
        few = view.may_go_on(left, settled=True) and not view.may_go_on(there, settled=True)
        patience = self._limits.anew_s if few else self._limits.silence_s
        silent = left - there - membership.refusing
        if silent and self._would_begin_again(view, there):
            patience = self._limits.anew_run_s  # who does not answer may have the state of the run, and be back
        elif not over and (again := succession.again) is not None and any(peer in again for peer in silent):
            patience = self._limits.anew_run_s  # it may be at work in what follows, with others who have come since
        if not there.issuperset(left) and now < self._over_since + patience:
            return False
        if self._place.waking:
            return False  # the others may have begun one, or have gone on, and the word of that be on its way

        def most(peers: set[PeerId]) -> bool:
            return view.may_go_on(peers, settled=membership.settled, majority=True)

        # Where they are too few only for a `quorum`, what was decided may be known to none but a majority of them.
        if most(left) and not most(there):
            return False
        first = membership.anew(there, self._first_round(), now)
        if first is None:
            self._rolls.call_by(now + CALL_ROUND_S)  # too few: who has come may not have been asked yet
            return False
        self._emit(fx.Note("warning", f"most of view {view.epoch} have started anew: generation {first.generation}"))
        self.on_view(first)
        return True

    def _would_begin_again(self, view: View, there: set[PeerId]) -> bool:
        """Whether these would begin the run of the view anew, which they want, though rounds of it are over: none of
        them has a state of it."""
        run, said = self._membership.cares_for, self._succession.standings
        if run is None or run[0] != view.run or self._first_round() == 1:
            return False
        return all(each.may_give < 0 for each in (self._standing(), *(said[peer] for peer in there if peer in said)))

    def _leads_nowhere(self, view: View, left: set[PeerId]) -> bool:
        """Whether nothing can follow the view but one that is over for good itself: it may have been chosen, and so
        many lives of it have ended that those who are `left` are no quorum."""
        following = self._succession.again
        if following is None:
            return False
        ended = {p for p in set(view.ids) - left if p in following and following.member(p) == view.member(p)}
        return not enough(following.ids, set(following.ids) - ended, following.quorum)

    def on_poll(self, peer: PeerId, poll: fr.Poll) -> None:
        view = self._membership.view
        if view is not None and poll.epoch == view.stamp:
            free = self._vitals.orphan
            self._succession.on_poll(peer, poll, self._vitals.members(), self._standing(), free=free)
        elif view is not None:
            self._correct(peer, view)

    def on_propose(self, peer: PeerId, frame: fr.Propose, event: ev.FrameReceived) -> None:
        view = self._membership.view
        if view is None or frame.epoch != view.stamp:
            if view is not None:
                self._correct(peer, view)
            return
        if (proposal := self._received(peer, event)) is None:
            return
        # Who is left out by a candidate that is free to do otherwise lets it know that this peer is there.
        wanted = frame.again or self._membership.leaving
        self._succession.on_propose(
            peer,
            frame,
            proposal,
            bytes(event.payload or b""),
            self._vitals.members(),
            self._standing(),
            fits=self._membership.contains_me(proposal) or (wanted and self._is_spare(proposal, again=frame.again)),
        )

    def on_vote(self, peer: PeerId, vote: fr.Vote, event: ev.FrameReceived) -> None:
        view = self._membership.view
        if view is None or vote.epoch != view.stamp:
            return
        accepted = None
        if event.payload_bytes and vote.candidate == self._me and (accepted := self._received(peer, event)) is None:
            return
        document = bytes(event.payload) if event.payload_bytes and event.payload else None
        self._succession.on_vote(vote, accepted, document)
        if vote.candidate != self._me or not self._succession.promised or self._membership.coordinator:
            return  # of the coordinator, `coordinate` sees to it
        if self._succession.followed or self._vitals.orphan:
            self._lead(view)

    # -- views -----------------------------------------------------------------------------------------------

    def _received(self, peer: PeerId, event: ev.FrameReceived) -> View | None:
        """The view that has come as a document; garbage costs the link."""
        try:
            return unpacked(bytes(event.payload or b""))
        except WireError as error:
            self._wiring.fail_link(peer, f"bad view: {error}")
            return None

    def on_view_frame(self, peer: PeerId, event: ev.FrameReceived) -> None:
        """A view, over a link."""
        if (view := self._received(peer, event)) is None:
            return
        if self._membership.view is not None and view.precedes(self._membership.view):
            self._course.learn(peer, view)
        else:
            self.on_view(view)

    def on_view(self, view: View) -> None:
        """A view that has been decided."""
        before = self._membership.view
        if self.left:
            self._outside.on_hint(view, self._place.now)  # or each word of it would be a reason to ask for it again
            return
        if before is not None and not before.precedes(view):
            return
        if self._membership.contains_me(view) and (before is None or before.leads_to(view)):
            self.install(view)
        elif before is not None:
            self.exit(view, _why_out(before, view))
        else:
            self._outside.on_hint(view, self._place.now)
            life = view.member(self._me).incarnation if self._me in view else -1
            if life >= self._membership.me.incarnation:
                # Its identity was lost, and counts anew: begin after that.
                self._begin_life(after=life)
                self._emit(fx.PublishPresence())

    def on_own_life(self, incarnation: int) -> None:
        """Somebody else is announced under this peer's name: a copy of the device, which ends, but has been heard. In a
        view nothing is to be done before the others go on without this peer."""
        membership = self._membership
        if membership.on_own_life(incarnation) and membership.view is None and not self.left:
            self._begin_life()
            self._emit(fx.PublishPresence())

    def _begin_life(self, *, after: int = 0) -> None:
        """Outside: come back as another life, and say so over what is connected, whose Hello was of the one before."""
        self._membership.new_life(after=after)
        for peer, _ in self._links.connected():
            self._neighbours.send_sync(peer)

    def install(self, view: View) -> None:
        was_coordinator = self._membership.coordinator
        self._membership.enter(view, self._place.now)
        self._succession.enter(view)
        self._measuring.enter(view, self._place.now)
        self._shaping.enter(view, self._place.now)
        self._rolls.learn(view.generation)
        self._rolls.admitted(view)
        self._outside.forget_hint()
        self._suspect_again.clear()
        self._correct_again.clear()
        self.gone_before.clear()
        self._over_since = self._deserted_since = self._kept_at = float("inf")
        self._paths.enter(view, self._membership.me.incarnation)
        self._wiring.wrap()  # the end of the last round, to who is no neighbour any more
        self._vitals.enter(view, self._place.now)
        for peer in view.neighbours(self._me):
            if peer in self._membership.cleared:
                self._links.on_gone(peer)
        before = self._place.view
        self._emit(fx.ViewInstalled(view))
        self._allreduce.install(view, self._place.now)
        if before is None or before.beginning != view.beginning:
            self._neighbours.reset()
        self._spread(view)
        for peer in view.neighbours(self._me):
            self._neighbours.hear_again(peer)
        self._neighbours.hope()
        self._neighbours.ask_for_state(self._place.now, patient=True)
        if self._membership.coordinator:
            self._rolls.call_by(self._place.now)
            self._emit(fx.PublishView(view))
        elif was_coordinator:
            self._emit(fx.PublishView(None))
        if self._membership.leaving:
            self.ask_to_leave()

    def _spread(self, view: View) -> None:
        """Tell everybody we are connected to, who does not know it yet."""
        neighbours = view.neighbours(self._me) if self._me in view else ()
        for peer, link in self._links.connected():
            if link.sync is None or earlier(link.sync, view):
                self.send_view(peer, view)
            if peer in neighbours:
                self._neighbours.send_sync(peer)

    def _correct(self, peer: PeerId, view: View) -> None:
        """Tell somebody that asks what follows another view. Not each time: on slow paths much that was asked is on the
        way, and the view after it."""
        if self._place.now >= self._correct_again.get(peer, self._place.now):
            self._correct_again[peer] = self._place.now + self._limits.silence_s
            self.send_view(peer, view)

    def send_view(self, peer: PeerId, view: View) -> None:
        if view is self._membership.view and (link := self._links.get(peer)) is not None:
            link.show(self._place.now)
        self._emit(fx.Send(peer, fr.ViewFrame(epoch=view.stamp), packed(view)))

    def exit(self, view: View | None, reason: str) -> None:
        """Out of the view, because we left or because others go on without us."""
        was_coordinator, wanted = self._membership.coordinator, self._membership.leaving
        if self.left:
            return
        self.left = wanted
        self._allreduce.end_call()
        if view is not None:
            # Over the links, behind the last commit; MQTT, which might overtake it, hears from the next coordinator.
            self._spread(view)
        if was_coordinator:
            self._emit(fx.PublishView(None))
        before = self._membership.view
        anew = view is not None and before is not None and view.generation != before.generation
        self._course.leave(reason, anew=anew)
        self._neighbours.reset()
        self._membership.exit()
        self._succession.enter(None)
        self._shaping.enter(None, self._place.now)
        self._outside.enter(view or before, self._place.now)
        self._rolls.call_by(self._place.now)
        # Also where it leaves before it was let in, or others have yet to decide without it: to them it would live.
        self._begin_life()
        self._wiring.wrap()
        self._links.want((), self._place.now)
        self._paths.enter(None, self._membership.me.incarnation)
        self._emit(fx.Removed(reason, wanted, anew))
        if not wanted:
            self._emit(fx.PublishPresence())

    def on_run_wanted(self, event: ev.RunWanted) -> None:
        self._neighbours.want(event.run)
        self._membership.want_run(event.run, event.peers, self._place.now, slots=event.slots)
        if event.run is not None and event.have:
            self._neighbours.on_own_state(event)
        self._neighbours.ask_for_state(self._place.now, patient=True)

    # -- what is meant for the coordinator -------------------------------------------------------------------

    def _tell_coordinator(self, frame: fr.Suspect | fr.Leave | fr.Measured) -> None:
        parent = self._membership.view.parent(self._me) if self._membership.view is not None else None
        if parent is not None and self._links.is_up(parent):
            self._emit(fx.Send(parent, frame))

    def suspect(self, peer: PeerId, reason: str) -> None:
        view = self._membership.view
        if view is None or peer not in view:
            return
        if not self._membership.coordinator:
            self._say_it_is_gone(view, peer, reason)
        elif peer == self._me:
            self._membership.disown()
        elif self._place.now >= self._suspect_again.get(peer, 0.0):
            self._suspect_again[peer] = self._place.now + SUSPECT_AGAIN_S
            if self._membership.lose(peer, self._place.now):
                self._emit(fx.Note("warning", f"{peer} is gone: {reason}"))

    def _say_it_is_gone(self, view: View, peer: PeerId, reason: str) -> None:
        if self._place.now >= self._suspect_again.get(peer, 0.0):
            self._suspect_again[peer] = self._place.now + SUSPECT_AGAIN_S
            self._tell_coordinator(fr.Suspect(epoch=view.stamp, peer=peer, reason=reason))

    def on_suspect(self, frame: fr.Suspect) -> None:
        """Somebody below tells the head of a loss; or this peer that its own life is taken for dead."""
        if self._membership.view is not None and frame.epoch == self._membership.view.stamp:
            self.suspect(PeerId(frame.peer), frame.reason)

    def on_measured(self, frame: fr.Measured) -> None:
        """What a member, this one or one below, has measured."""
        if self._membership.view is None or frame.epoch != self._membership.view.stamp:
            return
        if self._membership.coordinator:
            self._shaping.hear(frame, self._place.now)
        else:
            self._tell_coordinator(frame)

    def on_leave(self, frame: fr.Leave) -> None:
        if self._membership.coordinator and frame.stays:
            self._membership.on_stayer(PeerId(frame.peer), frame.incarnation)
        elif self._membership.coordinator:
            self._membership.on_leaver(PeerId(frame.peer), frame.incarnation, frame.until, self._place.now)
        else:
            self._tell_coordinator(frame)

    def on_leave_wanted(self) -> None:
        """The owner wants to leave."""
        self._membership.leave(self._place.now)
        self.ask_to_leave()

    def ask_to_leave(self) -> None:
        if self._membership.view is None or self._membership.view.size == 1:
            self.exit(None, "left")
        elif not self._membership.coordinator:
            until = self._course.committed + (1 if self._course.needed else 0)
            incarnation = self._membership.me.incarnation
            self._tell_coordinator(fr.Leave(peer=self._me, incarnation=incarnation, until=until))

    def on_join_wanted(self) -> None:
        """The owner, which had left, wants to be in again, or to stay: then the head is not to go by what was said
        before."""
        if self._membership.leaving and self._membership.view is not None:
            incarnation = self._membership.me.incarnation
            self._tell_coordinator(fr.Leave(peer=self._me, incarnation=incarnation, until=-1, stays=True))
        self._membership.come_back()
        self._rolls.call_by(self._place.now)  # who leaves calls nobody
        if self.left:
            self.left = False
            self._begin_life()
            self._outside.enter(None, self._place.now)
            self._emit(fx.PublishPresence())


def _place_of(of: View | Word | fr.Sync) -> tuple[Generation, int] | None:
    """Where a view, or what somebody says of one, stands among all views; None: there is none."""
    if isinstance(of, View):
        return of.place
    return (of.generation, of.epoch >> 32) if of.generation is not None and of.epoch else None


def earlier(one: View | Word | fr.Sync, other: View | Word) -> bool:
    """Whether the first is of an earlier view than the second, or of none."""
    here, there = _place_of(one), _place_of(other)
    return there is not None and (here is None or here < there)


def _why_out(before: View, view: View) -> str:
    if view.generation != before.generation:
        return f"generation {view.generation} has begun, and what was done in {before.generation} is given up"
    return "the others go on without this peer"


@lru_cache(maxsize=4)
def packed(view: View) -> bytes:
    """The same view goes to many."""
    return pack(view)


@lru_cache(maxsize=4)
def unpacked(payload: bytes) -> View:
    """The same view comes from many."""
    return unpack(payload, View)
