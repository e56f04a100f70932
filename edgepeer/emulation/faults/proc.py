"""What /proc says of a process, and a way to let one run for a part of the time only."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

from edgepeer.emulation.faults.duty_cycle import DutyCycle

__all__ = ["Throttle", "cpu_seconds", "state_of"]

_PAYS_BACK_S: Final = 5.0
"""For so long at most a process is stopped at the end for what it ran too long ..."""
_LATE_S: Final = 0.1
"""... or for as long as it costs that a signal is so late, on a busy machine, where that is longer."""


def state_of(pid: int) -> str:
    """The letter of a process's state, as R, S, D, T or Z; empty if there is none of that number."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads so far; 0 if there is no such process."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()  # the name in front may hold blanks and brackets


class Throttle:
    """Stops a process again and again (SIGSTOP, SIGCONT), so that it runs for one part in `factor` of the time.

    Needs no right but that to signal the process. A thread of its own does it: while it lasts, nobody else may stop
    or continue the process. The share is kept over the whole time, however late single signals are.
    """

    def __init__(self, pid: int, factor: float) -> None:
        """Raises ProcessLookupError: there is no such process."""
        self._pid = pid
        self._factor = factor
        self._handle = os.pidfd_open(pid)  # a number may be given to another process, a handle not
        self._enough = threading.Event()
        self._over_at = float("inf")
        """Set with that: until then, what it ran too long may be made up for."""
        self._thread = threading.Thread(target=self._run, name=f"throttle-{pid}", daemon=True)
        self._cpu_before = cpu_seconds(pid)
        self._cycle = DutyCycle(factor, time.monotonic())
        self.stops = 0
        self.seen_stopped = 0
        """How often it was in state T at the end of a stop."""
        self.cpu_s = 0.0
        """CPU time that it took meanwhile, in the kernel's ticks; known after `stop`."""
        self._thread.start()

    @property
    def running_s(self) -> float:
        """For how long it could run."""
        return self._cycle.running_s

    @property
    def share(self) -> float:
        """For which part of the time that was."""
        return self._cycle.share

    @property
    def cpu_share(self) -> float:
        """CPU time that it took, as a part of one core."""
        return self.cpu_s / max(self._cycle.running_s + self._cycle.stopped_s, 1e-9)

    def stop(self) -> None:
        """Let it run freely again. Returns when that is so: once it has been stopped for what it ran too long, because
        signals were late on a busy machine, and that takes some seconds at most."""
        if self._enough.is_set():
            return
        self._over_at = time.monotonic() + max(_PAYS_BACK_S, _LATE_S * self._factor)
        self._enough.set()
        self._thread.join()
        self.cpu_s = max(cpu_seconds(self._pid) - self._cpu_before, 0.0)
        os.close(self._handle)

    def _run(self) -> None:
        cycle = self._cycle
        try:
            while True:
                stopped_for = cycle.stop(time.monotonic())
                signal.pidfd_send_signal(self._handle, signal.SIGSTOP)
                time.sleep(stopped_for)
                self.stops += 1
                self.seen_stopped += state_of(self._pid) == "T"
                signal.pidfd_send_signal(self._handle, signal.SIGCONT)
                now = time.monotonic()
                if self._enough.wait(cycle.go_on(now)) and (cycle.is_even or now >= self._over_at):
                    return
        except ProcessLookupError:
            return  # it has ended
