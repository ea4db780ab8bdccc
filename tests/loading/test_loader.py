"""StreamLoader: what it refuses before any worker starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamio import ShardDataset, StreamLoader, TailError, UsageError
from tests.sets import make_set


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": "all"}, "num_workers='all'"),
        ({"context": "thread"}, "context='thread'. Use one of fork, spawn, forkserver"),
        ({"timeout": -1}, "timeout=-1"),
        ({"timeout": "5"}, "timeout='5'"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StreamLoader(ShardDataset(make_set(tmp_path / "s", 3), 2), **options)


def test_anything_but_a_data_set_of_ours_is_refused() -> None:
    with pytest.raises(UsageError, match="reads a data set of streamio, not list"):
        StreamLoader([1, 2])  # type: ignore[arg-type]


def test_an_epoch_that_cannot_be_even_is_refused_before_any_worker_starts(tmp_path: Path) -> None:
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 3), 1, rank=0, world_size=2), num_workers=2)
    for ask in (len, iter):
        with pytest.raises(TailError, match="pad"):
            ask(loader)
    assert loader.worker_pids() == []
