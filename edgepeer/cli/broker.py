"""`edgepeer broker`: the embedded MQTT broker, until it is told to stop."""

from __future__ import annotations

import asyncio

from edgepeer.cli.signals import run_until_stopped
from edgepeer.cli.verb import Verb
from edgepeer.notify import notify, tend_watchdog
from edgepeer.settings import BrokerSettings

__all__ = ["VERB"]


def run(settings: BrokerSettings) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    return run_until_stopped(lambda stop: _serve(settings, stop))


async def _serve(settings: BrokerSettings, stop: asyncio.Event) -> None:
    from edgepeer.fabric.broker import EmbeddedBroker

    host, _, port = settings.listen.rpartition(":")
    async with EmbeddedBroker(host.strip("[]"), int(port), settings.username, settings.password) as broker:
        # The address without the password; on a line of its own, so that a script can read it.
        print(f"broker ready at {broker.address}", flush=True)
        notify(READY="1", STATUS=f"listens on {broker.address}")
        feeding = asyncio.create_task(tend_watchdog())
        await stop.wait()
        feeding.cancel()
        notify(STOPPING="1")


VERB = Verb(
    kind=BrokerSettings,
    about="Run an MQTT broker for a fabric, where there is no other.",
    examples=[
        ("for peers on this machine", "edgepeer broker"),
        (
            "for peers on a network that you trust (links are not encrypted)",
            "edgepeer broker --listen 0.0.0.0:1883 --insecure",
        ),
        (
            "only for who knows the password",
            "EDGEPEER_BROKER_PASSWORD=... edgepeer broker --username greenhouse",
        ),
    ],
    run=run,
)
