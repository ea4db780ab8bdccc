"""What comes out as which tensor, and what is refused with a way out: the table in docs/sources.md."""

from __future__ import annotations

import io
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from streamio import Fill, UsageError
from streamio.errors import DecodeError, StreamioError
from streamio.image import CenterCrop
from streamio.sources.sql.dataset import SqlDataset
from tests.sources.sql.databases import Made


def microseconds(moment: datetime) -> int:
    return round(moment.replace(tzinfo=UTC).timestamp() * 1e6)


def first(database: Made, **options: Any) -> dict[str, Any]:
    """The first batch of a table."""
    with SqlDataset(database.source, 4, **{"table": "t", "key": "id", **options}) as ds:
        return dict(next(iter(ds)))


NOON = datetime(2024, 5, 17, 12, 30, 15, 250_000)
POSTGRES: dict[str, tuple[str, Any, torch.dtype | None]] = {
    "i2": ("-7::smallint", -7, torch.int16),
    "i4": ("70000::integer", 70000, torch.int32),
    "i8": ("9007199254740993::bigint", 9007199254740993, torch.int64),
    "f4": ("0.5::real", 0.5, torch.float32),
    "f8": ("0.1::double precision", 0.1, torch.float64),
    "bo": ("true", True, torch.bool),
    "num": ("12.75::numeric(8,2)", 12.75, torch.float64),
    "nan": ("'NaN'::numeric", math.nan, torch.float64),
    "ts": ("'2024-05-17 12:30:15.25'::timestamp", microseconds(NOON), torch.int64),
    "tz": ("'2024-05-17 14:30:15.25+02'::timestamptz", microseconds(NOON), torch.int64),
    "d": ("'2024-05-17'::date", microseconds(datetime(2024, 5, 17)) // 10**6, torch.int64),
    "tm": ("'12:30:15.25'::time", (12 * 3600 + 30 * 60 + 15) * 10**6 + 250_000, torch.int64),
    "u": ("'0f8fad5b-d9cb-469f-a165-70867728950e'::uuid", "0f8fad5b-d9cb-469f-a165-70867728950e", None),
    "s": ("'größer'::text", "größer", None),
    "vc": ("'x'::varchar(9)", "x", None),
    "b": ("'\\x00ff'::bytea", b"\x00\xff", None),
    "ar": ("ARRAY[1, 2, 3]", [1, 2, 3], torch.int32),
    "fa": ("ARRAY[0.5, 1.5]::real[]", [0.5, 1.5], torch.float32),
    "ta": ("ARRAY['a', 'b']", ["a", "b"], None),
    "j": ("""'{"a": [1, null]}'::json""", {"a": [1, None]}, None),
    "jb": ("""'[1.5, "x"]'::jsonb""", [1.5, "x"], None),
}
DUCK: dict[str, tuple[str, Any, torch.dtype | None]] = {
    "i1": ("-7::TINYINT", -7, torch.int8),
    "u1": ("200::UTINYINT", 200, torch.uint8),
    "i8": ("9007199254740993::BIGINT", 9007199254740993, torch.int64),
    "h": ("12::HUGEINT", 12.0, torch.float64),
    "f4": ("0.5::FLOAT", 0.5, torch.float32),
    "bo": ("true", True, torch.bool),
    "num": ("12.75::DECIMAL(8, 2)", 12.75, torch.float64),
    "ts": ("TIMESTAMP '2024-05-17 12:30:15.25'", microseconds(NOON), torch.int64),
    "tz": ("TIMESTAMPTZ '2024-05-17 14:30:15.25+02'", microseconds(NOON), torch.int64),
    "d": ("DATE '2024-05-17'", microseconds(datetime(2024, 5, 17)) // 10**6, torch.int64),
    "tm": ("TIME '12:30:15'", (12 * 3600 + 30 * 60 + 15) * 10**6, torch.int64),
    "u": ("UUID '0f8fad5b-d9cb-469f-a165-70867728950e'", "0f8fad5b-d9cb-469f-a165-70867728950e", None),
    "en": ("'x'::ENUM('x', 'y')", "x", None),
    "b": ("'\\x00\\xFF'::BLOB", b"\x00\xff", None),
    "ar": ("[1, 2, 3]", [1, 2, 3], torch.int32),
    "fx": ("[0.5, 1.5]::FLOAT[2]", [0.5, 1.5], torch.float32),
}
SQLITE: dict[str, tuple[str, Any, torch.dtype | None]] = {
    "i": ("9007199254740993", 9007199254740993, torch.int64),
    "f": ("0.1", 0.1, torch.float64),
    "s": ("'größer'", "größer", None),
    "b": ("x'00ff'", b"\x00\xff", None),
}


def check(database: Made, kinds: dict[str, tuple[str, Any, torch.dtype | None]]) -> None:
    columns = ", ".join(f"{sql} AS {name}" for name, (sql, _, _) in kinds.items())
    database.run(f"CREATE TABLE t AS SELECT 1 AS id, {columns}")
    batch = first(database, columns=list(kinds))
    for name, (_, value, dtype) in kinds.items():
        found = batch[name]
        if dtype is None:
            assert (type(found), found) == (list, [value]), name
        else:
            assert found.dtype == dtype, name
            assert np.array_equal(found[0].numpy(), np.array(value), equal_nan=dtype.is_floating_point), name


def test_types_of_postgresql(pg: Made) -> None:
    check(pg, POSTGRES)


def test_types_of_duckdb(duck: Made) -> None:
    check(duck, DUCK)


def test_types_of_sqlite(sqlite: Made) -> None:
    check(sqlite, SQLITE)


@pytest.mark.parametrize(("sql", "word"), [
    ("'1 day'::interval", "interval"), ("'10.0.0.1'::inet", "inet"), ("'(1,2)'::point", "point"),
    ("5::money", "money"), ("'101'::bit(3)", "bit"), ("'12:00+02'::timetz", "timetz"),
])  # fmt: skip
def test_a_type_that_no_tensor_has_names_column_and_way_out(pg: Made, sql: str, word: str) -> None:
    pg.run(f"CREATE TABLE t AS SELECT 1 AS id, {sql} AS odd")
    way_out = r'columns=\{"odd": "CAST\(odd AS TEXT\)"'
    with pytest.raises(UsageError, match=f"field odd, table t: holds {word}, .*{way_out}"):
        first(pg)
    assert first(pg, columns={"odd": "CAST(odd AS TEXT)"})["odd"][0]
    assert first(pg, columns=["id"])["id"].tolist() == [1]


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "date"])
def test_infinity_is_no_moment(pg: Made, kind: str) -> None:
    pg.run(f"CREATE TABLE t AS SELECT 1 AS id, '-infinity'::{kind} AS m UNION ALL SELECT 2, '2024-05-17'")
    pg.run("INSERT INTO t VALUES (3, 'infinity'), (4, NULL)")
    with pytest.raises(DecodeError, match=r"row 0 \('1'\), field m: infinity is no moment"):
        first(pg, missing={"m": "skip"})
    assert len(first(pg, where="isfinite(m)")["m"]) == 1
    assert first(pg, missing={"m": Fill(0)}, on_error="skip")["id"].tolist() == [2, 4]


def test_arrays_of_two_dimensions_are_refused_and_read_as_json(pg: Made) -> None:
    pg.run("CREATE TABLE t AS SELECT 1 AS id, ARRAY[[1, 2], [3, 4]] AS m")
    with pytest.raises(UsageError, match=r'field m.*2 dimensions.*"to_json\(m\)"'):
        first(pg)
    assert first(pg, columns={"m": "to_json(m)"})["m"] == [[[1, 2], [3, 4]]]


def test_arrays_of_any_length_are_padded_or_declared_of_one(database: Made) -> None:
    if database.kind not in ("postgresql", "duckdb"):
        return
    made = "ARRAY[1, 2]" if database.kind == "postgresql" else "[1, 2]"
    more = "ARRAY[3]" if database.kind == "postgresql" else "[3]"
    database.run(f"CREATE TABLE t AS SELECT 1 AS id, {made} AS a UNION ALL SELECT 2, {more}")
    assert [a.tolist() for a in first(database, collate={"a": "list"})["a"]] == [[1, 2], [3]]
    assert first(database, where="id = 1", types={"a": "float32[2]"})["a"].tolist() == [[1.0, 2.0]]
    with pytest.raises(DecodeError, match=r"row 1 \('2'\), field a"):
        first(database, types={"a": "int32[2]"})


def test_decimals_are_floats_while_these_keep_all_digits(database: Made) -> None:
    if database.kind not in ("postgresql", "duckdb"):
        return
    database.run(
        "CREATE TABLE t (id INTEGER, n DECIMAL(25, 2))",
        "INSERT INTO t VALUES (1, 123456789012.75), (2, -0.10), (3, 12345678901234567.00)",
    )
    assert first(database, where="id < 3")["n"].tolist() == [123456789012.75, -0.1]
    with pytest.raises(DecodeError, match=r"t, row 2 \('3'\), field n: 12345678901234567.00 has more digits"):
        first(database)
    assert first(database, types={"n": "float64"})["n"][2] == 12345678901234567.0
    assert first(database, types={"n": "str"})["n"] == ["123456789012.75", "-0.10", "12345678901234567.00"]
    whole = first(database, types={"n": "int64"}, where="id = 3")["n"]
    assert whole.dtype == torch.int64 and whole.tolist() == [12345678901234567]
    with pytest.raises(DecodeError, match=r"field n: 123456789012.75 is no int64"):
        first(database, types={"n": "int64"})
    skipped = first(database, types={"n": "int64"}, on_error="skip")
    assert skipped["n"].tolist() == [12345678901234567] and skipped["id"].tolist() == [3]


def picture(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20 + shade, 30), (shade, shade, shade)).save(file, "PNG")
    return file.getvalue()


def test_pictures_in_a_table_decode_as_files_do(database: Made) -> None:
    kind = {"postgresql": "BYTEA", "duckdb": "BLOB"}.get(database.kind, "BLOB")
    database.run(
        f"CREATE TABLE t (id INTEGER PRIMARY KEY, png {kind}, photo {kind})", "INSERT INTO t VALUES (?, ?, ?)",
        rows=[(i, picture(i), picture(10 * i)) for i in range(4)],
    )  # fmt: skip
    batch = first(database, decode=CenterCrop(8), types={"photo": "png"})
    assert batch["png"].shape == batch["photo"].shape == (4, 8, 8, 3)
    assert batch["png"][:, 0, 0, 0].tolist() == [0, 1, 2, 3] and batch["photo"][2, 0, 0].tolist() == [20] * 3
    assert first(database, columns=["photo"])["photo"][1] == picture(
        10
    )  # bytes, unless somebody says what they are
    database.run("UPDATE t SET png = photo WHERE id = 0", "UPDATE t SET photo = NULL WHERE id = 2")
    with pytest.raises(UsageError, match=r"field photo.*1 of 4 rows have NULL"):
        first(database, decode=CenterCrop(8), types={"photo": "png"})
    left = first(database, decode=CenterCrop(8), types={"photo": "png"}, missing={"photo": "skip"})
    assert left["id"].tolist() == [0, 1, 3]


def test_json_in_text_is_parsed_where_it_is_declared_or_called_so(sqlite: Made) -> None:
    sqlite.run("CREATE TABLE t AS SELECT 1 AS id, '[1]' AS meta, '{\"a\": 2}' AS json")
    batch = first(sqlite)
    assert batch["meta"] == ["[1]"] and batch["json"] == [{"a": 2}]
    assert first(sqlite, types={"meta": "json", "json": "str"})["meta"] == [[1]]


def test_sqlite_columns_of_several_types_are_refused_with_counts(sqlite: Made) -> None:
    sqlite.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v)", "INSERT INTO t VALUES (1, 5), (2, 'five'), (3, 7)")
    with pytest.raises(UsageError, match=r"field v.*several types: 2 integer, 1 text; 'five' is text"):
        first(sqlite)
    assert first(sqlite, columns={"v": "CAST(v AS TEXT)"})["v"] == ["5", "five", "7"]
    sqlite.run("UPDATE t SET v = 0.5 WHERE id = 2")
    assert first(sqlite)["v"].tolist() == [5.0, 0.5, 7.0]
    sqlite.run("UPDATE t SET v = 9007199254740993 WHERE id = 3")
    with pytest.raises(UsageError, match="several types"):  # neither an int64 nor a float64 holds all of them
        first(sqlite)


def test_a_value_of_another_type_that_comes_later_names_its_row(sqlite: Made) -> None:
    sqlite.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v)", "INSERT INTO t VALUES (1, 5), (2, 6), (3, 7)")
    with SqlDataset(sqlite.source, 4, table="t", key="id") as ds:
        sqlite.run("UPDATE t SET v = 'five' WHERE id = 2")
        with pytest.raises(
            StreamioError, match=r"t, row 1 \('2'\), field v: 'five' is not of the type of its column"
        ):
            list(ds)
        assert ds.with_(on_error="skip").table is ds.table
        (batch,) = ds.with_(on_error="skip")
        assert batch["v"].tolist() == [5, 7] and batch["v"].dtype == torch.int64


def test_0_and_1_are_bools_where_they_are_declared_so(sqlite: Made) -> None:
    sqlite.run("CREATE TABLE t AS SELECT 1 AS id, 1 AS b UNION ALL SELECT 2, 0 UNION ALL SELECT 3, 2")
    assert first(sqlite, types={"b": "bool"}, on_error="skip")["b"].tolist() == [True, False]
    with pytest.raises(DecodeError, match="field b: 2 is no bool"):
        first(sqlite, types={"b": "bool"})


def test_a_column_of_nothing_but_null_is_declared(sqlite: Made) -> None:
    sqlite.run("CREATE TABLE t AS SELECT 1 AS id, NULL AS v")
    with pytest.raises(UsageError, match=r"field v.*nothing but NULL"):
        first(sqlite, missing={"v": Fill(3)})
    assert first(sqlite, types={"v": "int32"}, missing={"v": Fill(3)})["v"].tolist() == [3]


@pytest.mark.parametrize("options", [
    {"types": {"nope": "int64"}}, {"types": {"x": "int65"}}, {"types": {"s": "int64"}}, {"columns": ["nope"]},
    {"columns": []}, {"columns": "s"}, {"columns": {"__key__": "s"}}, {"key": "nope"}, {"key": ()},
    {"key": ("id", "id")}, {"where": ""}, {"where": "nope = 1"}, {"table": None}, {"query": "SELECT 1"},
    {"table": "nope"}, {"page_rows": 0}, {"snapshot": True}, {"retry_for": -1}, {"where": "1 = 0"},
    {"batch_size": 0}, {"tail": "odd"},
])  # fmt: skip
def test_what_cannot_work_is_refused_at_once(sqlite: Made, options: dict[str, Any]) -> None:
    sqlite.numbers(range(5))
    with pytest.raises(UsageError):
        SqlDataset(sqlite.source, options.pop("batch_size", 4), **{"table": "t", "key": "id", **options})


@pytest.mark.parametrize(
    "source", ["sqlite://:memory:", "duckdb://", "mysql://host/db", "nothing", "sqlite:///nowhere.db", 5]
)
def test_an_address_that_cannot_be_is_refused(source: Any) -> None:
    with pytest.raises(UsageError):
        SqlDataset(source, 4, table="t", key="id")
