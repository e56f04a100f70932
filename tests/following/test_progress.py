"""What is known of a job does not depend on the order or the number of times it was said."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from told import Told

from edgepeer.errors import JobError
from edgepeer.following.progress import NOT_PASSED_ON, JobProgress
from edgepeer.following.result import Spread
from edgepeer.following.texts import summary

Finish = Callable[..., JobProgress]


def test_a_job_from_the_first_peer_to_the_last_report(told: Told, finish: Finish) -> None:
    progress = JobProgress(told.job, broker="embedded")
    assert progress.members == ()
    assert not progress.finished
    for peer in told.peers:
        assert progress.see_presence(peer, told.presence(peer))
        assert not progress.see_presence(peer, told.presence(peer))
        assert progress.state(peer) == "joined"
    assert progress.outside == told.peers
    assert progress.see_view(told.view())
    assert not progress.see_view(told.view(epoch=2))
    assert (progress.outside, progress.pending) == ((), told.peers)
    assert progress.see_telemetry(told.telemetry(told.record(1)))
    assert progress.seconds_left == pytest.approx(0.9)
    finish(progress, "ash", "birch")
    assert (progress.finished, progress.pending, progress.round) == (False, ("cedar",), 10)
    finish(progress, "cedar")
    assert progress.finished
    result = progress.result()
    assert result.identical
    assert (result.quality, result.loss, result.missing, result.failed) == (("accuracy", 0.97), 0.125, (), ())
    assert result.bytes_sent == dict.fromkeys(told.peers, 1_600_000)
    assert [record.round for record in result.records] == [1, 8, 9, 10]


def test_another_jobs_documents_change_nothing(running: JobProgress, told: Told) -> None:
    before = dict(running.records)
    assert not running.see_telemetry(told.telemetry(told.record(9), job="other"))
    assert running.records == before


def test_rounds_that_the_job_does_not_have_are_not_counted(running: JobProgress, told: Told) -> None:
    assert not running.see_telemetry(told.telemetry(told.record(11)))
    assert running.round == 7


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_order_and_repetition_do_not_matter(told: Told, data: st.DataObject) -> None:
    # Rounds 4 and 5 were run again under view 4, with another loss.
    records = [told.record(number) for number in range(1, 6)]
    again = [told.record(number, epoch=4, loss=1.5, accuracy=None) for number in (4, 5)]
    # And round 3 in a later generation, which begins to count views anew.
    again.append(told.record(3, epoch=1, loss=1.7, accuracy=None, generation="10-00000000"))
    again.append(told.record(3, epoch=9, loss=1.8, accuracy=None, generation="9-ffffffff"))
    said = data.draw(st.permutations([*records, *again]))
    said += data.draw(st.lists(st.sampled_from(said), max_size=5))
    progress = JobProgress(told.job, broker="embedded")
    for record in said:
        progress.see_telemetry(told.telemetry(record))
    assert progress.records == {record.round: record for record in [*records, *again[:-1]]}
    assert progress.round == 5
    assert progress.measured is None
    assert progress.last == again[1]


def test_a_killed_peer_is_not_waited_for(running: JobProgress, told: Told, finish: Finish) -> None:
    running.see_presence("cedar", None)
    assert running.state("cedar") == "gone"
    assert list(running.notes) == ["cedar is gone, after round 7"]
    running.see_view(told.view("ash", "birch", epoch=4))
    finish(running, "ash", "birch")
    assert running.finished
    assert running.result().done == ("ash", "birch")
    assert running.result().lost == ("cedar",)
    assert list(running.result().bytes_sent) == ["ash", "birch"]


def test_who_is_gone_before_any_round(told: Told) -> None:
    progress = JobProgress(told.job, broker="embedded")
    progress.see_presence("cedar", told.presence("cedar"))
    progress.see_report(told.report("cedar", state="starting", round=0, digest=""))
    progress.see_presence("cedar", None)
    assert list(progress.notes) == ["cedar is gone, before the first round"]


def test_who_is_not_heard_of_since_the_broker_ended_is_waited_for(
    running: JobProgress, told: Told, finish: Finish
) -> None:
    """A broker that ends says of some of its peers that they are gone, and knows nobody when it is back."""
    for peer in ("birch", "cedar"):
        running.see_presence(peer, None)
    running.lost_broker("connection lost")
    running.see_presence("birch", told.presence("birch"))
    running.see_presence("birch", None)  # this time it is
    finish(running, "ash")
    assert (running.finished, running.pending) == (False, ("cedar",))
    finish(running, "cedar")
    assert running.finished
    assert running.result().done == ("ash", "cedar")


def test_a_failed_peer_is_noted_once_and_does_not_end_the_job(running: JobProgress, told: Told, finish: Finish) -> None:
    failure = told.report("birch", "failed", error="no\nmemory\x1b[2J", round=7)
    assert running.see_report(failure)
    assert not running.see_report(failure)
    assert list(running.notes) == [r"birch failed: no memory\x1b[2J"]
    assert not running.finished
    finish(running, "ash", "cedar")
    assert running.finished
    assert running.result().failed == ("birch",)


def test_all_failed(told: Told) -> None:
    progress = JobProgress(told.job, broker="embedded")
    progress.see_view(told.view())
    for peer in told.peers:
        progress.see_presence(peer, told.presence(peer))
    progress.see_report(told.report("ash", "failed", error="dataset mnist: no files"))
    assert not progress.finished
    for peer in told.peers:
        progress.see_report(told.report(peer, "failed", error="dataset mnist: no files"))
    assert progress.finished
    with pytest.raises(JobError, match=r"^all 3 peers failed: dataset mnist: no files$"):
        progress.result()


def test_who_is_gone_for_a_while_may_come_back_though_others_have_failed(told: Told) -> None:
    """One device can't do the job, and all that can lose their power: they go on when it is back."""
    progress = JobProgress(told.job, broker="embedded")
    progress.see_view(told.view())
    for peer in told.peers:
        progress.see_presence(peer, told.presence(peer))
    progress.see_report(told.report("ash", "failed", error="dataset mnist: no files"))
    for peer in ("birch", "cedar"):
        progress.see_report(told.report(peer, "training", round=7))
        progress.see_presence(peer, None)
    assert not progress.finished
    for peer in ("birch", "cedar"):
        progress.see_presence(peer, told.presence(peer))
        progress.see_report(told.report(peer, "done"))
    assert progress.finished
    assert progress.result().failed == ("ash",)


def test_early_failures_do_not_end_a_job_that_waits_for_more(told: Told) -> None:
    progress = JobProgress(told.job, broker="embedded")
    progress.see_presence("ash", told.presence("ash"))
    progress.see_report(told.report("ash", "failed", error="x"))
    assert not progress.finished
    assert progress.trouble() == "peer ash failed: x"


def test_trouble_in_words(running: JobProgress, told: Told) -> None:
    assert running.trouble() == "round 7 of 10, waiting for ash, birch, cedar"
    running.lost_broker("connection lost")
    assert running.trouble() == "the broker is away (connection lost); when it was last there: round 7 of 10"
    running.found_broker()
    assert running.trouble() == "round 7 of 10, waiting for ash, birch, cedar"
    empty = JobProgress(told.job, broker="embedded")
    assert empty.trouble() == "no peer is in the fabric"
    empty.miss_job()
    empty.miss_job()
    assert (empty.trouble(), list(empty.notes)) == (NOT_PASSED_ON, [NOT_PASSED_ON])
    empty.see_job(told.job.id)
    empty.miss_job()
    assert (empty.trouble(), empty.noted) == ("no peer is in the fabric", 1)
    empty.see_presence("ash", told.presence("ash"))
    empty.see_view(told.view("ash"))
    assert empty.trouble() == "1 of 3 wanted peers are in"


def test_where_no_view_is_heard_of_whoever_works_on_it_is_waited_for(told: Told) -> None:
    """A broker's rules may let nobody say it."""
    progress = JobProgress(told.job, broker="")
    for peer in ("ash", "birch"):
        progress.see_presence(peer, told.presence(peer))
        progress.see_report(told.report(peer, "running"))
    progress.see_report(told.report("ash", "done"))
    assert (progress.pending, progress.finished) == (("birch",), False)
    progress.see_report(told.report("birch", "done"))
    assert progress.finished
    assert progress.result().lost == ()


def test_withdrawal(running: JobProgress) -> None:
    running.see_job(None)
    assert not running.finished, "the job was not published yet"
    running.see_job("j1")
    running.see_job(None)
    assert running.finished
    with pytest.raises(JobError, match="job j1 was withdrawn after round 7 of 10"):
        running.result()


def test_another_job_in_its_place(running: JobProgress) -> None:
    running.see_job("j1")
    running.see_job("j2")
    assert running.finished
    with pytest.raises(JobError, match="job j1 was replaced by job j2 after round 7 of 10"):
        running.result()


def test_different_bits_are_told(running: JobProgress, told: Told, finish: Finish) -> None:
    finish(running, "ash", "birch")
    running.see_report(told.report("cedar", digest="cd" * 8))
    assert running.finished
    assert not running.result().identical
    running.see_report(told.report("cedar", digest=""))
    assert not running.result().identical


def test_spread() -> None:
    assert Spread.of([]) == (None, None)
    assert Spread.of([3.0]) == (3.0, 3.0)
    assert Spread.of(range(101)) == (50.0, 95.0)


def test_memory_is_bounded_and_what_is_kept_thins_out_with_age(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepeer.following.progress.KEPT_ROUNDS", 100)
    job = msgspec.structs.replace(told.job, rounds=5000)
    progress = JobProgress(job, broker="")
    for number in range(1, 5001):
        accuracy = 0.5 if number == 7 else None
        progress.see_telemetry(told.telemetry(told.record(number, accuracy=accuracy)))
        assert len(progress.records) <= 100
        assert max(progress.records) == number
    assert len(progress.records) + progress.thinned == 5000
    kept = sorted(progress.records)
    assert kept[-50:] == list(range(4951, 5001))
    assert kept[:2] == [7, 256]
    gaps = [after - before for before, after in itertools.pairwise(kept) if before != 7]
    assert set(gaps[:15]) == {256}  # something of every age
    assert set(gaps[-50:]) == {1}
    assert progress.measured is not None
    assert progress.measured.round == 7
    for peer in told.peers:
        progress.see_report(told.report(peer))
    result = progress.result()
    assert (result.unreported, result.computed) == (0, None)
    text = " ".join(value for _, value, _ in summary(result))
    assert f"{progress.thinned} records of earlier rounds were not kept" in text
    assert "not reported" not in text
    assert len({id(record.contributors) for record in result.records}) == 1


def test_how_much_was_computed_is_not_known_where_somebody_did_not_count_to_the_end(
    running: JobProgress, told: Told, finish: Callable[..., JobProgress]
) -> None:
    """It said less than 1, as if sums were of samples that nobody had computed."""

    def restart(progress: JobProgress, incarnation: int, started: float) -> None:
        life = msgspec.structs.replace(told.presence("cedar"), incarnation=incarnation, started=started)
        progress.see_presence("cedar", None)
        progress.see_presence("cedar", life)

    ended = finish(running)
    restart(ended, 2, 10.0)  # when it had told all
    assert ended.result().computed == pytest.approx(1.0)
    ended.see_report(told.report("cedar", "failed"))
    assert ended.result().computed is None
    ended.see_report(told.report("cedar", "running"))
    restart(ended, 3, 10.0)  # out of the view, and in again: it goes on counting
    ended.see_report(told.report("cedar"))
    assert ended.result().computed == pytest.approx(1.0)
    assert list(ended.result().bytes_sent) == ["ash", "birch", "cedar"]
    ended.see_report(told.report("cedar", "running"))
    restart(ended, 4, 20.0)
    ended.see_report(told.report("cedar", samples=100))
    assert ended.result().computed is None
    assert list(ended.result().bytes_sent) == ["ash", "birch"]
