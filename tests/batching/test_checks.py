"""Tensors that nobody can use are found at the first batch, in a worker or without one, by where they lie."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from streamio import SampleError, ShardDataset, StreamLoader
from streamio.batching.checks import check_tensors
from streamio.handover.structure import take_apart
from tests.sets import make_set

WEIGHTS = torch.ones(2, requires_grad=True)
FINE = torch.zeros(1)


def stacked(sample: dict[str, Any]) -> dict[str, Any]:
    return {"boxes": WEIGHTS * sample["cls"]}


def ragged(sample: dict[str, Any]) -> dict[str, Any]:
    n = sample["cls"]
    return {"boxes": torch.ones(n + 1) if n < 2 else WEIGHTS * n}


def by_collate(samples: list[Any]) -> dict[str, Any]:
    return {"boxes": [FINE, FINE, WEIGHTS]}


def whole(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "deep": ({"a": [FINE, WEIGHTS * 2]},)}


GRADIENTS = {
    "transform, stacked": ({"transform": stacked}, "batch['boxes']"),
    "transform, a list": ({"transform": ragged}, "batch['boxes'][2]"),
    "collate": ({"collate": by_collate}, "batch['boxes'][2]"),
    "batch_transform": ({"batch_transform": whole}, "batch['deep'][0]['a'][1]"),
}


@pytest.mark.parametrize("loader", ["inline", "thread", "process", "DataLoader"])
@pytest.mark.parametrize(("options", "path"), GRADIENTS.values(), ids=list(GRADIENTS))
def test_a_gradient_in_a_batch_is_named_with_its_path_and_the_way_out(
    tmp_path: Path, options: dict[str, Any], path: str, loader: str
) -> None:
    ds = ShardDataset(make_set(tmp_path / "s", 12), 4, **options)
    batches: Any
    if loader == "DataLoader":
        batches = DataLoader(ds, batch_size=None, num_workers=1)
    else:
        workers = 0 if loader == "inline" else 1
        batches = StreamLoader(ds, transport=loader, num_workers=workers)  # type: ignore[arg-type]
    with pytest.raises(SampleError) as caught:
        next(iter(batches))
    assert f"{path} is a tensor that requires a gradient" in str(caught.value)
    assert ".detach()" in str(caught.value) and "torch.no_grad()" in str(caught.value)


def unsendable(what: str) -> Any:
    def numbers() -> Iterator[int]:
        yield 1

    return {"lambda": lambda: 1, "generator": numbers(), "file": sys.__stderr__}[what]


class Makes:
    """A collate whose batch holds what no pipe takes."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, samples: list[Any]) -> Any:
        return {"x": torch.zeros(len(samples)), "meta": [{"it": unsendable(self.what)}]}


@pytest.mark.parametrize("what", ["lambda", "generator", "file"])
def test_what_cannot_be_pickled_in_a_batch_is_named_with_its_path(tmp_path: Path, what: str) -> None:
    path = make_set(tmp_path / "s", 12)
    for loader in (
        StreamLoader(ShardDataset(path, 4, collate=Makes(what)), num_workers=1),
        DataLoader(ShardDataset(path, 4, collate=Makes(what)), batch_size=None, num_workers=1),
    ):
        with pytest.raises(SampleError, match=rf"batch\['meta'\]\[0\]\['it'\] is an? .*{what}.*cannot be sent"):
            next(iter(loader))
    assert len(list(StreamLoader(ShardDataset(path, 4, collate=Makes(what)), num_workers=0))) == 3


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
def test_tensors_without_values_or_of_no_process_are_named() -> None:
    meta = torch.zeros(2, device="meta")
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    for to_be_sent in (False, True):
        with pytest.raises(SampleError, match=r"batch\[1\].x is a tensor without values"):
            check_tensors([1, SimpleNamespace(x=meta)], to_be_sent=to_be_sent)
    check_tensors({"q": quantized}, to_be_sent=False)
    with pytest.raises(SampleError, match=r"batch\['q'\] is a quantized tensor.*int_repr"):
        check_tensors({"q": quantized}, to_be_sent=True)
    check_tensors({"s": torch.eye(3).to_sparse(), "t": ["a", 1, (np.zeros(1), FINE)]}, to_be_sent=True)


@pytest.mark.parametrize("step", [1, 1000])
def test_a_view_of_a_large_storage_goes_without_the_rest_of_it(step: int) -> None:
    large = torch.zeros(1 << 20)
    body, memory = take_apart({"torch": large[: 10 * step : step], "numpy": large.numpy()[: 10 * step : step]})
    assert sum(map(len, memory)) == 2 * 10 * 4 and len(pickle.dumps(body)) < 1000
