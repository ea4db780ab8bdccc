"""Crops and resizes: geometry alone."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import ShapeMismatch, UsageError
from streamio.image import (
    CenterCrop,
    Geometry,
    ImageOp,
    MaxSide,
    RandomResizedCrop,
    Resize,
    max_side_size,
    short_side_size,
)

SIDES = st.integers(1, 5000)
OPS = [
    Resize(64),
    Resize((32, 96)),
    MaxSide(100),
    CenterCrop((20, 30), resize=30),
    RandomResizedCrop((24, 40), flip=0.5),
    RandomResizedCrop(16, scale=(0.5, 0.5), ratio=(3.0, 4.0)),
]


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("op", OPS, ids=repr)
@given(SIDES, SIDES, st.integers(0, 2**32))
def test_every_box_lies_inside_the_picture(op: ImageOp, width: int, height: int, seed: int) -> None:
    plan = op.plan(width, height, rng(seed))
    left, top, w, h = plan.box
    assert left >= 0 and top >= 0 and w > 0 and h > 0
    assert left + w <= width + 1e-6 and top + h <= height + 1e-6
    assert plan.size is not None and min(plan.size) >= 1
    assert op.size in (None, plan.size)


@given(SIDES, SIDES, st.integers(0, 2**32))
def test_the_same_generator_gives_the_same_box(width: int, height: int, seed: int) -> None:
    op = RandomResizedCrop(224, flip=0.5)
    assert op.plan(width, height, rng(seed)) == op.plan(width, height, rng(seed))


@given(st.integers(50, 2000), st.integers(50, 2000), st.integers(0, 2**32))
def test_random_crops_keep_to_scale_and_ratio_within_a_pixel(width: int, height: int, seed: int) -> None:
    op = RandomResizedCrop(224, scale=(0.2, 0.3), ratio=(0.8, 1.25))
    left, top, w, h = op._box(width, height, rng(seed))
    if (left, top, w, h) == op._middle(width, height):
        return
    assert (w - 1) * (h - 1) <= 0.3 * width * height and (w + 1) * (h + 1) >= 0.2 * width * height
    assert (w - 1) / (h + 1) <= 1.25 and (w + 1) / (h - 1) >= 0.8


def test_random_crops_spread_over_scale_place_and_flip() -> None:
    op, draw = RandomResizedCrop(224, flip=0.25), rng(1)
    plans = [op.plan(500, 375, draw) for _ in range(4000)]
    boxes = np.array([plan.box for plan in plans])
    areas = boxes[:, 2] * boxes[:, 3] / (500 * 375)
    assert areas.min() < 0.1 and areas.max() > 0.95
    assert abs(np.mean([plan.flip for plan in plans]) - 0.25) < 0.03
    assert abs((boxes[:, 0] + boxes[:, 2] / 2).mean() - 250) < 5


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [
        (1000, 10, (493, 0, 13, 10)),  # too wide for any ratio: the widest box that is allowed, in the middle
        (10, 1000, (0, 493, 10, 13)),
        (1, 1, (0, 0, 1, 1)),
    ],
)
def test_a_picture_that_no_random_box_fits_gives_its_middle(
    width: int, height: int, box: tuple[int, int, int, int]
) -> None:
    op = RandomResizedCrop(8, scale=(1.0, 1.0))
    assert op.plan(width, height, rng(0)).box == box


def test_flip_of_zero_and_one_is_certain() -> None:
    for seed in range(20):
        assert not RandomResizedCrop(8).plan(50, 40, rng(seed)).flip
        assert RandomResizedCrop(8, flip=1).plan(50, 40, rng(seed)).flip


def test_random_crops_ask_for_a_generator() -> None:
    with pytest.raises(UsageError, match=r"rng="):
        RandomResizedCrop(8).plan(10, 10, None)


def test_center_crop_is_that_of_torchvision() -> None:
    # 500 x 375 becomes 341 x 256, of which the middle 224 x 224 begins at (58, 16).
    left, top, w, h = CenterCrop(224, resize=256).plan(500, 375, None).box
    assert np.allclose((left, top), (58 * 500 / 341, 16 * 375 / 256))
    assert np.allclose((w, h), (224 * 500 / 341, 224 * 375 / 256))
    # Without resize the pixels are those of the file; odd rests round half to even.
    assert CenterCrop((4, 5)).plan(10, 9, None) == Geometry((2, 2, 5, 4), (4, 5))


def test_center_crop_refuses_smaller_pictures_and_says_how_to_resize() -> None:
    with pytest.raises(ShapeMismatch, match=r"100 x 300 is smaller than the crop of 224 x 224.*resize=224"):
        CenterCrop(224).plan(300, 100, None)
    with pytest.raises(ShapeMismatch, match="after the resize"):
        CenterCrop((20, 200), resize=100).plan(150, 150, None)
    assert CenterCrop((20, 200), resize=100).plan(400, 150, None).size == (20, 200)


@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [
        ((500, 375), 256, (341, 256)),
        ((375, 500), 256, (256, 341)),
        ((10, 10), 256, (256, 256)),
        ((1, 3), 2, (2, 6)),
    ],
)
def test_the_shorter_side_is_exact_and_the_longer_rounds_down(
    size: tuple[int, int], side: int, expected: tuple[int, int]
) -> None:
    assert short_side_size(*size, side) == expected


@given(SIDES, SIDES, st.integers(1, 3000))
def test_sizes_keep_the_aspect(width: int, height: int, side: int) -> None:
    w, h = short_side_size(width, height, side)
    assert min(w, h) == side
    assert math.isclose(w / h, width / height, rel_tol=1 / side)
    w, h = max_side_size(width, height, side)
    assert max(w, h) == min(side, max(width, height)) and min(w, h) >= 1


def test_max_side_never_enlarges() -> None:
    assert MaxSide(256).plan(500, 375, None) == Geometry((0, 0, 500, 375), (192, 256))
    assert MaxSide(256).plan(50, 40, None) == Geometry((0, 0, 50, 40), (40, 50))
    assert MaxSide(10).plan(5000, 2, None).size == (1, 10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Resize(0),
        lambda: Resize(-1),
        lambda: Resize(2.5),  # type: ignore[arg-type]
        lambda: Resize(True),
        lambda: Resize((1, 2, 3)),  # type: ignore[arg-type]
        lambda: Resize((0, 5)),
        lambda: Resize("224"),  # type: ignore[arg-type]
        lambda: MaxSide((3, 4)),  # type: ignore[arg-type]
        lambda: CenterCrop(0),
        lambda: CenterCrop(224, resize=100),
        lambda: CenterCrop(224, resize=0),
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop(8, scale=(0, 1)),
        lambda: RandomResizedCrop(8, scale=(0.5, 0.2)),
        lambda: RandomResizedCrop(8, scale=(0.5, 2)),
        lambda: RandomResizedCrop(8, ratio=(1, math.inf)),
        lambda: RandomResizedCrop(8, ratio=(1,)),  # type: ignore[arg-type]
        lambda: RandomResizedCrop(8, flip=1.5),
    ],
)
def test_wrong_arguments_are_refused_at_once(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize("op", OPS, ids=repr)
def test_operations_are_values(op: ImageOp) -> None:
    assert isinstance(op, ImageOp)
    assert pickle.loads(pickle.dumps(op)) == op and hash(op) == hash(pickle.loads(pickle.dumps(op)))
    with pytest.raises(AttributeError):
        op.size = (1, 1)  # type: ignore[misc]


def test_sizes_may_be_numpy_numbers_lists_and_keywords() -> None:
    assert Resize(size=np.int64(8)) == Resize(8)  # type: ignore[arg-type]
    assert CenterCrop(size=[3, 4]).size == (3, 4)  # type: ignore[arg-type]
    assert RandomResizedCrop(size=5).size == (5, 5)
    assert [repr(Resize(8)), repr(Resize((3, 4))), repr(MaxSide(9))] == [
        "Resize(8)",
        "Resize((3, 4))",
        "MaxSide(9)",
    ]
