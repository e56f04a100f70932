"""NumPy's .npz archives, read within limits and without pickles.

The header of every array is checked against the size of its entry before memory is taken for it; an
archive that does not hold what it says ends in a DataError naming the file.
"""

from __future__ import annotations

import lzma
import math
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from numpy.lib import format as npy
from numpy.typing import NDArray

from edgepeer.errors import DataError

__all__ = ["NPZ_LIMIT_BYTES", "read_npz"]

NPZ_LIMIT_BYTES: Final = 4 << 30

_READ_HEADER: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: Path, names: Collection[str], *, limit: int = NPZ_LIMIT_BYTES) -> dict[str, NDArray[Any]]:
    """Those of the named arrays that are in the archive; others are not looked at.

    Raises:
        DataError: the file can't be read, is broken, holds objects, or is over `limit` bytes unpacked.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # some devices have no end, where zipfile looks for it
            raise ValueError("it is no regular file")
        with zipfile.ZipFile(path) as archive:
            present = set(archive.namelist())
            entries = {name: archive.getinfo(f"{name}.npy") for name in names if f"{name}.npy" in present}
            total = sum(entry.file_size for entry in entries.values())
            if total > limit:
                raise DataError(f"{path}: {total} bytes unpacked is over the limit of {limit}")
            return {name: _read(archive, entry) for name, entry in entries.items()}
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError) as error:
        raise DataError(f"{path}: not a usable .npz file: {error}") from error
    except (TypeError, OverflowError, tokenize.TokenError) as error:  # NumPy, of headers that it has not written
        raise DataError(f"{path}: not a usable .npz file: a header in it is broken: {error}") from error
    except (NotImplementedError, RuntimeError) as error:  # an unknown compression, or encrypted
        raise DataError(f"{path}: not a usable .npz file: {error}") from error
    except MemoryError as error:
        raise DataError(f"{path}: too large for this device's memory") from error
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror or error}") from error


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as file:
        version = npy.read_magic(file)
        if version not in _READ_HEADER:
            raise ValueError(f"{entry.filename} is of an unknown version {version}")
        shape, _, dtype = _READ_HEADER[version](file)
        if dtype.hasobject:
            raise ValueError(f"{entry.filename} holds Python objects, which are never unpickled")
        if file.tell() + math.prod(shape) * dtype.itemsize != entry.file_size:
            raise ValueError(f"{entry.filename} is not as long as its header says")
    with archive.open(entry) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array
