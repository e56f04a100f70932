"""Ways around a broken connection: tunnels through a neighbour, and, last, through the broker.

A link to a parent or child goes on over a tunnel while its connection is down. What runs through it, and how a link
that comes up is brought up to date, is the same as over a connection; so nothing else in the protocol knows of it.

    the connection to a neighbour  | this end                          | the other end
    -------------------------------+-----------------------------------+------------------------------------------
    is lost, or does not come up   | Knock through every backup that   | takes the first Knock that comes, resets
    in time                        | reaches it; if none answers soon, | its connection if it still has one, and
                                   | through the broker                | answers by the same way: the tunnel is up
    the same                       | both say with that where they     | the same: what the source lacks goes with
                                   | stand                             | the answer
    the same, and vectors move     | the further answers show through  | answers by each of the first few ways: the
    over several trees             | whom else it goes (tunnel.py)     | tunnel goes through all of these by turns
    is lost at both ends           | both knock                        | the smaller id's Knock counts; if they cross so
                                   |                                   | late that each end has taken the other's, it
                                   |                                   | does as soon as the answer shows that
    was lost before the path in    |                                   | takes no notice of the Knock, which says
    use stood                      |                                   | when that was
    is lost; no answer has come    | knocks again, by the same number  | answers again by the same way
    stands again                   | the tunnel is forgotten           | the tunnel is forgotten
    is lost, and the broker is the | the smaller id knocks again, as   | as at first
    way, though a backup reaches   | soon as some time has passed,     |
    both by now                    | then ever more seldom             |

    the tunnel's hop               | the source
    -------------------------------+------------------------------------------------------------------
    has lost the target            | hears NoWay: knocks again
    carries to a target that has   | the same, when the second answer comes
    opened it twice, of late       |
    carries to a target that does  | the same: what the target takes for a connection does not reach
    not have the tunnel            | here, or this end would have it, too
    is lost itself                 | knocks again
    drops or repeats a frame       | (the target sees it by the serial number, and knocks)
    is much slower than another,   | (the target has to keep what came by the other, too much of it or for too long, and
    or keeps all to itself         | knocks for one hop)

A hop passes frames on between its own connections only, so nothing ever goes in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.headers import Shape
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Link, Links
from edgepeer.protocol.tunnel import MOST_HOPS, Carried, Tunnel
from edgepeer.topology.view import View
from edgepeer.wire.codec import unwrap, wrap
from edgepeer.wire.frames import Frame, Knock, NoWay, Reduce, Result, State, Sync, Via
from edgepeer.wire.precision import encoded_bytes

__all__ = ["CROSSING_S", "Attempt", "Paths"]

_KNOCK_MIN_S: Final = 0.1
_KNOCK_MAX_S: Final = 2.0
_EXCHANGES: Final = 3
"""Round trips that a connection takes at most, from the first packet to the Hello of both ends."""
_SILENCES: Final = 2
"""How many times `silence_s` what has come by one hop may wait for what comes by another: the link is not found silent
meanwhile, for what waits is heard."""
_BETTER_MIN_S: Final = 5.0
"""After so long over the broker a neighbour is tried that says that it is connected with the other end, which may cost
the link `relay_after_s`; if that has led back to the broker, after twice as long ..."""
_BETTER_MAX_S: Final = 320.0
"""... up to this."""
CROSSING_S: Final = 0.5
"""A Knock within this time of our own, or of a new path, may have crossed it."""


@dataclass(slots=True)
class Attempt:
    """To open a tunnel."""

    number: int
    began: float
    again_at: float
    pause_s: float = _KNOCK_MIN_S
    said: tuple[Sync, ...] = ()
    """Where this peer has said with it that it stands."""
    hops: int = 1
    """Through how many neighbours at once it may go."""

    @property
    def told(self) -> Sync | None:
        """What whoever takes it knows of that; None if that depends on which Knock has come."""
        return self.said[0] if len(self.said) == 1 else None


class Up(Protocol):
    """Told when a link has got a way around."""

    def __call__(self, peer: PeerId, told: Sync | None) -> None:
        """`told`: where the other end has been told already that this peer stands; None if it has not."""


class Down(Protocol):
    """Told when a link has lost its path."""

    def __call__(self, peer: PeerId, *, seek: bool = True) -> None:
        """`seek`: whether another is to be looked for."""


class Paths:
    """The tunnels of one peer.

    Args:
        links: of this peer.
        sync: what tells a neighbour where this peer stands.
        up: told when a link has got a way around.
        down: told when a link has lost its path.
    """

    def __init__(
        self,
        me: PeerId,
        links: Links,
        limits: Limits,
        emit: Callable[[fx.Effect], None],
        sync: Callable[[PeerId], Sync],
        up: Up,
        down: Down,
    ) -> None:
        self._me = me
        self._links = links
        self._limits = limits
        self._emit = emit
        self._sync = sync
        self._up = up
        self._down = down
        self._attempts: dict[PeerId, Attempt] = {}
        self._crossed: dict[PeerId, Attempt] = {}
        """Those that were given up for a Knock of the other end, which may have taken them."""
        self._better: dict[PeerId, float] = {}
        """How long the broker is put up with as the way to a peer, before a neighbour is tried, s."""
        self._count = 0
        self._incarnation = 0
        self._view: View | None = None

    def enter(self, view: View | None, incarnation: int) -> None:
        """This peer works in a view, in that life, or in none."""
        self._view, self._incarnation = view, incarnation
        self._crossed.clear()
        self._better.clear()

    # -- looking for a way around ----------------------------------------------------------------------------

    def seek(self, peer: PeerId, now: float) -> None:
        """A neighbour, or who is needed, has neither connection nor tunnel."""
        self._count += 1
        # Another life of this peer must not use the numbers of this one, nor `peer` for a Knock to us.
        number = (self._incarnation & 0x7FFFFFFF) << 21 | (self._me < peer) << 20 | self._count & 0xFFFFF
        attempt = self._attempts[peer] = Attempt(number, now, now, hops=self._most_hops(peer))
        self._crossed.pop(peer, None)
        self._knock(peer, attempt, now)

    def _knock(self, peer: PeerId, attempt: Attempt, now: float) -> None:
        relay_at = attempt.began + self._limits.relay_after_s
        attempt.again_at = now + attempt.pause_s if now >= relay_at else min(now + attempt.pause_s, relay_at)
        attempt.pause_s = min(2 * attempt.pause_s, _KNOCK_MAX_S)
        if (sync := self._sync(peer)) not in attempt.said:
            attempt.said += (sync,)
        asking = Knock(
            incarnation=self._incarnation, answer=False, stamp=now, lost=attempt.began, sync=sync, hops=attempt.hops
        )
        kind, header = wrap(asking)
        via = Via(source=self._me, target=peer, tunnel=attempt.number, serial=0, kind=kind, header=header)
        hops = self._hops(peer)
        for hop in hops[:MOST_HOPS]:
            self._emit(fx.Send(hop, via))
        if not hops or now >= relay_at:
            self._emit(fx.Relay(peer, via))

    def _hops(self, peer: PeerId) -> list[PeerId]:
        """Connected peers that say that they are connected with `peer`: first the neighbours of one of both, whose
        connection with that one is in use, for TCP begins slowly over one that has rested; last those that are leaves
        for having a slow line."""
        view = self._view
        if view is None or peer not in view:
            return []
        bit = 1 << view.position(peer)
        found = [
            hop
            for hop, link in self._links.connected()
            if link.direct and hop != peer and hop in view and link.reaches & bit
        ]
        near = {*view.neighbours(self._me), *view.neighbours(peer)}
        return sorted(found, key=lambda hop: (_is_slow(view, hop), hop not in near))

    def _most_hops(self, peer: PeerId) -> int:
        """Through how many a tunnel may go at once: as many as there are trees in which the two are parent and child.
        Then what each carries besides is no more than in one tree, and what comes by one waits little for another."""
        view = self._view
        if view is None or peer not in view or self._links[peer].overtaken:
            return 1
        return max(min(MOST_HOPS, view.plan.common(view.position(self._me), view.position(peer))), 1)

    def tick(self, now: float) -> None:
        """Knock where no connection has come up, and again where nobody has answered."""
        for peer, each in list(self._links.all()):
            if each.up:
                self._leave_broker(peer, each, now)
            elif not each.sought or peer in self._attempts:
                continue
            elif each.failures or now - each.down_since >= self._in_time():
                self.seek(peer, now)
        for peer, attempt in list(self._attempts.items()):
            link = self._links.get(peer)
            if link is None or not link.sought or link.up:
                del self._attempts[peer]
            elif now >= attempt.again_at:
                self._knock(peer, attempt, now)

    def _leave_broker(self, peer: PeerId, link: Link, now: float) -> None:
        """Try a neighbour again that reaches the other end by now. One end does; neighbours tell both of it."""
        if link.tunnel is None or not link.tunnel.relayed or link.direct:
            self._better.pop(peer, None)
            return
        patience = self._better.setdefault(peer, _BETTER_MIN_S)
        if self._me < peer and now - link.since >= patience and self._hops(peer):
            self._better[peer] = min(2 * patience, _BETTER_MAX_S)
            self._down(peer)

    def _in_time(self) -> float:
        """How long a connection may take to come up, as far as those that have can tell."""
        answers = [link.timing.answer_within() for _, link in self._links.connected()]
        slowest = max((answer for answer in answers if answer is not None), default=self._limits.silence_s)
        return min(self._limits.dial_back_s + _EXCHANGES * slowest, self._limits.silence_s / 2)

    def next_deadline(self) -> float | None:
        return min(attempt.again_at for attempt in self._attempts.values()) if self._attempts else None

    def hop_lost(self, hop: PeerId) -> None:
        """A connection is gone, and with it what went through it."""
        for peer, link in self._links.connected():
            if link.tunnel is not None and hop in link.tunnel.hops:
                self._down(peer)

    # -- what goes through tunnels ---------------------------------------------------------------------------

    def wrapped(self, send: fx.Send, tunnel: Tunnel) -> Iterator[fx.Send | fx.Relay]:
        """What to do instead of sending over the connection that is not there."""
        limit = self._limits.relay_bytes if tunnel.relayed else self._limits.tunnel_bytes
        for frame, payload in _pieces(send.frame, send.payload, limit):
            kind, header = wrap(frame)
            serial, hop = tunnel.next_hop()
            via = Via(
                source=self._me,
                target=send.peer,
                tunnel=tunnel.number,
                serial=serial,
                kind=kind,
                header=header,
                hops=len(tunnel.hops),
            )
            yield fx.Send(hop, via, payload) if hop is not None else fx.Relay(send.peer, via, payload)

    def on_via(
        self, hop: PeerId | None, via: Via, payload: memoryview | bytes, seconds: float, now: float
    ) -> Carried | None:
        """A Via has come from `hop`, or from the broker. Returns what its source says over this peer's link with that,
        if it is what comes next there; then there may be more (`following`).

        Raises:
            WireError: what it carries is no frame.
        """
        if via.target != self._me:
            self._pass_on(hop, via, payload)
            return None
        source = PeerId(via.source)
        frame = unwrap(via, len(payload))
        if source == self._me:
            return None  # it has no way to itself, and needs none
        link = self._links.get(source)
        if (link is None or not link.sought) and isinstance(frame, Knock) and not frame.answer:
            link = self._needed_by(source, now)
        if link is None or not link.sought or hop == source:
            return None
        if isinstance(frame, Knock):
            opened = self._on_knock(source, hop, via.tunnel, frame, now)
            return (frame.sync, b"", seconds) if opened and frame.sync is not None else None
        tunnel = link.tunnel
        mine = tunnel is not None and tunnel.number == via.tunnel and tunnel.goes_through(hop)
        if isinstance(frame, NoWay):
            if mine:
                self._down(source)
            return None
        # By a neighbour also what was sent through a tunnel before, and is on its way over a slow line. The broker may
        # have had that for long.
        if tunnel is not None and (
            tunnel.goes_through(hop) if hop is not None else mine and via.serial >= tunnel.received
        ):
            link.hear(now)
        if tunnel is None or not mine:
            self._answer(source, hop, via.tunnel, NoWay(target=self._me, tunnel=via.tunnel))
            return None
        if not tunnel.put(hop, via.serial, (frame, payload, seconds), now, via.hops):
            if tunnel.overtaken:
                link.was_overtaken()
            self._down(source)
            return None
        return tunnel.take()

    def following(self, source: PeerId) -> Carried | None:
        """What its source says next, if that has come already."""
        link = self._links.get(source)
        return link.tunnel.take() if link is not None and link.tunnel is not None and not link.direct else None

    def _needed_by(self, source: PeerId, now: float) -> Link | None:
        """A member that is no neighbour has too few in reach."""
        if self._view is None or source not in self._view:
            return None
        self._links.want_too(self._view.member(source), now)
        return self._links[source]

    def _pass_on(self, hop: PeerId | None, via: Via, payload: memoryview | bytes) -> None:
        if hop is None or via.source != hop:
            return
        if self._links.is_direct(target := PeerId(via.target)):
            self._emit(fx.Send(target, via, payload))
        else:
            self._emit(fx.Send(hop, NoWay(target=via.target, tunnel=via.tunnel)))

    def on_no_way(self, hop: PeerId, frame: NoWay) -> None:
        """A hop can't carry on what goes to a target."""
        link = self._links.get(target := PeerId(frame.target))
        tunnel = link.tunnel if link is not None else None
        if tunnel is not None and tunnel.number == frame.tunnel and tunnel.goes_through(hop):
            self._down(target)

    def _on_knock(self, source: PeerId, hop: PeerId | None, number: int, knock: Knock, now: float) -> bool:
        """Returns whether the tunnel is up with it, or was, and what it says of where the source stands is news."""
        link = self._links[source]
        link.live(now)
        mine, tunnel = self._attempts.get(source), link.tunnel
        if knock.answer:
            if tunnel is not None and tunnel.number == number and link.up:
                if tunnel.opened == knock.stamp:
                    tunnel.go_also(hop)
                elif tunnel.opened < knock.stamp and not tunnel.relayed:
                    self._down(source)  # the other end counts anew: what goes by this number may be of either
                return False  # a broker may bring it twice, and where the source stood then is no news the second time
            if link.up:  # by another number each end is in a tunnel that the other has not
                mine = self._crossed.get(source) if tunnel is not None and self._me < source else None
            if mine is None or mine.number != number:
                return False
            self._crossed.pop(source, None)
            if link.up:
                self._down(source, seek=False)
            self._open(source, self._tunnel(number, hop, knock.stamp, mine.hops), knock, now, mine.told)
            return True
        if link.knocked == number and link.up:
            if tunnel is not None and tunnel.number == number:
                self._agree_again(source, hop, tunnel, knock, now)
            return False
        if mine is not None and self._me < source and now - mine.began < CROSSING_S:
            return False  # ours counts
        if link.up and not _is_news(link, knock, now):
            return False
        if link.direct:
            self._emit(fx.CloseLink(source, "the other end has opened another path", abrupt=True))
        if link.up:
            self._down(source, seek=False)
        link.was_knocked(number)
        if mine is not None:
            self._crossed[source] = mine
        answer = self._agreeing(source, knock, now)
        self._answer(source, hop, number, answer)
        most = min(knock.hops, self._most_hops(source))
        self._open(source, self._tunnel(number, hop, now, most, answer), knock, now, answer.sync)
        return True

    def _tunnel(self, number: int, hop: PeerId | None, opened: float, most: int, answer: Knock | None = None) -> Tunnel:
        patience_s = _SILENCES * self._limits.silence_s
        return Tunnel(number, hop, opened, most=most, answer=answer, patience_s=patience_s)

    def _agreeing(self, source: PeerId, knock: Knock, now: float) -> Knock:
        """Where the Knock says where its source stands, so does the answer of this peer."""
        sync = self._sync(source) if knock.sync is not None else None
        return Knock(incarnation=self._incarnation, answer=True, stamp=now, sync=sync)

    def _agree_again(self, source: PeerId, hop: PeerId | None, tunnel: Tunnel, knock: Knock, now: float) -> None:
        """The same Knock has come again, because the answer has not got there yet, or by another way."""
        if tunnel.relayed:
            if hop is None:
                self._answer(source, None, tunnel.number, self._agreeing(source, knock, now))
            return
        view = self._view
        if hop is not None and view is not None and hop in view and not _is_slow(view, hop):
            tunnel.go_also(hop)  # not by who is no member any more, though it still takes itself for one
        if tunnel.answer is not None and tunnel.goes_through(hop):
            self._answer(source, hop, tunnel.number, tunnel.answer)  # the same by all: they are of one tunnel

    def _answer(self, source: PeerId, hop: PeerId | None, number: int, frame: Frame) -> None:
        """By the way that something has come."""
        kind, header = wrap(frame)
        via = Via(source=self._me, target=source, tunnel=number, serial=0, kind=kind, header=header)
        self._emit(fx.Send(hop, via) if hop is not None else fx.Relay(source, via))

    def _open(self, peer: PeerId, tunnel: Tunnel, knock: Knock, now: float, said: Sync | None) -> None:
        """`said`: where this peer has said with its own Knock that it stands."""
        self._attempts.pop(peer, None)
        self._links.on_tunnel(peer, tunnel, knock.incarnation, knock.stamp, now)
        self._emit(fx.Note("info", f"link to {peer} goes {tunnel.path}", often=True))
        self._up(peer, said if knock.sync is not None else None)


def _is_slow(view: View, hop: PeerId) -> bool:
    """Whether a member is a leaf of all trees, since its line is slow, or nobody can dial it (shape.py)."""
    return view.position(hop) >= view.size - view.leaves


def _is_news(link: Link, knock: Knock, now: float) -> bool:
    """Whether the sender has lost the path in use, and not one before that: by its own clock, where that is known.

    Else the Knock may have been sent before the path stood; if not, there will be more.
    """
    if knock.lost and link.echo:
        return knock.lost > link.echo
    return now - link.since >= CROSSING_S


def _pieces(
    frame: Frame, payload: memoryview | bytes | None, limit: int
) -> Iterator[tuple[Frame, memoryview | bytes | None]]:
    """The same in frames whose payloads are not larger than `limit` bytes, where that can be done: what is encoded in
    blocks is cut between them."""
    size = len(payload) if payload is not None else 0
    if payload is None or size <= limit or not isinstance(frame, Reduce | Result | State):
        yield frame, payload
        return
    data = memoryview(payload).cast("B")
    if isinstance(frame, State):
        block = block_bytes = 1
    else:
        shape = Shape.said(frame)
        block, block_bytes = shape.block, encoded_bytes(shape.precision, shape.block, shape.itemsize)
    step = max(1, limit // block_bytes) * block_bytes
    for start in range(0, size, step):
        end = min(start + step, size)
        changes: dict[str, object] = {"offset": frame.offset + start // block_bytes * block}
        if isinstance(frame, Result) and end < size:
            changes["commit"] = None
        yield msgspec.structs.replace(frame, **changes), data[start:end]
