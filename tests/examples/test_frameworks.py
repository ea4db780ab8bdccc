"""No framework shares our batches out a second time, or loses the place in an epoch: else an error says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamio import ShardDataset
from tests.examples.launch import ranks
from tests.sets import make_set

pytestmark = pytest.mark.timeout(400)  # on a busy machine
N, BATCH = 64, 4
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found_by_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("out")
    ranks(2, str(HERE / "splits.py"), str(out), make_set(out / "s", N))
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    "how", ["dispatched", "dispatched, workers", "sharded", "sharded, spawned", "stateful", "trainer"]
)
def test_a_second_split_is_refused_on_all_ranks_with_the_way_out(
    found_by_ranks: list[dict[str, Any]], how: str
) -> None:
    for found in found_by_ranks:
        assert found["ranks"] == 2
        assert found[how].startswith("UsageError: Accelerate would share the batches out among 2 ranks")
        assert "StreamLoader" in found[how] and "get_train_dataloader" in found[how]


def test_a_trainer_that_would_make_batches_of_batches_is_told_what_to_override(
    found_by_ranks: list[dict[str, Any]],
) -> None:
    for found in found_by_ranks:
        assert found["trainer, undivided"].startswith(
            "UsageError: Hugging Face's Trainer makes a DataLoader of its own"
        )
        assert "Override get_train_dataloader" in found["trainer, undivided"]


def test_accelerate_leaves_a_stream_loader_as_it_is(found_by_ranks: list[dict[str, Any]]) -> None:
    assert all(found["prepared is itself"] for found in found_by_ranks)
    assert sorted(n for found in found_by_ranks for n in found["mine"]) == list(range(N))
    for found in found_by_ranks:
        assert "not a DataLoader" in found["prepare_data_loader"]
        assert "not a DataLoader" in found["skipping"] and "ignore_data_skip=True" in found["skipping"]


def test_a_data_set_told_that_there_is_one_rank_may_be_dealt_out(found_by_ranks: list[dict[str, Any]]) -> None:
    assert sorted(n for found in found_by_ranks for n in found["dealt out"]) == list(range(N))


@pytest.fixture(scope="module")
def found_by_lightning(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("out")
    ranks(1, str(HERE / "lightning_epochs.py"), str(out), make_set(out / "s", N))
    found: dict[str, Any] = json.loads((out / "found.json").read_text())
    return found


def test_lightning_has_the_epochs_of_the_data_set(found_by_lightning: dict[str, Any], tmp_path: Path) -> None:
    data, steps = ShardDataset(make_set(tmp_path / "s", N), BATCH, shuffle=True), N // BATCH
    wanted = [[e, b, labels] for e in range(3) for b, labels in enumerate(batch["cls"].tolist() for batch in data)]
    assert len(wanted) == 3 * steps
    assert found_by_lightning["whole"] == wanted


def test_lightning_goes_on_in_the_middle_of_an_epoch_and_has_whole_ones_after_it(
    found_by_lightning: dict[str, Any],
) -> None:
    assert found_by_lightning["from the middle of epoch 1"] == found_by_lightning["whole"][25:]
    assert found_by_lightning["lengths"] == [N // BATCH] * 2


def test_lightning_goes_on_after_the_end_of_an_epoch(found_by_lightning: dict[str, Any]) -> None:
    assert found_by_lightning["from the end of epoch 0"] == found_by_lightning["whole"][N // BATCH :]


def test_lightning_is_refused_other_global_batches_in_the_middle_of_an_epoch(
    found_by_lightning: dict[str, Any],
) -> None:
    said = found_by_lightning["other batches"]
    assert said.startswith("UsageError: ") and "9 of 4 samples" in said and "batch_size=4 // ranks" in said
