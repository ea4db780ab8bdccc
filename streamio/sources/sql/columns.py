"""What the columns of a query become: from the types of Arrow to those of fields, and values that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamio.codecs import BYTES, codec_for
from streamio.errors import DecodeError, StreamioError, UsageError
from streamio.extras import extra
from streamio.sources.fields import FieldType, arrow_column, infer_arrow
from streamio.types import ArrayColumn, Column, ListColumn, NullableColumn

DIGITS = 15
"""Decimal digits that a float64 always keeps."""

_NO_FILES = ("text", "int", "float", "bool")
_FIX_OUT = 'Cast it in the query, columns={"%s": "CAST(%s AS TEXT)"}, or leave it out'


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlColumn:
    """One column that is read.

    sql:      its expression.
    type:     of the field.
    declared: by the user; then a decimal is rounded without a word.
    arrow:    the Arrow type, where the driver takes it from the values of each batch; None: it is always the same.
    """

    sql: str
    type: FieldType
    declared: bool = False
    arrow: Any = None

    def values(self, array: Any, name: str) -> tuple[Column, dict[int, StreamioError]]:
        """The column of an Arrow array, and an error for each row whose value does not fit; undefined there."""
        array, wrong = _of_kind(array, self, name)
        array, bad = _plain_numbers(array, self, name)
        array, endless = _finite(array, name)
        bad |= wrong | endless
        column, more = arrow_column(array, self.type, name)
        return column, {**more, **bad}


def sql_columns(
    schema: Any, given: Mapping[str, str], types: Mapping[str, Any], *, from_values: bool
) -> dict[str, SqlColumn]:
    """What the columns of a result become.

    schema:      of the result, by field. given: expressions by field. types: declared, by field.
    from_values: whether the driver takes the types from the values of each batch.

    Raises UsageError for a type that no field has, with the column and what to do.
    """
    unknown = [name for name in types if name not in given]
    if unknown:
        raise UsageError(f"types= names the column '{unknown[0]}'", fix=f"Columns: {', '.join(given)}")
    made = {}
    for field in schema:
        name, declared = field.name, types.get(field.name)
        kind = _declared(declared, name) if declared is not None else _usual(field, name)
        arrow = field.type if from_values else None
        made[name] = SqlColumn(sql=given[name], type=kind, declared=declared is not None, arrow=arrow)
        if declared is not None:
            _check_fits(field, made[name], name)
    return made


def decimal_name(kind: Any) -> bool:
    """Whether an Arrow type holds decimal numbers, as such or as their text."""
    pa = extra("pyarrow", "sql")
    return bool(pa.types.is_decimal(kind)) or _opaque(kind) == "numeric"


def _declared(text: Any, name: str) -> FieldType:
    try:
        return FieldType.parse(text)
    except UsageError as error:
        error.where.setdefault("field", name)
        raise


def _usual(field: Any, name: str) -> FieldType:
    """The type of a field that was not declared."""
    pa, kind = extra("pyarrow", "sql"), field.type
    if decimal_name(kind):
        return FieldType.parse("float64")
    t = pa.types
    is_dictionary_of_text = t.is_dictionary(kind) and t.is_string(kind.value_type)
    if t.is_null(kind):
        raise UsageError(
            "holds nothing but NULL, which says nothing of its type",
            fix=f'Say what it is, types={{"{name}": "int64"}}, or leave it out', field=name,
        )  # fmt: skip
    type_name = _opaque(kind) or (field.metadata or {}).get(b"POSTGRESQL:type", b"").decode()
    if _opaque(kind) or type_name in ("money", "oid") or t.is_interval(kind):
        raise _unsupported(type_name or str(kind), name)
    suggested = infer_arrow(pa.schema([field]))[name]
    is_json = isinstance(kind, pa.BaseExtensionType)
    if suggested.kind == "json" and not is_json and not is_dictionary_of_text and not _is_list_of_text(pa, kind):
        raise _unsupported(str(kind), name)
    codec = codec_for(name)
    if suggested.kind == "bytes" and codec is not BYTES and codec.name not in _NO_FILES:
        return FieldType.parse(name.rpartition(".")[2].lower())
    if suggested.kind == "text" and codec.name == "json":
        return FieldType.parse("json")
    return suggested


def _is_list_of_text(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_string(kind.value_type))


def _unsupported(what: str, name: str) -> UsageError:
    return UsageError(f"holds {what}, which no tensor is made of", fix=_FIX_OUT % (name, name), field=name)


def _opaque(kind: Any) -> str:
    """The database's name of a type that Arrow has no word for."""
    return str(kind.type_name) if getattr(kind, "extension_name", "") == "arrow.opaque" else ""


def _check_fits(field: Any, column: SqlColumn, name: str) -> None:
    """Raise UsageError for a declared type that values of this one never fit."""
    pa = extra("pyarrow", "sql")
    storage = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if pa.types.is_null(storage):
        return
    empty = pa.array([], storage)
    column.values(field.type.wrap_array(empty) if storage is not field.type else empty, name)


def _plain_numbers(array: Any, column: SqlColumn, name: str) -> tuple[Any, dict[int, StreamioError]]:
    """Decimals as the number or text that the field is; those that would lose digits are bad, unless declared."""
    pa, compute = extra("pyarrow", "sql"), extra("pyarrow.compute", "sql")
    if column.type.kind == "bytes" and column.type.codec != "bytes" and pa.types.is_string(array.type):
        return array.cast(pa.binary()), {}  # text that is declared to be a file
    if column.type.dtype == np.bool_ and pa.types.is_integer(array.type):
        return _as_bool(array, compute, name)
    if not decimal_name(array.type):
        return array, {}
    text = array.storage if _opaque(array.type) else array.cast(pa.string())
    if column.type.kind != "number":
        return text, {}
    assert column.type.dtype is not None
    if column.type.dtype.kind in "iu":
        whole = compute.replace_substring_regex(text, pattern=r"\.0*$", replacement="")
        return _parsed(whole, pa.int64() if column.type.dtype.kind == "i" else pa.uint64(), column, name)
    floats = compute.cast(text, pa.float64())
    if column.declared:
        return floats, {}
    digits = compute.replace_substring_regex(text, pattern=r"[-.]|E.*$", replacement="")
    digits = compute.utf8_rtrim(compute.utf8_ltrim(digits, characters="0"), characters="0")
    return floats, {row: _too_long(text[row].as_py(), name) for row in _where(compute.utf8_length(digits), DIGITS)}


def _of_kind(array: Any, column: SqlColumn, name: str) -> tuple[Any, dict[int, StreamioError]]:
    """The array in the type that its column has, and errors for the values of another one."""
    pa, kind = extra("pyarrow", "sql"), column.arrow
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if kind is None or array.type == kind or pa.types.is_null(kind) or pa.types.is_decimal(kind):
        return array, {}
    if array.null_count == len(array):
        return pa.nulls(len(array), kind), {}
    if pa.types.is_integer(array.type) and pa.types.is_floating(kind):
        return array.cast(kind), {}
    values, bad = [], dict[int, StreamioError]()
    for row, value in enumerate(array):
        try:
            is_text = pa.types.is_string(array.type)
            values.append((value.cast(kind) if is_text else pa.scalar(value.as_py(), kind)).as_py())
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            values.append(None)
            bad[row] = DecodeError(f"{value.as_py()!r} is not of the type of its column, {kind}", field=name)
    return pa.array(values, kind), bad


def _finite(array: Any, name: str) -> tuple[Any, dict[int, StreamioError]]:
    """Moments without 'infinity', which PostgreSQL's driver gives as a number long before its first moment."""
    pa, compute = extra("pyarrow", "sql"), extra("pyarrow.compute", "sql")
    is_date = pa.types.is_date32(array.type)
    if not is_date and not pa.types.is_timestamp(array.type):
        return array, {}
    numbers = array.cast(pa.int32() if is_date else pa.int64())
    endless = compute.less(numbers, -2_000_000_000 if is_date else -9_200_000_000_000_000_000).fill_null(False)
    rows: list[int] = np.flatnonzero(endless.to_numpy(zero_copy_only=False)).tolist()
    if not rows:
        return array, {}
    fix = f'Leave such rows out: where="isfinite({name})"'
    bad: dict[int, StreamioError] = {row: DecodeError("infinity is no moment", fix=fix, field=name) for row in rows}
    return compute.if_else(endless, None, array), bad


def _where(lengths: Any, most: int) -> list[int]:
    found: list[int] = np.flatnonzero(lengths.fill_null(0).to_numpy(zero_copy_only=False) > most).tolist()
    return found


def _too_long(text: str, name: str) -> StreamioError:
    return DecodeError(
        f"{text} has more digits than the {DIGITS} that a float64 keeps",
        fix=f'Say what it is to be: types={{"{name}": "float64"}} rounds, "int64" keeps whole numbers, "str" all',
        field=name,
    )


def _parsed(text: Any, kind: Any, column: SqlColumn, name: str) -> tuple[Any, dict[int, StreamioError]]:
    """Text of whole numbers as such; what is none is bad."""
    pa = extra("pyarrow", "sql")
    try:
        return text.cast(kind), {}
    except pa.ArrowInvalid:
        pass
    bad: dict[int, StreamioError] = {}
    values: list[int | None] = []
    for row, value in enumerate(text.to_pylist()):
        try:
            values.append(None if value is None else pa.scalar(value).cast(kind).as_py())
        except pa.ArrowInvalid:
            values.append(0)
            bad[row] = DecodeError(f"{value} is no {column.type}", field=name)
    return pa.array(values, kind), bad


def _as_bool(array: Any, compute: Any, name: str) -> tuple[Any, dict[int, StreamioError]]:
    """0 and 1, as databases without bools have them."""
    wrong = compute.and_(compute.not_equal(array, 0), compute.not_equal(array, 1)).fill_null(False)
    rows: list[int] = np.flatnonzero(wrong.to_numpy(zero_copy_only=False)).tolist()
    made = compute.not_equal(array, 0)
    return made, {row: DecodeError(f"{array[row].as_py()} is no bool", field=name) for row in rows}


def with_errors(column: Column, bad: Mapping[int, StreamioError]) -> Column:
    """The column with errors in the places of values."""
    if not bad:
        return column
    values: list[Any]
    if isinstance(column, NullableColumn):
        values = [None if lacks else value for value, lacks in zip(column.values, column.lacking, strict=True)]
    else:
        values = list(column.values) if isinstance(column, ArrayColumn | ListColumn) else []
    for row, error in bad.items():
        values[row] = error
    return ListColumn(values)
