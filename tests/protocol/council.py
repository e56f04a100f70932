"""The lives of one view, deciding what follows it: messages that are lost, late and doubled as a test likes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.succession import Standing, Succession
from edgepeer.topology.view import View
from edgepeer.wire.documents import unpack
from edgepeer.wire.frames import Poll, Propose, Vote

__all__ = ["Council", "Message"]


@lru_cache
def read(document: bytes) -> View:
    return unpack(document, View)


@dataclass(frozen=True)
class Message:
    """Under way, perhaps for good."""

    source: PeerId
    target: PeerId
    frame: Poll | Propose | Vote
    document: bytes = b""


@dataclass
class Council:
    """One `Succession` for each life, and a plain account of what all of them have ever accepted.

    `links`: who speaks with whom; all with all if it is not said. `leavers` accept to be left out. `free` have lost
    their way to the head.
    """

    view: View
    links: dict[PeerId, set[PeerId]] = field(default_factory=dict)
    leavers: frozenset[str] = frozenset()
    free: frozenset[str] | None = None
    passing: bool = True
    """Whether questions are passed on; else each must be asked by the candidate itself."""
    unsettled: frozenset[str] = frozenset()
    """Who does not know that nothing of the views before can be lost any more."""
    standings: dict[PeerId, Standing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outbox: list[fx.Effect] = []
        self.lives = {name: Succession(name, self.outbox.append) for name in self.view.ids}
        for life in self.lives.values():
            life.enter(self.view)
        self.post: list[Message] = []
        """All that is under way."""
        self.now = 0.0
        self.dead: set[PeerId] = set()
        self.accepted: dict[tuple[int, int], set[PeerId]] = {}
        """By ballot and stamp: who has accepted that proposal in it, at any time."""
        self.proposals: dict[int, View] = {}
        self.chosen: dict[PeerId, View] = {}
        """What somebody has found to be chosen."""
        self.led: dict[PeerId, int] = {}
        self.void: set[int] = set()
        """Ballots that their leaders have given up: nobody will ever count their votes."""

    def fork(self, name: str) -> Council:
        """Another that has come as far, for something to happen to this one."""
        other, life = copy(self), self[name]
        other.outbox, other.post, other.chosen = [], [], self.chosen.copy()
        other.led, other.void = self.led.copy(), self.void.copy()
        other.accepted = {key: by.copy() for key, by in self.accepted.items()}
        twin = copy(life)
        twin._emit, twin.seen, twin.answers = other.outbox.append, life.seen.copy(), life.answers.copy()
        twin.came = life.came.copy()
        twin.standings = life.standings.copy()
        if (led := life._campaign) is not None:
            twin._campaign = copy(led)
            twin._campaign.promises, twin._campaign.accepts = led.promises.copy(), led.accepts.copy()
        other.lives = self.lives | {PeerId(name): twin}
        return other

    @property
    def state(self) -> Hashable:
        """All that tells it from others of the same fleet, but for what is under way."""
        states = []
        for name, life in self.lives.items():
            led, campaign, accepted = life._campaign, None, None
            if led is not None:
                promises = frozenset((p, at, v.stamp if v else 0) for p, (at, v) in led.promises.items())
                before = (led.before[0], led.before[1].stamp) if led.before is not None else None
                proposed = led.proposal.stamp if led.proposal else 0
                campaign = led.ballot, promises, proposed, frozenset(led.accepts), led.again, led.repeated, before
            if life.accepted is not None:
                accepted = life.accepted[0], life.accepted[1].stamp
            seen = frozenset(life.seen)
            states.append((name, life.promised, accepted, life.highest, life.number, life._void, seen, campaign))
        return tuple(states)

    def __getitem__(self, name: str) -> Succession:
        return self.lives[PeerId(name)]

    def neighbours(self, name: PeerId) -> list[PeerId]:
        return sorted(self.links.get(name, set(self.view.ids) - {name}))

    def standing(self, name: PeerId) -> Standing:
        return self.standings.get(name, Standing(0))

    # -- what lives do ------------------------------------------------------------------------------------------

    def ask(self, name: str, *, lead: bool) -> None:
        """Ask who is there, or for promises; and propose what is to be proposed with those of a quorum."""
        me, life = PeerId(name), self[name]
        if me not in self.dead and me not in self.chosen:
            self.now += 1.0
            life.ask(self.neighbours(me), self.now, 0.5, self.standing(me), lead=lead)
            self._took_place(me)

    def propose(self, name: str, wanted: View) -> None:
        me = PeerId(name)
        if me not in self.dead and me not in self.chosen:
            self.now += 1.0
            self[name].propose(wanted, self.neighbours(me), self.now, 0.5, self.standing(me))
            self._took_place(me)

    def may_propose(self, name: str) -> bool:
        """Whether Node would let it: the head in ballot 0, others with the promises of a quorum."""
        life, head = self[name], name == self.view.coordinator
        return not life.proposed and ((head and not life.highest) or life.leads(settled=name not in self.unsettled))

    # -- what becomes of messages -----------------------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        """It arrives; it stays under way if the test does not take it out."""
        me = message.target
        life, frame = self.lives[me], message.frame
        if me in self.dead or me in self.chosen:  # who knows what follows works there
            return
        links, mine = self.neighbours(me) if self.passing else [], self.standing(me)
        match frame:
            case Poll():
                free = self.free is None or me in self.free
                life.on_poll(message.source, frame, links, mine, free=free)
            case Propose():
                proposal = read(message.document)
                fits = (me in proposal and proposal.member(me) == self.view.member(me)) or me in self.leavers
                life.on_propose(message.source, frame, proposal, message.document, links, mine, fits=fits)
            case Vote():
                document = message.document or None
                life.on_vote(frame, read(message.document) if document else None, document)
        self._took_place(me)

    def _took_place(self, me: PeerId) -> None:
        """Send what was said, and keep the account."""
        for effect in self.outbox:
            assert isinstance(effect, fx.Send)
            assert isinstance(effect.frame, Poll | Propose | Vote)
            self.post.append(Message(me, effect.peer, effect.frame, bytes(effect.payload or b"")))
        self.outbox.clear()
        life = self.lives[me]
        if (before := self.led.get(me, -1)) not in (-1, life.leading) and me not in self.chosen:
            self.void.add(before)
        self.led[me] = life.leading
        if life.accepted is not None:
            ballot, proposal = life.accepted
            self.accepted.setdefault((ballot, proposal.stamp), set()).add(me)
            self.proposals[proposal.stamp] = proposal
        if (following := life.chosen(settled=me not in self.unsettled)) is not None:
            self.chosen[me] = following

    def run(self, names: Iterable[str] | None = None) -> None:
        """All that is under way, and all that comes of it, arrives in order; only between these, if some are named."""
        between = set(self.view.ids if names is None else names)
        while self.post:
            message = self.post.pop(0)
            if message.source in between and message.target in between:
                self.deliver(message)

    # -- the plain account ------------------------------------------------------------------------------------------

    def decisions(self) -> set[int]:
        """The stamps of all proposals that a quorum has accepted in one ballot that may still be concluded."""
        return {
            stamp
            for (ballot, stamp), by in self.accepted.items()
            if ballot not in self.void and self.view.may_go_on(by, settled=True)
        }

    def check(self) -> None:
        """At most one view follows, and nobody takes another for it."""
        decided = self.decisions()
        assert len(decided) <= 1, [self.proposals[stamp].ids for stamp in decided]
        assert {view.stamp for view in self.chosen.values()} <= decided
        in_a_ballot: dict[int, int] = {}
        for ballot, stamp in self.accepted:
            assert in_a_ballot.setdefault(ballot, stamp) == stamp, "two proposals in one ballot"
