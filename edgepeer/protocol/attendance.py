"""Who is there, asked and answered through the broker: letters, presences, and views that are only retained.

comes                                 | so
--------------------------------------+--------------------------------------------------------------------------
a presence                            | whoever matters is called (rollcall.py says whom, and when)
our own, of a later life than ours    | this peer comes back in one that is later still
a Call                                | it is answered; whoever is in an earlier view gets this one
Here, or any word of a peer           | it is there, in that life, in that view or in none; it is let in if it has
                                      | answered: the broker may have had a letter for long, and its sender have died
a word of a later view than ours      | the peer is asked for it: a letter may have been on its way for long
the same outside, of another          | likewise, though what is known is later: there may be nobody left of that
generation than what is known         |
a retained view that follows ours     | its members are called, if they don't bring it themselves within a second:
                                      | they may be dead, or have gone on without this peer
"""

from __future__ import annotations

from typing import Final

from edgepeer.errors import WireError
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.parts import Parts
from edgepeer.protocol.rollcall import CALL_ROUND_S, FRESH_S, Word, in_view, letter
from edgepeer.protocol.views import Views, earlier, packed, unpacked
from edgepeer.topology.view import Member, View
from edgepeer.wire import frames as fr

__all__ = ["Attendance"]

CALL_BATCH_S: Final = 0.01
"""Presences come in swarms: those of so long a time are called together."""
CALLED_OF_HINT: Final = 8
BROUGHT_S: Final = 1.0
"""How long a view may take over the links: all who were told of it by the broker would call at once, each be answered
with the view, and a slow broker bring nothing else for seconds."""
HINT_S: Final = 3.0
"""How long somebody may take to confirm a view that is only retained."""


class Attendance:
    """What one peer learns of others through the broker, and says of itself.

    Args:
        of: the parts of the peer.
        views: told of the views that others speak of.
    """

    def __init__(self, of: Parts, views: Views) -> None:
        self._me = of.id
        self._emit = of.emit
        self._place = of.place
        self._membership = of.membership
        self._succession = of.succession
        self._links = of.links
        self._rolls = of.rolls
        self._outside = of.outside
        self._waking = of.waking
        self._limits = of.limits
        self._views = views
        self._beside: dict[int, float] = {}
        """Stamps of views that were asked for beside a later one, and until when that is not done again."""

    # -- who is there ----------------------------------------------------------------------------------------

    def on_presence_seen(self, member: Member) -> None:
        """MQTT: a peer says that it is there."""
        peer = PeerId(member.id)
        if peer == self._me:
            self._views.on_own_life(member.incarnation)
            return
        self._links.on_presence(peer)
        self._membership.on_presence(peer, self._place.now)
        if self._rolls.on_presence(member, self._place.now):
            self._rolls.call_by(self._place.now + CALL_BATCH_S)

    def on_presence_gone(self, peer: PeerId) -> None:
        """MQTT: a peer's presence has been cleared."""
        if peer != self._me:
            self._rolls.on_gone(peer)
            self._membership.on_gone(peer)
            self._links.on_gone(peer)

    def on_control_synced(self) -> None:
        """MQTT: all that is retained has been seen."""
        self._outside.on_synced(self._place.now)
        self._rolls.call_by(self._place.now)
        if not self._waking.over:
            self.write_to_myself()

    def call_round(self) -> None:
        """Call whoever matters and has not spoken for a while."""
        view, hint, again_at = self._membership.view, self._outside.hint, float("inf")
        callees = self._outside.callees(self._place.now) if view is None else []
        if view is not None and (self._membership.coordinator or self._succession.asked):
            callees = self._membership.callees()
            if callees and self._membership.coordinator:  # members answer, if the broker brings answers at all
                callees = [*view.ids[1:CALLED_OF_HINT], *callees]
        if view is not None and hint is not None:
            if self._doubt(hint, view):
                return
            again_at = self._outside.hint_since + BROUGHT_S
            if self._place.now >= again_at:
                callees = [*hint.ids[:CALLED_OF_HINT], *callees]
        callees = [peer for peer in callees if peer != self._me]
        if view is None and self._membership.waits:
            callees.append(self._me)  # that nobody answers says nothing where not even that comes back
        stale = self._rolls.stale() if self._membership.coordinator else []
        if stale := [member for member in stale if view is None or member.id not in view]:  # of members, links tell
            if self._rolls.answered(self._place.now):
                self._clear(stale)
            else:
                callees.append(self._me)
        self._rolls.call(self._me, callees, self.call(), self._place.now)
        if callees or view is None:
            again_at = self._place.now + CALL_ROUND_S
        self._rolls.call_next(again_at if again_at > self._place.now else float("inf"))

    def _clear(self, stale: list[Member]) -> None:
        """Nobody answers for these."""
        names = ", ".join(member.id for member in stale[:5]) + (", ..." if len(stale) > 5 else "")
        self._emit(fx.Note("info", f"cleared the presence of {len(stale)} who did not answer: {names}"))
        for member in stale:
            self._rolls.on_gone(PeerId(member.id))
            self._emit(fx.ClearPresence(member))

    def call(self, *, view: bool = False) -> fr.Call:
        """What this peer asks others. `view`: for the view that they are in."""
        generation, epoch = in_view(self._membership.view)
        me = self._membership.me
        return fr.Call(
            incarnation=me.incarnation,
            generation=generation,
            epoch=epoch,
            known=self._rolls.newest,
            view=view,
            stamp=self._place.now,
        )

    def write_to_myself(self) -> None:
        """Have the broker bring back what comes after all that it had for this peer."""
        self._emit(letter(self._me, self._me, self.call(view=True)))

    def on_letter(self, source: PeerId, frame: fr.Frame, payload: memoryview | bytes) -> None:
        match frame:
            case fr.Call() if source == self._me:
                now = self._place.now
                word = Word(now, frame.incarnation, frame.generation, frame.epoch, answers=self._is_of_now(frame.stamp))
                self._rolls.on_word(source, word)
                if frame.view:
                    self._waking.on_letter(frame.stamp)
            case fr.Call():
                aside = self._views.left or self._membership.leaving
                generation, epoch = in_view(self._membership.view)
                incarnation, known = self._membership.me.incarnation, self._rolls.newest
                here = fr.Here(
                    incarnation=incarnation,
                    generation=generation,
                    epoch=epoch,
                    known=known,
                    aside=aside,
                    echo=frame.stamp,
                )
                self._emit(letter(self._me, source, here))
                theirs = Word(self._place.now, frame.incarnation, frame.generation, frame.epoch)
                if self._membership.view is not None and (
                    frame.view or (theirs.epoch and earlier(theirs, self._membership.view))
                ):
                    self._emit(
                        letter(
                            self._me,
                            source,
                            fr.ViewFrame(epoch=self._membership.view.stamp),
                            packed(self._membership.view),
                        )
                    )
                self.heed(source, theirs, frame.known)
            case fr.Here():
                now, answers = self._place.now, self._is_of_now(frame.echo)
                took_s = max(now - frame.echo, 0.0)
                word = Word(now, frame.incarnation, frame.generation, frame.epoch, frame.aside, answers, took_s)
                self.heed(source, word, frame.known)
            case fr.ViewFrame(epoch):
                said = self._rolls.word(source, self._place.now)
                told = said is not None and said.epoch == epoch and self._is_believed(said)
                if told and (view := _unpack(payload)) is not None:
                    self._views.on_view(view)

    def _is_of_now(self, asked_at: float) -> bool:
        """Whether that was asked lately. What is of the future was asked before this device's clock began anew."""
        return 0 <= self._place.now - asked_at <= self._limits.anew_s

    def _is_believed(self, word: Word) -> bool:
        """Whether what a peer says of a view may move this one. A letter the broker may have had for it for long, and
        its sender may have died since: nobody gives up a view for that. Who is in none has nothing to give up."""
        return word.answers or self._membership.view is None

    def heed(self, peer: PeerId, word: Word, known: Generation | None) -> None:
        """A peer has spoken: it is there, in that life, in that view or in none."""
        self._rolls.on_word(peer, word, known)
        self._membership.on_life(peer, word.life, self._place.now)
        self._links.on_life(peer, word.life, self._place.now)
        self._outside.on_refused(peer, refused=False)
        if self._membership.coordinator and self._rolls.joiner(peer, self._place.now) is not None:
            self._membership.note_change(self._place.now)
        view, hint = self._membership.view, self._outside.hint
        if not word.epoch or (view is not None and not earlier(view, word)):
            return
        if self._is_believed(word) and hint is not None and hint.stamp == word.epoch:
            self._views.on_view(hint)  # what was retained is true
        elif view is not None or hint is None or earlier(hint, word) or self._is_new_beside(hint, word):
            self._emit(letter(self._me, peer, self.call(view=True)))

    def _is_new_beside(self, hint: View, word: Word) -> bool:
        """Outside: whether a peer that is there speaks of a view, not asked for yet, of an earlier generation than what
        is known. Of the later there may be nobody left, and this peer be in the earlier."""
        now = self._place.now
        if not word.answers or word.generation == hint.generation or now < self._beside.get(word.epoch, 0.0):
            return False
        self._beside = {stamp: until for stamp, until in self._beside.items() if now < until}
        self._beside[word.epoch] = now + FRESH_S
        return True

    # -- views that are only heard of -------------------------------------------------------------------------

    def on_hint(self, view: View) -> None:
        """A view is retained: it may be of the dead, or nobody's at all. Whoever is in it may say so."""
        mine = self._membership.view
        if mine is None or mine.precedes(view):
            self._outside.on_hint(view, self._place.now)
            self._rolls.call_by(self._place.now if mine is None else self._outside.hint_since + BROUGHT_S)
        elif self._membership.coordinator and view.precedes(mine):
            self._emit(fx.PublishView(mine))  # ours is the newer one: MQTT should hold it

    def _doubt(self, hint: View, view: View) -> bool:
        """Nobody has confirmed a retained view yet. Whether this peer has made up its mind.

        Who can go on in its own view does not believe it. To who can't, it is what it is to a newcomer: it may be what
        the others have gone on with, and then died.
        """
        waiting = bool(self._membership.waits)
        if self._place.now < self._outside.hint_at + (self._limits.anew_s if waiting else HINT_S):
            return False
        if waiting and not self._membership.contains_me(hint):
            self._views.exit(hint, f"view {hint.epoch} followed without this peer, and nobody of it answers")
            return True
        self._outside.forget_hint()
        if self._membership.coordinator:
            self._emit(fx.PublishView(view))
        return False


def _unpack(payload: memoryview | bytes) -> View | None:
    try:
        return unpacked(bytes(payload))
    except WireError:
        return None
