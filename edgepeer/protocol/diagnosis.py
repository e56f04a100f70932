"""Why nothing goes on: all that decides what a peer does next, for people to read."""

from __future__ import annotations

from typing import Any

from edgepeer.ids import PeerId
from edgepeer.protocol.links import Link
from edgepeer.protocol.parts import Parts
from edgepeer.topology.view import View

__all__ = ["diagnose"]


def diagnose(of: Parts, now: float) -> dict[str, Any]:
    """One peer as it stands, as JSON has it. Times are seconds ago, or seconds that are left."""
    membership, view = of.membership, of.membership.view
    return {
        "peer": of.id,
        "life": membership.me.incarnation,
        "view": _view(view),
        "coordinator": membership.coordinator,
        "leaving": membership.leaving,
        "settled": membership.settled,
        "hint": _view(of.outside.hint),
        "waits": membership.waits,
        "lost": sorted(membership.lost(now)),
        "barred": membership.barred(now),
        "there": sorted(of.succession.there),
        "promised": of.succession.promised,
        "accepted": of.succession.accepted[0] if of.succession.accepted is not None else None,
        "proposed": of.succession.proposed,
        "orphan": of.vitals.orphan,
        "announced": {
            peer: member.incarnation for peer in of.rolls.order if (member := of.rolls.announced(peer)) is not None
        },
        "round": of.allreduce.progress(now),
        "missing": of.allreduce.missing(),
        "state": of.neighbours.progress(now),
        "links": {peer: _link(link, view, now) for peer, link in of.links.all()},
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
