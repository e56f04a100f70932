"""What follows a view: decided once, by a quorum of the lives in it, as a Paxos of its own for each view.

The lives of the view are the acceptors, each with a record: the highest ballot that it has promised, and the last
proposal that it has accepted. A proposal is a whole view. It is *chosen* when a quorum (`View.may_go_on`) has accepted
it in one ballot; then it is installed, published, and told to everybody. Ballot 0 is the head's in office, which needs
no promises for it, and proposes one view in it at most. All others take a higher one, of which each belongs to one
position, and collect promises first.

    a life of the view gets           | and
    ----------------------------------+-----------------------------------------------------------------------
    Poll, ballot 0                    | answers: who is there, and stands where
    Poll, a higher ballot than any    | promises it, if the way to the head is broken here, or the head itself asks,
    that was promised                 | or it has promised another one before: it is not bound to the head any more
    Propose, of no lower ballot than  | accepts it, if the view has this life in it; or if this life, which leaves or
    any that was promised             | is taken for lost, holds nothing; or if the candidate is bound to that view,
                                      | and so is to see whether the others can do without what is held here
    anything else                     | answers what it has promised
    Vote for another                  | passes it back the way that the Poll or Propose has come

    a candidate has                   | does
    ----------------------------------+-----------------------------------------------------------------------
    no promises of a quorum           | sends its Poll through all links, again and again, on slow paths more
                                      | seldom; and promises, too, as soon as another has
    promises of a quorum              | proposes the view that was accepted in the highest ballot among them; only
                                      | if there is none, the view that it wants itself
    heard of a higher ballot          | takes a higher one still: at once if the other stands behind it in the order,
                                      | else after a while
    proposed the same often enough    | takes a higher one, too: those who are there may be others by now
    promised a higher ballot          | gives its own up: it alone counts the votes of that, so nothing can be chosen in
                                      | it, and what it has accepted in it itself is as if it had not been; nor is this
                                      | peer bound to what others have accepted in it, or a lower one, if it was not
                                      | bound in it

Nothing can have been chosen, nor will be, in a lower ballot, if those who have accepted anything and those who have not
promised are no quorum together. If they are, more promises may show that they are not: so who would have to propose
what others want lets a few of its Polls pass before (`patient`).

Who has promised a ballot above 0, or accepted anything, is *frozen*: of the old view's rounds it takes part in nothing
that could help to decide one (`Place.frozen`), so what the old head can still decide is held by a life that speaks in
the decision. Its answers say how far it has come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.topology.view import MAX_MEMBERS, View
from edgepeer.wire.documents import pack
from edgepeer.wire.frames import Poll, Propose, Vote, pack_set, unpack_set

__all__ = ["CURRENT", "Standing", "Succession"]

_REMEMBERED: Final = 256
CURRENT: Final = 4
"""Who has answered since so many questions were asked is there, whichever it was: on slow paths answers take longer."""
_SELDOM: Final = 8
"""Of so many turns to ask one is taken, however slow the paths are."""
_GIVE_WAY: Final = 8
"""Who has met a higher ballot of somebody before it in the order lets so many of its own turns pass."""
_PATIENCE: Final = 4
"""... anew whenever that one takes a higher ballot; and so often in all."""
_REPEATED: Final = 8
"""Who has proposed the same so often in vain takes a higher ballot: somebody who is in the proposal may have died, and
somebody may be back who is not. On slow paths more often, as answers to a Poll and to what is proposed take longer."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a life has come in the rounds of its view, when it said so."""

    committed: int
    holding: bool = False
    held: tuple[Generation, int] | None = None
    """The generation and stamp of the newest view whose root put forward what is held; None: it has seen the end of
    that round, and has the state after it no more."""
    coming: int = -1
    """After which round the state is that comes to that life, or is being put to use there; -1: none is."""

    @property
    def upto(self) -> int:
        """The last round of which something is known there that may count."""
        return self.committed + self.holding

    def is_covered_by(self, others: Iterable[Standing]) -> bool:
        """Whether one of these has seen the end of all that is known here, or holds the same or what is newer: of two
        results of a round only the newer can count."""
        return any(self.upto <= each.seen or self._is_no_newer_than(each) for each in others)

    @property
    def is_without(self) -> bool:
        """Whether it has seen the end of the last round that it knows of, and has the state after it no more."""
        return self.holding and self.held is None

    @property
    def may_give(self) -> int:
        """After which round the state is that would be gone with it, or may be; -1: there is none."""
        return self.coming if self.is_without else max(self.committed, self.coming)

    @property
    def seen(self) -> int:
        """The last round whose end it has seen. Of one whose state it has given up it decides nothing again."""
        return self.upto if self.is_without else self.committed

    def _is_no_newer_than(self, other: Standing) -> bool:
        same_round = self.committed == other.committed
        return same_round and self.held is not None and other.held is not None and self.held <= other.held


@dataclass(slots=True)
class _Campaign:
    """What this peer has heard of the others in the ballot that it leads."""

    ballot: int
    promises: dict[PeerId, tuple[int, View | None]] = field(default_factory=dict)
    proposal: View | None = None
    before: tuple[int, View] | None = None
    """What this peer had accepted before it accepted its own proposal."""
    patience: int = CURRENT
    """How many more Polls to let pass, once a quorum has promised, before what others want is proposed."""
    repeated: int = 0
    """How often it has been proposed again."""
    again: bool = False
    """Whether it may have been chosen in an earlier ballot, and so may not be changed."""
    accepts: set[PeerId] = field(default_factory=set)


class Succession:
    """One life's part in deciding what follows its view, and what of others' passes through it."""

    def __init__(self, me: PeerId, emit: Callable[[fx.Effect], None]) -> None:
        self._me = me
        self._emit = emit
        self.number = 0
        self.seen: OrderedDict[tuple[str, int, int], PeerId] = OrderedDict()  # what came, and from whom
        self.enter(None)

    def enter(self, view: View | None) -> None:
        """Another view, or none: nothing is decided yet."""
        self._view = view
        self.promised = 0
        self.accepted: tuple[int, View] | None = None
        self.highest = 0
        """The highest ballot that was heard of."""
        self._campaign: _Campaign | None = None
        self._led = 0
        """The last ballot of its own: none is led twice ..."""
        self._void = -1
        """... and the last that it has given up, of those in which it was free to propose anything: nothing was chosen
        in it, as nobody else counts, nor in a lower one, or it would not have been free."""
        self.again: View | None = None
        """What this peer was bound to when it last proposed anything. Once that has reached those who had promised, a
        quorum has accepted it, and whoever leads a later ballot is bound to it, too: so it counts while others outbid
        this peer, and in its own next ballots. It says nothing of whether that view is at work already, out of reach.
        None: this peer was free, or something else has been proposed since."""
        self.asked = 0
        """How often this peer has asked the others, without a pause ..."""
        self.begun = self.number
        """... and the number of the last question before."""
        self._again_at = 0.0
        self._every = 1
        """Which of its turns to ask this peer takes: on slow paths not each, as all who ask would fill them with
        questions that nobody has answered yet, and make them slower still ..."""
        self._passed = 0
        """... how many it has passed since the last question ..."""
        self._before = 1
        """... and how many turns that was after the one before."""
        self._passing = 0
        """How many turns this peer has given way to who leads the highest ballot ..."""
        self._waited = 0
        """... and to who led others before it ..."""
        self._way_for = 0
        """... and which that is."""
        self.answers: dict[PeerId, int] = {}
        """The newest question that each of the others has answered ..."""
        self.came: dict[PeerId, int] = {}
        """... and which one this peer had asked last when that came."""
        self.standings: dict[PeerId, Standing] = {}
        """Where the others stood when they last said so."""

    @property
    def frozen(self) -> bool:
        """Whether this life must not help to decide rounds of the view any more."""
        return self.promised > 0 or self.accepted is not None

    @property
    def there(self) -> set[PeerId]:
        """Who has answered lately, as long as somebody was asked; this peer included."""
        turns = self._current
        return {self._me} | {peer for peer, number in self.came.items() if number > self.number - turns}

    @property
    def _current(self) -> int:
        """For how many turns to ask an answer counts, on slow paths more; or from the last question but one on."""
        return max(CURRENT if self._every == 1 else _SELDOM + 1, self._passed + self._before + 1)

    def answered_since(self, number: int) -> set[PeerId]:
        """Who has answered what was asked after that, this peer included."""
        return {self._me} | {peer for peer, answered in self.answers.items() if answered > number}

    @property
    def _late(self) -> int:
        """How many more turns this peer had had to ask when the slowest answer came, of those who are there."""
        return max((self.came[peer] - self.answers[peer] for peer in self.there - {self._me}), default=0)

    @property
    def leading(self) -> int:
        """The ballot that this peer leads; -1: none."""
        return self._campaign.ballot if self._campaign is not None else -1

    @property
    def followed(self) -> bool:
        """Whether this peer leads a ballot that it is bound to, since somebody follows it. With a way to the head, an
        answer to what it has led before is no reason to lead again: on slow paths there would always be one, and
        several who once had reason to would outbid each other for ever, and the head."""
        return self._campaign is not None and self.promised == self._campaign.ballot > 0

    @property
    def proposed(self) -> bool:
        """Whether this peer waits for its proposal to be accepted."""
        return self._campaign is not None and self._campaign.proposal is not None

    @property
    def followers(self) -> set[PeerId]:
        """Who has promised to follow this peer."""
        return set(self._campaign.promises) if self._campaign is not None else set()

    def hear_of(self, ballot: int) -> None:
        """Somebody is bound to that ballot."""
        self.highest = max(self.highest, ballot)

    # -- as an acceptor ------------------------------------------------------------------------------------------

    def on_poll(self, peer: PeerId, poll: Poll, links: Iterable[PeerId], mine: Standing, *, free: bool) -> None:
        """Somebody asks. `free`: whether this peer's way to the head is broken."""
        view = self._view
        if view is None or not self._is_new(peer, poll):
            return
        self._pass_on(peer, poll, None, links)
        if poll.candidate not in view:
            return
        willing = free or poll.candidate == view.coordinator or self.promised > 0
        highest = max(self.promised, self.leading)  # of two that cross, the higher one goes on
        if poll.ballot > highest and willing and _belongs(poll.ballot, view, PeerId(poll.candidate)):
            self._give_up()
            self.promised = poll.ballot
        elif poll.ballot and poll.ballot != self.promised and not self.promised:
            return  # not bound by anything, and content with the head
        self.highest = max(self.highest, poll.ballot)
        known = bool(unpack_set(poll.known) >> view.position(self._me) & 1)
        self._answer(peer, poll, mine, document=poll.ballot == self.promised > 0 and not known)

    def on_propose(
        self,
        peer: PeerId,
        frame: Propose,
        proposal: View,
        document: bytes,
        links: Iterable[PeerId],
        mine: Standing,
        *,
        fits: bool,
    ) -> None:
        """Somebody proposes a view, as in `document`. `fits`: whether this life can live with it."""
        view = self._view
        if view is None or not self._is_new(peer, frame):
            return
        self._pass_on(peer, frame, document, links)
        candidate = PeerId(frame.candidate)
        if candidate not in view or not _belongs(frame.ballot, view, candidate) or not _follows(view, proposal):
            return
        self.highest = max(self.highest, frame.ballot)
        if frame.ballot >= self.promised and proposal != self.again:
            self.again = None
        if frame.ballot >= self.promised and fits:
            self._give_up()
            self.promised, self.accepted = frame.ballot, (frame.ballot, proposal)
        self._answer(peer, frame, mine, document=False)

    def _answer(self, peer: PeerId, asked: Poll | Propose, mine: Standing, *, document: bool) -> None:
        ballot, proposal = self.accepted if self.accepted is not None else (-1, None)
        vote = Vote(
            epoch=asked.epoch,
            candidate=asked.candidate,
            number=asked.number,
            voter=self._me,
            promised=self.promised,
            accepted=ballot,
            committed=mine.committed,
            holding=mine.holding,
            held=mine.held,
            coming=mine.coming,
        )
        self._emit(fx.Send(peer, vote, pack(proposal) if document and proposal is not None else None))

    def _is_new(self, peer: PeerId, asked: Poll | Propose) -> bool:
        key = asked.candidate, asked.epoch, asked.number
        if asked.candidate == self._me or key in self.seen:
            return False
        self.seen[key] = peer
        while len(self.seen) > _REMEMBERED:
            self.seen.popitem(last=False)
        return True

    def _pass_on(self, peer: PeerId, asked: Poll | Propose, document: bytes | None, links: Iterable[PeerId]) -> None:
        for other in links:
            if other != peer:
                self._emit(fx.Send(other, asked, document))

    # -- as a candidate --------------------------------------------------------------------------------------------

    def ask(
        self,
        links: Iterable[PeerId],
        now: float,
        again_s: float,
        mine: Standing,
        *,
        lead: bool,
        settled: bool = True,
        silence_s: float = float("inf"),
    ) -> None:
        """Ask who is there, or, to `lead`, for promises; or propose again what is proposed. At most every `again_s`.
        Who has answered before a pause of `silence_s`, in which there was no reason to ask, may be dead since."""
        view = self._view
        if view is None or now < self._again_at:
            return
        if now >= self._again_at - again_s + silence_s:
            self.asked, self.begun = 0, self.number
            self.came.clear()
            self._passed = CURRENT
        self._again_at = now + again_s
        self.number += 1
        self.asked += 1
        self._passed += 1
        before = self._campaign
        if self._campaign is not None and self._campaign.repeated >= _REPEATED + 2 * self._late:
            self._give_up()
            lead = True
        gives_way = lead and not self._stand(view)
        campaign, to = self._campaign, list(links)
        self.standings[self._me] = mine
        if campaign is not None and campaign.proposal is not None:
            campaign.repeated += 1
        self._every = min(max(self._late // CURRENT, 1), _SELDOM)
        often = self._every
        if gives_way and often > 1:  # somebody else asks
            often = _SELDOM
        elif campaign is not None:
            often = max(often, min(campaign.repeated // 2 + 1, CURRENT))  # where it went there is much of it
        if campaign is before and self._passed < often:
            return
        self._passed, self._before = 0, self._passed
        if campaign is not None and campaign.proposal is not None:
            self._send_proposal(view, campaign, to)
            return
        if campaign is not None and campaign.patience and self.leads(settled=settled):
            campaign.patience -= 1
        poll = Poll(
            epoch=view.stamp,
            candidate=self._me,
            number=self.number,
            ballot=campaign.ballot if campaign is not None else 0,
            known=pack_set(sum(1 << view.position(p) for p in campaign.promises)) if campaign is not None else b"",
        )
        for peer in to:
            self._emit(fx.Send(peer, poll))

    def _stand(self, view: View) -> bool:
        """Have a ballot of one's own, and none that somebody else has overtaken; or else give way."""
        campaign = self._campaign
        if campaign is not None and campaign.ballot >= self.highest:
            return True
        position = view.position(self._me)
        ahead = self.highest % MAX_MEMBERS < position and self.highest > 0
        enough = _GIVE_WAY + 2 * self._late
        if self._way_for != self.highest:
            # It is at work. Of many that give way to it, each in its turn would be in its way for ever.
            self._way_for, self._waited, self._passing = self.highest, self._waited + self._passing, 0
        if ahead and self._passing < enough and self._waited < _PATIENCE * enough:
            self._passing += 1
            return False
        self._passing = self._waited = 0
        self._give_up()
        self._led = (max(self.highest, self.promised, self._led) // MAX_MEMBERS + 1) * MAX_MEMBERS + position
        self._campaign = _Campaign(self._led)
        if not position:
            self._promise_myself(self._campaign)
        return True

    def rest(self) -> None:
        """There is no reason to lead any more. What nobody has followed is given up, or it would keep this peer from
        following others."""
        if self._campaign is not None and self._campaign.ballot > self.promised:
            self._give_up()

    def _give_up(self) -> None:
        """Lead no ballot any more. Nobody else counts its votes, so what this peer has accepted in it is void."""
        campaign, self._campaign = self._campaign, None
        if campaign is not None and campaign.proposal is not None and not campaign.again:
            self._void = campaign.ballot
        if campaign is not None and self.accepted is not None and self.accepted[0] == campaign.ballot:
            self.accepted = campaign.before
        if self.accepted is not None and self.accepted[0] <= self._void:
            self.accepted = None  # nor was that chosen, whoever has proposed it

    def _promise_myself(self, campaign: _Campaign) -> None:
        """Be bound to one's own ballot: the head at once, others not before somebody is ready to follow them. So who
        has lost only its own way disturbs nobody."""
        if campaign.ballot > self.promised:
            self.promised = self.highest = campaign.ballot
            campaign.promises[self._me] = self.accepted or (-1, None)

    def propose(
        self,
        wanted: View | None,
        links: Iterable[PeerId],
        now: float,
        again_s: float,
        mine: Standing,
        *,
        is_spare: Callable[[View], bool] = lambda view: False,
    ) -> None:
        """Propose what this peer wants, if anything: in ballot 0, or with the promises of a quorum, whose word counts
        more. `is_spare`: whether those in a view can do without this life and what it has."""
        view, campaign = self._view, self._campaign
        if view is None:
            return
        if campaign is None:
            if self.promised:
                return  # to somebody else: ballot 0 is over
            campaign = self._campaign = _Campaign(0)
        if campaign.proposal is None:
            before = self.bound
            campaign.again = before is not None
            campaign.proposal = before if before is not None else wanted
            self.again = before
            if campaign.proposal is None:
                return
        mine_too = _same_life(view, campaign.proposal, self._me) or (campaign.again and is_spare(campaign.proposal))
        if campaign.ballot >= self.promised and mine_too and self._me not in campaign.accepts:
            campaign.before = self.accepted
            self.promised, self.accepted = campaign.ballot, (campaign.ballot, campaign.proposal)
            campaign.accepts.add(self._me)
        self._again_at = now + again_s
        self.number += 1
        self._passed, self._before = 0, self._passed + 1
        self.standings[self._me] = mine
        self._send_proposal(view, campaign, list(links))

    def _send_proposal(self, view: View, campaign: _Campaign, links: list[PeerId]) -> None:
        assert campaign.proposal is not None
        frame = Propose(
            epoch=view.stamp,
            candidate=self._me,
            number=self.number,
            ballot=campaign.ballot,
            again=campaign.again,
        )
        document = pack(campaign.proposal)
        for peer in links:
            self._emit(fx.Send(peer, frame, document))

    def on_vote(self, vote: Vote, accepted: View | None, document: bytes | None) -> None:
        """A Vote, for this peer or to be passed back."""
        view, voter = self._view, PeerId(vote.voter)
        if vote.candidate != self._me:
            back = self.seen.get((vote.candidate, vote.epoch, vote.number))
            if back is not None:
                self._emit(fx.Send(back, vote, document))
            return
        if view is None or voter not in view or vote.number > self.number:
            return
        campaign = self._campaign
        # What was said before may come later, by another path, whatever its number. Whoever has accepted is frozen:
        # what it says with that counts, and nothing that it says without.
        accepts = campaign is not None and vote.promised == vote.accepted == campaign.ballot
        known = campaign is not None and voter in campaign.accepts
        if (accepts and not known) or (accepts == known and vote.number >= self.answers.get(voter, 0)):
            self.standings[voter] = Standing(vote.committed, vote.holding, vote.held, vote.coming)
        if vote.number > self.answers.get(voter, 0):
            self.answers[voter], self.came[voter] = vote.number, self.number
        self.highest = max(self.highest, vote.promised)
        if campaign is None or vote.promised != campaign.ballot:
            return
        if vote.accepted == campaign.ballot and campaign.proposal is not None:
            campaign.accepts.add(voter)
        elif campaign.proposal is None and vote.accepted < campaign.ballot:
            if vote.accepted >= 0 and (accepted is None or not _follows(view, accepted)):
                return  # its word is not complete
            self._promise_myself(campaign)
            campaign.promises[voter] = (vote.accepted, accepted) if vote.accepted > self._void else (-1, None)

    def leads(self, *, settled: bool) -> bool:
        """Whether a quorum has promised to follow this peer, so that it may propose."""
        view, campaign = self._view, self._campaign
        if view is None or campaign is None or campaign.ballot < self.promised or campaign.ballot == 0:
            return False
        return view.may_go_on(campaign.promises.keys(), settled=settled)

    @property
    def bound(self) -> View | None:
        """The view that may have been chosen in a lower ballot, as far as those who have promised can tell; None: none
        has been, nor can be any more. For that takes a quorum, and whoever has promised, and has accepted nothing, has
        accepted nothing that anybody still counts, and accepts nothing in a lower ballot."""
        view, campaign = self._view, self._campaign
        if view is None or campaign is None:
            return None
        free = {peer for peer, (ballot, _) in campaign.promises.items() if ballot < 0}
        if not view.may_go_on(set(view.ids) - free, settled=True):
            return None
        _, before = max(campaign.promises.values(), key=lambda made: made[0], default=(-1, None))
        return before

    @property
    def patient(self) -> bool:
        """Whether to wait for more promises, since those that are here leave no choice."""
        view, campaign = self._view, self._campaign
        if view is None or campaign is None or not campaign.patience or self.bound is None:
            return False
        return len(campaign.promises) < view.size

    def chosen(self, *, settled: bool) -> View | None:
        """The view that follows, once a quorum has accepted this peer's proposal.

        Where no quorum stays, those who leave count only if nothing is lost with them: what they hold, somebody who
        stays holds as well, or has seen the end of, as of all that they have committed.
        """
        view, campaign = self._view, self._campaign
        if view is None or campaign is None or campaign.proposal is None:
            return None
        following = campaign.proposal
        return following if self._suffice(view, following, campaign.accepts, settled=settled) else None

    def can_be_chosen(
        self, following: View, mine: Standing, *, settled: bool, keep: Collection[PeerId], since: int
    ) -> bool:
        """Whether a view would be chosen if all accepted it who have answered, as they stood then; and no state would
        be gone with those of `keep` who are not in it. Of that counts what was said after that question."""
        view = self._view
        if view is None:
            return False
        self.standings[self._me] = mine
        if keep and not self._keeps_state(view, following, keep, self.answered_since(since)):
            return False
        return self.keeps_quorum(following, settled=settled) or self._suffice(
            view, following, set(self.standings), settled=settled, keep=bool(keep)
        )

    def nobody_gives(self, mine: Standing, *, since: int) -> bool:
        """Whether no life of the view may have a state to give, by what all have said after that question."""
        view = self._view
        if view is None:
            return False
        self.standings[self._me] = mine
        return self.answered_since(since).issuperset(view.ids) and all(
            self.standings[peer].may_give < 0 for peer in view.ids
        )

    def _keeps_state(self, view: View, following: View, leavers: Collection[PeerId], said: set[PeerId]) -> bool:
        """Whether somebody who stays has a state, or is about to, of as late a round as any of those who go. Who has
        not `said` so lately counts for nothing if it stays, and may have any state if it goes."""
        heard = {p: self.standings[p] for p in said if p in self.standings}
        stay = (at.upto for p, at in heard.items() if _same_life(view, following, p) and not at.is_without)
        gone = {p for p in leavers if p not in following}
        kept = max(stay, default=-1)
        return gone <= said and all(heard[p].may_give <= kept for p in gone if p in heard)

    def _suffice(self, view: View, following: View, accepts: set[PeerId], *, settled: bool, keep: bool = False) -> bool:
        """Whether it is enough that these accept that view. `keep`: what those know who have the state no more does not
        count."""
        if not self.keeps_quorum(following, settled=settled):
            stay = {p for p in accepts if _same_life(view, following, p)}
            known = [self.standings[p] for p in stay if not (keep and self.standings[p].is_without)]
            accepts = stay | {p for p in accepts - stay if self.standings[p].is_covered_by(known)}
        return view.may_go_on(accepts, settled=settled)

    def keeps_quorum(self, following: View, *, settled: bool) -> bool:
        """Whether a view keeps a quorum of this one's lives, be they there or not.

        Then it has holders of all that counts in this view, or may yet count, and nothing can be decided or settled in
        it, nor what follows it, before they have spoken there: it can do without what the others hold.
        """
        view = self._view
        return view is not None and view.may_go_on(
            {p for p in view.ids if _same_life(view, following, p)}, settled=settled
        )


def _belongs(ballot: int, view: View, candidate: PeerId) -> bool:
    """Whether a ballot is that candidate's to lead: the lowest of all is the head's, too."""
    return ballot % MAX_MEMBERS == view.position(candidate)


def _follows(view: View, proposal: View) -> bool:
    """Whether a view can be the successor of another."""
    return (proposal.generation, proposal.epoch) == (view.generation, view.epoch + 1)


def _same_life(view: View, following: View, peer: PeerId) -> bool:
    """Whether two views mean the same life of a peer."""
    return peer in following and following.member(peer).incarnation == view.member(peer).incarnation
