"""Without a key, rows are streamed as the database gives them: each once, in bounded memory, and resumed where they
have an order."""

from __future__ import annotations

import functools
import json
import logging
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
import pytest
import torch
from torch.utils.data import DataLoader

from streamio import Fill, StreamLoader, UsageError
from streamio.errors import SampleError
from streamio.sources.sql.dataset import SqlDataset
from streamio.sources.sql.stream import SqlStream
from tests.sources.sql.databases import Made

IDS = [3 * i - 50 for i in range(300)]
PARTS = ["id < 100", "id BETWEEN 100 AND 299", "id >= 300 AND id < 800", "id >= 800"]
RESUMED: list[dict[str, Any]] = [
    {"table": "t", "order": "id"},
    {"table": "t", "order": ("s", "id"), "where": "id % 2 = 0"},
    {"query": "SELECT id, x, s FROM t WHERE s <> 'order by' ORDER BY x DESC"},
    {"query": "SELECT id, x, s FROM t ORDER BY id LIMIT 200"},
    {"table": "t", "order": "id", "partitions": PARTS},
]


def ids(batches: Iterable[Any]) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]


@pytest.fixture
def made() -> Iterator[Any]:
    """A loader of `SqlStream`, closed at the end."""
    loaders: list[StreamLoader] = []

    def make(
        database: Made, batch: int = 16, *, loader: dict[str, Any] | None = None, **options: Any
    ) -> StreamLoader:
        ds = SqlStream(database.source, batch, **options)
        loaders.append(StreamLoader(ds, **(loader or {"num_workers": 0})))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()
        loader.dataset.close()  # type: ignore[attr-defined]


def test_every_row_comes_once_in_each_epoch(database: Made, made: Any) -> None:
    database.numbers(IDS)
    loader = made(database, table="t")
    for _ in range(2):
        batches = list(loader)
        assert sorted(ids(batches)) == IDS
        assert all(batch["x"].tolist() == [i / 8 for i in batch["id"].tolist()] for batch in batches)
        assert all(batch["s"] == [f"s{i}" for i in batch["id"].tolist()] for batch in batches)
        assert [len(batch["id"]) for batch in batches] == [16] * 18 + [12]


@pytest.mark.parametrize("order", ["id", ("s", "id")], ids=str)
def test_rows_come_in_the_order_that_was_asked_for(database: Made, made: Any, order: Any) -> None:
    database.numbers(IDS[::-1])
    got = ids(made(database, table="t", order=order))
    assert got == (IDS if order == "id" else sorted(IDS, key=lambda i: f"s{i}".encode()))


@pytest.mark.parametrize("options", RESUMED, ids=str)
def test_a_run_goes_on_behind_the_last_row_on_other_workers(
    database: Made, made: Any, options: dict[str, Any]
) -> None:
    database.numbers(IDS)
    whole = ids(made(database, **options))
    first = made(database, **options)
    iterator = iter(first)
    came = ids(next(iterator) for _ in range(5))
    state = json.loads(json.dumps(first.state_dict()))
    del iterator
    second = made(database, 7, loader={"num_workers": 2, "context": "fork"}, **options)
    second.load_state_dict(state)
    rest = ids(second)
    assert sorted(came + rest) == sorted(whole)
    if "partitions" not in options:
        assert came + rest == whole
    assert sorted(ids(second)) == sorted(whole)


def test_rows_without_an_order_are_not_guessed_at_by_a_run_that_goes_on(database: Made, made: Any) -> None:
    database.numbers(IDS)
    first = made(database, table="t")
    next(iter(first))
    second = made(database, table="t")
    second.load_state_dict(first.state_dict())
    with pytest.raises(UsageError, match=r"no order.*order=\("):
        next(iter(second))


@pytest.mark.parametrize(
    "loader",
    [
        {"num_workers": 0},
        {"num_workers": 2, "transport": "thread"},
        {"num_workers": 2, "context": "fork"},
    ],
    ids=str,
)
def test_every_transport_gives_each_row_once(database: Made, made: Any, loader: dict[str, Any]) -> None:
    database.numbers(IDS)
    assert sorted(ids(made(database, table="t", partitions=PARTS, loader=loader))) == IDS


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_dataloader_reads_it_too(database: Made, workers: int) -> None:
    database.numbers(IDS)
    ds = SqlStream(database.source, 16, table="t", partitions=PARTS)
    context = "fork" if workers else None
    loader = DataLoader(ds, batch_size=None, num_workers=workers, multiprocessing_context=context)
    assert sorted(ids(loader)) == sorted(ids(loader)) == IDS


def test_ranks_make_as_many_batches_and_their_states_load_on_one(database: Made, made: Any) -> None:
    database.numbers(IDS)
    options: dict[str, Any] = {"table": "t", "order": "id", "partitions": PARTS}
    whole, states, came = [], [], []
    for rank in (0, 1):
        loader = made(database, rank=rank, world_size=2, **options)
        whole.append(list(loader))
        iterator = iter(loader)
        came += ids(next(iterator) for _ in range(3))
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert len(whole[0]) == len(whole[1])
    assert sorted(ids(whole[0] + whole[1])) == IDS
    one = made(database, 5, **options)
    one.load_state_dict(states)
    assert sorted(came + ids(one)) == IDS


def test_psycopg_streams_from_a_cursor_of_the_server(pg: Made, made: Any) -> None:
    pg.numbers(IDS)
    pg.source = functools.partial(psycopg.connect, pg.path)
    loader = made(pg, table="t", order="id", where="s LIKE 's%'", loader={"num_workers": 1, "context": "spawn"})
    iterator = iter(loader)
    came = ids(next(iterator) for _ in range(4))
    other = made(pg, table="t", order="id", where="s LIKE 's%'")
    other.load_state_dict(loader.state_dict())
    assert came + ids(other) == IDS


def test_partitions_that_overlap_or_leave_rows_out_are_refused_by_count(database: Made) -> None:
    database.numbers(IDS)
    with pytest.raises(UsageError, match="17 rows match several"):
        SqlStream(database.source, 16, table="t", partitions=["id <= 100", "id > 49"])
    with pytest.raises(UsageError, match=r"17 rows match none.*would not come"):
        SqlStream(database.source, 16, table="t", partitions=["id < 50", "id > 100"])
    for wrong in ("id < 5", [], ["id < 5", "id < 5"], [""]):
        with pytest.raises(UsageError, match="partitions="):
            SqlStream(database.source, 16, table="t", partitions=wrong)


def test_an_order_with_equal_keys_or_null_is_refused(database: Made, made: Any) -> None:
    database.run("CREATE TABLE t (id BIGINT, ts BIGINT)")
    database.run("INSERT INTO t VALUES (?, ?)", rows=[(i, i // 2 if i < 90 else i) for i in range(100)])
    with pytest.raises(UsageError, match=r"ts is not unique.*\('ts', …\)"):
        list(made(database, table="t", order="ts", types={"ts": "int64"}))
    assert ids(made(database, table="t", order=("ts", "id"))) == list(range(100))
    first = made(database, table="t", order="ts", where="id % 2 = 0 OR id < 5", on_error="skip")
    with pytest.raises(UsageError, match="ts is not unique"):
        list(first)
    database.run("UPDATE t SET ts = NULL WHERE id < 7")
    with pytest.raises(UsageError, match=r"7 NULL keys.*'ts'"):
        made(database, table="t", order=("id", "ts"))


def test_a_key_that_became_equal_to_the_last_one_is_no_place_to_go_on(sqlite: Made, made: Any) -> None:
    sqlite.run("CREATE TABLE t (id BIGINT)")
    sqlite.run("INSERT INTO t VALUES (?)", rows=[(i,) for i in range(100)])
    first = made(sqlite, table="t", order="id")
    next(iter(first))
    sqlite.run("INSERT INTO t VALUES (15)")
    second = made(sqlite, table="t", order="id")
    second.load_state_dict(first.state_dict())
    with pytest.raises(UsageError, match="id is not unique: several rows have 15"):
        list(second)


def test_keys_compare_as_the_database_sorts_them(database: Made, made: Any) -> None:
    keys = ["a", "B", "A", "b", "é", "Ä", "zz", "'; DROP TABLE t; --", "\\", "a'b", "%s", ":p1", "$1", "?"]
    collation = " COLLATE NOCASE" if database.kind in ("sqlite", "dbapi") else ""
    if collation:
        keys = [key for key in keys if key not in "AB"]
    database.run(f"CREATE TABLE t (id BIGINT, k VARCHAR(40){collation} NOT NULL)")
    database.run("INSERT INTO t VALUES (?, ?)", rows=list(enumerate(keys)))
    loader = made(database, 1, table="t", order="k")
    for count in range(0, len(keys) - 1, 3):
        first = made(database, 1, table="t", order="k")
        iterator = iter(first)
        came = ids(next(iterator) for _ in range(count + 1))
        loader.load_state_dict(first.state_dict())
        assert sorted(came + ids(loader)) == list(range(len(keys)))
        loader.set_epoch(0)


def test_moments_and_numbers_of_all_sizes_are_cursors(pg: Made, made: Any) -> None:
    pg.run(
        "CREATE TABLE t (id BIGINT, at TIMESTAMPTZ NOT NULL, n NUMERIC(30, 5) NOT NULL, u UUID NOT NULL, "
        "b BYTEA NOT NULL, d DATE NOT NULL, f FLOAT8 NOT NULL)"
    )
    pg.run(
        "INSERT INTO t SELECT i, '2026-01-01'::timestamptz + i * interval '1 us', i + 12345678901234567890.00001, "
        "md5(i::text)::uuid, decode(md5(i::text), 'hex'), '2000-01-01'::date + i, i / 3.0 "
        "FROM generate_series(0, 99) i"
    )
    for column in ("at", "n", "u", "b", "d", "f"):
        options: dict[str, Any] = {"table": "t", "columns": ["id"], "order": column}
        first = made(pg, **options)
        iterator = iter(first)
        came = ids(next(iterator) for _ in range(2))
        second = made(pg, **options)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert came + ids(second) == [row[0] for row in pg.run(f"SELECT id FROM t ORDER BY {column}")]


def test_null_does_not_change_the_type_of_a_column_nor_a_late_first_value(database: Made, made: Any) -> None:
    big = 2**53 + 1
    count = 70_000 if database.kind == "sqlite" else 3000
    database.run("CREATE TABLE t (id BIGINT, v BIGINT, w VARCHAR(20), x DOUBLE PRECISION)")
    source = {"sqlite": f"(WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {count - 1}) "
              "SELECT i FROM n)"}  # fmt: skip
    series = {
        "postgresql": f"generate_series(0, {count - 1}) AS n(i)", "duckdb": f"range({count}) AS n(i)"
    }.get(database.kind, source["sqlite"])  # fmt: skip
    database.run(f"INSERT INTO t (id) SELECT i FROM {series}")
    database.run(f"INSERT INTO t VALUES ({count}, {big}, 'w', 1.5)")
    types = {"v": "int64", "w": "str", "x": "float64"} if database.kind == "dbapi" else {}
    missing = {name: Fill(value) for name, value in (("v", -1), ("w", ""), ("x", 0.0))}
    batches = list(made(database, 1000, table="t", order="id", types=types, missing=missing))
    assert {(batch["v"].dtype, batch["x"].dtype) for batch in batches} == {(torch.int64, torch.float64)}
    assert (batches[-1]["v"][-1], batches[-1]["w"][-1], batches[-1]["x"][-1]) == (big, "w", 1.5)
    assert sum(batch["v_filled"].sum() for batch in batches) == count


def test_sqlite_says_which_column_holds_several_types(sqlite: Made, made: Any) -> None:
    sqlite.run("CREATE TABLE t (id INTEGER PRIMARY KEY, m)")
    sqlite.run("INSERT INTO t VALUES (?, ?)", rows=[(i, i if i < 70_000 else i + 0.5) for i in range(70_001)])
    with pytest.raises(UsageError, match=r"field m,.*holds values of several types.*CAST\(m AS REAL\)"):
        list(made(sqlite, 5000, table="t"))
    for options in ({"types": {"m": "float64"}}, {"columns": {"id": "id", "m": "CAST(m AS REAL)"}}):
        last = list(made(sqlite, 5000, table="t", **options))[-1]
        assert last["m"][-1] == 70_000.5


def test_values_that_do_not_fit_are_bad_rows(sqlite: Made, made: Any) -> None:
    sqlite.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v INT)")
    sqlite.run("INSERT INTO t VALUES (?, ?)", rows=[(i, "seven" if i == 7 else i) for i in range(2000)])
    options: dict[str, Any] = {"table": "t", "order": "id"}
    with pytest.raises(SampleError, match="field v"):
        list(made(sqlite, **options))
    loader = made(sqlite, on_error="skip", **options)
    assert ids(loader) == [i for i in range(2000) if i != 7]


def test_only_the_fields_that_are_asked_for_are_read(database: Made, made: Any) -> None:
    database.numbers(IDS)
    loader = made(database, table="t", order="id", fields=("x", "__key__"))
    batches = list(loader)
    assert [x for batch, _ in batches for x in batch.tolist()] == [i / 8 for i in IDS]
    assert batches[0][1][0] == f"t:{IDS[0]}"
    assert list(loader.dataset.source.reading.columns) == ["x"]


def test_partitions_are_read_in_one_snapshot_while_others_write(pg: Made, made: Any) -> None:
    pg.numbers(range(3000))
    parts = ["x < 100", "x >= 100 AND x < 200", "x >= 200"]
    loader = made(pg, 32, table="t", partitions=parts, loader={"num_workers": 2, "context": "fork"})
    iterator = iter(loader)
    came = ids([next(iterator)])
    pg.run("UPDATE t SET x = 999 - x", "DELETE FROM t WHERE id % 3 = 0", "INSERT INTO t VALUES (5000, 1, 's')")
    assert sorted(came + ids(iterator)) == list(range(3000))
    held = "state LIKE 'idle in transaction%' AND datname = current_database()"
    assert pg.run(f"SELECT COUNT(*) FROM pg_stat_activity WHERE {held}") == [(0,)]
    assert sorted(ids(loader)) == [i for i in range(3000) if i % 3] + [5000]


def test_wrong_options_are_refused_when_it_is_made(database: Made) -> None:
    database.numbers(IDS[:5])
    for options, said in [
        ({}, "neither table= nor query="),
        ({"table": "t", "order": "y"}, "order= names the column 'y'.*id, x, s"),
        ({"table": "t", "order": ()}, "order="),
        ({"table": "t", "lag": 1.0}, "without follow=True"),
        ({"table": "t", "key": "id"}, "key= without follow=True"),
        ({"table": "t", "columns": ["nope"]}, "columns= names the column 'nope'"),
        ({"table": "nowhere"}, "nowhere"),
        ({"query": "SELEC 1"}, "query: .*1.*Correct table=, query="),
    ]:
        with pytest.raises(UsageError, match=said):
            SqlStream(database.source, 16, **options)
    if database.kind != "postgresql":
        with pytest.raises(UsageError, match="snapshot=True"):
            SqlStream(database.source, 16, table="t", snapshot=True)


def test_a_state_of_another_query_is_refused(sqlite: Made, made: Any) -> None:
    sqlite.numbers(IDS)
    first = made(sqlite, table="t", order="id")
    next(iter(first))
    for other in ({"where": "id > 0"}, {"order": ("x", "id")}, {"columns": ["id"]}, {"partitions": PARTS}):
        second = made(sqlite, **{"table": "t", "order": "id", **other})
        with pytest.raises(UsageError, match="the state was saved with data="):
            second.load_state_dict(first.state_dict())


def test_sql_dataset_streams_where_there_is_no_key(sqlite: Made) -> None:
    sqlite.numbers(IDS)
    for options in ({"table": "t"}, {"table": "t", "key": "id", "follow": True}):
        assert isinstance(SqlDataset(sqlite.source, 16, **options), SqlStream)
    for name, value in {"shuffle": True, "page_rows": 100, "cache": "memory"}.items():
        with pytest.raises(UsageError, match=f"{name}= without key="):
            SqlDataset(sqlite.source, 16, table="t", **{name: value})  # type: ignore[arg-type]


def test_it_pickles_and_changes_options(database: Made) -> None:
    database.numbers(IDS)
    ds = pickle.loads(pickle.dumps(SqlStream(database.source, 16, table="t", order="id")))
    assert ids(ds) == IDS
    assert [len(batch["id"]) for batch in ds.with_(batch_size=100)] == [100, 100, 100]


def test_no_password_in_errors_states_logs_or_reprs(pg: Made, made: Any, caplog: pytest.LogCaptureFixture) -> None:
    pg.numbers(IDS)
    secret = pg.source.partition("://")[2].partition("@")[0].partition(":")[2]
    caplog.set_level(logging.DEBUG)
    loader = made(pg, table="t", order="id", partitions=PARTS, retry_for=0.1)
    next(iter(loader))
    said = [repr(loader.dataset), repr(loader.dataset.source), json.dumps(loader.state_dict())]
    said += [pickle.dumps(loader.dataset, 0).decode("latin-1"), repr(vars(loader.dataset))]
    pg.run("DROP TABLE t")
    for wrong in (lambda: list(loader), lambda: SqlStream(pg.source.replace("@", "x@"), 4, table="t")):
        with pytest.raises(Exception, match="postgresql://") as caught:
            wrong()
        said += [str(caught.value), repr(caught.value), str(caught.getrepr(chain=True).reprcrash)]
    assert secret and not any(secret in text for text in (*said, caplog.text))
