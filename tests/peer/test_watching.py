"""Views and links are told of when they change, and only then."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edgepeer.cli.logs import setup_logging
from edgepeer.fabric.documents import MAX_LINKS, LinkReport
from edgepeer.fabric.topics import Topics
from edgepeer.ids import PeerId
from edgepeer.peer.watching import Watch
from edgepeer.protocol.links import LinkState
from edgepeer.protocol.tunnel import MOST_HOPS, Tunnel
from edgepeer.topology.view import Member, View


class Fabric:
    """Takes what would be published."""

    def __init__(self) -> None:
        self.topics = Topics("lab")
        self.published: list[LinkReport] = []

    def publish_retained(self, topic: str, document: LinkReport) -> None:
        assert topic == "edgepeer/v1/lab/links/a"
        self.published.append(document)


@pytest.fixture
def fabric() -> Fabric:
    return Fabric()


@pytest.fixture
def watch(fabric: Fabric, caplog: pytest.LogCaptureFixture) -> Watch:
    caplog.set_level(logging.INFO, logger="edgepeer")
    peer: Any = SimpleNamespace(id="a", fabric=fabric)
    return Watch(peer)


def link(
    peer: str, path: str = "direct", *, role: Any = "child", up: bool = True, rtt_s: float | None = 0.004
) -> LinkState:
    return LinkState(peer=PeerId(peer), role=role, up=up, path=path, rtt_s=rtt_s)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


def test_a_link_is_told_of_when_it_changes(watch: Watch, fabric: Fabric, caplog: pytest.LogCaptureFixture) -> None:
    watch.see_links((link("b"),))
    assert told(caplog) == ["link with child b: direct, was none"]
    watch.see_links((link("b", rtt_s=0.005),))
    assert told(caplog) == []
    assert len(fabric.published) == 1
    watch.see_links((link("b", "via c"),))
    assert caplog.records[0].__dict__["fields"] == {
        "neighbour": "b",
        "role": "child",
        "path": "via c",
        "was": "direct",
    }
    assert told(caplog) == ["link with child b: via c, was direct"]
    watch.see_links((link("b", "", up=False), link("d", role="other")))
    assert told(caplog) == ["link with child b: down, was via c"]
    watch.see_links(())
    assert told(caplog) == ["link with child b: none, was down"]
    assert [[(each.peer, each.up, each.path) for each in report.links] for report in fabric.published] == [
        [("b", True, "direct")],
        [("b", True, "via c")],
        [("b", False, "")],
        [],
    ]


def test_a_neighbour_that_becomes_another_is_told_of_as_such(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """The path may be what it was: then all that is new is the role."""
    watch.see_links((link("b", role="backup"),))
    assert told(caplog) == ["link with backup b: direct, was none"]
    watch.see_links((link("b"),))
    assert caplog.records[0].__dict__["fields"]["was"] == "direct"
    assert told(caplog) == ["link with child b: direct, was direct as backup"]


@pytest.mark.parametrize(
    ("before", "after", "worth_saying"),
    [(0.004, 0.007, False), (0.004, 0.009, True), (0.009, 0.004, True), (0.0001, 0.0009, False), (None, 0.1, True)],
)
def test_a_time_is_said_again_when_it_has_doubled(
    watch: Watch, fabric: Fabric, before: float | None, after: float, worth_saying: bool
) -> None:
    watch.see_links((link("b", rtt_s=before),))
    watch.see_links((link("b", rtt_s=after),))
    assert len(fabric.published) == 1 + worth_saying


def test_a_report_is_bounded(watch: Watch, fabric: Fabric) -> None:
    through = Tunnel(1, PeerId("w" * 63), 0.0, most=MOST_HOPS)
    for name in "xyz":
        through.go_also(PeerId(name * 63))
    assert len(through.hops) == MOST_HOPS
    watch.see_links(tuple(link(f"p{number}", through.path) for number in range(500)))
    (report,) = fabric.published
    assert len(report.links) == MAX_LINKS
    assert msgspec.convert(msgspec.to_builtins(report), LinkReport) == report


def test_what_the_fleet_waits_for_is_reported_until_it_is_over(watch: Watch, fabric: Fabric) -> None:
    for waits in ("", "too few", "too few", ""):
        watch.see_links((link("b"),), waits)
    assert [report.waits for report in fabric.published] == ["", "too few", ""]


def test_a_view_is_told_of(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    def view(epoch: int, *names: str) -> View:
        return View(epoch=epoch, members=tuple(Member(id=name, incarnation=1) for name in names), run="j1")

    watch.see_view(view(3, "a", "b"))
    watch.see_view(view(4, "b", "c"))
    assert caplog.records[1].__dict__["fields"] == {
        "generation": "1-00000000",
        "epoch": 4,
        "size": 2,
        "coordinator": "b",
        "run": "j1",
        "joined": ["c"],
        "left": ["a"],
    }
    assert told(caplog) == [
        "view 3 of generation 1-00000000: 2 peers, coordinator a; in: a, b",
        "view 4 of generation 1-00000000: 2 peers, coordinator b; in: c; out: a",
    ]


def test_the_facts_are_fields_of_the_json_line(watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", as_json=True)
    watch.see_links((link("b"),))
    line = msgspec.json.decode(capsys.readouterr().err)
    assert (line["level"], line["neighbour"], line["path"], line["was"]) == ("info", "b", "direct", "none")
    assert line["message"] == "link with child b: direct, was none"
