"""Arrays become pictures and come back."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from streamio.codecs import codec_for, decode_image, encode_image, is_image_field
from streamio.errors import UsageError


def photo(width: int, height: int) -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def away(a: Any, b: Any) -> float:
    """Mean difference of two pictures."""
    return float(np.abs(a.astype(int) - b.astype(int)).mean())


def palette() -> Image.Image:
    """Red, and blue that is transparent."""
    picture = Image.new("P", (2, 1))
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.putpixel((1, 0), 1)
    picture.info["transparency"] = b"\xff\x00"
    return picture


@pytest.mark.parametrize("channels", [(), (1,), (3,), (4,)])
@pytest.mark.parametrize("kind", ["png", "webp"])
def test_arrays_come_back_exactly(kind: Any, channels: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, (7, 5, *channels), np.uint8)
    data = codec_for(kind).encode(array)
    assert data == codec_for(kind).encode(array)
    mode: Any = {(): "L", (1,): "L", (3,): "RGB", (4,): "RGBA"}[channels]
    if kind == "webp" and mode == "L":
        mode, array = "RGB", np.repeat(array.reshape(7, 5, 1), 3, axis=2)  # webp has no grey
    assert (decode_image(data, mode=mode) == array.reshape(7, 5, -1)).all()


def test_arrays_become_jpegs_of_high_quality() -> None:
    array = np.asarray(photo(64, 48))
    assert away(codec_for("jpeg").decode(codec_for("jpg").encode(array)), array) < 2
    assert len(encode_image(array, "jpeg", 50)) < len(encode_image(array, "jpeg"))
    grey = codec_for("jpg").encode(array[:, :, 0])
    assert Image.open(io.BytesIO(grey)).mode == "L"
    assert away(decode_image(codec_for("jpg").encode(array[:, ::-1])), array[:, ::-1]) < 2


def test_pillow_images_are_taken_and_bytes_pass() -> None:
    assert decode_image(codec_for("png").encode(palette()), mode="RGBA").tolist() == [
        [[255, 0, 0, 255], [0, 0, 255, 0]]
    ]
    assert codec_for("bmp").encode(memoryview(b"abc")) == b"abc"


def test_tensors_are_taken() -> None:
    pixels = torch.arange(24, dtype=torch.uint8).reshape(2, 4, 3)
    assert (decode_image(codec_for("png").encode(pixels)) == pixels.numpy()).all()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("jpg", np.zeros((3, 20, 20), np.uint8), "Transpose"),
        ("png", np.zeros((20, 20), np.float32), "float32"),
        ("png", np.zeros((0, 20), np.uint8), "no picture"),
        ("png", np.zeros((2, 3, 5), np.uint8), "no picture"),
        ("jpg", np.zeros((2, 3, 4), np.uint8), "no transparency"),
        ("gif", np.zeros((2, 3), np.uint8), "cannot be written as gif"),
        ("png", "a string", "no picture"),
    ],
)
def test_what_is_no_picture_is_refused(field: str, value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        codec_for(field).encode(value)
    with pytest.raises(UsageError, match="quality"):
        encode_image(np.zeros((2, 2), np.uint8), "jpeg", 101)


def test_picture_fields_are_known_by_their_extension() -> None:
    assert all(map(is_image_field, ("jpg", "JPEG", "seg.png", "a.b.tif", "pgm", "webp", "gif", "bmp")))
    assert not any(map(is_image_field, ("npy", "cls", "x", "jpg.txt")))
