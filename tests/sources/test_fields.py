"""Fields of sources: types as they are written, inferred and kept to."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from streamio.batching.decode import NUMBER_CODECS
from streamio.codecs import codec_for
from streamio.errors import DecodeError, UsageError
from streamio.sources.fields import (
    FieldType,
    arrow_column,
    from_arrow,
    from_values,
    infer,
    infer_arrow,
    parse_fields,
)
from streamio.types import ArrayColumn, Column, ListColumn, NullableColumn

NUMBERS = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
OTHERS = (
    "float32[3,4]",
    "int32[]",
    "bool[2]",
    "timestamp[us]",
    "timestamp[ms]",
    "timestamp[s]",
    "str",
    "bytes",
    "json",
    "jpg",
    "npy",
)


def typed(text: str) -> FieldType:
    return FieldType.parse(text)


def listed(column: Column) -> list[Any]:
    """The values of a column, None where there is none."""
    if isinstance(column, NullableColumn):
        return [None if no else value for value, no in zip(column.values.tolist(), column.lacking, strict=True)]
    if isinstance(column, ArrayColumn):
        return column.values.tolist()
    return [plain(value) for value in column.values]


def plain(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("text", [*NUMBERS, *OTHERS])
def test_a_type_is_written_as_it_is_read(text: str) -> None:
    found = typed(text)
    assert str(found) == text
    assert FieldType.parse(str(found)) == found
    assert FieldType.parse(found) is found
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("text", "same"),
    [(" float32[ 3, 4 ] ", "float32[3,4]"), ("int32[ ]", "int32[]"), ("float", "float64"), ("int", "int64")],
)
def test_blanks_and_python_names_are_understood(text: str, same: str) -> None:
    assert typed(text) == typed(same)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "text3",
        "int65",
        "float32[0]",
        "float32[-1]",
        "float32[3",
        "str[]",
        "json[3]",
        "timestamp",
        "timestamp[ns]",
        "object",
        "complex64",
        "datetime64",
        "U8",
        "float128",
        "cls",
        5,
        None,
    ],
)
def test_what_is_no_type_is_refused_with_those_that_there_are(text: Any) -> None:
    with pytest.raises(UsageError, match=r"is no type of a field.*float32\[3,4\]"):
        FieldType.parse(text)


def test_a_wrong_declaration_names_the_field() -> None:
    with pytest.raises(UsageError, match="field label: 'strin'"):
        parse_fields({"text": "str", "label": "strin"})
    with pytest.raises(UsageError, match="fields="):
        parse_fields({})


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_are_gathered_into_one_array(text: str) -> None:
    spec = typed(text).spec("x")
    assert spec.codec in NUMBER_CODECS
    assert spec.shape == () and np.dtype(spec.dtype) == np.dtype(text)


def test_shapes_and_files_have_the_codec_that_decodes_them() -> None:
    assert (typed("float32[3,4]").spec("x").shape, typed("float32[3,4]").spec("x").dtype) == ((3, 4), "<f4")
    assert typed("int32[]").spec("x").shape is None
    assert typed("jpg").spec("x").codec == codec_for("jpg").name


CASES = [
    # type, values that fit (as they come out), values that do not
    ("int64", [0, -(2**63), 2**63 - 1], [2**63, 1.0, "1", True, [1], 10**400, {}]),
    ("uint64", [0, 2**64 - 1], [-1, 2**64, 1.5]),
    ("uint8", [0, 255], [256, -1, True]),
    ("int8", [-128, 127], [128, -129]),
    ("bool", [True, False], [0, 1, "true", 1.0]),
    ("float64", [0.1, float("inf"), -0.0], ["0.1", True, [0.1], 10**400]),
    ("float32", [0.5, float("-inf")], [1e39, -1e300, "x"]),
    ("float16", [0.5, 65504.0], [70000.0]),
    ("int32[2]", [[1, 2]], [[1], [1, 2, 3], 1, [1, None], [1.0, 2], [[1], [2]], [True, 1], "ab"]),
    ("float32[2,1]", [[[1.0], [2.5]]], [[1.0, 2.0], [[1.0, 2.0]], [[1e40], [0.0]]]),
    ("int32[]", [[], [1], [1, 2, 3]], [1, [None], ["1"], [2**31], [1.5], [[1]], "12"]),
    ("str", ["", "ä", "1"], [1, b"x", True, ["a"]]),
    ("bytes", [b"", b"\xff"], [1, "not base64!", ["a"]]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "good", "wrong"), CASES, ids=[case[0] for case in CASES])
def test_a_value_that_does_not_fit_is_bad_and_its_neighbours_are_right(
    text: str, good: list[Any], wrong: list[Any]
) -> None:
    for value in wrong:
        column, bad = from_values([*good, value, None, *good], typed(text), "speed")
        assert list(bad) == [len(good)]
        assert bad[len(good)].where["field"] == "speed"
        assert f"no {text}" in str(bad[len(good)]) and len(str(bad[len(good)])) < 250
        values = listed(column)
        assert values[: len(good)] == values[len(good) + 2 :] == good
        assert values[len(good) + 1] is None
    column, bad = from_values(good, typed(text), "speed")
    assert listed(column) == good and not bad


def test_a_bad_row_does_not_count_as_one_without_a_value() -> None:
    column, bad = from_values([1, "2", None], typed("int64"), "x")
    assert (
        isinstance(column, NullableColumn) and column.lacking.tolist() == [False, False, True] and list(bad) == [1]
    )
    column, bad = from_values([1, "2"], typed("int64"), "x")
    assert isinstance(column, ArrayColumn) and list(bad) == [1]


def test_nan_is_a_value() -> None:
    column, bad = from_values([float("nan"), 1, None], typed("float32"), "x")
    assert isinstance(column, NullableColumn) and not bad
    assert np.isnan(column.values[0]) and column.lacking.tolist() == [False, False, True]


def test_no_values_at_all_still_have_the_type() -> None:
    for text in NUMBERS:
        column, _ = from_values([], typed(text), "x")
        assert isinstance(column, ArrayColumn) and column.values.dtype == np.dtype(text)
        column, _ = from_values([None, None], typed(text), "x")
        assert isinstance(column, NullableColumn) and column.values.dtype == np.dtype(text)
    assert listed(from_values([], typed("int32[]"), "x")[0]) == []
    assert listed(from_values([None], typed("int32[]"), "x")[0]) == [None]


def test_arrays_may_be_written() -> None:
    for array in (pa.array([1, 2, 3]), pa.chunked_array([[1], [2, 3]])):
        column = from_arrow(array, typed("int64"), "x")
        assert isinstance(column, ArrayColumn)
        column.values[0] = 7
    ragged = from_arrow(pa.array([[1, 2], [3]]), typed("int64[]"), "x")
    assert isinstance(ragged, ListColumn)
    ragged.values[0][0] = 7  # type: ignore[index]


MOMENTS = [
    ("2024-02-29T12:00:00Z", datetime(2024, 2, 29, 12, tzinfo=UTC)),
    ("2024-02-29 12:00:00.5", datetime(2024, 2, 29, 12, 0, 0, 500_000, UTC)),
    ("2024-02-29T12:00:00+02:00", datetime(2024, 2, 29, 10, tzinfo=UTC)),
    ("1969-12-31T23:59:59.999", datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
    (datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-5))), datetime(2024, 1, 1, 5, tzinfo=UTC)),
    (datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),
    (date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),
]  # fmt: skip


@pytest.mark.parametrize(("given", "moment"), MOMENTS)
def test_moments_count_from_1970_in_utc(given: Any, moment: datetime) -> None:
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    for unit, length in (
        ("us", timedelta(microseconds=1)),
        ("ms", timedelta(milliseconds=1)),
        ("s", timedelta(seconds=1)),
    ):
        column, bad = from_values([given, None], typed(f"timestamp[{unit}]"), "t")
        assert listed(column) == [since // length, None] and not bad
        if isinstance(given, datetime):
            arrow = pa.array([given, None])
            assert listed(from_arrow(arrow, typed(f"timestamp[{unit}]"), "t")) == [since // length, None]


def test_what_is_no_moment_is_bad() -> None:
    _, bad = from_values(["yesterday", 5, "2024-13-01", None], typed("timestamp[us]"), "t")
    assert sorted(bad) == [0, 1, 2]


def test_files_in_json_come_in_base64() -> None:
    column, bad = from_values([base64.b64encode(b"\xff\xd8").decode(), "?"], typed("jpg"), "jpg")
    assert listed(column)[0] == b"\xff\xd8" and list(bad) == [1]
    assert "base64" in str(bad[1])


def test_decimals_are_rounded_to_floats_and_whole_ones_are_ints() -> None:
    values = [Decimal("0.1"), Decimal("3")]
    assert listed(from_values(values, typed("float64"), "x")[0]) == [0.1, 3.0]
    assert list(from_values(values, typed("int64"), "x")[1]) == [0]
    assert listed(from_values(values, typed("str"), "x")[0]) == ["0.1", "3"]
    assert listed(from_arrow(pa.array(values), typed("float64"), "x")) == [0.1, 3.0]
    assert listed(from_arrow(pa.array(values[1:]), typed("int64"), "x")) == [3]


ARROW = {
    "bool": pa.bool_(), "int8": pa.int8(), "int32": pa.int32(), "int64": pa.int64(), "uint8": pa.uint8(),
    "uint64": pa.uint64(), "float32": pa.float32(), "float64": pa.float64(), "str": pa.string(),
    "bytes": pa.binary(), "int32[]": pa.list_(pa.int32()), "float64[2]": pa.list_(pa.float64(), 2),
    "int8[2,1]": pa.list_(pa.list_(pa.int8(), 1), 2),
}  # fmt: skip
PYTHON: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(), "int8": st.integers(-128, 127), "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1), "uint8": st.integers(0, 255), "uint64": st.integers(0, 2**64 - 1),
    "float32": st.floats(width=32, allow_nan=False), "float64": st.floats(allow_nan=False),
    "str": st.text(max_size=5), "bytes": st.binary(max_size=5),
    "int32[]": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    "float64[2]": st.lists(st.floats(allow_nan=False), min_size=2, max_size=2),
    "int8[2,1]": st.lists(st.lists(st.integers(-128, 127), min_size=1, max_size=1), min_size=2, max_size=2),
}  # fmt: skip


@given(st.data())
def test_arrow_and_python_give_the_same_columns(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(sorted(ARROW)))
    values = data.draw(st.lists(st.none() | PYTHON[text], max_size=8))
    array = pa.array(values, ARROW[text])
    cut = data.draw(st.integers(0, len(values)))
    wanted, bad = from_values(values, typed(text), "x")
    assert not bad
    for part in (array, array.slice(cut), pa.chunked_array([array.slice(0, cut), array.slice(cut)])):
        column = from_arrow(part, typed(text), "x")
        same = listed(wanted) if len(part) == len(values) else listed(wanted)[cut:]
        assert listed(column) == same
        if isinstance(column, ListColumn):
            assert [type(v) for v in column.values] == [
                type(v) for v in wanted.values[len(values) - len(part) :]
            ] or text == "bytes"
        else:
            assert column.values.dtype == wanted.values.dtype and column.values.shape[1:] == wanted.values.shape[1:]


@pytest.mark.parametrize(
    ("array", "text", "bad"),
    [
        (pa.array([1, 300, None]), "uint8", [1]),
        (pa.array([1, -1], pa.int64()), "uint64", [1]),
        (pa.array([1.0, 1e300]), "float32", [1]),
        (pa.array([2**63], pa.uint64()), "int64", [0]),
        (pa.array([[1, 2], [1], None]), "int64[2]", [1]),
        (pa.array([[1, None], [1]]), "int64[]", [0]),
        (pa.array([Decimal("1.5"), Decimal("2.0")]), "int64", [0]),
        (pa.array([b"a", b"\xff", b"c"]).view(pa.string()), "str", [1]),
    ],
)  # fmt: skip
def test_a_value_of_arrow_that_does_not_fit_is_found(array: pa.Array, text: str, bad: Sequence[int]) -> None:
    with pytest.raises(DecodeError, match=text.replace("[", r"\[")):
        from_arrow(array, typed(text), "x")
    column, errors = arrow_column(array, typed(text), "x")
    assert list(errors) == bad and len(column) == len(array)


@pytest.mark.parametrize(
    ("array", "text", "better"),
    [
        (pa.array(["1"]), "int64", "str"),
        (pa.array([True]), "int64", "bool"),
        (pa.array([1]), "bool", "int64"),
        (pa.array([1.0]), "int32", "float64"),
        (pa.array([1]), "str", "int64"),
        (pa.array([1]), "int64[]", "int64"),
        (pa.array(["x"]), "bytes", "str"),
        (pa.array([datetime(2024, 1, 1)]), "float64", "timestamp[us]"),
    ],
)
def test_a_type_of_arrow_that_never_fits_is_refused_with_the_one_that_does(
    array: pa.Array, text: str, better: str
) -> None:
    with pytest.raises(UsageError) as caught:
        from_arrow(array, typed(text), "x")
    assert f"Declare it '{better}'" in str(caught.value)
    assert caught.value.where["field"] == "x"
    from_arrow(array, typed(better), "x")


def test_json_columns_of_a_database_are_parsed_when_they_are_decoded() -> None:
    column = from_arrow(pa.array(['{"a": 1}', None]), typed("json"), "x")
    assert listed(column) == [b'{"a": 1}', None]
    assert typed("json").spec("x").codec == "json"
    nested = from_arrow(pa.array([{"a": 1}]), typed("json"), "x")
    assert listed(nested) == [{"a": 1}]


def test_bytes_of_arrow_are_views_and_are_not_copied() -> None:
    array = pa.array([b"abc", None, b"", b"de"])
    column = from_arrow(array, typed("bytes"), "x")
    assert isinstance(column, ListColumn) and isinstance(column.values[0], memoryview)
    assert listed(column) == [b"abc", None, b"", b"de"]
    assert listed(from_arrow(pa.array([b"abc", b"def"], pa.binary(3)), typed("bytes"), "x")) == [b"abc", b"def"]


def test_dictionaries_and_extensions_are_seen_through() -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    assert listed(from_arrow(words, typed("str"), "x")) == ["a", "b", "a"]
    ident = pa.array([bytes(range(16))], pa.uuid())
    assert listed(from_arrow(ident, typed("str"), "x")) == ["00010203-0405-0607-0809-0a0b0c0d0e0f"]
    schema = pa.schema({"w": words.type, "u": pa.uuid(), "j": pa.json_(pa.string())})
    assert {name: str(kind) for name, kind in infer_arrow(schema).items()} == {"w": "str", "u": "str", "j": "json"}


SAMPLES: list[tuple[list[Any], str]] = [
    ([1, 2, None], "int64"),
    ([1, 2.5], "float64"),
    ([True, False], "bool"),
    ([True, 1], "json"),
    ([2**63], "json"),
    ([None, None], "json"),
    (["1", "2"], "str"),
    (["1", 2], "json"),
    ([[1], [1, 2]], "int64[]"),
    ([[1, 2], [3, 4]], "int64[]"),
    ([[1], [1.5], []], "float64[]"),
    ([[True], []], "bool[]"),
    ([[], []], "json"),
    ([[1, None]], "json"),
    ([[1, "a"]], "json"),
    ([[[1]]], "json"),
    ([[1], 1], "json"),
    ([{"a": 1}], "json"),
    ([b"x"], "bytes"),
    ([datetime(2024, 1, 1), date(2024, 1, 1)], "timestamp[us]"),
    ([Decimal("1.5")], "float64"),
    ([np.float32(1), 2], "float64"),
    ([np.arange(3)], "int64[]"),
]


@pytest.mark.parametrize(("values", "text"), SAMPLES)
def test_types_are_inferred_from_samples_whatever_their_order(values: list[Any], text: str) -> None:
    for order in (values, values[::-1]):
        assert str(infer({"x": value} for value in order)["x"]) == text
        column, bad = from_values(order, infer({"x": value} for value in order)["x"], "x")
        assert not bad and len(column) == len(values)


def test_all_fields_of_all_samples_are_found() -> None:
    assert [*infer([{"b": 1}, {}, {"a": None, "b": 2}, {"c": "x"}])] == ["b", "a", "c"]


def test_types_of_a_schema_are_inferred() -> None:
    schema = pa.schema({
        "i": pa.int16(), "f": pa.float32(), "b": pa.bool_(), "d": pa.decimal128(10, 2), "s": pa.large_string(),
        "y": pa.binary(3), "t": pa.timestamp("us", "UTC"), "n": pa.timestamp("ns"), "day": pa.date32(),
        "span": pa.duration("ms"), "l": pa.list_(pa.int32()), "m": pa.list_(pa.list_(pa.float32(), 4), 3),
        "o": pa.struct({"a": pa.int8()}), "z": pa.null(), "ll": pa.list_(pa.list_(pa.int8())),
        "w": pa.list_(pa.string()),
    })  # fmt: skip
    assert {name: str(kind) for name, kind in infer_arrow(schema).items()} == {
        "i": "int16", "f": "float32", "b": "bool", "d": "float64", "s": "str", "y": "bytes", "t": "timestamp[us]",
        "n": "timestamp[us]", "day": "timestamp[s]", "span": "int64", "l": "int32[]", "m": "float32[3,4]",
        "o": "json", "z": "json", "ll": "json", "w": "json",
    }  # fmt: skip


def test_every_inferred_type_takes_what_it_was_inferred_from() -> None:
    table = pa.table({
        "i": pa.array([1, None], pa.int16()), "d": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
        "n": pa.array([datetime(2024, 1, 1), None], pa.timestamp("ns")), "day": pa.array([date(2024, 1, 1), None]),
        "span": pa.array([timedelta(seconds=1), None]),
        "m": pa.array([[[1.0], [2.0]], None], pa.list_(pa.list_(pa.float32(), 1), 2)),
        "z": pa.nulls(2), "o": pa.array([{"a": 1}, None]), "w": pa.array([["a"], None]),
    })  # fmt: skip
    types = infer_arrow(table.schema)
    columns = {name: listed(from_arrow(table[name], types[name], name)) for name in table.column_names}
    assert all(values[1] is None for values in columns.values())
    assert columns["day"][0] == columns["n"][0] // 1_000_000 == 1704067200
    assert (columns["d"][0], columns["span"][0], columns["m"][0]) == (1.25, 1_000_000, [[1.0], [2.0]])
