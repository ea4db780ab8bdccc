"""Samples that lack a field: an error that names them, left out and counted, or filled and marked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamio
from streamio import DecodeError, Fill, Mixture, Pad, Ragged, SampleError, ShardDataset, StreamLoader, UsageError
from streamio.image import CenterCrop
from tests.samples import jpg
from tests.sets import keys, read, sizes

N = 24
LACK = {"jpg": 2, "txt": 3, "price.float": 4, "tokens": 5}
"""Every so many samples, from the first, lack the field."""


def has(i: int, field: str) -> bool:
    return i % LACK[field] != 0


def some(n: int) -> Iterator[dict[str, Any]]:
    for i in range(n):
        sample = {
            "jpg": jpg(12, 10), "txt": f"text {i}", "price.float": i / 2, "tokens": np.arange(i, dtype=np.uint16),
        }  # fmt: skip
        yield {"__key__": f"k{i:02d}", "cls": i} | {f: v for f, v in sample.items() if has(i, f)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("sets") / "s"
    streamio.write(some(N), place, shard_samples=10)
    return str(place)


FILLS = {
    "jpg": Fill(7), "txt": Fill("?"), "price.float": Fill(-1), "tokens": Fill(np.array([9, 9], np.uint16)),
}  # fmt: skip


def check_filled(batch: dict[str, Any]) -> None:
    for i, number in enumerate(batch["cls"].tolist()):
        for field in LACK:
            mask = batch[f"{field}_filled"]
            assert mask.dtype == torch.bool and bool(mask[i]) != has(number, field)
        assert batch["txt"][i] == (f"text {number}" if has(number, "txt") else "?")
        assert batch["price.float"][i] == (number / 2 if has(number, "price.float") else -1)
        if not has(number, "jpg"):
            assert (batch["jpg"][i] == 7).all()
        row = batch["tokens"][i][batch["tokens_mask"][i]].tolist()
        assert row == (list(range(number)) if has(number, "tokens") else [9, 9])


def unchanged(sample: dict[str, Any]) -> dict[str, Any]:
    assert sample["txt_filled"] == (sample["txt"] == "?")  # it is told
    return {name: value for name, value in sample.items() if not name.endswith("_filled")}


@pytest.mark.parametrize("transform", [None, unchanged])
def test_what_is_filled_is_what_was_given_and_marked(path: str, transform: Any) -> None:
    options = {
        "fields": None, "decode": {"jpg": CenterCrop(8)}, "collate": {"tokens": Pad()}, "missing": FILLS,
        "transform": transform,
    }  # fmt: skip
    batches = read(path, 6, **options)
    assert sizes(batches) == [6] * 4 and batches[0]["jpg"].shape == (6, 8, 8, 3)
    assert batches[0]["price.float"].dtype == torch.float64  # though -1 was given
    for batch in batches:
        check_filled(batch)
    with closing(StreamLoader(ShardDataset(path, 6, shuffle=True, **options), num_workers=2)) as loader:
        for batch in loader:
            check_filled(batch)


def test_a_tuple_may_name_the_mask_of_what_was_filled(path: str) -> None:
    ds = ShardDataset(path, N, fields=("txt_filled", "txt"), missing={"txt": Fill("")})
    ((filled, texts),) = list(ds)
    assert filled.tolist() == [not has(i, "txt") for i in range(N)] == [text == "" for text in texts]


def price_up(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "price": sample["price.float"] + len(sample["txt"])}  # no None comes here


@pytest.mark.parametrize("transform", [None, price_up])
def test_what_is_skipped_is_left_out_and_counted(path: str, transform: Any) -> None:
    rules = {"price.float": "skip", "txt": "skip"}
    ds = ShardDataset(path, 6, fields=None, decode=False if transform is None else None, transform=transform,
                      missing=rules, collate={"tokens": "list"} if transform is None else None)  # fmt: skip
    batches = list(ds)
    expected = [f"k{i:02d}" for i in range(N) if has(i, "txt") and has(i, "price.float")]
    assert keys(batches) == expected and len(batches) == 4
    assert ds.stats().dropped == N - len(expected)


def test_a_batch_of_which_all_are_skipped_is_an_error(tmp_path: Path) -> None:
    streamio.write([{"__key__": "a", "cls": 1}, {"__key__": "b", "cls": 2, "txt": "t"}], tmp_path / "s")
    with pytest.raises(SampleError, match="lack a field that missing= skips"):
        read(tmp_path / "s", 1, missing={"txt": "skip"}, tail="drop")


def test_error_is_one_also_for_text_which_would_be_a_none_in_a_list(path: str) -> None:
    assert read(path, 6, fields=("txt",))[0][0][0] is None
    with pytest.raises(DecodeError, match=r"row 0 \('k00'\), field txt: the sample has no such field.*missing="):
        read(path, 6, fields=("txt",), missing={"txt": "error"})
    batches = read(path, 6, fields=("txt", "__key__"), missing={"txt": "error"}, on_error="skip")
    assert [k for _, names in batches for k in names] == [f"k{i:02d}" for i in range(N) if has(i, "txt")]


def test_what_takes_the_place_of_a_bad_sample_is_whole_or_filled_too(path: str) -> None:
    options = {"on_error": "substitute", "decode": CenterCrop(8), "shuffle": True}
    batches = read(path, 6, fields=("jpg", "txt", "txt_filled"), missing={"txt": Fill("?")}, **options)
    assert [len(b[1]) for b in batches] == [6] * 4
    assert all(
        (text == "?") == bool(mask) for _, texts, masks in batches for text, mask in zip(texts, masks, strict=True)
    )
    for _, texts, _ in batches:
        assert all(text == "?" or has(int(text.split()[1]), "jpg") for text in texts)
    for _, texts in read(path, 4, fields=("jpg", "txt"), missing={"txt": "skip"}, tail="drop", **options):
        assert None not in texts


def lists(sample: dict[str, Any]) -> dict[str, Any]:
    number = int(sample["cls"])
    made: dict[str, Any] = {"cls": number, "__key__": sample["__key__"]}
    return {**made, "ids": list(range(number))} if number % 2 else {**made, "ids": None} if number % 4 else made


def test_rules_for_what_a_transform_makes_hold_after_it(path: str) -> None:
    declared = {"ids": Ragged()}
    (batch,) = read(path, N, transform=lists, collate=declared, missing={"ids": Fill([5])})
    assert batch["ids_filled"].tolist() == [i % 2 == 0 for i in range(N)]
    assert batch["ids_offsets"].diff().tolist() == [i if i % 2 else 1 for i in range(N)]
    ds = ShardDataset(path, N, transform=lists, collate=declared, missing={"ids": "skip"})
    assert next(iter(ds))["cls"].tolist() == list(range(1, N, 2)) and ds.stats().dropped == N // 2
    with pytest.raises(SampleError, match=r"'k00'\), field ids: the transform returned no such field"):
        read(path, N, transform=lists, collate=declared, missing={"ids": "error"})


def spoil(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["x_filled"]:
        sample["x"] += 1
    return {"x": sample["x"]}


def test_each_sample_gets_a_fill_of_its_own(tmp_path: Path) -> None:
    streamio.write([{"cls": 1}, {"cls": 2}, {"cls": 3, "x": np.zeros(2)}], tmp_path / "s")
    (batch,) = read(tmp_path / "s", 3, transform=spoil, missing={"x": Fill(np.zeros(2))})
    assert batch["x"].tolist() == [[1, 1], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"txt": "drop"}, "missing gives 'drop' for the field 'txt'"),
        ({"txt": Fill}, "for the field 'txt'"),
        ("skip", "missing='skip'"),
        ({"text": "skip"}, "missing names the field 'text'. The fields that are read: cls, jpg"),
        ({"price.float": Fill("none")}, "missing gives 'none' for the field 'price.float'. Give a number"),
        ({"tokens": Fill(0)}, "missing gives 0 for the field 'tokens'. Give an array"),
        ({"jpg": Fill(0)}, "missing gives 0 for the field 'jpg'"),  # of what size?
        ({"jpg": Fill(np.zeros((4, 4, 3)))}, "for the field 'jpg'. Give an array uint8"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_before_the_first_batch(path: str, missing: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ShardDataset(path, 4, missing=missing)


def test_a_mask_that_would_hide_a_field_is_refused(tmp_path: Path) -> None:
    streamio.write([{"txt": "a", "txt_filled": "b"}], tmp_path / "s")
    with pytest.raises(UsageError, match="would be called 'txt_filled'"):
        ShardDataset(tmp_path / "s", 1, missing={"txt": Fill("")})


@pytest.mark.parametrize("transform", [None, unchanged])
def test_sets_of_a_mixture_fill_and_skip_for_themselves(path: str, transform: Any) -> None:
    def mixed(*rules: Any) -> Mixture:
        sets = {
            f"s{i}": (ShardDataset(path, 1, decode={"jpg": CenterCrop(8)}, missing=rule, transform=transform), 0.5)
            for i, rule in enumerate(rules)
        }
        return Mixture(sets, 8, stop=2 * N, collate={"tokens": Pad()})

    for batch in mixed(FILLS, FILLS):
        check_filled(batch)
    mix = mixed(FILLS, {**FILLS, "cls": "skip"})  # which no sample lacks
    assert sum(len(batch["txt"]) for batch in mix) == 2 * N
    with pytest.raises(UsageError, match=r"missing= brings jpg_filled.* in 's0', and nothing in 's1'"):
        mixed(FILLS, {})


def test_a_set_of_a_mixture_that_skips_all_of_its_part_leaves_the_others(path: str, tmp_path: Path) -> None:
    streamio.write(
        ({"__key__": f"b{i}", "cls": i, "txt": "t"} if i == 9 else {"cls": i} for i in range(10)), tmp_path / "b"
    )
    a = ShardDataset(path, 1, fields=("cls", "txt"), missing={"txt": "skip"})
    b = ShardDataset(tmp_path / "b", 1, fields=("cls", "txt"), missing={"txt": "skip"})
    numbers = list(Mixture({"a": (a, 0.7), "b": (b, 0.3)}, 8, stop=24))
    assert all(len(cls) == len(texts) and None not in texts for cls, texts in numbers)


def test_every_format_and_a_cache_fill_alike(tmp_path: Path, fmt: str) -> None:
    streamio.write(some(N), tmp_path / "s", format=fmt, shard_samples=10)
    ds = ShardDataset(
        tmp_path / "s", 6, decode={"jpg": CenterCrop(8)}, collate={"tokens": Pad()}, missing=FILLS, cache="memory"
    )
    for _ in range(2):  # the second time from the cache
        for batch in ds:
            check_filled(batch)


def test_sets_end_to_end_fill_what_any_of_them_lacks(path: str, tmp_path: Path) -> None:
    streamio.write(({"cls": 0, "txt": "b"} if i == 0 else {"cls": i} for i in range(4)), tmp_path / "b")
    ds = ShardDataset({"a": path, "b": tmp_path / "b"}, 7, fields=("txt", "txt_filled"), missing={"txt": Fill("")})
    masks = torch.cat([mask for _, mask in ds])
    assert masks.tolist() == [not has(i, "txt") for i in range(N)] + [False, True, True, True]


def test_what_is_left_of_a_padded_tail_keeps_its_mask(path: str) -> None:
    ds = ShardDataset(path, 7, fields=("txt", "__valid__"), missing={"txt": "skip"}, tail="pad")
    batches = list(ds)
    assert all(len(texts) == len(valid) for texts, valid in batches)
    assert sum(int(valid.sum()) for _, valid in batches) == sum(has(i, "txt") for i in range(N))
