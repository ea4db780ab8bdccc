"""Rows of a source -> samples of a shard: what a field is called there, and its values as they are stored.

    int64 x.int    float64 x.float    bool x.bool    timestamps x.int    str x.txt    json x.json
    other numbers, and arrays x.npy, which keeps their type    bytes x    files (jpg, …) x.jpg

A field that has such an extension already keeps its name, and so does one of whole numbers that is called like one
(`cls`, `id`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamio.codecs import BYTES, Codec, codec_for, codec_named
from streamio.packing.growing import stored_as
from streamio.packing.part import Stored, as_stored
from streamio.shards.manifest import FieldSpec
from streamio.sources.fieldtypes import FieldType
from streamio.types import Column, ListColumn, NullableColumn

_EXACT = {"int64": "<i8", "float64": "<f8", "bool": "|b1"}
"""Numbers that text holds as they are, and how an array of them is called."""


def landed_field(name: str, type: FieldType) -> FieldSpec:
    """A field of a source as one of shards, without samples yet."""
    own = codec_for(name)
    if type.kind == "bytes":
        is_named = own.name == type.codec
        return stored_as(name if is_named else f"{name}.{'bin' if type.codec == BYTES.name else type.text}")
    if type.kind in ("text", "json"):
        return stored_as(_with_extension(name, codec_named(type.codec)))
    if type.shape == () and type.dtype is not None:
        exact = type.dtype.name in _EXACT
        if exact or own.name == type.codec:
            kind = {"int": "<i8", "float": "<f8", "bool": "|b1"}[type.codec]
            return stored_as(_with_extension(name, codec_named(type.codec)), kind, ())
    stored = _with_extension(name, codec_named("npy"))
    if type.dtype is None or type.shape is None:
        return stored_as(stored)
    return stored_as(stored, type.dtype.newbyteorder("<").str, type.shape)


def _with_extension(name: str, codec: Codec) -> str:
    return name if codec_for(name).name == codec.name else f"{name}.{codec.extensions[0]}"


def landed_row(
    columns: Mapping[str, Sequence[Any]], specs: Mapping[str, FieldSpec], row: int, *, takes_arrays: bool
) -> dict[str, Stored]:
    """The fields of one row that has values: stored name -> value as the shard holds it.

    Raises UsageError, naming the field, for a value that none can hold: JSON has no NaN, for one.
    """
    return {
        specs[name].stored: as_stored(specs[name].stored, values[row], takes_arrays)
        for name, values in columns.items()
        if values[row] is not None
    }


def values_of(column: Column) -> Sequence[Any]:
    """The value of each row; None where there is none."""
    if isinstance(column, NullableColumn):
        return [None if none else value for value, none in zip(column.values, column.lacking, strict=True)]
    return column.values if isinstance(column, ListColumn) else list(column.values)
