"""Who is really there: peers that have spoken in this life, and not those of whom something is retained.

What MQTT retains, a presence or a view, may be of the dead. So whoever wants to count on a peer calls it (Call, through
the broker), and counts on nobody who has not answered (Here), or called, or come over a link.

    a peer                               | so
    -------------------------------------+------------------------------------------------------------------------
    is announced, or was a member        | is called, if it matters: at once, then after 0.1 s, doubling up to 10 s
    says Here, or calls, or comes over a | is there, in that life, in that view or in none, for 3 s; after one it is
    link                                 | called again
    has called, but not answered         | is called, and let in by nobody: the broker may have had its letter for long
    answers late                         | is called no sooner for it: the way there is slow, and more on it makes it
                                         | slower. Nor is who has answered slowly called again as soon as others
    is silent for the third call         | does not count as somebody to wait for
    is announced, but silent for long    | its presence is cleared, by a coordinator to whom the broker brings answers:
                                         | its own to itself, if nobody else has reason to say anything
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice
from typing import Final

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.topology.view import MAX_MEMBERS, Member, View
from edgepeer.wire.codec import wrap
from edgepeer.wire.frames import Call, Frame, Here, Via

__all__ = ["CALL_ROUND_S", "FRESH_S", "Entry", "RollCall", "Word", "in_view", "letter"]

CALL_ROUND_S: Final = 0.1
"""How often to look who is to be called."""
FRESH_S: Final = 3.0
"""How long somebody's word counts."""
_AGAIN_S: Final = 1.0
"""Who has answered is called again after this long, where it matters."""
_PAUSE_S: Final = 0.1
_PAUSE_LIMIT_S: Final = 10.0
_SILENT_CALLS: Final = 3
_STALE_CALLS: Final = 8
_AT_ONCE: Final = 128
"""How many are called at a time."""
_KNOWN: Final = 4 * MAX_MEMBERS
"""How many peers are kept in mind, announced or not."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a peer has said of itself."""

    at: float
    life: int
    generation: Generation | None
    epoch: int
    """Stamp of its view; 0: it is in none."""
    aside: bool = False
    answers: bool = False
    """Whether it has lived just now, for sure: it says so over a link, or has answered a Call that is not long ago."""
    took_s: float = 0.0
    """How long after the Call an answer to it has come, be it too late to be one; 0: it is none, or of a link."""

    @property
    def outside(self) -> bool:
        """Whether it wants to be let in."""
        return not self.epoch and not self.aside


class Entry:
    """What is known of one peer."""

    __slots__ = ("answer", "call_at", "calls", "member", "pause_s", "word")

    def __init__(self, now: float) -> None:
        self.member: Member | None = None
        """As it is announced."""
        self.word: Word | None = None
        """What it has said last ..."""
        self.answer: Word | None = None
        """... and what it has answered last."""
        self.call_at = now
        self.pause_s = _PAUSE_S
        self.calls = 0
        """Since it has last spoken."""

    def has_answered(self, now: float) -> bool:
        """Whether it has answered just now, in the life in which it has spoken last."""
        word, answer = self.word, self.answer
        return word is not None and answer is not None and answer.life == word.life and now - answer.at <= FRESH_S

    def is_silent(self, now: float) -> bool:
        """Whether it has been called often enough in vain."""
        return self.calls >= _SILENT_CALLS and (self.word is None or now - self.word.at > FRESH_S)


class RollCall:
    """What one peer knows of all others."""

    def __init__(self, emit: Callable[[fx.Effect], None], known: Generation | None, now: float) -> None:
        self._emit = emit
        self._entries: dict[PeerId, Entry] = {}
        self._order: list[PeerId] = []  # who is announced, sorted
        self._answered_at = float("-inf")
        self.appeared_at = 0.0
        """When somebody was last announced anew."""
        self.newest = known
        """The newest generation that anybody has told of."""
        self.next_at = now
        """When to call again whoever matters."""

    # -- what is heard -----------------------------------------------------------------------------------------

    def on_presence(self, member: Member, now: float) -> bool:
        """A peer is announced. Returns whether that is news."""
        entry = self._entry(PeerId(member.id), now)
        if entry.member is None and len(self._order) >= MAX_MEMBERS:
            return False
        before, entry.member = entry.member, member
        if before is None:
            insort(self._order, PeerId(member.id))
            self.appeared_at = now
        if before is None or before.incarnation != member.incarnation:
            entry.call_at, entry.pause_s, entry.calls = now, _PAUSE_S, 0
        return before is None or before != member

    def on_gone(self, peer: PeerId) -> None:
        """A peer is announced no more."""
        if (entry := self._entries.pop(peer, None)) is not None and entry.member is not None:
            del self._order[bisect_left(self._order, peer)]

    def on_word(self, peer: PeerId, word: Word, known: Generation | None = None) -> None:
        """A peer has spoken."""
        entry = self._entry(peer, word.at)
        self.learn(known)
        self.learn(word.generation)
        self._answered_at = word.at
        before = entry.word
        if before is not None and before.life > word.life:
            return
        is_news = before is None or before.life != word.life or word.at - before.at > FRESH_S
        entry.word, entry.calls = word, 0
        if word.answers:
            entry.answer, entry.call_at = word, word.at + _AGAIN_S
            entry.pause_s = min(max(_PAUSE_S, word.took_s), _AGAIN_S)
        elif not (word.took_s or entry.has_answered(word.at)):
            if is_news:
                entry.pause_s = _PAUSE_S
            entry.call_at = min(entry.call_at, word.at + (_PAUSE_S if is_news else _AGAIN_S))

    def admitted(self, view: View) -> None:
        """These are in now: what they said before, that they wanted to be, does not count once they are out again."""
        for member in view.members:
            entry = self._entries.get(PeerId(member.id))
            if entry is not None and entry.word is not None and entry.word.life == member.incarnation:
                entry.word = replace(entry.word, generation=view.generation, epoch=view.stamp)
                entry.answer = None

    def learn(self, generation: Generation | None) -> None:
        """There is such a generation."""
        if generation is not None and (self.newest is None or self.newest < generation):
            self.newest = generation

    def _entry(self, peer: PeerId, now: float) -> Entry:
        entry = self._entries.get(peer)
        if entry is None:
            if len(self._entries) >= _KNOWN:
                self._entries = {p: e for p, e in self._entries.items() if e.member is not None}
            entry = self._entries[peer] = Entry(now)
        return entry

    def wait_anew(self, now: float) -> None:
        """Whoever appears from now on is news."""
        self.appeared_at = now

    # -- who is there ------------------------------------------------------------------------------------------

    def announced(self, peer: PeerId) -> Member | None:
        """A peer as it is announced."""
        entry = self._entries.get(peer)
        return entry.member if entry is not None else None

    def before(self, peer: PeerId, most: int) -> list[PeerId]:
        """The first of those that are announced and come before a peer in the order."""
        return self._order[: min(bisect_left(self._order, peer), most)]

    def count_before(self, peer: PeerId, most: int, now: float) -> int:
        """How many of all that come before a peer are not silent; counted up to `most`."""
        entries = map(self._entries.get, islice(self._order, bisect_left(self._order, peer)))
        there = (1 for each in entries if each is None or each.calls < _SILENT_CALLS or not each.is_silent(now))
        return sum(islice(there, most))

    @property
    def order(self) -> list[PeerId]:
        """All that are announced, in order."""
        return self._order

    def word(self, peer: PeerId, now: float) -> Word | None:
        """What a peer has said of itself just now."""
        entry = self._entries.get(peer)
        return entry.word if entry is not None and entry.word is not None and now - entry.word.at <= FRESH_S else None

    def life(self, peer: PeerId) -> int:
        """The newest life in which a peer has ever spoken; -1: none."""
        entry = self._entries.get(peer)
        return entry.word.life if entry is not None and entry.word is not None else -1

    def silent(self, peer: PeerId, now: float) -> bool:
        """Whether a peer has been called often enough in vain."""
        entry = self._entries.get(peer)
        return entry is not None and entry.is_silent(now)

    def there(self, now: float) -> list[tuple[PeerId, Word]]:
        """Who has spoken just now, in peer order."""
        return sorted(
            (p, e.word) for p, e in self._entries.items() if e.word is not None and now - e.word.at <= FRESH_S
        )

    def joiner(self, peer: PeerId, now: float) -> Member | None:
        """A peer that is announced, outside in that life, and has answered in it: a letter may be of the dead."""
        entry = self._entries.get(peer)
        if entry is None or entry.member is None or not entry.has_answered(now):
            return None
        member, word, answer = entry.member, entry.word, entry.answer
        outside = word is not None and word.outside and answer is not None and answer.outside
        return member if outside and word is not None and word.life == member.incarnation else None

    def asked(self, now: float) -> bool:
        """Whether somebody who is announced has spoken just now, and has yet to answer."""
        spoke = (e for e in self._entries.values() if e.word is not None and now - e.word.at <= FRESH_S)
        return any(e.member is not None and e.word is not None and not e.has_answered(now) for e in spoke)

    def stale(self) -> list[Member]:
        """Who is announced, and has not answered for long."""
        found = (e.member for e in self._entries.values() if e.calls >= _STALE_CALLS and e.member is not None)
        return sorted(found, key=lambda member: member.id)

    def answered(self, now: float) -> bool:
        """Whether anybody has answered just now; if not, it may be the way there that is broken."""
        return now - self._answered_at <= FRESH_S

    # -- when to call ------------------------------------------------------------------------------------------

    def call_by(self, at: float) -> None:
        """Call at that time at the latest."""
        self.next_at = min(self.next_at, at)

    def call_next(self, at: float) -> None:
        """All have been called: again at that time."""
        self.next_at = at

    # -- calling ---------------------------------------------------------------------------------------------------

    def call(self, me: PeerId, peers: Iterable[PeerId], frame: Call, now: float) -> None:
        """Call those of them whose turn it is: first who has been called least, so that the many who are not there
        don't keep this peer from the few who are."""
        entries = [(peer, self._entry(peer, now)) for peer in dict.fromkeys(peers)]
        due = (each for each in entries if now >= each[1].call_at)
        for peer, entry in nsmallest(_AT_ONCE, due, key=lambda each: each[1].calls):
            entry.calls += 1
            entry.call_at = now + entry.pause_s
            entry.pause_s = min(2 * entry.pause_s, _PAUSE_LIMIT_S)
            self._emit(letter(me, peer, frame))


def letter(me: PeerId, to: PeerId, frame: Call | Here | Frame, document: bytes | None = None) -> fx.Relay:
    """A frame for one peer, through the broker and without a tunnel."""
    kind, header = wrap(frame)
    return fx.Relay(to, Via(source=me, target=to, tunnel=0, serial=0, kind=kind, header=header), document)


def in_view(view: View | None) -> tuple[Generation | None, int]:
    """What a Call or a Here says of a view."""
    return (view.generation, view.stamp) if view is not None else (None, 0)
