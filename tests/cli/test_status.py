"""What `edgepeer status` says of a job's peers, and of links."""

from __future__ import annotations

from typing import Any

import pytest

from edgepeer.cli.status import status_fields, status_lines
from edgepeer.fabric.documents import LinkEntry, LinkReport, PeerReport, Presence
from edgepeer.fabric.events import Answered, JobSeen, LinksSeen, PresenceGone, PresenceSeen, ViewSeen
from edgepeer.following.picture import Picture
from edgepeer.ids import PeerId
from edgepeer.topology.view import Member, View
from edgepeer.training.job import Job


def test_peers_say_what_round_they_are_at() -> None:
    picture = Picture()
    picture.job = Job(id="j1", trainer="numpy")
    for report in (
        PeerReport(job="j1", peer="ash", state="running", round=70),
        PeerReport(job="j1", peer="birch", state="done", round=200),
        PeerReport(job="j1", peer="cedar", state="failed", round=7, error="no\nmemory"),
        PeerReport(job="j1", peer="daisy", state="starting"),
        PeerReport(job="j1", peer="elm", state="running", round=20),
    ):
        picture.reports[report.job, report.peer] = report
    for name in ("ash", "birch", "cedar"):
        picture.take(PresenceSeen(Presence(id=name, incarnation=1, addresses=())))
    fields = status_fields(picture, fabric="lab", broker="mqtt://b")
    assert [report["round"] for report in fields["job"]["reports"].values()] == [70, 200, 7, None, 20]
    assert status_lines(fields)[1:7] == [
        "job j1: mlp on digits, numpy, 200 rounds",
        "  ash running, round 70",
        "  birch done, round 200",
        "  cedar failed, round 7: no memory",
        "  daisy starting, gone",
        "  elm running, round 20, gone",
    ]


def test_a_job_that_this_build_cannot_read_is_not_taken_for_none() -> None:
    picture = Picture()
    for payload, said in (
        (b"\x81\xa1v\x07", "job: one that this build can't read (Job document of version 7; this build speaks 1)"),
        (None, "job: none"),
    ):
        picture.take(JobSeen(payload))
        fields = status_fields(picture, fabric="lab", broker="mqtt://b")
        assert fields["job"] is None
        assert bool(fields["unreadable_job"]) == (payload is not None)
        assert status_lines(fields)[1] == said


def test_a_job_that_the_broker_has_yet_to_hear_of_is_not_taken_for_none() -> None:
    picture = Picture()
    picture.take(ViewSeen(View(epoch=1, members=(Member(id="ash", incarnation=1),), run="c0ffee0000000001")))
    for event, untold, said in (
        (PresenceSeen(Presence(id="other", incarnation=1, addresses=())), "", "job: none"),
        (
            PresenceSeen(Presence(id="ash", incarnation=1, addresses=())),
            "c0ffee0000000001",
            "job: one that the broker has yet to hear of (c0ffee0000000001)",
        ),
        (JobSeen(None, "c0ffee0000000001"), "", "job: none"),
    ):
        picture.take(event)
        fields = status_fields(picture, fabric="lab", broker="mqtt://b")
        assert (fields["job"], fields["untold_job"]) == (None, untold)
        assert status_lines(fields)[1] == said


def test_peers_of_a_split_job_say_what_they_hold() -> None:
    picture = Picture()
    picture.job = Job(id="j1", trainer="numpy", split="none:m=1,n=2")
    for report in (
        PeerReport(job="j1", peer="ash", state="running", held_bytes=1200, cell=1),
        PeerReport(job="j1", peer="birch", state="done", round=200, held_bytes=1200, cell=0),
        PeerReport(job="j1", peer="cedar", state="running"),
    ):
        picture.reports[report.job, report.peer] = report
        picture.take(PresenceSeen(Presence(id=report.peer, incarnation=1, addresses=())))
    fields = status_fields(picture, fabric="lab", broker="mqtt://b")
    assert [report["held_bytes"] for report in fields["job"]["reports"].values()] == [1200, 1200, 0]
    assert [report["cell"] for report in fields["job"]["reports"].values()] == [1, 0, -1]
    assert status_lines(fields)[2:5] == [
        "  ash running, node 1, holds 1200 bytes",
        "  birch done, round 200, node 0, holds 1200 bytes",
        "  cedar running, holds nothing",
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"precision": "int8"}, "mlp on digits, numpy, 100 rounds, int8"),
        ({"code": "cyclic:s=1"}, "mlp on digits, numpy, 100 rounds, code cyclic:s=1"),
        ({"split": "none:m=1,n=2"}, "mlp on digits, numpy, 100 rounds, split none:m=1,n=2"),
        ({"model_config": "{}"}, "Keras model on digits, numpy, 100 rounds"),
    ],
)
def test_a_job_says_what_is_unusual_about_it(fields: dict[str, str], said: str) -> None:
    picture = Picture()
    picture.job = Job(id="j1", trainer="numpy", rounds=100, **fields)  # type: ignore[arg-type]
    assert status_lines(status_fields(picture, fabric="lab", broker="mqtt://b"))[1] == f"job j1: {said}"


def test_links_are_shown_with_the_peers_that_are_there() -> None:
    picture = Picture()
    picture.take(PresenceSeen(Presence(id="ash", incarnation=1, addresses=("h:1",))))
    for name in ("ash", "gone"):
        picture.take(
            LinksSeen(
                LinkReport(
                    peer=name,
                    links=(
                        LinkEntry(peer="birch", role="parent", up=True, path="direct", rtt_s=0.00042),
                        LinkEntry(peer="cedar", role="child", up=True, path="via birch", rtt_s=0.0123),
                        LinkEntry(peer="daisy", role="backup", up=False, rtt_s=0.5),
                        LinkEntry(peer="elm", role="backup", up=True, path="relay"),
                    ),
                )
            )
        )
    fields = status_fields(picture, fabric="lab", broker="mqtt://b")
    (ash,) = fields["peers"]
    assert ash["links"][1] == {"peer": "cedar", "role": "child", "up": True, "path": "via birch", "rtt_s": 0.0123}
    assert status_lines(fields)[3:5] == [
        "  ash at h:1, not in the view",
        "    links: parent birch direct 0.4 ms; child cedar via birch 12.3 ms; backup daisy down; backup elm relay",
    ]


def test_the_trees_are_shown_and_why_they_are_as_they_are() -> None:
    """As the view says, or else whoever is at its head; what others find counts for nothing."""
    members = tuple(Member(id=name, incarnation=1) for name in ("ash", "birch", "cedar", "daisy", "elm"))
    chosen = (
        "3 lanes of fan-out 2, leaves only elm: 11.8 MB/s, 10 ms: 0.38 s a round against 0.56 s by 1 lane of fan-out 2"
    )
    found = "1 lane of fan-out 2: 800 MB/s, 0.1 ms: 30 ms a round, and nothing is found that is much faster"

    def shown(view: View) -> tuple[Any, list[str]]:
        picture = Picture()
        picture.take(ViewSeen(view))
        for member in members:
            picture.take(PresenceSeen(Presence(id=member.id, incarnation=1, addresses=())))
            picture.take(
                LinksSeen(LinkReport(peer=member.id, links=(), shape=found if member.id == "ash" else "other"))
            )
        fields = status_fields(picture, fabric="lab", broker="mqtt://b")
        lines = status_lines(fields)
        return fields["view"], lines[next(at for at, line in enumerate(lines) if line.startswith("view: ")) :]

    view, lines = shown(View(epoch=4, members=members, lanes=3, leaves=1, why=chosen))
    assert (view["fanout"], view["lanes"], view["leaves"], view["why"]) == (2, 3, ("elm",), chosen)
    assert lines[0].endswith("epoch 4, fan-out 2, 3 lanes, 5 members")
    assert lines[1:] == [f"  shape: {chosen}"]
    view, lines = shown(View(epoch=1, members=members))
    assert (view["lanes"], view["leaves"], view["why"]) == (1, (), found)
    assert lines[0].endswith("epoch 1, fan-out 2, 1 lane, 5 members")
    assert lines[1:] == [f"  shape: {found}"]


def test_who_is_announced_and_does_not_answer_is_named_and_not_counted() -> None:
    picture = Picture()
    view = View(epoch=7, members=(Member(id="ash", incarnation=1), Member(id="birch", incarnation=1)))
    picture.take(ViewSeen(view))
    for name in ("ash", "birch"):
        picture.take(PresenceSeen(Presence(id=name, incarnation=1, addresses=(f"{name}:1",))))
    assert picture.unheard == {"ash", "birch"}
    picture.take(Answered(PeerId("ash")))
    picture.doubt()
    fields = status_fields(picture, fabric="lab", broker="mqtt://b")
    assert [peer["id"] for peer in fields["peers"]] == ["ash"]
    assert fields["silent"] == {"birch": ("birch:1",)}
    assert fields["view"]["members"] == ("ash", "birch")
    assert status_lines(fields)[2:] == [
        "peers: 1",
        "  ash at ash:1",
        "announced, but silent: birch at birch:1",
        "view: generation 1-00000000, epoch 7, fan-out 2, 1 lane, 2 members",
    ]
    picture.take(PresenceGone(PeerId("ash")))
    fields = status_fields(picture, fabric="lab", broker="mqtt://b")
    assert fields["view"] is None  # nobody of it is there
    assert status_lines(fields)[2:] == ["peers: 0", "announced, but silent: birch at birch:1", "view: none"]


def test_a_terminal_obeys_nobody_in_the_fabric() -> None:
    picture = Picture()
    picture.job = Job(id="j1", trainer="numpy")
    evil = "\x1b]0;pwned\x07\nview: all is well"
    picture.take(PresenceSeen(Presence(id="ash", incarnation=1, addresses=(evil,))))
    picture.take(
        LinksSeen(
            LinkReport(peer="ash", links=(LinkEntry(peer="b", role="child", up=True, path=evil[:80]),), waits=evil)
        )
    )
    picture.reports["j1", "ash"] = PeerReport(job="j1", peer="ash", state="failed", error=evil)
    lines = status_lines(status_fields(picture, fabric="lab", broker="mqtt://b"))
    assert all(line.isprintable() for line in lines)
    assert r"    waits: \x1b]0;pwned\x07\nview: all is well" in lines
    assert lines[-1] == "view: none"


def test_documents_that_do_not_count_are_named() -> None:
    picture = Picture()
    picture.refused = {"edgepeer/v1/lab/peer/p7: signed by peer p8 of lab, on another's topic": 3, "x: y": 1}
    fields = status_fields(picture, fabric="lab", broker="mqtts://b")
    assert fields["refused"] == picture.refused
    assert status_lines(fields)[3:5] == [
        "refused: edgepeer/v1/lab/peer/p7: signed by peer p8 of lab, on another's topic (3 times)",
        "refused: x: y",
    ]
    picture.refused = {f"topic {number}: malformed": 1 for number in range(300)}
    lines = status_lines(status_fields(picture, fabric="lab", broker="mqtts://b"))
    assert [line for line in lines if line.startswith("refused: ")][9:] == [
        "refused: topic 9: malformed", "refused: 290 more kinds (--json has them)",
    ]  # fmt: skip
