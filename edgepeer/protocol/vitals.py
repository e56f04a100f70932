"""Signs of life: what a peer's Pings say, how often they go out, and what the others' say about them.

a Ping tells            | and so
------------------------+-------------------------------------------------------------------------------
stamp, echo, held       | both ends measure round trips (timing.py)
every                   | the other end knows how long silence may last; with several trees, longer where nothing
                        | of the round is still to go over the link
reaches                 | neighbours know who can carry frames around a broken connection (paths.py)
orphan                  | peers below know that the way to the coordinator is broken (succession.py)
level, going up         | the root knows when all members stand after the same round, with nothing left to decide ...
settled                 | ... and then all do, whoever says so: nothing of the views before can be lost any more
stands, going up        | the root knows when nobody has the state that all wait for: the run is over
ballot                  | the head knows that somebody is bound to follow another (succession.py)
"""

from __future__ import annotations

from collections.abc import Callable, Container
from itertools import islice
from typing import Final, TypeAlias

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.course import Course
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Link, Links, LinkState, Role
from edgepeer.protocol.membership import Membership
from edgepeer.protocol.over import NOBODY, Over, Stands, is_short
from edgepeer.protocol.place import UNKNOWN
from edgepeer.protocol.succession import Succession
from edgepeer.protocol.timing import Pace
from edgepeer.topology.view import Member, View
from edgepeer.wire.frames import Ping, pack_set, pack_stands, unpack_set

__all__ = ["COARSEST_S", "Vitals"]

_BACKUP_SLOWER: Final = 4
"""Backup links get so many times fewer Pings."""
_REACHED_OUT: Final = 4
"""To how many more members at a time to connect where the tree has fallen apart."""
_FINEST_S: Final = 0.005
_QUIET_S: Final = 0.04
"""Rounds that follow each other faster need no Ping to show whether a path still carries anything."""
COARSEST_S: Final = 0.25
"""How seldom to look where all are connected, and nobody waits for another view. Else it is as often as Pings go out,
so that losses and takeovers are noticed in time ..."""
_AT_REST_S: Final = 1.0
"""... and this seldom where nothing is under way, and neighbours agree on where they stand."""
_SAY_AFTER_S: Final = 1.0
_SAY_AGAIN_S: Final = 10.0
_ON_ITS_WAY: Final = NOBODY - 1, False
_NEWS: Final = False, -1, False, 0, False, None
"""What nobody has to be told: no orphan, not level, not settled, no ballot, no run that is over, or without a state."""

_Told: TypeAlias = tuple[bool, int, bool, int, bool, tuple[int, bool] | None]
_Common: TypeAlias = tuple[bytes, Stands | None]
"""What all Pings of one moment say: whom this peer reaches, and how the run stands."""


class Vitals:
    """The heartbeat of one peer."""

    def __init__(
        self,
        me: PeerId,
        links: Links,
        course: Course,
        membership: Membership,
        succession: Succession,
        limits: Limits,
        emit: Callable[[fx.Effect], None],
        is_under_way: Callable[[], bool],
    ) -> None:
        """`is_under_way`: whether the end of a round, or a state of the run, is on its way to or from here."""
        self._is_under_way = is_under_way
        self._me = me
        self._links = links
        self._course = course
        self._membership = membership
        self._succession = succession
        self._limits = limits
        self._emit = emit
        self._pace = Pace(limits.heartbeat_min_s, limits.heartbeat_s)
        self._told: _Told = _NEWS
        self._order: tuple[PeerId, ...] = ()
        """The members of the view that links' reaches are positions in."""
        self._say_at = 0.0
        self._over = Over(limits)

    def enter(self, view: View, now: float) -> None:
        """Want the links of this view."""
        me, roles = self._me, dict[PeerId, Role]()
        tried: list[PeerId] = []
        if self._membership.coordinator and not self._membership.settled:
            # Whom it has reached out to in vain so far: it shows the sooner whether they are lost.
            tried += [peer for peer, link in self._links.all() if link.needed and not link.up and peer in view]
        roles.update(dict.fromkeys(tried, "other"))
        roles.update(dict.fromkeys(view.backups(me), "backup"))
        roles.update(dict.fromkeys(view.neighbours(me), "lane"))
        roles.update(dict.fromkeys(view.children(me), "child"))
        if (parent := view.parent(me)) is not None:
            roles[parent] = "parent"
        now_at = [view.position(peer) if peer in view else None for peer in self._order]
        self._order = view.ids
        for _, link in self._links.all():
            link.enter(now)
            link.translate_reach(now_at)
        wanted: list[tuple[Member, Role]] = [(view.member(peer), role) for peer, role in roles.items()]
        self._links.want(wanted, now, tried)
        self._over.enter(view.beginning, now)
        for peer, role in roles.items():
            if role in ("backup", "lane") and me < peer:
                self._links.dial_at_once(peer, now)
        self._told = _NEWS

    def round_ended(self, now: float) -> None:
        """Whoever has committed a sum knows that all members work in the view that decided it."""
        self._pace.round_ended(now)
        view = self._membership.view
        if view is not None and self._course.place.proven == view.stamp:
            self._settle()

    def members(self) -> list[PeerId]:
        """Everybody in the view that there is a path to."""
        view = self._membership.view
        return [peer for peer, _ in self._links.connected() if view is not None and peer in view]

    def reach_out(self, view: View, now: float, *, but: Container[PeerId] = ()) -> None:
        """Too few can be reached over the links of the tree: find a way to some more members, `but` for these."""
        away = (m for m in view.members if m.id != self._me and m.id not in but)
        strangers = (m for m in away if not self._is_tried(PeerId(m.id)))
        for member in islice(strangers, _REACHED_OUT):
            self._links.want_too(member, now)

    def _is_tried(self, peer: PeerId) -> bool:
        link = self._links.get(peer)
        return link is not None and (link.up or link.sought)

    def unheard(self, now: float) -> set[PeerId]:
        """Whom this peer has reached out to, and heard nothing of on any path for as long as it takes to be lost."""
        silence_s = self._limits.silence_s
        return {peer for peer, link in self._links.all() if link.needed and now - link.alive_at >= silence_s}

    # -- what this peer says -----------------------------------------------------------------------------------

    def every_s(self, now: float) -> float:
        """The time between two Pings to parent and children."""
        return self._pace.every_s(now, contributed=self._course.contributed)

    def tick(self, now: float) -> list[PeerId]:
        """Ping and dial whoever is due. Returns the links that were closed, as `Links.tick` says."""
        self._over.see(self._stands(), now)
        self._notice(now)
        self.look_who_waits()
        common: _Common | None = None

        def ping(link: Link, every_s: float) -> Ping:
            nonlocal common
            if common is None:  # as is what `_notice` has noticed
                common = self._common()
            return self._ping(link, every_s, now, common)

        return self._links.tick(now, self._every(now), ping)

    def contributed(self, now: float) -> None:
        """Who waits for those below has nothing to send upwards for as long: a Ping goes there, so that of two paths
        that are broken, one above the other, the upper one is noticed meanwhile, and not after the lower one."""
        if not self._course.waiting:
            return
        common: _Common | None = None
        for peer, link in self._links.all():
            if link.direct and link.role in ("parent", "lane") and now - link.sent > _QUIET_S:
                common = common or self._common()
                self._emit(fx.Send(peer, self._ping(link, self._every(now)[link.pace], now, common)))

    def in_doubt(self, peer: PeerId, since: float, within_s: float, now: float) -> None:
        """Nothing is acknowledged of what was sent last. Where that was a single packet, it may be only that which was
        lost, and TCP waits 0.2 s to send it again. A Ping behind it shows that the path is whole: what arrives out of
        order is acknowledged at once. And TCP learns from that what was lost."""
        link = self._links.get(peer)
        if link is None or link.member is None or not link.direct or link.sent > since:
            return
        if now - since > link.timing.in_doubt_after(within_s):
            self._emit(fx.Send(peer, self._ping(link, self._every(now)[link.pace], now, self._common())))

    def look_who_waits(self) -> None:
        """Where a vector moves over several trees, there are many links, and much of the time nobody waits for anything
        over most of them. Whoever has got all that was sent over a link gets the promise of a slower pace behind it;
        who has not does not get that either, and finds the link silent at the pace that was promised before."""
        here = self._course.place.here
        if here is None:
            return
        for peer in here.neighbours:
            if (link := self._links.get(peer)) is not None:
                link.rest(calm=len(here.trees) > 1 and not self._course.owes(peer))

    def next_due(self, now: float, looked_at: float) -> float:
        """When to look again, having done so last at `looked_at`: at the next Ping or silence, or soon enough to see
        whatever else may be."""
        every = self._every(now)
        coarsest = COARSEST_S
        if not self._is_calm():
            coarsest = min(every["parent"], COARSEST_S)
        elif self._is_at_rest():
            coarsest = _AT_REST_S
        return max(min(self._links.next_due(every), looked_at + coarsest), now + _FINEST_S)

    def _is_calm(self) -> bool:
        """Whether all are connected, and nobody waits for another view."""
        membership, succession = self._membership, self._succession
        if not membership.settled or membership.leaving or membership.waits or self._told[0]:
            return False
        if succession.frozen or succession.asked or succession.highest:
            return False
        return all(link.direct for _, link in self._links.all() if link.member is not None)

    def _is_at_rest(self) -> bool:
        """Whether no round has begun either, and neighbours agree on where they stand."""
        here, committed = self._course.place.here, self._course.committed
        if here is None or not self._course.idle:
            return False
        return all(here.at.get(peer) == committed for peer in here.neighbours)

    def _every(self, now: float) -> dict[Role, float]:
        main = self.every_s(now)
        backup = min(_BACKUP_SLOWER * main, self._limits.heartbeat_s)
        return {"parent": main, "child": main, "lane": main, "backup": backup, "other": self._limits.heartbeat_s}

    def reach_changed(self, peer: PeerId, now: float) -> None:
        """There is a path to a peer, or none any more. It concerns all if that is a member; of who is none, of whom
        hundreds may come at once, they need not hear."""
        view = self._membership.view
        if view is not None and peer in view:
            self.announce(now)
        elif (link := self._links.get(peer)) is not None and link.up and link.member is not None:
            self._emit(fx.Send(peer, self._ping(link, self._every(now)[link.pace], now, self._common())))

    def announce(self, now: float) -> None:
        """Something has changed that the others must know at once; or that the head must, which hears of it first."""
        head, state = self._membership.coordinator, self._state()
        if head and state[1] >= 0:
            self._settle()
            state = self._state()
        if head and state[4] and state != self._told:
            self._membership.note_change(now)
        self._told = state
        every, common = self._every(now), self._common()
        for peer, link in self._links.connected():
            if link.member is not None:
                self._emit(fx.Send(peer, self._ping(link, every[link.pace], now, common)))

    def _ping(self, link: Link, every_s: float, now: float, common: _Common) -> Ping:
        view = self._membership.view
        orphan, level, settled, ballot, *_ = self._told
        reaches, stands = common
        link.promise(every_s, now)
        return Ping(
            waiting=self._course.waiting,
            stamp=now,
            echo=link.echo,
            held=now - link.echo_at if link.echo else 0.0,
            every=every_s,
            epoch=view.stamp if view is not None else 0,
            reaches=reaches,
            orphan=orphan,
            level=level,
            settled=settled,
            ballot=ballot,
            stands=pack_stands(stands),
        )

    def _common(self) -> _Common:
        return self._reaches(), self._stands()

    def _reaches(self) -> bytes:
        view = self._membership.view
        if view is None:
            return b""
        return pack_set(sum(1 << view.position(p) for p, link in self._links.connected() if link.direct and p in view))

    @property
    def orphan(self) -> bool:
        """Whether the way up to the coordinator is broken."""
        view = self._membership.view
        parent = view.parent(self._me) if view is not None else None
        if parent is None:
            return False
        link, silence_s = self._links.get(parent), self._limits.silence_s
        now = self._course.place.now
        if link is None or not self._links.is_here(parent, now) or link.orphan or view is None:
            return True
        return link.life > view.member(parent).incarnation or now - link.alive_at >= silence_s

    @property
    def over(self) -> bool:
        """Whether there is a run, and it is over as far as this peer and all below know."""
        return self._is_over(self._stands())

    @property
    def is_known(self) -> bool:
        """Whether there is a run, and it is known of all below how it stands: nothing of it is on its way."""
        return self._stands() is not None

    @property
    def is_on_its_way(self) -> bool:
        """Whether a state, or the end of a round, is on its way to or from this peer; or somebody below it, as far as
        they say so."""
        view = self._membership.view
        links = [self._links.get(child) for child in view.children(self._me)] if view is not None else []
        return self._is_under_way() or any(link is not None and link.up and link.withholds for link in links)

    def _is_over(self, stands: Stands | None) -> bool:
        view = self._membership.view
        alone = view is not None and not view.children(self._me)
        return self._over.holds(stands, self._course.place.now, alone=alone)

    def _stands(self) -> Stands | None:
        """What a Ping says of the run: of which round there is a state, and of which somebody has seen the end. None if
        there is none, or that is not known of all below."""
        view, here = self._membership.view, self._course.place.here
        if view is None or here is None or not view.run:
            return None
        if self._is_under_way():
            return None
        have, seen = self._stands_itself(view.run)
        for child in view.children(self._me):
            link = self._links.get(child)
            if link is None or not link.up:
                return None
            below = link.stands
            if below is None:
                return None
            have, seen = max(have, below[0]), max(seen, below[1])
        return have, seen

    def _stands_itself(self, run: str) -> Stands:
        """The same of this peer alone. Who has given the run up, or lost its state, has one again once it has put
        another's to use; while it does, it has that."""
        place = self._course.place
        seen = max(place.committed, place.over)
        if not self._membership.takes_part(run):
            return NOBODY, seen
        if place.loading:
            return place.over, seen
        without = place.missing and place.taking is None
        return UNKNOWN if without else place.committed, seen

    def excuse(self, seconds: float, now: float) -> None:
        """This peer itself was not listening for so long."""
        self._over.excuse(seconds, now)

    def _state(self) -> _Told:
        view, settled = self._membership.view, self._membership.settled
        if view is None:
            return _NEWS
        level = -1
        if not settled:
            links = [self._links.get(child) for child in view.children(self._me)]
            level = self._course.level
            if not all(link is not None and link.up and link.level == level for link in links):
                level = -1
        stands = self._stands()
        return self.orphan, level, settled, self._succession.highest, self._is_over(stands), self._missing(view, stands)

    def _missing(self, view: View, stands: Stands | None) -> tuple[int, bool] | None:
        """What the parent is to hear at once: how it stands where a state is missing here, or there as far as that is
        heard; so that it hears, too, that one is on its way, or has come. None: nothing is."""
        parent = view.parent(self._me)
        link = self._links.get(parent) if parent is not None else None
        none = stands is not None and stands[0] < 0
        if not none and not self._over.lacks(stands) and (link is None or not is_short(link.stands)):
            return None
        return (stands[0], stands[0] < stands[1]) if stands is not None else _ON_ITS_WAY

    def _notice(self, now: float) -> None:
        """Tell the others at once of what has changed."""
        if self._state() != self._told:
            self.announce(now)

    def _settle(self) -> None:
        if self._membership.view is not None:
            self._membership.settle()

    def say_if_waiting(self, now: float) -> None:
        """Let people know why nothing goes on."""
        why = self._membership.waits
        if not why:
            self._say_at = now + _SAY_AFTER_S
        elif now >= self._say_at:
            self._emit(fx.Note("warning", f"waiting: {why}"))
            self._say_at = now + _SAY_AGAIN_S

    # -- what the others say -----------------------------------------------------------------------------------

    def heard(self, peer: PeerId, at: float) -> None:
        """Something is under way, of which a part came at that time. It may be of a peer to which a way leads through
        this one: that can say nothing before all of it is here."""
        if (link := self._links.get(peer)) is not None and link.direct:
            link.hear(at)
        for each, tunnel in self._links.around():
            if tunnel.goes_through(peer):
                each.hear(at)

    def on_ping(self, peer: PeerId, ping: Ping, now: float) -> None:
        link, view = self._links[peer], self._membership.view
        stood = link.stands
        before = link.orphan, link.level, self._membership.settled, self._succession.highest
        self._links.on_ping(peer, ping, now)
        current = view is not None and ping.epoch == view.stamp
        link.names(current=current, echo=ping.echo, now=now)
        if not current:
            # Whom it reaches, it says by positions of that view: here they name nobody, and take back nothing.
            link.forget_standing()
        elif view is not None:
            link.on_reach(unpack_set(ping.reaches))
            self._succession.hear_of(ping.ballot)
            if ping.settled:  # whoever says so: the way from the root may be gone when it gets here
                self._settle()
        if link.member is None:
            # It wants the link though we don't: let it hear that we live.
            self._emit(fx.Send(peer, self._course.past.sync(self._course.place.standing)))
        after = link.orphan, link.level, self._membership.settled, self._succession.highest
        missing = self._told[-1] is not None or is_short(stood) or is_short(link.stands)
        if after != before or (missing and stood != link.stands):
            self._notice(now)

    def link_states(self) -> tuple[LinkState, ...]:
        """All wanted links, in peer order."""
        return tuple(
            LinkState(peer, link.role, link.up, link.path, link.clock.srtt if link.up else None, self._rate(peer))
            for peer, link in self._links.all()
            if link.member is not None
        )

    def _rate(self, peer: PeerId) -> float:
        return self._course.rate_from(peer)
