"""Ragged: values of different lengths end to end; and how such values are told apart from what does not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.batching.collate import lacks_field
from streamio.batching.decode import Values
from streamio.codecs import as_array
from streamio.errors import SampleError, ShapeMismatch, StreamioError, UsageError
from streamio.shards.uniform import is_plain
from streamio.types import Alloc


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Declares that the values of a field, arrays (k, …) with k of their own, come end to end.

        ds = ShardDataset("out/train", 32, collate={"boxes": Ragged()})
        batch["boxes"]              # float32 (sum of all k, 4)
        batch["boxes_offsets"]      # int64 (33,): those of sample i are boxes[offsets[i]:offsets[i + 1]]

    nested: one `torch.nested` tensor in jagged layout, (n, k, …), in the place of values and offsets.
    dtype:  of the values, instead of the one that they have; one that holds them all.
    """

    nested: bool = False
    dtype: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.nested, bool):
            raise UsageError(f"Ragged(nested={self.nested!r})", fix="Use True or False")
        check_dtype("Ragged", self.dtype)


@dataclass(frozen=True, slots=True)
class Jagged:
    """What becomes a nested tensor, where torch is: values (total, …), offsets int64 (n + 1,)."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]


def end_to_end(
    field: str, values: Values, keys: Sequence[str], alloc: Alloc, how: Ragged
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """(values (total, …), offsets int64 (n + 1,)). Raises as `same_kind` does."""
    pieces, dtype = same_kind(field, values, keys, 1, how.dtype)
    offsets = alloc((len(pieces) + 1,), np.dtype(np.int64))
    offsets[0] = 0
    np.cumsum(lengths_of(pieces), out=offsets[1:])
    if isinstance(values, np.ndarray) and values.dtype == dtype and values.flags.c_contiguous:
        return values.reshape(offsets[-1], *values.shape[2:]), offsets  # they are end to end already
    out = alloc((int(offsets[-1]), *pieces[0].shape[1:]), dtype)
    np.concatenate(pieces, out=out, casting="unsafe")
    return out, offsets


def same_kind(
    field: str, values: Values, keys: Sequence[str], dims: int, dtype: Any
) -> tuple[list[NDArray[Any]], np.dtype[Any]]:
    """The values as arrays that differ in their first `dims` dimensions only, and the dtype that they shall have.

    Arrays, tensors and lists of numbers; of lists, whole numbers and others go together as float64, and what is
    empty takes dtype and shape of the others. Raises SampleError for what is no array, lacks dimensions or does
    not fit the dtype, and ShapeMismatch for what differs elsewhere; both with the key of a sample.
    """
    pieces = list(values)
    if set(map(type, pieces)) != {np.ndarray}:
        pieces = [_as_array(field, value, key) for value, key in zip(values, keys, strict=True)]
    if not _are_alike(pieces, dims):
        pieces = _lists_alike(values, pieces, dims)
        _check_alike(field, pieces, keys, dims)
    found = pieces[0].dtype
    if not is_plain(found.newbyteorder("<")):
        raise SampleError(f"{_named(found)}: these are no numbers", fix='Declare it "list"', field=field)
    return pieces, _wanted(field, found, dtype)


def _are_alike(pieces: list[NDArray[Any]], dims: int) -> bool:
    if len(set(map(attrgetter("dtype"), pieces))) > 1:
        return False
    kinds = {(len(shape) < dims, shape[dims:]) for shape in set(map(attrgetter("shape"), pieces))}
    return len(kinds) == 1 and not kinds.pop()[0]


def _check_alike(field: str, pieces: list[NDArray[Any]], keys: Sequence[str], dims: int) -> None:
    kinds = Counter((piece.dtype, piece.shape[dims:], piece.ndim < dims) for piece in pieces)
    usual = kinds.most_common(1)[0][0]
    for piece, key in zip(pieces, keys, strict=True):
        if piece.ndim < dims:
            raise SampleError(
                f"an array of shape {piece.shape}, where {dims} dimension{'s' * (dims > 1)} may differ",
                fix="Leave the field out of collate=, or declare it with fewer dimensions", key=key, field=field,
            )  # fmt: skip
        if len(kinds) > 1 and (piece.dtype, piece.shape[dims:], False) != usual:
            raise ShapeMismatch(
                f"{piece.dtype} {piece.shape} does not go with the others of its batch, {usual[0]} "
                f"({'*, ' * dims}{', '.join(map(str, usual[1]))})",
                fix=f"Only the first {dims} may differ: give all values one dtype, and one shape after these",
                key=key, field=field,
            )  # fmt: skip


def lengths_of(pieces: list[NDArray[Any]]) -> NDArray[np.int64]:
    """int64 (n,): of the first dimension."""
    return np.fromiter(map(len, pieces), np.int64, len(pieces))


def check_dtype(who: str, dtype: Any) -> None:
    """Raise UsageError for what is no dtype of numbers."""
    try:
        known = dtype is None or is_plain(np.dtype(dtype).newbyteorder("<"))
    except TypeError:
        known = False
    if not known:
        raise UsageError(f"{who}(dtype={dtype!r})", fix='Give one of numbers, as numpy names it: "int64"')


def _wanted(field: str, found: np.dtype[Any], dtype: Any) -> np.dtype[Any]:
    wanted = found.newbyteorder("=") if dtype is None else np.dtype(dtype)
    if not np.can_cast(found, wanted, "same_kind" if wanted.kind in "fc" else "safe"):
        raise SampleError(
            f"{found} does not fit into dtype={wanted}", fix="Give a wider one, or convert it in transform=",
            field=field,
        )  # fmt: skip
    return wanted


def _as_array(field: str, value: Any, key: str) -> NDArray[Any]:
    if type(value) is np.ndarray:
        return value
    if value is None:
        raise lacks_field(field, key)
    try:
        return as_array(value)
    except (StreamioError, TypeError, ValueError, OverflowError) as error:
        found = error.found if isinstance(error, StreamioError) else str(error)
        raise SampleError(
            f"a {type(value).__name__} that does not become an array: {found}",
            fix='Convert it in transform=, or declare it "list"', key=key, field=field,
        ) from error  # fmt: skip


def _lists_alike(values: Values, pieces: list[NDArray[Any]], dims: int) -> list[NDArray[Any]]:
    """Arrays that were lists in the dtype of the others; those of no items in their shape, too."""
    listed = [isinstance(value, list | tuple) for value in values]
    empty = [is_list and not piece.size for is_list, piece in zip(listed, pieces, strict=True)]
    full = [(piece, is_list) for piece, is_list, none in zip(pieces, listed, empty, strict=True) if not none]
    if not full:
        return pieces
    first, dtypes = full[0][0], {piece.dtype for piece, _ in full}
    if dtypes == {np.dtype(np.int64), np.dtype(np.float64)}:
        pieces = [
            piece.astype(np.float64) if is_list else piece for piece, is_list in zip(pieces, listed, strict=True)
        ]
        first = first.astype(np.float64)
    nothing = np.empty((0,) * dims + first.shape[dims:], first.dtype)
    return [nothing if none else piece for piece, none in zip(pieces, empty, strict=True)]


def _named(dtype: np.dtype[Any]) -> str:
    return {"U": "text", "S": "bytes"}.get(dtype.kind, f"arrays of {dtype}")
