"""Faults of links: which rules, counted how often, and what is taken for a proof."""

from __future__ import annotations

import asyncio

import pytest
from stage import Memory, scene_of

from edgepeer.emulation.faults.kinds import Cut, Isolate, Partition, PlannedFault
from edgepeer.emulation.faults.links import CutBook, LinkFault
from edgepeer.emulation.faults.scene import Unconfirmed
from edgepeer.emulation.faults.texts import read


def fault(kind: str, text: str) -> Cut | Isolate | Partition:
    found: PlannedFault = read(kind, text)
    assert isinstance(found, Cut | Isolate | Partition)
    return found


def rules_of(kind: str, text: str) -> tuple[str, set[str]]:
    """What the fault is called, and what it forbids."""
    scene = scene_of()
    link = LinkFault(fault(kind, text), scene, CutBook(scene))
    assert len(set(link.ways)) == len(link.ways)
    return link.target, {f"{source[1:]}>{target[1:]}" for source, target in link.ways}


def test_what_is_cut() -> None:
    assert rules_of("cut", "3-1@5..10") == ("p03-p01", {"03>01", "01>03"})
    assert rules_of("cut", "pos3>root@5..10") == ("p03>p00", {"03>00"})
    assert rules_of("cut", "leaf-broker@5..10") == ("p03-broker", {"03>roker"})
    assert rules_of("cut", "broker-2@5..10") == ("broker-p02", {"02>roker"})
    assert rules_of("isolate", "2@5..10") == (
        "p02", {"02>00", "00>02", "02>01", "01>02", "02>03", "03>02", "02>roker"},
    )  # fmt: skip
    sides = {"00>02", "02>00", "00>03", "03>00", "01>02", "02>01", "01>03", "03>01"}
    assert rules_of("partition", "0,1|2,3@5..") == ("p00,p01,broker|p02,p03", {*sides, "02>roker", "03>roker"})
    assert rules_of("partition", "0,1|2,3,broker@5..") == ("p00,p01|p02,p03,broker", {*sides, "00>roker", "01>roker"})
    assert rules_of("partition", "3|rest@5..")[0] == "p03|p00,p01,p02,broker"
    assert len(rules_of("partition", "0|1|2,3@5..")[1]) == 2 * (1 + 2 + 2) + 2


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("cut", "pos1-1@5..", "p01 would be on both sides of it"),
        ("partition", "pos1,2|1,3@5..", "p01 would be on both sides of it"),
        ("cut", "pos9-1@5..", "nobody is pos9 in a tree of 4 peers"),
    ],
)
def test_places_that_turn_out_not_to_do(kind: str, text: str, said: str) -> None:
    scene = scene_of()
    with pytest.raises(Unconfirmed, match=said):
        LinkFault(fault(kind, text), scene, CutBook(scene))
    with pytest.raises(Unconfirmed, match="in no tree"):
        scene_of(view=lambda: None).name(fault("isolate", "root@5..").concerns[0])


async def test_a_confirmed_cut() -> None:
    network = Memory()
    scene = scene_of(network=network)
    link = LinkFault(fault("cut", "3-1@5..10"), scene, CutBook(scene))
    await link.inject()
    assert link.confirmed == {"rules": ["p03>p01", "p01>p03"]}
    network.counts["p03", "p01"] = 9
    await link.lift()
    assert link.confirmed == {"rules": ["p03>p01", "p01>p03"], "dropped": {"p03>p01": 9, "p01>p03": 0}}
    assert network.in_force == set()


async def test_it_waits_for_traffic() -> None:
    network = Memory()
    scene = scene_of(network=network)
    link = LinkFault(fault("cut", "3-1@5..10"), scene, CutBook(scene))
    await link.inject()
    lifting = asyncio.create_task(link.lift())
    asyncio.get_running_loop().call_later(0.05, network.counts.update, {("p01", "p03"): 1})
    await lifting
    assert link.confirmed["dropped"] == {"p03>p01": 0, "p01>p03": 1}


async def test_a_rule_that_is_not_there() -> None:
    network = Memory()
    network.deaf = True
    scene = scene_of(network=network)
    with pytest.raises(Unconfirmed, match="the kernel has no rule from p01 to p03"):
        await LinkFault(fault("cut", "3-1@5..10"), scene, CutBook(scene)).inject()


async def test_a_rule_that_goes_before_its_time() -> None:
    network = Memory()
    scene = scene_of(network=network)
    link = LinkFault(fault("isolate", "3@5..10"), scene, CutBook(scene))
    await link.inject()
    network.in_force.discard(("p03", "broker"))
    with pytest.raises(Unconfirmed, match="the kernel has lost the rule from p03 to broker"):
        await link.lift()
    assert network.in_force == set()


async def test_a_link_in_use_that_nothing_tries_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepeer.emulation.faults.links._TRAFFIC_S", 0.05)
    scene = scene_of()
    link = LinkFault(fault("partition", "0,2|1,3@5.."), scene, CutBook(scene))
    await link.inject()
    with pytest.raises(Unconfirmed, match="nothing tried to pass between p00 and p01, which are neighbours"):
        await link.lift()


async def test_no_traffic_is_expected_where_there_is_no_link() -> None:
    scene = scene_of()
    link = LinkFault(fault("cut", "3-2@5..10"), scene, CutBook(scene))
    await link.inject()
    await link.lift()
    assert link.confirmed["note"] == "no traffic between them is to be expected"


async def test_what_two_faults_cut_is_healed_with_the_second() -> None:
    network = Memory()
    scene = scene_of(network=network)
    book = CutBook(scene)
    network.counts = dict.fromkeys([("p03", "p01"), ("p01", "p03")], 0)
    one = LinkFault(fault("cut", "3>1@5..10"), scene, book)
    other = LinkFault(fault("isolate", "3@5..12"), scene, book)
    await one.inject()
    network.counts = {("p03", "p01"): 4}
    await other.inject()
    network.counts = {("p03", "p01"): 6, ("p01", "p03"): 5}
    await one.lift()
    assert one.confirmed["dropped"] == {"p03>p01": 6}
    assert ("p03", "p01") in network.in_force
    assert ("p03", "p01") in book.ways
    await other.lift()
    assert other.confirmed["dropped"]["p03>p01"] == 2
    assert network.in_force == set()
    assert book.ways == frozenset()
