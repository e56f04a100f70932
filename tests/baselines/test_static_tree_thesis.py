"""ft-tree-static against the thesis (Padrão 2020, chapter 6), claim by claim and message by message.

The tree of seven, as in its figures: 0 over 1 and 2; 1 over 3 and 4; 2 over 5 and 6. Node 3's parent is 1, its brother
4, its uncle 2.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from post import Post

from edgepeer.ids import PeerId
from edgepeer.protocol import events as ev
from edgepeer.topology import tree

T = 0.5


def begin(size: int = 7, *cuts: tuple[int, int], timeout_s: float = T) -> Post:
    """A round in which node n brings 2**n; links in `cuts` fail in both directions."""
    post = Post(size, timeout_s=timeout_s)
    for one, other in cuts:
        post.cut(one, other)
    bring(post)
    return post


def bring(post: Post) -> None:
    post.contribute(*[[float(1 << position)] for position in range(post.view.size)])


def check(post: Post, rounds: int = 1) -> None:
    """All have committed the plain sum over everybody."""
    for outcomes in post.outcomes.values():
        assert len(outcomes) == rounds
        for outcome in outcomes:
            assert outcome.sum.tolist() == [float((1 << post.view.size) - 1)]
            assert (outcome.contributors, outcome.exact, outcome.mine) == (post.view.ids, True, True)


def tree_links(size: int) -> list[tuple[int, int]]:
    return [(child, (child - 1) // 2) for child in range(1, size)]


def backup_links(size: int) -> list[tuple[int, int]]:
    found = {
        (min(position, other), max(position, other))
        for position in range(size)
        for other in (*tree.brothers(position, 2, size), *tree.uncles(position, 2, size))
    }
    return sorted(found)


# -- reduce, algorithm 1 -----------------------------------------------------------------------------------


def test_6_2_a_node_sends_its_data_to_the_parent_and_metadata_to_uncle_and_brother() -> None:
    """Lines 6-9."""
    log = begin().log
    assert [line for line in log if line.startswith("0 3>")][:3] == [
        "0 3>1 data_reduce", "0 3>2 meta_reduce_sent(1)", "0 3>4 meta_reduce_sent(1)",
    ]  # fmt: skip
    received = log.index("0 4>1 data_reduce"), log.index("0 3>1 data_reduce")
    assert log.index("0 1>0 data_reduce") > max(received)  # "upon event received from all children"


def test_6_2_the_parent_confirms_to_the_childs_uncle_and_brother() -> None:
    """Lines 13-14: to its own brother and to its other child."""
    log = begin().log
    confirmed = [line for line in log if "meta_reduce_received(3)" in line]
    assert confirmed == ["0 1>2 meta_reduce_received(3)", "0 1>4 meta_reduce_received(3)"]


def test_6_2_without_failures_nobody_requests_anything_and_no_timer_changes_that() -> None:
    post = begin()
    assert post.finish(1) == 0.0
    post.pass_time(10.0)
    check(post)
    assert not [line for line in post.log if "request" in line or not line.startswith("0 ")]
    # 6 nodes send up and 6 get the result; 6 x 2 backups less the 2 uncles that the root's children lack, for each of
    # meta_reduce_sent, meta_reduce_received, meta_bcast_sent and meta_bcast_received.
    assert len(post.log) == 6 + 6 + 4 * (6 * 2 - 2)


def test_6_2_after_the_timeout_the_backups_request_the_data_and_forward_them() -> None:
    """Lines 2-5, 20-23; the parent takes what comes first (11) and confirms it as ever (13-14)."""
    post = Post(7)
    post.cuts.add((3, 1))
    bring(post)
    assert "0 3>1 data_reduce (lost)" in post.log
    post.pass_time(T - 0.001)
    before = len(post.log)
    assert all(line.startswith("0 ") for line in post.log)  # nobody does anything before the timeout
    post.pass_time(T)
    late = post.log[before:]
    assert post.outcomes[1][0].paths == ("direct", "via 2", "direct")  # parent 0, children 3 and 4
    assert post.outcomes[3][0].paths == ("direct",)
    assert late[:6] == [
        "0.5 2>3 meta_reduce_request",
        "0.5 3>2 data_reduce_request(1)",
        "0.5 2>1 data_reduce of 3",
        "0.5 1>2 meta_reduce_received(3)",
        "0.5 1>4 meta_reduce_received(3)",
        "0.5 1>0 data_reduce",
    ]
    check(post)


def test_6_2_the_brother_alone_is_enough() -> None:
    """Node 1, which has no uncle."""
    post = Post(3)
    post.cuts.add((1, 0))
    bring(post)
    assert post.finish(1) == T
    check(post)
    assert [line for line in post.log if line.startswith("0.5")][:3] == [
        "0.5 2>1 meta_reduce_request", "0.5 1>2 data_reduce_request(0)", "0.5 2>0 data_reduce of 1",
    ]  # fmt: skip


def test_6_2_what_both_backups_forward_counts_once() -> None:
    """Line 11. The uncle's copy is under way when the brother's comes."""
    post = Post(7)
    post.cuts |= {(3, 1), (2, 1)}  # the uncle can ask, but not forward
    bring(post)
    assert post.finish(1) == T
    assert "0.5 2>1 data_reduce of 3 (lost)" in post.log
    assert "0.5 4>1 data_reduce of 3" in post.log
    check(post)


# -- broadcast, algorithm 2 --------------------------------------------------------------------------------


def test_6_3_a_node_with_the_result_tells_its_backups_and_its_childrens() -> None:
    """Lines 7-12, from node 1's perspective."""
    log = begin().log
    assert [line for line in log if line.startswith("0 1>") and "bcast" in line] == [
        "0 1>2 meta_bcast_received",
        "0 1>3 data_bcast", "0 1>4 meta_bcast_sent(3)", "0 1>2 meta_bcast_sent(3)",
        "0 1>4 data_bcast", "0 1>3 meta_bcast_sent(4)", "0 1>2 meta_bcast_sent(4)",
    ]  # fmt: skip
    assert [line for line in log if line.startswith("0 3>") and "bcast" in line] == [
        "0 3>4 meta_bcast_received", "0 3>2 meta_bcast_received",
    ]  # fmt: skip


def test_6_3_after_the_timeout_the_backups_send_the_result() -> None:
    """Lines 1-4; figure 9b: "node 2 will also trigger a timeout"."""
    post = Post(7)
    post.cuts |= {(1, 3), (3, 4)}  # nor does node 4 hear that 3 has it: it sends it, too
    bring(post)
    assert post.finish(1) == T
    post.pass_time(10)
    check(post)
    late = [line for line in post.log if not line.startswith("0 ") and "data" in line]
    assert late == ["0.5 2>3 data_bcast", "0.5 4>3 data_bcast"]


def test_6_3_a_backup_that_lacks_the_result_when_its_timer_ends_sends_it_when_it_comes() -> None:
    """The thesis assumes that it is there. Node 5 has only its uncle, 1, which gets the result from its brother, 2."""
    post = Post(7)
    post.cuts |= {(0, 1), (2, 5), (6, 5)}
    bring(post)
    assert post.finish(1) == T
    check(post)
    late = [line for line in post.log if not line.startswith("0 ") and "data" in line]
    assert late == ["0.5 2>1 data_bcast", "0.5 1>3 data_bcast", "0.5 1>4 data_bcast", "0.5 1>5 data_bcast"]


# -- one failed link, whichever ------------------------------------------------------------------------------


@pytest.mark.parametrize(("child", "parent"), tree_links(15))
def test_a_link_that_fails_upwards_costs_one_timeout(child: int, parent: int) -> None:
    post = Post(15)
    post.cuts.add((child, parent))
    bring(post)
    assert post.finish(1) == T
    check(post)


@pytest.mark.parametrize(("child", "parent"), tree_links(15))
def test_a_link_that_fails_downwards_costs_one_timeout(child: int, parent: int) -> None:
    post = Post(15)
    post.cuts.add((parent, child))
    bring(post)
    assert post.finish(1) == T
    check(post)


@pytest.mark.parametrize(("child", "parent"), tree_links(7) + tree_links(15)[6:] + tree_links(31)[14:])
def test_7_2_a_failed_link_costs_a_timeout_up_and_one_down(child: int, parent: int) -> None:
    size = 7 if child < 7 else 15 if child < 15 else 31
    post = begin(size, (child, parent))
    assert post.finish(1) == 2 * T
    check(post)


@pytest.mark.parametrize(("one", "other"), backup_links(15))
def test_6_1_a_failed_backup_link_costs_nothing(one: int, other: int) -> None:
    post = begin(15, (one, other))
    assert post.finish(1) == 0.0
    check(post)


# -- several -----------------------------------------------------------------------------------------------


def test_7_2_two_parallel_faults_cost_as_much_as_one() -> None:
    assert begin(7, (3, 1), (5, 2)).finish(1) == 2 * T
    assert begin(15, (7, 3), (13, 6)).finish(1) == 2 * T


def test_7_2_two_serial_faults_cost_twice_as_much() -> None:
    assert begin(7, (3, 1), (1, 0)).finish(1) == 4 * T
    assert begin(15, (7, 3), (3, 1)).finish(1) == 4 * T


def test_7_2_the_cost_is_the_timeouts() -> None:
    assert begin(7, (3, 1), timeout_s=1.0).finish(1) == 2.0


def test_6_4_two_links_at_the_root_stop_everything() -> None:
    post = begin(7, (1, 0), (2, 0))
    assert post.finish(1) is None
    for position in range(7):
        post.tell(position, ev.TimedOut("waited too long"))
    assert all([(a.cause, a.mine) for a in aborted] == [("timeout", True)] for aborted in post.aborted.values())
    assert all(machine.allreduce.committed == 1 for machine in post.machines)


def test_6_4_a_node_cut_off_from_parent_brother_and_uncle_stops_everything() -> None:
    assert begin(7, (3, 1), (3, 4), (3, 2)).finish(1) is None
    for spared in (1, 4, 2):
        links = [(3, other) for other in (1, 4, 2) if other != spared]
        post = begin(7, *links)
        assert post.finish(1) == (0.0 if spared == 1 else 2 * T)
        check(post)


@given(
    st.integers(2, 15).flatmap(
        lambda size: st.tuples(
            st.just(size),
            st.integers(1, 3),
            st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=8),
        )
    )
)
def test_whatever_is_cut_no_sum_is_wrong(drawn: tuple[int, int, set[tuple[int, int]]]) -> None:
    size, fanout, cuts = drawn
    post = Post(size, fanout=fanout)
    post.cuts |= cuts
    bring(post)
    done = post.finish(1, limit_s=20)
    for outcomes in post.outcomes.values():
        for outcome in outcomes:
            assert outcome.sum.tolist() == [float((1 << size) - 1)]
            assert outcome.contributors == post.view.ids
    if not cuts:
        assert done == 0.0


# -- from round to round -----------------------------------------------------------------------------------


def test_nothing_is_learned_for_the_next_round() -> None:
    post = Post(7)
    post.cut(3, 1)
    for number in range(1, 8):
        began = post.now
        bring(post)
        assert post.finish(number) == pytest.approx(began + 2 * T)
    check(post, rounds=7)


def test_metadata_of_the_next_round_may_come_before_the_end_of_this_one() -> None:
    """Node 4 gets the result of round 1 a timeout late; its brother has begun round 2, and the link 3-1 failed."""
    post = Post(7)
    post.cuts |= {(1, 4), (2, 3), (3, 2)}
    bring(post)
    assert not post.outcomes[4]
    assert post.outcomes[3]
    post.cuts |= {(3, 1)}
    before = len(post.log)
    for position in (0, 1, 2, 3, 5, 6):
        post.tell(position, ev.Contribute(np.array([float(1 << position)], dtype=np.float64), 1.0))
    assert "0 3>4 meta_reduce_sent(1)" in post.log[before:]  # node 2 does not hear of it
    post.pass_time(T)
    assert len(post.outcomes[4]) == 1
    assert "0.5 3>4 data_reduce_request(1)" in post.log  # asked while 4 was in round 1, or just past it
    post.tell(4, ev.Contribute(np.array([16.0], dtype=np.float64), 1.0))
    assert post.finish(2) is not None
    check(post, rounds=2)


def test_a_link_that_stays_silent_is_dialled_anew_and_used_again_once_healed() -> None:
    post = Post(7)
    post.cut(3, 1)
    number = 0
    while not post.closed:
        number += 1
        bring(post)
        assert post.finish(number) is not None
        assert post.now < 20
    assert post.closed[0] in ((1, 3), (3, 1))
    assert post.now > 4 * T
    assert set(map(frozenset, post.closed)) == {frozenset((1, 3))}  # and no other link
    post.cuts.clear()
    post.pass_time(post.now + 3)  # at most 2 s between two attempts
    began = post.now
    for _ in range(2):
        number += 1
        bring(post)
        assert post.finish(number) == began
    check(post, rounds=number)


def test_a_clean_fleet_closes_no_link_however_long_it_rests() -> None:
    post = Post(15)
    for number in range(1, 6):
        bring(post)
        assert post.finish(number) == post.now
        post.pass_time(post.now + 100)
    assert post.closed == []


# -- what is not the network's fault -----------------------------------------------------------------------


def test_vectors_that_do_not_fit_together_end_the_round_for_all() -> None:
    post = Post(7)
    post.contribute(*[[1.0] * (2 if position == 4 else 1) for position in range(7)])
    assert {a.cause for aborted in post.aborted.values() for a in aborted} == {"mismatch"}
    assert all(machine.allreduce.committed == 1 for machine in post.machines)
    bring(post)
    assert post.finish(1) is not None
    assert all(outcomes[-1].round == 2 for outcomes in post.outcomes.values())


def test_missing_names_who_is_waited_for() -> None:
    post = Post(7)
    for position in (0, 1, 2, 4, 5, 6):
        post.tell(position, ev.Contribute(np.array([1.0], dtype=np.float64), 1.0))
    assert post.machines[1].allreduce.missing() == (PeerId("3"),)
    assert set(post.machines[0].allreduce.missing()) == {"1", "3", "4"}
    assert post.machines[4].allreduce.missing() == (PeerId("1"),)
