"""Documents: small msgpack maps that live on MQTT topics and in VIEW frames.

Each carries a version under "v". Unknown fields are ignored, so that a newer peer can add some; unknown
versions are refused. Whatever comes in is checked here, once, against its type.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgpack
import msgspec

from edgepeer.errors import VersionError, WireError

__all__ = ["DOCUMENT_LIMIT_BYTES", "DOCUMENT_VERSION", "check_envelope", "pack", "unpack"]

DOCUMENT_VERSION: Final = 1
DOCUMENT_LIMIT_BYTES: Final = 4 << 20

_T = TypeVar("_T", bound=msgspec.Struct)


def pack(document: msgspec.Struct) -> bytes:
    """The document as bytes, with its version."""
    fields: dict[str, Any] = msgspec.to_builtins(document, builtin_types=(bytes,))
    return bytes(msgpack.packb({"v": DOCUMENT_VERSION, **fields}))


def unpack(payload: bytes | bytearray | memoryview, kind: type[_T], *, limit: int = DOCUMENT_LIMIT_BYTES) -> _T:
    """The document in `payload`.

    Raises:
        VersionError: it has another version than this build speaks.
        WireError: it is too large, not msgpack, or not of this kind.
    """
    name = kind.__name__
    fields = _open(payload, name, limit)
    version = fields.pop("v", None)
    if version != DOCUMENT_VERSION:
        raise VersionError(f"{name} document of version {version!r}; this build speaks {DOCUMENT_VERSION}")
    try:
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise WireError(f"{name} document: {error}") from error


def check_envelope(payload: bytes, name: str, *, limit: int = DOCUMENT_LIMIT_BYTES) -> None:
    """Whether this is a document at all, of whatever version and fields.

    Raises:
        WireError: it is too large, not msgpack, or has no version.
    """
    if not isinstance(_open(payload, name, limit).get("v"), int):
        raise WireError(f"{name} document without a version")


def _open(payload: bytes | bytearray | memoryview, name: str, limit: int) -> dict[str, Any]:
    if len(payload) > limit:
        raise WireError(f"{name} document of {len(payload)} bytes is over the limit of {limit}")
    try:
        fields = msgpack.unpackb(payload, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"{name} document is not msgpack: {str(error) or type(error).__name__}") from error
    if not isinstance(fields, dict):
        raise WireError(f"{name} document is a {type(fields).__name__}, not a map")
    return fields
