"""What happened to a simulated fleet, told so briefly that people can read it, and tests compare it.

Faults divide an account. Between two of them it tells which views were made, by whom and how soon, who was put out,
ways around broken links, how rounds ended (those in a row that ended alike in one line), and who took a state over. Its
only times of its own are coarse, and it is ordered by what things are and not by the moment: so a little more jitter,
or one heartbeat more, seldom changes it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from textwrap import shorten
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.topology.view import View

__all__ = ["Account"]

_WITHIN_S: Final = (1, 5, 20, 60)
"""How soon something came: the first of these that it did not take longer than. None is near a patience."""
_WAY: Final = re.compile(r"link to (\S+) goes (?:via (\S+)|relay)")
_REASON: Final = 80
"""Characters of a reason that are told."""
_COUNTED: Final = re.compile(r"\d+ of \d+")


@dataclass(slots=True)
class _Made:
    """A view."""

    view: View
    maker: PeerId
    within: str
    anew: list[PeerId]
    """The members whose life is a new one."""
    installed: set[PeerId] = field(default_factory=set)

    def __str__(self) -> str:
        said = f"view {self.view.epoch} by {self.maker} {self.within}: {_list(self.view.ids)}"
        if self.anew:
            said += f"; anew {_list(self.anew)}"
        if missing := [peer for peer in self.view.ids if peer not in self.installed]:
            said += f"; not seen by {_list(missing)}"
        return said


@dataclass(slots=True)
class _Ended:
    """A way in which a round has ended."""

    number: int
    how: str
    members: tuple[PeerId, ...]
    """Who was to end it."""
    at: set[PeerId] = field(default_factory=set)

    def __str__(self) -> str:
        missing = [peer for peer in self.members if peer not in self.at]
        return self.how + (f"; not at {_list(missing)}" if missing else "")


@dataclass(slots=True)
class _Part:
    """What happened from one moment to the next that divides an account."""

    title: str
    began: float
    views: list[_Made] = field(default_factory=list)
    out: set[tuple[PeerId, str]] = field(default_factory=set)
    ways: dict[tuple[PeerId, PeerId], set[str]] = field(default_factory=lambda: defaultdict(set))
    rounds: list[_Ended] = field(default_factory=list)
    states: set[PeerId] = field(default_factory=set)
    behind: set[PeerId] = field(default_factory=set)
    notes: dict[str, set[PeerId]] = field(default_factory=lambda: defaultdict(set))

    def lines(self) -> Iterator[str]:
        yield self.title
        for made in self.views:
            yield f"    {made}"
        for peer, reason in sorted(self.out):
            yield f"    {peer} is out: {reason}"
        for text, peers in sorted(self.notes.items()):
            yield f"    {_list(sorted(peers))}: {text}"
        for (one, other), ways in sorted(self.ways.items()):
            yield f"    {one} and {other} reach each other {' and '.join(sorted(ways))}"
        in_order = sorted(self.rounds, key=lambda ended: (ended.number, ended.how))
        for said, alike in groupby(in_order, key=str):
            yield f"    {_rounds([ended.number for ended in alike])} {said}"
        if self.states:
            yield f"    {_list(sorted(self.states))} took a state over"
        if self.behind:
            yield f"    {_list(sorted(self.behind))} gave up rounds that had ended without them"


class Account:
    """Hears what all peers do, as `World.on_effect`, and what happens to them."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._views: dict[int, _Made] = {}  # by stamp
        self._lives: dict[PeerId, int] = {}
        self._ended: dict[tuple[str, int, str], _Ended] = {}
        self._handlers: dict[type, Callable[..., None]] = {
            fx.ViewInstalled: self._on_view,
            fx.Removed: self._on_removed,
            fx.RoundCommitted: self._on_committed,
            fx.RoundAborted: self._on_aborted,
            fx.StateReceived: lambda now, peer, effect: self._parts[-1].states.add(peer),
            fx.Behind: lambda now, peer, effect: self._parts[-1].behind.add(peer),
            fx.Note: self._on_note,
        }

    def begin(self, title: str, now: float) -> None:
        """Something has happened that divides the account."""
        self._parts.append(_Part(title, now))

    def on_effect(self, now: float, peer: PeerId, effect: fx.Effect) -> None:
        """A peer does something."""
        if (handler := self._handlers.get(type(effect))) is not None:
            handler(now, peer, effect)

    def __str__(self) -> str:
        return "".join(f"{line}\n" for part in self._parts for line in part.lines())

    # -- what peers do -------------------------------------------------------------------------------------------

    def _on_view(self, now: float, peer: PeerId, effect: fx.ViewInstalled) -> None:
        view, part = effect.view, self._parts[-1]
        made = self._views.get(view.stamp)
        if made is None:
            lives = {PeerId(member.id): member.incarnation for member in view.members}
            anew = [each for each, life in lives.items() if self._lives.get(each, life) < life]
            self._lives |= lives
            made = self._views[view.stamp] = _Made(view, peer, _within(now - part.began), anew)
            part.views.append(made)
        made.installed.add(peer)

    def _on_removed(self, now: float, peer: PeerId, effect: fx.Removed) -> None:
        self._parts[-1].out.add((peer, effect.reason))

    def _on_committed(self, now: float, peer: PeerId, effect: fx.RoundCommitted) -> None:
        made = [made for made in self._views.values() if made.view.epoch == effect.epoch]
        view = next(each.view for each in reversed(made) if {*effect.contributors} <= {*each.view.ids})
        without = [each for each in view.ids if each not in effect.contributors]
        how = f"summed over view {effect.epoch}" + (f" without {_list(without)}" if without else "")
        if not effect.exact and effect.error:
            how += ", approximately"
        self._end(effect.run, effect.round, how, view.ids, peer)

    def _on_aborted(self, now: float, peer: PeerId, effect: fx.RoundAborted) -> None:
        if effect.cause in ("mismatch", "timeout"):
            last = next((made.view.ids for made in reversed(self._views.values()) if peer in made.installed), ())
            how = f"given up: {shorten(effect.reason, _REASON, placeholder=' ...')}"
            self._end(effect.run, effect.round, how, last, peer)

    def _end(self, run: str, number: int, how: str, members: tuple[PeerId, ...], peer: PeerId) -> None:
        ended = self._ended.get((run, number, how))
        if ended is None:
            ended = self._ended[run, number, how] = _Ended(number, how, members)
            self._parts[-1].rounds.append(ended)
        ended.at.add(peer)

    def _on_note(self, now: float, peer: PeerId, effect: fx.Note) -> None:
        if (way := _WAY.fullmatch(effect.text)) is not None:
            other = PeerId(way[1])
            path = "over a neighbour" if way[2] else "over the broker"
            self._parts[-1].ways[min(peer, other), max(peer, other)].add(path)
        else:
            self._parts[-1].notes[_COUNTED.sub("some", effect.text)].add(peer)


def _within(seconds: float) -> str:
    soon = next((limit for limit in _WITHIN_S if seconds <= limit), None)
    return f"within {soon} s" if soon is not None else f"after more than {_WITHIN_S[-1]} s"


def _list(peers: Iterable[str]) -> str:
    return " ".join(peers)


def _rounds(numbers: list[int]) -> str:
    """Numbers in ascending order, as ranges."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number <= spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    told = ", ".join("-".join(str(number) for number in span) for span in spans)
    return f"round{'s' * (len(numbers) > 1)} {told}"
