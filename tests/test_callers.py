"""What a framework does around a data set: it sets epochs, and looks for what a DataLoader has."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from streamio import Mixture, ShardDataset, StreamLoader, UsageError
from tests.sets import keys, make_set

N, BATCH = 64, 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_set(tmp_path_factory.mktemp("set") / "s", N)


def single(path: str) -> Any:
    return ShardDataset(path, BATCH, shuffle=True)


def mixture(path: str) -> Any:
    return Mixture({"a": (ShardDataset(path, 1, shuffle=True), 1.0)}, BATCH)


@pytest.fixture(params=[single, mixture])
def loader(request: pytest.FixtureRequest, path: str) -> StreamLoader:
    return StreamLoader(request.param(path), num_workers=0)


@pytest.fixture
def saved(request: pytest.FixtureRequest, loader: StreamLoader, path: str) -> tuple[list[str], dict[str, Any]]:
    """What a run got of epochs 0 and 1, of which the second is not over, and its state."""
    make = single if isinstance(loader.dataset, ShardDataset) else mixture
    before = StreamLoader(make(path), num_workers=0)
    got = [*keys(before), *keys(islice(before, 5))]
    return got, before.state_dict()


def test_setting_the_epoch_that_a_state_is_in_keeps_the_place(
    loader: StreamLoader, saved: tuple[list[str], dict[str, Any]]
) -> None:
    got, state = saved
    loader.load_state_dict(state)
    loader.set_epoch(1)
    loader.set_epoch(1)
    assert len(loader) == N // BATCH - 5
    rest = keys(loader)
    assert len(rest) == N - 5 * BATCH
    assert sorted(got[N:] + rest) == sorted(got[:N])


def test_setting_another_epoch_than_that_of_a_state_is_refused(
    loader: StreamLoader, saved: tuple[list[str], dict[str, Any]]
) -> None:
    loader.load_state_dict(saved[1])
    with pytest.raises(UsageError, match=r"set_epoch\(0\), but a state was loaded that goes on in epoch 1"):
        loader.set_epoch(0)
    assert len(keys(loader)) == N - 5 * BATCH


def test_an_epoch_can_be_repeated_as_a_whole_once_the_resumed_one_has_begun(path: str) -> None:
    before = StreamLoader(single(path), num_workers=0)
    whole = keys(before)
    loader = StreamLoader(single(path), num_workers=0)
    loader.load_state_dict(single(path).state_at(3, 0))
    assert keys(loader) == whole[3 * BATCH :]
    loader.set_epoch(0)
    assert keys(loader) == whole


def test_what_only_a_dataloader_has_is_named_as_such(path: str) -> None:
    loader = StreamLoader(single(path), num_workers=0)
    for name in ("sampler", "drop_last", "batch_size"):
        assert not hasattr(loader, name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}': it is not a DataLoader"):
            getattr(loader, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        loader.nothing  # noqa: B018


def test_the_epoch_set_as_lightning_does_is_that_of_the_loader(path: str) -> None:
    loader = StreamLoader(single(path), num_workers=0)
    loader.batch_sampler.sampler.set_epoch(7)
    assert loader.epoch == 7
