"""The links of one peer and the paths that they run over: what follows when a path stands or breaks.

a path                  | so
------------------------+---------------------------------------------------------------------------------------
stands                  | neighbours hear who can be reached from here, and where this peer stands
breaks                  | nothing is expected of it any more; what went through it as a hop breaks, too; a way
                        | around is looked for, to parent and children, and to whoever is needed
goes around             | what is sent over the link is wrapped, and split where pieces must be small (paths.py)
went around, and the    | the connections that it went over are closed, too: what was sent lies in it, and the other end
sender's memory changes | may not have heard yet that the way is another one
"""

from __future__ import annotations

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Links
from edgepeer.protocol.neighbours import Neighbours
from edgepeer.protocol.paths import Paths
from edgepeer.protocol.place import Place
from edgepeer.protocol.vitals import Vitals
from edgepeer.wire.frames import Reduce, Sync, Via

__all__ = ["Wiring"]


class Wiring:
    """What the rounds have around them (`Around`), and whoever else speaks over links."""

    def __init__(self, place: Place, links: Links, limits: Limits, effects: list[fx.Effect]) -> None:
        self._place = place
        self._links = links
        self._effects = effects
        self.emit = effects.append
        self.paths = Paths(place.me, links, limits, self.emit, self._sync_for, self._on_path_up, self.on_path_down)
        self._hops: dict[PeerId, set[PeerId]] = {}
        """Through whom what may lie in this peer's vector has gone to whom."""
        self._vitals: Vitals
        self._neighbours: Neighbours

    def tell(self, vitals: Vitals, neighbours: Neighbours) -> None:
        """Who is to hear of paths: said once, before anything happens."""
        self._vitals, self._neighbours = vitals, neighbours

    # -- paths that stand and break ------------------------------------------------------------------------------

    def on_link_up(self, peer: PeerId, incarnation: int, *, dialled: bool) -> None:
        """There is a connection with a peer."""
        if self._links.is_up(peer):
            self._path_ends(peer)  # the tunnel, or an older connection
        self._links.on_up(peer, incarnation, self._place.now, dialled=dialled)
        self._on_path_up(peer)

    def on_link_down(self, peer: PeerId) -> None:
        """The connection with a peer is gone."""
        if self._links.is_direct(peer):
            self.on_path_down(peer)

    def _on_path_up(self, peer: PeerId, told: Sync | None = None) -> None:
        self._vitals.reach_changed(peer, self._place.now)
        self._neighbours.send_sync(peer, told)

    def _sync_for(self, peer: PeerId) -> Sync:
        return self._neighbours.sync_for(peer)

    def on_path_down(self, peer: PeerId, *, seek: bool = True) -> None:
        """A link has lost what it ran over: look for another way if `seek`."""
        self.on_paths_down([peer], seek=seek)

    def on_paths_down(self, peers: list[PeerId], *, seek: bool = True) -> None:
        """The same of several at once: none of them is asked to carry on anything for another."""
        were_direct = [peer for peer in peers if self._links.is_direct(peer)]
        for peer in peers:
            self._path_ends(peer)
        for peer in were_direct:
            self.paths.hop_lost(peer)
            self._vitals.reach_changed(peer, self._place.now)
        for peer in peers:
            link = self._links.get(peer)
            if seek and link is not None and link.sought:
                self.paths.seek(peer, self._place.now)

    def _path_ends(self, peer: PeerId) -> None:
        self._links.on_down(peer, self._place.now)
        self._neighbours.on_lost(peer)

    def refuse(self, peer: PeerId, reason: str) -> None:
        """What a peer says of a round can't be: close the link, but not if that was so shortly before (`Link.reject`).
        What others have said, and it only carries, is not its fault."""
        link = self._links.get(peer)
        if self._links.is_ignored(peer):
            return
        if link is not None and link.reject(self._place.now):
            self.emit(fx.Refused(peer, reason))
            self.emit(fx.Note("warning", f"no vectors are taken of {peer} for a while: again {reason}", often=True))
        else:
            self.fail_link(peer, reason)

    def fail_link(self, peer: PeerId, reason: str) -> None:
        """Close the link to a peer: what has come over it can't be."""
        self.emit(fx.Note("warning", f"link to {peer} closed: {reason}", often=True))
        self.emit(fx.Refused(peer, reason))
        link = self._links.get(peer)
        if link is None or link.direct or link.tunnel is None:
            self.emit(fx.CloseLink(peer, reason))
        self.on_path_down(peer)

    def cut_off(self, peer: PeerId, reason: str) -> None:
        """Let a peer get no more of what was sent to it, and wherever that went over: neither of what is queued, nor
        on connections that are being closed."""
        link = self._links.get(peer)
        tunnel = link.tunnel if link is not None else None
        passed = {hop for hop in (tunnel.hops if tunnel is not None else ()) if hop is not None}
        closed = sorted({peer} | passed | self._hops.pop(peer, set()))
        for each in closed:
            self.emit(fx.CloseLink(each, reason, abrupt=True))
        self.on_paths_down([each for each in closed if self._links.is_direct(each)])
        if self._links.is_up(peer):
            self.on_path_down(peer)

    def lend(self) -> None:
        """What is sent from now on lies in another vector."""
        self._hops.clear()

    def paths_in_use(self) -> tuple[str, ...]:
        """What the links to parent and children run over."""
        here = self._place.here
        return tuple(self._links[peer].path for peer in here.neighbours if self._links.get(peer)) if here else ()

    # -- what goes out -------------------------------------------------------------------------------------------

    def drain(self) -> list[fx.Effect]:
        """All that is wanted by now. What goes over a link without a connection is wrapped for its tunnel."""
        self.wrap()
        out = list(self._effects)
        self._effects.clear()
        return out

    def wrap(self) -> None:
        """What is wanted by now goes the ways that there are by now: some tunnels are about to be forgotten."""
        out: list[fx.Effect] = []
        for effect in self._effects:
            if type(effect) is fx.Send and (link := self._links.get(effect.peer)) is not None:
                link.wrote(self._place.now)
                if link.tunnel is not None and not link.direct and type(effect.frame) is not Via:
                    for wrapped in self.paths.wrapped(effect, link.tunnel):
                        if type(wrapped) is fx.Send and type(effect.frame) is Reduce:
                            self._hops.setdefault(effect.peer, set()).add(wrapped.peer)
                        out.append(wrapped)
                    continue
            out.append(effect)
        self._effects[:] = out
