"""Whatever happens to peers and links, and when: nobody commits another sum for a round than anybody else."""

from __future__ import annotations

import pytest
from company import Company
from hypothesis import given
from hypothesis import strategies as st
from transcript import vector, view

from edgepeer.ids import Generation
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.topology.view import View

names = st.sampled_from("abcde")
pairs = st.tuples(names, names).filter(lambda pair: pair[0] != pair[1]).map("".join)
sides = st.sets(names, min_size=1, max_size=4)
waits = st.one_of(
    st.floats(0.0, 0.006).map(lambda time: round(time, 4)),  # some of a round, which takes six hops
    st.sampled_from([0.05, 0.5, 1.1, 3.2, 6.0]),  # some of what is done about it
)
steps = st.one_of(
    waits,
    waits,
    st.sampled_from(["contribute", "contribute", "mend", "broker"]),
    pairs.map(lambda pair: f"disconnect {pair}"),
    pairs.map(lambda pair: f"sever {pair[0]}>{pair[1]}"),
    sides.map(lambda side: f"part {''.join(sorted(side))}"),
    names.map(lambda name: f"kill {name}"),
)


def follow(company: Company, step: str | float, world: View) -> None:
    if isinstance(step, float):
        company.until(company.now + step)
        return
    what, _, which = step.partition(" ")
    match what:
        case "contribute":
            contribute(company)
        case "mend":
            company.mend()
        case "broker":
            company.broker = not company.broker
        case "disconnect":
            company.disconnect(which)
        case "sever":
            company.sever(which)
        case "part":
            company.sever(*[one + other for one in which for other in world.ids if other not in which])
        case "kill" if len(company.dead) < 4:
            company.kill(which)


def contribute(company: Company) -> None:
    """Each that can brings its own bit."""
    for name, machine in company.machines.items():
        if machine.node.view is not None and not machine.node.allreduce.contributed:
            company.hear(name, ev.Contribute(vector(1 << "abcde".index(name)), 1.0))


def check(company: Company) -> dict[int, float]:
    """The sums of the rounds that count anywhere, by those who have gone since, too; nobody has begun anew."""
    sums: dict[int, float] = {}
    last: dict[str, int] = {}
    for _, name, effect in company.effects(fx.RoundCommitted):
        assert isinstance(effect, fx.RoundCommitted)
        assert effect.generation == Generation()
        assert effect.round > last.get(name, 0)
        last[name] = effect.round
        total = float(effect.sum[0])
        assert total == sum(1 << "abcde".index(peer) for peer in effect.contributors)
        assert sums.setdefault(effect.round, total) == total, f"round {effect.round} at {name}"
    return sums


@pytest.mark.parametrize("world", [view(1, "abc"), view(1, "abcd"), view(1, "abcde"), view(1, "abcde", fanout=1)])
@given(story=st.lists(steps, min_size=3, max_size=25))
def test_nobody_commits_what_others_do_not(world: View, story: list[str | float]) -> None:
    company = Company(world)
    company.until(1.0)
    contribute(company)
    for step in story:
        if not isinstance(step, str) or all(name in world for name in step.partition(" ")[2].replace(">", "")):
            follow(company, step, world)
    company.until(company.now + 5.0)
    check(company)


@pytest.mark.parametrize("world", [view(1, "abcde"), view(1, "abcde", fanout=1)])
@given(
    moments=st.lists(st.floats(0.0, 0.008), min_size=1, max_size=2),
    lost=st.lists(names, min_size=1, max_size=2, unique=True),
)
def test_whoever_is_lost_in_a_round_and_in_the_one_that_follows_the_others_agree_and_go_on(
    world: View, moments: list[float], lost: list[str]
) -> None:
    """The second is lost while the result of the first view is put forward again in the next."""
    company = Company(world)
    company.until(1.0)
    contribute(company)
    for name, moment in zip(lost, moments, strict=False):
        company.until(company.now + moment)
        company.kill(name)
        began = company.now
        living = [company[other].node for other in world.ids if other not in company.dead]
        before = {node.view for node in living}
        while {node.view for node in living} == before and company.now < began + 9.0:
            company.until(company.now + 0.0007)
    company.until(company.now + 9.0)
    contribute(company)
    company.until(company.now + 9.0)
    check(company)
    assert {company[name].node.allreduce.committed for name in world.ids if name not in company.dead} == {2}
