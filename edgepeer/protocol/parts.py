"""The parts of one peer, each with a state that it alone writes. `Node` hands them what arrives."""

from __future__ import annotations

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.allreduce import Allreduce
from edgepeer.protocol.catchup import Catchup
from edgepeer.protocol.course import Course
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Links
from edgepeer.protocol.measuring import Measuring
from edgepeer.protocol.membership import Membership
from edgepeer.protocol.neighbours import Neighbours
from edgepeer.protocol.outside import Outside
from edgepeer.protocol.place import Place
from edgepeer.protocol.rollcall import RollCall
from edgepeer.protocol.shape import Choice
from edgepeer.protocol.shaping import Shaping
from edgepeer.protocol.succession import Succession
from edgepeer.protocol.vitals import Vitals
from edgepeer.protocol.waking import Waking
from edgepeer.protocol.wiring import Wiring
from edgepeer.topology.view import Member, View

__all__ = ["Parts"]


class Parts:
    """What a peer is made of: see `Node` for the arguments."""

    def __init__(
        self,
        me: Member,
        fanout: int,
        lanes: int,
        quorum: int,
        limits: Limits,
        known: Generation | None,
        now: float,
        choice: Choice | None = None,
    ) -> None:
        self.id = PeerId(me.id)
        self.limits = limits
        effects: list[fx.Effect] = []
        emit = self.emit = effects.append
        self.succession = Succession(self.id, emit)
        self.rolls = RollCall(emit, known, now)
        self.membership = Membership(me, fanout, lanes, limits, self.rolls, quorum)
        self.place = Place(self.membership, self.succession, now)
        self.links = Links(limits, emit)
        self.wiring = Wiring(self.place, self.links, limits, effects)
        self.paths = self.wiring.paths
        self.course = Course(self.place, limits, emit, self.links.is_direct)
        self.allreduce = Allreduce(self.course, limits, self.wiring)
        self.neighbours = Neighbours(self.links, self.course, self.allreduce, Catchup(limits, emit), emit)
        self.vitals = Vitals(
            self.id,
            self.links,
            self.course,
            self.membership,
            self.succession,
            limits,
            emit,
            self.neighbours.is_under_way,
        )
        self.outside = Outside(self.membership, self.rolls, limits)
        self.measuring = Measuring(self.id, self.links, tells=choice is not None)
        self.shaping = Shaping(self.id, choice)
        self.waking = Waking(self.place, self.rolls, self.outside, limits)
        self.wiring.tell(self.vitals, self.neighbours)

    @property
    def now(self) -> float:
        """The time of what is being handled."""
        return self.place.now

    @property
    def view(self) -> View | None:
        """The view that this peer works in."""
        return self.membership.view
