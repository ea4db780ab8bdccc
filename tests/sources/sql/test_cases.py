"""What went wrong with other readers of databases, by the number of the case."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from streamio import Fill, UsageError
from streamio.errors import SampleError, StreamioError
from streamio.sources.sql.address import as_target
from streamio.sources.sql.dataset import SqlDataset
from tests.sources.sql.databases import Made

LARGE = 9007199254740993  # 2^53 + 1: no float64


def ids(batches: Iterable[Any], field: str = "id") -> list[int]:
    return [i for batch in batches for i in batch[field].tolist()]


def test_db_01_integers_beside_null_stay_integers_in_every_batch(database: Made) -> None:
    values = ", ".join(f"({i}, {v})" for i, v in enumerate([LARGE, "NULL", 5, LARGE + 2]))
    database.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v BIGINT)", f"INSERT INTO t VALUES {values}")
    with SqlDataset(database.source, 2, table="t", key="id", missing={"v": Fill(0)}) as ds:
        first, second = ds
    assert first["v"].dtype == second["v"].dtype == torch.int64
    assert first["v"].tolist() == [LARGE, 0] and second["v"].tolist() == [5, LARGE + 2]
    assert first["v_filled"].tolist() == [False, True] and second["v_filled"].tolist() == [False, False]
    with SqlDataset(database.source, 1, table="t", key="id", missing={"v": Fill(7)}) as ds:
        assert [batch["v"].dtype for batch in ds] == [torch.int64] * 4  # also where all of a batch is NULL
        assert ids(ds, "v") == [LARGE, 7, 5, LARGE + 2]


def test_db_02_null_keys_are_counted_and_refused(database: Made) -> None:
    values = ", ".join(f"({i}, {'NULL' if i % 15 == 0 else i})" for i in range(100))
    database.run("CREATE TABLE t (id INTEGER, k INTEGER)", f"INSERT INTO t VALUES {values}")
    with pytest.raises(UsageError, match=r"table t: 7 NULL keys"):
        SqlDataset(database.source, 8, table="t", key="k", rank=0, world_size=2)
    read: list[int] = []
    for rank in (0, 1):
        with SqlDataset(
            database.source, 8, table="t", key="k", where="k IS NOT NULL", rank=rank, world_size=2
        ) as ds:
            read += ids(DataLoader(ds, batch_size=None, num_workers=2))
    assert sorted(read) == [i for i in range(100) if i % 15]


def test_db_04_a_key_that_is_not_unique_is_refused(database: Made) -> None:
    database.numbers(range(10))
    database.run("ALTER TABLE t ADD COLUMN ts TIMESTAMP", "UPDATE t SET ts = '2024-05-17 12:00:00'")
    with pytest.raises(UsageError, match=r"the key ts is not unique: 10 rows have .*2024"):
        SqlDataset(database.source, 3, table="t", key="ts")
    with SqlDataset(database.source, 3, table="t", key=("ts", "id"), columns=["id"]) as ds:
        assert ids(ds) == list(range(10))


WORDS = [*"aAbBäÄzZéeÉEñ𝒳ﬃ'", '"', "", " ", "a b", "a-b", "ab"]


COLLATIONS = {"postgresql": ["", '"C"'], "sqlite": ["", "NOCASE"], "duckdb": ["", "NOCASE"], "dbapi": ["", "RTRIM"]}


def test_db_04_text_keys_page_in_the_order_in_which_they_compare(database: Made) -> None:
    collations = list(COLLATIONS[database.kind])
    if database.kind == "postgresql":  # those that this machine has
        there = "SELECT collname FROM pg_collation WHERE collprovider IN ('b', 'c') AND collencoding IN (-1, 6)"
        collations += [f'"{name}"' for (name,) in database.run(there)[:2]]
    for number, collation in enumerate(collations):
        words = [word for word in WORDS if collation != "NOCASE" or word == word.lower()]
        words = [word for word in words if collation != "RTRIM" or word == word.rstrip()]
        kind = "VARCHAR" + (f" COLLATE {collation}" if collation else "")
        values = ", ".join("('" + word.replace("'", "''") + f"', {i})" for i, word in enumerate(words))
        table = f"t{number}"
        database.run(f"CREATE TABLE {table} (k {kind} PRIMARY KEY, n INTEGER)")
        database.run(f"INSERT INTO {table} VALUES {values}")
        order = [n for (n,) in database.run(f"SELECT n FROM {table} ORDER BY k")]
        for shuffle in (False, True):
            with SqlDataset(database.source, 3, table=table, key="k", shuffle=shuffle, page_rows=4) as ds:
                batches = list(ds)
            found = ids(batches, "n")
            assert sorted(found) == list(range(len(words))) and (shuffle or found == order), collation
            assert [words[n] for n in found] == [k for batch in batches for k in batch["k"]]


def test_db_04_text_that_only_a_collation_takes_to_be_one_is_no_key(sqlite: Made) -> None:
    sqlite.run("CREATE TABLE t (k TEXT COLLATE NOCASE, n INTEGER)")
    sqlite.run("INSERT INTO t VALUES ('a', 1), ('A', 2), ('b', 3)")
    sqlite.run("CREATE UNIQUE INDEX i ON t (k COLLATE BINARY)")
    with pytest.raises(UsageError, match="not unique: 2 rows"):
        SqlDataset(sqlite.source, 2, table="t", key="k")


def change(database: Made) -> None:
    """Without a row that was seen after ten, and one that was not; with one between, and one behind."""
    database.run("DELETE FROM t WHERE id IN (6, 44)", "INSERT INTO t VALUES (47, 0.0, 'new'), (1000, 0.0, 'new')")


def test_db_05_in_a_snapshot_an_epoch_has_exactly_the_old_rows(pg: Made) -> None:
    rows = list(range(2, 62, 2))
    pg.numbers(rows)
    with SqlDataset(pg.source, 5, table="t", key="id") as ds:
        steps = iter(ds)
        seen = [next(steps), next(steps)]
        change(pg)
        pg.run("UPDATE t SET s = 'changed'")
        batches = [*seen, *steps]
        assert ids(batches) == rows and len(rows) == 30
        assert all(s == f"s{i}" for batch in batches for i, s in zip(batch["id"].tolist(), batch["s"], strict=True))
        assert ids(ds) == rows  # the next epoch too
        assert (ds.stats().vanished, ds.stats().appeared) == (0, 0)
    with SqlDataset(pg.source, 5, table="t", key="id") as ds:
        assert 1000 in ids(ds)


@pytest.mark.parametrize("shuffle", [False, True])
def test_db_05_without_one_untouched_rows_come_once_and_others_are_counted(sqlite: Made, shuffle: bool) -> None:
    rows = list(range(2, 62, 2))
    sqlite.numbers(rows)
    with SqlDataset(sqlite.source, 5, table="t", key="id", on_error="skip", shuffle=shuffle) as ds:
        steps = iter(ds)
        seen = [next(steps), next(steps)]
        change(sqlite)
        found = ids([*seen, *steps])
        assert len(found) == len(set(found)) and set(found) >= set(rows) - {6, 44} and set(found) <= set(rows)
        gone = len(rows) - len(found)
        assert ds.stats().vanished == ds.stats().skipped == gone > 0
        assert shuffle or ds.stats().appeared == 1  # the one between; the one behind is not seen


def test_db_05_a_row_that_is_gone_is_an_error_by_default(sqlite: Made) -> None:
    sqlite.numbers(range(30))
    with SqlDataset(sqlite.source, 5, table="t", key="id") as ds:
        sqlite.run("DELETE FROM t WHERE id = 12")
        with pytest.raises(SampleError, match=r"t, row 12 \('12'\).*the row was deleted"):
            list(ds)
        assert ds.stats().vanished == 1


_WRITER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], timeout=60)
print("up", flush=True)
for n in range(1_000_000):
    connection.execute("INSERT INTO other VALUES (?)", (n,))
    connection.execute("UPDATE t SET x = ? WHERE id = ?", (float(n), n % 200))
    connection.commit()
    time.sleep(0.002)
"""


def test_db_08_sqlite_is_read_by_forked_workers_while_another_process_writes(sqlite: Made) -> None:
    sqlite.numbers(range(200))
    sqlite.run("CREATE TABLE other (n INTEGER)")
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, sqlite.path], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"up\n"
        with SqlDataset(sqlite.source, 8, table="t", key="id", shuffle=True) as ds:
            next(iter(ds))
            for _ in range(5):
                assert sorted(ids(DataLoader(ds, batch_size=None, num_workers=4))) == list(range(200))
                assert sorted(ids(ds)) == list(range(200))
    finally:
        writer.kill()
        writer.communicate()
    assert sqlite.run("PRAGMA integrity_check") == [("ok",)]


SECRET = "SECRET3-x/y"
IN_ADDRESS = SECRET.replace("/", "%2F")


def texts_of(error: BaseException) -> str:
    """All that somebody may print of an error."""
    parts = (error, error.__context__, error.__cause__)
    return "".join(traceback.format_exception(error)) + "".join(map(repr, parts))


def test_net_06_a_password_is_in_no_error_log_state_repr_or_pickle(
    pg: Made, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    pg.numbers(range(20))
    pg.run(f"CREATE ROLE reader LOGIN PASSWORD '{SECRET}'", "GRANT SELECT ON t TO reader")
    server, _, name = pg.path.partition("@")[2].partition("/")
    good = f"postgresql://reader:{IN_ADDRESS}@{server}/{name}"
    shown = []
    for bad, options in {
        good.replace("reader", "nobody"): {},
        good.replace(server, "127.0.0.1:1"): {},
        good + "?nonsense=1": {},
        good + f"?password={IN_ADDRESS}": {"where": "nonsense = 1"},
        good: {"table": "nonsense"},
        good.replace("%2F", "/"): {},  # a slash that should have been encoded
        good.replace("postgresql", "oracle"): {},
        f"sqlite://u:{IN_ADDRESS}@/nowhere.db": {},
    }.items():
        with pytest.raises(StreamioError) as failed:
            SqlDataset(bad, 4, **{"table": "t", "key": "id", "retry_for": 0, **options})
        shown.append(texts_of(failed.value))
        if bad.startswith("postgresql"):
            assert name in str(failed.value)
    columns = {"id": "id", "inverse": "1 / (x + 1)"}
    with SqlDataset(good, 4, table="t", key="id", columns=columns, snapshot=False) as failing:
        pg.run("UPDATE t SET x = -1 WHERE id = 7")
        for workers in (0, 1):
            with pytest.raises(StreamioError, match="division by zero") as failed:
                list(DataLoader(failing, batch_size=None, num_workers=workers))
            shown.append(texts_of(failed.value))
    ds = SqlDataset(good, 4, table="t", key="id", retry_for=0.2)
    shown += [repr(ds), repr(ds.table), json.dumps(ds.state_at(2)), str(pickle.dumps(ds)), repr(ds.table.database)]
    assert server in repr(ds)
    pg.run("ALTER ROLE reader PASSWORD 'other'")
    pg.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'")
    with pytest.raises(StreamioError, match=r"no connection: .*authentication failed") as failed:
        list(ds)
    shown += [texts_of(failed.value), caplog.text, "".join(map(str, capfd.readouterr()))]
    assert "trying again for 0.2 s" in caplog.text
    ds.close()
    assert [text for text in shown if "SECRET3" in text] == []


def test_net_06_nor_is_one_that_a_function_holds() -> None:
    def fail(host: str, password: str) -> None:
        raise OSError(f"cannot log in at {host} with {password}")

    with pytest.raises(StreamioError, match=r"fail\(\): no connection: cannot log in at db with \*\*\*") as failed:
        SqlDataset(partial(fail, "db", password=SECRET), 4, table="t", key="id")
    assert "SECRET3" not in texts_of(failed.value)
    target = as_target(partial(print, "db", password=SECRET))
    sent = pickle.dumps(target)
    assert b"SECRET3" not in sent and pickle.loads(sent).value.keywords == {"password": SECRET}
