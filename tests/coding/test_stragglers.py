"""The speed model with other stragglers in each round."""

from __future__ import annotations

import pytest

from edgepeer.coding.speed import parse_speed
from edgepeer.errors import ConfigError

PEERS = tuple(f"p{number:02d}" for number in range(12))


def slow_in(round_: int, *, seed: int = 0, share: float = 0.25) -> set[str]:
    speed = parse_speed(f"stragglers:0.1,8,{share}")
    times = {peer: speed.seconds(peer, round_, 0, seed, among=PEERS) for peer in PEERS}
    assert set(times.values()) <= {0.1, 0.8}
    return {peer for peer, time in times.items() if time == 0.8}


def test_always_so_many_and_others_in_each_round() -> None:
    rounds = [slow_in(round_) for round_ in range(1, 401)]
    assert {len(slow) for slow in rounds} == {3}
    counts = [sum(peer in slow for slow in rounds) for peer in PEERS]
    assert min(counts) > 60  # 100 each, on average
    assert max(counts) < 140
    assert slow_in(1) == slow_in(1)
    assert [slow_in(round_, seed=1) for round_ in range(1, 11)] != rounds[:10]


def test_all_chunks_of_a_round_are_equally_slow() -> None:
    speed = parse_speed("stragglers:0.1,8,0.25")
    for peer in PEERS:
        assert len({speed.seconds(peer, 7, chunk, among=PEERS) for chunk in range(12)}) == 1


@pytest.mark.parametrize(("share", "count"), [(0, 0), (0.04, 0), (0.05, 1), (0.5, 6), (1, 12)])
def test_shares(share: float, count: int) -> None:
    assert len(slow_in(3, share=share)) == count


def test_where_nobody_says_who_is_there() -> None:
    speed = parse_speed("stragglers:1,3,0.25")
    slow = sum(speed.seconds("a", round_, 0) == 3 for round_ in range(2000))
    assert 420 < slow < 580


@pytest.mark.parametrize(
    "text", ["stragglers:0.1,8", "stragglers:0.1,0.5,0.2", "stragglers:0.1,8,1.5", "stragglers:-1,8,0"]
)
def test_what_makes_no_sense(text: str) -> None:
    with pytest.raises(ConfigError, match="stragglers"):
        parse_speed(text)
