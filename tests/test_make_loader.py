"""make_loader: what it chooses, what it is told, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamio
from streamio import MissingShard, UsageError, make_loader
from streamio.device import Normalize
from streamio.errors import BadManifest
from streamio.image import CenterCrop, RandomResizedCrop, Resize
from tests.samples import jpg, png, raw_tar
from tests.sets import make_set


@pytest.fixture
def photos(tmp_path: Path) -> str:
    """22 pictures of several sizes, with a label and a caption."""
    samples = ({"jpg": jpg(30 + i % 4, 24), "cls": i, "txt": f"text {i}"} for i in range(22))
    streamio.write(samples, tmp_path / "photos", shard_samples=10)
    return str(tmp_path / "photos")


def labels(batches: Iterable[Any]) -> list[list[int]]:
    return [batch[-1].tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [label for batch in batches for label in batch]


def test_training_is_shuffled_in_batches_of_one_size_and_others_are_left_out_each_time(photos: str) -> None:
    loader = make_loader(photos, 4, size=16)
    assert len(loader) == 5
    epochs = [labels(loader), labels(loader)]
    assert all(len(batch) == 4 for epoch in epochs for batch in epoch)
    one, two = map(flat, epochs)
    assert one != sorted(one) and one != two and len(set(one)) == 20
    assert labels(make_loader(photos, 4, size=16, seed=1)) != epochs[0]
    assert labels(make_loader(photos, 4, size=16)) == epochs[0]
    loader.close()


def test_validation_is_in_order_and_gives_every_sample_once(photos: str) -> None:
    loader = make_loader(photos, 4, train=False, size=16)
    epoch = labels(loader)
    assert flat(epoch) == list(range(22))
    assert [len(batch) for batch in epoch] == [4, 4, 4, 4, 3, 3]


def test_pictures_are_cropped_to_224_and_laid_out_for_a_model(photos: str) -> None:
    pictures, numbers = next(iter(make_loader(photos, 4)))
    assert (pictures.shape, pictures.dtype, numbers.dtype) == ((4, 3, 224, 224), torch.uint8, torch.int64)
    assert pictures.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("options", "operation"),
    [
        ({}, RandomResizedCrop(224)),
        ({"size": 64}, RandomResizedCrop(64)),
        ({"train": False}, CenterCrop(224, resize=256)),
        ({"train": False, "size": 112}, CenterCrop(112, resize=128)),
        ({"decode": Resize((9, 7))}, Resize((9, 7))),
        ({"transform": dict}, None),
        ({"prepare": dict}, None),
        ({"transform": dict, "size": 64}, RandomResizedCrop(64)),
        ({"collate": list}, None),
    ],
)
def test_the_operation_is_the_one_asked_for_or_the_usual_one(photos: str, options: Any, operation: Any) -> None:
    assert make_loader(photos, 4, **options).dataset.reader.decoders["jpg"].op == operation  # type: ignore[attr-defined]


def test_pictures_of_a_transform_are_laid_out_for_a_model_too(photos: str) -> None:
    pictures, _ = next(iter(make_loader(photos, 4, size=16, transform=dict)))
    assert pictures.shape == (4, 3, 16, 16)
    pictures, _ = next(iter(make_loader(photos, 4, size=16, transform=dict, layout="hwc")))
    assert pictures.shape == (4, 16, 16, 3)
    samples = next(iter(make_loader(photos, 4, size=16, collate=list)))
    assert [sample["jpg"].shape for sample in samples] == [(16, 16, 3)] * 4


def test_pictures_that_were_packed_in_one_size_keep_it(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 5, 7, 3), np.uint8)
    streamio.write(({"img": one, "cls": i} for i, one in enumerate(pixels)), tmp_path / "raw")
    pictures, numbers = next(iter(make_loader(tmp_path / "raw", 4)))
    assert all(
        torch.equal(a, torch.from_numpy(pixels[i]).permute(2, 0, 1)) for a, i in zip(pictures, numbers, strict=True)
    )
    assert next(iter(make_loader(tmp_path / "raw", 4, size=6)))[0].shape == (4, 3, 6, 6)


def test_fields_are_found_in_sets_without_pictures(tmp_path: Path) -> None:
    streamio.write(({"wave": np.zeros(9, np.float32), "y": i / 2} for i in range(6)), tmp_path / "waves")
    waves, numbers = next(iter(make_loader(tmp_path / "waves", 3)))
    assert (waves.shape, numbers.dtype) == ((3, 9), torch.float64)


def test_tars_of_others_with_pictures_of_several_kinds(tmp_path: Path) -> None:
    members = [(f"{i}.{kind}", data) for i, (kind, data) in enumerate([("jpg", jpg(9, 9)), ("png", png(7, 9))] * 3)]
    raw_tar(tmp_path / "a.tar", [*members, *((f"{i}.cls", str(i).encode()) for i in range(6))])
    loader = make_loader(str(tmp_path / "*.tar"), 3, train=False, size=8)
    assert labels(loader) == [[0, 1, 2], [3, 4, 5]]
    assert next(iter(make_loader(streamio.open(str(tmp_path / "a.tar")), 3, size=8)))[0].shape == (3, 3, 8, 8)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (
            {"jpg": jpg(), "seg.png": png(), "cls": 1},
            r"the input .*pictures: jpg, seg.png; numbers: cls; others: none\). .* fields=\('jpg', 'cls'\)",
        ),
        ({"jpg": jpg(), "x": 1, "y": 2.0}, r"the label .*numbers: x, y; .*fields=\('jpg', 'x'\)"),
        ({"jpg": jpg(), "txt": "a"}, r"the label .*numbers: none; others: txt.*fields=\('jpg',\)"),
        ({"txt": "a", "json": {}, "cls": 1}, "the input .*pictures: none; numbers: cls; others: json, txt"),
    ],
)
def test_fields_that_cannot_be_told_apart_are_listed(tmp_path: Path, sample: Any, message: str) -> None:
    streamio.write((sample for _ in range(4)), tmp_path / "s")
    with pytest.raises(UsageError, match=message):
        make_loader(tmp_path / "s", 2)


def test_fields_that_are_named_are_taken(photos: str) -> None:
    captions, keys = next(iter(make_loader(photos, 2, train=False, fields=("txt", "__key__"))))
    assert captions == ["text 0", "text 1"] and len(keys) == 2
    (pictures,) = next(iter(make_loader(photos, 2, fields=["jpg"], size=8)))
    assert pictures.shape == (2, 3, 8, 8)


def test_a_picture_and_its_mask_are_not_cropped_by_guess(tmp_path: Path) -> None:
    streamio.write(({"jpg": jpg(), "seg.png": png()} for _ in range(4)), tmp_path / "s")
    with pytest.raises(UsageError, match=r"jpg, seg\.png would all be cropped.*decode="):
        make_loader(tmp_path / "s", 2, fields=("jpg", "seg.png"))
    decode = {"jpg": Resize((8, 8)), "seg.png": Resize((4, 4))}
    batch = next(iter(make_loader(tmp_path / "s", 2, fields=("jpg", "seg.png"), decode=decode)))
    assert [tuple(one.shape) for one in batch] == [(2, 3, 8, 8), (2, 3, 4, 4)]


def test_options_go_to_whom_they_belong_and_come_before_what_is_chosen(photos: str) -> None:
    loader = make_loader(
        photos, 4, size=8, shuffle=False, tail="even", layout="hwc", seed=5, num_workers=2, transport="thread"
    )
    first, *_ = batches = list(loader)
    assert first[0].shape == (4, 8, 8, 3) and flat(labels(batches)) == list(range(22))
    assert (loader.stats().transport, loader.num_workers) == ("thread", 2)
    loader.close()
    drawn = make_loader(photos, 4, size=8, draw=streamio.Draw(classes="cls"))
    assert len(drawn) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"workers": 2},
            r"nobody takes workers=. Did you mean num_workers=\? ShardDataset takes .*seed.*; StreamLoader",
        ),
        ({"size": 8, "decode": False}, "size=8 and decode=False. Leave one"),
        ({"size": 8, "fields": ("txt",)}, "size=8, but no field of the batch is a picture"),
        ({"size": 0}, "size 0"),
        ({"convert": Normalize(0.5, 0.5)}, "convert= without device=.*'auto'"),
        ({"fields": "jpg"}, r"fields=\('jpg',\)"),
        ({"fields": ("png",)}, "no field 'png'"),
        ({"tail": "all"}, "tail='all'"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"device": "gpu"}, "'gpu' is no device"),
    ],
)
def test_what_cannot_work_is_refused_at_once(photos: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_loader(photos, 4, **options)


def test_a_set_of_less_than_a_batch_is_refused_for_training_only(tmp_path: Path) -> None:
    path = make_set(tmp_path / "s", 5)
    with pytest.raises(UsageError, match=r"has no batch.*Give tail='even', or a smaller batch_size"):
        make_loader(path, 8, fields=("x", "cls"))
    assert len(make_loader(path, 8, fields=("x", "cls"), tail="even")) == 1
    assert len(make_loader(path, 8, fields=("x", "cls"), train=False)) == 1


def test_the_error_of_a_place_that_is_no_set_passes(tmp_path: Path) -> None:
    make_set(tmp_path / "out" / "train", 5)
    with pytest.raises(BadManifest, match=r"The sets are in its folders: .*train"):
        make_loader(tmp_path / "out", 2)
    with pytest.raises((MissingShard, UsageError, BadManifest)):
        make_loader(tmp_path / "nowhere", 2)


def test_batches_go_to_the_device_and_are_converted_there(photos: str) -> None:
    loader = make_loader(photos, 4, size=16, device="auto", convert=Normalize(0.5, 0.5))
    pictures, numbers = next(iter(loader))
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    assert (pictures.dtype, pictures.device.type, numbers.device.type) == (torch.float32, kind, kind)
    assert -1 <= pictures.min() < pictures.max() <= 1
    loader.close()
