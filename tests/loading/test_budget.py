"""How many workers, and how many batches ahead."""

from __future__ import annotations

import pytest

from streamio import UsageError
from streamio.loading import budget
from streamio.loading.budget import made_ahead, worker_count


@pytest.mark.parametrize(
    ("cpus", "ranks", "workers"), [(8, "", 8), (8, "2", 4), (2, "8", 1), (64, "1", 16), (64, "8", 8)]
)
def test_auto_shares_the_cpus_among_the_ranks_of_the_node(
    monkeypatch: pytest.MonkeyPatch, cpus: int, ranks: str, workers: int
) -> None:
    monkeypatch.setattr(budget, "usable_cpus", lambda: cpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert worker_count("auto") == workers
    assert worker_count(0) == 0 and worker_count(3) == 3


@pytest.mark.parametrize("number", [-1, True, 1.0, "all", None])
def test_what_is_no_number_of_workers_is_refused(number: object) -> None:
    with pytest.raises(UsageError, match="num_workers="):
        worker_count(number)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch_bytes", "bundle", "workers", "expected"),
    [
        (1 << 30, 1, 4, (1, 2)),
        (1 << 20, 1, 8, (1, 16)),
        (4 << 20, 1, 4, (1, 8)),
        (0, 1, 1, (1, 16)),
        (1 << 18, 8, 2, (8, 2)),
        (1 << 18, 2, 2, (2, 8)),
        (1 << 18, 8, 64, (4, 2)),
    ],
)
def test_what_is_made_ahead_fits_the_budget_and_is_2_bundles_to_16_batches(
    batch_bytes: int, bundle: int, workers: int, expected: tuple[int, int]
) -> None:
    assert made_ahead(batch_bytes, bundle, workers) == expected


def test_no_budget_leaves_two_batches_one_by_one() -> None:
    assert made_ahead(1 << 18, 8, 2, budget=1) == (1, 2)
