"""What is said of a job when its follower comes back to a broker."""

from __future__ import annotations

from typing import Any

import pytest

from edgepeer.fabric.events import Connected, FabricEvent, JobSeen, Synced
from edgepeer.fabric.topics import Topics
from edgepeer.following.announcing import Announcer
from edgepeer.following.picture import Picture
from edgepeer.training.job import Job
from edgepeer.wire.documents import pack

OURS = JobSeen(pack(Job(id="j1")))
OTHER = JobSeen(pack(Job(id="j2")))
NONE = JobSeen(None)


def over(job: str) -> JobSeen:
    return JobSeen(None, over=job)


class Client:
    """Of a broker that is somewhere else."""

    def __init__(self, *, in_fleet: bool = False, on_its_way: bool = False) -> None:
        self.in_fleet = in_fleet
        self.on_its_way = on_its_way
        self.topics = Topics("lab")
        self.said: list[str] = []

    def publish_retained(self, topic: str, document: Any) -> None:
        assert topic == self.topics.job
        self.said.append("nothing" if document is None else getattr(document, "id", "") or f"over {document.over}")

    def hold_back(self, topic: str) -> bool:
        if not self.on_its_way:
            self.said.append("held back")
        return not self.on_its_way

    def forget(self, topic: str) -> None:
        self.said.append("not signed anew")

    def is_said(self, topic: str) -> None:
        self.said.append("enough")

    def announce_again(self) -> bool:
        if self.in_fleet:
            self.said.append("what was signed last")
        return self.in_fleet


def said(*events: FabricEvent, before: JobSeen = NONE, in_fleet: bool = False) -> list[str]:
    """What is said of job j1, besides that it is there."""
    client, picture = Client(in_fleet=in_fleet), Picture()
    picture.take(before)
    announcer = Announcer(client, Job(id="j1"), picture)  # type: ignore[arg-type]
    assert client.said.pop() == "j1"
    for event in events:
        announcer.take(event)
    return client.said


def test_it_is_said_until_a_broker_has_it() -> None:
    assert said(over("old"), before=over("old")) == []
    assert said(OURS) == ["enough"]


@pytest.mark.parametrize("told", [OURS, NONE, OTHER, over("j1"), over("j0")])
def test_a_broker_that_knows_is_told_nothing(told: JobSeen) -> None:
    assert set(said(OURS, Connected(), told, Synced())) == {"enough"}


@pytest.mark.parametrize("before", [NONE, over("old"), JobSeen(pack(Job(id="old")))])
@pytest.mark.parametrize("in_fleet", [True, False])
def test_one_that_has_lost_its_memory_is_told_again(before: JobSeen, in_fleet: bool) -> None:
    """All of it, or what it had not written down. In a fleet what is signed anew counts more than what others said."""
    again = "what was signed last" if in_fleet else "j1"
    told = [] if before is NONE else [before]
    assert said(OURS, Connected(), *told, Synced(), before=before, in_fleet=in_fleet) == ["enough", again]


@pytest.mark.parametrize("events", [[OTHER], [Connected(), OTHER, Synced()]], ids=["at once", "meanwhile"])
@pytest.mark.parametrize("in_fleet", [True, False])
def test_who_comes_first_is_served_first(events: list[FabricEvent], in_fleet: bool) -> None:
    client = Client(in_fleet=in_fleet)
    announcer = Announcer(client, Job(id="j1"), Picture())  # type: ignore[arg-type]
    for event in events:
        announcer.take(event)
    assert (announcer.rival, client.said) == ("j2", ["j1", "held back"])


def test_what_comes_behind_another_replaces_it() -> None:
    client = Client(on_its_way=True)
    announcer = Announcer(client, Job(id="j1"), Picture())  # type: ignore[arg-type]
    for event in (OTHER, OURS, Synced()):
        announcer.take(event)
    assert (announcer.rival, client.said) == ("", ["j1", "enough"])


def test_in_a_fleet_it_gives_way_to_what_is_signed_later_and_that_is_put_in_its_place() -> None:
    client = Client(in_fleet=True, on_its_way=True)
    announcer = Announcer(client, Job(id="j1"), Picture())  # type: ignore[arg-type]
    for event in (OTHER, OTHER, Synced()):
        announcer.take(event)
    assert (announcer.rival, client.said) == ("j2", ["j1", "not signed anew", "what was signed last"])


def test_what_is_over_is_not_said_again() -> None:
    client = Client()
    announcer = Announcer(client, Job(id="j1"), Picture())  # type: ignore[arg-type]
    announcer.take(OURS)
    announcer.take_back()
    for event in (Connected(), OTHER, Synced(), Connected(), Synced()):
        announcer.take(event)
    assert [word for word in client.said if word != "enough"] == ["j1", "over j1"]
