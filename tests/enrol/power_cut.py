"""Runs `edgepeer ARGUMENTS` again and again, each time up to another power cut.

    python power_cut.py ARGUMENTS...

For each number N on standard input it forks a child that does it, and kills itself before the Nth thing that it does to
the disk: each file that is made, synced, renamed or removed, and each statement of SQL; -1 is never. The child's exit
status goes to standard output. Forked, for that takes a tenth of the time of a new Python.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import edgepeer.cli
import edgepeer.enrol.household
import edgepeer.enrol.joining
import edgepeer.following.observe

_left = -1


def _tick(*_: object) -> None:
    global _left
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    _left -= 1


def _ticking(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        _tick()
        return real(*arguments, **named)

    return call


_connect = sqlite3.connect


def _connected(*arguments: Any, **named: Any) -> sqlite3.Connection:
    connection = _connect(*arguments, **named)
    connection.set_trace_callback(_tick)
    return connection


def _run(step: int) -> None:
    global _left
    _left = step
    sqlite3.connect = _connected  # type: ignore[assignment]
    os.fsync = _ticking(os.fsync)
    for name in ("replace", "unlink", "mkdir"):
        setattr(Path, name, _ticking(getattr(Path, name)))
    os.dup2(2, 1)  # what it prints is not for who reads ours
    sys.argv[:] = ["edgepeer", *sys.argv[1:]]
    edgepeer.cli.main()


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(int(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
