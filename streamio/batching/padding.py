"""Pad: values of different sizes in one array, with a mask and their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamio.batching.decode import Values
from streamio.batching.ragged import check_dtype, lengths_of, same_kind
from streamio.errors import SampleError, UsageError
from streamio.types import Alloc

_SHORT = 64
"""Values of fewer elements on average are written together, by the mask; longer ones one by one: faster then."""


@dataclass(frozen=True, kw_only=True)
class Pad:
    """Declares that the values of a field, arrays of different sizes, are padded to one.

        ds = ShardDataset("out/train", 32, collate={"tokens": Pad(multiple_of=8)})
        batch["tokens"]             # (32, 104), where the longest has 97 to 104
        batch["tokens_mask"]        # bool (32, 104): True where it is real
        batch["tokens_lengths"]     # int64 (32,)

    value:       what it is padded with.
    side:        where padding goes: "right" or "left".
    dims:        how many of the first dimensions differ: 1 for token ids (k,) and boxes (k, 4), 2 for pictures
                 (height, width, 3). The others must be the same.
    multiple_of: the padded size is a multiple of this.
    length:      the padded size of every batch, whatever is in it.
    max_length:  the largest padded size; a smaller one where the batch has nothing larger.
                 These three: a number, or a tuple of one for each of the dims.
    truncate:    which end of a value that is larger than length or max_length is cut off: "right" or "left".
                 None: it is an error that names the sample.
    mask, lengths: whether these come as further fields of the batch, or how they are called instead of
                 `<field>_mask` and `<field>_lengths`. The mask is bool (n, *padded sizes), lengths are int64 (n,),
                 or (n, dims) for several dims, after truncation.
    dtype:       of the values, instead of the one that they have; one that holds them all.
    """

    value: float = 0
    side: Literal["right", "left"] = "right"
    dims: int = 1
    multiple_of: int | tuple[int, ...] = 1
    length: int | tuple[int, ...] | None = None
    max_length: int | tuple[int, ...] | None = None
    truncate: Literal["right", "left"] | None = None
    mask: bool | str = True
    lengths: bool | str = True
    dtype: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.value, int | float | np.number | np.bool_):
            raise UsageError(f"Pad(value={self.value!r})", fix="Give a number")
        if self.side not in ("right", "left") or self.truncate not in ("right", "left", None):
            raise UsageError(f"Pad(side={self.side!r}, truncate={self.truncate!r})", fix="Use 'right' or 'left'")
        if not isinstance(self.dims, int) or self.dims < 1:
            raise UsageError(f"Pad(dims={self.dims!r})", fix="Give the number of dimensions that differ, from 1")
        for name in ("mask", "lengths"):
            if not isinstance(getattr(self, name), bool | str) or getattr(self, name) == "":
                raise UsageError(f"Pad({name}={getattr(self, name)!r})", fix="Give True, False or a name")
        check_dtype("Pad", self.dtype)
        self._check_sizes()

    def _check_sizes(self) -> None:
        for name in ("multiple_of", "length", "max_length"):
            given = getattr(self, name)
            if given is not None and not all(isinstance(n, int) and n > 0 for n in self._each(name)):
                raise UsageError(f"Pad({name}={given!r})", fix="Give whole numbers above 0")
        if self.length is not None and (self.max_length is not None or self.multiple_of != 1):
            raise UsageError(
                f"Pad(length={self.length}) with max_length or multiple_of",
                fix="A length says it all; leave them out",
            )
        if self.max_length is not None and any(
            most % unit for most, unit in zip(self._each("max_length"), self._each("multiple_of"), strict=True)
        ):
            raise UsageError(
                f"Pad(max_length={self.max_length}) is no multiple of multiple_of={self.multiple_of}",
                fix="Give one that is",
            )
        if self.truncate is not None and self.length is None and self.max_length is None:
            raise UsageError(f"Pad(truncate={self.truncate!r}) to no length", fix="Give length= or max_length=")

    def _each(self, name: str) -> tuple[int, ...]:
        """One number for each of the dims."""
        given = getattr(self, name)
        numbers = given if isinstance(given, tuple) else (given,) * self.dims
        if len(numbers) != self.dims:
            raise UsageError(f"Pad({name}={given!r}, dims={self.dims})", fix="Give one number for each of the dims")
        return numbers

    def limits(self) -> tuple[int, ...] | None:
        """The largest size of each dim, if there is one."""
        if self.length is not None:
            return self._each("length")
        return None if self.max_length is None else self._each("max_length")

    def padded_to(self, largest: Sequence[int]) -> tuple[int, ...]:
        """The padded sizes of a batch with these largest sizes, none above the limits."""
        if self.length is not None:
            return self._each("length")
        units = self._each("multiple_of")
        return tuple(-(-size // unit) * unit for size, unit in zip(largest, units, strict=True))


class Padded(NamedTuple):
    """values: (n, *padded, …); mask: bool (n, *padded), if asked for; lengths: int64 (n,) or (n, dims)."""

    values: NDArray[Any]
    mask: NDArray[np.bool_] | None
    lengths: NDArray[np.int64]


def pad(field: str, values: Values, keys: Sequence[str], alloc: Alloc, how: Pad) -> Padded:
    """The values of a field as one array.

    Raises as `same_kind` does, and SampleError for values that are too long, and for a padding value that their
    dtype does not hold.
    """
    pieces, dtype = same_kind(field, values, keys, how.dims, how.dtype)
    sizes = lengths_of(pieces)[:, None]
    if how.dims > 1:
        sizes = np.array([piece.shape[: how.dims] for piece in pieces], np.int64)
    pieces, sizes = _cut(field, pieces, sizes, keys, how)
    padded = how.padded_to(sizes.max(0).tolist())
    lengths = alloc((len(pieces), how.dims), np.dtype(np.int64))
    lengths[...] = sizes
    mask = None if how.mask is False else _mask(sizes, padded, how.side, alloc)
    out = _filled(field, pieces, dtype, padded, sizes, alloc, how)
    if mask is not None and how.dims == 1 and out[0, :1].size * sizes.sum() < _SHORT * len(sizes):
        out[mask] = np.concatenate(pieces)
    elif how.dims == 1 and how.side == "right":
        for row, piece in zip(out, pieces, strict=True):
            row[: len(piece)] = piece
    else:
        for row, piece, size in zip(out, pieces, sizes.tolist(), strict=True):
            row[_place(size, padded, how.side)] = piece
    return Padded(out, mask, lengths[:, 0] if how.dims == 1 else lengths)


def _cut(
    field: str, pieces: list[NDArray[Any]], sizes: NDArray[np.int64], keys: Sequence[str], how: Pad
) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
    """What is left of values above the limits, and their sizes."""
    limits = how.limits()
    if limits is None or not (sizes > limits).any():
        return pieces, sizes
    if how.truncate is None:
        worst = int(np.flatnonzero((sizes > limits).any(1))[0])
        raise SampleError(
            f"its size {_shown(sizes[worst])} is above the {_shown(limits)} that Pad allows",
            fix="Give truncate='right' or 'left', or a larger length",
            key=keys[worst], field=field,
        )  # fmt: skip
    left = np.minimum(sizes, limits)
    cut = [piece[_place(n, piece.shape, how.truncate)] for piece, n in zip(pieces, left.tolist(), strict=True)]
    return cut, left


def _place(size: Sequence[int], within: Sequence[int], rest: str) -> tuple[slice, ...]:
    """Where this size lies in a larger one, if the rest of that is on this side."""
    if rest == "right":
        return tuple(slice(0, n) for n in size)
    return tuple(slice(most - n, most) for n, most in zip(size, within, strict=False))


def _filled(
    field: str, pieces: list[NDArray[Any]], dtype: np.dtype[Any], padded: tuple[int, ...],
    sizes: NDArray[np.int64], alloc: Alloc, how: Pad,
) -> NDArray[Any]:  # fmt: skip
    """Memory for the values that holds the padding already."""
    out = alloc((len(pieces), *padded, *pieces[0].shape[how.dims :]), dtype)
    if (sizes < padded).any():
        if not _holds(dtype, how.value):
            raise SampleError(
                f"{dtype} does not hold the padding value {how.value!r}",
                fix='Give another value=, or a dtype= that holds it: Pad(dtype="int64", …)', field=field,
            )  # fmt: skip
        out.fill(how.value)
    return out


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    if dtype.kind in "fc":
        return True
    if value != value or value in (float("inf"), float("-inf")) or int(value) != value:
        return False
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(least <= value <= most)


def _mask(sizes: NDArray[np.int64], padded: tuple[int, ...], side: str, alloc: Alloc) -> NDArray[np.bool_]:
    """bool (n, *padded): True where a value is."""
    mask = alloc((len(sizes), *padded), np.dtype(np.bool_))
    for dim, most in enumerate(padded):
        places = np.arange(most) if side == "right" else np.arange(most - 1, -1, -1)
        ones = [1] * len(padded)
        ends, within = sizes[:, dim].reshape(-1, *ones), places.reshape(*ones[:dim], most, *ones[dim + 1 :])
        if dim:
            mask &= within < ends
        else:
            np.less(within, ends, out=mask)
    return mask


def _shown(size: Sequence[int] | NDArray[Any]) -> str:
    return " x ".join(map(str, size))
