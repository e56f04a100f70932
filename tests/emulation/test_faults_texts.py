"""Faults as text: whatever can be written can be read again, and what can't is refused in one line."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.emulation.faults.kinds import (
    BROKER,
    BrokerDown,
    Cut,
    Flip,
    Isolate,
    Kill,
    Partition,
    Pause,
    PlannedFault,
    Restart,
    Slow,
    Span,
    Who,
)
from edgepeer.emulation.faults.texts import SHAPES, read, write
from edgepeer.errors import ConfigError
from edgepeer.training.split.faults import Kind, Place


def number(index: int) -> Who:
    return Who("number", index)


ROOT, LEAF = Who("position", 0), Who("last")
TO_THE_END = Span("round", 1)

EXAMPLES: dict[tuple[str, str], PlannedFault] = {
    ("cut", "3-1@5..10"): Cut(source=number(3), target=number(1), span=Span("round", 5, 10)),
    ("cut", "3>1@5..10"): Cut(source=number(3), target=number(1), both=False, span=Span("round", 5, 10)),
    ("cut", "3-1@5.."): Cut(source=number(3), target=number(1), span=Span("round", 5)),
    ("cut", "3-1@5s..10s"): Cut(source=number(3), target=number(1), span=Span("second", 5, 10)),
    ("cut", "pos3-root@0.5s.."): Cut(source=Who("position", 3), target=ROOT, span=Span("second", 0.5)),
    ("cut", "12-broker@5..5"): Cut(source=number(12), target=BROKER, span=Span("round", 5, 5)),
    ("kill", "4@20"): Kill(peer=number(4), span=Span("round", 20)),
    ("kill", "leaf@1.5s"): Kill(peer=LEAF, span=Span("second", 1.5)),
    ("restart", "4@25"): Restart(peer=number(4), span=Span("round", 25)),
    ("pause", "5@8..12"): Pause(peer=number(5), span=Span("round", 8, 12)),
    ("slow", "6x4"): Slow(peer=number(6), factor=4, span=TO_THE_END),
    ("slow", "6x1.5@3..9"): Slow(peer=number(6), factor=1.5, span=Span("round", 3, 9)),
    ("broker_down", "10..30"): BrokerDown(span=Span("round", 10, 30)),
    ("isolate", "2@15..18"): Isolate(peer=number(2), span=Span("round", 15, 18)),
    ("flip", "3@50"): Flip(node=3, span=Span("round", 50)),
    ("flip", "13@1:kind=nan"): Flip(node=13, how="nan", span=Span("round", 1)),
    ("flip", "0@7:kind=sparse,place=verdict"): Flip(node=0, how="sparse", place="verdict", span=Span("round", 7)),
    ("partition", "0,1,2|3,4,5,6@10..20"): Partition(
        sides=(tuple(map(number, (0, 1, 2))), tuple(map(number, (3, 4, 5, 6)))), span=Span("round", 10, 20)
    ),
    ("partition", "0,broker|rest@10.."): Partition(sides=((number(0), BROKER), ()), span=Span("round", 10)),
}


@pytest.mark.parametrize(("kind", "text"), EXAMPLES)
def test_examples(kind: str, text: str) -> None:
    fault = EXAMPLES[kind, text]
    assert read(kind, text) == fault
    assert fault.kind == kind
    assert write(fault) == (text if text != "6x4" else "6x4@1..")
    spaced = text.replace(",", " , ").replace("|", " | ").replace("@", " @ ")
    assert read(kind, spaced) == fault
    assert isinstance(read(kind, text).span.start, float)


thousandths = st.integers(0, 10**9).map(lambda value: value / 1000)


@st.composite
def spans(draw: st.DrawFn, *, lasts: bool = True) -> Span:
    if draw(st.booleans()):
        start = draw(st.integers(1, 10**6))
        end = draw(st.none() | st.integers(start, 10**6 + 5)) if lasts else None
        return Span("round", start, end)
    begin = draw(thousandths)
    length = draw(st.none() | st.integers(1, 10**6)) if lasts else None
    return Span("second", begin, None if length is None else round(1000 * begin + length) / 1000)


peers = st.builds(Who, st.sampled_from(["number", "position"]), st.integers(0, 63)) | st.just(LEAF)


@st.composite
def cuts(draw: st.DrawFn) -> PlannedFault:
    ends = draw(st.lists(peers, min_size=2, max_size=2, unique=True))
    if draw(st.booleans()):
        return Cut(source=ends[0], target=BROKER, span=draw(spans()))
    return Cut(source=ends[0], target=ends[1], both=draw(st.booleans()), span=draw(spans()))


@st.composite
def partitions(draw: st.DrawFn) -> PlannedFault:
    named = draw(st.lists(peers, min_size=2, max_size=12, unique=True))
    marks = draw(st.sets(st.integers(1, len(named) - 1), min_size=1))
    edges = [0, *sorted(marks), len(named)]
    sides = [tuple(named[a:b]) for a, b in pairwise(edges)]
    if draw(st.booleans()):
        sides[0] = (*sides[0], BROKER)
    if draw(st.booleans()):
        sides.insert(draw(st.integers(0, len(sides))), ())
    return Partition(sides=tuple(sides), span=draw(spans()))


faults: st.SearchStrategy[PlannedFault] = (
    cuts()
    | partitions()
    | st.builds(Isolate, peer=peers, span=spans())
    | st.builds(Pause, peer=peers, span=spans())
    | st.builds(Kill, peer=peers, span=spans(lasts=False))
    | st.builds(Restart, peer=peers, span=spans(lasts=False))
    | st.builds(Slow, peer=peers, factor=st.integers(1001, 100_000).map(lambda f: f / 1000), span=spans())
    | st.builds(BrokerDown, span=spans())
    | st.builds(
        Flip,
        node=st.integers(0, 63),
        how=st.sampled_from(get_args(Kind)),
        place=st.sampled_from(get_args(Place)),
        span=st.builds(Span, st.just("round"), st.integers(1, 10**6)),
    )
)


@given(faults)
def test_what_is_written_can_be_read(fault: PlannedFault) -> None:
    assert read(fault.kind, write(fault)) == fault


@given(
    st.sampled_from(sorted(SHAPES)),
    st.text(alphabet="0123456789s@.-,>|x:= posrtleafbkindc\n٣", max_size=20) | st.text(),
)
def test_any_text_is_a_fault_or_refused_in_one_line(kind: str, text: str) -> None:
    try:
        fault = read(kind, text)
    except ConfigError as error:
        said = str(error)
    else:
        assert read(kind, write(fault)) == fault
        return
    assert said.startswith(f"{kind} = ")
    assert said.isprintable()
    assert len(said) < 400


REFUSED = {
    ("cut", "3-1"): "cut = 3-1: must be A-B (both directions) or A>B, then @FROM..TO",
    ("cut", "3@5..10"): "must be A-B",
    ("cut", "3-3@5..10"): "a link has two different ends",
    ("cut", "3>broker@5..10"): "a link to the broker is cut in both directions",
    ("cut", "3-1@10..5"): "cut = 3-1@10..5: ends before it starts: the end must be at least the start",
    ("cut", "3-1@5s..5s"): "the end must be after the start",
    ("cut", "3-1@5..10s"): "must begin and end in one unit",
    ("cut", "3-1@0..10"): "rounds are whole numbers from 1",
    ("cut", "3-1@1.5..10"): "rounds are whole numbers from 1",
    ("kill", "4"): "kill = 4: must be PEER@ROUND",
    ("kill", "4@20..30"): "must be PEER@ROUND",
    ("kill", "broker@20"): "must be PEER@ROUND",
    ("kill", "p04@20"): "must be PEER@ROUND",
    ("slow", "6x1"): "the factor must be above 1, at most 100",
    ("slow", "6x101"): "the factor must be above 1, at most 100",
    ("slow", "6"): "must be PEERxFACTOR",
    ("broker_down", "x"): "must be FROM..TO",
    ("partition", "0,1@5.."): "must be sides",
    (
        "flip",
        "3",
    ): "flip = 3: must be NODE@ROUND, a node of the split from 0, then nothing or :kind=sparse|garbage|flip|nan",
    ("flip", "root@3"): "must be NODE@ROUND",
    ("flip", "3@5s"): "a soft error comes in a round: without s",
    ("flip", "3@0"): "rounds are whole numbers from 1",
    ("flip", "3@5:"): "must be NODE@ROUND",
    ("flip", "3@5:kind=loud"): "must be NODE@ROUND",
    ("flip", "3@5:kind=nan,kind=nan"): "must be NODE@ROUND",
    ("flip", "3@5:place=nan"): "must be NODE@ROUND",
    ("partition", "0,1|1,2@5.."): "nobody can be on two sides",
    ("partition", "rest|rest@5.."): "only one side can be the rest",
    ("partition", "broker|rest@5.."): "the broker can't be a side of its own",
    ("partition", "0,|1@5.."): "must be sides",
}


@pytest.mark.parametrize(("kind", "text"), REFUSED)
def test_refusals(kind: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(kind, text)
    assert REFUSED[kind, text] in str(caught.value)
