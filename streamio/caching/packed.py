"""Values <-> bytes, exactly and without pickle: what is kept on a disk must be safe to read.

    8 bytes    checksum of all that follows, made with the number of its slot
    4 bytes    length of the head
    4 bytes    zero
    head       JSON: the value, with a description in the place of each array, text and so on
    buffers    the bytes of these, one after the other

Each part is filled up with zeros to a multiple of 64 bytes.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from streamio.errors import UsageError

UNIT = 64
_FIXED = 16
_MOST_INT = 1 << 53

Piece: TypeAlias = Any
"""Bytes, or a C-contiguous array."""


class Packed:
    """A value as bytes. size: of all, a multiple of 64. Raises UsageError for a value that cannot be kept."""

    def __init__(self, value: Any) -> None:
        self._buffers: list[Piece] = []
        self._head = orjson.dumps(_described(value, self._buffers))
        sizes = [_FIXED + len(self._head), *map(_bytes, self._buffers)]
        self.size = sum(map(aligned, sizes))

    def pieces(self, slot: int) -> list[Piece]:
        """All bytes, for the slot of this number."""
        head = len(self._head).to_bytes(8, "little") + self._head
        pieces = [head, _gap(8 + len(head))]
        for buffer in self._buffers:
            pieces += [buffer, _gap(_bytes(buffer))]
        return [checksum(slot, pieces), *pieces]


def unpacked(data: NDArray[np.uint8], slot: int) -> tuple[Any] | None:
    """The value, in a tuple; None for bytes that are not whole, or not of this slot."""
    if len(data) < UNIT or data[:8].tobytes() != checksum(slot, [data[8:]]):
        return None
    length = int.from_bytes(data[8:12].tobytes(), "little")
    return (_made(orjson.loads(data[_FIXED : _FIXED + length].tobytes()), _Buffers(data, _FIXED + length)),)


def is_array(head: NDArray[np.uint8], array: NDArray[Any]) -> bool:
    """Whether this is the head of one array, and of this dtype and shape."""
    text = orjson.dumps(_array(array))
    return head[8:_FIXED].tobytes() == len(text).to_bytes(8, "little") and (
        head[_FIXED : _FIXED + len(text)].tobytes() == text
    )


def checksum(slot: int, pieces: list[Piece]) -> bytes:
    state = xxhash.xxh3_64(seed=slot)
    for piece in pieces:
        state.update(piece)
    return state.intdigest().to_bytes(8, "little")


def aligned(size: int) -> int:
    return -(-size // UNIT) * UNIT


def _gap(size: int) -> bytes:
    return bytes(aligned(size) - size)


def _bytes(piece: Piece) -> int:
    return piece.nbytes if isinstance(piece, np.ndarray) else len(piece)


def _array(value: NDArray[Any]) -> list[Any]:
    return ["array", value.dtype.str, list(value.shape)]


def _described(value: Any, buffers: list[Piece]) -> Any:
    """JSON of a value; the bytes of it that are none go to `buffers`.

    A list is a description, with a word in front; all else stands for itself.
    """
    kind = type(value)
    if kind is np.ndarray and not value.dtype.hasobject and value.dtype.names is None:
        buffers.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        return _array(value)
    if value is None or kind is bool or (kind is int and abs(value) < _MOST_INT):
        return value
    if kind is float:
        return value if math.isfinite(value) else ["float", str(value)]
    if kind is int:
        return ["int", str(value)]
    if kind is str:
        buffers.append(value.encode("utf-8", "surrogatepass"))
        return ["str", len(buffers[-1])]
    if kind is bytes or kind is bytearray:
        buffers.append(bytes(value))
        return [kind.__name__, len(value)]
    if isinstance(value, np.generic) and not value.dtype.hasobject and value.dtype.names is None:
        buffers.append(value.tobytes())
        return ["scalar", value.dtype.str, len(buffers[-1])]
    if kind is list or kind is tuple:
        return [kind.__name__, [_described(item, buffers) for item in value]]
    if kind is dict:
        return ["dict", [[_described(key, buffers), _described(item, buffers)] for key, item in value.items()]]
    raise UsageError(
        f"a {kind.__module__}.{kind.__qualname__}, which cache= cannot keep",
        fix="Let functions of decode= and prepare= return arrays, numbers, text, bytes, None, or lists, tuples and "
        "dicts of these, and make the rest in transform=; or leave cache= out",
    )


class _Buffers:
    """The buffers of packed bytes, from the first on. end: of what was taken before."""

    def __init__(self, data: NDArray[np.uint8], end: int) -> None:
        self._data, self._end = data, aligned(end)

    def take(self, size: int) -> NDArray[np.uint8]:
        part = self._data[self._end : self._end + size]
        self._end = aligned(self._end + size)
        return part


def _made(head: Any, buffers: _Buffers) -> Any:
    """The value of a description; arrays of it are copies, to be written to."""
    if not isinstance(head, list):
        return head
    kind, *more = head
    if kind == "array":
        dtype, shape = np.dtype(more[0]), tuple(more[1])
        return np.array(buffers.take(math.prod(shape) * dtype.itemsize)).view(dtype).reshape(shape)
    if kind == "scalar":
        data, dtype = buffers.take(more[1]).tobytes(), np.dtype(more[0])
        return np.frombuffer(data, dtype)[0] if dtype.itemsize else dtype.type()  # an empty text has no size
    if kind == "str":
        return buffers.take(more[0]).tobytes().decode("utf-8", "surrogatepass")
    if kind in ("bytes", "bytearray"):
        data = buffers.take(more[0]).tobytes()
        return data if kind == "bytes" else bytearray(data)
    if kind in ("int", "float"):
        return int(more[0]) if kind == "int" else float(more[0])
    if kind == "dict":
        return {_made(key, buffers): _made(item, buffers) for key, item in more[0]}
    items = [_made(item, buffers) for item in more[0]]
    return tuple(items) if kind == "tuple" else items
