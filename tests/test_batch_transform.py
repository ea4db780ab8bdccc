"""`batch_transform`: what a user's function of a whole batch gets, and what becomes of what it returns."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamio
from streamio import CutMix, Mixture, MixUp, SampleError, ShardDataset, StreamLoader, TransformError, UsageError
from tests.sets import keys, make_set


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_set(tmp_path_factory.mktemp("sets") / "s", 40)


def drawn(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**batch, "drawn": np.full(len(batch["cls"]), rng.random())}


def draws(batches: Any) -> list[float]:
    return [float(batch["drawn"][0]) for batch in batches]


def test_it_gets_what_the_loop_would_get(path: str) -> None:
    seen: list[Any] = []
    options = {"batch_transform": lambda batch: seen.append(batch) or batch}
    (first, *_), without = list(ShardDataset(path, 4, **options)), next(iter(ShardDataset(path, 4)))
    assert list(seen[0]) == list(without) and type(seen[0]["x"]) is torch.Tensor
    assert torch.equal(seen[0]["x"], without["x"]) and first["x"] is not None
    *_, last = ShardDataset(path, 4, fields=("x", "txt"), **options)
    assert isinstance(seen[-1], tuple) and isinstance(last, tuple) and last[1] == seen[-1][1]


def test_what_it_returns_is_delivered_as_tensors_whatever_it_is(path: str) -> None:
    for made, expected in [
        (np.arange(3), torch.arange(3)),
        ({"a": [np.ones(2)], "b": (np.zeros(2, np.float32),)}, {"a": [np.ones(2)], "b": (torch.zeros(2),)}),
        ("text", "text"),
    ]:
        batch = next(iter(ShardDataset(path, 4, batch_transform=lambda batch, made=made: made)))
        assert repr(batch) == repr(expected)


@pytest.mark.parametrize("transport", ["inline", "thread", "process"])
def test_arrays_of_its_own_reach_the_loop_by_any_transport(path: str, transport: Any) -> None:
    """More than what travels inside the pickle; what it keeps of the batch lies in the slot already."""

    def larger(batch: dict[str, Any]) -> dict[str, Any]:
        number = batch["cls"].view(-1, 1)
        return {**batch, "new": number.repeat(1, 50_000), "same": batch["x"], "numpy": number.numpy() * np.ones(9)}

    dataset = ShardDataset(path, 4, shuffle=True, batch_transform=larger)
    workers = {} if transport == "inline" else {"num_workers": 2}
    loader = StreamLoader(dataset, transport=transport, **workers)
    kept = [batch for _ in range(2) for batch in loader]
    assert len(kept) == 20
    for batch in kept:
        number = batch["cls"].view(-1, 1)
        assert torch.equal(batch["new"], number.expand(-1, 50_000))
        assert torch.equal(batch["same"], number.expand(-1, 3).float())
        assert torch.equal(batch["numpy"], number.expand(-1, 9).double())
    loader.close()


def test_its_rng_differs_between_batches_and_epochs_and_is_the_same_after_a_resume(path: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "batch_transform": drawn}
    dataset = ShardDataset(path, 4, **options)
    epochs = [draws(dataset), draws(dataset)]
    assert len(set(epochs[0] + epochs[1])) == 20
    resumed = ShardDataset(path, 4, **options)
    resumed.load_state_dict(dataset.state_at(3, epoch=0))
    assert draws(resumed) == epochs[0][3:]
    assert draws(resumed) == epochs[1]
    assert draws(ShardDataset(path, 4, seed=1, **options)) != epochs[0]


def test_its_rng_is_not_that_of_a_sample(path: str) -> None:
    def of_samples(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"cls": sample["cls"], "own": rng.random()}

    batch = next(iter(ShardDataset(path, 4, transform=of_samples, batch_transform=drawn)))
    assert batch["drawn"][0] not in batch["own"]


def test_the_rng_of_a_smaller_batch_is_that_of_the_whole_one(path: str) -> None:
    """It goes by the sample that the batch was to begin with, also where that is dropped."""
    first = keys(ShardDataset(path, 4, shuffle=True))[0]

    def drop(sample: dict[str, Any]) -> dict[str, Any] | None:
        return None if sample["__key__"] == first else sample

    options: dict[str, Any] = {"shuffle": True, "batch_transform": drawn}
    assert draws(ShardDataset(path, 4, transform=drop, **options)) == draws(ShardDataset(path, 4, **options))


def test_none_is_an_error_that_says_what_to_return(path: str) -> None:
    with pytest.raises(TransformError, match=r"batch_transform returned None\. Return the batch"):
        next(iter(ShardDataset(path, 4, batch_transform=lambda batch: None)))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_it_raises_is_named_with_the_batch(path: str, workers: int) -> None:
    loader = StreamLoader(
        ShardDataset(path, 4, batch_transform=lambda batch: batch["nothing"]), num_workers=workers
    )
    with pytest.raises(
        TransformError, match="batch_transform raised KeyError: 'nothing'; the batch begins with row 0"
    ):
        next(iter(loader))
    loader.close()


def test_what_is_no_function_is_refused_at_once(path: str) -> None:
    for source in (path, {"a": path}):
        with pytest.raises(UsageError, match="batch_transform='mixup'"):
            ShardDataset(source, 4, batch_transform="mixup")  # type: ignore[arg-type]


def test_one_that_cannot_go_to_a_worker_is_named_before_any_starts(path: str) -> None:
    lock = threading.Lock()
    dataset = ShardDataset(path, 4, batch_transform=lambda batch: lock and batch)
    loader = StreamLoader(dataset, num_workers=2, context="spawn")
    with pytest.raises(UsageError, match="batch_transform"):
        next(iter(loader))
    assert loader.worker_pids() == []


def test_its_time_counts_as_transform(path: str) -> None:
    dataset = ShardDataset(path, 20, batch_transform=lambda batch: time.sleep(0.05) or batch)
    list(dataset)
    assert dataset.stats().seconds["transform"] >= 0.1


class TestMixing:
    """MixUp and CutMix where a data set calls them: here "pictures" are float (B, 1, 1, 3) made of `x`."""

    @staticmethod
    def as_picture(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "x": sample["x"].reshape(1, 1, 3)}

    @pytest.mark.parametrize("kind", [MixUp, CutMix])
    def test_dicts_and_tuples_get_the_same(self, path: str, kind: Any) -> None:
        options: dict[str, Any] = {"transform": self.as_picture, "shuffle": True}
        options["batch_transform"] = kind(classes=40, label="cls", pictures="x", **self.layout(kind))
        dicts = list(ShardDataset(path, 4, **options))
        tuples = list(ShardDataset(path, 4, fields=("cls", "__key__", "x"), **options))
        assert len(dicts) == len(tuples) == 10
        for batch, (labels, names, pictures) in zip(dicts, tuples, strict=True):
            assert torch.equal(batch["cls"], labels) and labels.shape == (4, 40)
            assert torch.equal(batch["x"], pictures) and batch["__key__"] == names

    @staticmethod
    def layout(kind: Any) -> dict[str, Any]:
        return {"layout": "hwc"} if kind is CutMix else {}

    def test_a_tuple_of_the_transforms_own_goes_by_places(self, path: str) -> None:
        def pair(sample: dict[str, Any]) -> tuple[Any, Any]:
            return sample["x"].reshape(1, 1, 3), sample["cls"]

        mixed = ShardDataset(path, 4, transform=pair, batch_transform=MixUp(classes=40, label=1))
        pictures, labels = next(iter(mixed))
        assert torch.allclose(pictures[:, 0, 0, 0], labels @ torch.arange(40.0))
        wrong = ShardDataset(path, 4, transform=pair, batch_transform=MixUp(classes=40, label="cls"))
        with pytest.raises(UsageError, match="label='cls' is not in the batch, which has 0, 1"):
            next(iter(wrong))

    @pytest.mark.parametrize("fields", [None, ("x", "cls", "__valid__")])
    def test_padding_is_never_mixed_in(self, tmp_path: Path, fields: Any) -> None:
        path = make_set(tmp_path / "s", 9)
        mix = MixUp(classes=9, label="cls", pictures="x", alpha=1)
        dataset = ShardDataset(
            path, 8, tail="pad", fields=fields, shuffle=True, transform=self.as_picture, batch_transform=mix
        )
        for _ in range(10):
            *_, last = dataset
            labels, valid = (last["cls"], last["__valid__"]) if fields is None else (last[1], last[2])
            assert valid.tolist() == [True] + [False] * 7
            assert ((labels == 1).sum(1) == 1).all() and (labels.sum(1) == 1).all()

    def test_a_wrong_label_names_its_sample_also_from_a_worker(self, path: str) -> None:
        mix = MixUp(classes=7, label="cls", pictures="x")
        loader = StreamLoader(ShardDataset(path, 4, transform=self.as_picture, batch_transform=mix), num_workers=1)
        with pytest.raises(SampleError, match=r"k/00007.*label 7 with classes=7"):
            list(loader)
        loader.close()


class TestMixture:
    def members(self, tmp_path: Path, **options: Any) -> dict[str, tuple[ShardDataset, float]]:
        paths = [make_set(tmp_path / name, 20) for name in "ab"]
        return {
            n: (ShardDataset(p, 1, seed=i, **options), 0.5)
            for i, (n, p) in enumerate(zip("ab", paths, strict=True))
        }

    def test_the_batch_of_a_mixture_is_transformed_as_a_whole(self, tmp_path: Path) -> None:
        mix = Mixture(self.members(tmp_path), 8, batch_transform=drawn)
        batches = list(StreamLoader(mix, num_workers=2))
        assert len(batches) == 5 and len(set(draws(batches))) == 5
        assert all("__source__" in batch for batch in batches)
        mix.set_epoch(0)
        assert draws(StreamLoader(mix, num_workers=0)) == draws(batches)

    def test_mixup_goes_across_sets(self, tmp_path: Path) -> None:
        members = self.members(tmp_path, transform=TestMixing.as_picture, fields=("x", "cls"))
        mix = Mixture(members, 8, batch_transform=MixUp(classes=20, label="cls"))
        for pictures, labels in mix:
            assert torch.allclose(pictures[:, 0, 0, 0], labels @ torch.arange(20.0), atol=1e-4)

    def test_that_of_a_set_belongs_to_the_mixture_unless_batches_are_of_one_set(self, tmp_path: Path) -> None:
        members = self.members(tmp_path, batch_transform=drawn)
        with pytest.raises(UsageError, match="the set 'a' has a batch_transform= of its own"):
            Mixture(members, 8)
        single = Mixture(members, 4, batches="single")
        assert len(set(draws(single))) == len(single)
        with pytest.raises(UsageError, match="batch_transform with batches='single'"):
            Mixture(members, 4, batches="single", batch_transform=drawn)


def test_a_stream_that_is_read_in_order_has_it_too(path: str) -> None:
    files = sorted(str(p) for p in Path(path).glob("*.tar"))
    dataset = streamio.SequentialDataset(
        files, 4, ("cls", "__key__"), batch_transform=lambda batch, rng: (*batch, rng.random())
    )
    found = [batch[2] for batch in StreamLoader(dataset, num_workers=0)]
    assert len(found) == 10 and len(set(found)) == 10


def test_so_has_a_data_set_of_tokens(tmp_path: Path) -> None:
    streamio.write(({"tokens": np.arange(i % 7, dtype=np.uint16)} for i in range(50)), tmp_path / "t")
    dataset = streamio.TokenDataset(tmp_path / "t", 2, 8, batch_transform=lambda b: {"next": b["tokens"][:, 1:]})
    assert [batch["next"].shape[1] for batch in dataset] == [8] * len(dataset)
