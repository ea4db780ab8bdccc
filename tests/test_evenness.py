"""Evenness: the cases in which other loaders hung, dropped or repeated samples."""

from __future__ import annotations

import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import streamio
from streamio import ShardDataset, StreamLoader, TailError
from tests.sets import keys, make_set, numbered, read, sizes


def ranks(path: str, world: int, **options: Any) -> list[list[Any]]:
    return [read(path, rank=rank, world_size=world, **options) for rank in range(world)]


def all_keys(n: int) -> list[str]:
    return [s["__key__"] for s in numbered(n)]


def test_split_02_ten_samples_in_one_shard_reach_four_ranks_with_two_workers(tmp_path: Path) -> None:
    """webdataset/webdataset#68, #72; mosaicml/composer#746."""
    path = make_set(tmp_path / "s", 10, shard_samples=10)
    got = ranks(path, 4, batch_size=2, workers=2)
    assert {len(b) for b in got} == {2}
    assert sorted(n for b in got for n in sizes(b)) == [1] * 6 + [2] * 2
    assert sorted(k for b in got for k in keys(b)) == all_keys(10)


@pytest.mark.parametrize("workers", [0, 3])
def test_split_04_uneven_shards_give_every_rank_as_many_batches(tmp_path: Path, workers: int) -> None:
    """Lightning-AI/litData#233; huggingface/datasets#6623, #7854, #6437; mlcommons/storage#455."""
    many = iter(numbered(54))
    for name, n in (("a", 1), ("b", 50), ("c", 3)):
        streamio.write([next(many) for _ in range(n)], tmp_path / name)
    tars = sorted(str(p) for p in tmp_path.glob("*/*.tar"))
    for world in range(1, 6):
        got = ranks(tars, world, workers=workers, fields=None)  # type: ignore[arg-type]
        assert len({len(b) for b in got}) == 1
        assert sorted(k for b in got for k in keys(b)) == all_keys(54)


def test_split_04_by_hand(tmp_path: Path) -> None:
    """100 samples, 3 ranks, batch 4: nine batches each, the last two steps share 16."""
    got = ranks(make_set(tmp_path / "s", 100), 3)
    assert [sizes(b)[:7] for b in got] == [[4] * 7] * 3
    assert sorted(n for b in got for n in sizes(b)[7:]) == [2, 2, 3, 3, 3, 3]
    assert sorted(k for b in got for k in keys(b)) == all_keys(100)


def test_split_05_an_even_epoch_that_cannot_be_is_refused_on_all_ranks(tmp_path: Path) -> None:
    """huggingface/datasets#6623; deepspeedai/DeepSpeed#5118."""
    path = make_set(tmp_path / "s", 10)
    for rank in range(4):
        dataset = ShardDataset(path, 1, rank=rank, world_size=4)
        for attempt in (
            lambda d=dataset: iter(d),
            lambda d=dataset: len(d),
            lambda d=dataset: iter(StreamLoader(d)),
        ):
            with pytest.raises(TailError, match=r"10 samples.*4 ranks.*pad.*drop"):
                attempt()
    assert [len(b) for b in ranks(path, 4, batch_size=1, tail="drop")] == [2] * 4
    assert [len(b) for b in ranks(path, 4, batch_size=1, tail="pad")] == [3] * 4


def test_split_06_drop_leaves_out_the_last_batch_only(tmp_path: Path) -> None:
    """pytorch/pytorch#33413; facebookresearch/detectron2#5035."""
    path = make_set(tmp_path / "s", 46)
    dropped = read(path, 8, workers=3, tail="drop")
    assert sizes(dropped) == [8] * 5
    assert keys(dropped) == all_keys(40)
    assert sizes(read(path, 8, workers=3)) == [8, 8, 8, 8, 7, 7]
    assert sizes(read(make_set(tmp_path / "t", 1000, shard_samples=300), 128, workers=10, tail="drop")) == [128] * 7


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_split_07_len_is_the_number_of_batches_whenever_it_is_asked(tmp_path: Path, workers: int) -> None:
    """pytorch/pytorch#38925, #110029; webdataset/webdataset#47; Lightning-AI/litData#772."""
    grid = product((1, 7, 46, 100), (1, 3, 8), (1, 2, 3), ("even", "drop", "pad"))
    sets = {n: make_set(tmp_path / str(n), n) for n in (1, 7, 46, 100)}
    if workers:  # starting processes is what takes the time: every 7th cell
        grid = list(grid)[::7]  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # fewer CPUs than workers
        for n, batch, world, tail in grid:
            dataset = ShardDataset(sets[n], batch, tail=tail, rank=world - 1, world_size=world)  # type: ignore[arg-type]
            loader = DataLoader(dataset, batch_size=None, num_workers=workers)
            try:
                before = len(loader)
            except TailError:
                assert tail == "even"
                continue
            during = [len(loader) for _ in loader]
            assert set(during) <= {before}
            assert len(during) == before == len(loader)


def test_seed_03_ranks_agree_without_a_seed_and_with_other_hash_seeds(tmp_path: Path) -> None:
    """huggingface/datasets#5696; webdataset/webdataset#347, #372."""
    path = make_set(tmp_path / "s", 100)
    code = (
        "import sys, streamio; d = streamio.ShardDataset(sys.argv[1], 4, shuffle=True, rank=int(sys.argv[2]),"
        " world_size=2); print(*(k for b in d for k in b['__key__']))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code, path, str(rank)],
            env={"PYTHONHASHSEED": str(rank), "PATH": ""}, capture_output=True, text=True, check=True,
        ).stdout.split()
        for rank in range(2)
    ]  # fmt: skip
    assert sorted(key for rank in found for key in rank) == all_keys(100)


@pytest.mark.parametrize("shuffle", [True, "global"])
def test_seed_05_batches_of_a_class_sorted_set_are_mixed(tmp_path: Path, shuffle: bool | str) -> None:
    """webdataset/webdataset#71, #62."""
    path = make_set(tmp_path / "s", 1000, shard_samples=100)
    order = np.concatenate([b["cls"] for b in read(path, 50, shuffle=shuffle)])
    assert min(len(set(batch // 100)) for batch in order.reshape(20, 50)) >= 6
    assert np.abs(np.argsort(order) - np.arange(1000)).mean() > 250


@pytest.mark.parametrize("shuffle", [False, True, "global", "shards"])
def test_batch_06_short_batches_come_only_at_the_end(tmp_path: Path, shuffle: bool | str) -> None:
    """ray-project/ray#66085: 1003 samples in shards of 1, 7, 400 and 595."""
    many = iter(numbered(1003))
    for i, n in enumerate((1, 7, 400, 595)):
        streamio.write([next(many) for _ in range(n)], tmp_path / str(i))
    tars = sorted(str(p) for p in tmp_path.glob("*/*.tar"))
    assert sizes(read(tars, 16, shuffle=shuffle)) == [16] * 61 + [14, 13]


def test_batch_07_no_batch_of_one_sample_at_the_end(tmp_path: Path) -> None:
    """pyg-team/pytorch_geometric#199."""
    path = make_set(tmp_path / "s", 33)
    assert sizes(read(path, 16)) == [16, 9, 8]
    assert sizes(read(path, 16, tail="drop")) == [16, 16]
    padded = read(path, 16, tail="pad")
    assert sizes(padded) == [16, 16, 16]
    assert sum(int((~b["__valid__"]).sum()) for b in padded) == 15
    assert all(b["__valid__"].dtype == torch.bool for b in padded)
