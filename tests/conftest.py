"""What every test may use. A hang prints all stacks (pytest-timeout) and fails."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: a fork with its threads hangs

import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

pytest_plugins = ["tests.servers.fixtures"]

# Two workers of pytest on a busy machine make any example slow at times.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.register_profile("all", deadline=None, max_examples=100)

FORMATS = ("tar", "lmdb", "hdf5")


@pytest.fixture(params=FORMATS)
def fmt(request: pytest.FixtureRequest) -> str:
    """Each shard format in turn."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of downloads and foreign indexes never outlive a test."""
    monkeypatch.setenv("STREAMIO_CACHE", str(tmp_path_factory.mktemp("cache")))


_iterators: weakref.WeakSet[Any] = weakref.WeakSet()
_queues: list[Any] = []


@pytest.fixture(autouse=True, scope="session")
def _iterators_are_known() -> None:
    """Those of DataLoaders with workers, and the queues to their workers."""
    begin = _MultiProcessingDataLoaderIter.__init__

    def known(self: Any, loader: Any) -> None:
        begin(self, loader)
        _iterators.add(self)
        _queues.extend(self._index_queues)

    _MultiProcessingDataLoaderIter.__init__ = known  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _dataloaders_end_at_once() -> Iterator[None]:
    """One whose loop raised is part of a cycle with the traceback. Collected with its queues it would wait for 5
    seconds: they are closed before it can tell its workers through them to end."""
    yield
    for iterator in list(_iterators):
        iterator._shutdown_workers()
    _queues.clear()


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("quick" if "not slow" in config.getoption("markexpr") else "all")


def pytest_collection_finish() -> None:
    """What is imported stays: no collection needs to look at it again, here or in a forked worker."""
    gc.collect()
    gc.freeze()


def _imports(module: str) -> bool:
    """Not only whether it is installed: a torchvision that is not of torch's build raises as it is imported."""
    try:
        import_module(module)
    except Exception:
        return False
    return True


NEEDS = {
    "cuda": torch.cuda.is_available,
    "no_cuda": lambda: not torch.cuda.is_available(),
    "dali": lambda: find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None,
    "torchvision": lambda: _imports("torchvision"),
}
"""Markers of tests that need a machine or a package that CI does not have; "deselected" counts them."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacking = {name for name, there in NEEDS.items() if not there()}
    left = [item for item in items if any(item.get_closest_marker(name) for name in lacking)]
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)
