"""`edgepeer status`: the peers of a fabric, their links, their view and tree, and the current job."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from edgepeer.cli.signals import run as run_async
from edgepeer.cli.verb import Verb
from edgepeer.ids import PeerId
from edgepeer.printable import one_line, plain_json
from edgepeer.settings import StatusSettings

if TYPE_CHECKING:
    from edgepeer.fabric.address import BrokerAddress
    from edgepeer.fabric.events import FabricEvent
    from edgepeer.following.picture import Picture
    from edgepeer.topology.view import View

__all__ = ["VERB", "command", "plain_tree", "status_fields", "status_lines"]

_MOST_REFUSED: Final = 10
"""More lines of that would scroll away who is there."""


def run(settings: StatusSettings) -> int:
    """Look once, and print."""
    from edgepeer.fabric.address import BrokerAddress

    broker = BrokerAddress.parse(settings.broker)
    picture = run_async(_look(settings, broker))
    fields = status_fields(picture, fabric=settings.fabric, broker=str(broker))
    if settings.json:
        import msgspec

        print(plain_json(msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()))
    elif sys.stdout.isatty():
        _print_pretty(picture, fields)
    else:
        print(
            "\n".join([*status_lines(fields), *(plain_tree(picture.view) if fields["view"] and picture.view else ())])
        )
    return 0


async def _look(settings: StatusSettings, broker: BrokerAddress) -> Picture:
    from edgepeer.enrol.keeping import kept
    from edgepeer.fabric.topics import Group
    from edgepeer.following.observe import observe, question
    from edgepeer.following.picture import Picture
    from edgepeer.trust.loading import load_trust

    identity = load_trust(settings.fleet)
    picture, news = Picture(), asyncio.Event()

    def take(event: FabricEvent) -> None:
        picture.take(event)
        news.set()

    look = observe(broker, settings.fabric, take, interests=Group.KEPT, timeout=settings.timeout, identity=identity)
    async with kept(identity), look as client:
        await question(client, picture, news)
        picture.refused = dict(client.refusals)
        return picture


def status_fields(picture: Picture, *, fabric: str, broker: str) -> dict[str, Any]:
    """The fabric as `--json` prints it: plain values by name."""
    view, job = picture.view, picture.job
    return {
        "fabric": fabric,
        "broker": broker,
        "peers": [
            {
                "id": peer.id,
                "incarnation": peer.incarnation,
                "addresses": peer.places,
                "version": peer.version,
                "started": peer.started,
                "links": _links(picture, peer.id),
                "waits": report.waits if (report := picture.links.get(peer.id)) is not None else "",
            }
            for _, peer in sorted(picture.peers.items())
        ],
        "refused": dict(picture.refused),
        "silent": {peer: presence.places for peer, presence in sorted(picture.silent.items())},
        "view": None
        if view is None or picture.deserted
        else {
            "generation": str(view.generation),
            "epoch": view.epoch,
            "coordinator": view.coordinator,
            "fanout": view.fanout,
            "lanes": view.trees,
            "leaves": view.ids[view.size - view.leaves :],
            "why": view.why or (found.shape if (found := picture.links.get(view.coordinator)) is not None else ""),
            "members": view.ids,
        },
        "unreadable_job": picture.unreadable,
        "untold_job": picture.run,
        "job": None
        if job is None
        else {
            **{name: getattr(job, name) for name in job.__struct_fields__ if name != "model_config"},
            "model_name": job.model_name,
            "reports": {
                # Of a peer that works it is at most some seconds old, or its rounds take longer.
                peer: {
                    "state": report.state,
                    "round": report.round or None,
                    "error": report.error,
                    "present": peer in picture.peers,
                    "diverged": report.diverged or None,
                    **({"held_bytes": report.held_bytes, "cell": report.cell} if job.split else {}),
                }
                for peer, report in picture.reports_of(job.id).items()
            },
        },
    }


def _links(picture: Picture, peer: str) -> list[dict[str, Any]]:
    report = picture.links.get(peer)
    return [
        {"peer": link.peer, "role": link.role, "up": link.up, "path": link.path, "rtt_s": link.rtt_s}
        for link in (report.links if report is not None else ())
    ]


def _link_words(link: dict[str, Any]) -> str:
    path = link["path"] if link["up"] and link["path"] else "down"
    rtt = f" {1000 * link['rtt_s']:.1f} ms" if link["up"] and link["rtt_s"] is not None else ""
    return f"{link['role']} {link['peer']} {path}{rtt}"


def _holding(report: dict[str, Any]) -> str:
    """What a peer of a split job stores."""
    if "held_bytes" not in report or report["state"] == "failed":
        return ""
    return f", node {report['cell']}, holds {report['held_bytes']} bytes" if report["cell"] >= 0 else ", holds nothing"


def status_lines(fields: dict[str, Any]) -> list[str]:
    """The same for people, without the tree."""
    return [one_line(line) for line in _lines(fields)]


def _lines(fields: dict[str, Any]) -> list[str]:
    lines = [f"fabric {fields['fabric']} at {fields['broker']}"]
    view, job = fields["view"], fields["job"]
    if job is None:
        unreadable, untold = fields["unreadable_job"], fields["untold_job"]
        why = f"this build can't read ({unreadable})" if unreadable else f"the broker has yet to hear of ({untold})"
        lines.append(f"job: one that {why}" if unreadable or untold else "job: none")
    else:
        what = [f"{job['model_name']} on {job['dataset']}", job["trainer"], f"{job['rounds']} rounds"]
        what += [f"code {job['code']}"] if job["code"] != "none" else []
        what += [f"split {job['split']}"] if job["split"] else []
        what += [job["precision"]] if job["precision"] != "float32" else []
        lines.append(f"job {job['id']}: {', '.join(what)}")
        for peer, report in job["reports"].items():
            error = f": {' '.join(report['error'].split())}" if report["error"] else ""
            at = f", round {report['round']}" if report["round"] is not None else ""
            if report["state"] in ("starting", "running") and not report["present"]:
                at += ", gone"
            if report["diverged"] is not None:
                at += f", diverged in round {report['diverged']}"
            lines.append(f"  {peer} {report['state']}{at}{_holding(report)}{error}")
    members = set() if view is None else set(view["members"])
    lines.append(f"peers: {len(fields['peers'])}")
    for peer in fields["peers"]:
        where = ", ".join(peer["addresses"]) or "no address"
        lines.append(f"  {peer['id']} at {where}{'' if peer['id'] in members else ', not in the view'}")
        if peer["links"]:
            lines.append(f"    links: {'; '.join(map(_link_words, peer['links']))}")
        if peer["waits"]:
            lines.append(f"    waits: {peer['waits']}")
    for peer, addresses in fields["silent"].items():
        lines.append(f"announced, but silent: {peer} at {', '.join(addresses) or 'no address'}")
    for reason, count in islice(fields["refused"].items(), _MOST_REFUSED):
        lines.append(f"refused: {reason}{f' ({count} times)' if count > 1 else ''}")
    if (more := len(fields["refused"]) - _MOST_REFUSED) > 0:
        lines.append(f"refused: {more} more kinds (--json has them)")
    if view is None:
        lines.append("view: none")
    else:
        count = len(view["members"])
        lanes = f"{view['lanes']} lane{'s' * (view['lanes'] != 1)}"
        where = f"generation {view['generation']}, epoch {view['epoch']}, fan-out {view['fanout']}, {lanes}"
        lines.append(f"view: {where}, {count} member{'s' * (count != 1)}")
        if view["why"]:
            lines.append(f"  shape: {view['why']}")
    return lines


def plain_tree(view: View) -> list[str]:
    """The tree, a peer a line, children indented under their parent."""

    def below(peer: PeerId, depth: int) -> Iterator[str]:
        yield "  " * (depth + 1) + peer
        for child in view.children(peer):
            yield from below(child, depth + 1)

    return list(below(view.coordinator, 0))


def _print_pretty(picture: Picture, fields: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from edgepeer.following.panels import peer_tree

    def label(peer: str) -> Text:
        if peer in picture.peers:
            return Text.assemble(("● ", "green"), peer)
        return Text.assemble(("○ ", "red"), peer, ("  not in the fabric", "red"))

    console = Console(highlight=False)
    for line in status_lines(fields):
        console.print(line, markup=False, style="" if line.startswith(" ") else "bold", soft_wrap=True)
    if picture.view is not None and fields["view"]:
        console.print(Padding(peer_tree(picture.view, label), (0, 0, 0, 2)))


VERB = Verb(
    kind=StatusSettings,
    about="Show a fabric's peers, links, view, tree and job.",
    examples=[
        ("the fabric on this machine", "edgepeer status"),
        ("another one", "edgepeer status --broker mqtt://broker.local --fabric greenhouse"),
        ("for a script: how many peers are in?", "edgepeer status --json | jq '.peers | length'"),
    ],
    run=run,
)
command = VERB.command
