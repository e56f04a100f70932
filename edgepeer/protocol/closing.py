"""Coded rounds: who has computed what, and when the root closes the round.

Every peer computes chunks of the data set, several peers the same ones, and says how far it is (Progress, up the tree,
summed up at each peer). The root closes the round when the sum can be had of what is computed, and says of what
(Release, down). From that alone each peer knows its coefficients, encodes, and contributes; the tree adds up as ever.
Who has nothing to bring is not waited for.

    a peer                              | does
    ------------------------------------+----------------------------------------------------------------------
    takes part, or has computed a chunk | Progress to its parent, of all at and below it; again on a new link
    holds something of an earlier view  | the same, whether it takes part or not
    takes part with what does not fit   | the same, of no chunks: no sum comes of the round, but its end waits for all
    has no code at all                  | the same, which names none: nobody at or below it is counted for the code
    hears Progress, and is the root     | Release to its children, if the sum can be had, or the policy will do without
    hears Release                       | Release to its children; has its owner encode, if it has something to bring
    hears Release of what it has        | waits with that until it is computed again
    computed beside a state given up    |

Progress is also the promise that Paxos asks for (deciding.py): it is of one view, and says whether anything is held
from an earlier one. So the root does without a peer only in a view in which it has heard of all; and if something is
held, it waits for everybody once more, and has it put forward. A promise holds for all later rounds of the view, as
long as the root goes on from the state that it was given beside: whoever has given it can't come to hold anything of an
earlier one. It holds for whoever wants another code by now, or none: nothing at or below that peer has been counted in
the round then, so it can pass on that it is closed, with nothing to bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from edgepeer.errors import EdgepeerError, PeerError
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.code import Code, Coding, Recovery
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.place import Place
from edgepeer.topology.view import View
from edgepeer.wire.frames import Progress, Release, pack_set, unpack_set

__all__ = ["Closed", "Closing"]

_MOST_DONE: Final = 254
_MOST_SLOTS: Final = 3072
_MOST_CHUNKS: Final = 4096
"""What fits into frames, also into those that a neighbour or the broker carries on."""
_MOST_ALONE: Final = 4
"""The root closes so many rounds without its owner, which may be busy with the last one's result."""


@dataclass(frozen=True, slots=True, eq=False)
class Closed:
    """A round that the root has closed."""

    done: tuple[int, ...]
    """Computed chunks of each slot."""
    anew: bool
    """Nothing is to be added up: what is held from an earlier view is put forward again."""
    expected: int
    """Positions that contribute; none, where the code is not known."""
    code: str
    """Its name."""
    recovery: Recovery | None = None
    """At the root."""


@dataclass(slots=True)
class _Report:
    """What a part of the tree has said."""

    began: int
    holding: bool
    done: bytearray
    since: float


class Closing:
    """The coded round in progress at one peer."""

    def __init__(
        self,
        place: Place,
        emit: Callable[[fx.Effect], None],
        *,
        holding: Callable[[], bool],
        hopeless: Callable[[], bool],
    ) -> None:
        self._place = place
        self._emit = emit
        self._holding = holding
        """Whether something of the round is held here from an earlier view. Asked whenever that is said: what is said
        of it is a promise, and a peer that decides nothing at the moment (`Place.frozen`) speaks all the same."""
        self._hopeless = hopeless
        """Whether no sum can come of the round, so that it waits for promises only."""
        self._wanted: Coding | None = None
        """How the owner wants rounds to be coded ..."""
        self._coding: Coding | None = None
        """... and how this one is, if rounds are coded in this view."""
        self.code: Code | None = None
        """The code of this view."""
        self.why_not = ""
        """Why there is none."""
        self._promised = 0
        self._alone = 0
        """How many rounds have ended since the owner last took part."""
        self.closed: Closed | None = None
        self.closed_at = 0.0
        self._own: dict[int, int] | None = None
        self._said: tuple[int, int, dict[int, int]] = 0, 0, {}
        """Of which view and round this peer may have said that it has computed how much, beside whatever state ..."""
        self._due: Release | None = None
        """... and what is closed by that, and waits until it is computed beside the present one."""
        self._holding_said = False
        self._heard: dict[PeerId, _Report] = {}
        self._since: float | None = None
        self._aside: dict[PeerId, Progress] = {}
        """What children have said for another code than this peer's; its owner may be about to take that, too ..."""
        self.wrong = ""
        """... or not: why nothing can come of the round."""

    def use(self, coding: Coding | None) -> bool:
        """The owner wants rounds to be coded, or not. Returns whether that is news. What has been said in this round is
        of the code that it has, or of none, and holds until it is over: another is for the next one. Who has no code
        yet, and has said nothing itself, is told all again by those below."""
        before, self._wanted = self._wanted, coding
        news = before is None or coding is None or before.name != coding.name
        begun = self._coding is not None and self._since is not None
        if news and not begun and self._own is None and self.closed is None:
            self.enter()
        return news

    def enter(self) -> None:
        """Another view, or none: the owner has to say again what it has computed, since it may own other slots."""
        view, self.code, self._coding = self._place.view, None, self._wanted
        self.why_not = "rounds are not coded here"
        if view is not None and view.slots and self._coding is not None:
            try:
                self.code = self._build(self._coding, view)
            except EdgepeerError as error:
                self.why_not = str(error)
        self._promised = 0
        self.begin()

    @staticmethod
    def _build(coding: Coding, view: View) -> Code:
        if len(view.slots) > _MOST_SLOTS:
            raise PeerError(f"{len(view.slots)} peers are too many for coded rounds: {_MOST_SLOTS} at most")
        code = coding.build(len(view.slots), view.fanout)
        if code.chunks > _MOST_CHUNKS or max(code.loads) > _MOST_DONE:
            most = f"{max(code.loads)} with one peer, {_MOST_DONE} at most"
            raise PeerError(f"{coding.name} makes too many chunks: {code.chunks}, {_MOST_CHUNKS} at most; {most}")
        return code

    def begin(self, *, took_part: bool = True) -> None:
        """Another round. `took_part`: whether the owner did in the last one."""
        if self._name(self._coding) != self._name(self._wanted):
            self.enter()
        self._alone = 0 if took_part else self._alone + 1
        self.closed, self._own, self._due, self._since = None, None, None, None
        self.wrong = ""
        self._holding_said = False
        self._heard.clear()
        self._aside.clear()

    @staticmethod
    def _name(coding: Coding | None) -> str:
        return coding.name if coding is not None else ""

    @property
    def _parent(self) -> PeerId | None:
        return self._place.here.parent if self._place.here is not None else None

    @property
    def _children(self) -> tuple[PeerId, ...]:
        return self._place.here.children if self._place.here is not None else ()

    @property
    def takes_part(self) -> bool:
        """Whether the owner does, in this view."""
        return self._own is not None

    @property
    def begun(self) -> bool:
        return self._own is not None or bool(self._heard)

    # -- who has computed what -------------------------------------------------------------------------------

    def is_for(self, code: str) -> bool:
        """Whether the round has the code of that name; an owner that does not name it has been told of no other."""
        return code in ("", self._name(self._coding))

    def did(self, done: Mapping[int, int]) -> None:
        """The owner takes part, and has computed so many chunks of each of its slots."""
        self._own = {slot: done.get(slot, 0) for slot in self._slots(self._place.me)}
        said = self._said_before
        self._said = *self._now, {slot: max(count, said.get(slot, 0)) for slot, count in self._own.items()}
        for peer, frame in self._aside.items():
            self._count(peer, frame)
        self._aside.clear()
        if self._due is not None and self._parent is not None:
            self.on_release(self._parent, self._due)
        self._news()

    @property
    def _now(self) -> tuple[int, int]:
        view = self._place.view
        return view.stamp if view is not None else 0, self._place.committed + 1

    @property
    def _said_before(self) -> dict[int, int]:
        """What this peer may have said of this round, in this view."""
        *when, counts = self._said
        return counts if tuple(when) == self._now else {}

    def holds(self) -> None:
        """Something is held here from an earlier view, which is to be said even if there is no other news."""
        if not self._holding_said:
            self._holding_said = True
            self._news()

    def on_progress(self, peer: PeerId, frame: Progress) -> str:
        """A child has news. Returns what is wrong with it."""
        view = self._place.view
        if view is None or not view.slots or self._place.at(frame) is None:
            return ""
        began, same = unpack_set(frame.began), self._is_like(frame)
        if began & ~sum(1 << p for p in self._below(peer)) or (same and not self._possible(frame.done)):
            return f"Progress for {began:#x}, {frame.done.hex()}: not its subtree, or more than there is to compute"
        if self._is_unlike(frame) and self._own is None and not frame.holding:
            self._aside[peer] = frame  # the child may be quicker to take another code: then it says all again
            return ""
        self._aside.pop(peer, None)
        self._count(peer, frame)
        self._news()
        return ""

    def _is_like(self, frame: Progress) -> bool:
        """Whether it is for this peer's code."""
        return self._coding is not None and frame.code == self._coding.name

    def _is_unlike(self, frame: Progress) -> bool:
        """Whether it is for another one. Where either has none, there is nothing to tell them apart by: if its owner
        takes part all the same, that peer itself says what is wrong."""
        return self._coding is not None and frame.code not in ("", self._coding.name)

    def _count(self, child: PeerId, frame: Progress) -> None:
        view = self._place.view
        if view is None:
            return
        if self._is_unlike(frame):
            self.wrong = (
                f"{child} computes for the code {frame.code!r}, {self._place.me} for {self._name(self._coding)!r}"
            )
        heard = self._heard.setdefault(child, _Report(0, False, bytearray(len(view.slots)), 0.0))
        heard.began |= unpack_set(frame.began)
        heard.holding |= frame.holding
        heard.since = self._place.now
        for position in self._below(child) if self._is_like(frame) else ():
            for slot in self._slots(view.ids[position]):
                heard.done[slot] = max(heard.done[slot], frame.done[slot])

    def _below(self, child: PeerId) -> list[int]:
        """Positions at and below a child."""
        view = self._place.view
        below = view.below(child) if view is not None else 0
        return [position for position in range(below.bit_length()) if below >> position & 1]

    def _slots(self, peer: PeerId) -> tuple[int, ...]:
        return self._place.view.owned.get(peer, ()) if self._place.view is not None else ()

    def _possible(self, done: bytes) -> bool:
        """Whether there is so much to compute."""
        view = self._place.view
        loads = self.code.loads if self.code is not None else (0,) * (len(view.slots) if view is not None else 0)
        return len(done) == len(loads) and all(value <= 1 + load for value, load in zip(done, loads, strict=True))

    def _all(self) -> _Report | None:
        """What is known of this peer and all below."""
        view = self._place.view
        if view is None:
            return None
        done = bytearray(len(view.slots))
        report = _Report(0, self._holding(), done, 0.0)
        if self._own is not None or report.holding:
            report.began = 1 << view.position(self._place.me)
        for slot, count in (self._own or {}).items():
            done[slot] = 1 + count
        for heard in self._heard.values():
            report.began |= heard.began
            report.holding |= heard.holding
            for slot, value in enumerate(bytes(heard.done)):
                if value:
                    done[slot] = value
        return report

    def stalled(self, now: float, stall_s: float) -> list[PeerId]:
        """Children of which nothing has been heard for too long, though something is to come at or below them."""
        if self.closed is not None or self._since is None:
            return []
        heard = {child: self._heard[child].since if child in self._heard else self._since for child in self._owing()}
        return [child for child, since in heard.items() if now - since > stall_s]

    @property
    def waiting(self) -> bool:
        """Whether this peer has computed all that it has to, and waits for those below."""
        code = self.code
        if self._own is None or self.closed is not None:
            return False
        done = code is None or all(count >= code.loads[slot] for slot, count in self._own.items())
        return (done or self._hopeless()) and bool(self._owing())

    def _owing(self) -> list[PeerId]:
        """The children at or below which somebody has not begun, or has something left to compute."""
        return [child for child in self._children if self.missing(child)]

    def missing(self, child: PeerId) -> int:
        """Those at and below a child that have not begun, or have something left to compute: positions, as a set."""
        view, code, heard = self._place.view, self.code if not self._hopeless() else None, self._heard.get(child)
        if view is None:
            return 0
        found = 0
        for p in self._below(child):
            slots = self._slots(view.ids[p]) if code is not None else ()
            loads = code.loads if code is not None else ()
            if heard is None or not heard.began >> p & 1 or any(heard.done[s] <= loads[s] for s in slots):
                found |= 1 << p
        return found

    def _news(self) -> None:
        if self._since is None:
            self._since = self._place.now
        if self._parent is None:
            self.judge()
        else:
            self._tell()

    def _tell(self) -> None:
        place, here, report = self._place, self._place.here, self._all()
        if here is None or report is None or not here.view.slots or self.closed is not None:
            return
        if not report.began & (here.view.everyone if self._coding is not None else here.trees[0].bit):
            return  # who has no code, and nothing to say itself, may be about to be given one
        if here.parent is not None and place.level(here.parent):
            frame = Progress(
                epoch=here.epoch,
                round=place.committed + 1,
                code=self._name(self._coding),
                began=pack_set(report.began),
                holding=report.holding,
                done=bytes(report.done),
            )
            here.spoke = True
            self._emit(fx.Send(here.parent, frame))

    def resend(self, peer: PeerId) -> None:
        """A neighbour that has come to this round may not have heard."""
        if peer == self._parent:
            self._tell()
        elif self.closed is not None and peer in self._children and self._place.level(peer):
            self._release(peer, self.closed)

    # -- closing -----------------------------------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """The root: whether all have promised, and nothing is held, so that the round may end in any way."""
        view, report = self._place.view, self._all()
        if view is None or report is None or self._parent is not None:
            return False
        return self._promised | report.began == view.everyone and not report.holding

    def judge(self) -> None:
        """The root: close the round if it is time. What is held is put forward again without any code."""
        view, code, coding, report = self._place.view, self.code, self._coding, self._all()
        if view is None or report is None or self.closed is not None or not view.slots:
            return
        if self._parent is not None or (self._own is None and self._alone >= _MOST_ALONE):
            return  # the fleet must not run away from the root's owner
        self._promised |= report.began
        if self._promised != view.everyone or (report.holding and report.began != view.everyone):
            return
        done = tuple(max(value - 1, 0) for value in bytes(report.done))
        if report.holding:
            self._close(Closed(done, True, view.everyone, self._name(coding)))
            return
        if code is None or coding is None:
            return
        brings = code.brings(done)
        if not any(brings):
            return
        recovery = code.recovery(done)
        deadline = self.next_deadline()
        enough = recovery.exact or recovery.enough or coding.enough(recovery.error)
        if enough or (deadline is not None and self._place.now >= deadline):
            self._close(Closed(done, False, self._expected(view, brings), coding.name, recovery))

    def next_deadline(self) -> float | None:
        """When the root is to look again although nobody has said anything."""
        if self._coding is None or self._coding.deadline_s is None or self._since is None or self.closed is not None:
            return None
        return self._since + self._coding.deadline_s if self._parent is None else None

    def on_release(self, peer: PeerId, frame: Release) -> str:
        """The root has closed the round. Returns what is wrong with it."""
        view, code = self._place.view, self.code
        if view is None or not view.slots or peer != self._parent or self._place.at(frame) is None:
            return ""
        if frame.code not in ("", self._name(self._coding)):
            return self._on_other_release(view, frame)
        if code is None and not frame.anew:
            return ""
        done = tuple(max(value - 1, 0) for value in frame.done)
        mine, said = self._own or {}, self._said_before
        slots = self._slots(self._place.me)
        if not self._possible(frame.done) or any(done[s] > said.get(s, 0) for s in slots):
            return f"Release of {frame.done.hex()}: more than there is, or than is computed here"
        if any(done[s] > mine.get(s, 0) for s in slots):
            self._due = frame  # it was, beside a state that has been given up since
        elif self.closed is None:
            expected = view.everyone if frame.anew or code is None else self._expected(view, code.brings(done))
            self._close(Closed(done, frame.anew, expected, self._name(self._coding)))
        return ""

    def _on_other_release(self, view: View, frame: Release) -> str:
        """The round is closed for another code than is wanted here. Nothing from here down is in it, unless this peer
        has given up the state that it had said so beside, and been given another code: then no sum can come of it."""
        if len(frame.done) != len(view.slots):
            return f"Release of {frame.done.hex()}: not of {len(view.slots)} slots"
        own = [view.position(self._place.me), *(p for child in self._children for p in self._below(child))]
        if not frame.anew and any(frame.done[slot] > 1 for p in own for slot in self._slots(view.ids[p])):
            here = self._name(self._coding)
            self.wrong = (
                f"closed for the code {frame.code!r} with something that is for {here!r} by now at {self._place.me}"
            )
        if self.closed is None:
            done = tuple(max(value - 1, 0) for value in frame.done)
            self._close(Closed(done, frame.anew, view.everyone if frame.anew else 0, frame.code))
        return ""

    @staticmethod
    def _expected(view: View, brings: tuple[bool, ...]) -> int:
        return sum(1 << view.position(p) for p, slots in view.owned.items() if any(brings[slot] for slot in slots))

    def _close(self, closed: Closed) -> None:
        self.closed, self.closed_at = closed, self._place.now
        for child in self._children:
            if self._place.level(child):
                self._release(child, closed)

    def _release(self, child: PeerId, closed: Closed) -> None:
        here, number = self._place.here, self._place.committed + 1
        if here is not None:
            done = bytes(1 + count for count in closed.done)
            frame = Release(epoch=here.epoch, round=number, done=done, anew=closed.anew, code=closed.code)
            self._emit(fx.Send(child, frame))

    # -- what follows for the sum ---------------------------------------------------------------------------------

    @property
    def is_closed_for_another(self) -> bool:
        """Whether the round is closed for another code than this peer's, so that nobody from here down brings anything
        that it could take."""
        closed = self.closed
        return closed is not None and not closed.anew and closed.code != self._name(self._coding)

    def columns(self, children: Iterable[PeerId]) -> dict[PeerId, FloatVector]:
        """Of the children whose vectors are shorter than the sum: with which weights they enter each block of it."""
        code, closed = self.code, self.closed
        if code is None or closed is None or self.is_closed_for_another:
            return {}
        slots = ((child, self.narrow(child)) for child in children)
        return {child: code.column(slot, closed.done) for child, slot in slots if slot is not None}

    def narrow(self, peer: PeerId) -> int | None:
        """The slot whose vector a peer sends as it is, shorter than the sum, for its parent to expand; None: it sends
        the sum of all that it has, expanded already."""
        view, code, closed = self._place.view, self.code, self.closed
        if view is None or code is None or closed is None or closed.anew or code.blocks == 1:
            return None
        if self.is_closed_for_another:
            return None
        if view.parent(peer) is None or view.children(peer):
            return None
        brings = code.brings(closed.done)
        bringing = [slot for slot in view.owned.get(peer, ()) if brings[slot]]
        return bringing[0] if len(bringing) == 1 else None
