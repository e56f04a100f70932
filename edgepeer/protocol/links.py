"""Which peers to be connected to, over what, and which of them are gone.

    the connection is     | heard something | nothing sent for a beat | silent too long    | broke
                          |                 | no Ping for four beats  |                    |
    ----------------------+-----------------+-------------------------+--------------------+------------------------
    up                    | up              | Ping                    | reset: down        | down
    down, wanted          | -               | dial again, with        | -                  | -
                          |                 | back-off                |                    |
    down, not wanted      | -               | forgotten               | -                  | -

Who says of a round what can't be loses the connection at once, and comes back with the same: the next time its vectors
are thrown away for a while (`Link.reject`), and only then is the connection closed.

A link to a *main* neighbour, parent or child in any tree (`lane`: in another than the first), may also run over a
tunnel while the connection is down (paths.py).
A link to a *backup*, brother or uncle, is a connection and nothing else. How long silence may last is measured for
every path (timing.py).

A main neighbour of whom nothing was heard on any path for `silence_s` counts as gone; or one without any path for
`refused_s`, if its machine says that nobody listens there, or its presence on MQTT has been cleared, too. A cleared
presence alone means nothing: it may be the broker that is gone. A peer that shows up in a newer life than the one
that is wanted is gone at once, link or no link.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from edgepeer.ids import Lineage, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.timing import RoundTrip
from edgepeer.protocol.tunnel import Tunnel
from edgepeer.topology.view import Member
from edgepeer.wire.frames import Ping, Sync, unpack_stands

__all__ = ["Link", "LinkState", "Links", "Role"]

Role = Literal["parent", "child", "lane", "backup", "other"]
_MAIN: Final = ("parent", "child", "lane")
_ALARM_S: Final = 0.2
_SOON_S: Final = 0.005
_AGAIN_S: Final = 10.0
_IGNORED_S: Final = 1.0
"""For so long the numbers of a neighbour are thrown away that were refused within `_AGAIN_S` before, too: it would come
back at once, with the same."""
_BEATS: Final = 4
"""However much else is sent, there is a Ping in so many beats: it alone says the pace, and measures a round trip."""


@dataclass(frozen=True, slots=True)
class LinkState:
    """One link as its owner may show it."""

    peer: PeerId
    role: Role
    up: bool
    path: str
    """"direct", "via x", "via x+y", "relay", or empty."""
    rtt_s: float | None
    """Smoothed round-trip time of the path; None while unknown."""
    rate_bytes_per_s: float = 0.0
    """How fast this peer receives over it; 0 while unknown."""


class Link:
    """What is known of one peer's link."""

    __slots__ = (
        "alive_at", "calm", "cleared", "closed_at", "dialing", "dialled", "direct", "down_since", "echo",
        "echo_at", "elsewhere_since", "every", "failures", "heard", "ignored_until", "knocked", "level", "life",
        "life_at", "member", "needed", "orphan", "overtaken", "pinged", "promised", "reaches", "redial_at",
        "redial_s", "refused", "rejected_at", "role", "sent", "shown_at", "since", "stands", "sync", "timing",
        "told", "told_of", "tunnel", "tunnel_timing", "unanswered", "waiting", "withholds",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.direct = False
        """Whether there is a connection."""
        self.tunnel: Tunnel | None = None
        """What the link runs over while there is no connection."""
        self.member: Member | None = None
        """Set while the link is wanted."""
        self.role: Role = "other"
        self.needed = False
        """Too few are in reach over the links of the tree: this one counts as much as they do."""
        self.calm = False
        """Nobody waits for anything over it: then signs of life need not be more frequent than on a backup."""
        self.down_since = now
        self.heard = now
        """When something has last come over the path in use, or that path began ..."""
        self.alive_at = now
        """... and over any path."""
        self.since = now
        """When the path in use began."""
        self.sent = now
        self.dialing = False
        self.redial_at = now
        self.redial_s = 0.0
        self.failures = 0
        """How many attempts to connect have come to nothing while the path in use, or there being none, lasts ..."""
        self.refused = False
        """... the last was refused by the peer's machine."""
        self.dialled = False
        """Whether the last connection was made by this end."""
        self.unanswered = 0
        """How many attempts to connect have come to nothing since, without being refused."""
        self.knocked = 0
        """Number of the last tunnel that the peer has opened."""
        self.overtaken = False
        """Over several hops at once, too much overtook what came through the slowest of them."""
        self.closed_at = float("-inf")
        """When the connection was last closed because of silence ..."""
        self.rejected_at = float("-inf")
        """... and when something that came was last refused."""
        self.ignored_until: float | None = None
        """So long the vectors that come over the path in use are thrown away, after which that ends; None: they are
        not."""
        self.cleared = False
        """The peer's presence on MQTT is gone."""
        self.life = 0
        """The newest incarnation in which the peer has spoken, on whatever path ..."""
        self.life_at = now
        """... and since when."""
        self.timing = RoundTrip()
        """Of the connection."""
        self.tunnel_timing = RoundTrip()
        self.promised = 0.0
        """The peer was promised a sign of life within this time of the one before; 0: it was not."""
        self.pinged = now
        """When it was last told so."""
        self.every = 0.0
        """The peer has promised a sign of life within this time of the one before; 0: it has not."""
        self.echo = 0.0
        """The peer's clock when it last said so on this path ..."""
        self.echo_at = now
        """... and when that came."""
        self.reaches = 0
        """Positions in our view of the members that the peer has a connection with."""
        self.orphan = False
        self.level = -1
        """The round after which the peer and all below it stand; -1 if they don't stand level."""
        self.stands: tuple[int, int] | None = None
        """The last round of the view's run whose state the peer has, or somebody below it (-1: nobody; -2: nor does
        anybody take part), and the last that any of them has seen the end of; None: that is not known ..."""
        self.withholds = False
        """... as the peer says: something of it is on its way there, or further below."""
        self.shown_at = now
        """When the peer was last sent the view that this one is in ..."""
        self.elsewhere_since = float("inf")
        """... and since when its Pings name an earlier one, or none, although it has got that."""
        self.waiting = False
        """The peer's round waits for its children."""
        self.sync: Sync | None = None
        """Where the peer stood when it last said so on this path."""
        self.told: int | None = None
        """What the peer was last told of where we stand, by a Sync on this path ..."""
        self.told_of: Lineage | None = None
        """... and of which checkpoint our state is."""

    @property
    def up(self) -> bool:
        return self.direct or self.tunnel is not None

    @property
    def main(self) -> bool:
        return self.role in _MAIN

    @property
    def sought(self) -> bool:
        """Whether another way is taken where there is no connection."""
        return self.main or self.needed

    def rest(self, *, calm: bool) -> None:
        """Whether nobody waits for anything over it."""
        self.calm = calm

    @property
    def pace(self) -> Role:
        """Whose pace of signs of life it has."""
        return "backup" if self.calm and self.main else self.role

    @property
    def path(self) -> str:
        return "direct" if self.direct else self.tunnel.path if self.tunnel is not None else ""

    @property
    def answers(self) -> bool:
        """Whether who speaks over the path in use lives: the broker may have had for long what opened a way through it
        from the other end, and what was sent behind that."""
        tunnel = self.tunnel
        return self.direct or (tunnel is not None and (not tunnel.relayed or tunnel.number != self.knocked))

    @property
    def clock(self) -> RoundTrip:
        """The timing of the path in use."""
        return self.tunnel_timing if self.tunnel is not None and not self.direct else self.timing

    def hear(self, at: float) -> None:
        """Something has come over the path in use."""
        if at <= self.heard:
            return
        if self.every:
            self.clock.gap(at - self.heard, self.every)
        self.heard, self.alive_at = at, max(at, self.alive_at)

    def says(self, stamp: float, now: float) -> bool:
        """The peer says something at that time of its clock. Returns whether it has said nothing later on this path."""
        if stamp <= self.echo:
            return False
        self.echo, self.echo_at = stamp, now
        return True

    def live(self, now: float) -> None:
        """The peer has been heard of, on whatever path."""
        self.alive_at = now

    def was_closed(self, now: float) -> None:
        """The connection is closed because of silence."""
        self.closed_at = now

    def reject(self, now: float) -> bool:
        """What has come can't be. Returns whether that was so shortly before, and no vectors are taken for a while."""
        again, self.rejected_at = now - self.rejected_at < _AGAIN_S, now
        self.ignored_until = now + _IGNORED_S if again else None
        return again

    def wrote(self, now: float) -> None:
        """Something goes out over the link."""
        self.sent = now

    def was_knocked(self, number: int) -> None:
        """The peer has opened a tunnel."""
        self.knocked = number

    def was_overtaken(self) -> None:
        """Its next tunnels go through one hop only, until there is a connection again."""
        self.overtaken = True

    def on_sync(self, sync: Sync) -> None:
        """The peer says where it stands."""
        self.sync = sync

    def on_reach(self, positions: int) -> None:
        """The peer says with whom it has a connection, by their positions in our view."""
        self.reaches = positions

    def tell(self, sync: Sync) -> None:
        """The peer is told where this one stands."""
        self.told, self.told_of = sync.committed, sync.restored

    def promise(self, every_s: float, now: float) -> None:
        """The peer is told, by a Ping, how soon to expect the next sign of life."""
        self.promised, self.pinged = every_s, now

    def enter(self, now: float) -> None:
        """This peer works in another view from now on, and says so."""
        self.forget_standing()
        self.shown_at, self.elsewhere_since = now, float("inf")

    def show(self, now: float) -> None:
        """The peer is sent the view that this one is in."""
        self.shown_at = now

    def names(self, *, current: bool, echo: float, now: float) -> None:
        """A Ping of the peer, which has got what was sent to it until `echo`, names our view, or another."""
        if current:
            self.elsewhere_since = float("inf")
        elif echo > self.shown_at:
            self.elsewhere_since = min(self.elsewhere_since, now)

    def forget_standing(self) -> None:
        """What the peer's Pings have said of where it stands is of another view ..."""
        self.level, self.orphan, self.stands, self.withholds = -1, False, None, False

    def translate_reach(self, positions: Sequence[int | None]) -> None:
        """... and so are the positions. The members at each of them stand at these now; None: nowhere."""
        reaches, self.reaches = self.reaches, 0
        for before, after in enumerate(positions):
            if after is not None and reaches >> before & 1:
                self.reaches |= 1 << after

    def begin(self, now: float) -> None:
        """A new path: nothing that was said on an older one counts."""
        self.sync, self.told, self.waiting, self.level, self.stands, self.withholds = None, None, False, -1, None, False
        self.heard = self.alive_at = self.sent = self.pinged = self.since = self.echo_at = now
        self.every = self.promised = self.echo = 0.0
        self.refused = self.cleared = False
        self.failures = 0
        self.ignored_until = None
        self.shown_at, self.elsewhere_since = now, float("inf")


class Links:
    """All links of one peer."""

    def __init__(self, limits: Limits, emit: Callable[[fx.Effect], None]) -> None:
        self._limits = limits
        self._emit = emit
        self._links: dict[PeerId, Link] = {}  # in peer order

    def __getitem__(self, peer: PeerId) -> Link:
        return self._links[peer]

    def get(self, peer: PeerId) -> Link | None:
        return self._links.get(peer)

    def all(self) -> list[tuple[PeerId, Link]]:
        """All links, in peer order."""
        return list(self._links.items())

    def connected(self) -> list[tuple[PeerId, Link]]:
        """All links that are up, in peer order."""
        return [item for item in self._links.items() if item[1].up]

    def around(self) -> list[tuple[Link, Tunnel]]:
        """All links that run over tunnels, in peer order."""
        ways = ((link, link.tunnel) for link in self._links.values() if not link.direct)
        return [(link, tunnel) for link, tunnel in ways if tunnel is not None]

    def _begun(self, peer: PeerId, now: float) -> Link:
        """The peer's link; a new one where there was none."""
        link = self._links.get(peer)
        if link is None:
            link = Link(now)
            order = sorted([*self._links, peer])
            self._links = {each: self._links.get(each, link) for each in order}
        return link

    def is_up(self, peer: PeerId | None) -> bool:
        link = self._links.get(peer) if peer is not None else None
        return link is not None and link.up

    def is_here(self, peer: PeerId, now: float) -> bool:
        """Whether there is a path to a member, and it is in this view, as far as is known."""
        link = self._links.get(peer)
        return link is not None and link.up and now < link.elsewhere_since + self._limits.silence_s

    def is_ignored(self, peer: PeerId) -> bool:
        """Whether numbers that come from there are thrown away."""
        link = self._links.get(peer)
        return link is not None and link.ignored_until is not None

    def is_direct(self, peer: PeerId) -> bool:
        link = self._links.get(peer)
        return link is not None and link.direct

    def want(self, wanted: Iterable[tuple[Member, Role]], now: float, needed: Container[PeerId] = ()) -> None:
        """Be connected to these and no others: dial parents at once, others if they don't dial us. Those who are still
        `needed`, find a way to.

        Of two backups, or two that are neighbours in another tree than the first, the smaller id dials at once.
        """
        roles = {PeerId(member.id): (member, role) for member, role in wanted}
        for peer, link in self.all():
            if peer not in roles:
                link.member, link.role, link.tunnel, link.needed = None, "other", None, False
                self._forget_if_idle(peer)
        for peer, (member, role) in sorted(roles.items()):
            link = self._begun(peer, now)
            if link.member is None or link.member.incarnation != member.incarnation:
                if not link.up:
                    link.down_since = now
                    link.refused = link.cleared = False  # which was said of another life
                link.alive_at = now
                at_once = role in ("parent", "other")
                link.redial_at = now if at_once else now + self._limits.dial_back_s
                link.redial_s = self._limits.redial_min_s
            link.tunnel = link.tunnel if role in _MAIN else None
            before, link.member, link.role, link.needed = link.sought, member, role, peer in needed
            if link.sought and not (before or link.up):
                link.alive_at = now  # it has not been tried by all ways yet

    def dial_at_once(self, peer: PeerId, now: float) -> None:
        """It is this end's turn to connect."""
        self._links[peer].redial_at = min(self._links[peer].redial_at, now)

    def _forget_if_idle(self, peer: PeerId) -> None:
        link = self._links[peer]
        if not link.up and link.member is None:
            del self._links[peer]

    def on_up(self, peer: PeerId, incarnation: int, now: float, *, dialled: bool = False) -> Link:
        """There is a connection."""
        link = self._begun(peer, now)
        if now - link.closed_at < _ALARM_S + 2 * (link.timing.srtt or 0.0):
            link.timing.false_alarm(now)  # a cut would have lasted longer, or have kept us from connecting
        link.direct, link.tunnel, link.dialing, link.overtaken = True, None, False, False
        link.begin(now)
        link.redial_s = self._limits.redial_min_s
        link.dialled, link.unanswered = dialled, 0 if dialled else link.unanswered
        self._note_life(link, incarnation, now)
        return link

    def on_tunnel(self, peer: PeerId, tunnel: Tunnel, incarnation: int, stamp: float, now: float) -> None:
        """There is a way around. `stamp`: the peer's clock when it said so."""
        link = self._links[peer]
        link.tunnel = tunnel
        link.tunnel_timing = RoundTrip()
        link.begin(now)
        link.echo = stamp
        self._note_life(link, incarnation, now)

    def _note_life(self, link: Link, incarnation: int, now: float) -> None:
        if incarnation > link.life:
            link.life, link.life_at = incarnation, now

    def on_down(self, peer: PeerId, now: float) -> None:
        """The path in use is gone."""
        link = self._links.get(peer)
        if link is None:
            return
        if link.direct:
            link.redial_at = now
        link.direct, link.tunnel, link.sync = False, None, None
        link.down_since = now
        self._forget_if_idle(peer)

    def on_dial_failed(self, peer: PeerId, refused: bool, now: float) -> None:
        link = self._links.get(peer)
        if link is None:
            return
        link.dialing, link.refused = False, refused
        link.failures += 1
        link.unanswered = 0 if refused else link.unanswered + 1
        link.redial_at = now + link.redial_s
        link.redial_s = min(2 * link.redial_s, self._limits.redial_max_s)
        self._forget_if_idle(peer)

    def on_presence(self, peer: PeerId) -> None:
        """A peer is announced on MQTT, which says nothing of whether it lives."""
        if (link := self._links.get(peer)) is not None:
            link.cleared = False

    def on_life(self, peer: PeerId, incarnation: int, now: float) -> None:
        """A peer has spoken in this life, on whatever path."""
        if (link := self._links.get(peer)) is not None:
            self._note_life(link, incarnation, now)

    def on_gone(self, peer: PeerId) -> None:
        if (link := self._links.get(peer)) is not None:
            link.cleared = True

    def on_ping(self, peer: PeerId, ping: Ping, now: float) -> None:
        """The peer lives, and says how it stands."""
        link = self._links[peer]
        if ping.echo:
            link.clock.sample(now - ping.echo - ping.held)
        if 0 < ping.every < link.every / _BEATS:
            link.clock.hurry()
        link.clock.forgive(now)
        link.echo, link.echo_at, link.every = ping.stamp, now, ping.every
        link.waiting, link.orphan, link.level = ping.waiting, ping.orphan, ping.level
        link.stands = unpack_stands(ping.stands)
        link.withholds = link.stands is None

    def excuse(self, seconds: float, now: float) -> None:
        """This peer itself was not listening for so long."""
        for link in self._links.values():
            link.heard = min(link.heard + seconds, now)
            link.echo_at = min(link.echo_at + seconds, now)
            link.alive_at = min(link.alive_at + seconds, now)
            link.elsewhere_since = max(link.elsewhere_since, min(link.elsewhere_since + seconds, now))
            if not link.up:
                link.down_since = min(link.down_since + seconds, now)

    def tick(self, now: float, every_s: dict[Role, float], ping: Callable[[Link, float], Ping]) -> list[PeerId]:
        """Ping, dial and close what is due. Returns the links that were closed, for silence or since nothing of what
        comes over them counts.

        With a Ping that is due go those of which half the time has passed: soon all links beat at once, and the machine
        is woken up once for all of them.
        """
        closed = []
        pings = (self._ping_at(link, every_s) for link in self._links.values() if link.up and link.member is not None)
        due = min(pings, default=float("inf")) <= now + _SOON_S
        for peer, link in self._links.items():
            if link.up:
                quiet = now - link.heard
                if quiet > self._least_patience(link) and quiet > (patience := self._patience(link)):
                    if link.direct:
                        link.was_closed(now)
                        reason = f"nothing heard for {quiet:.3f} s, expected within {patience:.3f} s"
                        self._emit(fx.CloseLink(peer, reason, abrupt=True))
                    closed.append(peer)
                elif link.ignored_until is not None and now >= link.ignored_until:
                    if link.direct:
                        self._emit(fx.CloseLink(peer, "nothing of what comes over it counts: anew"))
                    closed.append(peer)
                elif due and link.member is not None and self._may_ping(link, every_s, now):
                    self._emit(fx.Send(peer, ping(link, every_s[link.pace])))
                    link.sent = now
            if not link.direct and link.member is not None and not link.dialing and now >= link.redial_at:
                link.dialing = True
                self._emit(fx.Dial(link.member))
        return closed

    def unacknowledged(self, peer: PeerId, since: float, within_s: float, now: float) -> bool:
        """The peer's machine has acknowledged nothing since then, which takes at most `within_s` on this path. Returns
        whether the connection was closed for that: it is broken, or the machine has lost its power."""
        link = self._links.get(peer)
        if link is None or not link.direct:
            return False
        quiet, patience = now - since, link.timing.unacknowledged_after(within_s, self._limits.silence_s)
        if quiet > patience:
            link.was_closed(now)
            reason = f"nothing acknowledged for {quiet:.3f} s, expected within {patience:.3f} s"
            self._emit(fx.CloseLink(peer, reason, abrupt=True))
        return quiet > patience

    def _may_ping(self, link: Link, every_s: dict[Role, float], now: float) -> bool:
        """Whether a Ping may go out with others that are due: half the time has passed; of a calm link, most of it."""
        return self._ping_at(link, every_s) - now <= (now - link.pinged) / (4 if link.calm else 1)

    def _patience(self, link: Link) -> float:
        """How long the path in use may be silent ..."""
        return link.clock.silent_after(link.every, self._limits.silence_s)

    def _least_patience(self, link: Link) -> float:
        """... and what that is at least, whatever was measured."""
        return min(link.every or self._limits.silence_s, self._limits.silence_s)

    def _ping_at(self, link: Link, every_s: dict[Role, float]) -> float:
        """When a Ping is due: at rest as soon as something was promised to come, which holds until the other end has
        heard of a slower pace; and where traffic never rests, often enough for it to hear of a faster one."""
        every = every_s[link.pace]
        if link.promised > _BEATS * every:
            return link.pinged  # rounds have begun: the other end must not go on waiting as if there were none
        return min(link.sent + min(every, link.promised or every), link.pinged + _BEATS * every)

    def next_due(self, every_s: dict[Role, float]) -> float:
        """When the next Ping is due, the next connection to be tried again, or the next link silent for too long."""
        due = float("inf")
        for link in self._links.values():
            if not link.direct and link.member is not None and not link.dialing:
                due = min(due, link.redial_at)
            if link.up:
                if link.member is not None:
                    due = min(due, self._ping_at(link, every_s))
                if link.heard + self._least_patience(link) < due:
                    due = min(due, link.heard + self._patience(link))
                if link.ignored_until is not None:
                    due = min(due, link.ignored_until)
        return due

    def want_too(self, member: Member, now: float) -> None:
        """Be connected to this one as well, or find another way to it, until `want` is called again."""
        link = self._begun(PeerId(member.id), now)
        if not (link.needed or link.up):
            link.alive_at = now  # it has not been tried by all ways yet
        link.needed = True
        if link.member is None:
            link.member, link.redial_at, link.redial_s = member, now, self._limits.redial_min_s

    def lost(self, now: float, *, others: bool) -> Iterator[tuple[PeerId, str, float]]:
        """Main neighbours that count as gone: who, why, and since when. `others`: and whom we hope to be let in by."""
        limits = self._limits
        for peer, link in self._links.items():
            if link.member is None or not (link.main or (others and link.role == "other")):
                continue
            if link.life > link.member.incarnation:
                yield peer, "it has started anew", link.life_at
            elif now - link.alive_at >= limits.silence_s:
                yield peer, f"nothing heard on any path for {limits.silence_s:g} s", link.alive_at + limits.silence_s
            elif not others and now >= link.elsewhere_since + limits.silence_s:
                why = f"it has got this view, and not been in it for {limits.silence_s:g} s"
                yield peer, why, link.elsewhere_since + limits.silence_s
            elif not link.up and (link.refused or link.cleared) and now - link.down_since >= limits.refused_s:
                why = "nobody listens there" if link.refused else "its presence was cleared"
                yield peer, f"no path for {limits.refused_s:g} s, and {why}", link.down_since + limits.refused_s
