"""From settings to a job.

What can't be done on any device, or not by a fleet that is started for the job, is refused before anything is started.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgepeer.errors import ConfigError, JobError
from edgepeer.given import read_given
from edgepeer.settings import JobSettings
from edgepeer.topology.view import MAX_FANOUT, View
from edgepeer.training.naming import parse_dataset, parse_function
from edgepeer.wire.protocols import ProtocolName

if TYPE_CHECKING:
    from edgepeer.training.form import Form
    from edgepeer.training.job import Job

__all__ = ["OwnFleet", "check_trees", "make_job", "nodes_of"]


@dataclass(frozen=True, kw_only=True)
class OwnFleet:
    """A fleet that is started for the job, on this machine: what it will be like."""

    fanout: int
    """Children of each peer in the tree."""
    protocol: ProtocolName
    """What its rounds run by."""
    data_dir: Path | None
    """Where its peers look for data."""


def make_job(settings: JobSettings, *, wait_for: int, fleet: OwnFleet | None = None) -> Job:
    """A checked job with a new id.

    Args:
        wait_for: how many peers there will be; in a fleet that isn't ours, at least.
        fleet: ours; None: devices of which nothing is known here.

    Raises:
        ConfigError: the model's file can't be read, a field is not what a job allows, no trainer knows the model
            or the data set, or our own fleet can't do it or can't read the data.
    """
    from edgepeer.training.job import DESCENT, SPLIT_DESCENT, new_job
    from edgepeer.training.optimizers import parse_optimizer
    from edgepeer.training.precision_choice import check_precision
    from edgepeer.training.schedules import parse_schedule

    config = ""
    if settings.model_config is not None:
        try:
            config = read_given(settings.model_config)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not text"
            raise ConfigError(f"model_config = {settings.model_config}: can't read it: {reason}") from None
        if not config:  # that of a job without one
            raise ConfigError(f"model_config = {settings.model_config}: is empty; is a model described in it?")
        try:
            json.loads(config)
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
            raise ConfigError(f"model_config = {settings.model_config}: is not JSON: {reason}") from None
    _check_model(settings)
    code = _code(settings, wait_for, fleet)
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
        precision=settings.precision,
    )
    check_precision(job, protocol="ft-tree" if fleet is None else fleet.protocol)
    _check_dataset(settings, fleet)
    _check_split(settings, job, fleet)
    return job


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


def check_trees(job: Job, view: View) -> None:
    """Whether a job's code can be had on the trees of the fleet that is to do it: coded rounds keep those.

    Raises:
        ConfigError: it can't.
    """
    from edgepeer.coding.scheme import parse_scheme

    scheme = parse_scheme(job.code, job.wait)
    if scheme is None:
        return
    try:
        scheme.build(job.wait_for, view.fanout)
    except ConfigError as error:
        raise ConfigError(f"code = {job.code}: can't be had on the trees of this fleet: {error}") from None


def _code(settings: JobSettings, peers: int, fleet: OwnFleet | None) -> str:
    """The code's name in full."""
    from edgepeer.training.code_choice import choose_scheme

    protocol = "ft-tree" if fleet is None else fleet.protocol
    wait = "exact" if settings.split else settings.wait  # of split jobs, `check_split` says what they may wait for
    scheme = choose_scheme(settings.code, wait, dataset=settings.dataset, protocol=protocol)
    if scheme is None:
        return "none"
    try:
        scheme.build(peers, MAX_FANOUT if fleet is None else fleet.fanout)
    except ConfigError as error:
        where = f"with {peers} peers" + (" (say how many there will be: --peers)" if fleet is None else "")
        raise ConfigError(f"code = {settings.code}: can't be had {where}: {error}") from None
    return str(scheme.spec)


def _check_split(settings: JobSettings, job: Job, fleet: OwnFleet | None) -> None:
    from edgepeer.training.split_choice import check_split, choose_split

    nodes = nodes_of(settings)
    if job.wait_for < nodes:
        raise ConfigError(
            f"peers = {job.wait_for}: split {job.split} takes {nodes}, and those beyond are spares: add --peers {nodes}"
        )
    if nodes and fleet is not None and fleet.protocol != "ft-tree":
        raise ConfigError(f"split = {job.split}: rounds of protocol {fleet.protocol} can't do it; use protocol ft-tree")
    try:
        check_split(job, job.wait_for)
        if job.split and (form := _form(job, fleet)) is not None:
            choose_split(job, form, job.wait_for)
    except JobError as error:
        raise ConfigError(str(error)) from None


def _form(job: Job, fleet: OwnFleet | None) -> Form | None:
    """What goes into the model and comes out, if that is known here: other devices know what their data are."""
    from edgepeer.training.datasets import load_dataset
    from edgepeer.training.form import Form
    from edgepeer.training.losses import form_of

    named = parse_dataset(job.dataset)
    assert named is not None, "has been checked"
    if named.kind == "mnist" and job.loss in ("auto", "crossentropy"):
        return Form(input_shape=(28, 28), outputs=10, loss="crossentropy", name=job.dataset)
    if named.kind == "digits":
        return form_of(load_dataset(job.dataset), job.loss)
    if fleet is not None and named.kind != "local":
        return form_of(load_dataset(job.dataset, data_dir=fleet.data_dir), job.loss)
    return None


def _check_model(settings: JobSettings) -> None:
    from edgepeer.training.models import DENSE_NETWORKS, builtin_names

    model, config = settings.model, settings.model_config
    dense = ", ".join(DENSE_NETWORKS)
    numpy = settings.trainer == "numpy" and not settings.split  # of split jobs no trainer computes anything
    if numpy and config is not None:
        raise ConfigError(
            f"model_config = {config}: trainer numpy: can't do a Keras JSON config, only {dense}; use trainer keras"
        )
    if config is not None:
        return
    if ":" in model and parse_function(model) is None:
        raise ConfigError(f"model = {model}: must name a function of a module, as in package.module:function")
    if ":" not in model and model not in builtin_names():
        raise ConfigError(f"model = {model}: unknown, must be one of {', '.join(builtin_names())}, or package:function")
    if numpy and model not in DENSE_NETWORKS:
        raise ConfigError(f"model = {model}: trainer numpy: can't do model {model!r}, only {dense}; use trainer keras")


def _check_dataset(settings: JobSettings, fleet: OwnFleet | None) -> None:
    name = settings.dataset
    named = parse_dataset(name)
    if named is None:
        raise ConfigError(f"dataset = {name}: unknown, must be digits, mnist, npz:PATH or local:PATH")
    if fleet is not None:  # its peers see the files that we see; those of others may not
        _check_files(name, named.path, fleet.data_dir)


def _check_files(name: str, path: str, directory: Path | None) -> None:
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
                f"dataset = {name}: must name a file that can be read: {error.strerror or error}"
            ) from None
