"""The command line `edgepeer`: one file per verb, all run by `edgepeer.cli.verb`.

Starting it imports nothing heavy: each verb imports what it needs when it runs.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["application", "main"]


def application() -> click.Group:
    """The command line with all verbs."""
    from edgepeer.cli.group import application

    return application()


def _end(number: int, frame: object) -> None:
    os._exit(128 + number)


def main() -> None:
    """Entry point; ends with SystemExit."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # On a small device the imports take a second, and there is nothing yet to be cleaned up, or to be said.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if os.getpid() == 1:
            # The kernel ends a container's first process by no signal that it has not asked for.
            signal.signal(signal.SIGINT, _end)
            signal.signal(signal.SIGTERM, _end)
    if sys.argv[1:2] == ["peer"]:
        # Whoever asks a peer how it stands, before it can say so, is not to end it. No SIG_IGN, which children inherit.
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
    from edgepeer.cli.group import application
    from edgepeer.cli.written import all_written

    if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, _end):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with all_written():
        application()(prog_name="edgepeer")
