"""A table with a key is read as a shard set is: each row once, in one order, on any topology, after a resume."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch.utils.data import DataLoader

from streamio import Draw, Fill, Mixture, ShardDataset, StreamLoader, UsageError
from streamio.sources.sql.dataset import SqlDataset
from tests.sources.sql.databases import Made

IDS = [3 * i - 50 for i in range(300)] + [10**12 + i * i for i in range(50)]


def ids(batches: Iterable[Any]) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]


def opened(database: Made, batch: int = 16, **options: Any) -> SqlDataset:
    return SqlDataset(database.source, batch, **{"table": "t", "key": "id", "page_rows": 32, **options})


def test_rows_come_in_the_order_of_the_key_with_all_their_values(database: Made) -> None:
    database.numbers(IDS[::-1])
    with opened(database) as ds:
        batches = list(ds)
    assert ids(batches) == IDS and len(batches) == len(ds) == 22
    assert batches[0]["id"].dtype == torch.int64 and batches[0]["x"].dtype == torch.float64
    assert [x for batch in batches for x in batch["x"].tolist()] == [i / 8 for i in IDS]
    assert [s for batch in batches for s in batch["s"]] == [f"s{i}" for i in IDS]
    assert [key for batch in batches for key in batch["__key__"]] == [str(i) for i in IDS]


@pytest.mark.parametrize("shuffle", [True, "global", "shards"])
def test_a_shuffled_epoch_has_each_row_once(database: Made, shuffle: Any) -> None:
    database.numbers(IDS)
    with opened(database, shuffle=shuffle, block_samples=64) as ds:
        first, second = list(ds), list(ds)
    for batches in (first, second):
        assert sorted(ids(batches)) == sorted(IDS)
        assert all(batch["x"].tolist() == [i / 8 for i in batch["id"].tolist()] for batch in batches)
        assert all(batch["s"] == [f"s{i}" for i in batch["id"].tolist()] for batch in batches)
    assert ids(first) != ids(second) and ids(first) != IDS


def test_workers_and_ranks_share_the_rows_evenly(database: Made) -> None:
    database.numbers(IDS)
    read = []
    for rank in (0, 1):
        with opened(database, shuffle=True, rank=rank, world_size=2) as ds:
            next(iter(ds))  # a connection that no worker must use
            ds.set_epoch(0)
            loader = DataLoader(ds, batch_size=None, num_workers=2, multiprocessing_context="fork")
            batches = list(loader)
            assert len(batches) == len(ds)
            read.append(batches)
    assert len(read[0]) == len(read[1])
    assert sorted(ids(read[0] + read[1])) == sorted(IDS)


def test_a_new_interpreter_reads_what_was_looked_at_here(pg: Made) -> None:
    pg.numbers(IDS)
    with opened(pg, shuffle=True) as ds:
        pg.run("DELETE FROM t WHERE id < 10")
        loader = DataLoader(ds, batch_size=None, num_workers=1, multiprocessing_context="spawn")
        assert sorted(ids(loader)) == sorted(IDS)


@pytest.mark.parametrize("options", [
    {"num_workers": 0}, {"num_workers": 2, "transport": "thread"},
    {"num_workers": 2, "context": "fork", "threads": 2},
])  # fmt: skip
def test_every_transport_gives_the_same_batches(database: Made, options: dict[str, Any]) -> None:
    database.numbers(IDS)
    with opened(database, shuffle=True) as ds:
        expected = ids(ds)
        ds.set_epoch(0)
        assert ids(StreamLoader(ds, **options)) == expected


def test_a_run_goes_on_where_its_state_was_taken(database: Made) -> None:
    database.numbers(IDS)
    with opened(database, shuffle=True) as ds, opened(database, shuffle=True) as again:
        loader = StreamLoader(ds, num_workers=0)
        steps = iter(loader)
        seen = [next(steps) for _ in range(7)]
        again.load_state_dict(loader.state_dict())
        assert sorted(ids(seen + list(again))) == sorted(IDS)


def test_a_state_of_other_rows_is_refused(database: Made) -> None:
    database.numbers(IDS)
    with opened(database) as ds:
        state = ds.state_at(3)
    database.run("DELETE FROM t WHERE id = 1")
    with opened(database) as ds, pytest.raises(UsageError, match="data"):
        ds.load_state_dict(state)


def test_tables_mix_with_each_other_and_with_what_files_hold(database: Made) -> None:
    database.numbers(IDS).numbers(range(1000, 1100), "u")
    with opened(database) as one, opened(database, table="u") as other:
        mixed = Mixture({"t": (one, 0.7), "u": (other, 0.3)}, 20, stop="all")
        assert sorted({*ids(mixed)}) == sorted({*IDS, *range(1000, 1100)})


def test_options_change_without_another_look_at_the_table(database: Made) -> None:
    database.numbers(IDS)
    with opened(database, shuffle=True) as ds:
        plain = ds.with_(shuffle=False, fields=("id", "s"))
        assert plain.table is ds.table
        assert [i for batch in plain for i in batch[0].tolist()] == IDS
        fewer = ds.with_(where="id < 0")
        assert sorted(ids(fewer)) == [i for i in IDS if i < 0]
        fewer.close()


def test_columns_are_names_or_expressions_and_rows_match_a_condition(database: Made) -> None:
    database.numbers(IDS)
    with opened(database, columns=["s"], where="id >= 0 AND id < 40 -- not more") as ds:
        assert list(ds.table.fields) == ["s"]
        assert [s for batch in ds for s in batch["s"]] == [f"s{i}" for i in IDS if 0 <= i < 40]
    with opened(database, columns={"double": "x * 16", "name": "upper(s)"}) as ds:
        batch = next(iter(ds))
        assert batch["double"].tolist() == [2 * i for i in IDS[:16]] and batch["name"][0] == f"S{IDS[0]}"


def test_a_query_is_read_by_its_key(database: Made) -> None:
    database.numbers(IDS)
    query = "SELECT id, s, x / 2 AS half FROM t WHERE s LIKE 's1%' -- those with a one;"
    with SqlDataset(database.source, 5, query=query, key="s", shuffle=True) as ds:
        found = list(ds)
    assert sorted(ids(found)) == sorted(i for i in IDS if f"s{i}".startswith("s1"))


@pytest.mark.parametrize("key", ["s", "x", ("s", "id"), ("x", "s", "id")])
def test_any_sortable_columns_are_a_key(database: Made, key: Any) -> None:
    database.numbers(IDS)
    order = key if isinstance(key, str) else ", ".join(key)
    expected = [i for (i,) in database.run(f"SELECT id FROM t ORDER BY {order}")]
    with opened(database, key=key, shuffle=True) as ds:
        assert sorted(ids(ds)) == sorted(IDS)
    with opened(database, key=key) as ds:
        assert ids(ds) == expected


def test_what_is_missing_is_filled_or_left_out(database: Made) -> None:
    database.numbers(range(20))
    database.run("ALTER TABLE t ADD COLUMN v BIGINT", "UPDATE t SET v = id * 100 WHERE id > 5")
    with opened(database, missing={"v": Fill(-1)}) as ds:
        batches = list(ds)
        assert [v for batch in batches for v in batch["v"].tolist()] == [-1] * 6 + [i * 100 for i in range(6, 20)]
        assert [f for batch in batches for f in batch["v_filled"].tolist()] == [True] * 6 + [False] * 14
    with opened(database, missing={"v": "skip"}) as ds:
        assert ids(ds) == list(range(6, 20)) and ds.stats().dropped == 6
    with pytest.raises(UsageError, match=r"6 of 20 rows have NULL .* missing=\{\"v\""):
        opened(database)
    with opened(database, fields=("id", "s")) as ds:  # a column that nobody reads may have NULLs
        assert len(list(ds)) == 2


def test_classes_and_lengths_come_from_columns(database: Made) -> None:
    database.numbers(range(200))
    database.run("ALTER TABLE t ADD COLUMN c INTEGER", "UPDATE t SET c = CASE WHEN id < 20 THEN 1 ELSE 0 END")
    with opened(database, draw=Draw(classes="c", samples=400), fields=("c",), columns=["id", "c"]) as ds:
        drawn = torch.cat([c for (c,) in ds])
        assert len(drawn) == 400 and 160 < drawn.sum() < 240
        assert not ds.table.columns["c"].flags.writeable and list(ds.table.columns) == ["id", "c"]
    database.run("UPDATE t SET c = NULL WHERE id = 5")
    with pytest.raises(UsageError, match=r"field c.*of 200 rows, "):
        opened(database, draw=Draw(classes="c", samples=400), missing={"c": Fill(0)})


def test_tables_end_to_end_keep_what_is_lacking(sqlite: Made) -> None:
    sqlite.numbers(range(6)).numbers(range(6, 9), "u")
    sqlite.run("ALTER TABLE t ADD COLUMN v BIGINT", "ALTER TABLE u ADD COLUMN v BIGINT")
    sqlite.run("UPDATE t SET v = 10 * id WHERE id <> 2", "UPDATE u SET v = 10 * id")
    with opened(sqlite, missing={"v": "skip"}) as one, opened(sqlite, table="u") as other:
        both = ShardDataset({"t": one.table, "u": other.table}, 9, missing={"v": "skip"}, shuffle="global")
        (batch,) = both
        assert sorted(ids([batch])) == [0, 1, 3, 4, 5, 6, 7, 8]
        assert batch["v"].tolist() == [10 * i for i in batch["id"].tolist()]


def test_it_is_a_shard_data_set_whose_words_name_table_row_and_key(database: Made) -> None:
    database.numbers(range(20))

    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 7:
            raise ValueError("seven")
        return sample

    with opened(database, transform=refuse) as ds:
        assert isinstance(ds, ShardDataset)
        with pytest.raises(Exception, match=r"t, row 7 \('7'\): transform raised ValueError: seven"):
            list(ds)
        assert "20 rows by id" in repr(ds)


def disagree(rank: int, address: str, source: str, out: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    said = []
    for wheres in (("id < 10", "id < 11"), ("id < 10", "nonsense = 1")):
        with pytest.raises(UsageError) as failed:
            SqlDataset(source, 4, table="t", key="id", where=wheres[rank])
        said.append(str(failed.value))
    Path(out, str(rank)).write_text("\n".join(said))
    torch.distributed.destroy_process_group()


def test_ranks_that_see_other_rows_do_not_begin(sqlite: Made, tmp_path: Path) -> None:
    sqlite.numbers(range(20))
    arguments = (f"file://{tmp_path}/meet", sqlite.source, str(tmp_path))
    torch.multiprocessing.start_processes(disagree, arguments, nprocs=2, start_method="fork")
    first, second = ((tmp_path / rank).read_text().splitlines() for rank in "01")
    assert "table t: rank 1 failed, or sees other rows" in first[0] and "rank 0 failed, or" in second[0]
    assert "table t: rank 1 failed, or sees other rows" in first[1] and "no such column: nonsense" in second[1]


def test_ranks_without_a_process_group_are_told_so(
    sqlite: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite.numbers(range(20))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with opened(sqlite, batch=4) as ds:
        assert ids(ds) == [4, 5, 6, 7, 11, 12, 13, 17, 18, 19]
    assert "no process group" in caplog.text


def test_a_plain_copy_says_that_it_cannot_read(database: Made) -> None:
    database.numbers([1, 5, 6])
    with opened(database) as ds:
        with pytest.raises(UsageError, match="a copy of the table that was not made for a worker"):
            list(pickle.loads(pickle.dumps(ds)))
        assert list(copy.deepcopy(ds.table).sizes) == [3]
    with pytest.raises(UsageError, match="closed"):
        list(ds)


def test_nothing_stays_open(database: Made) -> None:
    database.numbers(IDS)
    with opened(database) as ds:
        list(ds)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with opened(database, shuffle=True) as ds:
            list(ds)
    assert len(os.listdir("/proc/self/fd")) <= before
