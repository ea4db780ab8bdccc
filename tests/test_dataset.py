"""What a batch holds: fields, decoding, transforms, and what is refused before the first one."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import streamio
from streamio import DecodeError, SampleError, ShapeMismatch, ShardDataset, TransformError, UsageError
from streamio.image import CenterCrop, RandomResizedCrop, Resize
from tests.samples import jpg, png, raw_tar
from tests.sets import keys, make_set, read


@pytest.fixture
def pictures(tmp_path: Path, fmt: str) -> str:
    """12 pictures of different sizes and colours, with a class and a caption."""
    streamio.write(
        (
            {"__key__": f"{i:02d}", "jpg": jpg(20 + i, 16, colour=(20 * i, 0, 0)), "cls": i % 3, "txt": f"no {i}"}
            for i in range(12)
        ),
        tmp_path / "pictures", format=fmt, shard_samples=5, classes=["a", "b", "c"],
    )  # fmt: skip
    return str(tmp_path / "pictures")


def test_batches_are_dicts_of_all_fields_or_tuples_of_some(pictures: str) -> None:
    batch = read(pictures, 4, decode=CenterCrop(8))[0]
    assert list(batch) == ["cls", "jpg", "txt", "__key__"] or set(batch) == {"cls", "jpg", "txt", "__key__"}
    assert batch["jpg"].shape == (4, 8, 8, 3) and batch["jpg"].dtype == torch.uint8
    assert batch["cls"].tolist() == [0, 1, 2, 0] and batch["cls"].dtype == torch.int64
    assert batch["txt"] == ["no 0", "no 1", "no 2", "no 3"]
    image, label, key = read(pictures, 4, fields=("jpg", "cls", "__key__"), decode=CenterCrop(8))[0]
    assert torch.equal(image, batch["jpg"]) and torch.equal(label, batch["cls"]) and key == batch["__key__"]


def test_pictures_have_the_right_colours_and_layout(pictures: str) -> None:
    hwc = read(pictures, 12, decode=CenterCrop(8))[0]["jpg"]
    assert (hwc[:, 4, 4, 0] - 20 * torch.arange(12)).abs().max() <= 3
    chw = read(pictures, 12, decode=CenterCrop(8), layout="chw")[0]["jpg"]
    assert chw.shape == (12, 3, 8, 8) and torch.equal(chw.permute(0, 2, 3, 1), hwc)
    assert chw.is_contiguous(memory_format=torch.channels_last)


def as_decoded(sample: dict[str, Any]) -> dict[str, Any]:
    return {"jpg": sample["jpg"] / np.float32(255), "cls": sample["cls"]}


def turned(sample: dict[str, Any]) -> dict[str, Any]:
    return {"jpg": (sample["jpg"] / np.float32(255)).transpose(2, 0, 1), "cls": sample["cls"]}


def as_tensor(sample: dict[str, Any]) -> dict[str, Any]:
    return {"jpg": torch.from_numpy(turned(sample)["jpg"]), "cls": sample["cls"]}


@pytest.mark.parametrize("function", [as_decoded, turned, as_tensor])
@pytest.mark.parametrize("role", ["transform", "prepare"])
def test_pictures_of_a_transform_have_the_layout_asked_for(pictures: str, function: Any, role: str) -> None:
    options: dict[str, Any] = {"decode": CenterCrop(8), "layout": "chw", role: function}
    expected = read(pictures, 12, decode=CenterCrop(8), layout="chw")[0]["jpg"] / np.float32(255)
    dataset = ShardDataset(pictures, 12, **options)
    for made in (dataset, streamio.Mixture({"a": (dataset, 1)}, 12), dataset.with_(collate={"jpg": "list"})):
        (jpg,) = (batch["jpg"] for batch in made)
        assert torch.equal(torch.stack(list(jpg)), expected)
    (plain,) = dataset.with_(layout="hwc")
    assert plain["jpg"].shape == ((12, 8, 8, 3) if function is as_decoded else (12, 3, 8, 8))


@pytest.mark.parametrize("shape", [(8, 6, 3), (3, 8, 6)])
def test_pictures_of_a_decoding_of_ones_own_have_the_layout_asked_for(pictures: str, shape: Any) -> None:
    def decoded(data: bytes) -> Any:
        return np.zeros(shape, np.float32)

    assert read(pictures, 12, decode={"jpg": decoded}, layout="chw")[0]["jpg"].shape == (12, 3, 8, 6)


@pytest.mark.parametrize("shape", [(3, 4, 3), (8, 8, 21)])
def test_pictures_whose_channels_cannot_be_told_are_refused_with_their_shape(pictures: str, shape: Any) -> None:
    def odd(sample: dict[str, Any]) -> dict[str, Any]:
        return {"jpg": np.zeros(shape, np.uint8)}

    options: dict[str, Any] = {"decode": CenterCrop(8), "transform": odd}
    with pytest.raises(UsageError, match=rf"field jpg: .*\(12, {shape[0]}, .*layout='chw'.*Turn them there"):
        read(pictures, 12, layout="chw", **options)
    assert read(pictures, 12, **options)[0]["jpg"].shape == (12, *shape)


def test_random_crops_depend_on_seed_epoch_and_sample_alone(tmp_path: Path, fmt: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (12, 24, 20, 3), np.uint8)
    streamio.write(({"__key__": f"{i}", "png": noise[i]} for i in range(12)), tmp_path / "s", format=fmt)

    def crops(**options: Any) -> dict[str, bytes]:
        batches = read(tmp_path / "s", shuffle=True, decode=RandomResizedCrop(8), **options)
        return {k: x.numpy().tobytes() for b in batches for k, x in zip(b["__key__"], b["png"], strict=True)}

    alone = crops(batch_size=12)
    assert crops(batch_size=5, workers=2) == alone
    other = crops(batch_size=12, seed=1)
    assert sum(other[k] != alone[k] for k in alone) >= 10
    dataset = ShardDataset(tmp_path / "s", 12, shuffle=False, decode=RandomResizedCrop(8))
    first, second = next(iter(dataset)), next(iter(dataset))
    assert first["__key__"] == second["__key__"] and not torch.equal(first["png"], second["png"])


def test_a_picture_and_its_mask_are_cropped_alike(tmp_path: Path) -> None:
    gradient = np.add.outer(np.arange(64), np.arange(64)).astype(np.uint8)[..., None].repeat(3, 2)
    streamio.write([{"png": gradient, "seg.png": gradient}] * 4, tmp_path / "s")
    batch = read(tmp_path / "s", 4, decode=RandomResizedCrop(16, flip=0.5))[0]
    assert torch.equal(batch["png"], batch["seg.png"])
    assert not torch.equal(batch["png"][0], batch["png"][1])


def test_shapes_that_differ_are_an_error_with_the_ways_out(pictures: str) -> None:
    with pytest.raises(ShapeMismatch, match=r"(?s)field jpg.*\(16, 20, 3\).*RandomResizedCrop.*--resize-short"):
        read(pictures, 4)
    assert read(pictures, 1)[3]["jpg"].shape == (1, 16, 23, 3)


def test_decode_by_field_false_gives_the_bytes_and_a_function_anything(pictures: str) -> None:
    batch = read(pictures, 4, decode={"jpg": False, "txt": lambda data: int(data.split()[1])})[0]
    assert batch["jpg"][0][:2] == b"\xff\xd8" and isinstance(batch["jpg"][0], bytes)
    assert batch["txt"].tolist() == [0, 1, 2, 3]
    raw = read(pictures, 4, decode=False)[0]
    assert raw["txt"] == [b"no 0", b"no 1", b"no 2", b"no 3"]


def test_pictures_of_several_kinds_are_one_field(tmp_path: Path, fmt: str) -> None:
    kinds = [("jpg", jpg()), ("png", png()), ("jpeg", jpg()), ("jpg", png())]
    streamio.write(({kind: data, "cls": i} for i, (kind, data) in enumerate(kinds)), tmp_path / "s", format=fmt)
    batch = read(tmp_path / "s", 4)[0]
    assert batch["image"].shape == (4, 8, 8, 3) and set(batch) == {"image", "cls", "__key__"}
    image, label = read(
        streamio.open(tmp_path / "s").where([1, 3]), 4, fields=("image", "cls"), decode=CenterCrop(4)
    )[0]
    assert image.shape == (2, 4, 4, 3) and label.tolist() == [1, 3]
    with pytest.raises(UsageError, match=r"no field 'jpg'\. Fields: image"):
        ShardDataset(tmp_path / "s", 4, fields=("jpg",))


def test_a_picture_beside_another_is_a_field_of_its_own(tmp_path: Path) -> None:
    streamio.write([{"jpg": jpg(), "png": png()}] * 2, tmp_path / "both")
    assert {"jpg", "png"} < set(read(tmp_path / "both", 2)[0])
    streamio.write([{"jpg": jpg()}, {"png": png()}, {"txt": "none"}], tmp_path / "none")
    assert "image" not in ShardDataset(tmp_path / "none", 2).table.fields


def test_an_operation_applies_to_raw_pictures_by_name(tmp_path: Path, fmt: str) -> None:
    pixels = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)
    streamio.write([{"x": pixels}] * 3, tmp_path / "s", format=fmt)
    assert read(tmp_path / "s", 3)[0]["x"].shape == (3, 32, 32, 3)
    cropped = read(tmp_path / "s", 3, decode={"x": CenterCrop(16)})[0]["x"]
    assert torch.equal(cropped[0], torch.from_numpy(pixels[8:24, 8:24]))


def test_raw_pictures_are_pictures(tmp_path: Path, fmt: str) -> None:
    pixels = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    streamio.write([{"x": pixels, "cls": 1}] * 3, tmp_path / "s", format=fmt)
    batch = read(tmp_path / "s", 3, decode=RandomResizedCrop(8), layout="chw")[0]
    assert batch["x"].shape == (3, 3, 8, 8)


def only_class(sample: dict[str, Any]) -> dict[str, Any]:
    return {"cls": sample["cls"]}


def test_a_padded_batch_has_its_mask_whatever_a_transform_returns(tmp_path: Path) -> None:
    path = make_set(tmp_path / "s", 5)
    last = read(path, 4, tail="pad", transform=only_class)[1]
    assert last["cls"].tolist() == [4, 0, 1, 2] and last["__valid__"].tolist() == [True, False, False, False]
    fields = ("cls", "__valid__")
    assert read(path, 4, tail="pad", fields=fields, transform=only_class)[1][1].tolist() == [
        True,
        False,
        False,
        False,
    ]


def with_square(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "square": sample["cls"] ** 2}


def draw(sample: dict[str, Any], rng: np.random.Generator) -> tuple[int, float]:
    return int(sample["cls"]), float(rng.random())


def test_a_transform_gets_one_sample_and_what_it_returns_is_collated(pictures: str) -> None:
    batch = read(pictures, 4, fields=None, decode=CenterCrop(8), transform=with_square)[0]
    assert batch["square"].tolist() == [0, 1, 4, 0]
    label, image = read(pictures, 4, fields=("cls", "jpg"), decode=CenterCrop(8), transform=with_square)[0]
    assert label.tolist() == [0, 1, 2, 0] and image.shape == (4, 8, 8, 3)


def test_a_transform_with_rng_draws_the_same_for_any_workers(pictures: str) -> None:
    def draws(**options: Any) -> list[float]:
        batches = read(pictures, 3, fields=("cls",), transform=draw, **options)
        return [x for _, drawn in batches for x in drawn.tolist()]

    alone = draws()
    assert len(set(alone)) == 12
    assert draws(workers=2) == alone
    assert draws(seed=1) != alone


def test_a_transform_that_returns_none_drops_the_sample(pictures: str) -> None:
    batches = read(pictures, 6, fields=("cls",), transform=lambda s: (s["cls"],) if s["cls"] != 1 else None)
    assert [b[0].tolist() for b in batches] == [[0, 2, 0, 2], [0, 2, 0, 2]]


def test_a_transform_that_fails_is_named_with_its_sample(pictures: str) -> None:
    with pytest.raises(
        TransformError, match=r"shard-000000\.\w+, row 0 \('00'\): transform raised KeyError: 'nope'"
    ):
        read(pictures, 4, transform=lambda s: s["nope"])


def test_a_collate_of_ones_own_gets_the_samples_and_may_return_anything(pictures: str) -> None:
    got = read(pictures, 5, decode=CenterCrop(8), collate=lambda samples: {s["__key__"] for s in samples})
    assert got == [{"00", "01", "02", "03", "04"}, {"05", "06", "07", "08"}, {"09", "10", "11"}] or len(got) == 3
    assert set().union(*got) == {f"{i:02d}" for i in range(12)}


def test_batch_04_dtypes_stay_through_every_format(tmp_path: Path, fmt: str) -> None:
    """pytorch/pytorch#14507, #1113, #109968, #2178."""
    sample = {
        "b": True, "u": np.uint8(7), "i": 2**53 + 1, "h": np.float16(0.5), "f": np.float32(0.1), "d": 0.1,
        "s": "text", "y": b"a\0b\0", "z": np.array(5, np.int16),
    }  # fmt: skip
    streamio.write([sample] * 3, tmp_path / "s", format=fmt)
    batch = read(tmp_path / "s", 3)[0]
    dtypes = {name: batch[name].dtype for name in "buihfdz"}
    assert dtypes == {
        "b": torch.bool, "u": torch.uint8, "i": torch.int64, "h": torch.float16, "f": torch.float32,
        "d": torch.float64, "z": torch.int16,
    }  # fmt: skip
    assert int(batch["i"][0]) == 9007199254740993 and float(batch["d"][0]) == 0.1
    assert batch["s"] == ["text"] * 3 and batch["y"] == [b"a\0b\0"] * 3
    row = streamio.open(tmp_path / "s")[1]
    assert row["i"] == 2**53 + 1 and row["y"] == b"a\0b\0" and row["b"] is True


def test_mem_06_batches_are_writable_and_never_the_shard(tmp_path: Path, fmt: str) -> None:
    """pytorch/pytorch#46741, #5442."""
    path = make_set(tmp_path / "s", 12, fmt)
    before = {p: p.read_bytes() for p in Path(path).iterdir()}
    for batch_size in (1, 8):
        for batch in read(path, batch_size):
            batch["x"] += 1
            batch["cls"] += 1
    assert [x for b in read(path, 8) for x in b["x"][:, 0].tolist()] == [float(i) for i in range(12)]
    assert {p: p.read_bytes() for p in Path(path).iterdir()} == before


class TestBadSamples:
    """Samples that do not decode are named, counted and listed; never silent."""

    @pytest.fixture
    def bad(self, tmp_path: Path) -> str:
        whole = [jpg(), png(), jpg(), jpg()]
        whole[1] = whole[1][:40]
        streamio.write(
            ({"__key__": f"k{i}", "jpg": data, "cls": i} for i, data in enumerate(whole)), tmp_path / "s"
        )
        return str(tmp_path / "s")

    def test_are_raised_with_shard_row_key_and_field(self, bad: str) -> None:
        with pytest.raises(DecodeError, match=r"shard-000000\.tar, row 1 \('k1'\), field jpg: "):
            read(bad, 4)

    @pytest.mark.parametrize("decode", [None, CenterCrop(4)])
    def test_are_skipped_logged_and_reported(
        self, bad: str, decode: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "streamio"):
            (batch,) = read(bad, 4, decode=decode, on_error="skip", error_report=tmp_path / "bad.jsonl")
        assert batch["__key__"] == ["k0", "k2", "k3"] and batch["cls"].tolist() == [0, 2, 3]
        assert batch["jpg"].shape[0] == 3
        (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
        assert {k: json.loads(line)[k] for k in ("shard", "row", "key", "field")} == {
            "shard": "shard-000000.tar", "row": 1, "key": "k1", "field": "jpg",
        }  # fmt: skip
        assert "'k1'" in caplog.text

    @pytest.mark.parametrize("field", ["jpg", "cls", "npy"])
    @pytest.mark.parametrize("batch_size", [1, 4])
    def test_a_sample_without_a_field_that_becomes_an_array_is_one(
        self, tmp_path: Path, fmt: str, field: str, batch_size: int
    ) -> None:
        samples = [{"__key__": f"k{i}", "jpg": jpg(), "cls": i, "npy": np.ones(2), "txt": "t"} for i in range(6)]
        del samples[4][field], samples[1]["txt"]
        streamio.write(samples, tmp_path / "s", format=fmt)
        fields = (field, "txt", "__key__")
        with pytest.raises(DecodeError, match=rf"row 4 \('k4'\), field {field}: the sample has no such field"):
            read(tmp_path / "s", batch_size, fields=fields)
        if batch_size == 1:  # a batch gets smaller, never empty
            return
        kept = read(tmp_path / "s", batch_size, fields=fields, on_error="skip")
        assert [key for batch in kept for key in batch[2]] == ["k0", "k1", "k2", "k3", "k5"]
        assert kept[0][1] == ["t", None, "t"] if len(kept[0][1]) == 3 else True
        assert all(isinstance(batch[0], torch.Tensor) for batch in kept)
        given = read(tmp_path / "s", 6, fields=fields, collate=lambda samples: [s[field] is None for s in samples])
        assert given == [[False] * 4 + [True, False]]

    def test_a_batch_of_nothing_but_bad_samples_is_an_error(self, tmp_path: Path) -> None:
        streamio.write([{"jpg": b"no picture"}] * 3, tmp_path / "s")
        with pytest.raises(SampleError, match=r"row 0 \('.*\), field jpg: is bad .* so are 2 others"):
            read(tmp_path / "s", 3, on_error="skip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": "jpg"}, r"fields=\('jpg',\)"),
        ({"fields": ("jpg", "class")}, r"no field 'class'. Fields: .*cls"),
        ({"tail": "pad", "fields": ("jpg",)}, "__valid__"),
        ({"fields": ("jpg", "__valid__")}, "__valid__"),
        ({"tail": "keep"}, "tail='keep'"),
        ({"shuffle": "yes"}, "shuffle='yes'"),
        ({"fields": ()}, "fields is empty. Name some of cls, jpg, txt"),
        ({"seed": None}, "seed=None"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"max_pixels": "1e9"}, "max_pixels='1e9'"),
        ({"transform": 3}, "transform=3"),
        ({"collate": "pad"}, "collate='pad'"),
        ({"on_error": "skip", "error_report": "/no/folder/bad.jsonl"}, "error_report='/no/folder/bad.jsonl'"),
        ({"layout": "nchw"}, "layout='nchw'"),
        ({"layout": "chw", "collate": list}, "layout='chw' with a function as collate="),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"rank": 1}, "rank=1, world_size=None"),
        ({"rank": 2, "world_size": 2}, "rank 2 of world_size 2"),
        ({"decode": {"png": None}}, "decode names the fields png"),
        ({"decode": {"txt": Resize(4)}}, "'txt', which is no picture"),
        ({"decode": "rgb"}, "decode='rgb'"),
        ({"fields": ("txt",), "decode": Resize(4)}, "none of the fields txt is a picture"),
        ({"decode": {"cls": int}}, "'cls', which holds numbers and not bytes"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    streamio.write([{"jpg": jpg(), "cls": 1, "txt": "t"}], tmp_path / "s")
    with pytest.raises(UsageError, match=message):
        ShardDataset(tmp_path / "s", 2, **options)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, True])
def test_a_batch_size_that_is_none_is_refused(tmp_path: Path, batch_size: Any) -> None:
    with pytest.raises(UsageError, match="batch_size="):
        ShardDataset(make_set(tmp_path / "s", 3), batch_size)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader_options", [{}, {"batch_size": 4}, {"batch_size": 4, "collate_fn": list}])
def test_a_batch_size_of_the_dataloader_is_refused_with_what_to_write(
    tmp_path: Path, workers: int, loader_options: dict[str, Any]
) -> None:
    loader = DataLoader(ShardDataset(make_set(tmp_path / "s", 8), 2), num_workers=workers, **loader_options)
    with pytest.raises(UsageError, match=r"DataLoader\(dataset, batch_size=None"):
        next(iter(loader))


class TestPickle:
    @pytest.mark.parametrize("n", [100, 20_000])
    def test_is_small_whatever_was_read_and_however_many_samples(self, tmp_path: Path, n: int, fmt: str) -> None:
        streamio.write(({"cls": i} for i in range(n)), tmp_path / "s", format=fmt, shard_samples=n // 10)
        dataset = ShardDataset(tmp_path / "s", 50, shuffle=True)
        next(iter(dataset))
        assert len(pickle.dumps(dataset)) < 4000
        assert len(pickle.dumps(dataset.table)) < 1000

    def test_a_copy_gives_the_same_batches(self, pictures: str) -> None:
        dataset = ShardDataset(pictures, 4, shuffle=True, decode=RandomResizedCrop(8))
        again = pickle.loads(pickle.dumps(dataset))
        for a, b in zip(dataset, again, strict=True):
            assert a["__key__"] == b["__key__"] and torch.equal(a["jpg"], b["jpg"])

    def test_a_copy_within_the_process_may_hold_a_lambda(self, tmp_path: Path) -> None:
        dataset = ShardDataset(make_set(tmp_path / "s", 12), 4, transform=lambda sample: sample)
        for same in (copy.copy(dataset), copy.deepcopy(dataset)):
            assert len(keys(same)) == 12


@pytest.mark.parametrize("dtype", ["f16", "c32", "M8[s]", "i4,f4"])
def test_arrays_of_a_type_that_torch_lacks_are_an_error_with_the_ways_out(tmp_path: Path, dtype: str) -> None:
    """Foreign npy files hold anything: long doubles, dates, records."""
    path = raw_tar(tmp_path / "a.tar", [(f"{i}.npy", npy(np.zeros(2, dtype))) for i in range(3)])
    with pytest.raises(SampleError, match=r"field npy: arrays of .*, a type that torch does not have\. Convert"):
        read([path], 3)
    given = next(iter(ShardDataset([path], 3, collate=lambda samples: np.stack([s["npy"] for s in samples]))))
    assert given.dtype == dtype and given.shape == (3, 2)


@pytest.mark.parametrize("dtype", ["S3", "U2"])
def test_arrays_of_text_stay_arrays(tmp_path: Path, dtype: str) -> None:
    path = raw_tar(tmp_path / "a.tar", [(f"{i}.npy", npy(np.full(2, "ab", dtype))) for i in range(3)])
    (array,) = read([path], 3, fields=("npy",))[0]
    assert isinstance(array, np.ndarray) and array.dtype == dtype and array.shape == (3, 2)


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<u8", ">u2", ">f4", "<c8", "?", "<f2"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_foreign_arrays_of_any_byte_order_become_tensors(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    array = np.asfortranarray(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype))
    path = raw_tar(tmp_path / "a.tar", [(f"{i}.npy", npy(array)) for i in range(3)])
    (tensor,) = read([path], 3, fields=("npy",))[0]
    assert tensor.dtype == torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).dtype
    assert (tensor.numpy() == np.stack([array] * 3)).all()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_len_and_repr_say_what_it_is(pictures: str) -> None:
    dataset = ShardDataset(pictures, 5, shuffle=True)
    assert len(dataset) == 3
    assert "12 samples" in repr(dataset) and "batch_size=5" in repr(dataset)
    assert keys(read(pictures, 1, shuffle=False)) == [f"{i:02d}" for i in range(12)]
