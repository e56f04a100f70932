"""A neighbour whose numbers can't be: closed, and not again and again."""

from __future__ import annotations

import msgspec
import pytest
from company import Company
from transcript import vector, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr


class Spoilt(Company):
    """What b says up to its parent is wrong until `whole_at`, on whatever path it goes."""

    def __init__(self, world: View, *, whole_at: float = 0.0) -> None:
        super().__init__(world)
        self.whole_at = whole_at
        hear_of = self["a"].node._on_frame
        on_reduce = hear_of[fr.Reduce]

        def spoil(peer: PeerId, frame: fr.Reduce, event: ev.FrameReceived) -> None:
            wrong = peer == "b" and self.now < self.whole_at
            on_reduce(peer, msgspec.structs.replace(frame, contributors=b"\x04") if wrong else frame, event)

        hear_of[fr.Reduce] = spoil

    def contribute(self) -> None:
        """All bring something for the first round."""
        for name in self.machines:
            self.hear(name, ev.Contribute(vector(1, 1), 1.0, "float32"))

    def ended(self) -> bool:
        """Whether the round has, everywhere."""
        return {machine.node.allreduce.committed for machine in self.machines.values()} == {1}


def working(whole_at: float) -> Spoilt:
    """Three peers at the first round, from 1 s on."""
    company = Spoilt(view(1, "abc"), whole_at=whole_at)
    company.until(1.0)
    company.contribute()
    return company


def refusals(company: Company) -> list[float]:
    return [at for at, name, _ in company.effects(fx.Refused) if name == "a"]


def test_it_is_refused_once_a_second_on_each_path() -> None:
    company = working(whole_at=11.0)
    company.until(11.0)
    assert 9 <= len(refusals(company)) <= 2 * 12
    assert len(company.effects(fx.Dial, since=1.0)) <= 2 * 12
    assert not any(machine.node.allreduce.committed for machine in company.machines.values())


def test_a_glitch_costs_a_connection_and_no_time() -> None:
    company = working(whole_at=1.0011)  # what comes first is not
    company.until(1.1)
    assert len(refusals(company)) == 1
    assert company.ended()


@pytest.mark.parametrize("whole_at", [1.5, 3.0, 7.7])
def test_as_soon_as_it_is_whole_the_round_ends(whole_at: float) -> None:
    company = working(whole_at)
    company.until(whole_at + 1.1)
    assert len(refusals(company)) >= 2
    assert company.ended()


def test_the_same_through_a_tunnel() -> None:
    company = Spoilt(view(1, "abc"), whole_at=9.0)
    company.sever("ab")
    company.until(4.0)
    assert company.path("a", "b") == "via c"
    company.contribute()
    company.until(9.0)
    assert 4 <= len(refusals(company)) <= 7
    assert not company.ended()
    company.until(10.2)
    assert company.ended()


def test_others_links_are_left_alone() -> None:
    company = working(whole_at=5.0)
    company.until(5.0)
    closed = [each for _, _, each in company.effects(fx.CloseLink, since=1.0) if isinstance(each, fx.CloseLink)]
    assert {str(each.peer) for each in closed} == {"b"}
    assert company["c"].node.parts.links.is_direct(PeerId("a"))


def test_who_carries_what_can_not_be_is_believed_all_the_same() -> None:
    """A hop, and who passes a view on, lose the connection each time, and none of what they say of a round."""
    wiring, links = (company := working(whole_at=0.0))["a"].node.parts.wiring, company["a"].node.parts.links
    b = PeerId("b")
    for at in (1.5, 2.0, 2.5):
        company.until(at)
        assert links.is_direct(b)
        wiring.fail_link(b, "bad view")
        assert not links.is_direct(b)
        assert not links.is_ignored(b)
        company.hear("a", ev.ControlSynced())  # or nothing asks what is to be done
    company.until(3.0)
    for ignored in (False, True):
        wiring.refuse(b, "spoilt")
        assert links.is_ignored(b) == ignored
        company.hear("a", ev.ControlSynced())
        company.until(company.now + 0.1)
