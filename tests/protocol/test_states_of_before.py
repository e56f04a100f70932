"""States of before a generation that goes on from another one, and owners that have lost them: they may be given up."""

from __future__ import annotations

import msgspec
import pytest
from states import RUN, at_seven
from transcript import VIEWS, Machine, vector, view

from edgepeer.ids import Generation
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.place import HOPING, UNKNOWN
from edgepeer.topology.view import View


def later(names: str = "abcde") -> View:
    """The first view of a generation that goes on from `RUN`."""
    plain = view(1, names, run="r", first_round=8)
    of = Generation.after(RUN.generation, [(member.id, 2) for member in plain.members])
    VIEWS[1] = msgspec.structs.replace(plain, generation=of, goes_on=RUN.stamp)
    return VIEWS[1]


def lost() -> Machine:
    """One that goes on in a later generation, and whose owner had a state, and has none."""
    b = at_seven("b", RUN)
    b.learn(later())
    b.hear(ev.StateLost())
    return b


def test_a_state_of_before_that_is_lost_is_given_up_once_all_neighbours_have_said_where_they_stand() -> None:
    """None of them is from before, and there may be nobody else who has it; but one may have a checkpoint."""
    b = lost()
    for name in "ad":
        b.level(name, UNKNOWN)
        assert b.node.allreduce.committed == 7
    b.level("e", UNKNOWN)
    assert b.node.allreduce.committed == UNKNOWN
    assert (b.node.parts.place.over, b.node.parts.place.standing) == (7, HOPING)


def test_not_while_its_owner_has_it() -> None:
    b = at_seven("b", RUN)
    b.learn(later())
    for name in "ade":
        b.level(name, UNKNOWN)
    assert b.node.allreduce.committed == 7


def test_nor_in_the_generation_that_it_is_of() -> None:
    """What has ended once there may rest on this peer's word alone."""
    b = at_seven("b", RUN)
    b.learn(view(4, "abcde", run="r", first_round=8))
    b.hear(ev.StateLost())
    for name in "ade":
        b.level(name, UNKNOWN)
    assert b.node.allreduce.committed == 7


def test_who_is_a_round_behind_is_told_first_how_that_has_ended() -> None:
    """Else that would be lost, though one that goes on from before it is there."""
    b = at_seven("b", RUN)
    for name in "de":
        b.level(name, 7)
        b.reduce(name, vector(1), name, number=8)
    b.contribute(1)
    b.result("a", vector(4), "abde", number=8)
    b.decide("a", number=8)
    b.learn(later())
    b.hear(ev.StateLost())
    b.level("a", UNKNOWN)
    b.level("e", UNKNOWN)
    assert b.node.allreduce.committed == 8
    said = b.level("d", 7)
    assert said.index("d <- result 8 [0:] 4 committed") < said.index("d <- sync 1 r after -2")
    assert b.node.allreduce.committed == UNKNOWN


@pytest.mark.parametrize(("have", "stands"), [(6, UNKNOWN), (7, 7)])
def test_a_checkpoint_of_its_owner_counts_if_it_is_of_as_late_a_round(have: int, stands: int) -> None:
    """If not, the run is over, and goes on from there."""
    b = lost()
    b.hear(ev.RunWanted(None))
    b.hear(ev.RunWanted("r", 1, have=have, of=RUN.lineage))
    for name in "ade":
        b.level(name, UNKNOWN)
    assert b.node.allreduce.committed == stands
    assert (stands == UNKNOWN) == (b.node.parts.place.restored is None)
    b.learn(msgspec.structs.replace(later(), epoch=2, run=""))
    b.learn(msgspec.structs.replace(later(), epoch=3, plain_round=2))
    assert b.node.allreduce.committed == have


def contributor(*, lose: bool) -> Machine:
    """A leaf that has brought a vector beside a state from a checkpoint, which its owner has lost since, or has."""
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, have=7, of=RUN.lineage))
    b.learn(later("abc"))
    b.contribute(1)
    if lose:
        b.hear(ev.Abandoned())
        b.hear(ev.RunWanted(None))
        b.hear(ev.RunWanted("r"))
    return b


@pytest.mark.parametrize("lose", [False, True])
def test_a_vector_beside_a_state_that_is_lost_is_given_in_no_other_view(lose: bool) -> None:
    """What of it others may have holds the state back until the round is over: which it may never be."""
    b = contributor(lose=lose)
    assert b.node.allreduce.contributed
    b.learn(msgspec.structs.replace(b.node.view, epoch=2))
    assert b.node.allreduce.contributed == (not lose)
    assert any(isinstance(each, fx.RoundAborted) and each.mine for each in b.effects) == lose
