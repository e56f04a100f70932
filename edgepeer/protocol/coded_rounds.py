"""Coded rounds, between what peers say of their progress (coded.py) and the sum (round.py).

the round is       | this peer
-------------------+---------------------------------------------------------------------------
not closed         | says what it has computed; adds up nothing
closed by the root | asks its owner to encode, if it has to bring something; adds up what is expected of its
                   | children, and waits for no others
closed anew        | brings nothing, or what it holds from an earlier view: everybody does, so the newest comes up
cut short by a view | says anew what it has computed: what it has encoded was for the old one
"""

from __future__ import annotations

from collections.abc import Mapping

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.code import Coding
from edgepeer.protocol.ending import Ending
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.streams import NOTHING, Shape
from edgepeer.wire.frames import Progress, Release

__all__ = ["CodedRounds"]


class CodedRounds(Ending):
    """What of one peer's rounds is about codes."""

    def use_code(self, coding: Coding | None) -> None:
        """The owner wants rounds to be coded, or not, in views whose members own slots."""
        before, self._coded.coding = self._coded.coding, coding
        if before is None or coding is None or before.name != coding.name:
            self._coded.enter(self.place.view)
            self._advance()

    def did(self, epoch: int, round_: int, done: Mapping[int, int], now: float) -> None:
        """The owner takes part in a round, and has computed so many chunks for each of its slots."""
        rd, view = self._round, self.place.view
        if view is None or (view.stamp, self.committed + 1) != (epoch, round_):
            return
        if not rd.mine:
            if (past := self._past.owed()) is not None:
                self._emit(fx.RoundAborted(self.run, past.round, past.cause, past.reason, mine=True))
                return
            rd.mine, rd.in_chunks, rd.since = True, True, now
        if view.slots:
            self._coded.did(done if self._coded.code is not None else {})
        if self._coded.code is None:
            self._want_abort("mismatch", f"{self.place.me} computes for a code, but {self._coded.why_not}")
        self._after_news()

    def encoded(self, epoch: int, round_: int, vector: FloatVector) -> None:
        """What the owner was asked to encode. It must not change until the round is over."""
        rd, view, closed = self._round, self.place.view, self._coded.closed
        if view is None or closed is None or (view.stamp, self.committed + 1) != (epoch, round_) or rd.own is not None:
            return
        narrow = self._coded.narrow(self.place.me)
        blocks = self._coded.code.blocks if narrow is not None and self._coded.code is not None else 1
        shape = Shape(vector.size * blocks, Shape.of(vector).dtype)
        if rd.shape is not None and rd.shape != shape:
            self._want_abort("mismatch", f"{self.place.me} brings {shape}, a peer below it {rd.shape}")
            return
        rd.own, rd.weight, rd.shape = vector, 1.0, shape
        self._advance()

    def on_progress(self, peer: PeerId, frame: Progress) -> None:
        """A child says how far it and those below it are."""
        if peer in self._round.streams and (wrong := self._coded.on_progress(peer, frame)):
            self._fail_link(peer, wrong)
        self._after_news()

    def on_release(self, peer: PeerId, frame: Release) -> None:
        """The root has closed the round."""
        if wrong := self._coded.on_release(peer, frame):
            self._fail_link(peer, wrong)
        self._after_news()

    def look_again(self) -> None:
        """Time has passed: a coded round may be closed by its policy."""
        self._coded.judge()
        self._after_news()

    def next_deadline(self) -> float | None:
        return self._coded.next_deadline()

    def _after_news(self) -> None:
        rd, view, closed, code = self._round, self.place.view, self._coded.closed, self._coded.code
        if self._coded.wrong:
            self._want_abort("mismatch", self._coded.wrong)
        elif rd.abort_wanted is not None:
            self._advance()  # what has been said may be what it takes
        if self._round is not rd or rd.closed is not None or closed is None or view is None:
            return
        columns = {}
        for child in rd.streams:
            if code is not None and (slot := self._coded.narrow(child)) is not None:
                columns[child] = code.column(slot, closed.done)
        rd.close(closed, columns)
        if closed.anew:
            if rd.prior is None:
                rd.own, rd.weight, rd.shape = NOTHING, 1.0, Shape.of(NOTHING)
        elif closed.expected >> view.position(self.place.me) & 1:
            narrow = self._coded.narrow(self.place.me)
            self._emit(fx.EncodeWanted(view.stamp, self.committed + 1, closed.done, narrow))
        self._advance()
