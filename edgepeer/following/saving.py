"""Getting a trained model out of a fleet: its state, from the peers that have trained it, into a file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgepeer.cancelling import unless
from edgepeer.coding.scheme import parse_scheme
from edgepeer.errors import EdgepeerError, JobError, WireError
from edgepeer.following.parts import parts_from_files, parts_from_fleet, state_from_peer
from edgepeer.following.picture import saver_id
from edgepeer.following.result import JobResult
from edgepeer.ids import PeerId
from edgepeer.peer.api import Peer
from edgepeer.printable import one_line
from edgepeer.settings import JobSettings
from edgepeer.training.checkpoint import list_checkpoints, read_checkpoint
from edgepeer.training.job import Job
from edgepeer.training.naming import parse_function
from edgepeer.training.saved import check_target, save_model
from edgepeer.training.split.part import Part
from edgepeer.training.split.whole import whole_model
from edgepeer.training.state import unpack_run_state

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["ModelSaver", "state_from_files", "state_from_fleet"]

_log = logging.getLogger(__name__)

_SIGN_OF_LIFE_BYTES: Final = 64 << 10
"""Who receives so much receives more than heartbeats."""

Fetch = Callable[[JobResult], Awaitable[bytes | memoryview | list[Part]]]
"""The state after the last round; of a split job, what each of its peers stores."""


class ModelSaver:
    """Saves a job's model where the settings say, if they do.

    Raises:
        ConfigError: it could not be written there.
    """

    def __init__(self, settings: JobSettings) -> None:
        self._path = settings.save
        function = parse_function(settings.model)
        self._packages = [function.package] if function is not None else []
        self.saved: Path | None = None
        """The file, once it is there."""
        self.error = ""
        """Why it isn't, in one line."""
        if self._path is not None:
            described = settings.model_config is not None
            check_target("save", self._path, model=settings.model, described=described)

    async def save(self, result: JobResult, fetch: Fetch, withdrawn: asyncio.Event) -> None:
        """Fetch the state of a job that is done, and write the model. What goes wrong stands in `error`.

        Args:
            withdrawn: set when the job is not there any more: nobody has its state then.
        """
        path = self._path
        if path is None:
            return
        if result.diverged is not None or not result.identical:
            self.error = f"{path} is not written: a model that is broken, or not the same on all peers, is of no use"
            return
        digest = next(iter(result.digests.values()))
        state: bytes | memoryview
        try:
            fetching = asyncio.ensure_future(fetch(result))
            if not await unless(withdrawn, fetching):
                raise JobError(
                    f"job {result.job.id} was withdrawn, or another one begun, before a peer had handed over its model"
                )
            found = fetching.result()
            if isinstance(found, list):
                state, digest = await asyncio.to_thread(whole_model, result.job, found)
            else:
                state = found
            await asyncio.to_thread(save_model, path, result.job, state, digest=digest, models=self._packages)
        except EdgepeerError as error:
            why = one_line(" ".join(str(error).split()))  # a peer's state says some of it
            self.error = f"{path} is not written: {why}"
        else:
            self.saved = path


async def state_from_fleet(
    broker: str, fabric: str, result: JobResult, *, timeout: float, identity: Identity | None = None
) -> memoryview | list[Part]:
    """Join the fleet after the job's last round, as any peer may, and take the state that joiners are given; of a split
    job, ask its peers for their blocks.

    Args:
        timeout: seconds without anything new after which to give up.
        identity: in a fleet, an operator's: who can't join, but ask.

    Raises:
        FabricError: the broker can't be reached.
        JobError: no peer hands the state over.
    """
    job = result.job
    if job.split:
        return await parts_from_fleet(broker, fabric, result, timeout=timeout, identity=identity)
    if identity is not None:
        return await state_from_peer(broker, fabric, result, timeout=timeout, identity=identity)
    async with Peer(broker, fabric, peer_id=saver_id(), aside=True) as peer:
        wanted = _Wanted(peer, job.id, result.rounds)
        peer.attach(wanted)
        peer.use_scheme(parse_scheme(job.code, job.wait))
        async with _wanting(peer, job):
            received = 0
            while True:
                done, _ = await asyncio.wait([wanted.state], timeout=timeout)
                if done:
                    return unpack_run_state(wanted.state.result())[1]
                if peer.traffic.bytes_received - received < _SIGN_OF_LIFE_BYTES:
                    raise JobError(f"no peer has handed over the model within {timeout:g} s")
                received = peer.traffic.bytes_received


class _Wanted:
    """Takes the state of a run after a round, and is a member as any other then (peer.keeper.StateKeeper): one that
    lacks the state the others would not let go for a while, as somebody may be about to bring it."""

    def __init__(self, peer: Peer, run: str, number: int) -> None:
        self._peer = peer
        self._what = run, number
        self.state: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

    def state_came(self, run: str, number: int, state: memoryview) -> None:
        if (run, number) == self._what and not self.state.done():
            self.state.set_result(state)
            self._peer.adopt(run, number, state)

    def state_wanted(self, peer: PeerId, run: str, number: int) -> None:
        if run == self._what[0] and self.state.done():
            self._peer.give_state(peer, run, self._what[1], bytes(self.state.result()))

    def part_wanted(self, peer: PeerId, name: str) -> None:
        self._peer.give_part(peer, name, 0, b"")


@contextlib.asynccontextmanager
async def _wanting(peer: Peer, job: Job) -> AsyncIterator[None]:
    peer.want_run(job.id, job.wait_for)
    peer.come_back()
    try:
        yield
    finally:
        peer.want_run(None)


async def state_from_files(homes: Sequence[Path], result: JobResult) -> memoryview | list[Part]:
    """The state after a job's last round, from the checkpoints in the state directories of peers on this machine; of a
    split job, their blocks.

    Raises:
        JobError: there is none.
    """
    if result.job.split:
        return await parts_from_files(homes, result)
    digests = set(result.digests.values())
    for home in homes:
        try:
            for path in list_checkpoints(home / "checkpoints")[:1]:
                checkpoint = await asyncio.to_thread(read_checkpoint, path)
                if checkpoint.job.id == result.job.id and checkpoint.digest in digests:
                    return memoryview(checkpoint.state)
        except (OSError, WireError) as error:
            _log.warning("%s", error)
    raise JobError("no peer has kept the state after the last round")
