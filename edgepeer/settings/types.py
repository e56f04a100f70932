"""What several settings have in common: kinds of values, with their bounds and words."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from edgepeer import sockets

__all__ = [
    "FAULTS",
    "Address",
    "BrokerUrl",
    "CheckpointEvery",
    "CheckpointKeep",
    "DeviceSpeed",
    "EmulatedBroker",
    "Fanout",
    "Faults",
    "Flips",
    "Lanes",
    "Listen",
    "LogLevel",
    "Models",
    "Name",
    "Place",
    "SoftErrors",
    "Text",
    "says",
    "unguarded",
]

_PORT = r"([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST = r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)"
_MQTT = rf"mqtts?://([^@/\s]+@)?{_HOST}(:{_PORT})?/?"

Listen = Annotated[str, Meta(pattern=rf"^{_HOST}:{_PORT}$", extra={"allowed": "host:port, port 0 being any free one"})]
Place = Annotated[
    str,
    Meta(
        pattern=rf"^({_HOST}:)?{_PORT}$",
        extra={"allowed": "a port or host:port as text, port 0 being any free one", "metavar": "[HOST:]PORT"},
    ),
]
Address = Annotated[str, Meta(pattern=rf"^{_HOST}:{_PORT}$", max_length=128)]
BrokerUrl = Annotated[
    str,
    Meta(
        pattern=rf"^{_MQTT}(, ?{_MQTT})*$",
        extra={
            "allowed": "mqtt:// or mqtts://[user:password@]host[:port], or several with commas between",
            "url": True,
        },
    ),
]
EmulatedBroker = Annotated[
    str,
    Meta(
        pattern=rf"^(embedded|mosquitto|{_MQTT})$",
        extra={"allowed": "embedded, mosquitto or mqtt://[user:password@]host[:port]", "url": True},
    ),
]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$",
        extra={"allowed": "1 to 63 letters, digits, '.', '_' and '-', a letter or digit first"},
    ),
]
Text = Annotated[str, Meta(min_length=1, max_length=512)]


def unguarded(listen: str, fleet: object, insecure: bool) -> str | None:
    """Why nobody may listen there: it is beyond this machine, nobody is kept out, and that was not asked for."""
    host = listen.rpartition(":")[0].strip("[]")
    if (reason := sockets.unguarded(host, guarded=fleet is not None, insecure=insecure)) is None:
        return None
    return f"listen = {listen}: {reason} and say --fleet, or give --insecure where you trust the whole network"


def says(description: str, **extra: Any) -> Meta:
    return Meta(description=description, extra=extra)


Faults = Annotated[tuple[Text, ...], Meta(max_length=256)]
FAULTS: Final = {"metavar": "FAULT", "separator": ";", "allowed": "at most 256 faults, such as the help shows"}


SoftErrors = Annotated[
    Annotated[str, Meta(max_length=255)],
    says(
        "Make soft errors on purpose in split jobs, by chance: p=3e-4,steps=O1+O2+O3,kind=sparse; steps are O1 and O2 "
        "(products), O3 (stored weights), encoding, decoded, activation, verdict, sum; kinds sparse, garbage, flip, "
        "nan.",
        metavar="p=X,...",
    ),
]
Flips = Annotated[
    Faults,
    says(
        "Make one on purpose, NODE@ROUND such as 3@50, or 3@50:kind=nan,place=stored; the peer that is that node "
        "then does.",
        metavar="NODE@ROUND",
        separator=";",
        allowed="at most 256 of NODE@ROUND, with semicolons between",
    ),
]


Fanout = Annotated[
    Annotated[int, Meta(ge=1, le=64)] | Literal["auto"],
    says(
        "Children of each peer in the tree, if this peer makes it; auto: 2, until others are measured to be faster.",
        allowed="auto, or an integer from 1 to 64",
        metavar="auto|N",
    ),
]
Lanes = Annotated[
    Annotated[int, Meta(ge=1, le=16)] | Literal["auto"],
    says(
        "Into how many ranges vectors are divided, each with a tree of its own; auto: 1, until more are measured to be "
        "faster. With auto, here or for --fanout, slow and distant peers become leaves.",
        allowed="auto, or an integer from 1 to 16",
        metavar="auto|N",
    ),
]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], says("The least serious log line to show.")]


DeviceSpeed = Annotated[
    Text,
    says(
        "Emulate a slower device, seconds a batch: none, constant:0.1, exponential:0.1, shifted:0.05,0.1, trace:FILE, "
        "or stragglers:0.1,8,0.25, which is 0.1 s, but 8 times that at a random quarter of the peers in each round.",
        metavar="MODEL",
    ),
]
CheckpointEvery = Annotated[
    Annotated[int, Meta(ge=0, le=100_000)],
    says("Keep the state of the training in the state directory every so many rounds; 0: never."),
]
CheckpointKeep = Annotated[
    Annotated[int, Meta(ge=1, le=1000)], says("How many checkpoints stay; older ones are deleted.")
]
Models = Annotated[
    Annotated[tuple[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")], ...], Meta(max_length=64)],
    says(
        "Packages on this device that a job may name a function of, as in package:function; without it, none.",
        allowed="names of top-level packages, at most 64",
        metavar="PACKAGE",
    ),
]
