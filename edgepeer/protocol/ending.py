"""How a round ends: held, decided, committed; or dropped.

the whole sum is here    | its digest is checked, the rest goes on to the children: it is *held*
a new view comes         | what is held goes up in the place of a sum, and the root puts it forward again
enough peers hold it     | it is *decided* (deciding.py): committed, and handed to the application
it can't be completed    | others ask the root; the root puts forward an empty result, to be held and decided like a sum
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edgepeer.errors import ProtocolBug
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.coded import Coded
from edgepeer.protocol.deciding import Deciding
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.past import Decided, Dropped, Past
from edgepeer.protocol.place import UNKNOWN, Place
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.round import Round
from edgepeer.protocol.sending import Sending
from edgepeer.protocol.streams import NOTHING, Prefix, digest_of
from edgepeer.topology.view import View
from edgepeer.wire.frames import Cause, Commit, Decide, Have, unpack_set

__all__ = ["Ending", "what_is_wrong"]


class Ending:
    """The round in progress at one peer, and its end.

    Args:
        me: this peer.
        fail_link: closes the link to a peer, with a reason.
        paths: what the links to the neighbours run over.
    """

    def __init__(
        self,
        me: PeerId,
        limits: Limits,
        emit: Callable[[fx.Effect], None],
        fail_link: Callable[..., None],
        paths: Callable[[], tuple[str, ...]],
    ) -> None:
        self._limits = limits
        self._emit = emit
        self._fail_link = fail_link
        self._paths = paths
        self.place = Place(me)
        self._coded = Coded(self.place, emit)
        self._deciding = Deciding(self.place, emit)
        self._round = Round()
        self._origin: frozenset[PeerId] = frozenset()  # who was in when the round began
        self._own_state: tuple[str, int, Generation | None] = "", 0, None
        """Of which run the owner has the state after which round, from a checkpoint of which generation."""
        self._past = Past(limits.kept_results, emit)
        self._rates = Rates(limits)
        self._send = Sending(self.place, self._past, self._rates, emit)

    @property
    def run(self) -> str:
        """The run that is worked on; empty for plain allreduces."""
        return self.place.run

    @property
    def committed(self) -> int:
        """The last round that is over here; UNKNOWN while the state of the run is still to come."""
        return self.place.committed

    @property
    def kept(self) -> int:
        """The first round whose end can still be told here; 0 without the state of the run."""
        return self._past.first(self.committed) if self.committed >= 0 else 0

    def progress(self, now: float) -> dict[str, object]:
        """How far the round in progress is, for people to read."""
        rd, coded = self._round, self._coded.closed
        return {
            "run": self.run,
            "committed": self.committed,
            "loading": self.place.loading,
            "at": dict(sorted(self.place.at.items())),
            "mine": rd.mine,
            "since": now - rd.since if rd.mine else None,
            "up": {
                peer: {"of": stream.expected, "received": stream.received, "held": stream.held is not None}
                for peer, stream in rd.streams.items()
            },
            "reduced": rd.reduced,
            "sent_up": rd.sent_up,
            "down": rd.result.received,
            "from": rd.result_from,
            "sent_down": dict(sorted(rd.sent_down.items())),
            "held": rd.held is not None,
            "prior": rd.prior.commit.held_in if rd.prior is not None else None,
            "decided": rd.decided,
            "haves": sorted(rd.haves),
            "have_sent": rd.have_sent,
            "abort": rd.abort_wanted,
            "closed": coded.done if coded is not None else None,
        }

    def go_on(self) -> None:
        """This peer may help to decide again."""
        self._advance()

    # -- going on ------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Do all that can be done now."""
        rd, place = self._round, self.place
        if place.view is None or place.committed == UNKNOWN:
            return
        if place.frozen:
            self._try_commit()  # what is decided already still counts
            return
        if rd.prior is not None and place.view.slots:
            self._coded.holds()
        if rd.abort_wanted is not None and self._pass_abort(rd, place.view, *rd.abort_wanted):
            return
        if rd.held is None and (brought := rd.brought) is not None:
            self._send.held(rd, brought)
        elif rd.held is None and (rd.closed is not None or (rd.own is not None and not place.view.slots)):
            rd.reduce(1 << place.view.position(place.me), root=place.parent is None)
            if rd.reduced_all:
                rd.reduced_at = rd.reduced_at if rd.reduced_at > rd.since else place.now
            self._send.up(rd)
        self._send.down(self._round)
        self._try_commit()

    # -- deciding --------------------------------------------------------------------------------------------

    def on_have(self, peer: PeerId, frame: Have) -> None:
        """A child holds the result."""
        if self.place.current(frame) and peer in self._round.streams:
            self._round.haves[peer] = unpack_set(frame.holding) & self._round.streams[peer].allowed
            self._try_commit()

    def on_decide(self, peer: PeerId, frame: Decide) -> None:
        """The parent has committed the round."""
        if self.place.current(frame) and peer == self.place.parent:
            rd = self._round
            rd.decided = True
            if rd.held is None and rd.result.complete and rd.commit is not None:
                # All of it is here, though this peer was not to hold anything new (Place.frozen): now it counts.
                rd.commit = msgspec.structs.replace(rd.commit, final=True)
            self._try_commit()

    def _try_commit(self) -> None:
        rd, view = self._round, self.place.view
        if view is None:
            return
        frozen = self.place.frozen
        if rd.held is None and (not frozen or (rd.commit is not None and rd.commit.final)):
            if rd.result.complete and rd.commit is not None and rd.result.buffer is not None:
                self._hold(rd, rd.commit, rd.result.buffer, rd.result_from)
            elif frozen:
                return
            elif self.place.parent is None and (brought := rd.brought) is not None:
                rd.decided_in = brought.view
                forward = msgspec.structs.replace(brought.commit, held_in=view.stamp, generation=view.generation)
                rd.commit = forward
                self._hold(rd, rd.commit, brought.total, None)
            elif self.place.parent is None and rd.reduced_all and rd.partial is not None and not rd.anew:
                self._hold(rd, rd.decide(view, rd.partial, self._origin), rd.partial, None)
        if rd.held is not None and (rd.decided if frozen else self._deciding.decided(rd)):
            self._commit(rd, rd.held)

    def _hold(self, rd: Round, commit: Commit, total: FloatVector, source: PeerId | None) -> None:
        """The whole total is here: `source` has sent it; None: this peer, as the root, has reduced it."""
        if source is not None and (wrong := what_is_wrong(total, commit, rd.decided_in)):
            rd.result, rd.commit, rd.result_from = Prefix(), None, None
            self._refuse(source, wrong)
            return
        total.flags.writeable = False
        rd.held, rd.held_at, rd.decided = total, self.place.now, commit.final
        self._send.down(rd)

    def _refuse(self, source: PeerId, wrong: str) -> None:
        self._fail_link(source, f"result of round {self.committed + 1} {wrong}")

    def _commit(self, rd: Round, total: FloatVector) -> None:
        """The total that is held counts."""
        number, decided_in, source = self.committed + 1, rd.decided_in, rd.result_from
        if decided_in is None or rd.commit is None:
            raise ProtocolBug("a round counts whose root is not known")
        commit = rd.commit = msgspec.structs.replace(rd.commit, final=True)
        if source is not None:
            self.place.at[source] = number
        self.place.proven = commit.held_in
        if commit.dropped is not None:
            self._end(Dropped(number, commit.dropped, commit.reason), source)
            return
        mine, now = rd.mine, self.place.now
        self._end(Decided(number, total, commit, decided_in), source)
        self._emit(
            fx.RoundCommitted(
                run=self.run,
                round=number,
                generation=commit.generation,
                epoch=decided_in.epoch,
                sum=total,
                weight=commit.weight,
                contributors=decided_in.names(unpack_set(commit.contributors)),
                exact=commit.exact,
                digest=commit.digest,
                mine=mine,
                chunks=unpack_set(commit.chunks),
                error=commit.error,
                paths=self._paths(),
                phases=fx.Phases(
                    waited_s=max(0.0, rd.reduced_at - rd.since) if mine else 0.0,
                    broadcast_s=max(0.0, rd.held_at - max(rd.reduced_at, rd.since)),
                    decided_s=now - rd.held_at,
                ),
            )
        )

    def _want_abort(self, cause: Cause, reason: str) -> None:
        if self._round.abort_wanted is None:
            self._round.abort_wanted = (cause, reason[:250])
            self._advance()

    def _pass_abort(self, rd: Round, view: View, cause: Cause, reason: str) -> bool:
        """Do what can be done to end the round without a sum. True if it must not go on."""
        if self.place.parent is not None:
            self._send.abort(rd, cause, reason)
        elif rd.held is None and (not rd.may_be_decided or self._coded.free):
            self._hold(rd, rd.drop(view, cause, reason), NOTHING, None)
        elif rd.held is not None or not view.slots:
            rd.abort_wanted = None
        return cause == "mismatch" and rd.held is None and not rd.anew

    def _end(self, ended: Decided | Dropped, source: PeerId | None) -> None:
        """The round is over, says `source`: tell the others, and go to the next."""
        rd, view = self._round, self.place.view
        self._past.keep(ended)
        self._send.ended(rd, ended, source)
        self.place.committed, self.place.restored = ended.round, None
        self._own_state = "", 0, None  # it is of the past
        spare = rd.reusable(ended.total) if isinstance(ended, Decided) else None
        if isinstance(ended, Dropped):
            mine = rd.mine
            self._emit(fx.RoundAborted(self.run, ended.round, ended.cause, ended.reason, mine=mine))
            if not mine and not self._past.owe(ended):
                self._emit(fx.Behind(ended.round))
        self._round = Round(spare)
        self._coded.begin(took_part=rd.mine)
        if view is not None:
            self._origin = frozenset(view.ids)
        # A child begins the next round after it has seen this one's result, so its buffer is not read any more.
        self._round.restart({child: old.emptied() for child, old in rd.streams.items()})


def what_is_wrong(total: FloatVector, commit: Commit, view: View | None) -> str:
    """Why a result that has come can't be what its commit says; empty if it can."""
    if digest_of(total) != commit.digest:
        return "does not have the root's digest"
    if commit.dropped is not None and total.size:
        return "is not empty, though the round is dropped"
    return "was decided in an unknown view" if view is None else ""
