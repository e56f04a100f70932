"""`edgepeer train`: puts a job into a fabric and follows it.

The job belongs to the fabric, not to this process: Ctrl-C ends the following, and the devices train on.
`--withdraw` takes the job back.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from edgepeer.cli.signals import run as run_async
from edgepeer.cli.verb import Verb
from edgepeer.cli.written import go_on_unread, is_unread
from edgepeer.following.jobs import make_job, nodes_of
from edgepeer.settings import TrainSettings

if TYPE_CHECKING:
    from edgepeer.fabric.address import BrokerAddress
    from edgepeer.fabric.events import FabricEvent
    from edgepeer.following.progress import JobProgress
    from edgepeer.following.result import JobResult

__all__ = ["VERB", "command"]


def run(settings: TrainSettings) -> int:
    """Follow a new job to its end; or withdraw the one that there is."""
    if settings.withdraw:
        return run_async(_withdraw(settings))

    from edgepeer.cli.outcome import conclude
    from edgepeer.enrol.keeping import kept
    from edgepeer.fabric.address import BrokerAddress
    from edgepeer.following.display import open_display
    from edgepeer.following.follow import run_job
    from edgepeer.following.progress import JobProgress
    from edgepeer.following.report import prepare_report
    from edgepeer.following.saving import ModelSaver, state_from_fleet
    from edgepeer.trust.loading import load_trust

    identity = load_trust(settings.fleet)
    broker = BrokerAddress.parse(settings.broker)
    if settings.report is not None:
        prepare_report(settings.report)
    saver = ModelSaver(settings)

    async def save(result: JobResult, withdrawn: asyncio.Event, at: BrokerAddress) -> None:
        fetch = partial(state_from_fleet, at.url(), settings.fabric, timeout=settings.timeout, identity=identity)
        await saver.save(result, fetch, withdrawn)

    async def follow(show: Callable[[JobProgress], None]) -> JobResult:
        async with kept(identity):
            return await run_job(
                progress,
                show,
                broker=broker,
                fabric=settings.fabric,
                timeout=settings.timeout,
                identity=identity,
                detach=True,
                at_end=save,
                beside_others=True,
            )

    wait_for = settings.peers or nodes_of(settings) or 1
    progress = JobProgress(make_job(settings, wait_for=wait_for), broker=str(broker))
    go_on_unread(save=settings.save, report=settings.report)
    try:
        with open_display() as display:
            result = run_async(follow(display.update), leave=display.leave)
    except BaseException as error:
        if progress.published and (isinstance(error, KeyboardInterrupt) or is_unread()):
            print(
                f"edgepeer: job {progress.job.id} goes on without this terminal; edgepeer status shows it, "
                "edgepeer train --withdraw ends it",
                file=sys.stderr,
            )
        raise
    return conclude(result, display, report=settings.report, saver=saver)


async def _withdraw(settings: TrainSettings) -> int:
    from edgepeer.errors import FabricError
    from edgepeer.fabric.address import BrokerAddress
    from edgepeer.fabric.documents import JobOver
    from edgepeer.fabric.topics import Group
    from edgepeer.following.observe import hear_out, hear_the_end, observe, question
    from edgepeer.following.picture import Picture
    from edgepeer.trust.loading import load_trust

    picture, news, identity = Picture(), asyncio.Event(), load_trust(settings.fleet)
    broker = BrokerAddress.parse(settings.broker)

    def take(event: FabricEvent) -> None:
        picture.take(event)
        news.set()

    interests = Group.JOB | Group.VIEW | Group.PEERS
    async with observe(broker, settings.fabric, take, interests=interests, identity=identity) as client:
        await hear_out(picture, news)
        if picture.run:
            await question(client, picture, news)  # whoever works on it may be dead
        if not (picture.has_job or picture.run):
            print(f"fabric {settings.fabric!r} has no job")
            return 0
        found = picture.run or (None if picture.job is None else picture.job.id)
        # Who is away hears of it when it is back, and puts it in its place no more.
        client.publish_retained(client.topics.job, None if found is None or client.in_fleet else JobOver(over=found))
        if not await client.flush(settings.timeout):
            raise FabricError(f"broker {broker}: did not confirm within {settings.timeout:g} s")
        if not await hear_the_end(picture, news, found):
            raise FabricError(
                f"broker {broker}: has taken that the job is over, and passes it on to nobody: do its rules let you "
                f"write {client.topics.job}? The job goes on"
            )
    print(f"job {found or '(unreadable)'} is withdrawn")
    return 0


VERB = Verb(
    kind=TrainSettings,
    about="Train a model on the peers that are in a fabric, and follow it.\n\n"
    "The job belongs to the fabric: Ctrl-C ends the following, and the peers train on.",
    examples=[
        ("train the built-in network on digits once seven peers are in", "edgepeer train --peers 7"),
        (
            "MNIST, which every device has in the directory that its peer was given",
            "edgepeer train --broker mqtt://broker.local --fabric greenhouse \\\n"
            "      --dataset mnist --batch-size 100 --rounds 200",
        ),
        (
            "a model of your own: a function that is installed on the devices, or a Keras JSON config",
            "edgepeer train --model plants.models:small --dataset local:readings.npz",
        ),
        (
            "seven machines of which any one may lag: each trains on two sevenths of the data instead of one",
            "edgepeer train --peers 7 --code cyclic:s=1",
        ),
        (
            "don't wait for more than 0.3 s a round: what is there by then counts, and the report says what that is",
            "edgepeer train --peers 7 --code partial:l=1,replication=3 --wait deadline:0.3",
        ),
        (
            "get the trained model: the fleet hands it over at the end",
            "edgepeer train --peers 7 --stop-on-nan --save model.keras",
        ),
        (
            "a network that is divided over twelve machines, of which any one may compute wrong numbers, or die",
            "edgepeer train --split codenet:m=2,n=2,t=1 --peers 12",
        ),
        ("end the job that the fabric has", "edgepeer train --withdraw"),
    ],
    run=run,
)
command = VERB.command
