"""`edgepeer emulate`: a whole fleet on this machine, every peer a process of its own."""

from __future__ import annotations

import sys

from edgepeer.cli.signals import run as run_async
from edgepeer.cli.verb import Verb
from edgepeer.cli.written import go_on_unread
from edgepeer.settings import EmulateSettings

__all__ = ["VERB", "command"]


def run(settings: EmulateSettings) -> int:
    """The whole fleet, its job and its end; or the list of scenarios."""
    if settings.list_scenarios:
        return _list_scenarios()
    from edgepeer.cli.outcome import conclude
    from edgepeer.emulation.faults.scenarios import with_scenario
    from edgepeer.emulation.launcher import emulate
    from edgepeer.following.display import open_display
    from edgepeer.following.report import prepare_report
    from edgepeer.following.saving import ModelSaver

    settings = with_scenario(settings)
    # Peers are started by `python -m`, which finds modules in this directory; to be saved, a model is made once more.
    sys.path.insert(0, "")
    saver = ModelSaver(settings)
    if settings.report is not None:
        prepare_report(settings.report)
    go_on_unread(save=settings.save, report=settings.report)
    with open_display() as display:
        result = run_async(emulate(settings, display.update, saver), leave=display.leave)
    return conclude(result, display, report=settings.report, saver=saver)


def _list_scenarios() -> int:
    from edgepeer.emulation.faults.scenarios import library

    scenarios = library()
    width = max(len(scenario.name) for scenario in scenarios)
    for scenario in scenarios:
        print(f"{scenario.name:{width}}  {scenario.about}")
    return 0


VERB = Verb(
    kind=EmulateSettings,
    about="Run a whole fleet on this machine: a broker, peers, a job.\n\n"
    "Shows the tree and the training live on a terminal, and in plain lines elsewhere.",
    examples=[
        ("seven peers train a classifier of handwritten digits", "edgepeer emulate"),
        (
            "without TensorFlow, a wider tree",
            "edgepeer emulate --trainer numpy --peers 15 --fanout 4 --batch-size 20",
        ),
        (
            "real MNIST from files, with a report and a plot",
            "edgepeer emulate --dataset mnist --data-dir ~/mnist --report out",
        ),
        (
            "numbers instead of classes, and the trained model in a file",
            "edgepeer emulate --dataset npz:readings.npz --loss huber --optimizer sgd:momentum=0.9 \\\n"
            "      --schedule cosine --save model.keras",
        ),
        ("over mosquitto, or a broker that runs already", "edgepeer emulate --broker mosquitto"),
        (
            "a link is cut for rounds 50 to 80, a peer is killed and comes back",
            "edgepeer emulate --cut 3-1@50..80 --kill 4@60 --restart 4@100 --report out",
        ),
        (
            "two of seven machines lag eightfold in each round, and a code keeps rounds from waiting for them",
            "edgepeer emulate --trainer numpy --code partial:l=2,replication=3 \\\n"
            "      --device-speed stragglers:0.1,8,0.25",
        ),
        ("master and workers, of whom any one may lag", "edgepeer emulate --topology star --code cyclic:s=1"),
        (
            "all peers behind slow lines, two of them behind slower ones, one only dials out",
            "edgepeer emulate --link 100mbit,5ms --link 3,5=10mbit/50mbit,20ms,loss=1% --nat 4",
        ),
        ("faults by name", "edgepeer emulate --scenario two-serial --report out"),
    ],
    run=run,
)
command = VERB.command
