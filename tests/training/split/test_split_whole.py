"""Who puts a trained model together finds blocks that have gone wrong since, and does without them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from undivided import batches_for

from edgepeer.errors import JobError
from edgepeer.training.form import Form
from edgepeer.training.job import Job, new_job
from edgepeer.training.split.cell import Cell
from edgepeer.training.split.dense import dense_network
from edgepeer.training.split.export import read_whole
from edgepeer.training.split.fleet import LocalFleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.part import Part
from edgepeer.training.split.whole import whole_model

FORM = Form(input_shape=(7,), outputs=4, loss="crossentropy")
ROUNDS = 5


def trained(name: str) -> tuple[Job, list[Cell]]:
    job = new_job(model="mlp", split=name, optimizer="sgd:momentum=0.9", rounds=ROUNDS, wait_for=64)
    network = dense_network(job, FORM)
    fleet = LocalFleet(network, parse_split(name, network.dtype), batches_for(network), iterations=ROUNDS)
    fleet.train()
    return job, [fleet.cells[node] for node in sorted(fleet.cells)]


def parts_of(cells: list[Cell]) -> list[Part]:
    return [Part(node=cell.node, iteration=ROUNDS, form=FORM, blocks=cell.pack()) for cell in cells]


def whole(job: Job, parts: list[Part]) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(read_whole(dense_network(job, FORM), whole_model(job, parts)[0]))


def garbage(cell: Cell) -> None:
    cell.blocks[1][...] = 1.0


def one_weight(cell: Cell) -> None:
    cell.blocks[0].flat[3] += 4 * np.abs(cell.blocks[0]).max()


def not_a_number(cell: Cell) -> None:
    cell.blocks[0].flat[0] = np.nan


SPLITS = ("codenet:m=2,n=2,t=1", "codenet:m=1,n=1,t=1", "replicate:m=2,n=1,copies=3", "polydot:m=2,n=2")
WRONG = (garbage, one_weight, not_a_number)


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("spoil", WRONG)
def test_wrong_blocks_of_any_node_are_left_out(
    name: str, spoil: Callable[[Cell], None], caplog: pytest.LogCaptureFixture
) -> None:
    """They were taken for as good as the others', which spoiled the whole model."""
    job, cells = trained(name)
    right = whole(job, parts_of(cells))
    assert not caplog.messages
    for cell in cells:
        before = [block.copy() for block in cell.blocks]
        spoil(cell)
        np.testing.assert_allclose(whole(job, parts_of(cells)), right, atol=1e-5)
        assert caplog.messages.pop() == f"the blocks of node {cell.node} are wrong: left out"
        caplog.clear()
        for block, good in zip(cell.blocks, before, strict=True):
            block[...] = good


def test_damaged_blocks_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was saved then, though the others' were enough."""
    job, cells = trained(SPLITS[0])
    parts = parts_of(cells)
    right = whole(job, parts)
    damaged = parts[3].blocks[:-40] + b"?" + parts[3].blocks[-39:]
    parts[3] = Part(node=3, iteration=ROUNDS, form=FORM, blocks=damaged)
    np.testing.assert_allclose(whole(job, parts), right, atol=1e-5)
    assert "the blocks of node 3 are left out: " in caplog.text
    with pytest.raises(JobError, match=r"can't be put together from 1 parts: .*damaged"):
        whole_model(job, parts[3:4])


@pytest.mark.parametrize("name", ["replicate:m=2,n=1,copies=2", "codenet:m=1,n=1,t=1", "abft:m=2,n=2"])
def test_blocks_that_contradict_each_other_are_no_model(name: str) -> None:
    job, cells = trained(name)
    garbage(cells[0])
    cells[-1].blocks[1][...] = 2.0
    with pytest.raises(JobError, match=f"can't be put together from {len(cells)} parts"):
        whole_model(job, parts_of(cells))


def test_as_few_as_will_do_are_a_model_and_so_is_what_has_diverged() -> None:
    job, cells = trained(SPLITS[0])
    right = whole(job, parts_of(cells))
    np.testing.assert_allclose(whole(job, parts_of(cells[:2] + cells[4:6])), right, atol=1e-5)
    for cell in cells:
        not_a_number(cell)
    assert np.isnan(whole(job, parts_of(cells))).any()
    job, cells = trained("none:m=2,n=2")
    garbage(cells[0])
    assert len(whole(job, parts_of(cells))), "without a code nobody can tell"
