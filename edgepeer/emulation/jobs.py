"""From the settings of `train` and `emulate` to a job.

What can't be done on any device, or not on this one where the peers run on it, is refused before anything
is started.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgepeer.errors import ConfigError, JobError
from edgepeer.settings import EmulateSettings, JobSettings
from edgepeer.settings.model import MAX_PEERS
from edgepeer.topology.view import MAX_FANOUT

if TYPE_CHECKING:
    from edgepeer.training.form import Form
    from edgepeer.training.job import Job

__all__ = ["fanout_of", "make_job", "nodes_of", "peers_of"]

_PEERS: Final = 7
"""Of an emulation, if nothing is said."""
_TREES: Final = ("ft-tree", "ft-tree-static", "tree")
"""Protocols whose rounds go along a tree of any fan-out."""


def make_job(settings: JobSettings, *, wait_for: int) -> Job:
    """A checked job with a new id.

    Raises:
        ConfigError: the model's file can't be read, a field is not what a job allows, no trainer knows the model
            or the data set, or the data of an emulation can't be read.
    """
    from edgepeer.training.job import DESCENT, SPLIT_DESCENT, new_job
    from edgepeer.training.optimizers import parse_optimizer
    from edgepeer.training.schedules import parse_schedule

    config = ""
    if settings.model_config is not None:
        try:
            config = settings.model_config.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not text"
            raise ConfigError(f"model_config = {settings.model_config}: can't read it: {reason}") from None
    _check_model(settings)
    code = _code(settings, wait_for)
    optimizer, rate = SPLIT_DESCENT if settings.split else DESCENT
    job = new_job(
        model=settings.model,
        model_config=config,
        trainer="numpy" if settings.split else settings.trainer,
        dataset=settings.dataset,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate or rate,
        optimizer=str(parse_optimizer(settings.optimizer or optimizer, trainer=settings.trainer)),
        schedule=str(parse_schedule(settings.schedule, rounds=settings.rounds).named),
        loss=settings.loss,
        stop_on_nan=settings.stop_on_nan,
        rounds=settings.rounds,
        wait_for=wait_for,
        seed=settings.seed,
        eval_every=settings.eval_every,
        code=code,
        wait=settings.wait,
        split=settings.split,
        guarantee=settings.guarantee,
        scrub_every=settings.scrub_every,
        l2=settings.l2,
        sparsity=settings.sparsity,
    )
    _check_dataset(settings)
    _check_split(settings, job)
    if isinstance(settings, EmulateSettings):
        _check_speed(settings)
        _check_soft_errors(settings)
    return job


def fanout_of(settings: EmulateSettings) -> int:
    """Children of each peer in the topology that is asked for.

    Raises:
        ConfigError: it can't be had.
    """
    if settings.topology == "tree":
        return settings.fanout
    if settings.protocol not in _TREES:
        raise ConfigError(
            f"topology = star: protocol {settings.protocol} has a shape of its own; use {', '.join(_TREES)}"
        )
    if settings.fanout != EmulateSettings().fanout:
        raise ConfigError(f"fanout = {settings.fanout}: topology star has one of its own; leave it out, or use a tree")
    return max(1, peers_of(settings) - 1)


def peers_of(settings: EmulateSettings) -> int:
    """How many peers there will be: as many as are asked for, else as the split has nodes, else 7.

    Raises:
        ConfigError: there is no such split, or it has more nodes than an emulation has peers.
    """
    if settings.peers is not None:
        return settings.peers
    nodes = nodes_of(settings)
    if nodes > MAX_PEERS:
        raise ConfigError(
            f"split = {settings.split}: takes {nodes} peers, and an emulation has at most {MAX_PEERS}; take fewer "
            "blocks, or less protection"
        )
    return nodes or _PEERS


def nodes_of(settings: JobSettings) -> int:
    """Into how many parts the network is divided; 0: it isn't.

    Raises:
        ConfigError: there is no such split.
    """
    if not settings.split:
        return 0
    import numpy as np

    from edgepeer.training.split.named import parse_split

    return parse_split(settings.split, np.dtype(np.float32), settings.guarantee).nodes


def _code(settings: JobSettings, peers: int) -> str:
    """The code's name in full. `peers`: how many there will be; in a fleet that isn't ours, at least."""
    from edgepeer.training.code_choice import choose_scheme

    emulated = isinstance(settings, EmulateSettings)
    fanout = fanout_of(settings) if isinstance(settings, EmulateSettings) else MAX_FANOUT
    protocol = settings.protocol if isinstance(settings, EmulateSettings) else "ft-tree"
    wait = "exact" if settings.split else settings.wait  # of split jobs, `check_split` says what they may wait for
    scheme = choose_scheme(settings.code, wait, dataset=settings.dataset, protocol=protocol)
    if scheme is None:
        return "none"
    spec = scheme.spec
    if spec.kind == "coded-reduce" and isinstance(settings, EmulateSettings) and settings.topology == "star":
        s = dict(spec.numbers)["s"]
        raise ConfigError(
            f"code = {settings.code}: on a star its root would just compute nothing; use cyclic:s={s} or "
            f"fractional:s={s}"
        )
    try:
        scheme.build(peers, fanout)
    except ConfigError as error:
        where = f"with {peers} peers" if emulated else f"with {peers} peers (say how many there will be: --peers)"
        raise ConfigError(f"code = {settings.code}: can't be had {where}: {error}") from None
    return str(spec)


def _check_split(settings: JobSettings, job: Job) -> None:
    from edgepeer.training.split_choice import check_split, choose_split

    nodes = nodes_of(settings)
    if job.wait_for < nodes:
        raise ConfigError(
            f"peers = {job.wait_for}: split {job.split} takes {nodes}, and those beyond are spares: add --peers {nodes}"
        )
    if nodes and isinstance(settings, EmulateSettings) and settings.protocol != "ft-tree":
        raise ConfigError(
            f"split = {job.split}: rounds of protocol {settings.protocol} can't do it; use protocol ft-tree"
        )
    try:
        check_split(job, job.wait_for)
        if job.split and (form := _form(settings, job)) is not None:
            choose_split(job, form, job.wait_for)
    except JobError as error:
        raise ConfigError(str(error)) from None


def _form(settings: JobSettings, job: Job) -> Form | None:
    """What goes into the model and comes out, if that is known here: a fleet's devices know what their data are."""
    from edgepeer.training.datasets import load_dataset
    from edgepeer.training.form import Form
    from edgepeer.training.losses import form_of

    if job.dataset == "mnist" and job.loss in ("auto", "crossentropy"):
        return Form(input_shape=(28, 28), outputs=10, loss="crossentropy", name=job.dataset)
    if job.dataset == "digits":
        return form_of(load_dataset(job.dataset), job.loss)
    if isinstance(settings, EmulateSettings) and not job.dataset.startswith("local:"):
        return form_of(load_dataset(job.dataset, data_dir=settings.data_dir), job.loss)
    return None


def _check_speed(settings: EmulateSettings) -> None:
    from edgepeer.coding.speed import parse_speed

    parse_speed(settings.device_speed)


def _check_soft_errors(settings: EmulateSettings) -> None:
    if not settings.soft_errors:
        return
    from edgepeer.training.split.faults import parse_soft_errors

    parse_soft_errors(settings.soft_errors)
    if not settings.split:
        raise ConfigError(
            f"soft_errors = {settings.soft_errors}: only split jobs have them: add --split, such as codenet:m=2,n=2,t=1"
        )


def _check_model(settings: JobSettings) -> None:
    from edgepeer.training.models import DENSE_NETWORKS, builtin_names

    model, config = settings.model, settings.model_config
    dense = ", ".join(DENSE_NETWORKS)
    if settings.trainer == "numpy" and config is not None:
        raise ConfigError(
            f"model_config = {config}: trainer numpy: can't do a Keras JSON config, only {dense}; use trainer keras"
        )
    if config is not None:
        return
    if ":" in model and not all(
        part.isidentifier() for part in [*model.partition(":")[0].split("."), model.partition(":")[2]]
    ):
        raise ConfigError(f"model = {model}: must name a function of a module, as in package.module:function")
    if ":" not in model and model not in builtin_names():
        raise ConfigError(f"model = {model}: unknown, must be one of {', '.join(builtin_names())}, or package:function")
    if settings.trainer == "numpy" and model not in DENSE_NETWORKS:
        raise ConfigError(f"model = {model}: trainer numpy: can't do model {model!r}, only {dense}; use trainer keras")


def _check_dataset(settings: JobSettings) -> None:
    name = settings.dataset
    kind, _, path = name.partition(":")
    if kind not in ("npz", "local") and name.endswith(".npz"):
        path = name
    elif name in ("digits", "mnist"):
        path = ""
    elif kind not in ("npz", "local") or not path:
        raise ConfigError(f"dataset = {name}: unknown, must be digits, mnist, npz:PATH or local:PATH")
    if isinstance(settings, EmulateSettings):  # its peers see the files that we see; those of others may not
        _check_files(settings, path)


def _check_files(settings: EmulateSettings, path: str) -> None:
    directory = settings.data_dir
    if directory is not None:
        try:
            os.listdir(directory)
        except OSError as error:
            raise ConfigError(
                f"data_dir = {directory}: must be a directory that can be read: {error.strerror or error}"
            ) from None
    if path:
        try:
            ((directory or Path()) / path).open("rb").close()
        except OSError as error:
            raise ConfigError(
                f"dataset = {settings.dataset}: must name a file that can be read: {error.strerror or error}"
            ) from None
