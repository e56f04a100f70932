"""`edgepeer broker`: the embedded MQTT broker, until it is told to stop."""

from __future__ import annotations

import asyncio

from edgepeer.cli.signals import run_until_stopped
from edgepeer.cli.verb import Verb
from edgepeer.notify import ready
from edgepeer.settings import BrokerSettings

__all__ = ["VERB", "command"]


def run(settings: BrokerSettings) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    return run_until_stopped(lambda stop: _serve(settings, stop))


async def _serve(settings: BrokerSettings, stop: asyncio.Event) -> None:
    from edgepeer.enrol.keeping import kept
    from edgepeer.fabric.broker import EmbeddedBroker
    from edgepeer.trust.loading import load_trust

    host, _, port = settings.listen.rpartition(":")
    identity, login = load_trust(settings.fleet), (settings.username, settings.password)
    made = EmbeddedBroker(host.strip("[]"), int(port), *login, identity, insecure=settings.insecure)
    async with kept(identity), made as broker:
        # The address without the password; on a line of its own, so that a script can read it.
        print(f"broker ready at {broker.address}", flush=True)
        async with ready(f"listens on {broker.address}"):
            await stop.wait()


VERB = Verb(
    kind=BrokerSettings,
    about="Run an MQTT broker for a fabric, where there is no other.",
    examples=[
        ("for peers on this machine", "edgepeer broker"),
        ("for a fleet", "edgepeer broker --listen 0.0.0.0:8883 --fleet ~/.local/share/edgepeer-fleet/broker"),
        (
            "for peers on a network that you trust (nothing is encrypted)",
            "edgepeer broker --listen 0.0.0.0:1883 --insecure",
        ),
        (
            "only for who knows the password",
            "EDGEPEER_BROKER_PASSWORD=... edgepeer broker --username greenhouse",
        ),
    ],
    run=run,
)
command = VERB.command
