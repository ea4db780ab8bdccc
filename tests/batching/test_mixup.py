"""MixUp and CutMix: what the papers define, for every form of a batch."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamio import CutMix, MixUp, RandomChoice, SampleError, ShapeMismatch, UsageError

DTYPES = [torch.uint8, torch.float16, torch.float32, torch.float64]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def batch(n: int = 6, dtype: torch.dtype = torch.uint8, layout: str = "hwc") -> dict[str, Any]:
    """Picture i is i + 10 in every pixel, its label i."""
    shape = (n, 12, 16, 3) if layout == "hwc" else (n, 3, 12, 16)
    pictures = (torch.arange(n) + 10).to(dtype).view(n, 1, 1, 1).expand(shape).contiguous()
    return {"jpg": pictures, "cls": torch.arange(n), "__key__": [f"k{i}" for i in range(n)]}


def own_share(labels: torch.Tensor, i: int) -> float:
    return float(labels[i, i])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(5))
def test_mixup_mixes_picture_and_label_by_the_same_share_for_the_whole_batch(dtype: torch.dtype, seed: int) -> None:
    given = batch(dtype=dtype)
    mixed = MixUp(classes=6, label="cls", alpha=1)(given, rng(seed))
    labels = mixed["cls"]
    assert labels.dtype == torch.float32 and labels.shape == (6, 6)
    assert torch.allclose(labels.sum(1), torch.ones(6))
    shares = {round(own_share(labels, i), 5) for i in range(6) if own_share(labels, i) < 1}
    assert len(shares) == 1
    expected = labels.double() @ (torch.arange(6) + 10).double()
    assert mixed["jpg"].dtype == dtype and mixed["jpg"].shape == given["jpg"].shape
    error = (mixed["jpg"].double() - expected.view(6, 1, 1, 1)).abs().max()
    assert error <= (0.5001 if dtype == torch.uint8 else 0.01)
    assert mixed["__key__"] == given["__key__"]


def test_mixup_draws_its_share_from_beta() -> None:
    def shares(alpha: float) -> np.ndarray[Any, Any]:
        transform = MixUp(classes=8, label="cls", alpha=alpha)
        pairs = [transform(batch(8), rng(seed))["cls"] for seed in range(400)]
        return np.array([min(own_share(labels, i) for i in range(8)) for labels in pairs])

    # Beta(a, a) has mean 1/2 and variance 1 / (4 (2a + 1)).
    for alpha in (0.2, 1.0, 4.0):
        drawn = shares(alpha)
        assert abs(drawn.mean() - 0.5) < 0.1
        assert abs(drawn.var() - 1 / (4 * (2 * alpha + 1))) < 0.02


@pytest.mark.parametrize("layout", ["hwc", "chw"])
@pytest.mark.parametrize("seed", range(8))
def test_cutmix_replaces_one_box_by_the_partner_and_labels_go_by_area(layout: str, seed: int) -> None:
    mixed = CutMix(classes=6, label="cls")(batch(layout=layout), rng(seed))
    pictures = mixed["jpg"] if layout == "hwc" else mixed["jpg"].permute(0, 2, 3, 1)
    boxes = set()
    for i in range(6):
        values, counts = np.unique(pictures[i].numpy(), return_counts=True)
        assert set(values) <= {10 + j for j in range(6)}
        areas = np.zeros(6)
        areas[values - 10] = counts / counts.sum()
        assert np.allclose(mixed["cls"][i].numpy(), areas)
        foreign = (pictures[i] != 10 + i).any(-1).nonzero()
        if len(foreign):
            boxes.add((*foreign.min(0).values.tolist(), *foreign.max(0).values.tolist()))
            assert len(foreign) == np.prod((foreign.max(0).values - foreign.min(0).values + 1).numpy())
    assert len(boxes) <= 1


def test_the_box_of_cutmix_is_uniform_in_share_and_keeps_the_ratio_of_sides_where_it_is_whole() -> None:
    shares = []
    for seed in range(600):
        pictures = torch.zeros(2, 60, 80, 3)
        pictures[1] = 1
        labels = torch.arange(2)
        mixed, soft = CutMix(classes=2, label=1)((pictures, labels), rng(seed))
        box = (mixed[0] == 1).all(-1).nonzero()
        if not len(box) or own_share(soft, 0) == 0:
            continue
        top, left = box.min(0).values.tolist()
        bottom, right = (box.max(0).values + 1).tolist()
        if top > 0 and left > 0 and bottom < 60 and right < 80:
            assert abs((bottom - top) / 60 - (right - left) / 80) < 0.04
        shares.append(own_share(soft, 0))
    # The box is cut at the border, so that more of the own picture is left than lam, whose mean is a half.
    assert 0.5 < np.mean(shares) < 0.9


@pytest.mark.parametrize("transform", [MixUp(classes=4, label="cls", alpha=1), CutMix(classes=4, label="cls")])
@given(seed=st.integers(0, 1000), n=st.integers(1, 9))
def test_partners_are_a_permutation_so_every_label_keeps_its_weight(transform: Any, seed: int, n: int) -> None:
    given = batch(n)
    given["cls"] = torch.arange(n) % 4
    before = torch.nn.functional.one_hot(given["cls"], 4).sum(0)
    mixed = transform(given, rng(seed))
    assert torch.allclose(mixed["cls"].sum(0), before.float(), atol=1e-5)


@pytest.mark.parametrize("transform", [MixUp(classes=6, label="cls", alpha=1), CutMix(classes=6, label="cls")])
def test_a_batch_of_one_stays_and_its_label_is_soft(transform: Any) -> None:
    alone = batch(1)
    mixed = transform(alone, rng())
    assert torch.equal(mixed["jpg"], alone["jpg"])
    assert mixed["cls"].tolist() == [[1, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize("transform", [MixUp(classes=6, label="cls", alpha=1), CutMix(classes=6, label="cls")])
def test_samples_that_only_fill_up_a_batch_are_mixed_into_none(transform: Any) -> None:
    for seed in range(20):
        valid = torch.tensor([True, False, True, True, False, False])
        padded = {**batch(), "__valid__": valid}
        mixed = transform(padded, rng(seed))
        assert torch.equal(mixed["jpg"][~valid], padded["jpg"][~valid])
        assert torch.equal(mixed["cls"][~valid], torch.eye(6)[~valid])
        assert (mixed["cls"][valid][:, ~valid] == 0).all()


def test_the_batch_that_is_given_stays_as_it_is() -> None:
    for transform in (MixUp(classes=6, label="cls", alpha=1), CutMix(classes=6, label="cls")):
        given = batch()
        transform(given, rng(1))
        again = batch()
        assert torch.equal(given["jpg"], again["jpg"]) and torch.equal(given["cls"], again["cls"])


def test_a_picture_that_lies_channels_last_goes_on_to_lie_so() -> None:
    pictures = batch()["jpg"].permute(0, 3, 1, 2)
    for transform in (MixUp(classes=6, label=1), CutMix(classes=6, label=1)):
        mixed, _ = transform((pictures, torch.arange(6)), rng())
        assert mixed.shape == (6, 3, 12, 16) and mixed.stride() == pictures.stride()


def test_soft_labels_are_mixed_as_they_are() -> None:
    soft = torch.softmax(torch.randn(6, 6, dtype=torch.float64), 1)
    mixed = MixUp(classes=6, label="cls")({**batch(), "cls": soft}, rng())["cls"]
    assert mixed.dtype == torch.float32 and torch.allclose(mixed.sum(1), torch.ones(6))


def test_with_a_probability_some_batches_are_only_made_soft() -> None:
    transform = MixUp(classes=6, label="cls", alpha=1, p=0.5)
    untouched = sum(torch.equal(transform(batch(), rng(seed))["cls"], torch.eye(6)) for seed in range(200))
    assert 70 < untouched < 130
    assert torch.equal(MixUp(classes=6, label="cls", p=0)(batch(), rng())["jpg"], batch()["jpg"])


def test_random_choice_draws_by_weight() -> None:
    one, two = (lambda batch: "one"), (lambda batch, rng: "two")
    drawn = [RandomChoice(one, two, weights=(1, 3))({}, rng(seed)) for seed in range(400)]
    assert 60 < drawn.count("one") < 140
    assert {RandomChoice(one, two, weights=(0, 1))({}, rng(seed)) for seed in range(20)} == {"two"}


def test_they_pickle_and_say_what_they_are() -> None:
    choice = RandomChoice(MixUp(classes=3, label="cls"), CutMix(classes=3, label="cls"))
    again = pickle.loads(pickle.dumps(choice))
    assert repr(again) == repr(choice) and "MixUp(classes=3" in repr(choice)


@pytest.mark.parametrize("wrong", [-1, 6, 100])
def test_a_label_that_is_none_of_the_classes_is_named_with_its_sample(wrong: int) -> None:
    given = batch()
    given["cls"][2] = wrong
    with pytest.raises(SampleError, match=rf"k2.*cls: label {wrong} with classes=6"):
        MixUp(classes=6, label="cls")(given, rng())


def test_pictures_of_different_sizes_are_refused_with_the_way_out() -> None:
    sizes = [torch.zeros(4, 4, 3), torch.zeros(5, 4, 3)]
    with pytest.raises(
        ShapeMismatch, match=r"2 sizes cannot be mixed: \(4, 4, 3\), \(5, 4, 3\).*RandomResizedCrop"
    ):
        CutMix(classes=2, label="cls")({"jpg": sizes, "cls": torch.arange(2)}, rng())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cls": None}, "label='cls' is not in the batch, which has 'jpg', '__key__'"),
        ({"mask.png": torch.zeros(6, 12, 16, 1)}, "2 fields of the batch look like pictures.*pictures="),
        ({"jpg": torch.zeros(6, 5)}, "0 fields of the batch look like pictures"),
        ({"cls": torch.zeros(6)}, r"labels of float32, shape \(6,\)"),
        ({"cls": ["a"] * 6}, "labels of <U1"),
        ({"cls": torch.arange(5)}, "6 pictures and 5 labels"),
        ({"jpg": torch.zeros(6, 12, 16, 3, dtype=torch.bfloat16)}, "pictures of bfloat16"),
        ({"jpg": torch.zeros(6, 12, 16, 3, dtype=torch.int64)}, "pictures of int64"),
    ],
)
def test_what_cannot_be_mixed_is_refused_with_what_it_is(change: dict[str, Any], message: str) -> None:
    given = {name: value for name, value in {**batch(), **change}.items() if value is not None}
    with pytest.raises(UsageError, match=message):
        MixUp(classes=6, label="cls")(given, rng())


def test_a_shape_that_may_be_either_layout_asks_which() -> None:
    for shape in ((2, 3, 12, 4), (2, 12, 16, 12)):
        given = (torch.zeros(shape), torch.arange(2))
        with pytest.raises(UsageError, match="layout='hwc' or 'chw'"):
            CutMix(classes=2, label=1)(given, rng())
        CutMix(classes=2, label=1, layout="chw")(given, rng())


@pytest.mark.parametrize(
    "options",
    [{"alpha": 0}, {"alpha": -1}, {"alpha": "1"}, {"classes": 0}, {"classes": 2.5}, {"p": 1.5}, {"p": None}],
)
@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_options_that_make_no_sense_are_refused_at_once(kind: type, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        kind(**{"classes": 3, "label": "cls", **options})


def test_a_choice_of_nothing_or_with_odd_weights_is_refused() -> None:
    one = MixUp(classes=2, label="cls")
    for arguments, weights in (((), None), (("x",), None), ((one,), (1, 1)), ((one,), (0,)), ((one,), (-1,))):
        with pytest.raises(UsageError):
            RandomChoice(*arguments, weights=weights)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="layout"):
        CutMix(classes=2, label="cls", layout="HWC")  # type: ignore[arg-type]
