"""The trained model of a split job, put together from the blocks of its peers by who wants to use it.

Peers don't: whoever does this is no part of the run, and must have the memory for the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgepeer.errors import ConfigError, JobError, ModelError, Undecodable, WireError
from edgepeer.training.job import Job
from edgepeer.training.split.assembly import assembled
from edgepeer.training.split.cell import Cell
from edgepeer.training.split.export import pack_whole, parameters_vector
from edgepeer.training.split.part import Part
from edgepeer.training.split_choice import choose_split
from edgepeer.training.state import parameter_digest

__all__ = ["whole_model"]


def whole_model(job: Job, parts: Sequence[Part]) -> tuple[bytes, str]:
    """The state that `saved.save_model` takes, and its digest.

    Args:
        parts: of the same iteration; not all nodes' are needed.

    Raises:
        JobError: they don't determine the model, or are not of this job.
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
        cells: dict[int, Cell] = {}
        for part in parts:
            cells[part.node] = Cell(network, split, part.node, blank=True)
            cells[part.node].unpack(part.blocks)
        weights = [
            assembled(split, network.shape(layer), {node: cell.blocks[layer] for node, cell in cells.items()})
            for layer in range(network.layers)
        ]
    except (ConfigError, ModelError, Undecodable, WireError) as error:
        raise JobError(f"the model can't be put together from {len(parts)} parts: {error}") from error
    return pack_whole(network, weights, parts[0].form), parameter_digest(parameters_vector(network, weights))
