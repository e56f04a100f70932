"""Which split a job asks for, checked: for who announces the job, and again for every device that is told of it."""

from __future__ import annotations

from typing import Final

import numpy as np

from edgepeer.coding.scheme import CodingScheme
from edgepeer.coding.spec import parse_code
from edgepeer.coding.wait import parse_wait
from edgepeer.errors import ConfigError
from edgepeer.training.form import Form
from edgepeer.training.job import Job
from edgepeer.training.naming import parse_dataset
from edgepeer.training.sizes import VECTORS, check_memory
from edgepeer.training.split.dense import check_training, dense_network
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network, ProductStep
from edgepeer.training.split.strategy import Split
from edgepeer.training.split.tail import WORDS
from edgepeer.wire.codec import MAX_PAYLOAD_BYTES

__all__ = ["check_room", "check_split", "choose_split", "split_rounds_scheme"]

_ONLY_SPLIT: Final = ("guarantee", "scrub_every", "l2", "sparsity")
"""What is nothing to other jobs."""


def choose_split(job: Job, form: Form, peers: int | None = None) -> tuple[Network, Split] | None:
    """The network of a job, and how it is divided; None where it isn't.

    Args:
        form: of the data; job.dataset must be what they are.
        peers: how many there will be, if that is known.

    Raises:
        ConfigError: something is said that is nothing to a job without a split; or the split is none, or can't be had
            with this model, code, dataset, or so many peers.
        ModelError: the model can't be split, or does not fit the data.
    """
    split = check_split(job, peers)
    if split is None:
        return None
    network = dense_network(job, form)
    split.fit(network, job.rounds)
    _check_vectors(job, network, split)
    return network, split


def check_split(job: Job, peers: int | None = None) -> Split | None:
    """The same as far as it does not depend on the data.

    Raises:
        ConfigError, ModelError: as `choose_split`.
    """
    if not job.split:
        usual = Job(id=job.id)
        for name in _ONLY_SPLIT:
            if (value := getattr(job, name)) != getattr(usual, name):
                raise ConfigError(f"{name} = {value}: only jobs with a split have it; add --split, such as codenet")
        return None
    split = parse_split(job.split, np.dtype(np.float32), job.guarantee)
    if parse_code(job.code).kind != "none":
        raise ConfigError(
            f"code = {job.code}: gradients aren't sent in a split job, so there is none to code; take none"
        )
    split_rounds_scheme(job.wait)
    if (named := parse_dataset(job.dataset)) is not None and named.kind == "local":
        raise ConfigError(
            f"split = {job.split}: all peers need the same samples, and dataset {job.dataset} is each device's own; "
            "use npz:PATH, a file that all devices have"
        )
    for name, there in (("peers", peers), ("wait_for", job.wait_for)):
        if there is not None and there < split.nodes:
            raise ConfigError(
                f"{name} = {there}: split {job.split} takes {split.nodes} peers; take {split.nodes} or more"
            )
    check_training(job)
    return split


def check_room(job: Job, network: Network, split: Split, *, memory: int | None) -> None:
    """Refuse to be a node where there is no memory for it, roughly: for what is stored, as much while that is changed,
    and the vectors of the longest round.

    Args:
        memory: as `sizes.check_size` takes it.

    Raises:
        ModelError: there is none.
    """
    stored = split.stored_bytes(network) * (2 if network.momentum else 1)
    numbers = max(_numbers(job, network, split, step) for step in network.steps())
    needed = 2 * stored + VECTORS * network.dtype.itemsize * numbers
    check_memory(f"split = {job.split}: for its part of the model", needed, memory)


def _numbers(job: Job, network: Network, split: Split, step: ProductStep) -> int:
    """Of the vector of one step."""
    return split.lines(step.direction) * split.numbers(step.direction, network.shape(step.layer), job.batch_size)


def split_rounds_scheme(wait: str) -> CodingScheme | None:
    """How a split job's rounds are coded, so that the root may close one without those who are slow; None: it waits
    for all. Who is left out is an erasure to the split's own code.

    Raises:
        ConfigError: there is no such policy, or not for split jobs.
    """
    policy = parse_wait(wait)
    if policy.error:
        raise ConfigError(
            f"wait = {wait}: is about sums of gradients, which split jobs don't have; take exact, or deadline:SECONDS"
        )
    return None if policy.deadline_s is None else CodingScheme(parse_code("first:s=0"), policy)


def _check_vectors(job: Job, network: Network, split: Split) -> None:
    """Refuse what would be too long to add up in one round."""
    itemsize, tail = network.dtype.itemsize, WORDS * split.nodes
    for step in network.steps():
        numbers = _numbers(job, network, split, step)
        if itemsize * (numbers + tail) > MAX_PAYLOAD_BYTES:
            raise ConfigError(
                f"batch_size = {job.batch_size}: with split {job.split} the vector of {step} has {numbers:,} numbers, "
                f"and {MAX_PAYLOAD_BYTES >> 20} MiB are the most that peers can add up; take fewer samples"
            )
    for layer in range(network.layers):
        h, w = split.stored_shape(network.shape(layer))
        if split.block_dtype.itemsize * h * w + itemsize * tail > MAX_PAYLOAD_BYTES:
            raise ConfigError(
                f"split = {job.split}: a block of layer {layer} has {h} x {w} numbers, and {MAX_PAYLOAD_BYTES >> 20} "
                "MiB are the most that peers can add up; take more blocks"
            )
