"""The stages of a round: the table that is executed is the one in the docstring, and nothing else is possible."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transcript import vector

from edgepeer.errors import ProtocolBug
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import round as module
from edgepeer.protocol.closing import Closed
from edgepeer.protocol.headers import Shape
from edgepeer.protocol.inview import InView
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.round import MOVES, Round, Stage
from edgepeer.protocol.streams import NOTHING, digest_of
from edgepeer.topology.view import Member, View
from edgepeer.wire.frames import Commit

ALONE = View(epoch=1, members=(Member(id="a", incarnation=1),))
HERE = InView(ALONE, PeerId("a"))
RATES = Rates(Limits())


def commit(dropped: bool = False) -> Commit:
    return Commit(
        decided_in=ALONE.stamp,
        held_in=ALONE.stamp,
        generation=Generation(),
        contributors=b"\x01",
        weight=1.0,
        exact=True,
        digest=digest_of(NOTHING),
        final=False,
        dropped="timeout" if dropped else None,
    )


def closed(rd: Round) -> None:
    rd.close(Closed((), False, 1, ""), {})


def held(rd: Round) -> None:
    rd.announce(commit(), ALONE)
    rd.hold(vector(1), 0.0)


METHODS: dict[str, Callable[[Round], object]] = {
    "take part": lambda rd: rd.contribute(vector(1), 1.0, 0.0),
    "close": closed,
    "encode": lambda rd: rd.encode(vector(1), Shape(1, "<f4")),
    "hold": held,
    "decide": lambda rd: rd.decide(),
    "drop": lambda rd: rd.drop(),
    "cut": lambda rd: rd.again(HERE, RATES, may_be_decided=False, now=0.0),
}


def at(stage: Stage) -> Round:
    """A round that has come to that stage by moves alone."""
    rd = Round(HERE.trees, RATES, coded=stage is Stage.OPEN)
    if stage in (Stage.HELD, Stage.DECIDED):
        held(rd)
    if stage is Stage.DECIDED:
        rd.decide()
    elif stage is Stage.DROPPED:
        rd.drop()
    elif stage is Stage.CUT:
        rd.again(HERE, RATES, may_be_decided=False, now=0.0)
    assert rd.stage is stage
    return rd


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("move", MOVES)
def test_what_the_table_does_not_have_is_a_bug(move: str, stage: Stage) -> None:
    rd = at(stage)
    if stage in MOVES[move]:
        METHODS[move](rd)
        assert rd.stage is MOVES[move][stage]
        return
    rd.announce(commit(), ALONE)
    rd.held = vector(1) if move == "decide" else rd.held
    with pytest.raises(ProtocolBug, match=f"^a round that is {stage.value} can't {move}$"):
        METHODS[move](rd)


def test_an_empty_result_that_counts_is_a_round_dropped() -> None:
    rd = Round(HERE.trees, RATES, coded=False)
    rd.hold(rd.give_up(ALONE, "timeout", "too long"), 0.0)
    rd.decide()
    assert rd.stage is Stage.DROPPED


def test_the_docstring_has_the_table() -> None:
    rows = [line.split("|") for line in (module.__doc__ or "").splitlines() if line.count("|") == 3]
    told: dict[str, list[str]] = {}
    for name, *cells, _ in rows[1:]:
        if name.strip():
            told[name.strip()] = of = ["", ""]
        of[:] = [f"{before} {cell.strip()}".strip() for before, cell in zip(of, cells, strict=True)]
    assert told.keys() == MOVES.keys()
    for move, cells in told.items():
        sources, targets = ([part.strip() for part in cell.split(",")] for cell in cells)
        targets = sources if targets == ["the same"] else targets * len(sources) if len(targets) == 1 else targets
        assert MOVES[move] == {Stage(a): Stage(b) for a, b in zip(sources, targets, strict=True)}, move
