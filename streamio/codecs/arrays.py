"""numpy arrays: npy, one array, and npz, several by name.

Nothing is ever unpickled: arrays of Python objects are refused in both directions. What is written is the
npy format 1.0 in C order and little-endian, so the same array gives the same bytes everywhere.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from streamio.codecs.base import Data, Scalar
from streamio.errors import DecodeError, UsageError

_MAGIC = b"\x93NUMPY"
_AGAIN = "Get the file again, or leave it out"
_LATIN = "Name the fields of structured types in Latin letters, and use fewer of them"


class NpyHeader(NamedTuple):
    """What an npy file says of its array; its elements start `skip` bytes into it. dtype as stored: it may
    be big-endian."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    skip: int
    fortran: bool


def is_array(value: object) -> bool:
    """numpy arrays and typed numpy numbers, torch tensors, and whatever else offers `__array__`."""
    return hasattr(value, "__array__") or hasattr(value, "detach")


def as_array(value: Any) -> NDArray[Any]:
    """An array as it is stored: C order, little-endian. Tensors come from any device and lose their gradient.

    Raises UsageError for what numpy would hold as Python objects, and for tensors of types that numpy lacks.
    """
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        array = np.asarray(value, order="C")
    except (TypeError, ValueError) as error:
        kind = getattr(value, "dtype", type(value).__name__)
        raise UsageError(
            f"a value of type {kind} does not become an array: {error}", fix="Convert it first: value.float()"
        ) from error
    if array.dtype.hasobject:
        raise UsageError(
            f"an array of Python objects ({array.dtype}, shape {array.shape}); they could only be pickled",
            fix="Give it a number type: numpy.asarray(value, dtype=…), or store text and lists as json",
        )
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def npy_header(data: Data) -> NpyHeader | None:
    """The header of an npy file, from its first bytes; None for what is none or would have to be unpickled.

    Says nothing on whether the elements are all there.
    """
    try:
        return _header(data)
    except DecodeError:
        return None


class NpyCodec:
    """One array. `decode` gives a view of the data where the byte order allows: read-only if the data is."""

    name = "npy"
    extensions = ("npy",)

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        array = as_array(value)
        return npy_header_bytes(array.dtype, array.shape) + array.tobytes()

    def decode(self, data: Data) -> NDArray[Any]:
        header = _header(data)
        dtype, shape, skip, fortran = header
        needed = skip + dtype.itemsize * math.prod(shape)
        if len(data) < needed:
            raise DecodeError(
                f"this npy is cut: {dtype} {shape} takes {needed:,} bytes, {len(data):,} are here", fix=_AGAIN
            )
        try:
            array: NDArray[Any] = np.ndarray(shape, dtype, data, skip, order="F" if fortran else "C")
        except (ValueError, TypeError) as error:
            raise DecodeError(f"this npy is damaged: {dtype} {shape}: {error}", fix=_AGAIN) from error
        return array.astype(dtype.newbyteorder("="), copy=False)

    def peek(self, data: Data) -> dict[str, Scalar]:
        return {}


class NpzCodec:
    """Arrays by name, as numpy.savez writes them; the value is a dict."""

    name = "npz"
    extensions = ("npz",)

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if not isinstance(value, Mapping):
            raise UsageError(f"npz holds a dict of arrays, not {type(value).__name__}", fix="Use npy for one array")
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in value.items():
                # A ZipInfo of its own has a fixed date; writestr with a name would take the clock's.
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), NPY.encode(array))
        return file.getvalue()

    def decode(self, data: Data) -> dict[str, NDArray[Any]]:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                return {n.removesuffix(".npy"): NPY.decode(archive.read(n)) for n in archive.namelist()}
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
            raise DecodeError(f"this npz is cut or damaged: {error}", fix=_AGAIN) from error

    def peek(self, data: Data) -> dict[str, Scalar]:
        return {}


NPY = NpyCodec()
ARRAYS = (NPY, NpzCodec())


@lru_cache(maxsize=1024)
def npy_header_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What stands in front of the elements of an npy file, format 1.0, as numpy writes it."""
    file = io.BytesIO()
    facts = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        npy.write_array_header_1_0(file, facts)
    except ValueError as error:
        raise UsageError(f"the type {dtype} does not fit an npy header: {error}", fix=_LATIN) from error
    return file.getvalue()


def _header(data: Data) -> NpyHeader:
    start = bytes(data[:12])
    if not start.startswith(_MAGIC) or len(start) < 12:
        raise DecodeError(f"no npy array: {len(data):,} bytes that start with {start[:8].hex(' ')}", fix=_AGAIN)
    width = 2 if start[6] == 1 else 4
    skip = 8 + width + int.from_bytes(start[8 : 8 + width], "little")
    if skip > len(data):
        raise DecodeError(f"this npy is cut: its header takes {skip:,} bytes, {len(data):,} are here", fix=_AGAIN)
    return _parse(bytes(data[:skip]))


@lru_cache(maxsize=1024)
def _parse(header: bytes) -> NpyHeader:
    """Rows of one field mostly share a header; parsing one takes as long as copying a small array."""
    file = io.BytesIO(header)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except Exception as error:  # numpy hands the text to Python's parser, which raises nearly anything
        raise DecodeError(f"the header of this npy is damaged: {error}", fix=_AGAIN) from error
    if version not in ((1, 0), (2, 0), (3, 0)) or (version == (3, 0) and not header[12:].isascii()):
        # Format 3.0 is 2.0 with names in UTF-8, for which numpy has no public reader.
        raise DecodeError(f"an npy of format {version[0]}.{version[1]} that this release does not read", fix=_LATIN)
    if dtype.hasobject:
        raise DecodeError(
            f"this npy holds Python objects ({dtype}), which streamio never unpickles",
            fix="Write it with a number type, or read its bytes with a decoder of your own",
        )
    if any(length < 0 for length in shape):
        raise DecodeError(f"the header of this npy is damaged: shape {shape}", fix=_AGAIN)
    return NpyHeader(dtype, shape, len(header), fortran)
