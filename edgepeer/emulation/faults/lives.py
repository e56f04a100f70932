"""Faults of peers: killed, started again, frozen, slowed down. Each is looked up in the process table."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from edgepeer.emulation.faults.kinds import Slow
from edgepeer.emulation.faults.proc import Throttle, state_of
from edgepeer.emulation.faults.scene import Scene, Unconfirmed
from edgepeer.peer.pacing import read_slowed, slow_down

__all__ = ["KillFault", "PaceFault", "PauseFault", "RestartFault", "SlowFault"]

_SOON_S: Final = 5.0
"""Within which the kernel does what it was told."""
_POLL_S: Final = 0.002
_TICKS_S: Final = 0.03
"""The kernel counts CPU time in ticks of 10 ms, and may find one at each end."""
_SLACK: Final = 1.25
"""A slowed peer may run for so many times the share that it was given."""


class _PeerFault:
    """What befalls the process of one peer."""

    def __init__(self, name: str, scene: Scene) -> None:
        self.target = name
        self._fleet = scene.fleet
        self.confirmed: dict[str, Any] = {}

    def _pid(self) -> int:
        process = self._fleet.process(self.target)
        if process.returncode is not None:
            raise Unconfirmed(f"{self.target} had ended before, with exit code {process.returncode}")
        return process.pid

    async def lift(self) -> None:
        """Nothing to undo."""


class KillFault(_PeerFault):
    """A peer's process is killed."""

    async def inject(self) -> None:
        """Raises Unconfirmed: the process did not end by that signal."""
        pid = self._pid()
        process = self._fleet.process(self.target)
        self._fleet.kill(self.target)
        try:
            async with asyncio.timeout(_SOON_S):
                await process.wait()
        except TimeoutError:
            raise Unconfirmed(f"{self.target} (pid {pid}) is still there, in state {state_of(pid)}") from None
        if process.returncode != -signal.SIGKILL:
            raise Unconfirmed(f"{self.target} ended with exit code {process.returncode}, not by SIGKILL")
        self.confirmed = {"pid": pid, "exit_code": process.returncode}


class RestartFault(_PeerFault):
    """A new process for a killed peer."""

    async def inject(self) -> None:
        """Raises Unconfirmed: the old one still runs, or the new one does not."""
        before = self._fleet.process(self.target)
        if before.returncode is None:
            raise Unconfirmed(f"{self.target} (pid {before.pid}) is still there")
        await self._fleet.start(self.target)
        pid = self._pid()
        state = state_of(pid)
        if pid == before.pid or state in ("", "Z"):
            raise Unconfirmed(f"{self.target} has no new process: pid {pid} is in state {state or 'none'}")
        self.confirmed = {"pid": pid, "pid_before": before.pid}


class PauseFault(_PeerFault):
    """A peer's process is frozen, by SIGSTOP, and goes on in the end."""

    async def inject(self) -> None:
        """Raises Unconfirmed: the process is not in state T."""
        pid = self._pid()
        self._fleet.pause(self.target)
        self.confirmed = {"pid": pid, "state": await _until(pid, lambda state: state == "T", self.target, "stop")}

    async def lift(self) -> None:
        """Raises Unconfirmed: the process did not go on."""
        pid = self.confirmed["pid"]
        if self._pid() != pid or (state := state_of(pid)) != "T":
            self._fleet.resume(self.target)
            raise Unconfirmed(f"{self.target} was continued by somebody else: state {state}")
        self._fleet.resume(self.target)
        self.confirmed["state_after"] = await _until(pid, lambda state: state != "T", self.target, "go on")

    def release(self) -> None:
        """Let it go on, without a look."""
        if self._fleet.process(self.target).returncode is None:
            self._fleet.resume(self.target)


class SlowFault(_PeerFault):
    """Runs for a part of the time."""

    def __init__(self, fault: Slow, name: str, scene: Scene) -> None:
        super().__init__(name, scene)
        self._factor = fault.factor
        self._throttle: Throttle | None = None

    async def inject(self) -> None:
        """Raises Unconfirmed: there is no such process any more."""
        pid = self._pid()
        self._throttle = Throttle(pid, self._factor)
        self.confirmed = {"pid": pid, "by": "SIGSTOP and SIGCONT", "share_asked": 1 / self._factor}

    async def lift(self) -> None:
        """Raises Unconfirmed: it ran for longer than it should, or not to the end."""
        throttle = self._throttle
        assert throttle is not None
        await asyncio.to_thread(throttle.stop)
        self._pid()
        self.confirmed |= {
            "share": throttle.share,
            "cpu_share": throttle.cpu_share,
            "stops": throttle.stops,
            "seen_stopped": throttle.seen_stopped,
        }
        if not throttle.stops or throttle.seen_stopped < throttle.stops / 2:
            raise Unconfirmed(
                f"{self.target} was in state T after {throttle.seen_stopped} of {throttle.stops} stops only"
            )
        if throttle.share > _SLACK / self._factor:
            raise Unconfirmed(
                f"{self.target} could run for {throttle.share:.2%} of the time, not {1 / self._factor:.2%}"
            )
        if throttle.cpu_s > _SLACK * throttle.running_s * (os.cpu_count() or 1) + _TICKS_S:
            raise Unconfirmed(f"{self.target} took {throttle.cpu_share:.0%} of a core, not {1 / self._factor:.0%}")

    def release(self) -> None:
        """Let it run freely, without a look."""
        if self._throttle is not None:
            self._throttle.stop()


class PaceFault(_PeerFault):
    """A device whose speed follows a model computes more slowly than that, as it is told by a file."""

    def __init__(self, fault: Slow, name: str, state_dir: Path, scene: Scene) -> None:
        super().__init__(name, scene)
        self._factor = fault.factor
        self._dir = state_dir

    async def inject(self) -> None:
        """Raises Unconfirmed: there is no such process any more."""
        pid = self._pid()
        slow_down(self._dir, self._factor)
        self.confirmed = {"pid": pid, "by": "its own model of speed", "factor": self._factor}

    async def lift(self) -> None:
        """Raises Unconfirmed: it computed nothing meanwhile, or was faster than it should."""
        slow_down(self._dir, 1)
        slowed = read_slowed(self._dir)
        self.confirmed |= {
            "batches": slowed.batches,
            "seconds": slowed.seconds,
            "unslowed_seconds": slowed.unslowed_seconds,
        }
        if not slowed.batches or slowed.factor != self._factor:
            raise Unconfirmed(f"{self.target} has not begun to compute anything meanwhile")
        if slowed.seconds < self._factor * slowed.unslowed_seconds / _SLACK:
            raise Unconfirmed(
                f"{self.target} took {slowed.seconds:.3f} s for what takes {slowed.unslowed_seconds:.3f} s, not "
                f"{self._factor:g} times as long"
            )

    def release(self) -> None:
        """Let it be as fast as it is, without a look."""
        slow_down(self._dir, 1)


async def _until(pid: int, reached: Callable[[str], bool], name: str, what: str) -> str:
    try:
        async with asyncio.timeout(_SOON_S):
            while not reached(state := state_of(pid)):  # noqa: ASYNC110  # the process table sets no Event
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise Unconfirmed(f"{name} (pid {pid}) did not {what}: it is in state {state or 'none'}") from None
    return state
