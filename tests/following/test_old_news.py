"""What a broker still knew when it came back does not end the following of a job that goes on. In virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from told import Told
from virtual_loop import Attentive, VirtualLoop

from edgepeer.fabric.connection import ECHO_S
from edgepeer.fabric.events import Connected, Disconnected, FabricEvent, JobSeen, Synced
from edgepeer.following.follow import Follower
from edgepeer.following.observe import BACK_WITHIN_S
from edgepeer.following.progress import JobProgress
from edgepeer.peer.said_again import said_again
from edgepeer.simulation.clock import Clock
from edgepeer.training.job import Job
from edgepeer.wire.documents import pack

LONG_S = BACK_WITHIN_S + ECHO_S + 1.0
JOB = msgspec.structs.replace(Told.job, created=200.0)
OURS, NONE = JobSeen(pack(JOB)), JobSeen(None)
AGAIN = JobSeen(pack(said_again(JOB)))
OLDER = JobSeen(pack(Job(id="j0", created=100.0)))
OLDER_AGAIN = JobSeen(pack(said_again(Job(id="j0", created=100.0))))
LATER = JobSeen(pack(Job(id="j2", created=300.0)))


class Following:
    def __init__(self, *, in_order: bool = False) -> None:
        self.progress = JobProgress(JOB, broker="")
        self.follower = Follower(self.progress, lambda _: None, in_order=in_order)
        self.clock = Clock()
        self.loop = VirtualLoop(self.clock, Attentive())
        self.hear(Connected(), Synced(), OURS)

    def hear(self, *events: FabricEvent) -> None:
        with self.loop.running():
            for event in events:
                self.follower.take(event)

    def wait(self, seconds: float) -> None:
        self.clock.run(until=lambda: False, limit_s=seconds)

    @property
    def over(self) -> bool:
        assert self.progress.withdrawn == self.follower.withdrawn.is_set()
        return self.progress.withdrawn


@pytest.fixture
def following() -> Iterator[Following]:
    made = Following()
    yield made
    made.loop.end()


@pytest.mark.parametrize("old", [OLDER, NONE], ids=["an older job", "that there is none"])
@pytest.mark.parametrize("corrected", [OURS, AGAIN])
def test_what_a_broker_had_kept_is_put_right_by_the_peers(
    following: Following, old: JobSeen, corrected: JobSeen
) -> None:
    following.hear(Disconnected("gone"), Connected(), old)
    following.wait(60.0)  # it is slow to tell all that it keeps
    following.hear(Synced())
    following.wait(BACK_WITHIN_S)
    assert not following.over
    following.hear(corrected)
    following.wait(LONG_S)
    assert not following.over


@pytest.mark.parametrize("old", [OLDER, NONE], ids=["an older job", "that there is none"])
def test_if_nobody_does_it_is_so(following: Following, old: JobSeen) -> None:
    """Its beginner's clock was slow, and the peers have gone on to it."""
    following.hear(Disconnected("gone"), Connected(), old, Synced())
    following.wait(BACK_WITHIN_S)
    assert not following.over
    following.wait(LONG_S)
    assert following.over


def test_what_is_heard_in_the_next_connection_counts_instead(following: Following) -> None:
    following.hear(Disconnected("gone"), Connected(), OLDER, Synced(), Disconnected("gone again"))
    following.wait(LONG_S)
    following.hear(Connected(), OURS, Synced())
    following.wait(LONG_S)
    assert not following.over


@pytest.mark.parametrize("told", [LATER, JobSeen(None, "j1")], ids=["a later job", "that ours is over"])
def test_what_can_not_be_of_before_counts_at_once(following: Following, told: JobSeen) -> None:
    following.hear(Disconnected("gone"), Connected(), told)
    assert following.over


@pytest.mark.parametrize("told", [OLDER, NONE], ids=["another job", "that there is none"])
def test_what_is_said_now_counts_whatever_clocks_say(following: Following, told: JobSeen) -> None:
    following.hear(Disconnected("gone"), Connected(), OURS, Synced(), told)
    assert following.over


@pytest.mark.parametrize("told", [OLDER, NONE], ids=["another job", "that there is none"])
def test_what_comes_in_order_counts_at_once(told: JobSeen) -> None:
    following = Following(in_order=True)
    following.hear(Disconnected("gone"), Connected(), told)
    assert following.over
    following.loop.end()


def test_what_a_device_says_of_an_older_job_it_may_say_crosswise(following: Following) -> None:
    following.hear(OLDER_AGAIN)
    following.wait(BACK_WITHIN_S)
    assert not following.over
    following.hear(AGAIN)
    following.wait(LONG_S)
    assert not following.over


def test_what_was_doubted_to_the_end_changes_nothing_behind_it(following: Following) -> None:
    following.hear(Disconnected("gone"), Connected(), OLDER, Synced())
    following.follower.close()
    following.wait(LONG_S)
    assert not following.over
