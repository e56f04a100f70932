"""Every setting of every verb: its type, its bounds, its default and one sentence on what it does.

These structs are the only place where a setting is declared: the TOML keys, the environment variables, the
flags, their help and the text of a refusal all follow from the fields here. What a job tells the devices has its
bounds and defaults there, in `training.job`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, Struct

from edgepeer.errors import ConfigError
from edgepeer.settings.types import FAULTS as _FAULTS
from edgepeer.settings.types import Address as _Address
from edgepeer.settings.types import BrokerUrl as _BrokerUrl
from edgepeer.settings.types import CheckpointEvery as _CheckpointEvery
from edgepeer.settings.types import CheckpointKeep as _CheckpointKeep
from edgepeer.settings.types import DeviceSpeed as _DeviceSpeed
from edgepeer.settings.types import EmulatedBroker as _EmulatedBroker
from edgepeer.settings.types import Fanout as _Fanout
from edgepeer.settings.types import Faults as _Faults
from edgepeer.settings.types import Flips as _Flips
from edgepeer.settings.types import Lanes as _Lanes
from edgepeer.settings.types import Listen as _Listen
from edgepeer.settings.types import LogLevel as _LogLevel
from edgepeer.settings.types import Models as _Models
from edgepeer.settings.types import Name as _Name
from edgepeer.settings.types import Place as _Place
from edgepeer.settings.types import SoftErrors as _SoftErrors
from edgepeer.settings.types import Text as _Text
from edgepeer.settings.types import says as _says
from edgepeer.settings.types import unguarded as _unguarded
from edgepeer.training import job
from edgepeer.training.form import LossChoice
from edgepeer.wire.precision import Precision
from edgepeer.wire.protocols import STATIC_TIMEOUT_S, ProtocolName

__all__ = [
    "COMMON",
    "MAX_MEMORY",
    "MAX_PEERS",
    "BrokerSettings",
    "EmulateSettings",
    "ExportSettings",
    "FabricSettings",
    "JobSettings",
    "PeerSettings",
    "StatusSettings",
    "TrainSettings",
    "VerbSettings",
]

_USUAL: Final = job.Job(id="usual")
"""A job for which nobody says anything."""
MAX_MEMORY: Final = 2**24
"""MiB."""
MAX_PEERS: Final = 64
"""Of an emulation."""
COMMON: Final = ("broker", "fabric", "fleet", "log_level", "log_json")
"""Settings that the [common] table and EDGEPEER_<NAME> give to several verbs at once."""


_Fleet = Annotated[
    Path | None,
    _says(
        "Directory that `edgepeer join` or `edgepeer fleet` made: only with it is anything encrypted, and are others "
        "kept out.",
        metavar="DIR",
    ),
]
_Insecure = Annotated[
    bool,
    _says("Listen beyond this machine without a fleet: whoever reaches the port can read and change everything."),
]


class VerbSettings(Struct, frozen=True, kw_only=True):
    """What every verb understands."""

    verb: ClassVar[str] = ""
    """The verb on the command line, which is also its TOML table."""
    apart: ClassVar[tuple[str, ...]] = ()
    """Those of COMMON that mean something else here, and are taken only from this verb's own table."""

    log_level: _LogLevel = "info"
    log_json: Annotated[bool, _says("Write logs as one JSON object a line.")] = False


class FabricSettings(VerbSettings, frozen=True, kw_only=True):
    """What every verb that goes to a fabric understands."""

    broker: Annotated[
        _BrokerUrl, _says("The MQTT broker; if given several times, the first that can be reached.", joined=True)
    ] = "mqtt://127.0.0.1:1883"
    fabric: Annotated[_Name, _says("The fabric's name: peers of one name meet on one broker.")] = "default"


class BrokerSettings(VerbSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer broker`."""

    verb: ClassVar[str] = "broker"

    listen: Annotated[_Listen, _says("Where to listen; only loopback unless told otherwise.")] = "127.0.0.1:1883"
    username: Annotated[_Text | None, _says("Refuse clients without this user name.")] = None
    password: Annotated[
        _Text | None, _says("The password of that user; best given in the environment.", secret=True)
    ] = None
    fleet: _Fleet = None
    insecure: _Insecure = False

    def __post_init__(self) -> None:
        if (reason := _unguarded(self.listen, self.fleet, self.insecure)) is not None:
            raise ConfigError(reason)
        if (self.username is None) != (self.password is None):
            given, missing = ("password", "username") if self.username is None else ("username", "password")
            raise ConfigError(f"{missing} is not set, but {given} is: give both, or neither")


class PeerSettings(FabricSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer peer`."""

    verb: ClassVar[str] = "peer"

    peer_id: Annotated[
        _Name | None,
        _says("This device's name; without it, the one kept in the state directory or a random one."),
    ] = None
    state_dir: Annotated[
        Path | None,
        _says("Directory that keeps this device's identity, and its checkpoints, over restarts.", metavar="DIR"),
    ] = None
    fleet: _Fleet = None
    insecure: _Insecure = False
    checkpoint_every: _CheckpointEvery = 0
    checkpoint_keep: _CheckpointKeep = 3
    listen: Annotated[_Listen, _says("Where other peers connect; only loopback unless told otherwise.")] = "127.0.0.1:0"
    advertise: Annotated[
        Annotated[tuple[_Address, ...], Meta(max_length=16)],
        _says(
            "host:port at which others reach this peer, if not where it listens.",
            allowed="host:port, at most 16 of them",
            metavar="HOST:PORT",
        ),
    ] = ()
    fanout: _Fanout = "auto"
    lanes: _Lanes = "auto"
    quorum: Annotated[
        Annotated[int, Meta(ge=0, le=4096)],
        _says("Peers it takes to go on without the others, if more than a majority. The fleet's first peer decides."),
    ] = 0
    protocol: Annotated[ProtocolName, _says("What rounds run by; all peers of a fabric must use the same.")] = "ft-tree"
    static_timeout: Annotated[
        Annotated[float, Meta(gt=0, le=3600)], _says("Seconds after which ft-tree-static takes a message for lost.")
    ] = STATIC_TIMEOUT_S
    trainer: Annotated[
        Literal["auto", "keras", "numpy"], _says("What computes gradients; auto does as the job says.")
    ] = "auto"
    models: _Models = ()
    memory: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_MEMORY)] | None,
        _says("MiB of memory that a job's model and its steps may take; without it, what the machine has available."),
    ] = None
    data_dir: Annotated[Path | None, _says("Directory with this device's data sets.", metavar="DIR")] = None
    dataset: Annotated[
        _Text | None, _says("This device's own data, such as local:PATH, instead of what the job names.")
    ] = None
    round_log: Annotated[
        Path | None, _says("Append every round that this device took part in to a file, as JSON.", metavar="FILE")
    ] = None
    metrics_port: Annotated[
        _Place | None, _says("Serve Prometheus metrics there; on loopback, unless a host is named.")
    ] = None
    device_speed: _DeviceSpeed = "none"
    soft_errors: _SoftErrors = ""
    flip: _Flips = ()

    def __post_init__(self) -> None:
        if self.checkpoint_every and self.state_dir is None:
            raise ConfigError(f"checkpoint_every = {self.checkpoint_every}: state_dir must say where checkpoints go")
        if (reason := _unguarded(self.listen, self.fleet, self.insecure)) is not None:
            raise ConfigError(reason)


class StatusSettings(FabricSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer status`."""

    verb: ClassVar[str] = "status"

    fleet: _Fleet = None

    log_level: _LogLevel = "error"
    json: Annotated[bool, _says("Print one JSON object, for scripts.")] = False
    timeout: Annotated[Annotated[float, Meta(gt=0, le=600)], _says("Seconds to wait for the broker.")] = 5.0


class JobSettings(FabricSettings, frozen=True, kw_only=True):
    """What a training job is made of: what of it a job tells the devices is declared there (`training.job`)."""

    log_level: _LogLevel = "error"
    model: Annotated[
        job.ModelName, _says("mlp, mlp-plain, linear, cnn, or package:function that makes a model on the devices.")
    ] = _USUAL.model
    model_config: Annotated[
        Path | None, _says("File with a Keras model's JSON config, instead of --model.", metavar="FILE")
    ] = None
    trainer: Annotated[job.TrainerName, _says("What computes gradients on the devices.")] = _USUAL.trainer
    dataset: Annotated[
        job.DatasetName, _says("digits, mnist, npz:PATH for one file on all devices, or local:PATH for each its own.")
    ] = _USUAL.dataset
    batch_size: Annotated[job.BatchSize, _says("Samples per peer and round.")] = _USUAL.batch_size
    learning_rate: Annotated[
        job.LearningRate | None,
        _says(
            f"Step size of the optimizer; {job.DESCENT.learning_rate:g} if not given, "
            f"with a split {job.SPLIT_DESCENT.learning_rate:g}."
        ),
    ] = None
    optimizer: Annotated[
        job.Named | None,
        _says(
            "Optimizer, with what it takes in Keras: sgd:momentum=0.9,nesterov=true, adam, adamw:weight_decay=0.01, "
            "rmsprop, adagrad; with trainer keras also adadelta, adamax, nadam, ftrl, lion. "
            f"{job.DESCENT.optimizer} if not given, with a split {job.SPLIT_DESCENT.optimizer}.",
            metavar="NAME[:KEY=VALUE,...]",
        ),
    ] = None
    schedule: Annotated[
        job.Named,
        _says(
            "Of the learning rate: constant, step:every=50,factor=0.5, exponential:steps=100,rate=0.9, inverse-time, "
            "cosine:alpha=0.1, polynomial:end=0.1,power=2; all take warmup=10.",
            metavar="NAME[:KEY=VALUE,...]",
        ),
    ] = _USUAL.schedule
    loss: Annotated[
        LossChoice,
        _says("Loss; auto: crossentropy where y is integer labels, mse where it is other numbers."),
    ] = _USUAL.loss
    stop_on_nan: Annotated[bool, _says("End the run with the first round whose loss is not finite.")] = (
        _USUAL.stop_on_nan
    )
    rounds: Annotated[job.Rounds, _says("Rounds to train.")] = _USUAL.rounds
    seed: Annotated[
        job.Seed,
        _says("Seed of the initial model, of batches and of dropout."),
    ] = _USUAL.seed
    code: Annotated[
        job.Named,
        _says(
            "Let several peers compute the same, so that no round waits for slow or dead ones. none; cyclic:s=1 or "
            "fractional:s=1: exact without any 1 peer, each computes twice as much; coded-reduce:s=1: without any 1 "
            "child of each parent, which must have more (the peers' --fanout); partial:l=2,replication=3: what slow "
            "peers have done counts, vectors are half as long, each computes up to 3 times as much; graph:degree=4: "
            "approximate, as --wait allows; first:s=1: leaves one out.",
            metavar="CODE",
        ),
    ] = _USUAL.code
    wait: Annotated[
        job.WaitName,
        _says(
            "When a coded round is over: exact, when the sum is; 'error<0.5', when its expected squared error is so "
            "many squared gradients of one chunk; deadline:0.3, after so many seconds in any case. With --split: exact "
            "or deadline:0.3, and the split's code makes up for who is late.",
            metavar="POLICY",
        ),
    ] = _USUAL.wait
    precision: Annotated[
        Precision,
        _says(
            "Round gradients where they travel: bf16 to half the bytes, int8 to a quarter, for slow links. All peers "
            "still have the same bits."
        ),
    ] = _USUAL.precision
    split: Annotated[
        job.NamedIfAny,
        _says(
            "Divide the model itself over the peers, a dense one trained by sgd, and let a round be an iteration. "
            "codenet:m=5,n=4,t=1: matrices in 5 x 4 blocks, coded so that any wrong or missing line of blocks a step "
            "is corrected; polydot:m=2,n=2,d=1, with errors=, erasures= or nodes= if it is to stand more; "
            "replicate:m=5,n=4,copies=3; abft:m=5,n=4; none:m=5,n=4, unprotected. "
            "Without it, each peer has the whole model.",
            metavar="SPLIT",
        ),
    ] = _USUAL.split
    guarantee: Annotated[
        job.Guarantee,
        _says("Of split codes: correct whatever errors there are, or as many again that don't conspire."),
    ] = _USUAL.guarantee
    scrub_every: Annotated[
        job.RoundsIfAny,
        _says("Of split jobs: look at all weights, and keep a checkpoint, every so many iterations; 0: at the end."),
    ] = _USUAL.scrub_every
    l2: Annotated[job.L2, _says("Of split jobs: L2 regularization, half of this times |W|^2.")] = _USUAL.l2
    sparsity: Annotated[
        job.NamedIfAny,
        _says("Of split autoencoders: keep hidden units quiet, rho=0.05,beta=3.", metavar="rho=X,beta=X"),
    ] = _USUAL.sparsity
    eval_every: Annotated[job.Rounds, _says("Measure the test accuracy, or error, every so many rounds.")] = (
        _USUAL.eval_every
    )
    save: Annotated[
        Path | None,
        _says("Write the trained model there: .keras for Keras, .npz for NumPy (dense models).", metavar="FILE"),
    ] = None
    timeout: Annotated[
        Annotated[float, Meta(ge=1, le=86_400)],
        _says("Give up after so many seconds in which no peer joined and no round finished."),
    ] = 120.0
    report: Annotated[Path | None, _says("Directory for report.json and report.png.", metavar="DIR")] = None


class TrainSettings(JobSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer train`."""

    verb: ClassVar[str] = "train"

    fleet: _Fleet = None

    peers: Annotated[
        job.Peers | None,
        _says("Start once so many peers are in; without it 1, or as many as the split has nodes."),
    ] = None
    withdraw: Annotated[bool, _says("Start nothing: take back the job that the fabric has, and so stop it.")] = False


class EmulateSettings(JobSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer emulate`."""

    verb: ClassVar[str] = "emulate"
    apart: ClassVar[tuple[str, ...]] = ("broker", "fabric")

    broker: Annotated[
        _EmulatedBroker, _says("embedded, mosquitto (both started here), or the URL of a running broker.")
    ] = "embedded"
    fabric: Annotated[_Name, _says("Fabric to use on that broker.")] = "emulation"
    secure: Annotated[
        bool, _says("Make a fleet for this run: links are encrypted, documents signed, nobody else is let in.")
    ] = False
    peers: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_PEERS)] | None,
        _says("Peers to start, each its own process; without it 7, or what --split or --scenario takes."),
    ] = None
    topology: Annotated[
        Literal["tree", "star"], _says("tree of that fan-out; star: all peers but the first are its children.")
    ] = "tree"
    fanout: _Fanout = "auto"
    lanes: _Lanes = "auto"
    quorum: Annotated[
        Annotated[int, Meta(ge=0, le=4096)],
        _says("Peers it takes to go on without the others, if more than a majority."),
    ] = 0
    protocol: Annotated[ProtocolName, _says("What rounds run by; all peers of a fabric must use the same.")] = "ft-tree"
    static_timeout: Annotated[
        Annotated[float, Meta(gt=0, le=3600)], _says("Seconds after which ft-tree-static takes a message for lost.")
    ] = STATIC_TIMEOUT_S
    data_dir: Annotated[Path | None, _says("Directory with data sets in files.", metavar="DIR")] = None
    device_speed: _DeviceSpeed = "none"
    checkpoint_every: _CheckpointEvery = 0
    checkpoint_keep: _CheckpointKeep = 3
    keep: Annotated[
        Path | None,
        _says("Directory, empty, where the peers' logs, checkpoints and records of rounds stay.", metavar="DIR"),
    ] = None
    network: Annotated[
        Literal["auto", "namespaces", "loopback", "none"],
        _says("What keeps peers apart: a network namespace each, an address each, or nothing; auto: the best of them."),
    ] = "auto"
    link: Annotated[
        Annotated[tuple[_Text, ...], Meta(max_length=MAX_PEERS)],
        _says(
            "Each peer's link: rate and one-way delay, as 100mbit,5ms, or rate up/down, as 10mbit/50mbit,20ms; "
            "with jitter=20ms, loss=1% and queue=200ms, too. 3,5=10mbit is that of peers 3 and 5, and may follow.",
            allowed="at most 64 links, none empty, with semicolons between, such as 100mbit,5ms; 3,5=10mbit,5ms",
            metavar="[PEERS=]LINK",
            separator=";",
        ),
    ] = ()
    nat: Annotated[
        Annotated[tuple[_Text, ...], Meta(max_length=MAX_PEERS)],
        _says(
            "Peers that can only dial out, as behind NAT, such as 3,5.",
            allowed="numbers of at most 64 peers, such as 3,5",
            metavar="PEERS",
        ),
    ] = ()

    scenario: Annotated[
        _Text | None, _says("Faults from a TOML file, or from the library by name.", metavar="FILE|NAME")
    ] = None
    list_scenarios: Annotated[bool, _says("List the library of scenarios, and start nothing.")] = False
    skip_impossible: Annotated[
        bool, _says("Leave out faults that this machine can't have, and say so, instead of refusing them.")
    ] = False
    cut: Annotated[
        _Faults,
        _says("Cut a link, A-B@5..10 for rounds 5 to 10; A>B in one direction only; 5s..10s in seconds.", **_FAULTS),
    ] = ()
    isolate: Annotated[_Faults, _says("Cut a peer off from everybody, PEER@15..18, the broker too.", **_FAULTS)] = ()
    partition: Annotated[
        _Faults, _says("Cut the fleet in parts, 0,1,2|rest@10..20; the largest keeps the broker.", **_FAULTS)
    ] = ()
    kill: Annotated[_Faults, _says("Kill a peer, PEER@20; a peer is a number, root, leaf or posN.", **_FAULTS)] = ()
    restart: Annotated[_Faults, _says("Start a killed peer again, PEER@25.", **_FAULTS)] = ()
    pause: Annotated[_Faults, _says("Freeze a peer, PEER@8..12.", **_FAULTS)] = ()
    slow: Annotated[_Faults, _says("Let a peer compute so many times slower, PEERx4@8..12.", **_FAULTS)] = ()
    broker_down: Annotated[_Faults, _says("Stop the broker, 10..30, and start it again, empty.", **_FAULTS)] = ()
    flip: Annotated[
        _Faults,
        _says(
            "A soft error in a split job: 3@50 flips a bit of a weight of node 3 in round 50; "
            "3@50:kind=nan,place=product is another kind, elsewhere.",
            **_FAULTS,
        ),
    ] = ()
    soft_errors: _SoftErrors = ""


class ExportSettings(VerbSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer export`."""

    verb: ClassVar[str] = "export"

    log_level: _LogLevel = "warning"
    checkpoint: Annotated[Path | None, _says("A checkpoint, or a directory of some.", metavar="FILE")] = None
    out: Annotated[Path | None, _says("The file to write: .keras or .npz.", metavar="FILE")] = None
    models: _Models = ()
