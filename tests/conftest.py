"""What every test may use. A hang prints all stacks (pytest-timeout) and fails."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["tests.servers.fixtures"]

# Two workers of pytest on a busy machine make any example slow at times.
hypothesis.settings.register_profile("streamio", deadline=None)
hypothesis.settings.load_profile("streamio")

FORMATS = ("tar", "lmdb", "hdf5")


@pytest.fixture(params=FORMATS)
def fmt(request: pytest.FixtureRequest) -> str:
    """Each shard format in turn."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of downloads and foreign indexes never outlive a test."""
    monkeypatch.setenv("STREAMIO_CACHE", str(tmp_path_factory.mktemp("cache")))


NEEDS = {
    "cuda": torch.cuda.is_available,
    "no_cuda": lambda: not torch.cuda.is_available(),
    "dali": lambda: find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None,
}
"""Markers of tests that need a machine or a package of 800 MB that CI does not have; "deselected" counts them."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacking = {name for name, there in NEEDS.items() if not there()}
    left = [item for item in items if any(item.get_closest_marker(name) for name in lacking)]
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)
