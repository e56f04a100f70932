"""Why nothing goes on: all that decides what a peer does next, for people to read."""

from __future__ import annotations

from typing import Any

from edgepeer.ids import PeerId
from edgepeer.protocol.course import Course
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
        "round": _round(of.course, now),
        "missing": of.course.missing(),
        "state": of.neighbours.progress(now),
        "links": {peer: _link(link, view, now) for peer, link in of.links.all()},
    }


def _view(view: View | None) -> dict[str, Any] | None:
    if view is None:
        return None
    members = {member.id: member.incarnation for member in view.members}
    return {"epoch": view.epoch, "stamp": view.stamp, "members": members, "run": view.run, "next": view.first_round}


def _round(course: Course, now: float) -> dict[str, Any]:
    """How far the round in progress is."""
    place, rd, closed = course.place, course.round, course.closing.closed
    here, lane = place.here, rd.lane
    return {
        "run": place.run,
        "committed": place.committed,
        "loading": place.loading,
        "at": dict(sorted(here.at.items())) if here is not None else {},
        "stage": rd.stage.value,
        "mine": rd.brings.waits,
        "since": now - rd.brings.since if rd.brings.waits else None,
        "up": {
            peer: {"of": stream.expected, "received": stream.received, "held": stream.held is not None}
            for peer, stream in lane.streams.items()
        },
        "reduced": lane.reduced,
        "sent_up": lane.sent_up,
        "down": lane.result.received,
        "from": lane.result_from,
        "sent_down": dict(sorted(lane.sent_down.items())),
        "parts": {
            number: {
                "parent": part.edges.parent,
                "up": {peer: stream.received for peer, stream in part.streams.items()},
                "reduced": part.reduced,
                "sent_up": part.sent_up,
                "down": part.result.received,
                "verified": part.verified,
            }
            for number, part in rd.parts.items()
            if number
        },
        "held": rd.held is not None,
        "prior": rd.prior.commit.held_in if rd.prior is not None else None,
        "decided": rd.decided,
        "haves": sorted(rd.haves),
        "have_sent": rd.have_sent,
        "abort": rd.abort_wanted,
        "closed": closed.done if closed is not None else None,
    }


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
