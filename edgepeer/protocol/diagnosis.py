"""Why nothing goes on: all that decides what a peer does next, for people to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgepeer.ids import PeerId
from edgepeer.protocol.links import Link
from edgepeer.topology.view import View

if TYPE_CHECKING:
    from edgepeer.protocol.node import Node

__all__ = ["diagnose"]


def diagnose(node: Node, now: float) -> dict[str, Any]:
    """One peer as it stands, as JSON has it. Times are seconds ago, or seconds that are left."""
    membership, view = node.membership, node.view
    return {
        "peer": node.id,
        "life": membership.me.incarnation,
        "view": _view(view),
        "coordinator": membership.coordinator,
        "leaving": membership.leaving,
        "settled": membership.settled,
        "hint": _view(node.outside.hint),
        "waits": membership.waits,
        "lost": sorted(membership.lost(now)),
        "barred": membership.barred(now),
        "there": sorted(node.succession.there),
        "promised": node.succession.promised,
        "accepted": node.succession.accepted[0] if node.succession.accepted is not None else None,
        "proposed": node.succession.proposed,
        "orphan": node.vitals.orphan,
        "announced": {
            peer: member.incarnation for peer in node.rolls.order if (member := node.rolls.announced(peer)) is not None
        },
        "round": node.allreduce.progress(now),
        "missing": node.allreduce.missing(),
        "state": node.neighbours.progress(now),
        "links": {peer: _link(link, view, now) for peer, link in node.links.all()},
    }


def _view(view: View | None) -> dict[str, Any] | None:
    if view is None:
        return None
    members = {member.id: member.incarnation for member in view.members}
    return {"epoch": view.epoch, "stamp": view.stamp, "members": members, "run": view.run, "next": view.first_round}


def _link(link: Link, view: View | None, now: float) -> dict[str, Any]:
    sync = link.sync
    return {
        "role": link.role if link.member is not None else "",
        "path": link.path,
        "life": link.life,
        "since": round(now - (link.since if link.up else link.down_since), 3),
        "heard": round(now - link.alive_at, 3),
        "dialing": link.dialing,
        "refused": link.refused,
        "cleared": link.cleared,
        "orphan": link.orphan,
        "waiting": link.waiting,
        "reaches": _names(link.reaches, view),
        "sync": (sync.epoch, sync.run, sync.committed) if sync is not None else None,
        "told": link.told,
    }


def _names(positions: int, view: View | None) -> tuple[PeerId, ...]:
    return view.names(positions) if view is not None else ()
