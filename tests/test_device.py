"""Batches on the device: the order of copies, conversions against plain arithmetic, the same without CUDA.

The copying itself needs a GPU: the tests marked with `cuda` run where there is one.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import streamio
from streamio import MissingExtra, ShardDataset, StreamLoader, UsageError
from streamio.device import Normalize, decode_jpeg, find_device
from streamio.image import Resize
from streamio.loading.base import Batches
from streamio.loading.device import PlacedBatches
from tests.samples import jpg
from tests.sets import keys, make_set

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture
def photos(tmp_path: Path) -> str:
    """20 pictures of 10 x 8, with labels."""
    colours = np.random.default_rng(0).integers(0, 256, (20, 3)).tolist()
    samples = ({"jpg": jpg(10, 8, colour=tuple(colour)), "cls": i} for i, colour in enumerate(colours))
    streamio.write(samples, tmp_path / "photos", shard_samples=7)
    return str(tmp_path / "photos")


class Source(Batches):
    """Batches 0, 1, …; so many of them are there at once. Then it raises."""

    def __init__(self, count: int, there: int, last: Exception | None = None) -> None:
        self.count, self.there, self.last = count, there, last
        self.given, self.closed = 0, False

    def __next__(self) -> int:
        if self.given == self.count:
            raise self.last or StopIteration
        self.given += 1
        return self.given - 1

    def ready(self) -> bool:
        return self.given < min(self.count, self.there)

    def close(self) -> None:
        self.closed = True


class Log:
    """Copies nothing; writes down what it was asked for."""

    def __init__(self, fails_at: int = -1) -> None:
        self.events: list[str] = []
        self.fails_at = fails_at

    def begin(self, batch: int) -> int:
        if batch == self.fails_at:
            raise ValueError("the conversion failed")
        self.events.append(f"begin {batch}")
        return batch

    def take(self, begun: int) -> int:
        self.events.append(f"take {begun}")
        return begun


def test_copies_begin_before_the_batch_in_front_of_them_is_taken() -> None:
    log = Log()
    assert list(PlacedBatches(Source(5, there=5), log, 2)) == [0, 1, 2, 3, 4]
    assert log.events == [
        "begin 0", "begin 1", "begin 2", "take 0", "begin 3", "take 1", "begin 4", "take 2", "take 3", "take 4",
    ]  # fmt: skip


def test_a_batch_that_has_to_be_waited_for_holds_up_no_other() -> None:
    source, log = Source(4, there=2), Log()
    batches = PlacedBatches(source, log, 2)
    assert next(batches) == 0
    assert (log.events, source.given) == (["begin 0", "begin 1", "take 0"], 2)  # 2 is not there yet
    assert next(batches) == 1
    assert source.given == 2, "1 was on the device: 2 need not be waited for"
    assert next(batches) == 2


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 4))
def test_all_batches_come_once_in_order_and_few_are_ahead(count: int, there: int, ahead: int) -> None:
    source, log = Source(count, there), Log()
    batches = PlacedBatches(source, log, ahead)
    got = []
    for batch in batches:
        got.append(batch)
        assert source.given <= len(got) + ahead
    assert got == list(range(count))
    assert sorted(log.events) == sorted(f"{what} {i}" for i in range(count) for what in ("begin", "take"))
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize(
    ("source", "log"),
    [(Source(3, 3, ValueError("the worker failed")), Log()), (Source(9, 9), Log(fails_at=3))],
)
def test_an_error_comes_in_its_turn(source: Source, log: Log) -> None:
    batches = PlacedBatches(source, log, 2)
    assert [next(batches), next(batches), next(batches)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="failed"):
            next(batches)


def test_closing_closes_where_batches_come_from_and_forgets_copies() -> None:
    source = Source(5, there=5)
    batches = PlacedBatches(source, Log(), 2)
    next(batches)
    batches.close()
    assert source.closed


def reference(pictures: np.ndarray[Any, Any], mean: Any, std: Any) -> np.ndarray[Any, Any]:
    """uint8 (B, H, W, C) -> float64 (B, C, H, W), by hand."""
    values = (pictures.astype(np.float64) / 255 - np.broadcast_to(mean, 3)) / np.broadcast_to(std, 3)
    return values.transpose(0, 3, 1, 2)


@pytest.fixture
def pictures() -> np.ndarray[Any, Any]:
    values = np.random.default_rng(1).integers(0, 256, (4, 6, 5, 3), np.uint8)
    values[0, 0, 0], values[0, 0, 1] = 0, 255
    return values


@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), (0.5, 0.5), (0.0, STD), ([0.1, 0.2, 0.3], 1.0)])
@pytest.mark.parametrize("first", [False, True], ids=["hwc", "chw"])
@pytest.mark.parametrize(
    ("dtype", "off"), [(torch.float32, 1e-6), (torch.float64, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)]
)
def test_conversion_is_what_one_would_compute_by_hand(
    pictures: Any, mean: Any, std: Any, first: bool, dtype: torch.dtype, off: float
) -> None:
    given = torch.from_numpy(pictures)
    given = given.permute(0, 3, 1, 2) if first else given
    before = given.clone()
    made = Normalize(mean, std, dtype=dtype)(given)
    assert (made.dtype, made.shape) == (dtype, (4, 3, 6, 5))
    expected = torch.from_numpy(reference(pictures, mean, std))
    assert torch.allclose(made.double(), expected, atol=off, rtol=off)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(given, before), "the batch itself stays"


def test_pictures_whose_memory_is_channels_first_come_out_channels_last(pictures: Any) -> None:
    planes = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
    made = Normalize(MEAN, STD)(planes)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(made, Normalize(MEAN, STD)(torch.from_numpy(pictures)))


@pytest.mark.parametrize("channels", [1, 2, 4, 6])
def test_other_numbers_of_channels(channels: int) -> None:
    many = torch.full((2, 5, 7, channels), 51, dtype=torch.uint8)
    made = Normalize([0.1] * channels, 0.5)(many)
    assert made.shape == (2, channels, 5, 7)
    assert torch.allclose(made, torch.tensor(0.2))


Pair = namedtuple("Pair", "jpg cls")


def test_only_the_pictures_change_whatever_the_batch_is(pictures: Any) -> None:
    tensor, labels = torch.from_numpy(pictures), torch.arange(4)
    normal = Normalize(MEAN, STD)
    made = normal(tensor)
    batch = normal({"jpg": tensor, "cls": labels, "__key__": ["a", "b"]})
    assert list(batch) == ["jpg", "cls", "__key__"]
    assert torch.equal(batch["jpg"], made) and batch["cls"] is labels and batch["__key__"] == ["a", "b"]
    as_tuple = normal((tensor, labels))
    assert type(as_tuple) is tuple and torch.equal(as_tuple[0], made) and as_tuple[1] is labels
    pair = normal(Pair(tensor, labels))
    assert type(pair) is Pair and torch.equal(pair.jpg, made)


def test_fields_are_chosen_by_name_or_place(pictures: Any) -> None:
    tensor = torch.from_numpy(pictures)
    batch = Normalize(MEAN, STD, fields=("jpg",))({"jpg": tensor, "mask.png": tensor})
    assert batch["jpg"].is_floating_point() and batch["mask.png"] is tensor
    assert Normalize(MEAN, STD, fields=(1,))((tensor, tensor))[0] is tensor
    with pytest.raises(UsageError, match=r"has no 'png'. It has 'jpg' \(uint8 \(4, 6, 5, 3\)\)"):
        Normalize(MEAN, STD, fields=("png",))({"jpg": tensor})
    with pytest.raises(UsageError, match="has no 'jpg'"):
        Normalize(MEAN, STD, fields=("jpg",))((tensor, tensor))
    with pytest.raises(UsageError, match=r"'cls' is int64 .* no uint8 pictures"):
        Normalize(MEAN, STD, fields=("cls",))({"cls": torch.arange(4)})


@pytest.mark.parametrize(
    "batch",
    [{"cls": torch.arange(3)}, (torch.zeros(2, 4, 4, 3),), {"jpg": [torch.zeros(4, 4, 3, dtype=torch.uint8)]}],
)
def test_a_batch_without_pictures_is_refused_with_what_it_has(batch: Any) -> None:
    with pytest.raises(UsageError, match=r"finds no pictures in the batch, only .*decode="):
        Normalize(MEAN, STD)(batch)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((123.7, 116.3, 103.5), STD), "divided by 255"),
        ((MEAN, 0), "must be above 0"),
        ((MEAN, (0.2, 0.2)), "3 means and 2 stds"),
        ((MEAN, "0.2"), "one number, or one for each"),
        (((), 1), "one number, or one for each"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Normalize(*arguments)
    with pytest.raises(UsageError, match="int64"):
        Normalize(MEAN, STD, dtype=torch.int64)
    with pytest.raises(UsageError, match=r"fields=\('jpg',\)"):
        Normalize(MEAN, STD, fields="jpg")


def test_a_conversion_can_be_sent_and_printed() -> None:
    normal = Normalize(MEAN, STD, dtype=torch.bfloat16, fields=("jpg",))
    normal({"jpg": torch.zeros(1, 2, 2, 3, dtype=torch.uint8)})
    again = pickle.loads(pickle.dumps(normal))
    assert repr(again) == repr(normal) and "bfloat16" in repr(again)


OPTIONS: list[dict[str, Any]] = [
    {"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "transport": "thread"}, {},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.no_cuda
def test_a_script_is_the_same_without_a_gpu(photos: str, options: dict[str, Any]) -> None:
    """Conversions run on the CPU, and all else is as the loader gives it."""
    dataset = ShardDataset(photos, 6, shuffle=True, decode=Resize((8, 10)))
    plain = StreamLoader(dataset, num_workers=0)
    expected = [[(b["__key__"], reference(b["jpg"].numpy(), MEAN, STD)) for b in plain] for _ in range(2)]
    dataset.set_epoch(0)
    loader = StreamLoader(dataset, **options).to("auto", Normalize(MEAN, STD))
    assert len(loader) == 4
    for epoch in expected:
        for batch, (names, values) in zip(loader, epoch, strict=True):
            assert batch["__key__"] == names
            assert torch.allclose(batch["jpg"].double(), torch.from_numpy(values), atol=1e-6)
    assert loader.epoch == 2 and loader.stats().batches == 8
    loader.close()


@pytest.mark.no_cuda
def test_without_a_conversion_batches_pass_through(tmp_path: Path) -> None:
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 10), 4), num_workers=0).to("cpu")
    assert keys(loader) == [f"k/{i:05d}" for i in range(10)]


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_state_counts_what_the_loop_got(tmp_path: Path, device: str) -> None:
    path = make_set(tmp_path / "s", 40)

    def loader() -> StreamLoader:
        return StreamLoader(ShardDataset(path, 4, shuffle=True), num_workers=2).to(device)

    first, second = loader(), loader()
    whole = keys(first)
    first.set_epoch(0)
    batches = iter(first)
    got = keys([next(batches), next(batches), next(batches)])
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    second.load_state_dict(state)
    assert got + keys(second) == whole
    assert second.epoch == 1
    second.close()


def test_the_loader_that_it_was_called_on_stays_what_it_is(photos: str) -> None:
    plain = StreamLoader(ShardDataset(photos, 6, fields=("jpg", "cls"), decode=Resize((8, 10))), num_workers=0)
    placed = plain.to("cpu", Normalize(MEAN, STD))
    assert next(iter(placed))[0].is_floating_point()
    assert next(iter(plain))[0].dtype == torch.uint8
    again = pickle.loads(pickle.dumps(placed))
    assert next(iter(again))[0].is_floating_point()
    with pytest.raises(UsageError, match="to 'cpu' already"):
        placed.to("cpu")


def test_every_kind_of_data_set_goes_to_a_device(tmp_path: Path) -> None:
    path = make_set(tmp_path / "s", 12)
    streamio.write(({"tokens": np.arange(40, dtype=np.uint16)} for _ in range(3)), tmp_path / "tokens")
    mixture = streamio.Mixture({"a": (ShardDataset(path, 1), 1.0)}, 4, stop="first")
    tokens = streamio.TokenDataset(tmp_path / "tokens", 2, 8)
    in_passing = streamio.SequentialDataset(f"{path}/shard-000000.tar", 4, ("cls",))
    for dataset in (mixture, tokens, in_passing):
        seen: list[Any] = []
        loader = StreamLoader(dataset, num_workers=0).to(
            "cpu", lambda batch, seen=seen: seen.append(batch) or batch
        )
        batches = list(loader)
        assert len(batches) > 1 and all(one is two for one, two in zip(batches, seen, strict=True))


@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
def test_an_error_of_a_conversion_ends_the_epoch_and_the_loader_lives_on(photos: str, options: Any) -> None:
    loader = StreamLoader(ShardDataset(photos, 6, fields=("cls",)), **options).to("cpu", fails_at_12)
    for _ in range(2):
        batches = iter(loader)
        assert [next(batches)[0].tolist() for _ in range(2)] == [list(range(6)), list(range(6, 12))]
        with pytest.raises(ArithmeticError):
            next(batches)
    loader.close()


def fails_at_12(batch: Any) -> Any:
    if 12 in batch[0]:
        raise ArithmeticError
    return batch


@pytest.mark.no_cuda
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0)])
def test_cuda_where_there_is_none_is_refused_with_the_way_out(tmp_path: Path, device: Any) -> None:
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 3), 2))
    with pytest.raises(UsageError, match=r"CUDA is not available here\. Use 'auto'"):
        loader.to(device)
    assert find_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("gpu",), {}, "'gpu' is no device"),
        ((None,), {}, "None is no device"),
        (("cpu", 5), {}, "convert=5. Give a function"),
        (("cpu",), {"ahead": 0}, "ahead=0"),
        (("cpu",), {"ahead": True}, "ahead=True"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, arguments: Any, options: Any, message: str) -> None:
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 3), 2))
    with pytest.raises(UsageError, match=message):
        loader.to(*arguments, **options)


def test_another_device_of_torch_gets_batches_of_any_structure(tmp_path: Path) -> None:
    """`meta`, whose tensors have no values, is a device that is everywhere."""
    dataset = ShardDataset(make_set(tmp_path / "s", 4), 4, collate=nested)
    batch = next(iter(StreamLoader(dataset, num_workers=0).to("meta")))
    assert (batch["pair"].jpg.device.type, batch["pair"].cls) == ("meta", "text")
    assert batch["list"][0]["deep"][0].device.type == "meta"
    assert batch["packed"].data.device.type == "meta" and batch["packed"].batch_sizes.device.type == "cpu"
    assert batch["asked"] == "moved to meta" and batch["raw"] == b"raw" and batch["kind"] is Asked


class Asked:
    def to(self, device: torch.device) -> str:
        return f"moved to {device}"


def nested(samples: list[Any]) -> Any:
    one = torch.zeros(2)
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(2), torch.zeros(1)])
    return {
        "pair": Pair(one, "text"), "list": [{"deep": (one, 3)}], "packed": packed, "asked": Asked(), "raw": b"raw",
        "kind": Asked,
    }  # fmt: skip


def test_bytes_of_jpeg_files_are_decoded_to_channels_first(photos: str) -> None:
    dataset = ShardDataset(photos, 5, decode={"jpg": False})
    whole = ShardDataset(photos, 5)
    for batch, expected in zip(dataset, whole, strict=True):
        pictures = decode_jpeg(batch["jpg"], "cpu")
        assert all(torch.equal(a.permute(1, 2, 0), b) for a, b in zip(pictures, expected["jpg"], strict=True))
    as_arrays = [np.frombuffer(jpg(9, 4), np.uint8), torch.frombuffer(bytearray(jpg(3, 5)), dtype=torch.uint8)]
    assert [tuple(picture.shape) for picture in decode_jpeg(as_arrays, "cpu")] == [(3, 4, 9), (3, 5, 3)]


def test_decoding_on_the_gpu_without_torchvision_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(MissingExtra, match="needs torchvision, which cannot be imported"):
        decode_jpeg([jpg()], "cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_on_the_gpu_are_those_of_the_cpu(photos: str, options: dict[str, Any]) -> None:
    dataset = ShardDataset(photos, 3, shuffle=True, decode=Resize((256, 256)))
    on_cpu = list(StreamLoader(dataset, num_workers=0).to("cpu", Normalize(MEAN, STD)))
    loader = StreamLoader(dataset, **options).to("cuda", Normalize(MEAN, STD))
    for _ in range(3):
        dataset.set_epoch(0)
        for batch, expected in zip(loader, on_cpu, strict=True):
            assert batch["jpg"].is_cuda and batch["cls"].is_cuda
            heavy = torch.randn(2048, 2048, device="cuda")
            for _ in range(20):
                heavy = heavy @ heavy * 1e-3  # the loop's stream is behind the program
            assert torch.allclose(batch["jpg"].cpu(), expected["jpg"], atol=1e-5)
            assert batch["__key__"] == expected["__key__"]
            del batch
    loader.close()


@pytest.mark.cuda
def test_the_program_does_not_wait_for_a_copy(tmp_path: Path) -> None:
    streamio.write(({"x": np.zeros(1 << 24, np.uint8)} for _ in range(8)), tmp_path / "s")
    with torch.cuda.stream(torch.cuda.Stream()), NoWaiting():
        for (x,) in StreamLoader(ShardDataset(tmp_path / "s", 2, fields=("x",)), num_workers=0).to("cuda"):
            assert x.is_cuda


class NoWaiting:
    def __enter__(self) -> None:
        torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_sync_debug_mode("default")
