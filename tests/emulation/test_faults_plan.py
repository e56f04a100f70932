"""What can't happen, or not together, is refused before anything starts."""

from __future__ import annotations

import pytest
from stage import Memory

from edgepeer.emulation.faults.plan import make_plan, possible
from edgepeer.emulation.faults.texts import write
from edgepeer.errors import ConfigError

Given = dict[str, list[str]]

REFUSED: list[tuple[Given, str]] = [
    ({"cut": ["9-1@5..10"]}, "cut = 9-1@5..10: peer 9 is unknown: must be 0 to 6"),
    ({"cut": ["pos7-1@5..10"]}, "cut = pos7-1@5..10: position 7 is not in the tree: must be 0 to 6"),
    ({"kill": ["4@101"]}, "kill = 4@101: the job ends before that: must be in rounds 1 to 100"),
    ({"restart": ["4@25"]}, "restart = 4@25: peer 4 is not dead then: it must be killed before, by kill"),
    ({"restart": ["4@25"], "kill": ["4@30"]}, "restart = 4@25: peer 4 is not dead then"),
    ({"restart": ["4@25"], "kill": ["3@20"]}, "restart = 4@25: peer 4 is not dead then"),
    ({"restart": ["4@25"], "kill": ["4@25"]}, "restart = 4@25: must come after kill 4@25"),
    ({"restart": ["4@25s"], "kill": ["4@20"]}, "kill 4@20 counts otherwise: both must be in rounds, or in seconds"),
    ({"kill": ["4@20", "4@30"]}, "kill = 4@30: peer 4 is dead since kill 4@20: it must be restarted first"),
    ({"kill": ["4@20"], "pause": ["4@22..24"]}, "pause = 4@22..24: peer 4 is dead since kill 4@20"),
    ({"kill": ["4@20"], "pause": ["4@18..24"]}, "kill = 4@20: pause 4@18..24 is not over then"),
    ({"pause": ["4@18..24", "4@24..30"]}, "pause = 4@24..30: pause 4@18..24 is not over then: they must not overlap"),
    ({"slow": ["4x2"], "pause": ["4@18..24"]}, "pause = 4@18..24: slow 4x2@1.. is not over then"),
    ({"broker_down": ["5..20", "10..30"]}, "broker_down = 10..30: broker_down 5..20 is not over then"),
    ({"partition": ["0,1,2|3,4,5@10..20"]}, "peer 6 is on no side: name all 7, or let one side be rest"),
    ({"partition": ["root,pos1|leaf@10..20"]}, "4 of 7 peers are on no side: name all 7, or let one side be rest"),
    ({"partition": ["0,1,2|3,4,5,6|rest@10..20"]}, "nobody is left for the rest"),
    (
        {"partition": ["0,1,2|3,4|rest@10..20"]},
        "partition = 0,1,2|3,4|rest@10..20: rounds end at 10: no side of 0,1,2|3,4|rest@10..20 has half of the 7 "
        "peers; give all times in seconds",
    ),
    (
        {"pause": [f"{number}@{start}..50" for number, start in enumerate((10, 10, 10, 10))]},
        "pause = 0@10..50: rounds end at 10: 4 of 7 peers are frozen, cut off or killed then",
    ),
    (
        {"kill": ["4@10", "5@10", "6@10"], "isolate": ["3@20..", "2@30.."], "pause": ["root@40..44"]},
        "pause = root@40..44: rounds end at 40: 1 of 2 peers are frozen, cut off or killed then",
    ),
    (
        {"broker_down": ["10..50"], "kill": ["root@20"], "cut": ["root-leaf@30..40"]},
        "cut = root-leaf@30..40: after kill root@20 nobody can tell who that is while the broker is down: give a "
        "number",
    ),
    (
        {"kill": ["0@10", "1@20", "2@20", "3@20", "4@20"], "restart": ["2@25"]},
        "restart = 2@25: rounds end at 20: 4 of 6 peers are killed then, and the others are too few to go on; give all "
        "times in seconds, such as 20s",
    ),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_refusals(given: Given, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(given, peers=7, rounds=100)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("given", "refused"), [("0@20..40", True), ("root@20..40", True), ("1@20..40", False)])
def test_of_two_the_head_must_be_there(given: str, refused: bool) -> None:
    assert len(make_plan({"isolate": [given]}, peers=2, rounds=100)) == 1
    if refused:
        with pytest.raises(ConfigError, match="1 of 2 peers are frozen, cut off or killed then, and the others are"):
            make_plan({"pause": [given]}, peers=2, rounds=100)
    else:
        assert len(make_plan({"pause": [given]}, peers=2, rounds=100)) == 1


def test_soft_errors_are_of_nodes_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"flip = 3@50: only split jobs have soft errors: add --split, such as "):
        make_plan({"flip": ["3@50"]}, peers=7, rounds=100)
    with pytest.raises(ConfigError, match=r"flip = 12@50: node 12 is unknown: the split has 0 to 11"):
        make_plan({"flip": ["12@50"]}, peers=13, rounds=100, nodes=12)
    with pytest.raises(ConfigError, match=r"flip = 3@101: the job ends before that: must be in rounds 1 to 100"):
        make_plan({"flip": ["3@101"]}, peers=13, rounds=100, nodes=12)
    twice = {"flip": ["3@50", "3@50:kind=nan,place=product"], "kill": ["3@50"]}
    assert len(make_plan(twice, peers=13, rounds=100, nodes=12)) == 3


def test_a_broker_of_somebody_else_is_not_stopped() -> None:
    with pytest.raises(ConfigError, match=r"broker_down = 5\.\.10: only a broker that is started here can be stopped"):
        make_plan({"broker_down": ["5..10"]}, peers=7, rounds=100, own_broker=False)


@pytest.mark.parametrize(
    "given",
    [
        {"kill": ["4@20", "4@30"], "restart": ["4@25"]},
        {"pause": ["4@18..24", "4@25..30"], "kill": ["4@31"]},
        {"cut": ["3-1@5..10", "3-1@7..12", "3>1@5s.."], "isolate": ["3@6.."]},
        {"broker_down": ["5s..6s", "6s..7s"]},
        {"broker_down": ["10..50"], "kill": ["root@20"], "cut": ["1-2@30..40", "root-leaf@51..60"]},
        {"kill": ["4@10", "5@10", "6@10"], "isolate": ["3@20..", "2@30..35"], "pause": ["root@40..44"]},
        {"partition": ["0,1,2|3,4|rest@10..", "0,1,2|3,4|rest@10s..20s"]},
        {"kill": ["0@10", "1@20", "2@20", "3@20"], "restart": ["2@25"]},
        {"kill": ["0@20s", "1@20s", "2@20s", "3@20s"], "restart": ["2@25s"]},
        {"kill": ["0@20", "1@20", "2@20", "3@20"]},
        {"partition": ["0,1,2|3,4,5,6,broker@10..20", "pos1,pos2|rest@30.."], "kill": ["1@15", "2@3s"]},
    ],
    ids=str,
)
def test_what_can_happen(given: Given) -> None:
    plan = make_plan(given, peers=7, rounds=100)
    assert sorted(map(write, plan)) == sorted(text for texts in given.values() for text in texts)
    for unit in ("round", "second"):
        starts = [fault.span.start for fault in plan if fault.span.unit == unit]
        assert starts == sorted(starts)


def test_a_network_without_a_firewall_has_no_faults_of_links() -> None:
    network = Memory()
    plan = make_plan({"cut": ["3-1@5..10"], "isolate": ["2@5.."], "kill": ["4@20"]}, peers=7, rounds=100)
    notes: list[str] = []
    assert possible(plan, network, skip=True, note=notes.append) == plan
    network.mode = "none"
    with pytest.raises(ConfigError, match=r"^cut = 3-1@5\.\.10: a memory; --skip-impossible leaves it out$"):
        possible(plan, network, skip=False, note=notes.append)
    assert notes == []
    kept = possible(plan, network, skip=True, note=notes.append)
    assert [fault.kind for fault in kept] == ["kill"]
    assert notes == ["left out cut 3-1@5..10: a memory", "left out isolate 2@5..: a memory"]
    assert possible(kept, network, skip=False, note=notes.append) == kept
