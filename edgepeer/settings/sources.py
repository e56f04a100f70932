"""Where settings come from: a TOML file, then environment variables, then flags, the later the stronger.

Nothing is started before every value was checked. A refusal is one ConfigError of one line that names the
setting, its value, where it came from and what is allowed.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from edgepeer.errors import ConfigError
from edgepeer.given import read_given
from edgepeer.settings.fields import Setting, settings_of
from edgepeer.settings.membership import with_membership
from edgepeer.settings.model import COMMON, VerbSettings
from edgepeer.settings.verbs import VERBS

__all__ = ["CONFIG_NAME", "find_config", "load_settings", "variable"]

CONFIG_NAME = "edgepeer.toml"
_NOT_SETTINGS: Final = ("EDGEPEER_CONFIG", "EDGEPEER_MNIST")
"""The file itself, and where the tests find MNIST."""

_S = TypeVar("_S", bound=VerbSettings)


def load_settings(
    kind: type[_S],
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
    words: Collection[str] = (),
) -> _S:
    """The settings of one verb from all sources.

    Args:
        flags: by setting name; None and empty lists mean "not given".
        environ: the environment; the process's own if omitted.
        config: the TOML file; if omitted, the one that `find_config` finds, if any.
        words: which of the flags were none, but words of the command line.

    Raises:
        ConfigError: some value, key, variable or file is wrong.
    """
    environ = os.environ if environ is None else environ
    settings = settings_of(kind)
    values: dict[str, Any] = {}
    path = config or find_config(environ)
    if path is not None:
        values |= _from_file(kind, settings, path)
    values |= _from_environment(kind, settings, environ)
    for name, given in (flags or {}).items():
        if given is not None and given != []:
            values[name] = settings[name].parse(given, "the command line" if name in words else settings[name].flag)
    return kind(**with_membership(kind, settings, values))


def find_config(environ: Mapping[str, str]) -> Path | None:
    """EDGEPEER_CONFIG, else ./edgepeer.toml, else the user's own edgepeer.toml; None where there is none."""
    if named := environ.get("EDGEPEER_CONFIG"):
        try:
            return Path(named).expanduser()
        except RuntimeError:
            raise ConfigError(f"EDGEPEER_CONFIG = {named}: there is no such user's home") from None
    home = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    candidates = (Path(CONFIG_NAME), Path(home) / CONFIG_NAME)
    return next((path for path in candidates if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # of somebody else, as where a service has its maker's HOME
        return False


def variable(kind: type[VerbSettings], name: str) -> str:
    """The environment variable of one verb's setting, as EDGEPEER_PEER_LISTEN."""
    return f"EDGEPEER_{kind.verb}_{name.removeprefix(kind.verb + '_')}".upper().replace("-", "_")


def _common(kind: type[VerbSettings], settings: Mapping[str, Setting]) -> list[str]:
    return [name for name in COMMON if name in settings and name not in kind.apart]


def _from_file(kind: type[VerbSettings], settings: Mapping[str, Setting], path: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(read_given(path))
    except OSError as error:
        raise ConfigError(f"config = {path}: can't read it: {error.strerror or error}") from None
    except ValueError as error:  # no TOML, no text, or a number without end
        raise ConfigError(f"config = {path}: is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"config = {path}: is not of settings: it has lists in lists without end") from None
    known = {"common": list(COMMON)} | {verb.verb: list(settings_of(verb)) for verb in VERBS}
    for table, content in tables.items():
        if table not in known:
            raise ConfigError(f"{path}: [{table}] is unknown; allowed are {', '.join(f'[{t}]' for t in known)}")
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: {table} must be a table, as in [{table}]")
        for key in content:
            if key not in known[table]:
                allowed = ", ".join(known[table])
                raise ConfigError(f"{path}: [{table}] {key} is unknown; allowed are {allowed}")
    values: dict[str, Any] = {}
    for table, names in (("common", _common(kind, settings)), (kind.verb, list(settings))):
        content = tables.get(table, {})
        for name in names:
            if name in content:
                values[name] = settings[name].parse(content[name], f"{path} [{table}]")
    return values


def _from_environment(
    kind: type[VerbSettings], settings: Mapping[str, Setting], environ: Mapping[str, str]
) -> dict[str, Any]:
    names = {f"EDGEPEER_{name.upper()}": name for name in _common(kind, settings)}
    own = {variable(kind, name): name for name in settings}
    prefix = variable(kind, "")
    common = [f"EDGEPEER_{name.upper()}" for name in COMMON]
    known = {*own, *common, *_NOT_SETTINGS}
    verbs = tuple(variable(verb, "") for verb in VERBS)
    for given in sorted(environ):
        if given.startswith(prefix) and given not in own:
            raise ConfigError(f"{given} is unknown in the environment; allowed are {', '.join(own)}")
        if given.startswith("EDGEPEER_") and given not in known and not given.startswith(verbs):
            allowed = ", ".join([*common, "EDGEPEER_CONFIG", f"{prefix}..."])
            raise ConfigError(f"{given} is unknown in the environment; allowed are {allowed}")
    values: dict[str, Any] = {}
    for key, name in (*names.items(), *own.items()):
        if text := environ.get(key):
            values[name] = settings[name].parse(text, key)
    return values
