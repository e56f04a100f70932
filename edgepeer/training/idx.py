"""The IDX format of the MNIST files, plain or gzipped: parsed within limits, or refused in one line.

A file is four bytes (two zeros, the element type, the number of dimensions), one big-endian 32-bit size
per dimension, then the elements. What the header promises is checked before anything is allocated for it,
and no more than it promises is ever unpacked, whatever a gzip stream would still give.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import DataError
from edgepeer.given import open_regular

__all__ = ["IDX_LIMIT_BYTES", "read_idx"]

IDX_LIMIT_BYTES: Final = 1 << 30
_UNSIGNED_BYTE: Final = 0x08
_CHUNK: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"


def read_idx(path: Path, *, dimensions: int, limit: int = IDX_LIMIT_BYTES) -> NDArray[np.uint8]:
    """The unsigned bytes in an IDX file, with as many dimensions as asked for.

    Raises:
        DataError: the file can't be read, is not IDX, is cut short, goes on after its end, or is larger
            than `limit` bytes unpacked.
    """
    try:
        with open_regular(path) as file:
            packed = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            if not packed:
                return _parse(path, file, dimensions, limit)
            with gzip.open(file, "rb") as unpacked:
                return _parse(path, io.BufferedReader(unpacked), dimensions, limit)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: broken gzip file: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror or error}") from error


def _parse(path: Path, file: BinaryIO, dimensions: int, limit: int) -> NDArray[np.uint8]:
    header = file.read(4 + 4 * dimensions)
    if len(header) < 4 or header[:2] != b"\0\0":
        raise DataError(f"{path}: not an IDX file")
    kind, found = header[2], header[3]
    if kind != _UNSIGNED_BYTE:
        raise DataError(f"{path}: IDX elements of type 0x{kind:02x}; only unsigned bytes (0x08) can be used")
    if found != dimensions:
        raise DataError(f"{path}: IDX file with {found} dimensions where {dimensions} are needed")
    if len(header) < 4 + 4 * dimensions:
        raise DataError(f"{path}: cut short within its header")
    shape = struct.unpack_from(f">{dimensions}I", header, 4)
    count = math.prod(shape)
    if (room := math.prod(size or 1 for size in shape)) > limit:  # NumPy counts so, too, where there is nothing
        raise DataError(f"{path}: {room} bytes unpacked is over the limit of {limit}")
    # In chunks: memory grows with what the file really holds, not with what its header claims.
    content = bytearray()
    while len(content) <= count and (chunk := file.read(min(_CHUNK, count + 1 - len(content)))):
        content += chunk
    if len(content) < count:
        raise DataError(f"{path}: cut short: {len(content)} of {count} bytes")
    if len(content) > count:
        raise DataError(f"{path}: goes on after the {count} bytes that its header names")
    return np.frombuffer(content, np.uint8).reshape(shape)
