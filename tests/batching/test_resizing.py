"""Torch's resize in the place of Pillow's: the same pictures, to one level of 255, and no threads of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.batching.resizing import best_resize
from streamio.codecs import decode_image, transform_image
from streamio.image import CenterCrop, Geometry, RandomResizedCrop, Resize
from tests.samples import jpg

resize = best_resize()
pytestmark = pytest.mark.skipif(resize is None, reason="Pillow resizes on this processor")


class Op:
    """One box, to one size."""

    def __init__(self, box: tuple[float, ...], size: tuple[int, int], flip: bool) -> None:
        self.size, self._plan = size, Geometry(box, size, flip)  # type: ignore[arg-type]

    def plan(self, width: int, height: int, rng: object) -> Geometry:
        return self._plan


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, channels), np.uint8)


@given(st.data())
def test_any_box_comes_as_from_pillow_to_one_level(data: st.DataObject) -> None:
    width, height = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 90))
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    box = (left, top, data.draw(st.integers(1, width - left)), data.draw(st.integers(1, height - top)))
    op = Op(box, data.draw(st.tuples(st.integers(1, 70), st.integers(1, 70))), data.draw(st.booleans()))
    pixels = noise(height, width)
    pillow = transform_image(pixels, op).astype(int)
    assert np.abs(transform_image(pixels, op, resize=resize) - pillow).max() <= 1


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_a_part_of_a_batch_is_filled_in_place(flip: float) -> None:
    op, data = RandomResizedCrop(32, flip=flip), jpg(100, 80)
    batch = np.zeros((3, 32, 32, 3), np.uint8)
    alone = decode_image(data, op, np.random.default_rng(5), resize=resize)
    assert decode_image(data, op, np.random.default_rng(5), out=batch[1], resize=resize) is not None
    assert (batch[1] == alone).all() and not batch[::2].any()
    rows_apart = np.zeros((32, 32, 6), np.uint8)[:, :, ::2]
    decode_image(data, op, np.random.default_rng(5), out=rows_apart, resize=resize)
    assert (rows_apart == alone).all()


@pytest.mark.parametrize(
    ("pixels", "op"),
    [
        (noise(20, 20, 1), Resize((8, 8))),
        (noise(20, 20, 4), Resize((8, 8))),
        (noise(20, 30), CenterCrop(7, resize=9)),  # a box of parts of pixels
    ],
    ids=["grey", "transparent", "parts of pixels"],
)
def test_what_torch_cannot_do_is_pillows(pixels: np.ndarray, op: Resize) -> None:
    assert (transform_image(pixels, op, resize=resize) == transform_image(pixels, op)).all()


def test_read_only_pixels_give_no_warning() -> None:
    pixels = noise(20, 20)
    pixels.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transform_image(pixels, Resize((8, 8)), resize=resize)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_no_threads_are_started() -> None:
    """On a busy machine they wait for each other longer than they work."""
    code = """
import os, numpy as np, torch
from streamio.batching.resizing import best_resize
torch.set_num_threads(2)
before = len(os.listdir("/proc/self/task"))
out = np.zeros((224, 224, 3), np.uint8)
for mirror in (False, True):
    best_resize()(np.zeros((375, 500, 3), np.uint8)[9:360, 7:460], mirror, out)
assert len(os.listdir("/proc/self/task")) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)
