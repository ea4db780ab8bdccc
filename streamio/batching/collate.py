"""Values of several samples -> one value of the batch: an array where they fit into one, else a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.errors import SampleError, ShapeMismatch
from streamio.shards.uniform import is_plain
from streamio.types import Alloc

_NO_NUMBERS = "SUO"
"""Kinds of arrays that stay arrays of numpy: torch's own loader hands them on as well."""

_ONE_SIZE = (
    "Give them one size while decoding (decode=streamio.image.RandomResizedCrop(224), CenterCrop or Resize), "
    "pack them in one (streamio pack --resize-short … --store raw), or say how they are joined: "
)
_JOIN = "collate={field: streamio.Pad(), streamio.Ragged() or 'list'}"


def collate(samples: Sequence[Any], keys: Sequence[str], alloc: Alloc, within: str = "") -> Any:
    """A list of samples as one batch: mappings and tuples field by field (nested ones too), the rest by `stack`.

    keys: one for each sample, for messages. within: the field of the samples that these are.
    Raises SampleError where samples have different fields.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        return {
            name: join_values(f"{within}[{name!r}]" if within else name, values, keys, alloc)
            for name, values in by_field(samples, keys).items()
        }
    if isinstance(first, (tuple, list)):
        if any(not isinstance(s, (tuple, list)) or len(s) != len(first) for s in samples):
            raise SampleError("the samples of one batch are tuples of different lengths")
        return tuple(
            join_values(f"{within}[{i}]" if within else str(i), list(values), keys, alloc)
            for i, values in enumerate(zip(*samples, strict=True))
        )
    return stack("", samples, keys, alloc)


def join_values(name: str, values: list[Any], keys: Sequence[str], alloc: Alloc) -> Any:
    """The values of one field as one of the batch; mappings and tuples field by field."""
    if isinstance(values[0], (Mapping, tuple)):
        return collate(values, keys, alloc, within=name)
    return stack(name, values, keys, alloc)


def by_field(samples: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, list[Any]]:
    """Samples as the values of each field. Raises SampleError where they have different fields."""
    expected = set(samples[0])
    for i, sample in enumerate(samples):
        if set(sample) != expected:
            differ = ", ".join(sorted(set(sample) ^ expected))
            raise SampleError(
                f"has other fields than the sample '{keys[0]}' of its batch: {differ}",
                fix="Let every sample have the same fields, say what becomes of those without with missing={field: "
                "…}, or join them yourself (collate=…)",
                key=keys[i],  # not before: keys are read when one is needed
            )
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def stack(field: str, values: Sequence[Any], keys: Sequence[str], alloc: Alloc) -> NDArray[Any] | list[Any]:
    """n values as one array (n, …), with their dtype; strings, bytes and other objects as a list of n.

    Python numbers become int64, float64 or bool. Raises ShapeMismatch for arrays that do not fit into one, and
    SampleError for arrays of a type that torch lacks (records, dates, more than 64 bits), and for a sample
    without the field, where the others are arrays or numbers.
    """
    kinds = set(map(_kind, set(map(type, values))))
    if kinds <= {"array"}:
        return _stack_arrays(field, values, keys, alloc)
    if kinds <= {"bool"}:
        return _into(alloc, values, np.dtype(np.bool_))
    if kinds <= {"int"}:
        return _stack_ints(field, values, keys, alloc)
    if kinds <= {"int", "float"}:
        return _into(alloc, values, np.dtype(np.float64))
    if "none" in kinds and kinds & {"array", "bool", "int", "float"}:
        raise lacks_field(field, keys[[value is None for value in values].index(True)])
    return list(values)


def lacks_field(field: str, key: str) -> SampleError:
    """The error for a sample without a field that becomes an array."""
    return SampleError(
        "the sample has no such field, others of its batch have",
        fix="Say what becomes of such samples with missing={field: …}, leave them out with where(…), or the field "
        "with fields=…",
        key=key, field=field or None,
    )  # fmt: skip


def _kind(type: type) -> str:
    if type is NoneType:
        return "none"
    if issubclass(type, (np.ndarray, np.generic)):
        return "array"
    if issubclass(type, bool):
        return "bool"
    if issubclass(type, int):
        return "int"
    return "float" if issubclass(type, float) else "object"


def _into(alloc: Alloc, values: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    out = alloc((len(values),), dtype)
    out[:] = values
    return out


def _stack_ints(field: str, values: Sequence[int], keys: Sequence[str], alloc: Alloc) -> NDArray[Any]:
    try:
        return _into(alloc, values, np.dtype(np.int64))
    except OverflowError:
        worst = max(range(len(values)), key=lambda i: abs(values[i]))
        raise SampleError(
            f"{values[worst]} does not fit into int64", fix="Store it as text, or use collate=…",
            key=keys[worst], field=field or None,
        ) from None  # fmt: skip


def _stack_arrays(field: str, values: Sequence[Any], keys: Sequence[str], alloc: Alloc) -> NDArray[Any]:
    kinds = Counter((value.shape, value.dtype) for value in values)
    if len(kinds) > 1:
        shown = ", ".join(f"{shape} {dtype} ({n}×)" for (shape, dtype), n in kinds.most_common(4))
        more = f" and {len(kinds) - 4} more kinds" if len(kinds) > 4 else ""
        usual = kinds.most_common(1)[0][0]
        raise ShapeMismatch(
            f"the {len(values)} samples of a batch do not fit into one array: {shown}{more}",
            fix=_ways_out(field, pictures=all(len(shape) == 3 for shape, _ in kinds)),
            key=next(k for v, k in zip(values, keys, strict=True) if (v.shape, v.dtype) != usual),
            field=field or None,
        )  # fmt: skip
    ((shape, dtype),) = kinds
    if dtype.kind not in _NO_NUMBERS and not is_plain(dtype.newbyteorder("<")):
        raise SampleError(
            f"arrays of {dtype}, a type that torch does not have",
            fix="Convert them (decode={field: function of the bytes}, or transform=…), leave the field out with "
            "fields=…, or use collate=…",
            field=field or None,
        )
    out = alloc((len(values), *shape), dtype)
    for i, value in enumerate(values):
        out[i] = value
    return out


def _ways_out(field: str, *, pictures: bool) -> str:
    if field.endswith("]"):  # the path of a value within one of the fields
        return f"Return it as a field of the sample, and declare that: {_JOIN}; or declare what it lies in a 'list'"
    return f"{_ONE_SIZE if pictures else 'Say how they are joined: '}{_JOIN}"
