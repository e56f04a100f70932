"""The command line `edgepeer`: one file per verb, all run by `edgepeer.cli.verb`.

Starting it imports nothing heavy: each verb imports what it needs when it runs.
"""

from __future__ import annotations

import click

from edgepeer.cli import broker, emulate, export, fleet, join, peer, simulate, status, train, version
from edgepeer.enrol.strings import hidden

__all__ = ["application", "main"]

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


class _Application(click.Group):
    """What is wrong on the command line is said as click says it, but for secrets that stand there."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if (message := hidden(error.message)) != error.message:
                raise click.UsageError(message, error.ctx) from None
            raise


def application() -> click.Group:
    """The command line with all verbs."""
    verbs = (broker.VERB, peer.VERB, train.VERB, emulate.VERB, status.VERB)
    return _Application(
        name="edgepeer",
        commands=[
            *(verb.command() for verb in verbs),
            *(made() for made in (export.command, simulate.command, fleet.command, join.command)),
            version.command,
        ],
        help=_ABOUT,
        epilog=_EPILOG,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


def main() -> None:
    """Entry point; ends with SystemExit."""
    application()(prog_name="edgepeer")
