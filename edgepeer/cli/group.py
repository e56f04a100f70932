"""The command with its verbs, made when they are asked for.

What is a process for one verb, as most are, neither imports the others nor makes their options.
"""

from __future__ import annotations

import signal
from importlib import import_module
from typing import Final

import click

from edgepeer.enrol.strings import hidden

__all__ = ["application"]

_ABOUT = "Train one model on many small machines: peers meet over MQTT and add up gradients along a tree."
_EPILOG = """\b
Examples:
\b
  # everything on this machine: seven peers and a broker train a classifier of digits
  $ edgepeer emulate
\b
  # the same by hand, each in its own terminal
  $ edgepeer broker
  $ edgepeer peer
  $ edgepeer peer
  $ edgepeer train --peers 2
  $ edgepeer status
\b
  # a fleet on a network: found it, then paste on each device the line that a token is
  $ edgepeer fleet init greenhouse --broker raspberrypi.local
  $ edgepeer fleet token

`edgepeer VERB --help` shows more of each."""


_VERBS: Final = ("broker", "emulate", "export", "fleet", "join", "peer", "simulate", "status", "train", "version")
"""Each a module beside this one, whose `command()` makes it."""


class _Application(click.Group):
    """A verb is made when somebody asks for it. What is wrong on the command line is said as click says it, but for
    secrets that stand there."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # Where there is none of that name, click may say which ones it looks like.
        for name in (cmd_name,) if cmd_name in _VERBS else _VERBS:
            if name not in self.commands:
                self.add_command(import_module(f"edgepeer.cli.{name}").command(), name)
        return self.commands.get(cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if (message := hidden(error.message)) != error.message:
                raise click.UsageError(message, error.ctx) from None
            raise
        except KeyboardInterrupt:  # a verb was still being imported: click would say that it is aborted, and end with 1
            raise SystemExit(128 + signal.SIGINT) from None


def application() -> click.Group:
    """The command line with all verbs."""
    return _Application(
        name="edgepeer",
        help=_ABOUT,
        epilog=_EPILOG,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
