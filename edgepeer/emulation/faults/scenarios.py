"""Named scenarios: faults in a small TOML file, with a line on what they show. A library of them ships with edgepeer.

about = "One link of the tree is cut in both directions, as in the thesis."
peers = 4                    # the fewest that it makes sense with; optional
rounds = 200                 # likewise
cut = ["pos3-pos1@5..10"]    # as many kinds as wanted, each a list of what the flag of that name takes

[settings]                   # what it takes besides, where nothing else is asked for; optional
model = "linear"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from inspect import get_annotations
from pathlib import Path
from typing import Any, Final

import msgspec

from edgepeer.emulation.faults.texts import SHAPES, read
from edgepeer.emulation.jobs import peers_of
from edgepeer.errors import ConfigError
from edgepeer.given import read_given
from edgepeer.printable import printable
from edgepeer.settings import EmulateSettings, JobSettings, settings_of
from edgepeer.settings.model import MAX_PEERS

__all__ = ["Scenario", "find_scenario", "library", "with_scenario"]

_SUFFIX: Final = ".toml"
_MAX_FAULTS: Final = 1000
_MOST: Final = {"peers": MAX_PEERS, "rounds": 10_000_000}
_SETTINGS: Final = (
    *(name for name in get_annotations(JobSettings) if name not in ("log_level", "timeout", "save", "report")),
    *("topology", "fanout", "protocol", "device_speed", "link", "soft_errors"),
)
"""What a scenario may ask for."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario file says."""

    name: str
    """The file's, without .toml."""
    about: str
    """One sentence."""
    peers: int
    """The fewest it makes sense with."""
    rounds: int
    """Likewise."""
    faults: Mapping[str, tuple[str, ...]]
    """By kind; all of them are well-formed."""
    settings: Mapping[str, Any]
    """Of the emulation; each is one that is allowed."""


def with_scenario(settings: EmulateSettings) -> EmulateSettings:
    """With what the scenario asks for, wherever a setting is as it is by default.

    Raises:
        ConfigError: there is no such scenario, or it is malformed.
    """
    if settings.scenario is None:
        return settings
    scenario = find_scenario(settings.scenario)
    usual = settings_of(EmulateSettings)
    news = {name: value for name, value in scenario.settings.items() if getattr(settings, name) == usual[name].default}
    settings = msgspec.structs.replace(settings, **news)
    if settings.peers is None and peers_of(settings) < scenario.peers:
        settings = msgspec.structs.replace(settings, peers=scenario.peers)
    return settings


def find_scenario(name: str) -> Scenario:
    """The scenario of the library with that name, else the one in the file of that name.

    Raises:
        ConfigError: there is none, or it is malformed.
    """
    shipped = files(__package__) / "library"
    if "/" not in name and not name.endswith(_SUFFIX):
        entry = shipped / f"{name}{_SUFFIX}"
        if entry.is_file():
            return _parse(name, entry.read_text())
        if not Path(name).is_file():
            known = ", ".join(scenario.name for scenario in library())
            raise ConfigError(f"scenario = {printable(name)}: must be a file, or one of {known}")
    try:
        return _parse(Path(name).name.removesuffix(_SUFFIX), read_given(Path(name).expanduser()))
    except RuntimeError:
        raise ConfigError(f"scenario = {printable(name)}: there is no such user's home") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise ConfigError(f"scenario = {printable(name)}: can't read it: {reason}") from None


def library() -> tuple[Scenario, ...]:
    """All scenarios that ship with edgepeer, sorted."""
    shipped = sorted((files(__package__) / "library").iterdir(), key=lambda entry: entry.name.removesuffix(_SUFFIX))
    return tuple(
        _parse(entry.name.removesuffix(_SUFFIX), entry.read_text()) for entry in shipped if entry.name.endswith(_SUFFIX)
    )


def _parse(name: str, text: str) -> Scenario:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"scenario {name}: is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"scenario {name}: has lists in lists without end") from None
    about, asked = table.pop("about", ""), _settings(name, table.pop("settings", {}))
    fewest = {field: table.pop(field, 1) for field in ("peers", "rounds")}
    if not isinstance(about, str) or "\n" in about:
        raise ConfigError(f"scenario {name}: about must be one line of text")
    for field, number in fewest.items():
        if type(number) is not int or not 1 <= number <= _MOST[field]:
            raise ConfigError(f"scenario {name}: {field} = {number!r}: must be an integer from 1 to {_MOST[field]}")
    for kind, given in table.items():
        if kind not in SHAPES:
            raise ConfigError(
                f"scenario {name}: {printable(kind)} is unknown; allowed are about, peers, rounds, settings, "
                f"{', '.join(SHAPES)}"
            )
        if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
            raise ConfigError(f"scenario {name}: {kind} must be a list of texts, such as {kind} = [...]")
    if sum(map(len, table.values())) > _MAX_FAULTS:
        raise ConfigError(f"scenario {name}: more than {_MAX_FAULTS} faults")
    for kind, given in table.items():
        for each in given:
            try:
                read(kind, each)
            except ConfigError as error:
                raise ConfigError(f"scenario {name}: {error}") from None
    faults = {kind: tuple(given) for kind, given in table.items()}
    return Scenario(name=name, about=about, **fewest, faults=faults, settings=asked)


def _settings(name: str, table: object) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"scenario {name}: settings must be a table, [settings]")
    known = settings_of(EmulateSettings)
    for key in table:
        if key not in _SETTINGS:
            raise ConfigError(
                f"scenario {name}: settings {printable(key)} is unknown; allowed are {', '.join(_SETTINGS)}"
            )
    return {key: known[key].parse(value, f"scenario {name}") for key, value in table.items()}
