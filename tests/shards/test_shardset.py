"""Many shards as one table."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import BadManifest, CorruptShard, MissingShard, ShardError, UsageError
from streamio.shards import opened as module
from streamio.shards.shardset import ShardSet, open_shards
from streamio.types import ArrayColumn, ListColumn, new_array
from tests.samples import jpg, tree
from tests.shards.packed import labels_of, numbered, pack_set

N = 47


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`numbered(47)` in five shards, in each format; nobody changes it."""
    root = tmp_path_factory.mktemp("sets")
    return {fmt: pack_set(root / fmt, numbered(N), fmt, classes=("a", "b")) for fmt in ("tar", "lmdb", "hdf5")}


@pytest.fixture
def opened(folders: dict[str, Path], fmt: str) -> ShardSet:
    return open_shards(folders[fmt])


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def test_samples_come_back_as_they_were_written(opened: ShardSet) -> None:
    assert len(opened) == N
    for sample, wanted in zip(opened, numbered(N), strict=True):
        assert (sample.pop("x") == wanted.pop("x")).all()
        if "txt" in wanted:
            wanted["txt"] = wanted["txt"].encode()
        assert sample == wanted and type(sample["cls"]) is int


@pytest.mark.parametrize(
    "index",
    [46, -1, np.int64(46), np.uint8(46), np.array(46), torch.tensor(46), torch.tensor(-1)],
    ids=["int", "negative", "int64", "uint8", "0-d array", "tensor", "negative tensor"],
)
def test_one_sample_by_any_kind_of_integer(opened: ShardSet, index: Any) -> None:
    assert opened[index]["cls"] == 46


@pytest.mark.parametrize(
    "several", [slice(3, 40, 18), [3, 21, 39], range(3, 40, 18), np.array([3, 21, -8]), torch.tensor([3, 21, 39])]
)
def test_several_samples_come_as_a_list(opened: ShardSet, several: Any) -> None:
    assert [sample["cls"] for sample in opened[several]] == [3, 21, 39]


@pytest.mark.parametrize("index", [47, -48, 10**12])
def test_a_row_outside_is_an_index_error_with_the_range(opened: ShardSet, index: int) -> None:
    with pytest.raises(IndexError, match=rf"row {index} of 47 samples \(0 to 46\)"):
        opened[index]


def test_what_is_no_row_is_refused(opened: ShardSet) -> None:
    with pytest.raises(TypeError, match=r"set\.find"):
        opened["k/00001"]  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="float64"):
        opened[np.array([1.0])]


def test_hdf_04_rows_in_any_order_and_twice(opened: ShardSet) -> None:
    """h5py/h5py#29, #739, #993; scverse/anndata#2066: rows shuffled or repeated raised, or came reordered."""
    for wanted in ([5, 2, 2, 9, 0], [46, 0, 12, 12, 46, 33]):
        batch = opened.gather(np.array(wanted), ["cls", "x", "raw"])
        assert isinstance(batch["cls"], ArrayColumn) and batch["cls"].values.tolist() == wanted
        assert isinstance(batch["x"], ArrayColumn) and batch["x"].values[:, 0].tolist() == wanted
        assert isinstance(batch["raw"], ListColumn)
        assert [plain(value) for value in batch["raw"].values] == [numbered(N)[i]["raw"] for i in wanted]
        assert opened.keys(np.array(wanted)) == [f"k/{i:05d}" for i in wanted]


def test_hdf_04_no_rows_give_an_empty_batch(opened: ShardSet) -> None:
    batch = opened.gather(np.array([], np.int64), ["cls", "x", "raw"])
    assert isinstance(batch["cls"], ArrayColumn) and batch["cls"].values.shape == (0,)
    assert isinstance(batch["x"], ArrayColumn) and batch["x"].values.shape == (0, 3)
    assert len(batch["raw"]) == 0 and opened.keys(np.array([], np.int64)) == []


def test_no_fields_give_no_columns(opened: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE_SAMPLE", 0)  # where reads are announced
    assert opened.gather(rows(4, 7), []) == {}
    with pytest.raises(IndexError):
        opened.gather(rows(0, 47), [])


def test_a_field_that_a_row_lacks_is_none(opened: ShardSet) -> None:
    column = opened.gather(rows(0, 1, 30, 45), ["txt"])["txt"]
    assert [plain(v) for v in column.values] == [None, b"text 1", None, b"text 45"]
    assert "txt" not in opened[0]


def test_values_go_into_the_memory_that_alloc_gives(opened: ShardSet) -> None:
    given: list[np.ndarray] = []

    def alloc(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        given.append(new_array(shape, dtype))
        return given[-1]

    batch = opened.gather(rows(40, 3, 11), ["x", "cls", "raw"], alloc)
    assert len(given) == 2
    assert isinstance(batch["x"], ArrayColumn) and batch["x"].values is given[0]
    assert isinstance(batch["cls"], ArrayColumn) and batch["cls"].values is given[1]


@pytest.mark.parametrize("max_open", [2, 64])
@pytest.mark.parametrize("fields", [["cls", "x"], ["raw", "txt"]])
def test_reads_are_announced_where_files_are_not_in_memory(
    folders: dict[str, Path], fmt: str, max_open: int, fields: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[int] = []
    monkeypatch.setattr(module, "_LARGE_SAMPLE", 0)
    monkeypatch.setattr(module, "are_cached", lambda places: False)
    monkeypatch.setattr(module, "will_need", lambda starts, ends: announced.extend((ends - starts).tolist()))
    wanted = [40, 3, 11, 30, 3]
    with open_shards(folders[fmt], max_open=max_open) as opened:
        batch = opened.gather(rows(*wanted), fields)
    there = [str(numbered(N)[i][name]) for i in wanted for name in fields if name in numbered(N)[i]]
    assert len(announced) == len(there) and min(announced) > 0
    assert len(batch[fields[0]]) == len(wanted)


def test_announcing_ends_when_files_are_in_memory(
    folders: dict[str, Path], fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(module, "_LARGE_SAMPLE", 0)
    monkeypatch.setattr(module, "are_cached", lambda places: looks.append(len(places)) or len(looks) > 3)
    opened = open_shards(folders[fmt])
    for _ in range(10):
        opened.gather(rows(4, 7), ["x"])
    assert looks == [2, 2, 2, 2]


def test_looks_get_rarer_as_long_as_all_is_in_memory_and_begin_anew(
    folders: dict[str, Path], fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at: list[int] = []
    monkeypatch.setattr(module, "_LARGE_SAMPLE", 0)
    opened = open_shards(folders[fmt])
    size = opened._opened._sample_bytes
    monkeypatch.setattr(module, "_LOOK_EVERY", size)
    monkeypatch.setattr(module, "_SELDOM", 4 * size)
    batch = 0
    monkeypatch.setattr(module, "are_cached", lambda places: at.append(batch) or batch != 14)
    opened._opened._unseen = opened._opened._look_after = size
    for batch in range(24):  # noqa: B007
        opened.gather(rows(4), ["x"])
    assert at == [0, 2, 6, 10, 14, 15, 17, 21]


def test_an_unknown_field_names_those_there_are(opened: ShardSet) -> None:
    with pytest.raises(UsageError, match=r"no field 'jpg'\. Fields: cls, raw, txt, x"):
        opened.gather(rows(0), ["jpg"])
    with pytest.raises(UsageError, match=r"keys\(rows\)"):
        opened.gather(rows(0), ["__key__"])
    with pytest.raises(IndexError, match=r"rows 0 to 47 of 47 samples"):
        opened.gather(rows(0, 47), ["cls"])
    with pytest.raises(IndexError, match=r"rows -1 to"):
        opened.gather(rows(-1), ["cls"])


def test_says_what_it_is(opened: ShardSet, folders: dict[str, Path], fmt: str) -> None:
    assert opened.sizes.tolist() == [10, 10, 10, 10, 7] and opened.sizes.dtype == np.int64
    assert opened.classes == ("a", "b") and opened.format == fmt and opened.path == str(folders[fmt])
    assert opened.fields["x"].shape == (3,) and opened.fields["x"].stored == "x.npy"
    assert opened.locate(46)[1] == 6 and opened.locate(46)[0].startswith("shard-000004.")
    text = repr(opened)
    assert "\n" not in text and f"47 samples in 5 {fmt} shards" in text and "fields cls, raw, txt, x" in text


def test_columns_are_read_when_asked_for_and_read_only(opened: ShardSet) -> None:
    assert list(opened.columns) == ["cls"] and "cls" in opened.columns and len(opened.columns) == 1
    column = opened.columns["cls"]
    assert column.tolist() == list(range(N)) and column is opened.columns["cls"]
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1
    with pytest.raises(KeyError, match="no column 'label'; there are cls"):
        opened.columns["label"]
    assert opened.stats().opens == 0


def test_columns_of_the_set_carry_the_users_names(tmp_path: Path, fmt: str) -> None:
    samples: list[dict[str, Any]] = [
        {"__key__": "a", "n": 1, "s": 0.5, "ok": True, "part": 1, "seg.jpg": jpg(8, 4), "kind": 1},
        {"__key__": "b", "n": 2, "s": 1.5, "ok": False, "seg.jpg": jpg(2, 4), "kind": 2},
        {"__key__": "c", "n": 3, "s": 2.5, "ok": True, "kind": 3},
    ]
    columns = open_shards(pack_set(tmp_path / "o", samples, fmt, shard_samples=2)).columns
    assert list(columns) == ["kind", "n", "ok", "s", "seg.jpg.height", "seg.jpg.width"]
    assert columns["n"].tolist() == [1, 2, 3] and columns["s"].tolist() == [0.5, 1.5, 2.5]
    assert columns["ok"].tolist() == [True, False, True]
    assert columns["seg.jpg.width"].tolist() == [8, 2, -1]


def test_numbers_that_some_rows_lack_come_one_by_one(tmp_path: Path, fmt: str) -> None:
    samples = [{"__key__": str(i), "bin": b"", **({"cls": i} if i != 3 else {})} for i in range(6)]
    opened = open_shards(pack_set(tmp_path / "o", samples, fmt, shard_samples=2))
    assert "cls" not in opened.columns and opened[2] == {"__key__": "2", "bin": b"", "cls": 2}
    assert opened[4]["cls"] == 4 and opened[3] == {"__key__": "3", "bin": b""}
    batch = opened.gather(rows(5, 3, 2), ["cls"])["cls"]
    assert [plain(v) for v in batch.values] == [b"5", None, b"2"]
    whole = opened.gather(rows(0, 5, 1), ["cls"])["cls"]
    assert isinstance(whole, ArrayColumn) and whole.values.tolist() == [0, 5, 1]


def test_numbers_beyond_64_bits_stay_exact(tmp_path: Path, fmt: str) -> None:
    numbers = [2**63 + i for i in range(3)]
    opened = open_shards(pack_set(tmp_path / "o", [{"__key__": str(i), "n": i} for i in numbers], fmt, 2))
    assert [sample["n"] for sample in opened] == numbers and "n" not in opened.columns


def test_arrays_that_differ_come_one_by_one(tmp_path: Path, fmt: str) -> None:
    arrays = [np.full((i // 2 + 1, 2), i, np.int16) for i in range(6)]
    opened = open_shards(
        pack_set(tmp_path / "o", [{"__key__": str(i), "x": a} for i, a in enumerate(arrays)], fmt, shard_samples=2)
    )
    assert opened.fields["x"].dtype is None
    for i, array in enumerate(arrays):
        assert (opened[i]["x"] == array).all() and opened[i]["x"].flags.writeable
    for wanted in ([4, 0, 1], [0, 1]):
        values = opened.gather(np.array(wanted), ["x"])["x"]
        assert isinstance(values, ListColumn)
        for value, i in zip(values.values, wanted, strict=True):
            assert isinstance(value, np.ndarray) and (value == arrays[i]).all()


def test_what_does_not_parse_stays_bytes(tmp_path: Path, fmt: str) -> None:
    opened = open_shards(pack_set(tmp_path / "o", [{"__key__": "a", "cls": b"cat", "x.npy": b"\x93NUMPY"}], fmt))
    assert opened[0] == {"__key__": "a", "cls": b"cat", "x.npy": b"\x93NUMPY"}


@pytest.mark.parametrize("key", ["k/00000", "k/00010", "k/00046"])
def test_finds_a_key(opened: ShardSet, key: str) -> None:
    assert opened[opened.find(key)]["__key__"] == key


@pytest.mark.parametrize("key", ["00012", "k/00012.jpg", "./k/00012", "k/0012"])
def test_a_key_that_is_not_there_brings_those_like_it(opened: ShardSet, key: str) -> None:
    with pytest.raises(KeyError, match=r"no sample .*there are .*k/00012"):
        opened.find(key)


def test_finds_keys_that_overlap_others(tmp_path: Path) -> None:
    keys = ["aaa", "aa", "a", "ba", "ab"]
    opened = open_shards(pack_set(tmp_path / "o", [{"__key__": k, "bin": b""} for k in keys], shard_samples=3))
    assert [opened.find(k) for k in keys] == list(range(5))
    with pytest.raises(KeyError):
        opened.find("")


# where


def test_where_selects_by_mask_rows_or_columns(opened: ShardSet) -> None:
    mask = opened.columns["cls"] % 5 == 2
    wanted = list(range(2, N, 5))
    for choice in (mask, mask.tolist(), torch.from_numpy(mask), wanted[::-1], lambda c: c["cls"] % 5 == 2):
        view = opened.where(choice)
        assert len(view) == len(wanted) and [s["cls"] for s in view] == wanted
        assert view.columns["cls"].tolist() == wanted and list(view.columns) == ["cls"]
        assert view.sizes.tolist() == [2, 2, 2, 2, 1]
        assert view.keys(rows(2, 0)) == ["k/00012", "k/00002"]
        assert view[-1]["cls"] == 42 and view.find("k/00012") == 2 and view.locate(2) == opened.locate(12)
        got = view.gather(rows(3, 0), ["cls"])["cls"]
        assert isinstance(got, ArrayColumn) and got.values.tolist() == [17, 2]
    assert "9 of 47 samples" in repr(view)
    with pytest.raises(KeyError, match="leaves out"):
        view.find("k/00003")
    with pytest.raises(IndexError, match="row 9 of 9 samples"):
        view[len(wanted)]


def test_where_of_where(opened: ShardSet) -> None:
    view = opened.where(lambda c: c["cls"] >= 20).where(lambda c: c["cls"] % 2 == 0).where([0, 3])
    assert [s["cls"] for s in view] == [20, 26]
    none = opened.where(np.zeros(N, bool))
    assert len(none) == 0 and none.sizes.tolist() == [0] * 5 and list(none) == []
    assert len(none.gather(rows(), ["cls"])["cls"]) == 0


def test_selections_have_fingerprints_of_their_own(opened: ShardSet) -> None:
    prints = [opened, opened.where([1]), opened.where([2]), opened.where([1, 2]), opened.where(range(N))]
    assert len({view.fingerprint for view in prints}) == 5
    assert opened.where([2, 1]).fingerprint == opened.where(lambda c: (c["cls"] > 0) & (c["cls"] < 3)).fingerprint


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (np.ones(46, bool), "a mask of 46 for 47 samples"),
        ([47], "row 47 of 47 samples"),
        ([-1], "row -1 of 47"),
        ([3, 3], "row 3 comes twice"),
        (np.ones(47), "float64"),
        (np.ones((47, 1), bool), r"shape \(47, 1\)"),
    ],
)
def test_where_refuses_what_cannot_be_meant(opened: ShardSet, choice: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        opened.where(choice)


# pickles, processes, handles


def test_lmdb_02_pickles_small_whatever_was_opened(opened: ShardSet) -> None:
    """pytorch/vision#689; baudm/parseq#6: "can't pickle Environment objects" once the set had been touched."""
    before = len(pickle.dumps(opened))
    list(opened), opened.columns["cls"]
    data = pickle.dumps(opened)
    assert len(data) == before < 700
    copy = pickle.loads(data)
    assert "_opened" not in copy.__dict__
    assert copy.fingerprint == opened.fingerprint and copy[46]["cls"] == 46 and len(copy) == N
    view = pickle.loads(pickle.dumps(opened.where(lambda c: c["cls"] % 7 == 0)))
    assert [s["cls"] for s in view] == list(range(0, N, 7))
    assert view.fingerprint == opened.where(lambda c: c["cls"] % 7 == 0).fingerprint


def test_a_large_selection_pickles_small(tmp_path: Path) -> None:
    samples = [{"__key__": str(i), "cls": i} for i in range(2000)]
    opened = open_shards(pack_set(tmp_path / "o", samples, shard_samples=2000))
    assert len(pickle.dumps(opened.where(lambda c: c["cls"] % 2 == 0))) < 700


def test_a_set_packed_again_is_noticed_by_its_copies(tmp_path: Path) -> None:
    folder = pack_set(tmp_path / "o", numbered(9))
    data = pickle.dumps(open_shards(folder))
    pack_set(folder, numbered(8))
    with pytest.raises(ShardError, match=f"{folder}: the set was packed again"):
        len(pickle.loads(data))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_hdf_01_a_set_used_before_the_fork_is_right_in_its_children(opened: ShardSet, start: str) -> None:
    """pytorch/pytorch#11887; h5py/h5py#934: a file opened before the fork gave wrong numbers at random."""
    opened[0], opened[N - 1]
    orders = [np.random.default_rng(i).permutation(N) for i in range(4)]
    with multiprocessing.get_context(start).Pool(2) as pool:
        found = pool.starmap(labels_of, [(opened, order) for order in orders])
    assert found == [order.tolist() for order in orders]


def _read_and_close(opened: ShardSet) -> None:
    labels_of(opened, np.arange(N))
    assert opened.stats().open
    opened.close()


@pytest.mark.parametrize("use", [_read_and_close, ShardSet.stats, ShardSet.close], ids=lambda use: use.__name__)
def test_a_fork_while_a_thread_holds_the_lock_does_not_hang(opened: ShardSet, use: Any) -> None:
    opened[0]
    with opened._opened.pool._lock:
        child = multiprocessing.get_context("fork").Process(target=use, args=(opened,))
        child.start()
    child.join(5)
    child.kill()
    assert child.exitcode == 0


def test_open_shards_are_bounded_and_views_outlive_them(folders: dict[str, Path], fmt: str) -> None:
    opened = open_shards(folders[fmt], max_open=2)
    held = opened.gather(np.arange(N), ["raw"])["raw"]
    assert labels_of(opened, np.arange(N)[::-1].copy()) == list(range(N))[::-1]
    now = opened.stats()
    assert now.open == 2 and now.opens > 10 and now.evictions == now.opens - 2 and now.mapped_bytes > 0
    assert [plain(v) for v in held.values] == [s["raw"] for s in numbered(N)]
    opened.close()
    assert opened.stats().open == 0 and opened.stats().mapped_bytes == 0
    assert [plain(v) for v in held.values] == [s["raw"] for s in numbered(N)]
    with opened as same:
        assert same[3]["cls"] == 3
    assert opened.stats().open == 0


def maps_of(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{folder}/")


def test_open_shards_are_maps_and_no_files_and_go_with_the_set(folders: dict[str, Path], fmt: str) -> None:
    files = len(os.listdir("/proc/self/fd"))
    opened: ShardSet | None = open_shards(folders[fmt])
    assert opened is not None
    list(opened)
    assert maps_of(folders[fmt]) == 2 * opened.stats().open > 0
    assert len(os.listdir("/proc/self/fd")) == files
    kept = opened.gather(np.arange(1), ["raw"])["raw"]
    del opened
    assert maps_of(folders[fmt]) == 1
    assert plain(kept.values[0]) == numbered(N)[0]["raw"]
    del kept
    assert maps_of(folders[fmt]) == 0


def test_threads_read_together(folders: dict[str, Path], fmt: str) -> None:
    opened = open_shards(folders[fmt], max_open=1)
    found: list[list[int]] = []
    orders = [np.random.default_rng(i).permutation(N) for i in range(4)]
    threads = [threading.Thread(target=lambda o=o: found.append(labels_of(opened, o))) for o in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(order.tolist() for order in orders)


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import numpy as np
from streamio.shards.shardset import open_shards
opened = open_shards(sys.argv[1])
assert opened.columns["cls"].tolist() == list(range(100))
order = np.random.default_rng(0).permutation(100)
got = opened.gather(order, ["cls", "x", "txt", "ragged"])
assert got["cls"].values.tolist() == order.tolist() == got["x"].values[:, 0].tolist()
assert [bytes(v).decode() for v in got["txt"].values] == [str(i) for i in order]
assert [None if v is None else len(v) > 0 for v in got["ragged"].values] == [True if i % 3 else None for i in order]
assert opened.keys(order) == [f"k{i}" for i in order] and opened.find("k99") == 99
assert opened.stats().open == 100 and opened.stats().opens == 100
"""


def test_more_shards_may_be_open_than_files(tmp_path: Path, fmt: str) -> None:
    samples = [
        {
            "__key__": f"k{i}",
            "cls": i,
            "x": np.full(3, i),
            "txt": str(i),
            **({"ragged": np.ones(i)} if i % 3 else {}),
        }
        for i in range(100)
    ]
    folder = pack_set(tmp_path / "o", samples, fmt, 1)
    done = subprocess.run([sys.executable, "-c", FEW_FILES, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_index_that_cannot_be_opened_for_lack_of_files_is_not_called_broken(tmp_path: Path) -> None:
    folder = pack_set(tmp_path / "o", numbered(N))
    code = (
        "import mmap, os, resource, sys; from streamio.shards.index import ShardIndex;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)); held = [os.dup(0) for _ in range(5)];"
        "ShardIndex.load(sys.argv[1] + '/shard-000000.tar.idx')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert re.search(r"StorageError: .*tar\.idx: cannot be read: Too many open files\. Raise", done.stderr), (
        done.stderr
    )


def test_max_open_must_be_positive(folders: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="max_open=0"):
        open_shards(folders["tar"], max_open=0)


# what is refused before anything is read


def test_corr_04_all_missing_files_are_listed_at_once(tmp_path: Path, fmt: str) -> None:
    """rom1504/img2dataset#174; LAION-AI/CLIP_benchmark#88: a smaller data set in silence."""
    folder = pack_set(tmp_path / "o", numbered(N), fmt)
    gone = sorted(p for p in folder.iterdir() if p.name.startswith(("shard-000003", "shard-000001")))
    for path in gone:
        path.unlink()
    gone[0].symlink_to("/nowhere/at/all")
    with pytest.raises(MissingShard, match="2 of 5 shards and 2 indexes are missing") as caught:
        open_shards(folder)
    assert all(path.name in str(caught.value) for path in gone) and "shard-000002" not in str(caught.value)


def test_corr_04_a_lost_index_names_the_command_that_makes_it(tmp_path: Path) -> None:
    folder = pack_set(tmp_path / "o", numbered(N))
    (folder / "shard-000002.tar.idx").unlink()
    with pytest.raises(MissingShard, match=rf"shard-000002.tar.idx. Run: streamio index {folder}"):
        open_shards(folder)


def test_corr_04_a_lost_manifest_is_named(tmp_path: Path) -> None:
    folder = pack_set(tmp_path / "o", numbered(N))
    (folder / "streamio.json").unlink()
    with pytest.raises(BadManifest, match=r"no streamio.json here; it holds shard-000000.tar.*pack again"):
        open_shards(folder)


@pytest.mark.parametrize("keep", [0, 1, 100, -2])
def test_corr_04_a_cut_manifest_is_named(tmp_path: Path, keep: int) -> None:
    folder = pack_set(tmp_path / "o", numbered(N))
    manifest = folder / "streamio.json"
    manifest.write_bytes(manifest.read_bytes()[:keep])
    with pytest.raises(BadManifest, match=r"streamio\.json: is no streamio manifest, or it is cut"):
        open_shards(folder)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "the folder is empty. Pack the folder first"),
        ({"a.jpg": b"", "b.jpg": b""}, "it holds a.jpg, b.jpg. Pack the folder first: streamio pack"),
        ({"x-000.tar": b"", "x-001.tar": b""}, r"opened by pattern: '.*\*\.tar'"),
        ({"train/streamio.json": b"{}", "val/streamio.json": b"{}"}, "The sets are in its folders: .*train, .*val"),
    ],
    ids=["empty", "unpacked", "foreign", "parts"],
)
def test_a_folder_that_is_no_set_says_what_it_seems_to_be(
    tmp_path: Path, files: dict[str, bytes], said: str
) -> None:
    with pytest.raises(BadManifest, match=said):
        open_shards(tree(tmp_path, files))


def test_tar_11_lmdb_08_a_cut_shard_is_refused_before_anything_is_read(tmp_path: Path, fmt: str) -> None:
    """onekey-sec/unblob#156, mafintosh/tar-stream#82 (cut tars pass), jnwatson/py-lmdb#344 (SIGBUS)."""
    folder = pack_set(tmp_path / "o", numbered(N), fmt)
    path = next(folder.glob("shard-000003.*[!x]"))
    size = path.stat().st_size
    os.truncate(path, size // 2)
    with pytest.raises(CorruptShard) as caught:
        open_shards(folder)
    assert f"{path.name} ({size // 2:,} of {size:,} bytes, cut)" in str(caught.value)


def test_lmdb_08_a_shard_cut_after_opening_is_an_error_and_no_crash(tmp_path: Path) -> None:
    folder = pack_set(tmp_path / "o", [{"__key__": str(i), "bin": b"v" * 20_000} for i in range(200)], "lmdb", 200)
    code = (
        "import os, sys; from streamio.shards.shardset import open_shards; s = open_shards(sys.argv[1]);"
        "p = sys.argv[1] + '/shard-000000.lmdb'; os.truncate(p, os.path.getsize(p) // 2); list(s)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == 1 and "CorruptShard: shard-000000.lmdb: expected" in done.stderr


def test_an_index_of_another_shard_is_refused(tmp_path: Path) -> None:
    folder = pack_set(tmp_path / "o", numbered(N))
    (folder / "shard-000004.tar.idx").replace(folder / "shard-000000.tar.idx")
    (folder / "shard-000004.tar.idx").write_bytes((folder / "shard-000001.tar.idx").read_bytes())
    with pytest.raises(ShardError, match="the index has 7 samples, the manifest 10"):
        open_shards(folder)[0]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/nowhere/at/all", "/nowhere/at/all is not there"),
        ([], "an empty list"),
        (7, "cannot open 7"),
        (b"a", "cannot open b'a'"),
    ],
)
def test_a_source_that_is_none_is_refused(source: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_shards(source)


def test_a_relative_path_means_the_same_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack_set(tmp_path / "o", numbered(3))
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(open_shards("o"))
    monkeypatch.chdir("/")
    assert len(pickle.loads(data)) == 3


def test_the_manifest_itself_opens_the_set(folders: dict[str, Path], fmt: str) -> None:
    assert len(open_shards(folders[fmt] / "streamio.json")) == N


def test_a_set_of_no_samples(tmp_path: Path) -> None:
    opened = open_shards(pack_set(tmp_path / "o", []))
    assert len(opened) == 0 and list(opened) == [] and opened.sizes.tolist() == [] and dict(opened.columns) == {}
    assert opened.gather(np.array([], np.int64), []) == {}
    with pytest.raises(IndexError, match="row 0 of 0 samples"):
        opened[0]


def test_opening_reads_the_manifest_and_no_shard(folders: dict[str, Path], fmt: str) -> None:
    opened = open_shards(folders[fmt])
    len(opened), opened.sizes, opened.fields, opened.fingerprint, repr(opened), opened.locate(3)
    assert opened.stats().opens == 0
    assert json.loads((folders[fmt] / "streamio.json").read_bytes())["samples"] == N


@given(data=st.data())
def test_gather_equals_row_by_row(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    fmt = data.draw(st.sampled_from(["tar", "lmdb", "hdf5"]))
    values = data.draw(st.lists(st.binary(max_size=20) | st.none(), min_size=1, max_size=25))
    samples: list[dict[str, Any]] = [
        {"__key__": f"k{i}", "x": np.full((2, i % data.draw(st.integers(1, 2)) + 1), i, np.uint8), "n": i * 0.5,
         **({} if value is None else {"bin": value})}
        for i, value in enumerate(values)
    ]  # fmt: skip
    folder = pack_set(tmp_path_factory.mktemp("any") / "o", samples, fmt, data.draw(st.integers(1, 9)))
    opened: ShardSet = open_shards(folder, max_open=2)
    if data.draw(st.booleans()):
        chosen = data.draw(st.lists(st.integers(0, len(samples) - 1), unique=True))
        opened, samples = opened.where(chosen), [samples[i] for i in sorted(chosen)]
    if not samples:
        return
    wanted = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=30))
    batch = opened.gather(np.array(wanted, np.int64), [name for name in ("x", "n", "bin") if name in opened.fields])
    for place, i in enumerate(wanted):
        sample = opened[i]
        assert sample["n"] == samples[i]["n"] == batch["n"].values[place]
        assert (sample["x"] == samples[i]["x"]).all()
        assert sample.get("bin") == samples[i].get("bin")
        if "bin" in batch:
            assert plain(batch["bin"].values[place]) == samples[i].get("bin")
        x = batch["x"].values[place]
        assert x is not None
        assert isinstance(x, memoryview) or (x == samples[i]["x"]).all()
