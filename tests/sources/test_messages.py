"""What the messages of brokers become, whatever the broker: JSON, raw bytes, a user's function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from streamio import UsageError
from streamio.errors import DecodeError, TransformError
from streamio.sources.fieldtypes import FieldType
from streamio.sources.messages import MessageReader, from_bytes, message_reader
from streamio.types import ArrayColumn, Column, NullableColumn

KNOWN = {"key": "bytes", "timestamp": "timestamp[ms]", "offset": "int64", "headers": "json"}
FACTS: dict[str, Any] = {
    "key": [b"k0", None, b"k2"],
    "timestamp": np.array([1_700_000_000_123_000, 0, 5_999], np.int64),
    "offset": np.arange(3),
    "headers": [[["a", "b"]], [], []],
}


def _reader(parse: Any = "json", types: Any = None, meta: Any = None, first: Sequence[Any] = ()) -> MessageReader:
    return message_reader(parse, types, meta, KNOWN, lambda: first, "topic 'clicks'")


def _values(column: Column) -> list[Any]:
    if isinstance(column, NullableColumn):
        return [None if none else value for value, none in zip(column.values, column.lacking, strict=True)]
    values = column.values
    return [bytes(value) if isinstance(value, memoryview) else value for value in values]


def test_json_objects_are_read_by_their_declared_fields() -> None:
    reader = _reader(types={"n": "int64", "text": "str", "any": "json"})
    columns, bad, kept = reader.read([b'{"n": 1, "text": "a", "more": 0}', b'{"any": [1, {}]}'], {})
    assert {name: _values(column) for name, column in columns.items()} == {
        "n": [1, None],
        "text": ["a", None],
        "any": [None, [1, {}]],
    }
    assert (bad, kept) == ({}, None)


def test_a_message_without_a_value_is_a_row_without_fields() -> None:
    columns, bad, kept = _reader(types={"n": "int64"}).read([b'{"n": 1}', None], {})
    assert (_values(columns["n"]), bad, kept) == ([1, None], {}, None)


@pytest.mark.parametrize(
    "broken", [b"", b"{", b"[1]", b"null", b"1", b'{"n": 1.5}', b'{"n": true}', b"\xff", b"{}{}"]
)
def test_what_is_no_such_object_is_one_bad_row(broken: bytes) -> None:
    columns, bad, _ = _reader(types={"n": "int64"}).read([b'{"n": 1}', broken, b'{"n": 3}'], {})
    assert list(bad) == [1] and isinstance(bad[1], DecodeError)
    assert [_values(columns["n"])[i] for i in (0, 2)] == [1, 3]


def test_json_is_read_as_python_reads_it() -> None:
    reader = _reader(types={"v": "json"})
    columns, bad, _ = reader.read([b'{"v": 123456789012345678901}', b'{"v": [NaN, 1e999]}'], {})
    assert bad == {} and _values(columns["v"])[0] == 123456789012345678901
    assert str(_values(columns["v"])[1]) == "[nan, inf]"


def test_raw_messages_bring_all_facts_along() -> None:
    reader = _reader("raw", {"key": "str", "timestamp": "timestamp[s]"})
    columns, bad, _ = reader.read([b"\0\1", None, b""], FACTS)
    assert list(reader.fields) == ["value", "key", "timestamp", "offset", "headers"]
    assert _values(columns["value"]) == [b"\0\1", None, b""]
    assert _values(columns["key"]) == ["k0", None, "k2"]
    assert _values(columns["timestamp"]) == [1_700_000_000, 0, 0]
    assert _values(columns["offset"]) == [0, 1, 2] and _values(columns["headers"])[0] == [["a", "b"]]
    assert bad == {}
    assert isinstance(columns["offset"], ArrayColumn)


def test_facts_come_along_under_the_names_that_are_given() -> None:
    reader = _reader(types={"n": "int64"}, meta={"timestamp": "at", "key": "user"})
    columns, _, _ = reader.read([b'{"n": 1}'] * 3, FACTS)
    assert list(columns) == ["n", "at", "user"]
    assert _values(columns["at"]) == [1_700_000_000_123, 0, 5]
    assert _values(columns["user"]) == [b"k0", None, b"k2"]


def test_a_function_may_leave_messages_out_and_its_errors_are_bad_rows() -> None:
    def parse(value: bytes) -> Mapping[str, Any] | None:
        if value == b"skip":
            return None
        return {"n": int(value)} if value != b"list" else [1]  # type: ignore[return-value]

    reader = _reader(parse, {"n": "int64"}, ["offset"])
    facts = {**FACTS, "offset": np.arange(10, 15)}
    columns, bad, kept = reader.read([b"skip", b"1", b"x", b"list", b"5"], facts)
    assert kept is not None and kept.tolist() == [1, 2, 3, 4]
    assert _values(columns["offset"]) == [11, 12, 13, 14]
    assert list(bad) == [1, 2] and isinstance(bad[1], TransformError) and isinstance(bad[2], DecodeError)
    assert isinstance(bad[1].__cause__, ValueError)
    assert [_values(columns["n"])[i] for i in (0, 3)] == [1, 5]


@pytest.mark.parametrize(
    ("type", "values", "wanted", "wrong"),
    [
        ("int64", [b"1", b"-5", b"x", None, b"1.5"], [1, -5, None], [2, 4]),
        ("uint8", [b"255", b"256"], [255], [1]),
        ("float32", [b"0.5", b"nan?", b"2"], [0.5, 2.0], [1]),
        ("bool", [b"1", b"false", b"2"], [True, False], [2]),
        ("str", ["ä".encode(), b"\xff"], ["ä"], [1]),
        ("json", [b"[1]", b"{"], [[1]], [1]),
        ("timestamp[s]", [b"1970-01-02", b"soon"], [86400], [1]),
        ("bytes", [b"\xff", None], [b"\xff", None], []),
    ],
)
def test_bytes_are_read_by_the_type_of_their_field(type: str, values: Any, wanted: Any, wrong: list[int]) -> None:
    column, bad = from_bytes(values, FieldType.parse(type), "v")
    assert sorted(bad) == wrong and all(error.where["field"] == "v" for error in bad.values())
    assert [value for i, value in enumerate(_values(column)) if i not in bad] == wanted


def test_arrays_are_written_as_json() -> None:
    column, bad = from_bytes([b"[1, 2]", b"[1]"], FieldType.parse("int16[2]"), "v")
    assert list(bad) == [1] and column.values[0].tolist() == [1, 2]


def test_types_are_inferred_from_the_first_messages() -> None:
    reader = _reader(first=[b'{"a": 1}', b"broken", b'{"b": "x", "a": 2.5}'])
    assert {name: str(kind) for name, kind in reader.types.items()} == {"a": "float64", "b": "str"}
    with pytest.raises(UsageError, match=r"topic 'clicks'.*it is empty"):
        _reader()
    with pytest.raises(UsageError, match="none of the first 2 messages is good"):
        _reader(first=[b"x", b"1"])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"parse": "avro"}, "parse='avro'"),
        ({"meta": "key"}, "meta='key'"),
        ({"meta": ["colour"]}, "meta="),
        ({"types": {"n": "int64", "offset": "str"}, "meta": ["offset"]}, "field offset: is declared str"),
        ({"first": [b'{"key": 1}'], "meta": ["key"]}, "a field 'key' of their own"),
        ({"parse": "raw", "types": {"text": "str"}}, "one field, 'value'"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        _reader(**options)
