"""Several tables end to end."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamio
from streamio import ShardDataset, ShardSet
from streamio.errors import CorruptShard, UsageError
from streamio.shards.concat import Concat
from streamio.shards.pictures import with_one_picture
from streamio.types import ArrayColumn, ListColumn
from tests.samples import jpg, png
from tests.shards.packed import numbered, pack_set

NAMES = ("web", "code", "news")
COUNTS = (47, 12, 30)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three sets of `numbered`, each in another format; nobody changes them."""
    root = tmp_path_factory.mktemp("sets")
    formats = ("tar", "lmdb", "hdf5")
    made = zip(NAMES, COUNTS, formats, strict=True)
    return [pack_set(root / name, numbered(count), fmt) for name, count, fmt in made]


@pytest.fixture(scope="module")
def sets(folders: list[Path]) -> list[ShardSet]:
    return [streamio.open(folder) for folder in folders]


@pytest.fixture(scope="module")
def table(sets: list[ShardSet]) -> Concat:
    return Concat(NAMES, sets)


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def plain(values: Any) -> list[Any]:
    return [bytes(v) if isinstance(v, memoryview) else v for v in values]


def wanted_of(numbers: Sequence[int]) -> list[dict[str, Any]]:
    return [(numbered(47) + numbered(12) + numbered(30))[i] for i in numbers]


def small_set(folder: Path, samples: Sequence[dict[str, Any]]) -> ShardSet:
    keyed = [{"__key__": f"{folder.name}/{i}", **sample} for i, sample in enumerate(samples)]
    return streamio.open(pack_set(folder, keyed))


def test_rows_of_a_table_come_after_those_of_the_tables_before(table: Concat, sets: list[ShardSet]) -> None:
    assert table.starts.tolist() == [0, 47, 59] and table.starts.dtype == np.int64
    assert table.sizes.tolist() == [10, 10, 10, 10, 7, 10, 2, 10, 10, 10]
    numbers, local = table.split(rows(0, 46, 47, 58, 59, 88, 3))
    assert numbers.tolist() == [0, 0, 1, 1, 2, 2, 0] and local.tolist() == [0, 46, 0, 11, 0, 29, 3]
    assert numbers.dtype == local.dtype == np.int64


@given(numbers=st.lists(st.integers(0, 88), max_size=40))
def test_values_and_keys_come_in_the_order_of_the_rows_repeats_included(table: Concat, numbers: list[int]) -> None:
    wanted = wanted_of(numbers)
    batch = table.gather(rows(*numbers), ["x", "cls", "raw", "txt"])
    assert list(batch) == ["x", "cls", "raw", "txt"]
    for name in ("x", "cls"):
        column = batch[name]
        assert isinstance(column, ArrayColumn)
        assert column.values.tolist() == [np.asarray(sample[name]).tolist() for sample in wanted]
    raw, txt = batch["raw"], batch["txt"]
    assert isinstance(raw, ListColumn) and plain(raw.values) == [sample["raw"] for sample in wanted]
    assert isinstance(txt, ListColumn)
    assert plain(txt.values) == [sample["txt"].encode() if "txt" in sample else None for sample in wanted]
    assert table.keys(rows(*numbers)) == [sample["__key__"] for sample in wanted]


@pytest.mark.parametrize("numbers", [[3, 2, 2], [3, 50, 80, 3]], ids=["one table", "three tables"])
def test_arrays_go_into_the_memory_that_is_given(table: Concat, numbers: list[int]) -> None:
    given_out = []

    def alloc(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        given_out.append(np.empty(shape, dtype))
        return given_out[-1]

    batch = table.gather(rows(*numbers), ["x", "raw"], alloc)
    assert [array.shape for array in given_out] == [(len(numbers), 3)]
    assert isinstance(batch["x"], ArrayColumn) and batch["x"].values is given_out[0]


def test_no_rows_give_an_empty_batch(table: Concat) -> None:
    batch = table.gather(rows(), ["x", "raw"])
    assert isinstance(batch["x"], ArrayColumn) and batch["x"].values.shape == (0, 3)
    assert len(batch["raw"]) == 0 and table.keys(rows()) == []


@pytest.mark.parametrize("outside", [-1, 89])
def test_rows_outside_are_refused(table: Concat, outside: int) -> None:
    for call in (table.split, table.keys, lambda r: table.gather(r, ["x"])):
        with pytest.raises(IndexError, match=r"of 89 samples of 3 sets"):
            call(rows(5, outside))


def test_a_place_names_the_set(table: Concat) -> None:
    assert table.locate(46) == ("web: shard-000004.tar", 6)
    assert table.locate(47 + 11) == ("code: shard-000001.lmdb", 1)
    assert table.locate(59) == ("news: shard-000000.h5", 0)


def test_faults_while_reading_name_the_set(tmp_path: Path) -> None:
    one, other = (pack_set(tmp_path / name, numbered(3)) for name in "ab")
    table = Concat("ab", [streamio.open(one), streamio.open(other)])
    path = other / "shard-000000.tar"
    path.write_bytes(path.read_bytes()[:-512])
    with pytest.raises(CorruptShard, match="set b"):
        table.gather(rows(0, 3), ["x"])


def test_samples_are_summed_and_what_tables_agree_on_is_kept(table: Concat) -> None:
    assert list(table.fields) == ["cls", "raw", "txt", "x"]
    assert table.fields["x"].samples == 89 and table.fields["txt"].samples == 23 + 6 + 15
    assert (table.fields["x"].dtype, table.fields["x"].shape) == ("<f4", (3,))


def test_a_field_that_is_not_common_is_refused_with_the_table(tmp_path: Path) -> None:
    one = small_set(tmp_path / "one", [{"x": np.zeros(2), "only": b"1", "y": 1}])
    other = small_set(tmp_path / "other", [{"x": np.zeros(2), "y": "text"}])
    table = Concat(["one", "other"], [one, other])
    assert list(table.fields) == ["x"]
    with pytest.raises(UsageError, match=r"no field 'only' in other\. Fields of all sets: x"):
        table.gather(rows(0), ["only"])  # also where the rows are of a table that has it
    with pytest.raises(UsageError, match=r"field 'y' is int in one, text in other"):
        table.gather(rows(0, 1), ["y"])
    with pytest.raises(UsageError, match="no field 'none' in one, other"):
        table.gather(rows(0), ["x", "none"])


def test_arrays_of_other_shapes_come_as_a_list(tmp_path: Path) -> None:
    values = [np.zeros(2), np.ones(2), np.ones(3), np.zeros((2, 2))]
    one = small_set(tmp_path / "one", [{"x": value} for value in values[:2]])
    other = small_set(tmp_path / "other", [{"x": value} for value in values[2:]])  # not alike: stored as bytes
    table = Concat(["one", "other"], [one, other])
    assert table.fields["x"].dtype is None and table.fields["x"].shape is None
    (batch,) = ShardDataset(table, 4, fields=("x",), collate=list, shuffle=False)  # type: ignore[arg-type]
    assert [sample["x"].tolist() for sample in batch] == [value.tolist() for value in values]


def test_numbers_that_some_rows_of_one_table_lack_are_numbers_all_the_same(tmp_path: Path) -> None:
    one = small_set(tmp_path / "one", [{"n": 1, "y": 0}, {"n": 2, "y": 0}])
    other = small_set(tmp_path / "other", [{"y": 0}, {"n": 4, "y": 0}])
    table = Concat(["one", "other"], [one, other])
    column = table.gather(rows(0, 2, 3, 1), ["n"])["n"]
    assert isinstance(column, ListColumn) and plain(column.values) == [b"1", None, b"4", b"2"]


@pytest.mark.parametrize(("second", "wanted"), [(2.5, "float64"), (2, "int64")])
def test_numbers_of_two_kinds_come_as_one_that_holds_both(tmp_path: Path, second: Any, wanted: str) -> None:
    one = small_set(tmp_path / "one", [{"n.float": 1.0}] if wanted == "float64" else [{"n": 1}])
    other = small_set(tmp_path / "other", [{"n.float": second}] if wanted == "float64" else [{"n": second}])
    column = Concat(["one", "other"], [one, other]).gather(rows(1, 0), [next(iter(one.fields))])
    (values,) = column.values()
    assert isinstance(values, ArrayColumn) and values.values.dtype == wanted
    assert values.values.tolist() == [second, 1]


def test_kinds_of_pictures_count_as_one(tmp_path: Path) -> None:
    """They are decoded by content; in sets of several kinds they are shown as `image`."""
    one = with_one_picture(small_set(tmp_path / "one", [{"jpg": jpg()}, {"png": png()}]))
    other = with_one_picture(small_set(tmp_path / "other", [{"png": png()}, {"jpg": jpg()}]))
    table = Concat(["one", "other"], [one, other])
    assert list(table.fields) == ["image"]
    column = table.gather(rows(3, 0, 2), ["image"])["image"]
    assert isinstance(column, ListColumn) and plain(column.values) == [jpg(), jpg(), png()]


def test_the_fingerprint_changes_with_tables_names_and_order(sets: list[ShardSet]) -> None:
    one = Concat("ab", sets[:2]).fingerprint
    assert one == Concat("ab", sets[:2]).fingerprint and len(one) == 16
    others = [
        Concat("ac", sets[:2]), Concat("ab", sets[1::-1]), Concat("ab", sets[::2]), Concat("abc", sets),
        Concat("ab", [sets[0], sets[1].where([0, 1])]),
    ]  # fmt: skip
    assert len({one, *(other.fingerprint for other in others)}) == 6


def test_it_pickles_small_and_opens_nothing_before_it_is_used(table: Concat) -> None:
    table.gather(rows(0, 50, 70), ["x"])
    data = pickle.dumps(table)
    again = pickle.loads(data)
    assert len(data) < 1500 and set(vars(again)) == {"names", "tables"}
    assert again.fingerprint == table.fingerprint and again.keys(rows(50)) == table.keys(rows(50))


def test_it_says_what_it_holds(table: Concat) -> None:
    assert repr(table) == "Concat(web 47, code 12, news 30; fields cls, raw, txt, x)"


@pytest.mark.parametrize("names", [[], ["a"], ["a", "a"]])
def test_each_table_needs_a_name_of_its_own(sets: list[ShardSet], names: list[str]) -> None:
    with pytest.raises(UsageError, match="2 tables with the names"):
        Concat(names, sets[:2])
    with pytest.raises(UsageError, match="0 tables with the names none"):
        Concat([], [])
