"""Batches by declaration, from the set to the loop: padded, ragged, nested, lists; alike wherever they are made."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import streamio
from streamio import Mixture, Pad, Ragged, SampleError, ShapeMismatch, ShardDataset, StreamLoader, UsageError
from streamio.image import MaxSide
from tests.samples import jpg
from tests.sets import read


def ids(i: int) -> np.ndarray:
    return np.arange(i, i + i % 5, dtype=np.uint16)


def boxes(i: int) -> np.ndarray:
    return np.full((i % 4, 4), i, np.float32)


def numbered(n: int) -> Iterator[dict[str, Any]]:
    for i in range(n):
        yield {
            "__key__": f"k{i:03d}", "tokens": ids(i), "boxes": boxes(i), "labels": np.arange(i % 4), "cls": i,
            "txt": f"text {i}",
        }  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("sets") / "s"
    streamio.write(numbered(50), place, shard_samples=20)
    return str(place)


def same(mine: Any, yours: Any) -> bool:
    """Whether two batches are equal, in values and types, at any depth."""
    if isinstance(mine, dict):
        return mine.keys() == yours.keys() and all(same(mine[name], yours[name]) for name in mine)
    if isinstance(mine, list | tuple):
        return len(mine) == len(yours) and all(map(same, mine, yours))
    if not isinstance(mine, torch.Tensor):
        return bool(mine == yours)
    if mine.is_nested:
        return yours.is_nested and mine.layout == yours.layout and same(list(mine.unbind()), list(yours.unbind()))
    return mine.dtype == yours.dtype and torch.equal(mine, yours)


def alike(mine: list[Any], yours: list[Any]) -> bool:
    return len(mine) == len(yours) and all(map(same, mine, yours))


DECLARED = {
    "padded": {"tokens": Pad(multiple_of=4, dtype="int64"), "boxes": Pad(side="left"), "labels": Pad(mask=False)},
    "ragged": {"tokens": Ragged(), "boxes": Ragged(dtype="float64"), "labels": "list"},
    "nested": {"tokens": Ragged(nested=True), "boxes": Ragged(nested=True), "labels": "list"},
}


def dataset(path: str, how: str, **options: Any) -> ShardDataset:
    return ShardDataset(path, 8, shuffle=True, collate=DECLARED[how], **options)


def test_padded_fields_come_with_their_masks_and_lengths(path: str) -> None:
    for batch in dataset(path, "padded"):
        numbers = batch["cls"].tolist()
        assert list(batch) == [
            "boxes", "boxes_mask", "boxes_lengths", "cls", "labels", "labels_lengths", "tokens", "tokens_mask",
            "tokens_lengths", "txt", "__key__",
        ]  # fmt: skip
        assert batch["tokens"].dtype == torch.int64 and batch["tokens"].shape[1] % 4 == 0
        for number, row, mask, length in zip(
            numbers, batch["tokens"], batch["tokens_mask"], batch["tokens_lengths"], strict=True
        ):
            assert row[mask].tolist() == ids(number).tolist() and length == mask.sum() == number % 5
        assert [int(n) for n in batch["boxes_lengths"]] == [n % 4 for n in numbers]
        assert (batch["boxes_mask"].flip(1).long().cumprod(1).sum(1) == batch["boxes_lengths"]).all()  # at the end


def test_ragged_fields_come_as_values_and_offsets_and_lists_as_lists_of_tensors(path: str) -> None:
    for batch in dataset(path, "ragged"):
        numbers, offsets = batch["cls"].tolist(), batch["boxes_offsets"]
        assert offsets.dtype == torch.int64 and batch["boxes"].dtype == torch.float64
        for i, number in enumerate(numbers):
            assert batch["boxes"][offsets[i] : offsets[i + 1]].tolist() == boxes(number).tolist()
            assert isinstance(batch["labels"][i], torch.Tensor) and len(batch["labels"][i]) == number % 4


def test_nested_tensors_are_jagged_and_hold_each_sample(path: str) -> None:
    for batch in dataset(path, "nested"):
        assert batch["boxes"].is_nested and batch["boxes"].layout == torch.jagged
        parts = zip(batch["boxes"].unbind(), batch["tokens"].unbind(), batch["cls"].tolist(), strict=True)
        assert all(box.tolist() == boxes(n).tolist() and row.tolist() == ids(n).tolist() for box, row, n in parts)


def plus_one(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "more": sample["tokens"].astype(np.int64) + 1}


@pytest.mark.parametrize("how", DECLARED)
def test_they_are_the_same_through_every_transport(path: str, how: str) -> None:
    expected = list(dataset(path, how))
    for transport, workers in {"inline": 0, "thread": 2, "process": 2}.items():
        with closing(StreamLoader(dataset(path, how), num_workers=workers, transport=transport)) as loader:
            assert alike(list(loader), expected), transport
    assert alike(list(DataLoader(dataset(path, how), batch_size=None, num_workers=1)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("how", DECLARED)
def test_they_are_the_same_under_spawn_with_a_collate_fn_and_in_a_pickle(path: str, how: str) -> None:
    expected = list(dataset(path, how))
    with closing(StreamLoader(dataset(path, how), num_workers=1, transport="process", context="spawn")) as loader:
        assert alike(list(loader), expected)
    plain = DataLoader(dataset(path, how), batch_size=None, num_workers=1, collate_fn=unchanged)  # not in the ring
    assert alike(list(plain), expected)
    assert alike(list(pickle.loads(pickle.dumps(dataset(path, how)))), expected)


def with_target(sample: dict[str, Any]) -> dict[str, Any]:
    return {"cls": sample["cls"], "target": {"boxes": sample["boxes"], "labels": sample["labels"]}}


@pytest.mark.parametrize("workers", [0, 1])
def test_dicts_that_are_declared_a_list_stay_apart_with_tensors_in_them(path: str, workers: int) -> None:
    ds = ShardDataset(path, 8, transform=with_target, collate={"target": "list"})
    with closing(StreamLoader(ds, num_workers=workers)) as loader:
        for batch in loader:
            for number, target in zip(batch["cls"].tolist(), batch["target"], strict=True):
                assert all(isinstance(value, torch.Tensor) for value in target.values())
                assert alike([target["boxes"]], [torch.from_numpy(boxes(number))])
                assert target["labels"].tolist() == list(range(number % 4))


def unchanged(batch: Any) -> Any:
    return batch


def test_large_nested_batches_travel_in_slots(tmp_path: Path) -> None:
    arrays = [np.random.default_rng(i).normal(size=(i % 50 + 1, 100)) for i in range(64)]
    streamio.write(({"__key__": f"{i:03d}", "x": x} for i, x in enumerate(arrays)), tmp_path / "s")
    ds = ShardDataset(tmp_path / "s", 16, collate={"x": Ragged(nested=True)})
    with closing(StreamLoader(ds, num_workers=1, transport="process")) as loader:
        got = [part for batch in loader for part in batch["x"].unbind()]
    assert all(np.array_equal(mine.numpy(), yours) for mine, yours in zip(got, arrays, strict=True))


def test_a_tuple_has_the_further_fields_that_it_names_in_its_order(path: str) -> None:
    declared = {"tokens": Pad(mask="attention_mask", lengths=False), "boxes": Ragged()}
    names = ("attention_mask", "tokens", "boxes_offsets", "boxes", "cls")
    parts = list(ShardDataset(path, 8, fields=names, collate=declared))
    whole = read(path, 8, collate={**declared, "labels": "list"})
    assert alike(parts, [tuple(batch[name] for name in names) for batch in whole])
    assert len(read(path, 8, fields=("tokens",), collate={"tokens": Pad()})[0]) == 1


def test_a_set_whose_arrays_have_one_size_joins_in_the_same_way(tmp_path: Path) -> None:
    streamio.write(({"x": np.full((3, 2), i, np.float32)} for i in range(8)), tmp_path / "s")
    how = {"x": Pad(length=4)}
    (batch,) = read(tmp_path / "s", 8, collate=how)
    assert batch["x"].shape == (8, 4, 2) and batch["x_lengths"].tolist() == [3] * 8
    (batch,) = read(tmp_path / "s", 8, collate={"x": Ragged()})
    assert batch["x"].shape == (24, 2) and batch["x_offsets"].tolist() == list(range(0, 25, 3))
    assert [x.shape for x in read(tmp_path / "s", 8, collate={"x": "list"})[0]["x"]] == [(3, 2)] * 8
    batch["x"] += 1  # it is the batch's own memory
    assert read(tmp_path / "s", 8, collate={"x": Ragged()})[0]["x"][0, 0] == 0


def test_stack_is_what_happens_anyway_but_never_gives_a_list(path: str) -> None:
    assert alike(read(path, 8, fields=("cls",), collate={"cls": "stack"}), read(path, 8, fields=("cls",)))
    with pytest.raises(SampleError, match=r"'k000', field txt: a str does not stack"):
        read(path, 8, collate={"txt": "stack"}, fields=("txt",))
    with pytest.raises(ShapeMismatch, match=r"field tokens"):
        read(path, 8, collate={"tokens": "stack"}, fields=("tokens",))


def test_pictures_of_many_sizes_pad_and_list_in_either_layout(tmp_path: Path) -> None:
    sizes = [(8, 6), (5, 12), (7, 7)]
    streamio.write(({"__key__": f"{i}", "jpg": jpg(w, h)} for i, (h, w) in enumerate(sizes)), tmp_path / "s")
    (batch,) = read(tmp_path / "s", 3, collate={"jpg": Pad(dims=2)}, layout="chw")
    assert batch["jpg"].shape == (3, 3, 8, 12) and batch["jpg_lengths"].tolist() == [list(s) for s in sizes]
    assert batch["jpg_mask"].shape == (3, 8, 12)
    (batch,) = read(tmp_path / "s", 3, collate={"jpg": "list"}, layout="chw", decode=MaxSide(6))
    assert [tuple(x.shape) for x in batch["jpg"]] == [(3, 6, 4), (3, 2, 6), (3, 6, 6)]


def tensors(sample: dict[str, Any]) -> dict[str, Any]:
    n = int(sample["cls"]) % 3
    return {"t": torch.arange(n + 1), "ids": list(range(n)), "deep": {"x": n}, "cls": sample["cls"]}


def test_fields_that_a_transform_makes_are_declared_as_others_are(path: str) -> None:
    declared = {"t": Pad(), "ids": Ragged(), "cls": "list"}
    batch = read(path, 4, transform=tensors, collate=declared)[0]
    assert batch["t"].tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 2], [0, 0, 0]]
    assert batch["t_lengths"].tolist() == [1, 2, 3, 1] and batch["ids_offsets"].tolist() == [0, 0, 1, 3, 3]
    assert batch["deep"]["x"].tolist() == [0, 1, 2, 0] and batch["cls"] == [0, 1, 2, 3]
    apart = read(path, 2, transform=lambda s: {"t": torch.zeros(2)}, collate={"t": "list"})[0]["t"]
    assert isinstance(apart, list) and [x.shape for x in apart] == [(2,)] * 2  # though they would stack


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collate": {"tokens": "pad"}}, r"collate gives 'pad' for the field 'tokens'. Use 'stack'"),
        ({"collate": {"tokens": Pad}}, r"with brackets"),
        ({"collate": {"token": Pad()}}, r"names the field 'token'. The fields that are read: boxes, cls"),
        ({"collate": {"txt": Pad()}}, r"Pad for the field 'txt', which holds text"),
        ({"collate": {"cls": Ragged()}}, r"Ragged for the field 'cls', which holds numbers"),
        ({"collate": {"tokens": Pad()}, "decode": False}, r"Pad for the field 'tokens', which holds bytes"),
        ({"collate": {"tokens": Pad(mask="cls")}}, r"would be called 'cls'"),
        ({"collate": {"tokens": Pad(mask="m"), "boxes": Pad(mask="m")}}, r"would be called 'm'"),
        ({"collate": {"tokens": Pad(mask="__key__")}}, r"would be called '__key__'"),
        ({"collate": {"tokens": Pad(mask="m")}, "fields": ("tokens",)}, r"leaves out 'm'"),
        ({"collate": {"tokens": Ragged()}, "fields": ("tokens",)}, r"leaves out 'tokens_offsets'"),
        ({"collate": {"boxes": Pad()}, "fields": ("tokens",)}, r"names the field 'boxes'"),
        ({"fields": ("tokens", "tokens_mask")}, r"no field 'tokens_mask'"),
        ({"collate": 3}, r"collate=3"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_batch(path: str, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ShardDataset(path, 8, **options)


def test_what_a_transform_returns_in_another_form_than_was_declared_is_named(path: str) -> None:
    with pytest.raises(SampleError, match=r"'k000': the transform returned a tuple, and collate= declares"):
        read(path, 4, transform=lambda s: (s["cls"],), collate={"tokens": Pad()})
    with pytest.raises(SampleError, match=r"field more: the sample has no such field"):
        read(path, 4, transform=lambda s: {"cls": 1}, collate={"more": Pad()})
    with pytest.raises(SampleError, match=r"returned a field 'tokens_mask', which collate= adds to 'tokens'"):
        read(path, 4, transform=lambda s: {"tokens": [1], "tokens_mask": 1}, collate={"tokens": Pad()})


def test_a_function_gets_a_list_of_samples_and_may_return_anything(path: str) -> None:
    assert read(path, 25, collate=lambda samples: sum(s["cls"] for s in samples)) == [300, 925]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two sets, whose arrays have one size each."""
    place = tmp_path_factory.mktemp("mixed")
    for name, length in {"a": 3, "b": 5}.items():
        streamio.write(({"tokens": np.full(length, i), "cls": i} for i in range(12)), place / name)
    return [str(place / "a"), str(place / "b")]


class TestMixture:
    """Sets whose samples differ join as one set of all of them would."""

    def mixed(self, paths: list[str], one: Any, collate: Any = None, **options: Any) -> list[Any]:
        sets = {f"s{n}": (ShardDataset(path, 1, collate=one, **options), 0.5) for n, path in enumerate(paths)}
        return list(Mixture(sets, 6, stop=24, collate=collate))

    @pytest.mark.parametrize("transform", [None, unchanged])
    def test_a_declaration_holds_for_all_sets(self, paths: list[str], transform: Any) -> None:
        declared = {"tokens": Pad(length=8)}
        for batches in (
            self.mixed(paths, None, declared, transform=transform), self.mixed(paths, declared, transform=transform)
        ):  # fmt: skip
            for batch in batches:
                assert batch["tokens"].shape == (6, 8)
                assert batch["tokens_lengths"].tolist() == [(3, 5)[s] for s in batch["__source__"].tolist()]
                assert (batch["tokens"][:, 0] == batch["cls"]).all()

    def test_tuples_name_what_comes_with_the_fields_of_their_sets(self, paths: list[str]) -> None:
        declared = {"tokens": Ragged()}
        for values, offsets in self.mixed(paths, declared, fields=("tokens", "tokens_offsets")):
            assert len(offsets) == 7 and offsets[-1] == len(values)

    def test_declarations_that_differ_are_refused(self, paths: list[str]) -> None:
        a, b = (
            ShardDataset(p, 1, collate={"tokens": how}) for p, how in zip(paths, (Pad(), Ragged()), strict=True)
        )
        with pytest.raises(UsageError, match="'b' declares a collate= of its own"):
            Mixture({"a": (a, 0.5), "b": (b, 0.5)}, 4)
        with pytest.raises(UsageError, match="'a' declares a collate= of its own"):
            Mixture({"a": (a, 1)}, 4, collate={"tokens": Pad()})
        with pytest.raises(UsageError, match="names the field 'token'"):
            Mixture({"a": (ShardDataset(paths[0], 1), 1)}, 4, collate={"token": Pad()})


def test_a_sequential_data_set_declares_likewise(path: str) -> None:
    names = ("tokens", "tokens_mask", "cls")
    expected = next(iter(ShardDataset(path, 8, fields=names, collate={"tokens": Pad()})))
    tar = sorted(str(p) for p in Path(path).glob("*.tar"))
    ds = streamio.SequentialDataset(tar, 8, ("tokens.npy", "tokens.npy_mask", "cls"), collate={"tokens.npy": Pad()})
    assert same(next(iter(ds)), expected)
