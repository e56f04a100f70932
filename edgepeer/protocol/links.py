"""Which peers to be connected to, and which of them are gone.

    link is            | heard something | nothing sent for heartbeat_s | nothing heard for silence_s | broke
    -------------------+-----------------+------------------------------+-----------------------------+---------------
    up                 | up              | Ping                         | closed, down                | down
    down, wanted       | -               | dial again, with back-off    | the peer is gone            | -
    down, not wanted   | -               | forgotten                    | -                           | -

A peer whose link is down counts as gone after `silence_s`, or after `refused_s` if its presence on MQTT has
been cleared too. A cleared presence alone means nothing: it may be the broker that is gone. A peer that shows
up in a newer life than the one that is wanted is gone at once, link or no link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.limits import Limits
from edgepeer.topology.view import Member
from edgepeer.wire.frames import Ping, Sync

__all__ = ["Link", "Links"]


class Link:
    """What is known of one peer's link."""

    __slots__ = (
        "cleared",
        "dialing",
        "down_since",
        "heard",
        "life",
        "life_at",
        "member",
        "redial_at",
        "redial_s",
        "sent",
        "sync",
        "told",
        "up",
        "waiting",
    )

    def __init__(self, now: float) -> None:
        self.up = False
        self.member: Member | None = None
        """Set while the link is wanted."""
        self.down_since = now
        self.heard = now
        self.sent = now
        self.dialing = False
        self.redial_at = now
        self.redial_s = 0.0
        self.cleared = False
        """The peer's presence on MQTT is gone."""
        self.life = 0
        """The newest incarnation that the peer has shown, on MQTT or on connecting ..."""
        self.life_at = now
        """... and since when."""
        self.waiting = False
        """The peer's round waits for its children."""
        self.sync: Sync | None = None
        """Where the peer stood when it last said so on this connection."""
        self.told: int | None = None
        """What the peer was last told of where we stand, by a Sync on this connection."""


class Links:
    """All links of one peer."""

    def __init__(self, limits: Limits, emit: Callable[[fx.Effect], None]) -> None:
        self._limits = limits
        self._emit = emit
        self._links: dict[PeerId, Link] = {}

    def __getitem__(self, peer: PeerId) -> Link:
        return self._links[peer]

    def get(self, peer: PeerId) -> Link | None:
        return self._links.get(peer)

    def connected(self) -> list[tuple[PeerId, Link]]:
        """All links that are up, in peer order."""
        return [(peer, self._links[peer]) for peer in sorted(self._links) if self._links[peer].up]

    def is_up(self, peer: PeerId | None) -> bool:
        link = self._links.get(peer) if peer is not None else None
        return link is not None and link.up

    def want(self, at_once: Iterable[Member], later: Iterable[Member], now: float) -> None:
        """Be connected to these and no others: dial the first at once, the others if they don't dial us."""
        wanted: dict[PeerId, tuple[Member, float]] = {}
        wanted.update({PeerId(m.id): (m, now + self._limits.dial_back_s) for m in later})
        wanted.update({PeerId(m.id): (m, now) for m in at_once})
        for peer in sorted(self._links):
            if peer not in wanted:
                self._links[peer].member = None
                self._forget_if_idle(peer)
        for peer, (member, dial_at) in sorted(wanted.items()):
            link = self._links.setdefault(peer, Link(now))
            if link.member is None:
                if not link.up:
                    link.down_since = now
                link.redial_at, link.redial_s = dial_at, self._limits.redial_min_s
            link.member = member

    def _forget_if_idle(self, peer: PeerId) -> None:
        link = self._links[peer]
        if not link.up and link.member is None:
            del self._links[peer]

    def on_up(self, peer: PeerId, incarnation: int, now: float) -> Link:
        link = self._links.setdefault(peer, Link(now))
        link.up, link.dialing, link.sync, link.waiting, link.cleared = True, False, None, False, False
        link.heard, link.sent, link.told = now, now, None
        link.redial_s = self._limits.redial_min_s
        self._note_life(link, incarnation, now)
        return link

    def _note_life(self, link: Link, incarnation: int, now: float) -> None:
        if incarnation > link.life:
            link.life, link.life_at = incarnation, now

    def on_down(self, peer: PeerId, now: float) -> None:
        link = self._links.get(peer)
        if link is None:
            return
        link.up, link.sync = False, None
        link.down_since = link.redial_at = now
        self._forget_if_idle(peer)

    def on_dial_failed(self, peer: PeerId, now: float) -> None:
        link = self._links.get(peer)
        if link is None:
            return
        link.dialing = False
        link.redial_at = now + link.redial_s
        link.redial_s = min(2 * link.redial_s, self._limits.redial_max_s)
        self._forget_if_idle(peer)

    def on_presence(self, peer: PeerId, incarnation: int, now: float) -> None:
        if (link := self._links.get(peer)) is not None:
            link.cleared = False
            self._note_life(link, incarnation, now)

    def on_gone(self, peer: PeerId) -> None:
        if (link := self._links.get(peer)) is not None:
            link.cleared = True

    def tick(self, now: float, waiting: bool) -> list[tuple[PeerId, str]]:
        """Ping, dial and close what is due. Returns the links that were closed for silence."""
        silent = []
        for peer in sorted(self._links):
            link = self._links[peer]
            if link.up:
                if now - link.heard > self._limits.silence_s:
                    reason = f"nothing heard for {now - link.heard:.1f} s"
                    self._emit(fx.CloseLink(peer, reason))
                    silent.append((peer, reason))
                elif link.member is not None and now - link.sent >= self._limits.heartbeat_s:
                    self._emit(fx.Send(peer, Ping(waiting=waiting)))
            elif link.member is not None and not link.dialing and now >= link.redial_at:
                link.dialing = True
                self._emit(fx.Dial(link.member))
        return silent

    def lost(self, now: float) -> Iterator[tuple[PeerId, str, float]]:
        """Wanted peers that count as gone: who, why, and since when."""
        for peer in sorted(self._links):
            link = self._links[peer]
            if link.member is None:
                continue
            if link.life > link.member.incarnation:
                yield peer, "it has started anew", link.life_at
            elif not link.up:
                patience = self._limits.refused_s if link.cleared else self._limits.silence_s
                if now - link.down_since >= patience:
                    why = "link broke and presence was cleared" if link.cleared else f"no link for {patience:g} s"
                    yield peer, why, link.down_since + patience
