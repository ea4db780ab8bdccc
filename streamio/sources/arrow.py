"""Arrow arrays -> columns of a declared type, without Python for each number; types of fields from a schema."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.errors import DecodeError, UsageError
from streamio.extras import extra
from streamio.sources.fieldtypes import FieldType
from streamio.sources.values import Bad, from_values
from streamio.types import ArrayColumn, Column, ListColumn, NullableColumn


def from_arrow(array: Any, type: FieldType, name: str) -> Column:
    """A column of the values of a `pyarrow.Array` or `ChunkedArray`; NULL is no value. Copies: the batch owns them.

    Numbers come as in `from_values`: those of another width where all fit, floats rounded; bools are no numbers
    and text neither. Decimals become floats, or ints where they are whole. Times, dates and durations as int64 are
    those of Arrow, in its unit; as `timestamp[…]` in that one. Text and bytes in a field of json are parsed when a
    batch is decoded, as are the bytes of files.

    Raises UsageError for a type of Arrow that never fits, and DecodeError where a value does not; `arrow_column`
    then says which.
    """
    pa = extra("pyarrow", "sql")
    array = _plain(pa, array)
    try:
        column = _MAKERS[type.kind](pa, array, type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError, OverflowError, ValueError) as error:
        raise DecodeError(f"a value of {array.type} is no {type}: {error}", field=name) from error
    if column is None:
        raise UsageError(
            f"holds {array.type}, which is no {type}", fix=f"Declare it {_suggested(pa, array.type)!r}", field=name
        )
    return column


def arrow_column(array: Any, type: FieldType, name: str) -> tuple[Column, Bad]:
    """`from_arrow`; where a value does not fit, its row is in the errors by index, and the others are right."""
    try:
        return from_arrow(array, type, name), {}
    except DecodeError:
        return from_values(_to_python(array), type, name)


def infer_arrow(schema: Any) -> dict[str, FieldType]:
    """Types of the fields of a `pyarrow.Schema`.

    Numbers as they are, decimals float64, dates and moments timestamps (of their unit, but not finer than
    microseconds), text, bytes, lists of numbers of fixed length or any, and json for the rest.
    """
    pa = extra("pyarrow", "sql")
    return {field.name: FieldType.parse(_suggested(pa, field.type)) for field in schema}


def _suggested(pa: Any, kind: Any) -> str:
    t = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.json":
            return "json"
        return "str" if kind.extension_name == "arrow.uuid" else _suggested(pa, kind.storage_type)
    if t.is_dictionary(kind):
        return _suggested(pa, kind.value_type)
    if t.is_boolean(kind):
        return "bool"
    if t.is_integer(kind) or t.is_floating(kind):
        return str(np.dtype(kind.to_pandas_dtype()).name)
    if t.is_decimal(kind):
        return "float64"
    if t.is_date(kind):
        return "timestamp[s]"
    if t.is_timestamp(kind):
        return f"timestamp[{kind.unit if kind.unit != 'ns' else 'us'}]"
    if t.is_time(kind) or t.is_duration(kind):
        return "int64"
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "str"
    if _is_bytes(pa, kind):
        return "bytes"
    return _of_lists(pa, kind) or "json"


def _of_lists(pa: Any, kind: Any) -> str | None:
    """`float32[3,4]` or `int32[]` for lists of numbers."""
    sizes = []
    while pa.types.is_fixed_size_list(kind):
        sizes.append(str(kind.list_size))
        kind = kind.value_type
    if not sizes and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        sizes, kind = [""], kind.value_type
    is_number = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return f"{np.dtype(kind.to_pandas_dtype()).name}[{','.join(sizes)}]" if sizes and is_number else None


def _is_bytes(pa: Any, kind: Any) -> bool:
    t = pa.types
    return bool(
        t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind)
    )


def _plain(pa: Any, array: Any) -> Any:
    """One Array, with neither dictionary nor extension; lists and bytes in one piece."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # of none
            array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    if isinstance(array.type, pa.BaseExtensionType):
        if array.type.extension_name == "arrow.uuid":
            return pa.array(
                [None if v is None else str(uuid.UUID(bytes=v)) for v in array.storage.to_pylist()], pa.string()
            )
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    return array.cast(pa.binary()) if pa.types.is_binary_view(array.type) else array


def _to_python(array: Any) -> list[Any]:
    """Its values; text that is not UTF-8 as bytes, which no field of text takes."""
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        pa = extra("pyarrow", "sql")
        values: Iterable[bytes | None] = _plain(pa, array).cast(pa.large_binary()).to_pylist()
        return [None if value is None else _decoded(value) for value in values]


def _decoded(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _numbers(pa: Any, array: Any, type: FieldType) -> Column | None:
    assert type.dtype is not None and type.shape is not None
    lacking = _lacking(array)
    present = array if lacking is None else array.drop_null()
    flat = present
    for size in type.shape:
        if not _is_list(pa, flat.type):
            return None
        lengths = set(_lengths(flat).tolist())
        if lengths - {size}:
            raise ValueError(f"{min(lengths - {size})} values, not {size}")
        flat = flat.flatten()
    made = _flat_numbers(pa, flat, type.dtype)
    if made is None:
        return None
    made = made.reshape(len(present), *type.shape)
    if lacking is None:
        return ArrayColumn(made)
    full = np.zeros((len(array), *type.shape), type.dtype)
    full[~lacking] = made
    return NullableColumn(full, lacking)


def _flat_numbers(pa: Any, array: Any, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The values of an array without NULL, in memory of its own; None for a type that does not fit."""
    kind, t = array.type, pa.types
    if array.null_count:
        raise ValueError("NULL within a list")
    if t.is_null(kind):
        return np.zeros(len(array), dtype)
    if t.is_decimal(kind):
        array = array.cast(pa.float64() if dtype.kind == "f" else pa.int64())
    elif t.is_temporal(kind) and dtype == np.int64:
        array = array.cast(pa.int32()).cast(pa.int64()) if kind.bit_width == 32 else array.cast(pa.int64())
    is_bool, is_int, is_float = (f(array.type) for f in (t.is_boolean, t.is_integer, t.is_floating))
    if not {"b": is_bool, "i": is_int, "u": is_int, "f": is_int or is_float}[dtype.kind]:
        return None
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    if dtype.kind in "iu" and values.size and values.dtype != dtype:
        limits = np.iinfo(dtype)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise ValueError(f"{values.min()} to {values.max()} do not all fit")
    with np.errstate(over="ignore"):
        made = np.array(values, dtype)
    if dtype.kind == "f" and dtype.itemsize < 8 and (np.isinf(made) & np.isfinite(values)).any():
        raise ValueError("too large")
    return made


def _time(pa: Any, array: Any, type: FieldType) -> Column | None:
    """int64, by whole units; what lies between two belongs to the earlier one."""
    kind = array.type
    if pa.types.is_date(kind):
        array = array.cast(pa.timestamp("us"))
    elif not pa.types.is_timestamp(kind):
        return _of_text(pa, array, type)
    nanoseconds = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}[array.type.unit]
    lacking = _lacking(array)
    values = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    wanted = type.unit * 1000
    if nanoseconds >= wanted:
        factor = nanoseconds // wanted
        if values.size and np.abs(values).max() > np.iinfo(np.int64).max // factor:
            raise OverflowError("too far from 1970")
        made = values * factor
    else:
        made = values // (wanted // nanoseconds)
    return ArrayColumn(made) if lacking is None else NullableColumn(made, lacking)


def _of_text(pa: Any, array: Any, type: FieldType) -> Column | None:
    """Text as moments; None for a type of Arrow that is none."""
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return None
    column, bad = from_values(array.to_pylist(), type, "")
    if bad:
        raise ValueError(next(iter(bad.values())).found)
    return column


def _lists(pa: Any, array: Any, type: FieldType) -> Column | None:
    assert type.dtype is not None
    if not _is_list(pa, array.type):
        return None
    flat = _flat_numbers(pa, array.drop_null().flatten(), type.dtype)
    if flat is None:
        return None
    ends = np.cumsum(_lengths(array)).tolist()
    values: list[NDArray[Any] | None] = (
        [flat[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)] if ends else []
    )
    for i in _where_lacking(array):
        values[i] = None
    return ListColumn(values)


def _text(pa: Any, array: Any, type: FieldType) -> Column | None:
    kind = array.type
    if pa.types.is_decimal(kind):
        array = array.cast(pa.string())
    elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        return None
    return ListColumn(array.to_pylist())


def _bytes(pa: Any, array: Any, type: FieldType) -> Column | None:
    if pa.types.is_null(array.type):
        return ListColumn([None] * len(array))
    if not _is_bytes(pa, array.type):
        return None
    return ListColumn(_views(pa, array))


def _json(pa: Any, array: Any, type: FieldType) -> Column:
    """Text and bytes to be parsed; what Arrow has parsed already as Python has it."""
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    if is_text or _is_bytes(pa, array.type):
        return ListColumn(_views(pa, array))
    return ListColumn(array.to_pylist())


def _views(pa: Any, array: Any) -> list[memoryview | None]:
    """The bytes of each value, in the memory of the array."""
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offsets, data = array.buffers()
    if data is None:
        data = b""
    places = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    memory, ends = memoryview(data).toreadonly(), places.tolist()
    views: list[memoryview | None] = [memory[a:b] for a, b in pairwise(ends)]
    for i in _where_lacking(array):
        views[i] = None
    return views


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _lengths(array: Any) -> NDArray[np.int64]:
    """int64 (n,): values in each list, 0 in NULL."""
    compute = extra("pyarrow.compute", "sql")
    return compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def _lacking(array: Any) -> NDArray[np.bool_] | None:
    """bool (n,): which are NULL; None: none."""
    if not array.null_count:
        return None
    return array.is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _where_lacking(array: Any) -> list[int]:
    lacking = _lacking(array)
    return [] if lacking is None else np.flatnonzero(lacking).tolist()


_MAKERS: dict[str, Callable[[Any, Any, FieldType], Column | None]] = {
    "number": _numbers,
    "list": _lists,
    "time": _time,
    "text": _text,
    "bytes": _bytes,
    "json": _json,
}
