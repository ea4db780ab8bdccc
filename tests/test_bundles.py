"""Small batches are made several at once, and nobody can tell: not by what they hold, nor by their memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import streamio
from streamio import Mixture, Pad, Ragged, SampleError, ShardDataset, StreamLoader, TokenDataset, stream
from streamio.image import RandomResizedCrop
from tests.samples import jpg
from tests.sets import make_set

N = 150

WAYS: dict[str, Callable[[Any], Any]] = {
    "inline": lambda ds: StreamLoader(ds, num_workers=0),
    "thread": lambda ds: StreamLoader(ds, num_workers=2, transport="thread"),
    "process": lambda ds: StreamLoader(ds, num_workers=2, transport="process", context="fork"),
    "process of 2 threads": lambda ds: StreamLoader(ds, num_workers=1, threads=2, context="fork"),
    "DataLoader": lambda ds: DataLoader(ds, batch_size=None),
    "DataLoader, 2 workers": lambda ds: DataLoader(
        ds, batch_size=None, num_workers=2, multiprocessing_context="fork"
    ),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_set(tmp_path_factory.mktemp("bundles") / "s", N)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Pictures, and sequences of many lengths."""
    rng = np.random.default_rng(0)
    samples = (
        {"__key__": f"{i:03d}", "jpg": jpg(9, 9, colour=(i, 0, 0)), "seq": np.arange(rng.integers(1, 6)),
         "cls": i}
        for i in range(80)
    )  # fmt: skip
    out = tmp_path_factory.mktemp("odd") / "s"
    streamio.write(samples, out, shard_samples=40)
    return str(out)


def plain(batch: Any) -> Any:
    """A batch as it can be compared: types, shapes and strides too."""
    if isinstance(batch, torch.Tensor):
        if batch.is_nested:
            return "nested", plain(batch.values()), plain(batch.offsets())
        return str(batch.dtype), tuple(batch.shape), batch.stride(), batch.tolist()
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    return [plain(value) for value in batch] if isinstance(batch, list | tuple) else batch


def alone(monkeypatch: pytest.MonkeyPatch, ds: Any, epochs: int = 1) -> list[Any]:
    """Its batches, each made by itself."""
    with monkeypatch.context() as single:
        single.setattr(stream, "bundle_size", lambda size: 1)
        return [plain(batch) for _ in range(epochs) for batch in ds]


OPTIONS: dict[str, dict[str, Any]] = {
    "all fields": {},
    "a tuple": {"fields": ("x", "cls")},
    "shuffled": {"shuffle": "global", "seed": 3},
    "padded": {"tail": "pad", "repeat": 2},
}


@pytest.mark.parametrize(
    ("way", "options"), [*((way, "shuffled") for way in WAYS), *(("inline", each) for each in OPTIONS)]
)
def test_batches_are_those_that_are_made_alone(
    path: str, monkeypatch: pytest.MonkeyPatch, way: str, options: str
) -> None:
    expected = alone(monkeypatch, ShardDataset(path, 4, **OPTIONS[options]), 2)
    ds = ShardDataset(path, 4, **OPTIONS[options])
    assert ds.bundle_batches == 16
    loader = WAYS[way](ds)
    assert [plain(batch) for _ in range(2) for batch in loader] == expected
    assert ds.stats().batches == len(expected)


@pytest.mark.parametrize(
    "options",
    [
        {"decode": {"jpg": RandomResizedCrop(4)}, "collate": {"seq": Pad(mask="mask")}},
        {"decode": {"jpg": RandomResizedCrop(4)}, "collate": {"seq": Ragged()}, "layout": "chw"},
        {"decode": False, "collate": {"seq": "list"}},
    ],
    ids=["padded", "ragged", "listed"],
)
@pytest.mark.parametrize("shuffle", [False, "global"])
def test_what_a_batch_decides_for_itself_is_decided_for_each(
    odd: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], shuffle: Any
) -> None:
    ds, again = (ShardDataset(odd, 4, shuffle=shuffle, **options) for _ in range(2))
    assert again.bundle_batches > 1
    assert [plain(batch) for batch in again] == alone(monkeypatch, ds)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(1)
    out = tmp_path_factory.mktemp("tokens") / "s"
    streamio.write(({"tokens": np.arange(n, dtype=np.uint16)} for n in rng.integers(0, 60, 200)), out)
    return str(out)


@pytest.mark.parametrize("mode", ["windows", "documents"])
@pytest.mark.parametrize("way", ["inline", "process"])
def test_windows_and_documents_of_tokens_come_as_alone(
    tokens: str, monkeypatch: pytest.MonkeyPatch, way: str, mode: Any
) -> None:
    options: dict[str, Any] = {"shuffle": "global", "mode": mode}
    options |= {"overlong": "split", "collate": {"tokens": Pad(mask="mask")}} if mode == "documents" else {}
    expected = alone(monkeypatch, TokenDataset(tokens, 4, 16, **options), 2)
    ds = TokenDataset(tokens, 4, 16, **options)
    assert ds.bundle_batches > 1
    loader = WAYS[way](ds)
    assert [plain(batch) for _ in range(2) for batch in loader] == expected


def mixed(path: str, other: str, batches: Any) -> Mixture:
    one = ShardDataset(path, 1, shuffle=True, fields=("x", "cls", "__key__"))
    two = ShardDataset(other, 1, shuffle="global", seed=5, fields=("x", "cls", "__key__"))
    return Mixture({"one": (one, 0.7), "two": (two, 0.3)}, 4, stop="all", batches=batches)


@pytest.mark.parametrize(
    ("way", "batches"), [("inline", "mixed"), ("inline", "single"), ("process", "mixed"), ("DataLoader", "mixed")]
)
def test_batches_of_a_mixture_come_as_alone(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, batches: Any
) -> None:
    other = make_set(tmp_path / "other", 70, fmt="hdf5")
    expected = alone(monkeypatch, mixed(path, other, batches), 2)
    mixture = mixed(path, other, batches)
    assert (mixture.bundle_batches > 1) is (batches == "mixed")
    loader = WAYS[way](mixture)
    assert [plain(batch) for _ in range(2) for batch in loader] == expected
    assert mixture.stats().batches == len(expected)


def test_the_users_functions_get_their_batches_one_by_one(path: str) -> None:
    seen: list[int] = []

    def transform(batch: Any) -> Any:
        seen.append(len(batch["cls"]))
        return batch

    ds = ShardDataset(path, 4, batch_transform=transform)
    assert ds.bundle_batches == 1
    for number, _ in enumerate(ds, 1):
        assert len(seen) == number


def test_a_batch_has_its_memory_to_itself(path: str) -> None:
    ds = ShardDataset(path, 4, fields=("x", "cls"))
    batches = list(ds)
    for x, numbers in batches:
        x += 1000
        assert x.untyped_storage().nbytes() == x.nbytes
        assert numbers.untyped_storage().nbytes() == numbers.nbytes
    assert [x[:, 0].tolist() for x, _ in batches] == [
        [1000 + n for n in numbers.tolist()] for _, numbers in batches
    ]
    saved = io.BytesIO()
    torch.save(batches[-1], saved)
    alone = io.BytesIO()
    torch.save(tuple(each.clone() for each in batches[-1]), alone)
    assert saved.tell() == alone.tell()


@pytest.mark.parametrize("way", ["inline", "thread", "process"])
def test_a_state_from_the_middle_of_a_bundle_goes_on_with_the_next_batch(path: str, way: str) -> None:
    expected = [batch["cls"].tolist() for batch in ShardDataset(path, 4, shuffle=True)]
    for stop in (1, 5, 12, 30):
        first, second = (WAYS[way](ShardDataset(path, 4, shuffle=True)) for _ in range(2))
        batches: Iterator[Any] = iter(first)
        got = [next(batches)["cls"].tolist() for _ in range(stop)]
        second.load_state_dict(first.state_dict())
        assert got + [batch["cls"].tolist() for batch in second] == expected
        first.close(), second.close()


@pytest.mark.parametrize("way", ["inline", "thread", "process"])
def test_what_is_left_of_a_bundle_is_not_in_the_next_epoch(path: str, way: str) -> None:
    ds = ShardDataset(path, 4, shuffle=True)
    loader = WAYS[way](ds)
    for number, _ in enumerate(loader):
        if number == 10:
            break
    expected = ShardDataset(path, 4, shuffle=True)
    expected.set_epoch(1)
    assert [batch["cls"].tolist() for batch in loader] == [batch["cls"].tolist() for batch in expected]
    loader.close()


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    samples = (
        {"__key__": f"{i:03d}", "jpg": b"\xff\xd8 no picture" if i in (50, 51, 77) else jpg(), "cls": i}
        for i in range(100)
    )
    streamio.write(samples, tmp_path / "s")
    return str(tmp_path / "s")


@pytest.mark.parametrize("policy", ["skip", "substitute"])
@pytest.mark.parametrize("way", ["inline", "process"])
def test_bad_samples_are_dealt_with_in_their_own_batch(
    damaged: str, monkeypatch: pytest.MonkeyPatch, way: str, policy: Any
) -> None:
    options: dict[str, Any] = {"decode": {"jpg": RandomResizedCrop(4)}, "on_error": policy}
    expected = alone(monkeypatch, ShardDataset(damaged, 4, **options))
    ds = ShardDataset(damaged, 4, **options)
    assert ds.bundle_batches > 1
    assert [plain(batch) for batch in WAYS[way](ds)] == expected
    counts = ds.stats()
    assert (counts.skipped, counts.substituted) == ((3, 0) if policy == "skip" else (0, 3))


@pytest.mark.parametrize("way", WAYS)
def test_the_error_of_a_bad_sample_is_its_own(damaged: str, way: str) -> None:
    with pytest.raises(SampleError, match="050"):
        list(WAYS[way](ShardDataset(damaged, 4, decode={"jpg": RandomResizedCrop(4)})))
