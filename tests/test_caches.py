"""cache=: what was decoded is not decoded again, and no batch is another one for it."""

from __future__ import annotations

import gc
import io
import os
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import streamio
from streamio import ShardDataset, StreamLoader, UsageError, WorkerDied
from streamio.caching import keyed
from streamio.image import CenterCrop, MaxSide, RandomResizedCrop, Resize
from tests.cached import CacheSuite, epochs, ident
from tests.samples import png
from tests.sets import make_set

SAMPLES, BAD = 36, (5, 20)


def _jpeg(i: int) -> bytes:
    """From 80 to 500 pixels, so that crops need several scales; some lie on their side."""
    noise = np.random.default_rng(i).integers(0, 255, (6, 8, 3), np.uint8)
    picture = Image.fromarray(noise).resize((80 + i % 8 * 60, 90 + i % 5 * 70), Image.Resampling.BICUBIC)
    tags = picture.getexif()
    tags[0x112] = 1 + i % 8
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=85, exif=tags)
    return out.getvalue()


def _set(path: Path, samples: int = SAMPLES) -> str:
    def all_samples() -> Iterator[dict[str, Any]]:
        for i in range(samples):
            yield {"__key__": f"{i:03d}", "jpg": b"no picture" if i in BAD else _jpeg(i), "cls": i,
                   "png": png(20 + i % 3, 30, colour=(i, 0, 0)), "txt": f"text {i}" * (i % 4)}  # fmt: skip

    streamio.write(all_samples(), path, shard_samples=10)
    return str(path)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _set(tmp_path_factory.mktemp("set") / "out")


def words(data: bytes) -> Any:
    """Values of many kinds: None, text, arrays of several shapes."""
    text = data.decode()
    return (
        None if not text else {"words": text.split(), "codes": np.frombuffer(data, np.uint8), "n": (len(text), 0.5)}
    )


def pixels_drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    sample["png"] += 1  # what is kept must not change with it
    return {**sample, "drawn": rng.random()}


CASES: dict[str, dict[str, Any]] = {
    "random": {"decode": {"jpg": RandomResizedCrop(24, flip=0.5), "png": RandomResizedCrop(8)}},
    "random and its mask": {"decode": RandomResizedCrop((16, 20), scale=(0.5, 1)), "layout": "chw"},
    "fixed": {"decode": {"jpg": CenterCrop(32, resize=40), "png": Resize((10, 12))}, "fields": ("png", "jpg", "cls")},
    "of many shapes": {"decode": {"jpg": MaxSide(50), "txt": words}, "collate": ident},
    "whole": {"transform": pixels_drawn, "collate": ident},
    "pictures alone": {"decode": RandomResizedCrop(20), "fields": ("jpg",)},
    "substituted": {"decode": CenterCrop(16, resize=20), "on_error": "substitute"},
}  # fmt: skip


def _made(source: str, case: str, **more: Any) -> ShardDataset:
    return ShardDataset(source, 5, shuffle="global", seed=3, **{"on_error": "skip", **CASES[case], **more})


@pytest.fixture(scope="module")
def plain(source: str) -> dict[str, list[list[str]]]:
    """Three epochs of each case without a cache."""
    return {case: epochs(_made(source, case)) for case in CASES}


@pytest.fixture(autouse=True)
def _own_memory() -> None:
    """Logged errors, which pytest keeps, hold on to data sets of earlier tests, and so to their memory."""
    keyed._in_memory.clear()


@pytest.fixture(params=["memory", "disk"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory" if request.param == "memory" else f"disk:{tmp_path / 'cache'}"


class TestDecoded(CacheSuite):
    made, fixed, anew = staticmethod(_made), "fixed", len(BAD)

    @pytest.fixture(params=CASES)
    def case(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


def test_a_fixed_decode_opens_each_picture_once(source: str, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    dataset = ShardDataset(source, 6, fields=("png", "cls"), decode=Resize((8, 8)), cache=where, shuffle=True)
    epochs(dataset, 1)

    def gather(rows: Any, fields: Any, *more: Any) -> Any:
        assert list(fields) == ["cls"], "the pictures are read again"
        return whole(rows, fields, *more)

    whole = dataset.table.gather
    monkeypatch.setattr(dataset.table, "gather", gather)
    epochs(dataset, 2)
    stats = dataset.stats()
    assert (stats.cache_misses, stats.cache_hits) == (SAMPLES, 2 * SAMPLES)


def test_members_of_a_mixture_have_their_caches(source: str, where: str) -> None:
    def mixture(**more: Any) -> streamio.Mixture:
        sets = {
            "a": (ShardDataset(source, 1, fields=("png", "cls"), decode=Resize((8, 8)), shuffle=True, **more), 0.7),
            "b": (ShardDataset(source, 1, fields=("png", "cls"), decode=RandomResizedCrop(8), **more), 0.3),
        }
        return streamio.Mixture(sets, 7)

    cached = mixture(cache=where)
    assert epochs(cached) == epochs(mixture())
    assert cached.stats().cache_hits > 0


def test_samples_without_the_field_are_filled_or_left_out_as_ever(tmp_path: Path, where: str) -> None:
    samples = [{"__key__": f"{i}", "cls": i, **({"jpg": _jpeg(i)} if i % 3 else {})} for i in range(12)]
    streamio.write(samples, tmp_path / "set")
    for rule in (streamio.Fill(7), "skip"):
        for decode in (RandomResizedCrop(16), CenterCrop(16, resize=20)):
            options: dict[str, Any] = {"decode": decode, "missing": {"jpg": rule}, "shuffle": True}
            expected = epochs(ShardDataset(tmp_path / "set", 4, **options))
            assert epochs(ShardDataset(tmp_path / "set", 4, cache=where, **options)) == expected


def test_a_limit_of_pixels_holds_for_what_is_kept_too(source: str, where: str) -> None:
    options: dict[str, Any] = {"fields": ("png",), "decode": Resize((8, 8)), "cache": where}
    epochs(ShardDataset(source, 4, **options), 1)
    with pytest.raises(streamio.DecodeError, match="more than the limit of 100"):
        epochs(ShardDataset(source, 4, max_pixels=100, **options), 1)


def _stores(folder: Path) -> int:
    return len(list(folder.rglob("*.values")))


def test_other_data_decoding_or_code_is_another_cache(source: str, tmp_path: Path) -> None:
    other = _set(tmp_path / "other", SAMPLES - 1)
    folder = tmp_path / "cache"

    def one(source: str = source, **options: Any) -> int:
        """Stores in the folder after an epoch."""
        dataset = ShardDataset(source, 6, on_error="skip", cache=f"disk:{folder}", collate=ident, **options)
        epochs(dataset, 1)
        return _stores(folder)

    assert one(decode={"jpg": Resize(20)}) == 1
    assert one(decode={"jpg": Resize(20)}) == 1
    assert one(decode={"jpg": Resize(21)}) == 2
    assert one(other, decode={"jpg": Resize(20)}) == 3
    assert one(decode={"jpg": Resize(20), "txt": words}) == 4
    assert one(decode={"jpg": Resize(20), "txt": lambda data: len(data)}) == 5
    assert one(decode={"jpg": Resize(20), "txt": lambda data: len(data) + 1}) == 6
    assert one(decode={"jpg": Resize(20), "txt": lambda data: len(data) + 1}) == 6
    assert one(decode={"jpg": Resize(20), "txt": lambda data: len(data)}, cache_key="v1") == 7
    assert one(decode={"jpg": Resize(20), "txt": lambda data: len(data) + 1}, cache_key="v1") == 7
    # Operations that draw keep the whole picture, so one store serves them all.
    assert one(decode={"jpg": RandomResizedCrop(20)}) == 8
    assert one(decode={"jpg": RandomResizedCrop(30, flip=1)}) == 8


def test_data_sets_that_decode_alike_share_memory(source: str) -> None:
    train = _made(source, "fixed", cache="memory")
    epochs(train, 1)
    evaluated = train.with_(shuffle=False)
    epochs(evaluated, 1)
    assert evaluated.stats().cache_misses == len(BAD)
    other = train.with_(decode={"jpg": CenterCrop(16, resize=40), "png": Resize((10, 12))})
    epochs(other, 1)
    assert other.stats().cache_hits == 0


@pytest.mark.parametrize("case", ["random", "fixed"])
def test_a_worker_killed_while_it_fills_harms_nobody(
    source: str, plain: dict[str, list[list[str]]], where: str, case: str
) -> None:
    dataset = _made(source, case, cache=where)
    for batches in range(1, 4):
        with closing(StreamLoader(dataset, num_workers=2, transport="process")) as loader:
            reading = iter(loader)
            for _ in range(batches):
                next(reading)
            os.kill(loader._transport.pids()[0], signal.SIGKILL)
            with suppress(WorkerDied):  # unless it had made its last batch
                list(reading)
        dataset.set_epoch(0)
    with closing(StreamLoader(dataset, num_workers=2, transport="process")) as loader:
        assert epochs(loader) == plain[case]


def test_no_descriptor_and_no_name_is_left(source: str) -> None:
    def state() -> tuple[int, list[str]]:
        gc.collect()  # what earlier tests left
        return len(os.listdir("/proc/self/fd")), os.listdir("/dev/shm")

    full = streamio.open(source)
    options = {"decode": Resize((10, 12)), "fields": ("png", "cls")}
    epochs(ShardDataset(full, 5, **options), 1)  # type: ignore[arg-type]
    before = state()
    for _ in range(3):
        dataset = ShardDataset(full, 5, cache="memory", **options)  # type: ignore[arg-type]
        with closing(StreamLoader(dataset, num_workers=2, transport="thread")) as loader:
            epochs(loader, 1)
        del dataset, loader
    assert state() == before


# ruff: noqa: E501 - the table is read by column
WRONG = [
    # options                                                       what it says
    ({"cache": "ram"},                                              r"cache='ram'. Give \"memory\", or \"disk:\" and a folder"),
    ({"cache": "disk:"},                                            "cache='disk:'"),
    ({"cache": True},                                               "cache=True"),
    ({"cache_bytes": "8GB"},                                        "without cache="),
    ({"cache_key": "v1"},                                           "without cache="),
    ({"cache": "memory", "cache_key": "v1"},                        "cache_key='v1'. Give a text, for a cache on a disk"),
    ({"cache": "memory", "cache_bytes": "much"},                    "'much' is no size"),
    ({"cache": "memory", "cache_bytes": 100},                       "cache_bytes=100 has no room for a table"),
    ({"cache": "memory", "decode": False},                          "takes long to decode"),
    ({"cache": "memory", "fields": ("cls", "txt")},                 "takes long to decode"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_cannot_work_is_refused_at_once(source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ShardDataset(source, 4, **options)


def test_a_value_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    source = make_set(tmp_path / "set", 8)
    dataset = ShardDataset(source, 4, decode={"txt": lambda data: {*data}}, cache="memory", collate=ident)
    with pytest.raises(UsageError, match=r"field txt: a builtins.set, which cache= cannot keep"):
        list(dataset)
