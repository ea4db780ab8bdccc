"""The same epoch wherever it is made: augmented pictures, labels and batch transforms, hashed."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader

from streamio import StreamLoader
from tests.augmented import MIXED, SAMPLES, augmented, batch_hashes, picture_set, sample_hashes

WAYS: list[dict[str, Any]] = [
    {"transport": "inline"},
    {"transport": "thread", "num_workers": 1},
    {"transport": "thread", "num_workers": 4},
    {"transport": "process", "num_workers": 1, "context": "fork"},
    {"transport": "process", "num_workers": 3, "context": "fork"},
    {"transport": "process", "num_workers": 2, "context": "fork", "threads": 2},
    {"transport": "process", "num_workers": 2, "context": "spawn"},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return picture_set(tmp_path_factory.mktemp("pictures") / "s")


@pytest.fixture(scope="module")
def epochs(path: str) -> list[list[str]]:
    """What the data set itself yields in two epochs."""
    dataset = augmented(path, batch_transform=MIXED)
    return [batch_hashes(dataset) for _ in range(2)]


def test_epochs_differ_in_all_batches_and_come_again(path: str, epochs: list[list[str]]) -> None:
    assert len(set(epochs[0] + epochs[1])) == 2 * -(-SAMPLES // 8)
    again = augmented(path, batch_transform=MIXED)
    assert [batch_hashes(again) for _ in range(2)] == epochs


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_the_same_two_epochs_by_every_transport(path: str, epochs: list[list[str]], way: dict[str, Any]) -> None:
    loader = StreamLoader(augmented(path, batch_transform=MIXED), **way)
    assert [batch_hashes(loader) for _ in range(2)] == epochs
    loader.close()


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork"), (3, "fork"), (1, "spawn")])
def test_the_same_epoch_by_a_plain_dataloader(
    path: str, epochs: list[list[str]], workers: int, method: str | None
) -> None:
    loader = DataLoader(
        augmented(path, batch_transform=MIXED), batch_size=None, num_workers=workers, multiprocessing_context=method
    )
    assert batch_hashes(loader) == epochs[0]


def test_the_same_rest_of_an_epoch_after_a_resume(path: str, epochs: list[list[str]]) -> None:
    loader = StreamLoader(augmented(path, batch_transform=MIXED), num_workers=2)
    batches = iter(loader)
    first = batch_hashes(next(batches) for _ in range(3))
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    rest = StreamLoader(augmented(path, batch_transform=MIXED), num_workers=3)
    rest.load_state_dict(state)
    assert first + batch_hashes(rest) == epochs[0]
    assert batch_hashes(rest) == epochs[1]
    rest.close()


def test_the_same_samples_on_two_ranks_with_the_same_global_batch(path: str, tmp_path: Path) -> None:
    """Real processes of a gloo group, each with a worker. Their batches are slices, so batch transforms differ."""
    alone = [sample_hashes(dataset) for dataset in [augmented(path, 8)] for _ in range(2)]
    assert [len(epoch) for epoch in alone] == [SAMPLES, SAMPLES] and not alone[0] & alone[1]
    context = multiprocessing.get_context("fork")  # under spawn torch would be loaded twice more
    ranks = [context.Process(target=one_rank, args=(rank, path, str(tmp_path))) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        parts = [{tuple(sample) for sample in rank[epoch]} for rank in seen]
        assert not parts[0] & parts[1]
        assert parts[0] | parts[1] == alone[epoch]


def one_rank(rank: int, path: str, folder: str) -> None:
    dataset = augmented(path, 4)  # before the process group is there
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    loader = StreamLoader(dataset, num_workers=1, context="fork")
    Path(folder, f"rank{rank}.json").write_text(json.dumps([sorted(sample_hashes(loader)) for _ in range(2)]))
    loader.close()
    dist.destroy_process_group()
