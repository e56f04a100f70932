from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.training.datasets import Dataset, load_dataset
from edgepeer.training.seeded import bits, permutation, uniform
from edgepeer.training.sharding import Shard, shard_of

seeds = st.integers(0, 2**32 - 1)


@given(samples=st.integers(0, 300), peers=st.integers(1, 40), batch_size=st.integers(1, 50), seed=seeds)
def test_shards_share_out_every_sample_once(samples: int, peers: int, batch_size: int, seed: int) -> None:
    shards = [Shard(samples=samples, position=p, peers=peers, batch_size=batch_size, seed=seed) for p in range(peers)]
    assert sorted(np.concatenate([shard.indices for shard in shards])) == list(range(samples))
    sizes = [len(shard.indices) for shard in shards]
    assert sizes == [shard.size for shard in shards]
    assert max(sizes) - min(sizes) <= 1


@given(
    samples=st.integers(0, 200),
    peers=st.integers(1, 20),
    batch_size=st.integers(1, 50),
    seed=seeds,
    walk=st.integers(0, 10**6),
    data=st.data(),
)
def test_every_pass_covers_the_shard_once(
    samples: int, peers: int, batch_size: int, seed: int, walk: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, peers - 1))
    shard = Shard(samples=samples, position=position, peers=peers, batch_size=batch_size, seed=seed)
    rounds = range(walk * shard.batches + 1, (walk + 1) * shard.batches + 1)
    batches = [shard.batch(number) for number in rounds]
    assert sorted(np.concatenate([*batches, np.empty(0, np.int64)])) == sorted(shard.indices)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    if shard.size:
        assert 1 <= len(batches[-1]) <= batch_size
    else:
        assert len(shard.batch(walk + 1)) == 0


def test_a_batch_is_a_function_of_its_round_alone() -> None:
    def shard() -> Shard:
        return Shard(samples=1000, position=2, peers=7, batch_size=30, seed=5)

    forward = [shard().batch(number).tolist() for number in range(1, 40)]
    one = shard()
    backward = [one.batch(number).tolist() for number in range(39, 0, -1)]
    assert forward == backward[::-1]
    assert forward[0] != forward[5]  # a pass has 5 batches; the next is in another order
    assert one.batch(10_000_000).tolist() == shard().batch(10_000_000).tolist()


def test_seed_and_position_change_the_order() -> None:
    base = Shard(samples=100, position=0, peers=1, batch_size=100, seed=1)
    other = Shard(samples=100, position=0, peers=1, batch_size=100, seed=2)
    assert base.batch(1).tolist() != other.batch(1).tolist()
    assert base.indices.tolist() != other.indices.tolist()


def test_what_a_caller_does_to_a_batch_stays_with_the_caller() -> None:
    shard = Shard(samples=50, position=0, peers=1, batch_size=50, seed=1)
    first = shard.batch(1)
    expected = first.tolist()
    first[:] = 0
    assert shard.batch(1).tolist() == expected


@pytest.mark.parametrize("wrong", [{"samples": -1}, {"position": 3}, {"position": -1}, {"peers": 0}, {"batch_size": 0}])
def test_impossible_shards_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no such shard"):
        Shard(**{"samples": 10, "position": 0, "peers": 3, "batch_size": 5, "seed": 0, **wrong})
    with pytest.raises(ValueError, match="count from 1"):
        Shard(samples=10, position=0, peers=3, batch_size=5, seed=0).batch(0)


def test_local_data_is_not_shared_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.zeros((10, 2)), y=np.arange(10))
    mine = load_dataset("local:mine.npz", data_dir=tmp_path)
    ours = load_dataset("npz:mine.npz", data_dir=tmp_path)
    assert shard_of(mine, position=3, peers=4, batch_size=5, seed=0).size == 8
    assert shard_of(ours, position=3, peers=4, batch_size=5, seed=0).size == 2


def test_digits_over_seven_peers_are_uneven(digits: Dataset) -> None:
    shards = [shard_of(digits, position=p, peers=7, batch_size=100, seed=0) for p in range(7)]
    assert sorted({shard.size for shard in shards}) == [205, 206]
    assert [len(shards[0].batch(number)) for number in range(1, 7)] == [100, 100, 5, 100, 100, 5]


@given(count=st.integers(0, 500), seed=seeds)
def test_permutations_permute(count: int, seed: int) -> None:
    assert sorted(permutation(count, "test", seed)) == list(range(count))


def test_uniform_numbers_fill_their_range_evenly() -> None:
    numbers = uniform(100_000, 0.5, "test")
    assert numbers.dtype == np.float32
    assert -0.5 <= numbers.min() < -0.49
    assert 0.49 < numbers.max() < 0.5
    assert abs(numbers.mean()) < 0.005
    assert abs(numbers.std() - 1 / 12**0.5) < 0.005


def test_randomness_is_the_same_on_every_device_and_for_all_time() -> None:
    assert bits(3, "golden", 1).tolist() == [9758367037378047256, 12316170702199103849, 2194212309072535098]
    assert permutation(8, "golden", 1).tolist() == [2, 7, 3, 0, 6, 1, 5, 4]
