"""Mixtures: each set has its share and its own epochs, on any topology, from any point."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import streamio
from streamio import Mixture, ShardDataset, StreamLoader, UsageError
from tests.sets import make_set

SIZES = {"a": 300, "b": 90, "c": 41}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sets")
    return {name: make_set(folder / name, n) for name, n in SIZES.items()}


@pytest.fixture
def mix(paths: dict[str, str]) -> Callable[..., Mixture]:
    def make(
        batch: int = 12, shares: Sequence[float] = (0.6, 0.3, 0.1), own: Any = None, **options: Any
    ) -> Mixture:
        own = {"shuffle": True, **(own or {})}
        sets = {n: (ShardDataset(paths[n], 4, **own), w) for n, w in zip(paths, shares, strict=True)}
        return Mixture(sets, batch, **options)

    return make


def samples(batches: Any) -> list[tuple[int, str]]:
    return [(s, k) for b in batches for s, k in zip(b["__source__"].tolist(), b["__key__"], strict=True)]


def by_step(batches: Any) -> list[list[tuple[int, str]]]:
    return [samples([batch]) for batch in batches]


Make = Callable[..., Mixture]


def test_each_set_has_its_share_in_every_window_of_a_thousand_samples(mix: Make) -> None:
    drawn = samples(islice(mix(stop="never"), 500))
    assert len(drawn) == 6000
    for start in range(5000):  # any window, since these shares are whole thousandths
        window = drawn[start : start + 1000]
        if start % 250 == 0:
            assert Counter(s for s, _ in window) == {0: 600, 1: 300, 2: 100}


def test_each_set_goes_through_its_own_epochs_whatever_the_epochs_of_the_mixture(mix: Make) -> None:
    mixture = mix(stop=500)
    drawn = [pair for _ in range(4) for pair in samples(mixture)]
    assert len(drawn) == 2000
    for number, (name, size) in enumerate(SIZES.items()):
        keys = [key for s, key in drawn if s == number]
        for epoch in range(len(keys) // size):
            assert len(set(keys[epoch * size : (epoch + 1) * size])) == size, name
        alone = [k for b in mixture.sets[name] for k in b["__key__"]]
        assert keys[:size] == alone


@pytest.mark.parametrize("stop", ["all", "first"])
def test_an_epoch_ends_by_its_rule(mix: Make, stop: str) -> None:
    mixture = mix(stop=stop)
    for _ in range(3):
        expected = len(mixture)
        batches = list(mixture)
        assert len(batches) == expected
        count = Counter(s for s, _ in samples(batches))
        if stop == "all":
            assert all(count[i] >= size for i, size in enumerate(SIZES.values()))
            assert any(count[i] == size for i, size in enumerate(SIZES.values()))
        else:
            assert all(count[i] <= size for i, size in enumerate(SIZES.values()))
            assert max(count[i] / size for i, size in enumerate(SIZES.values())) > 0.95


def test_never_is_one_epoch_without_a_length(mix: Make) -> None:
    mixture = mix(stop="never")
    with pytest.raises(TypeError, match="has no length"):
        len(mixture)
    with StreamLoaderOf(mixture, 2) as loader:
        assert len(list(islice(loader, 100))) == 100
        state = loader.state_dict()
    again = mix(stop="never")
    again.load_state_dict(state)
    assert by_step(islice(again, 5)) == by_step(islice(mix(stop="never"), 100, 105))


class StreamLoaderOf:
    """A StreamLoader that is closed in the end."""

    def __init__(self, data: Mixture, workers: int, context: Any = None) -> None:
        self.loader = StreamLoader(data, num_workers=workers, context=context)

    def __enter__(self) -> StreamLoader:
        return self.loader

    def __exit__(self, *_: object) -> None:
        self.loader.close()


@pytest.mark.parametrize(("context", "workers"), [("fork", 3), ("spawn", 2)])
def test_workers_make_what_one_process_makes(mix: Make, context: Any, workers: int) -> None:
    whole = by_step(mix())
    with StreamLoaderOf(mix(), workers, context) as loader:
        assert by_step(loader) == whole
        second = mix()
        second.set_epoch(1)
        assert by_step(loader) == by_step(second)
    assert by_step(DataLoader(mix(), batch_size=None, num_workers=2)) == whole


@pytest.mark.parametrize("batches", ["mixed", "single"])
def test_a_step_is_the_same_on_1_2_3_4_and_8_ranks(mix: Make, batches: str) -> None:
    def steps(world: int) -> list[list[tuple[int, str]]]:
        ranks = [by_step(mix(24 // world, batches=batches, rank=r, world_size=world)) for r in range(world)]
        assert len({len(r) for r in ranks}) == 1
        return [[pair for part in step for pair in part] for step in zip(*ranks, strict=True)]

    assert steps(1) == steps(2) == steps(3) == steps(4) == steps(8)


@pytest.mark.parametrize("batches", ["mixed", "single"])
@pytest.mark.parametrize("changing", [False, True])
def test_resumes_on_other_ranks_and_workers_step_for_step(mix: Make, batches: str, changing: bool) -> None:
    options: dict[str, Any] = {"batches": batches, "weights": ramp if changing else None, "stop": 480}
    reference = mix(24, **options)
    whole = [step for _ in range(3) for step in by_step(reference)]
    got: list[list[tuple[int, str]]] = []
    state: Any = None
    for world, workers, take in ((1, 0, 7), (2, 2, 9), (3, 0, 4), (1, 2, 19), (2, 0, 21)):
        parts, states = [], []
        for rank in range(world):
            data = mix(24 // world, rank=rank, world_size=world, **options)
            if state is not None:
                data.load_state_dict(state)
            with StreamLoaderOf(data, workers) as loader:
                taken: list[Any] = []
                while len(taken) < take:
                    taken += islice(loader, take - len(taken))
                parts.append(by_step(taken))
                states.append(json.loads(json.dumps(loader.state_dict())))
        got += [[pair for part in step for pair in part] for step in zip(*parts, strict=True)]
        assert all(other == states[0] for other in states)
        state = states[0]
    assert got == whole[: len(got)] and len(got) == 60


def ramp(step: int) -> list[float]:
    """From all of the first set to all of the others, in 100 steps."""
    late = min(step, 100) / 100
    return [1 - late + 0.01, late, late / 2 + 0.01]


def test_a_schedule_moves_the_shares(mix: Make) -> None:
    drawn = samples(islice(mix(20, weights=ramp, stop="never"), 200))
    first, last = Counter(s for s, _ in drawn[:1000]), Counter(s for s, _ in drawn[-1000:])
    assert first[0] > 950
    assert last[1] == pytest.approx(656, abs=2)


def test_weights_and_batches_may_change_on_resume_and_each_set_goes_on_at_its_next_sample(mix: Make) -> None:
    first = mix(12, stop="never")
    drawn = samples(islice(first, 33))
    state = first.state_at(33)
    for shares, options in (((0.1, 0.1, 0.8), {}), ((0, 0.5, 0.5), {"batches": "single"}), ((1, 1, 1), {})):
        second = mix(7, shares, stop="never", **options)
        second.load_state_dict(state)
        drawn += samples(islice(second, 40))
        state = second.state_at(40)
    for number, size in enumerate(SIZES.values()):
        keys = [key for s, key in drawn if s == number]
        for epoch in range(-(-len(keys) // size)):
            part = keys[epoch * size : (epoch + 1) * size]
            assert len(set(part)) == len(part)


def test_a_state_is_small_and_belongs_to_its_sets_and_their_orders(mix: Make, paths: dict[str, str]) -> None:
    ten = {f"set{i}": (ShardDataset(paths["abc"[i % 3]], 4, shuffle=True), i + 1.5) for i in range(10)}
    mixture = Mixture(ten, 64, stop="never")
    state = mixture.state_at(10**7, epoch=0)
    assert len(json.dumps(state)) < 1000
    with pytest.raises(UsageError, match=r"saved with .*here"):
        mix().load_state_dict(state)
    state = mix().state_at(0)
    with pytest.raises(UsageError, match="orders"):
        mix(own={"seed": 1}).load_state_dict(state)
    with pytest.raises(UsageError, match="not that of a mixture"):
        mix().load_state_dict({**state, "start": []})
    with pytest.raises(UsageError, match="damaged"):
        mix().load_state_dict({**state, "start": [5, 4, *state["start"][2:]]})
    mix(own={"seed": 1}).load_state_dict(state, strict=False)


def test_single_batches_are_of_one_set_each_and_may_differ_in_fields(mix: Make, paths: dict[str, str]) -> None:
    sets = {
        "x": (ShardDataset(paths["a"], 1, fields=("x", "__key__")), 0.5),
        "t": (ShardDataset(paths["b"], 1), 0.5),
    }
    batches = list(Mixture(sets, 10, batches="single", stop=100))
    assert Counter(type(batch) for batch in batches) == {tuple: 5, dict: 5}
    sources = [batch["__source__"] for batch in batches if isinstance(batch, dict)]
    assert all(s.tolist() == [1] * 10 for s in sources)
    for batch in mix(batches="single"):
        assert len(set(batch["__source__"].tolist())) == 1


def plus_hundred(sample: dict[str, Any], rng: np.random.Generator) -> Any:
    drawn = rng.random()
    if sample["cls"] % 7 == 3:
        return None
    return {**sample, "x": sample["x"] + 100, "drawn": drawn}


def plain(sample: dict[str, Any], rng: np.random.Generator) -> Any:
    return {**sample, "drawn": rng.random()}


def test_each_set_has_its_own_transform_and_draws_as_it_does_alone(paths: dict[str, str]) -> None:
    a = ShardDataset(paths["a"], 4, transform=plus_hundred, shuffle=True)
    b = ShardDataset(paths["b"], 4, transform=plain, seed=3)
    mixture = Mixture({"a": (a, 1), "b": (b, 1)}, 20, stop=160)
    alone = {
        (i, k): d
        for i, data in enumerate((a, b))
        for batch in data
        for k, d in zip(batch["__key__"], batch["drawn"].tolist(), strict=True)
    }
    dropped = a.stats().dropped
    assert dropped == len([i for i in range(300) if i % 7 == 3])
    count = 0
    for batch in mixture:
        assert batch["x"].dtype == torch.float32
        above = (batch["x"][:, 0] >= 100).tolist()
        assert above == [s == 0 for s in batch["__source__"].tolist()]
        assert [alone[pair] for pair in samples([batch])] == batch["drawn"].tolist()
        count += len(above)
    assert mixture.stats().dropped - dropped == 160 - count


def test_samples_that_do_not_decode_are_skipped_by_the_policy_of_their_set(tmp_path: Path) -> None:
    bad = [{"jpg": b"none"} if i % 5 == 0 else {"jpg": streamio_jpg()} for i in range(40)]
    for name in "ab":
        streamio.write(iter(bad), tmp_path / name)
    sets = {n: (ShardDataset(tmp_path / n, 4, on_error="skip"), 1) for n in "ab"}
    mixture = Mixture(sets, 10, stop=80)
    sizes = [(len(batch["jpg"]), len(batch["__source__"])) for batch in mixture]
    assert sum(n for n, _ in sizes) == 64 and all(n == m for n, m in sizes)
    assert mixture.stats().skipped == 16


def streamio_jpg() -> bytes:
    from tests.samples import jpg

    return jpg()


def test_pad_marks_what_fills_up_and_collate_gets_the_samples(mix: Make) -> None:
    batches = list(mix(50, stop=120, tail="pad"))
    assert [int(b["__valid__"].sum()) for b in batches] == [50, 50, 20]
    gathered = list(mix(50, stop=100, collate=lambda samples: [(s["__source__"], s["__key__"]) for s in samples]))
    assert [(int(s), k) for b in gathered for s, k in b] == samples(mix(50, stop=100))


def test_a_mixture_is_small_on_its_way_to_a_worker(mix: Make) -> None:
    assert len(pickle.dumps(mix())) < 12_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stop": "soon"}, "stop='soon'"),
        ({"stop": 0}, "stop=0"),
        ({"batches": "both"}, "batches='both'"),
        ({"batch": 0}, "batch_size=0"),
        ({"shares": (0, 0, 0)}, "weights"),
        ({"shares": (1, -1, 1)}, "weights"),
        ({"own": {"lanes": 2}}, "2 lanes"),
        ({"own": {"collate": list}}, "collate= of its own"),
        ({"weights": lambda step: [1.0]}, "1 weights for 3 sets"),
        ({"batches": "single", "collate": list}, "collate with batches='single'"),
        ({"own": {"fields": ("x",)}, "tail": "pad"}, "dicts"),
    ],
)
def test_what_cannot_be_mixed_is_refused_before_the_first_batch(
    mix: Make, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        mix(**change)


def test_sets_of_different_fields_are_refused_with_the_fields(paths: dict[str, str]) -> None:
    a, b = ShardDataset(paths["a"], 1, fields=("x", "cls")), ShardDataset(paths["b"], 1)
    with pytest.raises(UsageError, match=r"different fields: __key__, txt.*single"):
        Mixture({"a": (a, 1), "b": (b, 1)}, 4)
    with pytest.raises(UsageError, match="different forms"):
        Mixture({"a": (b, 1), "b": (ShardDataset(paths["a"], 1, layout="chw"), 1)}, 4)
    with pytest.raises(UsageError, match="Give"):
        Mixture({"a": a}, 4)  # type: ignore[dict-item]
