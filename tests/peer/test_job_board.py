"""Which job counts, whatever a broker that was away says."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Sequence

import pytest

from edgepeer.peer.job_board import CORRECTIONS, JobBoard, Verdict
from edgepeer.peer.said_again import Again, said_again
from edgepeer.training.job import Job, new_job
from edgepeer.wire.documents import pack, unpack

OLD, NEW = new_job(id="old", created=100.0), new_job(id="new", created=200.0)


def board(*over: str) -> JobBoard:
    made = JobBoard(lambda job: job in over)
    made.connected()
    return made


def test_a_job_is_taken_once_and_given_up_when_it_is_taken_back() -> None:
    jobs = board()
    assert jobs.see(OLD) is Verdict.TAKEN
    jobs.synced()
    assert jobs.see(OLD) is Verdict.SAME
    assert jobs.see(None) is Verdict.TAKEN
    assert jobs.current is None
    assert jobs.see(None) is Verdict.SAME


def test_a_broker_is_behind_until_it_tells_what_counts() -> None:
    jobs = board()
    jobs.see(OLD)
    assert not jobs.behind
    for first in (None, OLD, "over"):  # which it told last, before it is told of the next
        jobs = board()
        jobs.see(OLD, by_peer=True)
        jobs.connected()
        if first == "over":
            jobs.see(None, over="older")
        elif first is not None:
            jobs.see(OLD)
        jobs.see(NEW, by_peer=True)
        assert not jobs.behind, "it has yet to tell all that it keeps"
        jobs.synced()
        assert jobs.behind
        jobs.see(NEW)
        assert not jobs.behind
        jobs.see(None, over="new", by_peer=True)
        assert jobs.behind
        jobs.see(None, over="new")
        assert not jobs.behind
        jobs.connected()
        jobs.synced()
        assert jobs.behind


def test_a_broker_whose_job_can_not_be_read_is_not_behind_where_there_is_none() -> None:
    jobs = board()
    jobs.unreadable()
    jobs.synced()
    assert not jobs.behind
    jobs.see(NEW, by_peer=True)
    assert jobs.behind


def test_nor_where_this_device_knows_an_older_one() -> None:
    """It may be a later build's: all would put what they know in its place, one after the other."""
    jobs = board()
    jobs.see(OLD)
    jobs.connected()
    jobs.unreadable()
    jobs.synced()
    assert not jobs.behind


def test_a_broker_that_is_told_of_none_has_yet_to_tell_which_is_over() -> None:
    jobs = board()
    jobs.synced()
    jobs.see(OLD)
    assert jobs.see(None) is Verdict.TAKEN
    assert jobs.behind
    jobs.see(None, over="old")
    assert not jobs.behind


def test_a_new_job_replaces_the_old_for_good() -> None:
    jobs = board()
    jobs.see(OLD)
    jobs.synced()
    assert jobs.see(NEW) is Verdict.TAKEN
    for _ in range(CORRECTIONS):
        assert jobs.see(OLD) is Verdict.CORRECT
    assert jobs.see(OLD) is Verdict.IGNORED
    assert jobs.current is NEW


def test_what_another_broker_still_keeps_does_not_count() -> None:
    jobs = board()
    jobs.see(NEW)
    jobs.synced()
    jobs.connected()  # to a broker that was not in use since OLD, of which this device never knew
    assert jobs.see(OLD) is Verdict.CORRECT
    assert jobs.current is NEW


def test_a_newer_job_counts_also_when_it_was_announced_during_an_outage() -> None:
    jobs = board()
    jobs.see(OLD)
    jobs.connected()
    assert jobs.see(NEW) is Verdict.TAKEN


def test_who_announces_with_a_slow_clock_is_heard() -> None:
    jobs = board()
    jobs.see(NEW)
    jobs.synced()
    assert jobs.see(OLD) is Verdict.TAKEN


def test_a_job_of_unknown_age_counts() -> None:
    for first, second in ((NEW, new_job(id="x", created=0)), (new_job(id="x", created=0), NEW)):
        jobs = board()
        jobs.see(first)
        jobs.connected()
        assert jobs.see(second) is Verdict.TAKEN


def test_what_an_earlier_life_knew_to_be_over_is_over() -> None:
    jobs = board("old")
    assert jobs.see(OLD) is Verdict.CORRECT
    assert jobs.current is None
    assert jobs.see(NEW) is Verdict.TAKEN


def test_memory_is_bounded() -> None:
    jobs = board()
    for number in range(1000):
        jobs.see(new_job(id=f"j{number}"))
    assert jobs.see(new_job(id="j998")) is Verdict.CORRECT
    assert jobs.see(new_job(id="j0")) is Verdict.TAKEN
    for number in range(1000):
        assert jobs.see(None, over=f"x{number}", by_peer=True) is Verdict.CORRECT
    assert len(jobs._corrected) < 500


def test_a_job_says_when_it_was_made() -> None:
    assert new_job().created > 1e9


def test_that_a_job_is_over_says_nothing_of_another() -> None:
    jobs = board()
    assert jobs.see(None, over="old") is Verdict.SAME
    assert jobs.see(OLD) is Verdict.CORRECT
    assert jobs.see(NEW) is Verdict.TAKEN
    for _ in range(2):
        assert jobs.see(None, over="other") is Verdict.CORRECT
    assert jobs.current is NEW
    other = new_job(id="other", created=300.0)
    assert jobs.see(other, by_peer=True) is Verdict.CORRECT  # there was something in it
    assert jobs.current is NEW
    assert jobs.see(None, over="new") is Verdict.TAKEN
    assert jobs.current is None
    assert jobs.knows_over("new")


def test_what_this_device_was_at_counts_until_another_is_heard_of() -> None:
    jobs = board()
    jobs.unfinished = NEW
    assert jobs.see(OLD) is Verdict.CORRECT
    assert jobs.see(None, over="old") is Verdict.SAME
    assert jobs.unfinished is NEW
    assert jobs.came_before("old")
    assert jobs.see(NEW) is Verdict.TAKEN
    assert jobs.unfinished is None
    for heard, over in ((None, ""), (None, "old"), (NEW, "")):
        jobs = board()
        jobs.unfinished = OLD
        assert jobs.see(heard, over=over) is (Verdict.SAME if heard is None else Verdict.TAKEN)
        assert jobs.unfinished is None


@pytest.mark.parametrize("how", ["withdrawn", "taken back", "replaced", "replaced, as a peer tells before the broker"])
def test_what_this_device_was_at_when_it_stopped_is_over_as_if_it_had_been_there(how: str) -> None:
    jobs = board()
    jobs.unfinished = OLD
    if how == "withdrawn":
        jobs.see(None, over="old")
    elif how == "taken back":
        jobs.see(None)
    else:
        if "peer" in how:
            assert jobs.see(NEW, by_peer=True) is Verdict.TAKEN
            assert not jobs.knows_over("old")
        jobs.see(NEW)
    assert jobs.knows_over("old")


def test_what_this_device_was_at_is_not_over_for_what_devices_say_of_another() -> None:
    jobs = board()
    jobs.unfinished = OLD
    assert jobs.see(NEW, again=True) is Verdict.TAKEN
    assert not jobs.knows_over("old")


def test_what_others_say_is_over_did_not_come_before_what_this_device_was_at() -> None:
    jobs = board("oldest")
    jobs.unfinished = OLD
    assert jobs.see(None, over="other") is Verdict.SAME
    assert jobs.unfinished is OLD
    assert not jobs.came_before("other")
    assert jobs.see(new_job(id="other", created=300.0)) is Verdict.CORRECT  # which a broker keeps, all the same
    assert not jobs.came_before("other")
    assert jobs.came_before("oldest")  # an earlier life of this device knew


def test_a_peer_tells_no_news_that_is_older() -> None:
    jobs = board()
    jobs.synced()
    assert jobs.see(OLD, by_peer=True) is Verdict.TAKEN
    assert jobs.see(NEW, by_peer=True) is Verdict.TAKEN
    older = new_job(id="older", created=50.0)
    assert jobs.see(older, by_peer=True) is Verdict.CORRECT
    assert jobs.see(NEW) is Verdict.SAME
    assert jobs.see(older) is Verdict.TAKEN  # somebody says so now


@pytest.mark.parametrize("known", [True, False], ids=["which it has heard of", "which it has not"])
@pytest.mark.parametrize("withdrawn", [None, "old", ""], ids=["replaced", "said to be over", "taken back"])
def test_a_slow_broker_tells_of_the_time_before_what_a_peer_has_told(known: bool, withdrawn: str | None) -> None:
    jobs = board()
    jobs.synced()
    if known:
        jobs.see(OLD)
    assert jobs.see(NEW, by_peer=True) is Verdict.TAKEN
    jobs.see(OLD)
    if withdrawn is not None:
        jobs.see(None, over=withdrawn)
    assert jobs.current is NEW
    assert jobs.see(NEW) is Verdict.SAME
    assert not jobs.knows_over("new")
    assert jobs.see(None) is Verdict.TAKEN  # now it is this one that is taken back
    assert jobs.knows_over("new")


@pytest.mark.parametrize("again", [False, True], ids=["", "in a new connection"])
def test_what_was_before_the_job_that_a_peer_has_told_of_is_over_once_the_broker_has_come_to_it(again: bool) -> None:
    """This device may have said it itself, when it knew of nothing newer, and it is behind that at the broker."""
    jobs = board()
    jobs.see(OLD)
    jobs.synced()
    assert jobs.see(NEW, by_peer=True) is Verdict.TAKEN
    if again:
        jobs.connected()
    assert jobs.see(NEW) is Verdict.SAME
    jobs.synced()
    assert jobs.see(OLD) is Verdict.CORRECT
    assert jobs.current is NEW
    assert not jobs.knows_over("new")


def test_so_is_what_the_broker_has_told_of_before_it() -> None:
    jobs = board()
    jobs.synced()
    jobs.see(NEW, by_peer=True)
    assert jobs.see(OLD) is Verdict.CORRECT  # another device has said that
    assert jobs.see(NEW) is Verdict.SAME
    assert jobs.see(OLD) is Verdict.CORRECT
    assert jobs.current is NEW


def test_and_once_the_broker_has_come_to_a_later_one() -> None:
    jobs = board()
    jobs.see(OLD)
    jobs.synced()
    jobs.see(NEW, by_peer=True)
    assert jobs.see(newer := new_job(id="newer", created=300.0)) is Verdict.TAKEN
    assert jobs.see(NEW) is jobs.see(OLD) is Verdict.CORRECT
    assert jobs.current is newer


@pytest.mark.parametrize("how", ["of a device without a clock", "announced once more, after another connection"])
def test_what_the_broker_goes_back_to_is_not_over(how: str) -> None:
    """Else a peer's newer one would have this device keep for good that it was withdrawn."""
    jobs = board()
    old = new_job(id="old", created=0.0) if "clock" in how else OLD
    jobs.see(old)
    jobs.synced()
    jobs.see(NEW, by_peer=True)
    if "connection" in how:
        jobs.connected()
        jobs.synced()
    assert jobs.see(old) is Verdict.TAKEN
    assert not jobs.knows_over("old")
    assert jobs.knows_over("new")
    assert jobs.see(new_job(id="newer", created=300.0), by_peer=True) is Verdict.TAKEN
    assert not jobs.knows_over("old")


def test_what_this_device_takes_up_again_takes_back_nothing_that_was_announced_before_it() -> None:
    jobs = board()
    jobs.unfinished = OLD
    jobs.synced()
    jobs.take_up(OLD)
    assert (jobs.current, jobs.unfinished) == (OLD, None)
    assert jobs.see(None) is Verdict.SAME  # of before
    assert jobs.see(NEW) is Verdict.TAKEN
    assert jobs.see(OLD) is Verdict.CORRECT  # its own word comes back
    assert jobs.current is NEW
    jobs = board()
    jobs.take_up(NEW)
    jobs.synced()
    assert jobs.see(OLD) is Verdict.CORRECT  # another device had an older one
    assert jobs.see(NEW) is Verdict.SAME
    assert jobs.see(None) is Verdict.TAKEN


def agree(order: Iterable[tuple[Job, str]], boards: Sequence[JobBoard]) -> None:
    """Let all hear, in the broker's order, what devices have announced, and what each then says: as an agent does."""
    said = collections.deque(order)
    for _ in range(1000):
        if not said:
            return
        job, over = said.popleft()
        for jobs in boards:
            if jobs.see(job, over=over, again=True) is Verdict.CORRECT and jobs.current is not None:
                said.append((jobs.current, job.id if jobs.knows_over(job.id) else ""))
    raise AssertionError("they never come to an end")


def _age(job: Job) -> tuple[float, str]:
    return job.created, job.id


@pytest.mark.parametrize("ages", [(100.0, 200.0, 300.0), (0.0, 0.0, 0.0), (0.0, 200.0, 100.0)])
@pytest.mark.parametrize("others", ["none", "new", "at the latest", "went on to the first, by a slow clock"])
def test_of_jobs_that_devices_take_up_at_the_same_moment_all_come_to_one(ages: tuple[float, ...], others: str) -> None:
    """A broker has lost its memory, and nobody hears of another's before it has announced its own."""
    known = [new_job(id=f"j{n}", created=age) for n, age in enumerate(ages)]
    latest = max(known, key=_age)
    for owners in itertools.product(known, repeat=3):
        for order in itertools.permutations({job.id: job for job in owners}.values()):
            boards = [board() for _ in owners]
            for jobs, own in zip(boards, owners, strict=True):
                jobs.synced()
                jobs.take_up(own)
            expected = max(owners, key=_age)
            if others != "none":
                boards.append(board())
                boards[-1].synced()
            if others == "at the latest":  # it had only lost the broker
                boards[-1].see(latest)
                expected = latest
            if others.startswith("went on"):
                for job in (*known[1:], known[0]):
                    boards[-1].see(job)
                expected = known[0]
            agree([(job, "") for job in order], boards)
            assert [jobs.current for jobs in boards] == [expected] * len(boards), (owners, order)
            assert not any(jobs.knows_over(expected.id) for jobs in boards)


def test_a_job_that_is_said_again_is_no_news_to_who_knows_a_later_one() -> None:
    jobs = board()
    jobs.see(NEW)
    jobs.synced()
    assert jobs.see(OLD, again=True) is Verdict.CORRECT
    assert jobs.see(OLD) is Verdict.TAKEN  # announced by somebody whose clock is slow
    jobs = board()
    jobs.see(OLD)
    jobs.synced()
    assert jobs.see(NEW, again=True) is Verdict.TAKEN
    assert not jobs.knows_over("old")


def test_what_is_over_is_so_whatever_clocks_say_of_the_one_after_it() -> None:
    jobs = board()
    jobs.see(NEW)
    jobs.synced()
    assert jobs.see(OLD, over="new", again=True) is Verdict.TAKEN
    assert jobs.knows_over("new")
    assert jobs.see(NEW, again=True) is Verdict.CORRECT


def test_peers_that_say_so_again_and_again_do_not_keep_the_broker_from_being_told() -> None:
    jobs = board()
    jobs.see(OLD)
    jobs.synced()
    jobs.see(NEW)
    for _ in range(CORRECTIONS):
        assert jobs.see(OLD, by_peer=True) is Verdict.CORRECT
    assert jobs.see(OLD, by_peer=True) is Verdict.IGNORED
    assert jobs.see(OLD) is Verdict.CORRECT


def test_its_document_says_that_a_job_is_said_again() -> None:
    document = pack(said_again(NEW, after="old"))
    assert unpack(document, Job) == NEW
    assert unpack(document, Again) == Again(again=True, after="old")
    assert unpack(pack(NEW), Again) == Again()


def test_whoever_knows_better_than_a_clock_is_believed_also_where_the_broker_is_behind() -> None:
    jobs = board()
    jobs.synced()
    jobs.see(NEW, by_peer=True)
    assert jobs.see(OLD) is Verdict.CORRECT
    assert jobs.see(None, over="new", by_peer=True) is Verdict.TAKEN
    assert jobs.see(OLD, by_peer=True) is Verdict.TAKEN


def test_what_is_said_after_the_broker_was_met_is_later_than_all_that_was_known() -> None:
    jobs = board()
    jobs.see(NEW, by_peer=True)
    jobs.connected()
    jobs.synced()
    assert jobs.see(None) is Verdict.TAKEN
    fleet = JobBoard(lambda _: False, in_order=True)
    fleet.see(NEW, by_peer=True)
    assert fleet.see(None) is Verdict.TAKEN  # which an operator has signed later


def test_of_two_who_tell_each_other_one_takes_the_others_job() -> None:
    for here, there in ((OLD, NEW), (new_job(id="a", created=0.0), new_job(id="b", created=0.0))):
        boards = []
        for mine, theirs in ((here, there), (there, here)):
            jobs = board()
            jobs.see(mine)
            jobs.synced()
            jobs.see(theirs, by_peer=True)
            boards.append(jobs)
        assert [jobs.current for jobs in boards] == [there, there]
        assert not boards[1].knows_over(here.id)  # only older, by somebody's clock: that is for nobody else to say


def test_what_is_only_older_than_what_a_peer_tells_of_is_not_over() -> None:
    """Somebody else may know that the peer's is over, whatever clocks say: then this one counts again."""
    jobs = board()
    jobs.see(OLD)
    jobs.synced()
    assert jobs.see(NEW, by_peer=True) is Verdict.TAKEN
    assert not jobs.knows_over("old")
    assert jobs.see(None, over="new", by_peer=True) is Verdict.TAKEN
    assert jobs.see(OLD, by_peer=True) is Verdict.TAKEN
    fleet = JobBoard(lambda _: False, in_order=True)
    fleet.see(OLD)
    fleet.see(NEW, by_peer=True)  # which an operator has signed later
    assert fleet.knows_over("old")


def test_an_id_names_one_job() -> None:
    jobs = board()
    jobs.see(NEW)
    jobs.synced()
    again = new_job(id="new", created=300.0, rounds=7)
    assert jobs.see(again) is Verdict.CORRECT
    assert jobs.see(again, by_peer=True) is Verdict.CORRECT
    assert jobs.current is NEW
    jobs = board()
    jobs.unfinished = NEW  # checkpoints of another job with that id are of no use
    assert jobs.see(again) is Verdict.TAKEN
    assert not jobs.knows_over("new")
