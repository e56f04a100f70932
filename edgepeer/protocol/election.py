"""Who takes over when the way to the coordinator is broken.

    this peer                               | does
    ----------------------------------------+-------------------------------------------------------------
    has lost its parent, and its turn is up | sends a Poll through all its links, again and again
    is the coordinator, and has lost peers  | the same: who does not answer does not count
    gets a Poll for the view it works in    | passes it on through its other links, once; if it is the
                                            | coordinator's, or its own way there is broken, a Vote goes back
    gets a Poll for an older view           | sends the newer view back
    gets a Vote for another                 | passes it back the way that the Poll has come
    has the Votes of a quorum               | takes over (membership.py makes the view)

Who still has a way to the coordinator votes for nobody else. So a peer that has only lost its own way can't take
over from a living coordinator that a quorum can reach.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.topology.view import View
from edgepeer.wire.frames import Poll, Vote

__all__ = ["Election"]

_REMEMBERED: Final = 256
_CURRENT: Final = 4
"""Votes for so many of the last polls count: on slow paths they take longer than the time between two."""


class Election:
    """Polls of this peer, and those that pass through it."""

    def __init__(self, me: PeerId, emit: Callable[[fx.Effect], None]) -> None:
        self._me = me
        self._emit = emit
        self._number = 0
        self._again_at = 0.0
        self._seen: OrderedDict[tuple[str, int, int], PeerId] = OrderedDict()  # polls, and whom they came from
        self._votes: dict[PeerId, int] = {}

    def reset(self) -> None:
        """Another view, or none."""
        self._again_at = 0.0
        self._votes.clear()

    @property
    def votes(self) -> set[PeerId]:
        """Who is for this peer."""
        return {self._me} | {peer for peer, number in self._votes.items() if number > self._number - _CURRENT}

    def poll(self, view: View, links: Iterable[PeerId], now: float, again_s: float) -> None:
        """Ask everybody, unless that was done just now."""
        if now < self._again_at:
            return
        self._again_at = now + again_s
        self._number += 1
        for peer in links:
            self._emit(fx.Send(peer, Poll(epoch=view.stamp, candidate=self._me, number=self._number)))

    def on_poll(self, peer: PeerId, poll: Poll, view: View, links: Iterable[PeerId], *, orphan: bool) -> None:
        """A Poll for the view that this peer works in."""
        key = poll.candidate, poll.epoch, poll.number
        if poll.candidate == self._me or key in self._seen:
            return
        self._seen[key] = peer
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        for other in links:
            if other != peer:
                self._emit(fx.Send(other, poll))
        if poll.candidate == view.coordinator or (orphan and poll.candidate in view):
            vote = Vote(epoch=poll.epoch, candidate=poll.candidate, number=poll.number, voter=self._me)
            self._emit(fx.Send(peer, vote))

    def on_vote(self, vote: Vote, view: View) -> None:
        """A Vote, for this peer or to be passed on."""
        if vote.candidate != self._me:
            back = self._seen.get((vote.candidate, vote.epoch, vote.number))
            if back is not None:
                self._emit(fx.Send(back, vote))
        elif vote.epoch == view.stamp and vote.number <= self._number and vote.voter in view:
            self._votes[PeerId(vote.voter)] = vote.number
