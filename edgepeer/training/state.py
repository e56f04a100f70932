"""A replica's state as bytes: self-describing, checked in full before any of it is used.

Layout: 8 bytes magic and version; header length, 32 bits, little-endian; a msgpack header with the kind of
trainer, what its model takes and puts out, and each array's name, dtype and shape; the arrays, little-endian,
in that order; a 128-bit xxHash of all before it. It detects damage and misfits, not forgery.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from edgepeer.errors import VersionError, WireError
from edgepeer.readable import readable
from edgepeer.training.architecture import are_others
from edgepeer.training.form import Form

__all__ = [
    "STATE_LIMIT_BYTES",
    "ArraySpec",
    "is_carried",
    "name_of_state",
    "pack_run_state",
    "pack_state",
    "parameter_digest",
    "read_about",
    "read_data",
    "unpack_run_state",
    "unpack_state",
]

STATE_LIMIT_BYTES: Final = 4 << 30
"""What a checkpoint may hold, and a joiner takes: as `protocol.limits` has it."""
_MAGIC: Final = b"EPSTATE"
_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<7sBI")
_RUN: Final = struct.Struct("<Q")
_HEADER_LIMIT_BYTES: Final = 1 << 20
_DIGEST_BYTES: Final = 16
_DTYPES: Final = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
)


def name_of_state(run: str) -> str:
    """What to ask a peer for that has finished that run, if one can't join it."""
    return f"{run}/state"


class ArraySpec(msgspec.Struct, frozen=True, array_like=True):
    """What an array is, but for its content."""

    shape: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=32)]
    dtype: Annotated[str, msgspec.Meta(max_length=16)]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@readable
class _StateHeader(msgspec.Struct, frozen=True):
    kind: Annotated[str, msgspec.Meta(max_length=32)]
    arrays: dict[str, ArraySpec]
    form: Form | None = None
    """For who builds the model to put the arrays into. States of former builds don't say."""
    data: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """What it is trained on, as `Dataset.summary` says it; empty: on each device's own, or a former build's."""
    model: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Which one it is of, as `architecture` says it; empty where that can't be said."""


def is_carried(dtype: str) -> bool:
    """Whether a state can carry an array of that dtype."""
    return dtype in _DTYPES


def pack_state(
    kind: str, arrays: Mapping[str, NDArray[Any]], *, form: Form | None = None, data: str = "", model: str = ""
) -> bytes:
    """The arrays, in their order, as bytes. `kind` names who can read them; `data`: see `read_data`; `model`: whose
    they are, where parameters alone don't say it, see `architecture`.

    Raises:
        ValueError: an array has a dtype that a state can't carry.
    """
    for name, array in arrays.items():
        if not is_carried(array.dtype.name):
            raise ValueError(f"a state can't carry {name} of dtype {array.dtype}")
    specs = {name: ArraySpec(array.shape, array.dtype.name) for name, array in arrays.items()}
    header = msgspec.msgpack.encode(_StateHeader(kind, specs, form, data, model))
    if len(header) > _HEADER_LIMIT_BYTES:
        raise ValueError(f"a state can't carry {len(arrays)} arrays: its header has {len(header)} bytes")
    parts: list[Any] = [_PREFIX.pack(_MAGIC, _VERSION, len(header)), header]
    for array in arrays.values():
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        parts.append(little.reshape(-1).view(np.uint8).data)
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return b"".join((*parts, digest.digest()))


def unpack_state(
    blob: bytes | bytearray | memoryview,
    kind: str,
    expected: Mapping[str, ArraySpec],
    *,
    form: Form | None = None,
    model: str = "",
) -> dict[str, NDArray[Any]]:
    """The arrays in `blob`, as views into it, after checking that they are just the expected ones.

    Args:
        form: what the model that wants them takes and puts out; None: that does not matter. Arrays of the same sizes
            may be of one that is to become good at something else, for other data.
        model: as `architecture` says it; empty: that does not matter.

    Raises:
        VersionError: the state is of another version than this build reads.
        WireError: it is not a state, is damaged, or is not of this kind, of a model of this form, which computes the
            same, with these arrays.
    """
    header, body, start = _open(blob)
    if header.kind != kind:
        raise WireError(f"state of a {header.kind!r} trainer; this one is {kind!r}")
    if form is not None and header.form is not None and (theirs := header.form.said) != form.said:
        raise WireError(f"it is of a model for {theirs}; here are {form.said}")
    _match(header.arrays, expected)
    if are_others(header.model, model):
        raise WireError(
            "it is of a model with the same parameters that computes something else: the package that makes it is here "
            "of another version"
        )
    sizes = [spec.size_bytes for spec in header.arrays.values()]
    if start + sum(sizes) != len(body):
        raise WireError(f"state with {len(body) - start} bytes of arrays where {sum(sizes)} are needed")
    arrays: dict[str, NDArray[Any]] = {}
    for (name, spec), size in zip(header.arrays.items(), sizes, strict=True):
        dtype = np.dtype(spec.dtype).newbyteorder("<")
        arrays[name] = np.frombuffer(body[start : start + size], dtype).reshape(spec.shape)
        start += size
    return arrays


def read_about(blob: bytes | bytearray | memoryview) -> tuple[str, Form]:
    """The kind of trainer that a state is of, and what its model takes and puts out.

    Raises:
        VersionError, WireError: as `unpack_state`; or the state does not say.
    """
    header = _open(blob)[0]
    if header.form is None:
        raise WireError("the state does not say what its model takes and puts out: it is of an older build")
    return header.kind, header.form


def read_data(blob: bytes | bytearray | memoryview) -> str:
    """What a state's parameters are trained on, as `Dataset.summary` says it; empty where the state does not say.

    Raises:
        VersionError, WireError: as `unpack_state`.
    """
    return _open(blob)[0].data


def _open(blob: bytes | bytearray | memoryview) -> tuple[_StateHeader, memoryview, int]:
    """The header, all but the digest, and where the arrays begin."""
    content = memoryview(blob).cast("B")
    if len(content) < _PREFIX.size + _DIGEST_BYTES:
        raise WireError(f"state of {len(content)} bytes is too short to be one")
    magic, version, header_length = _PREFIX.unpack_from(content)
    if magic != _MAGIC:
        raise WireError("these bytes are not a trainer's state")
    if version != _VERSION:
        raise VersionError(f"state of version {version}; this build reads {_VERSION}")
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if xxhash.xxh3_128_digest(body) != digest:
        raise WireError(f"state of {len(content)} bytes is damaged or cut short: its digest differs")
    start = _PREFIX.size + header_length
    if header_length > _HEADER_LIMIT_BYTES or start > len(body):
        raise WireError(f"state with a header of {header_length} bytes, more than allowed or there")
    try:
        header = msgspec.msgpack.decode(body[_PREFIX.size : start], type=_StateHeader)
    except ValueError as error:  # no msgpack of such, or no text
        raise WireError(f"state with a broken header: {error}") from error
    return header, body, start


def pack_run_state(diverged: int, state: bytes) -> bytes:
    """The state of a run, as peers hand it on: a replica's, and the first round whose loss was not finite, or 0."""
    return _RUN.pack(diverged) + state


def unpack_run_state(blob: memoryview) -> tuple[int, memoryview]:
    """Both of them. Raises WireError: the state is too short."""
    if len(blob) < _RUN.size:
        raise WireError(f"state of {len(blob)} bytes is too short to be one of a run")
    return _RUN.unpack_from(blob)[0], blob[_RUN.size :]


def parameter_digest(vector: NDArray[np.float32]) -> str:
    """BLAKE2b-128 of the little-endian bytes, as 32 hex digits: equal only for bit-identical parameters."""
    little = np.ascontiguousarray(vector, "<f4")
    return hashlib.blake2b(little.view(np.uint8).data, digest_size=16).hexdigest()


def _match(found: Mapping[str, ArraySpec], expected: Mapping[str, ArraySpec]) -> None:
    for name in (*expected, *found):
        if name not in found:
            raise WireError(f"state without {name!r}: it is of another model or optimizer")
        if name not in expected:
            raise WireError(f"state with {name!r}: it is of another model or optimizer")
        if found[name] != expected[name]:
            has, wants = found[name], expected[name]
            raise WireError(
                f"state with {name!r} of shape {has.shape} and dtype {has.dtype}; "
                f"this model has {wants.shape} and {wants.dtype}"
            )
