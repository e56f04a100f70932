"""What a Peer is made of: the kind of each argument, declared once, and checked before anything is made of it.

Whether a value of the right kind makes sense, as an address or a name, is said by what reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, Self, runtime_checkable

import msgspec

from edgepeer.errors import ConfigError
from edgepeer.fabric.events import FabricEvent
from edgepeer.peer.machines import MachineFactory
from edgepeer.printable import printable
from edgepeer.protocol.limits import Limits
from edgepeer.readable import readable
from edgepeer.topology.view import MAX_FANOUT, MAX_LANES, MAX_MEMBERS
from edgepeer.trust.names import Holder

__all__ = ["Arguments"]


@runtime_checkable
class _Identity(Protocol):
    """An edgepeer.trust.identity.Identity, by what shows it: that module needs cryptography, which others don't."""

    @property
    def holder(self) -> Holder: ...


def _must_be(words: str, *, secret: bool = False, least: int | None = None, most: int | None = None) -> msgspec.Meta:
    return msgspec.Meta(ge=least, le=most, extra={"must be": words, "secret": secret})


_YES_OR_NO: Final = _must_be("True or False")


@readable
class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """See `Peer`."""

    broker: Annotated[str, _must_be("text, such as mqtt://127.0.0.1", secret=True)]
    fabric: Annotated[str, _must_be("text")]
    peer_id: Annotated[str | None, _must_be("text, or None")]
    state_dir: Annotated[Path | None, _must_be("a path that is not empty, or None")]
    listen: Annotated[str, _must_be("text, such as 127.0.0.1:0")]
    insecure: Annotated[bool, _YES_OR_NO]
    advertise: Annotated[Sequence[str], _must_be("a list of addresses, such as ['192.168.1.10:7700']")]
    fanout: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=MAX_FANOUT)] | Literal["auto"],
        _must_be(f"an integer from 1 to {MAX_FANOUT}, or 'auto'"),
    ]
    lanes: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=MAX_LANES)] | Literal["auto"],
        _must_be(f"an integer from 1 to {MAX_LANES}, or 'auto'"),
    ]
    quorum: Annotated[int, _must_be(f"an integer from 0, for a majority, to {MAX_MEMBERS}", least=0, most=MAX_MEMBERS)]
    code: Annotated[str, _must_be("text, such as none")]
    wait: Annotated[str, _must_be("text, such as exact")]
    machine: Annotated[MachineFactory, _must_be("what makes machines, such as an edgepeer.baselines.MachineMaker")]
    limits: Annotated[Limits | None, _must_be("edgepeer.Limits, or None")]
    trust: Annotated[_Identity | None, _must_be("what edgepeer.trust.identity.Identity.load(directory) gives, or None")]
    aside: Annotated[bool, _YES_OR_NO]
    on_fabric_event: Annotated[Callable[[FabricEvent], None] | None, _must_be("a function, or None")]

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Self:
        """These, among whatever else is given.

        Raises:
            ConfigError: one is not of its kind: its name, its value, and what is wanted.
        """
        return cls(**{field.name: _converted(field, given[field.name]) for field in msgspec.structs.fields(cls)})


def _converted(field: msgspec.structs.FieldInfo, value: object) -> Any:
    try:
        return msgspec.convert(value, field.type, dec_hook=_of_kind)
    except msgspec.ValidationError:
        wanted: dict[str, Any] = field.type.__metadata__[0].extra
        shown = f"<{type(value).__name__}>" if wanted["secret"] else printable(repr(value))
        raise ConfigError(f"{field.name} = {shown}: must be {wanted['must be']}") from None


def _of_kind(kind: type, value: object) -> object:
    """For msgspec, which looks itself whether that is of a kind that it does not know."""
    if kind is not Path or not isinstance(value, (str, Path)):
        return value
    if not str(value):
        raise ValueError("an empty path is no directory")  # Path would take it for the current one
    try:
        return Path(value).expanduser()  # as in settings
    except RuntimeError as error:
        raise ValueError(str(error)) from None
