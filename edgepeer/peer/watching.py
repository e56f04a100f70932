"""What changes around a peer, told as it happens: views and links, to its log and to whoever asks for the status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from edgepeer.fabric.documents import MAX_LINKS, LinkEntry, LinkReport
from edgepeer.peer.api import Peer
from edgepeer.protocol.links import LinkState
from edgepeer.topology.view import View

__all__ = ["Watch"]

_log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
"""Links are looked at, and a change of theirs is published, at most this often."""
_RTT_CHANGED: Final = 2.0  # by which factor, to be worth saying
_RTT_FLOOR_S: Final = 0.001


class Watch:
    """Of one peer, for as long as `run` runs."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._view: View | None = None
        self._known: dict[str, tuple[str, str]] = {}
        self._said: LinkReport | None = None

    async def run(self) -> None:
        """Until cancelled, or the peer has left."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_views())
            tasks.create_task(self._watch_links())

    async def _watch_views(self) -> None:
        async for view in self._peer.views():
            self.see_view(view)

    async def _watch_links(self) -> None:
        while True:
            self.see_links(self._peer.links, self._peer.waits, self._peer.shape)
            await asyncio.sleep(EVERY_S)

    def see_view(self, view: View) -> None:
        """Tell of a new view."""
        before = set(self._view.ids) if self._view is not None else set()
        joined, left = sorted(set(view.ids) - before), sorted(before - set(view.ids))
        why = self._view.why if self._view is not None else ""
        self._view = view
        _log.info(
            "view %d of generation %s: %d peers, coordinator %s%s%s%s",
            view.epoch,
            view.generation,
            view.size,
            view.coordinator,
            _listed("; in: ", joined),
            _listed("; out: ", left),
            f"; {view.why}" if view.why and view.why != why else "",
            extra={
                "fields": {
                    "generation": str(view.generation),
                    "epoch": view.epoch,
                    "size": view.size,
                    "coordinator": view.coordinator,
                    "run": view.run,
                    "joined": joined,
                    "left": left,
                }
            },
        )

    def see_links(self, states: tuple[LinkState, ...], waits: str = "", shape: str = "") -> None:
        """Tell of links that have come or gone, or run over something else, of what is in the fleet's way, and why its
        trees are as they are."""
        ours = [state for state in states if state.role != "other"]
        now: dict[str, tuple[str, str]] = {s.peer: (s.role, s.path if s.up and s.path else "down") for s in ours}
        for peer in sorted({*self._known, *now}):
            old, new = self._known.get(peer), now.get(peer)
            if old != new:
                self._tell(peer, old, new)
        self._known = now
        entries = tuple(
            LinkEntry(peer=s.peer, role=s.role, up=s.up, path=s.path, rtt_s=s.rtt_s)
            for s in ours[:MAX_LINKS]
            if s.role != "other"
        )
        said = self._said
        if said is None or (said.waits, said.shape) != (waits, shape) or _differ(said.links, entries):
            self._said = LinkReport(peer=self._peer.id, links=entries, waits=waits, shape=shape)
            fabric = self._peer.fabric
            fabric.publish_retained(fabric.topics.links(self._peer.id), self._said)

    def _tell(self, peer: str, old: tuple[str, str] | None, new: tuple[str, str] | None) -> None:
        role, path = new or old or ("", "")
        was = old[1] if old is not None else "none"
        path = path if new is not None else "none"
        _log.info(
            "link with %s %s: %s, was %s%s",
            role,
            peer,
            path,
            was,
            f" as {old[0]}" if old is not None and old[0] != role else "",  # all that is new may be the role
            extra={"fields": {"neighbour": peer, "role": role, "path": path, "was": was}},
        )


def _differ(said: tuple[LinkEntry, ...], now: tuple[LinkEntry, ...]) -> bool:
    if [(e.peer, e.role, e.up, e.path) for e in said] != [(e.peer, e.role, e.up, e.path) for e in now]:
        return True
    return any(_moved(old.rtt_s, new.rtt_s) for old, new in zip(said, now, strict=True))


def _moved(old: float | None, new: float | None) -> bool:
    if old is None or new is None:
        return old is not new
    low, high = sorted((max(old, _RTT_FLOOR_S), max(new, _RTT_FLOOR_S)))
    return high > _RTT_CHANGED * low


def _listed(what: str, peers: Sequence[str]) -> str:
    if not peers:
        return ""
    return what + ", ".join(peers[:8]) + (f" and {len(peers) - 8} more" if len(peers) > 8 else "")
