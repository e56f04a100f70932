"""Schedules as text: what is written is read again, and what is wrong is refused in one line."""

from __future__ import annotations

import pytest
from fleet_stories import schedules
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import ConfigError
from edgepeer.simulation.schedule import Fault, Schedule

EXAMPLE = """\
# what this shows
# in two lines
peers 3
compute_s 0.5

0.5..3      oneway p2 p1
1           kill p0
2..3        slow p1 x10
2..4        broker forget
"""
SPLIT = "peers 5\nsplit codenet:m=1,n=1,t=1\n"


@given(st.booleans().flatmap(lambda split: schedules(split=split)))
def test_what_is_written_is_read_again(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule)) == schedule


def test_an_example_in_full() -> None:
    schedule = Schedule.parse(EXAMPLE)
    assert schedule.comment == "what this shows\nin two lines"
    assert (schedule.peers, schedule.compute_s, schedule.rounds) == (3, 0.5, 12)
    assert schedule.faults == (
        Fault(0.5, "oneway", ("p2", "p1"), 3.0),
        Fault(1.0, "kill", ("p0",)),
        Fault(2.0, "slow", ("p1",), 3.0, "x10"),
        Fault(2.0, "broker", (), 4.0, "forget"),
    )
    assert schedule.end == 4.0
    assert str(schedule) == EXAMPLE


def test_comments_and_empty_lines_may_stand_anywhere() -> None:
    assert Schedule.parse("\npeers 2 # two\n\n# later\n1 kill p0 # soon\n").faults == (Fault(1.0, "kill", ("p0",)),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "x: must say how many peers there are, as in: peers 7"),
        ("peers", "x, line 1: peers takes one value, not 0"),
        ("peers two", "x, line 1: peers two: must be int"),
        ("peers 0", "x: peers 0: must be from 1 to 1000"),
        ("peers 2\nsize nan", "x, line 2: size nan: must be int"),
        ("peers 2\nloss nan", "x: loss nan: must be from 0 to 0.9"),
        ("peers 2\ndtype int", "x: dtype int: must be <f4 or <f8"),
        ("peers 2\nwings 2", "x, line 2: wings is neither a time nor a setting; settings are peers, seed, "),
        ("peers 2\nrounds 3\npeers 4", "x, line 3: peers is said twice"),
        ("peers 2\n1s kill p0", "x, line 2: 1s: must be a time in seconds, or two as in 0.5..3"),
        ("peers 2\n1", "x, line 2: nothing is unknown; what happens must be one of oneway, cut, "),
        ("peers 2\n1 eat p0", "x, line 2: eat is unknown; what happens must be one of oneway, cut, "),
        ("peers 2\n1 cut p0 p1", "x, line 2: cut takes two times, as in 0.5..3"),
        ("peers 2\n1..2 leave p0", "x, line 2: leave takes one time"),
        ("peers 2\n2..1 cut p0 p1", "x, line 2: 2..1: must end after it has begun"),
        ("peers 2\n1..2 cut p0", "x, line 2: cut takes 2 names, not: p0"),
        ("peers 2\n1..2 cut p0 p0", "x, line 2: cut takes 2 names, not: p0 p0"),
        ("peers 2\n1..2 partition", "x, line 2: partition takes 1 name or more, not: none"),
        ("peers 2\n1..2 broker p0", "x, line 2: broker takes no name, not: p0"),
        ("peers 2\n1..2 slow p0", "x, line 2: slow takes a factor, as in: 1..2 slow p3 x10"),
        ("peers 2\n1 kill p2", "x: 1           kill p2: there is no peer p2; there are p0, p1"),
        ("peers 2\n1 kill broker", "x: 1           kill broker: there is no peer broker; there are p0, p1"),
        ("peers 5\nsplit codes", "x: split = 'codes': there is no split 'codes', only none, codenet, "),
        ("peers 5\nsplit codenet:m=9,n=1", "x: "),
        ("peers 5\nsplit codenet:m=2,n=1,t=1", "x: split codenet:m=2,n=1,t=1 has 8 nodes; let there be as many peers"),
        (f"{SPLIT}run none", "x: a split run is a run, and not coded in another way: leave out run and code"),
        (f"{SPLIT}code cyclic:s=1", "x: a split run is a run, and not coded in another way: leave out run and code"),
        ("peers 5\nsoft_errors p=0.1", "x: soft errors are made in split runs: say how it is divided, as in: split "),
        ("peers 5\n1 flip p1", "x: soft errors are made in split runs: say how it is divided, as in: split "),
        ("peers 5\nsplit none:m=2,n=1\n1 flip p1", "x: split none corrects nothing: leave out soft errors, or take "),
        (f"{SPLIT}soft_errors p=2", "x: soft errors: p = 2.0 is no probability; it must be between 0 and 1"),
        (f"{SPLIT}1 flip p1 kind=big", "x: fault stored big at node 0, "),
        (f"{SPLIT}1 flip p1 size=big", "x, line 3: flip takes 1 name, not: p1 size=big"),
        ("peers 3\ncode cyclic:s=5", "x: code cyclic:s=5 with 3 workers: "),
        ("peers 9\nfanout 1\ncode coded-reduce:s=1", "x: code coded-reduce:s=1 with 9 workers: "),
        ("peers 3\ncode cyclic:s=1\nno_code maybe", "x: no_code maybe: must be refused or dropped"),
        ("peers 20\n1 kill p2", "x: 1           kill p2: there is no peer p2; there are p00 to p19"),
    ],
)
def test_what_is_wrong_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Schedule.parse(text, "x")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_code_that_can_not_be_had_must_be_meant() -> None:
    with pytest.raises(ConfigError, match=r"; if rounds are to be dropped: no_code dropped$"):
        Schedule.parse("peers 3\ncode cyclic:s=5\n")
    assert Schedule.parse("peers 3\ncode cyclic:s=5\nno_code dropped\n").no_code == "dropped"
    assert Schedule.parse("peers 4\ncode cyclic:s=1\n1 kill p1\n1 kill p2\n1 kill p3\n").peers == 4
