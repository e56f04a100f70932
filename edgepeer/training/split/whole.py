"""The trained model of a split job, put together from the blocks of its peers by who wants to use it.

Peers don't: whoever does this is no part of the run, and must have the memory for the whole model. It looks at the
blocks as a scrub does: a machine may go wrong when training is over, too, and where the code can name such blocks, the
others make up for them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from edgepeer.coding.matrix.scrub import probe
from edgepeer.errors import ConfigError, JobError, ModelError, Undecodable, WireError
from edgepeer.training.job import Job
from edgepeer.training.split.assembly import assembled
from edgepeer.training.split.cell import Cell
from edgepeer.training.split.export import pack_whole, parameters_vector
from edgepeer.training.split.network import Network
from edgepeer.training.split.part import Part
from edgepeer.training.split.strategy import Split
from edgepeer.training.split_choice import choose_split
from edgepeer.training.state import parameter_digest

__all__ = ["whole_model"]

_log = logging.getLogger(__name__)


def whole_model(job: Job, parts: Sequence[Part]) -> tuple[bytes, str]:
    """The state that `saved.save_model` takes, and its digest.

    Args:
        parts: of the same iteration; not all nodes' are needed. Those that are damaged, or wrong, are left out.

    Raises:
        JobError: they don't determine the model, contradict each other, or are not of this job.
    """
    if not parts:
        raise JobError("no peer has handed over its blocks of the model")
    if len({part.iteration for part in parts}) > 1:
        told = ", ".join(map(str, sorted({part.iteration for part in parts})))
        raise JobError(f"the blocks are of different iterations: {told}")
    try:
        chosen = choose_split(job, parts[0].form)
        if chosen is None:
            raise JobError(f"job {job.id} is no split one")
        network, split = chosen
        cells = _undamaged(network, split, parts)
        for node in _wrong(network, split, cells, parts[0].iteration):
            _log.warning("the blocks of node %d are wrong: left out", node)
            cells.pop(node, None)
        weights = [
            assembled(split, network.shape(layer), {node: cell.blocks[layer] for node, cell in cells.items()})
            for layer in range(network.layers)
        ]
    except (ConfigError, ModelError, Undecodable, WireError) as error:
        raise JobError(f"the model can't be put together from {len(parts)} parts: {error}") from error
    return pack_whole(network, weights, parts[0].form), parameter_digest(parameters_vector(network, weights))


def _undamaged(network: Network, split: Split, parts: Sequence[Part]) -> dict[int, Cell]:
    """By node.

    Raises:
        WireError: there is none.
    """
    found: dict[int, Cell] = {}
    damage: WireError | None = None
    for part in parts:
        cell = Cell(network, split, part.node, blank=True)
        try:
            cell.unpack(part.blocks)
        except WireError as error:
            damage = error
            _log.warning("the blocks of node %d are left out: %s", part.node, error)
        else:
            found[part.node] = cell
    if damage is not None and not found:
        raise damage
    return found


def _wrong(network: Network, split: Split, cells: Mapping[int, Cell], updates: int) -> Collection[int]:
    """The nodes whose blocks are not what the others' say. Where so many are missing that nobody could tell, none.

    Raises:
        Undecodable: more are wrong than can be named.
    """
    lost, wrong = frozenset(range(split.nodes)).difference(cells), set[int]()
    for layer in range(network.layers):
        h, w = split.stored_shape(network.shape(layer))
        nothing = np.zeros((h, w), split.block_dtype)
        blocks = [cells[node].blocks[layer] if node in cells else nothing for node in range(split.nodes)]
        with np.errstate(all="ignore"):
            probes = np.concatenate([probe(block[None], layer) for block in blocks])
            finite = np.isfinite(probes[list(cells)]).all(axis=1)
            if 2 * np.count_nonzero(finite) <= len(finite):  # not a node's error: this is what was trained
                continue
            try:
                wrong.update(split.inspect(probes, network.shape(layer), lost, updates))
            except Undecodable:
                if split.inspects(lost):
                    raise
    return sorted(wrong)
