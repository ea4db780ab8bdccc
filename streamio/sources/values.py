"""Python values (of JSON, of a database) -> a column of a declared type. What does not fit is a bad sample."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from streamio.errors import DecodeError, SampleError
from streamio.sources.fieldtypes import FieldType
from streamio.types import ArrayColumn, Column, ListColumn, NullableColumn

_SHOWN = 40
_FITTING: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
"""Python types of which all values may become numbers of this kind at once."""

Bad = dict[int, SampleError]


def from_values(values: Sequence[Any], type: FieldType, name: str) -> tuple[Column, Bad]:
    """A column of n values, None where there is none, and an error for each index whose value does not fit.

    The value of a bad row is undefined. A number fits only as it is: `"1"` and `True` are no int64, 3.0 is none
    either, and 300 is no uint8. Numbers of `float32` and the like are rounded to the nearest; one that is finite
    and too large for them does not fit. Moments are datetimes, or text in ISO 8601; without a zone they are UTC.
    Bytes and files are bytes, or text in base64, as JSON has no bytes. Arrays and numbers of numpy go by their
    values.
    """
    if type.kind in ("number", "time"):
        return _numbers(values, type, name)
    if type.kind == "list":
        return _lists(values, type, name)
    if type.kind == "json":
        return ListColumn(values), {}
    if type.kind == "bytes":
        return _each(values, _bytes, type, name)
    if set(map(_type, values)) <= {str, NoneType}:
        return ListColumn(values), {}
    return _each(values, _text, type, name)


def from_numbers(values: Iterable[Any], count: int, type: FieldType) -> ArrayColumn | None:
    """A column of so many numbers; None where one does not fit.

    type: of single numbers, but uint64. values: bools for bool, ints for ints, ints and floats for floats; others
    are not noticed.
    """
    assert type.dtype is not None
    try:
        wide = np.fromiter(values, _widest(type.dtype), count)
    except OverflowError:
        return None
    made = _narrowed(wide, type.dtype)
    return None if made is None else ArrayColumn(made)


_type = type
NoneType = _type(None)


def shortened(value: object) -> str:
    """A value for a message: its type and its beginning."""
    if isinstance(value, str | bytes) and len(value) > _SHOWN:
        return f"{_type(value).__name__} {value[:_SHOWN]!r}… ({len(value):,} long)"
    if isinstance(value, int) and value.bit_length() > 500:
        return f"int of {value.bit_length():,} bits"
    text = repr(value)
    return f"{_type(value).__name__} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"


def misfit(value: object, type: FieldType, name: str, why: str = "") -> SampleError:
    """The error for a value that is not of its field's type."""
    return DecodeError(
        f"{shortened(value)} is no {type}{f' ({why})' if why else ''}",
        fix='Declare the field as what it holds, "json" for anything', field=name,
    )  # fmt: skip


def _each(
    values: Sequence[Any], convert: Callable[[Any], Any], type: FieldType, name: str
) -> tuple[ListColumn, Bad]:
    """A list of what `convert` gives for each value; it raises ValueError for what does not fit."""
    made: list[Any] = []
    bad: Bad = {}
    for i, value in enumerate(values):
        try:
            made.append(None if value is None else convert(value))
        except (ValueError, OverflowError) as error:
            made.append(None)
            bad[i] = misfit(value, type, name, str(error))
    return ListColumn(made), bad


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise ValueError


def _bytes(value: Any) -> memoryview:
    if isinstance(value, bytes | bytearray | memoryview):
        return memoryview(value)
    if isinstance(value, str):
        try:
            return memoryview(base64.b64decode(value, validate=True))
        except ValueError:
            raise ValueError("text, and not in base64") from None
    raise ValueError


def _numbers(values: Sequence[Any], type: FieldType, name: str) -> tuple[Column, Bad]:
    """A column of one dtype and shape."""
    assert type.dtype is not None and type.shape is not None
    kinds = set(map(_type, values))
    present = [value for value in values if value is not None] if NoneType in kinds else values
    made = None if type.kind == "time" else _at_once(present, type.dtype, type.shape)
    if made is not None and present is values:
        return ArrayColumn(made), {}
    lacking = np.fromiter((value is None for value in values), np.bool_, len(values))
    full = np.zeros((len(values), *type.shape), type.dtype)
    bad: Bad = {}
    if made is not None:
        full[~lacking] = made
    else:
        column, bad = _each(values, _converter(type), type, name)
        for i, value in enumerate(column.values):
            if value is not None:
                full[i] = value
    return (NullableColumn(full, lacking) if lacking.any() else ArrayColumn(full)), bad


def _at_once(values: Sequence[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any] | None:
    """(n, *shape) where all values fit, without a look at each; None where some may not."""
    flat: Sequence[Any] = values
    for size in shape:
        if set(map(_type, flat)) - {list, tuple} or set(map(len, flat)) - {size}:
            return None
        flat = list(chain.from_iterable(flat))
    kinds = set(map(_type, flat))
    if not kinds <= _FITTING[dtype.kind]:
        return None
    try:
        wide = np.array(flat, _widest(dtype))
    except OverflowError:
        return None
    made = _narrowed(wide, dtype)
    if made is None or (dtype == np.uint64 and flat and min(flat) < 0):  # numpy 1 takes them modulo 2^64
        return None
    return made.reshape(len(values), *shape)


def _widest(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind == "b" or dtype == np.uint64:
        return dtype
    return np.dtype(np.float64 if dtype.kind == "f" else np.int64)


def _narrowed(wide: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """An array of the widest dtype of its kind in another one of it; None where a value does not fit."""
    if wide.dtype == dtype:
        return wide
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            made = wide.astype(dtype)
        return made if np.array_equal(np.isinf(made), np.isinf(wide)) else None
    limits = np.iinfo(dtype)
    if wide.size and (wide.min() < limits.min or wide.max() > limits.max):
        return None
    return wide.astype(dtype)


def _lists(values: Sequence[Any], type: FieldType, name: str) -> tuple[ListColumn, Bad]:
    """Arrays of any length, of one dimension."""
    dtype = type.dtype
    assert dtype is not None
    if set(map(_type, values)) <= {list, tuple, NoneType}:
        present = [value for value in values if value is not None]
        flat = _at_once(list(chain.from_iterable(present)), dtype, ())
        if flat is not None:
            ends = np.cumsum(np.fromiter(map(len, present), np.int64, len(present))).tolist()
            pieces = iter([flat[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)] if ends else [])
            return ListColumn([None if value is None else next(pieces) for value in values]), {}
    return _each(values, _converter(type), type, name)


def _converter(type: FieldType) -> Callable[[Any], Any]:
    """A function of one value that is not None; it raises ValueError, with a reason where one helps."""
    dtype, shape = type.dtype, type.shape
    assert dtype is not None
    if type.kind == "time":
        return lambda value: _moment(value, type.unit)

    def convert(value: Any) -> Any:
        if hasattr(value, "tolist"):  # numpy arrays and numbers, tensors
            value = value.tolist()
        sizes = shape
        if sizes is None:
            if not isinstance(value, list | tuple):
                raise ValueError
            sizes = (len(value),)
        if isinstance(value, Decimal) and sizes == ():
            value = _of_decimal(value, dtype)
        made = _at_once([value], dtype, sizes)
        if made is None:
            raise ValueError
        return made[0]

    return convert


def _of_decimal(value: Decimal, dtype: np.dtype[Any]) -> int | float | Decimal:
    if dtype.kind == "f":
        return float(value)
    return int(value) if dtype.kind in "iu" and value.is_finite() and value == int(value) else value


def _moment(value: Any, unit: int) -> int:
    """Since 1970 in UTC, in units of so many microseconds; what lies between two belongs to the earlier one."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise ValueError
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    microseconds: int = (value - _EPOCH) // _MICROSECOND
    return microseconds // unit


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
