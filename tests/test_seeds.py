"""Seeds of global generators. SEED-01 is in processes/test_workers.py, the whole epoch in test_same_epoch.py."""

from __future__ import annotations

import multiprocessing
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from streamio import ShardDataset, StreamLoader
from streamio.rng import BATCH, DECODE, TRANSFORM, batch_seed, generator
from tests.sets import make_set


def noisy(sample: dict[str, Any]) -> dict[str, Any]:
    """An augmentation as it is often written: from the global generators."""
    drawn = [random.random(), float(np.random.random()), float(torch.rand(1, dtype=torch.float64))]
    return {"__key__": sample["__key__"], "drawn": np.array(drawn)}


def draws(batches: Any) -> list[tuple[float, ...]]:
    return [tuple(row) for batch in batches for row in batch["drawn"].tolist()]


def _three_draws(send: Any) -> None:
    send.send(np.random.random(3).tolist())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_set(tmp_path_factory.mktemp("sets") / "s", 48)


def test_the_old_fault_is_there_without_us_all_forked_processes_draw_the_same_of_numpy() -> None:
    np.random.random()  # numpy makes its generator when it is first asked for one
    context = multiprocessing.get_context("fork")
    seen = []
    for _ in range(2):
        receive, send = context.Pipe(False)
        process = context.Process(target=_three_draws, args=(send,))
        process.start()
        seen.append(receive.recv())
        process.join()
    assert seen[0] == seen[1]


@pytest.mark.parametrize("plain", [False, True], ids=["StreamLoader", "DataLoader"])
def test_with_us_each_worker_and_sample_and_epoch_draws_its_own(path: str, plain: bool) -> None:
    def run(workers: int) -> list[tuple[float, ...]]:
        dataset = ShardDataset(path, 4, shuffle=True, transform=noisy)
        loader: Any = (
            DataLoader(dataset, batch_size=None, num_workers=workers)
            if plain
            else StreamLoader(dataset, num_workers=workers)
        )
        return draws(loader) + draws(loader)

    drawn = run(3)
    assert len(drawn) == 96
    for one_generator in zip(*drawn, strict=True):
        assert len(set(one_generator)) == 96
    random.seed(1)  # whatever the main process did before
    np.random.seed(1)
    torch.manual_seed(1)
    assert run(3) == drawn
    assert run(2) == drawn


def test_a_resumed_run_draws_what_the_uninterrupted_one_did_and_nothing_again(path: str) -> None:
    def dataset() -> ShardDataset:
        return ShardDataset(path, 4, shuffle=True, transform=noisy)

    whole = draws(StreamLoader(dataset(), num_workers=2))
    resumed = dataset()
    resumed.load_state_dict(resumed.state_at(5))
    assert draws(StreamLoader(resumed, num_workers=3)) == whole[20:]


def test_a_batch_transform_draws_from_seeded_generators_too(path: str) -> None:
    def run() -> list[tuple[float, ...]]:
        dataset = ShardDataset(path, 4, batch_transform=lambda batch: {"drawn": torch.rand(1, 2)})
        return draws(StreamLoader(dataset, num_workers=2))

    assert run() == run() and len(set(run())) == 12


def test_generators_differ_by_seed_epoch_row_and_use() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0), (2**63, 1 << 40, 1 << 50)]
    keys = [(*key, use) for key in keys for use in (DECODE, TRANSFORM, BATCH)]
    assert len({generator(*key).random() for key in keys}) == len(keys)
    assert all(generator(*key).random() == generator(*key).random() for key in keys)


def test_seeds_of_batches_differ_by_seed_epoch_and_row() -> None:
    seeds = [batch_seed(s, e, r) for s in (0, 1, -1) for e in (0, 1, 1 << 40) for r in (0, 1, 1 << 50)]
    assert len(set(seeds)) == 27 and all(0 <= seed < 1 << 63 for seed in seeds)
