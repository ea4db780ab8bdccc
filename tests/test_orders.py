"""What decides the order of a data set, each with real shards: exactly once, evenly, and from any point."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import streamio
from streamio import Buckets, Draw, Mixture, ShardDataset, StreamLoader, TokenDataset, UsageError
from tests.samples import jpg
from tests.sets import keys, make_set

N = 240


def documents() -> Iterator[dict[str, Any]]:
    """Texts of very different lengths, in 3 classes of 180, 48 and 12."""
    lengths = (np.random.default_rng(0).lognormal(3, 1.2, N).astype(int) + 1).tolist()
    for i, length in enumerate(lengths):
        yield {"__key__": f"{i:03d}", "txt": "x" * length, "cls": int(i >= 180) + int(i >= 228)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sets") / "documents"
    streamio.write(documents(), folder, shard_samples=20)
    return str(folder)


ORDERS: dict[str, dict[str, Any]] = {
    "lanes": {"shuffle": True, "lanes": 12, "block_samples": 16},
    "blocks": {"shuffle": True, "block_samples": 50},
    "repeat": {"shuffle": "global", "repeat": 3},
    "draw": {"draw": Draw(classes="cls", samples=360)},
    "buckets": {"shuffle": True, "buckets": Buckets(lengths="txt.bytes", window=96)},
    "budget": {"shuffle": True, "buckets": Buckets(lengths="txt.bytes", max_tokens=900, window=64)},
}
COMES = {"repeat": 3, "draw": None}
"""How often each sample comes; once unless told, None where it differs."""


def dataset(path: str, name: str, batch: int | None = 12, **more: Any) -> ShardDataset:
    return ShardDataset(path, batch, **ORDERS[name], **more)


def steps_of(
    path: str, name: str, world: int, batch: int = 12, state: Any = None, workers: int = 0
) -> list[list[str]]:
    """The keys of each step over all ranks."""
    ranks = []
    for rank in range(world):
        data = dataset(path, name, batch // world, rank=rank, world_size=world)
        if state is not None:
            data.load_state_dict(state)
        loader = StreamLoader(data, num_workers=workers)
        ranks.append([batch["__key__"] for batch in loader])
        loader.close()
    assert len({len(r) for r in ranks}) == 1, "ranks have as many batches"
    return [[key for part in step for key in part] for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_sample_comes_as_often_as_it_should_on_any_ranks(path: str, name: str, world: int) -> None:
    count = Counter(key for step in steps_of(path, name, world) for key in step)
    often = COMES.get(name, 1)
    if often is not None:
        assert count == dict.fromkeys((f"{i:03d}" for i in range(N)), often)
    else:
        assert count.total() == 360


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "budget"])
def test_a_step_holds_the_same_samples_on_any_ranks(path: str, name: str) -> None:
    one = [sorted(step) for step in steps_of(path, name, 1)]
    assert all([sorted(step) for step in steps_of(path, name, world)] == one for world in (2, 3, 4))


@pytest.mark.parametrize("name", ORDERS)
def test_workers_make_what_one_process_makes(path: str, name: str) -> None:
    assert steps_of(path, name, 1, workers=3) == steps_of(path, name, 1)


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("batch", [12, 20])
def test_goes_on_after_any_step_on_other_ranks_workers_and_batches(path: str, name: str, batch: int) -> None:
    data = dataset(path, name)
    whole = [b["__key__"] for b in data]
    data.set_epoch(0)
    for done in (1, len(whole) // 2, len(whole) - 1):
        state = json.loads(json.dumps(data.state_at(done, epoch=0)))
        assert len(json.dumps(state)) < 1000
        if name == "budget" and batch != 12:
            with pytest.raises(UsageError, match="batch_size"):
                dataset(path, name, batch).load_state_dict(state)
            continue
        rest = steps_of(path, name, 2, batch if name != "budget" else 24, state, workers=2)
        seen = [key for step in whole[:done] for key in step]
        assert Counter(seen + [key for step in rest for key in step]) == Counter(key for s in whole for key in s)
        if batch == 12 and name != "budget":
            assert [sorted(step) for step in rest] == [sorted(step) for step in whole[done:]]


def test_another_order_is_refused_with_what_differs(path: str) -> None:
    for name, change, word in (
        ("lanes", {"lanes": 2}, "lanes=12, here lanes is 2"),
        ("blocks", {"block_samples": 60}, "block_samples=50, here block_samples is 60"),
        ("repeat", {"repeat": 2}, "samples=720, here samples is 480"),
        ("draw", {"draw": Draw(classes="cls", samples=360, how="independent")}, "draw="),
        ("buckets", {"buckets": Buckets(lengths=np.arange(N))}, "lengths="),
        ("budget", {"buckets": Buckets(lengths="txt.bytes", max_tokens=800, window=64)}, "budget=900, here"),
    ):
        state = dataset(path, name).state_at(0)
        with pytest.raises(UsageError, match=word):
            ShardDataset(path, 12, **{**ORDERS[name], **change}).load_state_dict(state)


def test_each_epoch_has_an_order_of_its_own(path: str) -> None:
    for name in ORDERS:
        data = dataset(path, name)
        assert keys(data) != keys(data)


def test_classes_come_equally_often(path: str) -> None:
    batches = list(dataset(path, "draw"))
    assert Counter(c for b in batches for c in b["cls"].tolist()) == {0: 120, 1: 120, 2: 120}


def test_a_sample_that_comes_again_is_augmented_anew(tmp_path: Path) -> None:
    path = make_set(tmp_path / "s", 20)
    for options in ({"repeat": 3}, {"draw": Draw(weights=np.ones(20), samples=60)}):
        data = ShardDataset(path, 10, transform=drawn, **options)
        got = [pair for b in data for pair in zip(b["__key__"], b["drawn"].tolist(), strict=True)]
        assert len(got) == len(set(got)) == 60
        assert len({value for _, value in got}) == 60


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "drawn": rng.random()}


def lengths_of(batches: Any) -> list[list[int]]:
    return [[len(text) for text in b["txt"]] for b in batches]


def padded(batches: list[list[int]]) -> int:
    return sum(max(b) * len(b) for b in batches)


def test_batches_hold_samples_of_similar_length_or_within_the_budget(path: str) -> None:
    plain = lengths_of(ShardDataset(path, 12, shuffle=True))
    assert padded(lengths_of(dataset(path, "buckets"))) < padded(plain) / 1.7
    budgeted = lengths_of(dataset(path, "budget", batch=None))
    assert all(max(b) * len(b) <= 900 for b in budgeted)
    assert padded(budgeted) < padded(plain) / 1.7
    assert len(dataset(path, "budget", batch=None)) == len(budgeted)


def test_stored_sizes_are_columns_of_every_field(path: str) -> None:
    columns = streamio.open(path).columns
    assert columns["txt.bytes"].tolist() == [len(d["txt"]) for d in documents()]
    assert "txt.bytes" in columns and "txt.bytes" not in list(columns) and "none.bytes" not in columns
    some = streamio.open(path).where(np.arange(5))
    assert some.columns["txt.bytes"].tolist() == columns["txt.bytes"][:5].tolist()


def test_pictures_are_budgeted_by_their_pixels(tmp_path: Path) -> None:
    sides = [(8 * (1 + i % 5), 16) for i in range(30)]
    streamio.write(({"jpg": jpg(*side)} for side in sides), tmp_path / "s")
    data = ShardDataset(tmp_path / "s", None, buckets=Buckets(lengths="jpg", max_pixels=2000), decode=False)
    pixels = dict(enumerate(w * h for w, h in sides))
    for batch in data:
        batch_pixels = [pixels[int(key)] for key in batch["__key__"]]
        assert max(batch_pixels) * len(batch_pixels) <= 2000


def test_several_sets_end_to_end_are_one(tmp_path: Path) -> None:
    a, b = make_set(tmp_path / "a", 30), make_set(tmp_path / "b", 50)
    data = ShardDataset({"a": a, "b": b}, 8, shuffle="global", draw=None)
    got = [(k, c) for batch in data for k, c in zip(batch["__key__"], batch["cls"].tolist(), strict=True)]
    assert Counter(got) == Counter([(f"k/{i:05d}", i) for n in (30, 50) for i in range(n)])
    assert data.table.locate(31)[0].startswith("b: ")
    draw = ShardDataset({"a": a, "b": b}, 8, draw=Draw(weights="cls", samples=100))
    assert len(keys(draw)) == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": 0}, "lanes=0"),
        ({"repeat": 1.5}, "repeat=1.5"),
        ({"block_samples": 0}, "block_samples=0"),
        ({"lanes": 2, "repeat": 2}, "repeat=2 with lanes=2"),
        ({"draw": "cls"}, "draw='cls'"),
        ({"draw": Draw(classes="cls"), "shuffle": "block"}, "random order over the whole set"),
        ({"draw": Draw(classes="cls"), "repeat": 2}, r"Draw\(samples=…\)"),
        ({"draw": Draw(classes="label")}, "no such column"),
        ({"buckets": Buckets(lengths="len")}, "lengths='len'"),
        ({"buckets": Buckets(lengths="cls"), "lanes": 2}, "buckets in 2 lanes"),
        ({"buckets": Buckets(lengths="txt.bytes", max_tokens=5)}, "above|length"),
        ({"batch": None}, "batch_size=None"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_batch(path: str, options: dict[str, Any], message: str) -> None:
    options = {"batch": 12, **options}
    with pytest.raises(UsageError, match=message):
        ShardDataset(path, options.pop("batch"), **options)


def test_lanes_that_no_rank_can_keep_are_said_once(path: str) -> None:
    data = ShardDataset(path, 4, lanes=4, rank=0, world_size=3)
    with pytest.warns(UserWarning, match="lanes=4 on 3 ranks"):
        keys(data)
    keys(data)


def test_pictures_of_several_kinds_are_budgeted_as_one_field(tmp_path: Path) -> None:
    for i in range(20):
        side = (10 + i, 20)
        data = jpg(*side) if i % 2 else png(*side)
        (tmp_path / "p").mkdir(exist_ok=True)
        (tmp_path / "p" / f"{i:02d}.{'jpg' if i % 2 else 'png'}").write_bytes(data)
    streamio.pack(tmp_path / "p", tmp_path / "o")
    data_set = ShardDataset(tmp_path / "o", None, buckets=Buckets(lengths="image", max_pixels=2000), decode=False)
    batches = [[(10 + int(key)) * 20 for key in batch["__key__"]] for batch in data_set]
    assert all(max(pixels) * len(pixels) <= 2000 for pixels in batches)
    assert sorted(p for pixels in batches for p in pixels) == [(10 + i) * 20 for i in range(20)]


def png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "PNG")
    return out.getvalue()


def test_documents_of_tokens_are_budgeted_and_mixed(tmp_path: Path) -> None:
    for name, count in (("a", 100), ("b", 40)):
        streamio.write(({"tokens": np.arange(i * 3 % 200, dtype=np.uint16)} for i in range(count)), tmp_path / name)
    documents = TokenDataset(
        tmp_path / "a", None, 200, mode="documents", shuffle=True,
        buckets=Buckets(lengths="tokens.length", max_tokens=1000),
    )  # fmt: skip
    costs = [(len(batch["cu_seqlens"]) - 1) * batch["max_seqlen"] for batch in documents]
    assert len(documents) == len(costs) and max(costs) <= 1000
    sets = {name: (TokenDataset(tmp_path / name, 1, 64, shuffle=True), 1) for name in "ab"}
    batches = list(Mixture(sets, 8, stop=64))
    assert [batch["tokens"].shape for batch in batches] == [(8, 65)] * 8
    packed = {name: (TokenDataset(tmp_path / name, 1, 64, mode="packed"), 1) for name in "ab"}
    assert all("cu_seqlens" in batch for batch in Mixture(packed, 4, batches="single", stop=32))
