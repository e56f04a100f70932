"""Which round a peer works on, and where it stands: in its view, in its run, and beside its neighbours.

    comes                       | so
    ----------------------------+----------------------------------------------------------------------------------
    a view                      | the round in progress starts again with the contributions kept, and what is held goes
                                | up in the place of a sum; of a coded one, peers say anew what they have computed
    a view of another run, or   | the round is dropped, and the state of that run is still to come
    of the same, begun anew     |
    no view                     | the round is dropped
    a neighbour's Sync          | what it lacks of the round is sent again; what it has missed is handed over (past.py)
    a state of the run, or none | the round is dropped; the next is the one after the state's
    the end of the round        | the neighbours are told; what has come of the next one by now is gone on with

    stands there                | so
    ----------------------------+----------------------------------------------------------------------------------
    no state of the run yet     | the owner's contribution is kept until the run begins, and aborted by a state
    nobody has the state        | the root's own counts, and the run begins; not where anybody knows that rounds of it
                                | have been over in this generation
    an abort owed for a round   | the owner's next contribution is answered at once
    several trees               | neighbours that have seen the end of this round may have begun the next: what they
                                | bring is kept

What happens in a round: allreduce.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from edgepeer.errors import ProtocolBug
from edgepeer.ids import Generation, Lineage, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.closing import Closing
from edgepeer.protocol.deciding import unsure
from edgepeer.protocol.inview import NOWHERE, InView
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.past import Decided, Dropped, Past
from edgepeer.protocol.place import UNKNOWN, Place
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.round import Round
from edgepeer.topology.view import View
from edgepeer.wire.frames import Abort, Decide, Have, Progress, Reduce, Release, Result

__all__ = ["Course"]


class Course:
    """The rounds of one peer, one after the other. It alone writes where the peer stands (`Place`)."""

    def __init__(
        self, place: Place, limits: Limits, emit: Callable[[fx.Effect], None], direct: Callable[[PeerId], bool]
    ) -> None:
        self.place = place
        self._limits = limits
        self._emit = emit
        self.rates = Rates(limits, direct)
        self.past = Past(limits.kept_results, place, self.rates, emit)
        self.closing = Closing(
            place,
            emit,
            holding=lambda: self.round.prior is not None,
            hopeless=lambda: (wanted := self.round.abort_wanted) is not None and wanted[0] != "timeout",
        )
        self.round = Round((NOWHERE,), self.rates, coded=False)
        """The round in progress."""
        self._early: Round | None = None
        """What has come of the round after this one, from those where this one is over."""
        self._thrown: dict[PeerId, int] = {}
        """Neighbours of whom something of a later round was thrown away, and of which ..."""
        self._asked_again: set[PeerId] = set()
        """... and who were asked to say it again, as that is in progress now."""
        self.origin: frozenset[PeerId] = frozenset()
        """Who was in when the round in progress began."""
        self._own_state: tuple[str, int, Lineage | None] = "", 0, None
        """Of which run the owner has the state after which round, from a checkpoint of which lineage."""

    # -- where this peer stands ----------------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """The run that is worked on; empty for plain allreduces."""
        return self.place.run

    @property
    def committed(self) -> int:
        """The last round that is over here; UNKNOWN while the state of the run is still to come."""
        return self.place.committed

    def rate_from(self, peer: PeerId) -> float:
        """How fast this peer receives from a neighbour, in bytes/s; 0 while unknown."""
        here = self.place.here
        return self.rates.of(peer).bytes_per_s if here is not None and peer in here.neighbours else 0.0

    @property
    def receiving(self) -> bool:
        """Whether a neighbour has begun to send the round's result, and has its state still."""
        return bool(self._sources())

    @property
    def received(self) -> int:
        """How many elements of it are here; -1: nobody sends it."""
        sources = self._sources()
        return sum(sum(self.round.have_of(source)) for source in sources) if sources else -1

    def _sources(self) -> list[PeerId]:
        rd = self.round
        sources = {lane.result_from for lane in (rd.lane, *rd.parts.values())}
        return [source for source in sources if source is not None and not self.place.is_without(source)]

    @property
    def idle(self) -> bool:
        """Whether the next round has not begun here."""
        return not self.round.begun and not self.closing.begun

    @property
    def has_state(self) -> bool:
        """Whether the owner has the state that stands here."""
        return self.place.committed != UNKNOWN and not self.place.missing

    @property
    def contributed(self) -> bool:
        """Whether the owner waits for the round."""
        return self.round.brings.waits

    @property
    def owed(self) -> int:
        """How many rounds were dropped before the owner had brought anything to them, and are still to be answered."""
        return self.past.owes

    @property
    def needed(self) -> bool:
        """Whether the round in progress may need this peer: for what it brings, or for what it holds."""
        rd, closed, here = self.round, self.closing.closed, self.place.here
        if self.holding:
            return True
        if not rd.brings.in_chunks:
            return rd.brings.waits
        if closed is not None:
            return here is not None and here.has(closed.expected)
        return self.closing.takes_part and not rd.brings.abandoned

    @property
    def holding(self) -> bool:
        """Whether a result is here that may count already, somewhere."""
        return self.round.held is not None or self.round.prior is not None

    @property
    def giving(self) -> bool:
        """Whether this peer has a vector in the round of which others may have a part: of one view and round it gives
        no other. Before it is added to anything nobody has: those below may still wait for the state from here."""
        rd = self.round
        added = rd.brings.in_chunks or any(lane.reduced >= 0 for lane in rd.parts.values())
        return rd.brings.vector is not None and added

    @property
    def passing_on(self) -> bool:
        """Whether a coded round has been closed that others complete over this peer, without its state, or with what
        its owner has yet to encode. A root that had given its state up could not close it again: nobody below would say
        anew what it had said before. Nor could anybody take what comes from below before it is closed here again, which
        may be not before all is computed again."""
        return self.closing.closed is not None

    @property
    def held(self) -> tuple[Generation, int] | None:
        """The generation and stamp of the newest view whose root put that forward."""
        rd = self.round
        commit = rd.commit if rd.held is not None else rd.prior.commit if rd.prior is not None else None
        return (commit.generation, commit.held_in) if commit is not None else None

    @property
    def level(self) -> int:
        """The last round that is over here, if there is nothing left to decide of the views before; else -1."""
        view, committed = self.place.view, self.place.committed
        settled = view is not None and committed >= view.first_round - 1 and not self.holding
        return committed if settled else -1

    @property
    def waiting(self) -> bool:
        """Whether the round waits for this peer's children, and not for itself."""
        rd, closed, here = self.round, self.closing.closed, self.place.here
        if here is not None and here.view.slots and closed is None:
            return self.closing.waiting
        spoken = rd.brings.vector is not None or (
            closed is not None and here is not None and not here.has(closed.expected)
        )
        return spoken and bool(rd.late)

    def laggards(self, now: float) -> list[PeerId]:
        """Children that have kept the round waiting for longer than the limit."""
        rd, stall_s, view = self.round, self._limits.stall_s, self.place.view
        if view is None or not view.slots:
            return rd.late if self.contributed and now - rd.brings.since > stall_s else []
        if self.closing.closed is None:
            return self.closing.stalled(now, stall_s)
        return rd.late if now - self.closing.closed_at > stall_s else []

    def missing(self) -> tuple[PeerId, ...]:
        """Whom the round waits for, as far as this peer can tell."""
        here = self.place.here
        if here is None or not self.contributed:
            return ()
        late = self.round.missing
        if here.view.slots and self.closing.closed is None:
            late = sum(self.closing.missing(child) for child in here.children)
        above = (here.parent,) if here.parent is not None else ()
        return here.view.names(late) or unsure(here, self.round) or above

    def owes(self, peer: PeerId) -> bool:
        """Whether a neighbour waits for something of the round from here."""
        rd, here = self.round, self.place.here
        if here is None:
            return False
        word = rd.held is not None and (peer in here.behind or (peer == here.above and rd.have_sent is None))
        return word or rd.owes(peer)

    def have_of(self, peer: PeerId) -> tuple[int, ...]:
        """Of each lane, how many elements are here of what a neighbour sends in this round."""
        return self.round.have_of(peer)

    # -- views -----------------------------------------------------------------------------------------------

    def install(self, view: View, now: float) -> None:
        """Work in `view` from now on; the round in progress starts again. `begin` is due then."""
        place, before = self.place, self.place.here
        may_be_decided = before is not None and before.spoke
        here = place.here = InView(view, place.me)
        self.closing.enter()
        self.rates.keep(here.neighbours, 2 * view.height, view.plan.count)
        if view.run != place.run or (before is not None and before.view.beginning != view.beginning):
            self._drop_round("run", "another run has begun" if view.run else "the run is over")
            may_be_decided = False
            place.run = view.run
            run, number, of = self._own_state
            mine = bool(view.run) and run == view.run
            place.committed = (number if mine else UNKNOWN) if view.run else view.first_round - 1
            place.restored, place.missing = self._restored(of) if mine else None, False
            place.carried = False
        elif before is None:
            place.committed = view.first_round - 1
        if before is None:
            # What was before, others know: in this generation, or in the one that it goes on from.
            may_be_decided |= view.epoch > 1 or view.first_round > 1 or view.goes_on > 0
        else:
            may_be_decided |= self._may_have_been_out(before.view, view)
            if before.view.generation != view.generation:
                place.over = UNKNOWN  # in this one nothing is
                place.carried = place.committed != UNKNOWN
        if not self.round.begun:
            self.origin = frozenset(view.ids)
        self._take_back()
        self._restart(now, may_be_decided=may_be_decided)
        if place.over <= 0:  # else neighbours have been further here than is known any more
            self._go_on_from_own()  # whoever had a later one may be gone

    def _take_back(self) -> None:
        """Give nothing in this view beside a state that the owner has lost, and that another's may take the place of:
        then it would have to be there until the round is over, which is never where nobody else has that state."""
        brings, place = self.round.brings, self.place
        plain = brings.vector is not None and brings.abandoned and not brings.in_chunks  # its owner waits for nothing
        if plain and place.missing and place.earlier and not self.holding:
            self._emit(fx.RoundAborted(self.run, place.committed + 1, "run", "its state is lost", mine=True))
            self.round.take_back()

    @staticmethod
    def _may_have_been_out(before: View, view: View) -> bool:
        """Whether others may have decided rounds without this peer between two views that it works in: there are views
        between them that it has not heard of, and may not have been in."""
        following = before.epoch + 1 if view.generation == before.generation else 1
        return view.epoch > following

    def leave(self, reason: str, *, anew: bool = False) -> None:
        """In no view any more. `anew`: since another generation has begun."""
        place = self.place
        self._drop_round("anew" if anew else "left", reason)
        place.here = None
        place.run, place.committed, place.restored, place.missing, place.carried = "", 0, None, False, False
        self.closing.enter()

    def _drop_round(self, cause: Literal["left", "anew", "run"], reason: str) -> None:
        if self.round.brings.waits:
            self._emit(fx.RoundAborted(self.run, self.place.committed + 1, cause, reason, mine=True))
        self.round.drop()
        self.round, self._early = Round((NOWHERE,), self.rates, coded=False), None
        self._thrown.clear()
        self._asked_again.clear()
        self.closing.enter()  # what was promised was so beside another state, perhaps
        self.past.clear()
        self.place.loading, self.place.over = False, UNKNOWN

    def _restart(self, now: float, *, may_be_decided: bool) -> None:
        """Begin the round again, with what is kept of it."""
        self.round = self.round.again(self.place.here, self.rates, may_be_decided=may_be_decided, now=now)
        self._early = None
        self._thrown.clear()
        self._asked_again.clear()

    def learn(self, peer: PeerId, view: View) -> None:
        """A neighbour tells of an older view: what it hands over next was decided there."""
        if self.place.here is not None and peer in self.place.here.at:
            self.past.learn(peer, view)

    # -- neighbours, and the state of the run --------------------------------------------------------------------

    def on_sync(self, peer: PeerId, committed: int, have: Sequence[int] = (), *, again: bool = False) -> None:
        """A neighbour stands in this view and run, after round `committed`; all that it lacks is sent again.

        `have`: what it has of what this peer sends in the round that comes next there, of each lane; of one view that
        is the same bits. `again`: it has thrown away what it was sent of that round before it was in it.
        """
        place, here = self.place, self.place.here
        if here is None:
            return
        # With several trees, what it has thrown away may be of a round that it was not in yet.
        if here.at.get(peer) != committed or again or len(here.trees) > 1:
            self.round.resume(peer, have if committed == place.committed else ())
            if peer == here.above:
                self.round.forget_have()
            here.at[peer] = committed
            if committed >= 0 and place.committed >= 0:
                here.at[peer] = self.past.hand_over(here, peer, have)
                if committed > place.committed + 1 and not place.run:
                    self.fall_behind(committed - 1)
        if self.begin():
            self._emit(fx.ViewInstalled(here.view))  # so that the application looks again

    def begin(self) -> bool:
        """Where nobody has the state of the run, it begins with the root's own. Returns whether it does."""
        place, here = self.place, self.place.here
        nobody = place.committed == UNKNOWN and place.standing == UNKNOWN
        if not place.run or here is None or here.parent is not None or not nobody:
            return False
        place.committed = 0
        return True

    def on_lost(self, peer: PeerId) -> bool:
        """A neighbour's link is gone. Returns whether the round's result was to come over it."""
        if self.place.here is not None:
            self.place.here.at.pop(peer, None)
        self.past.forget(peer)
        return self.round.let_go(peer)

    def own_state(self, run: str, committed: int, of: Lineage | None) -> None:
        """The owner has the state of a run after round `committed`, of that lineage: of an earlier life, or of before
        it gave the run up."""
        self._own_state = run, committed, of
        if self.place.missing and run == self.run and self._stands_there(committed, of):
            self.miss_no_more()
        self._go_on_from_own()

    def _go_on_from_own(self) -> None:
        run, committed, of = self._own_state
        place, over = self.place, self.place.over
        mine = bool(run) and run == self.run
        if mine and self.committed == UNKNOWN and not place.loading and committed >= over:
            self.adopt(committed, of)
            place.over = over  # if it is given up again, what was over is so still

    def _stands_there(self, committed: int, of: Lineage | None) -> bool:
        """Whether a checkpoint is of what stands here. It may be of an earlier beginning of the run."""
        place = self.place
        if place.view is None or committed != place.committed:
            return False
        return of == (place.restored or place.view.lineage)

    def give_up_restored(self) -> None:
        """What is from a checkpoint here has been given up by others: be without a state until theirs is here. In
        another view it counts again, until then: they may be gone."""
        own = self._own_state
        self.forget()
        self._own_state = own

    def give_up_carried(self) -> None:
        """What stands here of an earlier generation is given up. A checkpoint of the owner's may be of as late a round;
        else it counts once the run is over."""
        here, own = self.place.here, self._own_state
        self.forget()
        self._own_state = own
        self._go_on_from_own()
        if here is not None and self.place.committed != UNKNOWN:
            self._emit(fx.ViewInstalled(here.view))  # so that the application looks again

    def adopt(self, committed: int, of: Lineage | None = None) -> None:
        """The state after round `committed` is in use here. `of`: from a checkpoint of that lineage, at whoever has
        handed it over as well."""
        self.place.loading = self.place.missing = False
        if committed > self.committed:
            self._skip(committed)
            self.place.restored = self._restored(of)

    def _restored(self, of: Lineage | None) -> Lineage | None:
        """As what a state of that lineage goes on here. One of the very run at work is as if it had always been here:
        after a round of that there is only one."""
        view = self.place.view
        return None if view is not None and of == view.lineage else of

    def forget(self, *, loading: int | None = None) -> None:
        """There is no state of the run here: a neighbour's replaces it, or is to. `loading`: that of after this round
        has come, and takes the place of all that was known here of the rounds until then, what was held included."""
        place = self.place
        over = place.committed if place.restored is None else UNKNOWN  # what is restored is of before
        over = max(over, place.over, UNKNOWN if loading is None else loading)
        self._own_state = "", 0, None
        self._skip(UNKNOWN)
        place.loading, place.over = loading is not None, over

    def give_up_run(self) -> None:
        """The owner takes part no more: it has no state in use, nor a checkpoint, and what has come has to come again.
        If it wants the run again it is as without a state as who joins."""
        place = self.place
        place.loading, place.taking = False, None
        place.missing = bool(place.run) and (place.committed != UNKNOWN or place.missing)
        self._own_state = "", 0, None

    def miss(self) -> None:
        """The owner has lost the state that stands here, and what it had from a checkpoint."""
        self.place.missing = bool(self.place.run)
        self._own_state = "", 0, None

    def take(self, number: int | None) -> None:
        """The owner is putting a state to use of where this peer stands, or no more."""
        self.place.taking = number

    def miss_no_more(self) -> None:
        """The owner has the state that stands here again."""
        self.place.missing = False

    def fall_behind(self, committed: int) -> None:
        """Rounds were decided without this peer, and nobody can tell how."""
        self._skip(committed)
        self._emit(fx.Behind(committed))

    def _skip(self, committed: int) -> None:
        self._drop_round("run", "the run went on without this peer")
        self.place.committed, self.place.restored, self.place.carried = committed, None, False
        if self.place.view is not None:
            self.origin = frozenset(self.place.view.ids)
        self._restart(self.place.now, may_be_decided=True)

    # -- one round after the other -----------------------------------------------------------------------------

    def of(self, peer: PeerId, frame: Reduce | Abort) -> Round | None:
        """The round that a frame from below is of: the one in progress, or the next, if that has begun there.

        With several trees, Decide may come to a child in one of them before it comes here. It has contributed to the
        next round then; nobody has to this one who has not seen the end of the one before. But a round may be dropped
        before all have contributed: then a neighbour may be further ahead, and has to say again what it has said. So it
        has with one tree, where that is rare: the end of a round of before this view comes from two sides.
        """
        if self.place.at(frame) is not None:
            return self.round if not self.place.is_without(peer) else None
        here, committed = self.place.here, self.place.committed
        if here is None or peer not in here.at or committed < 0:
            return None
        if len(here.trees) == 1 or (frame.epoch, frame.round) != (here.epoch, committed + 2):
            self.throw_away(peer, frame)
            return None
        if self._thrown.get(peer) == frame.round:
            return None  # of what was thrown away in part, all is said again
        if self._early is None:
            self._early = self.round.early(self.rates, may_be_decided=self._before_all(committed + 2))
        return self._early

    def _before_all(self, number: int) -> bool:
        """Whether a round that follows another in this view may have been decided before it: by views that this peer,
        which has come to it late, with a state of before, was not in. What comes after its first round can't have."""
        view = self.place.view
        return view is not None and number <= view.first_round

    def throw_away(self, peer: PeerId, frame: Reduce | Abort | Result | Have | Decide | Progress | Release) -> None:
        """What a neighbour says of a round that comes later here is asked for again when that begins."""
        here, due = self.place.here, self.place.committed + 1
        if here is None or peer not in here.at or due <= 0:
            return
        if frame.epoch == here.epoch and frame.round > due:
            self._thrown[peer] = frame.round

    def _ask_again(self) -> None:
        """For what was thrown away of the round that begins."""
        number = self.place.committed + 1
        self._asked_again.clear()
        for peer in [each for each, round_ in self._thrown.items() if round_ <= number]:
            if self._thrown.pop(peer) == number:
                sync = self.past.sync(self.place.committed, self.have_of(peer))
                self._emit(fx.Send(peer, msgspec.structs.replace(sync, again=True)))
                self._asked_again.add(peer)

    def is_asked_again(self, peer: PeerId) -> bool:
        """Whether what still comes from a neighbour may be the rest of what was thrown away."""
        return peer in self._asked_again

    def note_said_again(self, peer: PeerId) -> None:
        """What a neighbour was asked for again has begun to come."""
        self._asked_again.discard(peer)

    def answer_owed(self) -> bool:
        """Whether what the owner brings now belongs to a round that was dropped: then it is answered."""
        past = self.past.owed()
        if past is not None:
            self._emit(fx.RoundAborted(self.run, past.round, past.cause, past.reason, mine=True))
        return past is not None

    def end(self, ended: Decided | Dropped, source: PeerId | None, proven: int | None = None) -> None:
        """The round in progress is over, says `source`: tell the others, and go to the next. `proven`: a view that all
        of it have worked in."""
        here = self.place.here
        if here is None:
            raise ProtocolBug("a round ends in no view")
        rd, waits = self.round, self.round.brings.waits
        if source is not None:
            here.at[source] = ended.round
        if proven is not None:
            self.place.proven = proven
        self.past.keep(ended)
        self.past.tell_end(here, rd, ended, source)
        for peer, at in here.at.items():
            if at == self.committed:
                here.at[peer] = ended.round
        self.place.committed, self.place.restored, self.place.carried = ended.round, None, False
        self._own_state = "", 0, None  # it is of the past
        if isinstance(ended, Dropped):
            self._emit(fx.RoundAborted(self.run, ended.round, ended.cause, ended.reason, mine=waits))
            if not waits and not self.past.owe(ended):
                self._emit(fx.Behind(ended.round))
        total = ended.total if isinstance(ended, Decided) else None
        coded, before_all = bool(here.view.slots), self._before_all(ended.round + 1)
        self.round = self._early or rd.next(total, coded=coded, rates=self.rates, may_be_decided=before_all)
        self._early = None
        self.closing.begin(took_part=waits)
        self.origin = frozenset(here.view.ids)
        self._ask_again()
