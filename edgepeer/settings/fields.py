"""One setting at a time: what a struct's field allows, said in words, and a value checked against it."""

from __future__ import annotations

import re
from functools import cache
from inspect import get_annotations
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from edgepeer.errors import ConfigError
from edgepeer.printable import printable
from edgepeer.settings.model import COMMON, VerbSettings

__all__ = ["Setting", "settings_of"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a settings struct, taken apart."""

    name: str
    type: Any
    """As annotated, for msgspec."""
    plain: Any
    """The type without bounds, None, and words that may stand in place of a number: int, float, str, bool, Path, tuple
    or a Literal."""
    default: Any
    help: str
    """One sentence for `--help`."""
    allowed: str
    """What a value must be, to stand after "must be"."""
    metavar: str
    secret: bool
    """Whether the value is to be kept out of error messages and help."""
    url: bool
    """Whether the value may hold a password in front of an @."""
    separator: str
    """What stands between the parts of a list, in a text."""
    joined: bool
    """Whether the value is a text that may be given in parts, and is put together from them."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def parse(self, value: object, source: str) -> Any:
        """The value as the field's type. Text, as from a flag or a variable, is read as what the field is.

        Raises:
            ConfigError: the value is not allowed; names field, value, `source` and what is.
        """
        text = isinstance(value, str)
        taken: object = value
        if self.joined and isinstance(value, list | tuple):
            taken = self.separator.join(part if isinstance(part, str) else repr(part) for part in value)
        if self.plain is tuple and isinstance(value, str):
            taken = [part.strip() for part in value.split(self.separator) if part.strip()]
        try:
            return msgspec.convert(taken, self.type, strict=not text, dec_hook=_path)
        except (msgspec.ValidationError, ValueError):
            # As it was given: parts of one text, or on the command line one after the other.
            said = taken if self.joined else self.separator.join(map(str, value)) if isinstance(value, tuple) else value
            raise ConfigError(f"{self.name} = {self.shown(said)} (from {source}): must be {self.allowed}") from None

    def shown(self, value: object) -> str:
        """The value as it may stand in a line: without what is secret in it."""
        if self.secret:
            return "(hidden)"
        try:
            shown = str(value) if isinstance(value, (str, int, float)) else repr(value)
        except ValueError:  # Python writes no integer of more than 4,300 digits
            shown = f"<{type(value).__name__}>"
        if self.url:
            shown = re.sub(r"^(\w+://)?.*@", r"\1***@", shown, flags=re.DOTALL)
        return printable(shown)


@cache
def settings_of(kind: type[VerbSettings]) -> dict[str, Setting]:
    """The settings of a verb by name, its own before those that it shares with others."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    names = [name for base in kind.__mro__ for name in get_annotations(base) if name in fields]
    names.sort(key=lambda name: COMMON.index(name) if name in COMMON else -1)
    return {name: _setting(fields[name]) for name in dict.fromkeys(names)}


def _setting(field: msgspec.structs.FieldInfo) -> Setting:
    metas = _metas(field.type)
    extra = {key: value for meta in reversed(metas) for key, value in (meta.extra or {}).items()}
    plain = _plain(field.type)
    return Setting(
        name=field.name,
        type=field.type,
        plain=plain,
        default=field.default,
        help=next((meta.description for meta in metas if meta.description), ""),
        allowed=extra.get("allowed") or _allowed(plain, metas),
        metavar=extra.get("metavar") or _metavar(plain),
        secret=bool(extra.get("secret")),
        url=bool(extra.get("url")),
        separator=extra.get("separator", ","),
        joined=bool(extra.get("joined")),
    )


def _metas(annotation: Any) -> list[msgspec.Meta]:
    """All bounds and texts of an annotation, outermost first."""
    if get_origin(annotation) is Annotated:
        inner, *metas = get_args(annotation)
        return [meta for meta in reversed(metas) if isinstance(meta, msgspec.Meta)] + _metas(inner)
    if get_origin(annotation) in (Union, UnionType):
        return [meta for part in get_args(annotation) for meta in _metas(part)]
    return []


def _plain(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        parts = [_plain(part) for part in get_args(annotation) if part is not type(None)]
        (some,) = parts if len(parts) == 1 else [part for part in parts if get_origin(part) is not Literal]
        return some
    return tuple if get_origin(annotation) is tuple else annotation


def _allowed(plain: Any, metas: list[msgspec.Meta]) -> str:
    def bound(name: str) -> Any:
        return next((value for meta in metas if (value := getattr(meta, name)) is not None), None)

    if get_origin(plain) is Literal:
        return "one of " + ", ".join(get_args(plain))
    if plain is bool:
        return "true or false"
    if plain is Path:
        return "a path, ~NAME being the home of somebody here"
    if plain in (int, float):
        noun = "an integer" if plain is int else "a number"
        above, least, most = bound("gt"), bound("ge"), bound("le")
        low = f" above {above}" if above is not None else f" from {least}" if least is not None else ""
        high = "" if most is None else f" to {most}" if above is None else f", at most {most}"
        return noun + low + high
    return f"text of 1 to {bound('max_length')} characters" if bound("max_length") else "text"


def _metavar(plain: Any) -> str:
    if get_origin(plain) is Literal:
        return "|".join(get_args(plain))
    return {int: "N", float: "X", Path: "PATH"}.get(plain, "TEXT")


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and value and "\0" not in value:
        try:
            return Path(value).expanduser()
        except RuntimeError:  # ~nobody
            raise ValueError("nobody's home") from None
    raise ValueError("not a path")
