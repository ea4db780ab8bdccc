"""Fields of sources: their types, declared or inferred, and their values as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

from streamio.sources.arrow import arrow_column, from_arrow, infer_arrow
from streamio.sources.fieldtypes import FieldType, parse_fields
from streamio.sources.values import from_values, misfit, shortened

__all__ = [
    "FieldType",
    "arrow_column",
    "from_arrow",
    "from_values",
    "infer",
    "infer_arrow",
    "misfit",
    "parse_fields",
    "shortened",
]

_LARGEST = 2**63


def infer(samples: Iterable[Mapping[str, Any]]) -> dict[str, FieldType]:
    """The types of all fields that samples have, in the order in which they come. None says nothing of a type.

    Ints are int64, ints and floats together float64, lists of numbers `int64[]`, `float64[]` or `bool[]` whatever
    their lengths (a shape would make a sample of another length a bad one: declare it), datetimes and dates
    `timestamp[us]`. Json, which takes anything, is what is left: objects, other lists, kinds that are mixed, ints
    that int64 cannot hold, and fields that are always None. Nothing is inferred from what text looks like.
    """
    found: dict[str, set[str]] = {}
    for sample in samples:
        for name, value in sample.items():
            found.setdefault(name, set()).add(_kind(value))
    return {name: FieldType.parse(_joined(kinds)) for name, kinds in found.items()}


def _joined(kinds: set[str]) -> str:
    """One type for values of these kinds."""
    kinds = kinds - {""}
    if len(kinds) > 1:
        kinds = kinds - {"[]"} if all(kind.endswith("[]") for kind in kinds) else kinds
    if kinds in ({"int64", "float64"}, {"int64[]", "float64[]"}):
        return "float64" if "int64" in kinds else "float64[]"
    return kinds.pop() if len(kinds) == 1 and kinds != {"[]"} else "json"


def _kind(value: Any) -> str:
    """The type of one value; "" says nothing, "[]" nothing but that it is a list."""
    if hasattr(value, "tolist"):  # numpy arrays and numbers, tensors
        value = value.tolist()
    if value is None:
        return ""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if -_LARGEST <= value < _LARGEST else "json"
    if isinstance(value, float | Decimal):
        return "float64"
    if isinstance(value, str | UUID):
        return "str"
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes"
    if isinstance(value, date):
        return "timestamp[us]"
    return _kind_of_list(value) if isinstance(value, list | tuple) else "json"


def _kind_of_list(value: list[Any] | tuple[Any, ...]) -> str:
    if not value:
        return "[]"
    kind = _joined({"json" if item is None else _kind(item) for item in value})
    return f"{kind}[]" if kind in ("bool", "int64", "float64") else "json"
