"""The promise of the whole: for each format, start method, number of workers and ranks, size and tail, every
sample comes as often as the tail says, all ranks get the same number of batches, and `len()` is exact.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import streamio
from streamio import ShardDataset
from tests.conftest import FORMATS
from tests.sets import Several, keys, make_set, read

RANKS = (1, 2, 4)
SIZES = (7, 64, 304)
TAILS = ("even", "drop", "pad")
BATCH = 3


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], str]:
    root = tmp_path_factory.mktemp("sets")
    return {(f, n): make_set(root / f"{f}-{n}", n, f, max(2, n // 9)) for f, n in product(FORMATS, SIZES)}


def datasets(sets: dict[tuple[str, int], str]) -> dict[Any, ShardDataset]:
    tables = {name: streamio.open(path) for name, path in sets.items()}
    return {
        (fmt, n, tail, world, rank): ShardDataset(
            tables[fmt, n], BATCH, fields=None, shuffle=True, seed=n, tail=tail, rank=rank, world_size=world
        )
        for fmt, n, tail, world in product(FORMATS, SIZES, TAILS, RANKS)
        for rank in range(world)
    }


@pytest.fixture(scope="module")
def expected(sets: dict[tuple[str, int], str]) -> dict[Any, list[Any]]:
    return {case: [content(batch) for batch in dataset] for case, dataset in datasets(sets).items()}


def content(batch: dict[str, Any]) -> tuple[Any, ...]:
    """Everything in a batch, comparable."""
    numbers = [int(key.rpartition("/")[2]) for key in batch["__key__"]]
    assert batch["cls"].tolist() == numbers
    assert batch["x"].tolist() == [[float(i)] * 3 for i in numbers]
    assert batch["txt"] == [f"text {i}" for i in numbers]
    valid = batch.get("__valid__")
    return tuple(numbers), None if valid is None else tuple(valid.tolist())


def slow(workers: int, method: str, *formats: str) -> Any:
    return pytest.param(workers, method, formats, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("workers", "method", "formats"),
    [
        (0, None, FORMATS), (3, "fork", FORMATS), slow(1, "fork", *FORMATS), (1, "spawn", FORMATS),
        slow(3, "spawn", *FORMATS), (3, "forkserver", ("hdf5",)),
        # A server takes no more files along than those of one format's data sets.
        slow(3, "forkserver", "tar"), slow(3, "forkserver", "lmdb"), slow(1, "forkserver", "hdf5"),
    ],
)  # fmt: skip
def test_every_sample_once_on_every_topology(
    sets: dict[tuple[str, int], str],
    expected: dict[Any, list[Any]],
    workers: int,
    method: str | None,
    formats: tuple[str, ...],
) -> None:
    cases = {case: dataset for case, dataset in datasets(sets).items() if case[0] in formats}
    lengths = {case: len(ds) for case, ds in cases.items()}
    loader = DataLoader(Several(cases), batch_size=None, num_workers=workers, multiprocessing_context=method)
    got: dict[Any, list[Any]] = defaultdict(list)
    for case, batch in loader:
        got[tuple(case)].append(content(batch))  # DataLoader makes lists of tuples
    for case in cases:
        assert Counter(got[case]) == Counter(expected[case]), case
        assert len(got[case]) == lengths[case], case
    for fmt, n, tail, world in product(formats, SIZES, TAILS, RANKS):
        ranks = [got[fmt, n, tail, world, rank] for rank in range(world)]
        assert len({len(batches) for batches in ranks}) == 1
        seen = Counter(i for batches in ranks for numbers, _ in batches for i in numbers)
        assert_tail(tail, n, world, seen, ranks)


def assert_tail(tail: str, n: int, world: int, seen: Counter[int], ranks: list[list[Any]]) -> None:
    step = BATCH * world
    if tail == "even":
        assert seen == Counter(range(n))
    elif tail == "drop":
        assert seen.total() == n // step * step
        assert max(seen.values(), default=1) == 1
    else:
        pairs = [p for batches in ranks for numbers, valid in batches for p in zip(numbers, valid, strict=True)]
        assert Counter(i for i, real in pairs if real) == Counter(range(n))
        assert len(pairs) == -(-n // step) * step


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_ranks_batches_come_in_the_same_order_for_any_number_of_workers(
    sets: dict[tuple[str, int], str], fmt: str, workers: int
) -> None:
    options: dict[str, Any] = {"shuffle": True, "rank": 1, "world_size": 2}
    alone = [content(b) for b in read(sets[fmt, 64], BATCH, **options)]
    assert [content(b) for b in read(sets[fmt, 64], BATCH, workers=workers, **options)] == alone


def test_formats_give_the_same_batches(sets: dict[tuple[str, int], str]) -> None:
    by_format = [[content(b) for b in read(sets[f, 64], 5, shuffle="global", seed=3)] for f in FORMATS]
    assert by_format[0] == by_format[1] == by_format[2]


@pytest.mark.parametrize("shuffle", ["block", "global", "shards"])
def test_a_step_holds_the_same_samples_on_any_number_of_ranks(
    sets: dict[tuple[str, int], str], shuffle: str
) -> None:
    steps = []
    for world in (1, 2, 4):
        ranks = [
            read(sets["tar", 304], 12 // world, shuffle=shuffle, rank=rank, world_size=world)
            for rank in range(world)
        ]
        steps.append([keys(step) for step in zip(*ranks, strict=True)])
    assert steps[0] == steps[1] == steps[2]


def test_two_epochs_differ_and_both_are_whole(sets: dict[tuple[str, int], str], fmt: str) -> None:
    dataset = ShardDataset(sets[fmt, 64], 5, shuffle=True)
    first, second = keys(dataset), keys(dataset)
    assert first != second and sorted(first) == sorted(second)
    dataset.set_epoch(0)
    assert keys(dataset) == first


def test_a_path_with_odd_characters_is_a_path(tmp_path: Path, fmt: str) -> None:
    odd = tmp_path / "{a..b} [c]*?%20 ü"
    make_set(odd, 7, fmt)
    assert len(keys(read(str(odd)))) == 7
