"""Where neighbours stand, told by Sync frames, and what follows: results handed over, states fetched.

a neighbour's Sync says            | this peer
-----------------------------------+------------------------------------------------------------------
an older epoch                     | is `Node`'s business: it sends the view
this view, the round before ours   | hands over (`Past`)
this view, ahead of us             | waits to be handed over; asks for the state if there is a run and it
                                   | has none, or that does not come; without a run, gives the round up, at once if
                                   | all neighbours are ahead and none can hand it over: they joined after it
this view, no state, none below    | at the root, if it has none either: the run begins with its own
this view, not behind us           | if our owner has lost the state: asks for it, and is without it until one comes
                                   | that is no older than what was over here; while that can't be, and another has
                                   | asked for it here: the owner takes it, and this peer stands where it stood
what we said last is out of date   | says it anew
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from edgepeer.ids import Lineage, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.allreduce import Allreduce
from edgepeer.protocol.catchup import PATIENCE_S, PROVIDING_S, Catchup
from edgepeer.protocol.course import Course
from edgepeer.protocol.links import Links
from edgepeer.protocol.place import UNKNOWN
from edgepeer.wire.frames import State, StateRequest, Sync

__all__ = ["PACKING_S", "Neighbours"]

_RECEIVING_S: Final = 20.0
"""How long a piece of a result may take, and still come ..."""
PACKING_S: Final = 20.0
"""... and how long an owner may pack a state, which it may have lost since it was asked: with the time that it takes
then until the run is over, nobody waits for longer than half a minute in vain."""


class Neighbours:
    """The conversation of one peer with its neighbours about where they stand."""

    def __init__(
        self, links: Links, course: Course, allreduce: Allreduce, catchup: Catchup, emit: Callable[[fx.Effect], None]
    ) -> None:
        self._links = links
        self._course = course
        self._allreduce = allreduce
        self._place = course.place
        self._catchup = catchup
        self._emit = emit
        self.wanted_run: str | None = None
        """The run that the owner takes part in."""
        self._gap = 0, 0.0  # our last round, and for how long neighbours have been ahead of it
        self._gap_at: float | None = None
        """When that was last looked at; None: no neighbour was ahead then, or it had begun to hand over."""
        self._took: int | None = None
        """After which round the state is that the owner has put to use while this peer stood there itself, until it
        goes on from it. It may not hear how the round ends that comes next: it has brought something to that before it
        lost what it had."""
        self._received = (0, 0, -1), 0.0
        """In which view and after which round, how much has come of the next one's result, and since when that is
        so."""
        self._providing: dict[PeerId, float] = {}  # one state at a time to each neighbour, asked of the owner when
        self._packs_since = 0.0
        """When the owner was first asked of those that it has not answered."""
        self._takers: set[PeerId] = set()
        """For whom the owner was asked for it since the run began."""
        self._askers: dict[PeerId, str] = {}
        """Who has asked for the state of which run while there was none here."""
        self._of: Lineage | None = None
        """Of which checkpoint the state is that has begun to come."""

    def want(self, run: str | None) -> None:
        """The owner takes part in that run, or in none. What it was putting to use for another one it does no more; nor
        has it the state of one that it has given up, if it wants that again."""
        if run != self.wanted_run:
            self._catchup.reset()
            self._course.give_up_run()
            self._took = None
            self._providing.clear()
            self.hope()
        self.wanted_run = run

    def reset(self) -> None:
        """Another run, or none."""
        self._course.take(None)
        self._took = None
        self._catchup.reset()
        self._catchup.stop_giving()
        self._providing.clear()
        self._takers.clear()
        self._askers.clear()

    def on_lost(self, peer: PeerId) -> None:
        """A link is gone."""
        self._forget(peer)
        if self._course.on_lost(peer):
            self.sync_all()  # another one may have the same result, and think that we have taken it
        self.hope()

    def _forget(self, peer: PeerId) -> None:
        """Whatever of a state was on its way to or from a peer comes no more."""
        self._providing.pop(peer, None)
        self._askers.pop(peer, None)
        self._catchup.on_lost(peer)

    def _forget_who_is_gone(self) -> None:
        """Who has no way here any more, as ways around lead to neighbours, or is in the view no more, may have been
        asked, or be giving or taking; with it, that is over."""
        view = self._place.view
        for peer in {*self._providing, *self._askers, *self._catchup.others}:
            if not self._links.is_up(peer) or (view is not None and peer not in view):
                self._forget(peer)

    # -- Sync ----------------------------------------------------------------------------------------------

    def sync_for(self, peer: PeerId) -> Sync:
        """What tells a neighbour where this peer stands. Who holds what may be the end of the round that comes next
        does not give its checkpoint up: beside whoever has come as far with another one, or can tell how that round has
        ended, it is a fleet at work."""
        place, link = self._place, self._links.get(peer)
        theirs = link.sync if link is not None else None
        sync = self._course.past.sync(place.standing, self._course.have_of(peer))
        known = theirs is not None and theirs.since <= place.committed <= theirs.committed
        if self._course.holding and theirs is not None and known:
            same = theirs.checkpoint(place.committed) == place.restored
            return sync if same else msgspec.structs.replace(sync, restored=None)
        return sync

    def send_sync(self, peer: PeerId, told: Sync | None = None) -> None:
        """Tell it, unless it has been `told` the same already."""
        sync = self.sync_for(peer)
        self._links[peer].tell(sync)
        if sync != told:
            self._emit(fx.Send(peer, sync))

    def on_sync(self, peer: PeerId, frame: Sync, now: float) -> None:
        """A neighbour that is level has said where it stands."""
        before = self._place.committed
        self._catchup.stands(peer, frame.committed)
        given_up = self._compare_restored(peer, frame.committed)
        self._allreduce.on_sync(peer, UNKNOWN if given_up else frame.committed, frame.have, again=frame.again)
        if before != self._place.committed:
            self.sync_all()
        elif self._links[peer].told != self._place.standing:
            self.send_sync(peer)  # a round has ended since, and we did not know yet that it must hear of it
        self.hope()
        self.ask_for_state(now, patient=True)

    def _compare_restored(self, peer: PeerId, committed: int) -> bool:
        """Rounds of the same number need not be the same where states are from checkpoints of several generations: the
        latest counts, and what a fleet at work has counts more. Where one can hand over what the other lacks, it is to
        have gone on from what the other has. Returns whether it is the neighbour who gives up."""
        theirs, place = self._links[peer].sync, self._place
        if theirs is None or committed <= 0 or place.committed <= 0:
            return False
        ours, ahead = self._course.past.sync(place.committed), place.committed - committed
        mine, its = ours.checkpoint(place.committed), theirs.checkpoint(committed)
        if theirs.since <= place.committed < committed or ours.since <= committed < place.committed:
            number = min(committed, place.committed)
            loses, same = ahead < 0, ours.checkpoint(number) == theirs.checkpoint(number)
        else:
            loses = its is None or (mine is not None and mine < its)
            same = mine == its or (its is None and ahead < 0) or (mine is None and ahead > 0)  # as far as is known
        if same:
            return False
        if loses and not self._course.holding:
            self._course.give_up_restored()
        elif loses and self._links[peer].told_of is not None:
            self.send_sync(peer)  # on a new path it was told before we knew of its own
        return not loses

    def _counts(self, peer: PeerId) -> bool:
        """Whether no other neighbour's state is from a later checkpoint, or from none."""
        syncs = {other: sync for other in self._around() if (sync := self._links[other].sync) is not None}
        mine = syncs[peer].checkpoint(syncs[peer].committed)
        others = [sync.checkpoint(sync.committed) for sync in syncs.values() if sync.committed > 0]
        return mine is None or all(other is not None and other <= mine for other in others)

    def sync_all(self) -> None:
        """Say to all neighbours where this peer stands, and hear again where they do."""
        for peer in self._around():
            self.send_sync(peer)
            self.hear_again(peer)

    def hear_again(self, peer: PeerId) -> None:
        """Take up what a neighbour has said before it mattered here."""
        link = self._links.get(peer)
        if link is not None and link.sync is not None and self.is_level(peer):
            self._catchup.stands(peer, link.sync.committed)
            given_up = self._compare_restored(peer, link.sync.committed)
            self._allreduce.on_sync(peer, UNKNOWN if given_up else link.sync.committed, link.sync.have)

    def is_under_way(self) -> bool:
        """Whether the end of the round, or a state, is on its way here from who has it, or a state from here, be it
        that the owner packs it."""
        now = self._place.now
        packs = bool(self._providing) and now - self._packs_since < PACKING_S
        return packs or self._catchup.is_given(now) or self._catchup.is_coming(now) or self._is_receiving(now)

    @property
    def coming(self) -> int:
        """After which round the state is that comes here, or is being put to use; UNKNOWN: none is."""
        place = self._place
        if place.loading:
            return place.over
        return self._catchup.coming(place.now) if place.taking is None else place.taking

    def _is_receiving(self, now: float) -> bool:
        """Whether the end of the round comes: whoever has begun to send it may get no more of it itself, having passed
        on what came from somebody who has lost it since."""
        here = self._place.here
        received = here.epoch if here is not None else 0, self._place.committed, self._course.received
        if received > self._received[0] or received[:2] != self._received[0][:2]:
            self._received = received, now  # not whenever the same is sent once more
        return received[2] >= 0 and now - self._received[1] < _RECEIVING_S

    def hope(self) -> None:
        """Tell the parent when it becomes known whether somebody below has the state."""
        here = self._place.here
        parent = here.parent if here is not None else None
        if parent is None or self._place.committed != UNKNOWN or not self._links.is_up(parent):
            return
        if self._links[parent].told != self._place.standing:
            self.send_sync(parent)

    def say_it_is_without(self) -> None:
        """What stood here is given up, or is being replaced: what neighbours send now is lost, and would not be sent
        again to whoever comes to stand there once more. Nor does what was to be handed on."""
        self._stop_giving()
        for peer in self._around():
            if (self._links[peer].told or 0) >= 0:
                self.send_sync(peer)

    def _stop_giving(self) -> None:
        """What was being given comes no more; who takes it may be no neighbour any more, and would wait for it."""
        around = self._around()
        for peer in self._catchup.stop_giving():
            if peer not in around and self._links.is_up(peer):
                self.send_sync(peer)

    def on_word(self, peer: PeerId, frame: Sync) -> None:
        """Who is no neighbour any more, or is in another view, has said where it stands: it may have been giving its
        state here. Whoever has none sends no more of it, whatever view it says that of."""
        here = self._place.here
        same = here is not None and frame.epoch == here.epoch
        if frame.run == self._place.run and (same or frame.committed < 0):
            self._catchup.stands(peer, frame.committed)

    def is_level(self, peer: PeerId) -> bool:
        """Whether a neighbour works in the same view and run."""
        here, link = self._place.here, self._links.get(peer)
        return (
            here is not None
            and link is not None
            and link.sync is not None
            and (link.sync.epoch, link.sync.run) == (here.epoch, self._place.run)
            and peer in here.neighbours
        )

    def _around(self) -> list[PeerId]:
        """The neighbours that are connected: parent, then children."""
        here = self._place.here
        return [peer for peer in here.neighbours if self._links.is_up(peer)] if here is not None else []

    # -- the state of the run --------------------------------------------------------------------------------

    def ask_for_state(self, now: float, *, patient: bool) -> None:
        """Ask a neighbour that is ahead for the state, if its kept results can't or don't bring us there."""
        self._forget_who_is_gone()
        self._give_up_state()
        self._answer_askers(now)
        mine = self._place.committed
        self._catchup.outrun(mine - 1 if self._place.missing else mine)
        gap = 2 if patient and mine != UNKNOWN else 1
        for_owner = bool(self._askers) and self._place.missing
        ahead = []
        for peer in self._around():
            sync = self._links[peer].sync
            far = sync is not None and sync.committed >= max(mine + gap, self._place.over)
            if (far or (for_owner and self._place.level(peer))) and self.is_level(peer) and self._counts(peer):
                ahead.append(peer)
        if self._place.run:
            if self.wanted_run != self._place.run:
                return  # the owner has no use for it yet, and would drop it
            self._catchup.ask(ahead, self._place.run, now)
        elif not patient:
            self._give_up_on(ahead, now)

    def _give_up_on(self, ahead: list[PeerId], now: float) -> None:
        """Neighbours that are ahead but have not seen themselves how the round ended: they joined after it."""
        (committed, waited), mine = self._gap, self._place.committed
        if committed != mine:
            waited = 0.0
        elif self._gap_at is not None:
            waited += now - self._gap_at  # not all at once: links come and go, and so do views
        hopeful = not ahead or self._course.receiving
        self._gap, self._gap_at = (mine, waited), None if hopeful else now
        if not hopeful and (waited >= PATIENCE_S or self._nobody_can_tell()):
            self._course.fall_behind(max(sync.committed for p in ahead if (sync := self._links[p].sync)))
            self.sync_all()

    def _nobody_can_tell(self) -> bool:
        """Whether all neighbours are ahead and none of them, as they say, can hand over the end of our round."""
        here, due = self._place.here, self._place.committed + 1
        neighbours = here.neighbours if here is not None else ()
        around = [link.sync for p in neighbours if (link := self._links.get(p)) and self.is_level(p)]
        told = [sync for sync in around if sync is not None and sync.committed >= due and sync.kept > due]
        return len(told) == len(neighbours)

    def progress(self, now: float) -> dict[str, object]:
        """How far the state of the run is on its way here, or from here to whom, for people to read."""
        return {
            "wanted_run": self.wanted_run,
            "asked": self._catchup.asked,
            "ahead": self._gap,
            "missing": self._place.missing,
            "providing": {peer: now - since for peer, since in sorted(self._providing.items())},
        }

    def on_state_request(self, peer: PeerId, frame: StateRequest, now: float) -> None:
        """A neighbour wants the state, or the rest of it. It does not ask again soon, so who is about to have one
        answers then."""
        if frame.received:
            self._catchup.go_on(peer, frame)
            return
        self._askers[peer] = frame.run
        self.ask_for_state(now, patient=True)

    def _answer_askers(self, now: float) -> None:
        """Have the owner pack the state for those who have asked for it, once it is here."""
        if self._place.committed == UNKNOWN or self._place.missing:
            return
        for peer, run in self._askers.items():
            if run == self._place.run and now - self._providing.get(peer, float("-inf")) >= PROVIDING_S:
                if not self._providing:
                    self._packs_since = now
                self._providing[peer] = now
                self._takers.add(peer)
                self._emit(fx.ProvideState(peer, run, self._place.committed))
        self._askers.clear()

    def on_state_ready(self, event: ev.StateReady) -> None:
        """The owner has packed it. What has been given up here meanwhile, nobody else is to begin with; nor with what
        was asked for before the run began anew, which may be of a round that is not over yet."""
        if self._providing.pop(event.peer, None) is not None:
            self._packs_since = self._place.now
        asked = event.peer in self._takers and event.run == self._place.run
        if not asked or not self._links.is_up(event.peer):
            return
        if self._place.committed == UNKNOWN:
            self._askers[event.peer] = event.run  # of the one that replaces it
        elif event.round <= self._place.committed:
            sync = self._links[event.peer].sync
            stands_there = sync is not None and sync.committed == event.round
            state, now = event.state, self._place.now
            self._catchup.provide(event.peer, event.run, event.round, state, now, stands_there=stands_there)

    def sink(self, peer: PeerId, frame: State, payload_bytes: int) -> memoryview | None:
        return self._catchup.sink(peer, frame, payload_bytes, self._place.now)

    def on_state(self, peer: PeerId, frame: State, event: ev.FrameReceived, now: float) -> None:
        """A piece of the state has arrived. It may be of where this peer stands itself, for its owner: that it has
        given a vector to the round that comes next is so still, and it gives no other."""
        if event.stored and not frame.offset and self._catchup.is_from(peer):
            sync = self._links[peer].sync  # what it has said before it sent this
            self._of = sync.checkpoint(frame.round) if sync is not None else None
        state = self._catchup.on_state(peer, frame, event.payload_bytes, now, stored=event.stored)
        if state is None:
            return
        if self._place.missing and frame.round == self._place.committed:
            self._course.take(frame.round)
        elif frame.round <= self._place.committed or frame.round < self._place.over:
            self._catchup.reset()
            return
        else:
            self._course.forget(loading=frame.round)
        self.hope()  # before the owner can say that it is in use
        self._emit(fx.StateReceived(frame.run, frame.round, state, self._of, self._life))

    def on_state_lost(self) -> None:
        """The owner has fallen behind the rounds that are over here."""
        self._course.miss()
        if not self._place.run:
            self._course.past.forgive()  # what is dropped is over for it as well
        self._took = None
        self._give_up_state()

    def _give_up_state(self) -> None:
        """Be without the state that the owner has lost, but not before a neighbour knows all that is known here: what
        one peer forgets, others may rely on; of what is from a checkpoint nothing is over in this generation. Nor while
        a vector of the owner's is on its way: the state that comes may be of before the same round, and another vector
        would go on where this one has stopped. Nor while a coded round is closed here. Nor while the view that follows
        is being decided: what this peer has said of where it stands counts there."""
        place, here, course = self._place, self._place.here, self._course
        if self._took is not None and self._took != place.committed:
            self._took = None
            course.miss()
        wanted = self.wanted_run == place.run
        if not (place.missing and wanted) or here is None or place.committed == UNKNOWN:
            return
        if course.holding or course.giving or course.passing_on or place.frozen:
            return
        known = any(self.is_level(peer) and here.at.get(peer, UNKNOWN) >= place.committed for peer in self._around())
        if known or place.restored is not None:
            course.forget()
        elif place.carried and self._nobody_is_behind():
            course.give_up_carried()
        else:
            return
        self._stop_giving()
        course.begin()  # whoever is alone hears of nobody else who has none
        self.sync_all()

    def _nobody_is_behind(self) -> bool:
        """Whether no neighbour may be handed over what is kept here of how the last rounds have ended."""
        here, place = self._place.here, self._place
        if here is None or not all(map(self.is_level, here.neighbours)):
            return False
        return not any(self._course.past.first(place.committed) - 1 <= at < place.committed for at in here.at.values())

    def on_adopted(self, event: ev.Adopted) -> None:
        """The owner has put it to use. What has come in an earlier life counts no more: it may be of a generation that
        this peer has given up. Nor does what nobody waits for: the run may have begun anew since it came."""
        place = self._place
        if event.run != place.run or event.life not in (None, self._life):
            return
        self._packs_since = place.now  # what was asked for before could not be answered
        if place.taking == event.round:
            self._course.take(None)
            self._catchup.reset()
            if place.committed == event.round and place.missing:
                self._took = event.round
                self._course.miss_no_more()
            self._answer_askers(place.now)
            return
        if not place.loading:
            return
        self._catchup.reset()
        self._took = None
        self._course.adopt(event.round, event.of)
        self.sync_all()
        self._answer_askers(self._place.now)

    def on_own_state(self, event: ev.RunWanted) -> None:
        """The owner has a state from a checkpoint. Of a round that it has brought something to before it gave the run
        up it is not told: it is given the state after that."""
        was_missing = self._place.missing
        self._course.own_state(event.run or "", event.have, event.of)
        if was_missing and not self._place.missing and self._course.contributed:
            self._took = self._place.committed
        self.sync_all()

    def contributed(self) -> None:
        """The owner goes on from the state that it has taken: it has seen how the round has ended."""
        self._took = None

    @property
    def _life(self) -> int:
        """In which life this peer is in the view."""
        view = self._place.view
        return view.member(self._place.me).incarnation if view is not None else -1
