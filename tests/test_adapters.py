"""Transforms of other libraries: albumentations itself, and functions of tensors that draw as torchvision's do."""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from contextlib import closing
from importlib import import_module
from typing import Any

import albumentations as alb
import numpy as np
import pytest
import torch

from streamio import ShardDataset, StreamLoader, TransformError, UsageError, adapters
from tests.augmented import SAMPLES, picture_set

FLIPS = alb.Compose([alb.HorizontalFlip(p=0.5), alb.VerticalFlip(p=0.5)])
STRONG = alb.Compose(
    [
        alb.RandomCrop(24, 24), alb.HorizontalFlip(), alb.OneOf([alb.GaussNoise(p=1), alb.Blur(p=1)], p=0.8),
        alb.RandomBrightnessContrast(), alb.CoarseDropout(), alb.ElasticTransform(p=0.3),
    ]
)  # fmt: skip

WAYS: list[dict[str, Any]] = [
    {"transport": "thread", "num_workers": 4},
    {"transport": "process", "num_workers": 2, "context": "fork"},
    {"transport": "process", "num_workers": 2, "context": "fork", "threads": 2},
    {"transport": "process", "num_workers": 1, "context": "spawn"},
]


class Noise(torch.nn.Module):
    """As transforms of torchvision are: a module of one picture (C, H, W) that draws from torch's generator."""

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        assert picture.shape[0] == 3 and picture.dtype == torch.uint8
        if torch.rand(1) < 0.5:
            picture = picture.flip(-1)
        return picture / 255 + torch.randn(picture.shape)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return picture_set(tmp_path_factory.mktemp("pictures") / "s")


def hashes(batches: Any) -> dict[str, str]:
    return {
        key: hashlib.sha256(picture.numpy().tobytes()).hexdigest()
        for batch in batches
        for key, picture in zip(batch["__key__"], batch["jpg"], strict=True)
    }


def both() -> list[Any]:
    """Each kind in each way; under spawn, which takes seconds, one of them is enough for a quick run."""
    return [
        pytest.param(
            kind, way, id="-".join(map(str, (kind, *way.values()))),
            marks=[pytest.mark.slow] if kind == "torchvision" and way.get("context") == "spawn" else [],
        )
        for kind in ("albumentations", "torchvision")
        for way in WAYS
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "way"), both())
def test_the_same_pictures_by_every_transport_and_other_ones_in_the_next_epoch(
    path: str, kind: str, way: dict[str, Any]
) -> None:
    def dataset() -> ShardDataset:
        adapter = adapters.albumentations(STRONG) if kind == "albumentations" else adapters.torchvision(Noise())
        return ShardDataset(path, 8, shuffle=True, transform=adapter)

    alone = dataset()
    expected = [hashes(alone), hashes(alone)]
    assert len(set(expected[0].values()) | set(expected[1].values())) == 2 * SAMPLES
    loader = StreamLoader(dataset(), **way)
    assert [hashes(loader), hashes(loader)] == expected
    loader.close()


@pytest.mark.torchvision
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_the_same_pictures_by_torchvision_itself(path: str, way: dict[str, Any]) -> None:
    v2 = import_module("torchvision.transforms.v2")
    strong = v2.Compose(
        [
            v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.AutoAugment(), v2.ColorJitter(0.4, 0.4, 0.4),
            v2.ToDtype(torch.float32, scale=True), v2.RandomErasing(),
        ]
    )  # fmt: skip

    def dataset() -> ShardDataset:
        return ShardDataset(path, 8, shuffle=True, transform=adapters.torchvision(strong), layout="chw")

    alone = dataset()
    expected = [hashes(alone), hashes(alone)]
    assert len(set(expected[0].values()) | set(expected[1].values())) == 2 * SAMPLES
    with closing(StreamLoader(dataset(), **way)) as loader:
        assert [hashes(loader), hashes(loader)] == expected


def test_each_transform_of_a_compose_draws_for_itself() -> None:
    """`Compose.set_random_seed` starts all of them at the same numbers: then both flips come, or none."""
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    flip = adapters.albumentations(FLIPS)
    seen = Counter(flip({"jpg": picture}, np.random.default_rng(seed))["jpg"].tobytes() for seed in range(400))
    assert len(seen) == 4 and min(seen.values()) > 60


def test_a_picture_its_mask_and_its_boxes_are_turned_alike() -> None:
    flip = adapters.albumentations(
        alb.Compose([alb.HorizontalFlip(p=1)], bbox_params=alb.BboxParams("pascal_voc", label_fields=["labels"])),
        image="jpg", mask="mask.png", bboxes="boxes.npy", labels="names",
    )  # fmt: skip
    picture = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    sample = {
        "__key__": "k", "jpg": picture, "mask.png": picture[..., 0],
        "boxes.npy": np.array([[0, 1, 2, 3]], np.float32), "names": ["cat"],
    }  # fmt: skip
    made = flip(sample, np.random.default_rng(0))
    assert (made["jpg"] == picture[:, ::-1]).all() and (made["mask.png"] == picture[:, ::-1, 0]).all()
    assert np.allclose(made["boxes.npy"], [[3, 1, 5, 3]]) and made["names"] == ["cat"]
    assert list(made) == list(sample) and sample["jpg"] is picture


def test_adapters_pickle_after_they_were_used() -> None:
    for adapter in (adapters.albumentations(FLIPS), adapters.torchvision(Noise(), "jpg")):
        sample = {"jpg": np.zeros((4, 4, 3), np.uint8)}
        adapter(sample, np.random.default_rng(0))
        again = pickle.loads(pickle.dumps(adapter))
        first, second = (a(sample, np.random.default_rng(1))["jpg"] for a in (adapter, again))
        assert (first == second).all()


def test_a_function_of_tensors_leaves_torchs_generator_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    adapters.torchvision(Noise())({"jpg": np.zeros((4, 4, 3), np.uint8)}, np.random.default_rng(0))
    assert torch.equal(torch.rand(3), expected)


def test_what_a_function_of_tensors_returns_is_collated_as_it_is(path: str) -> None:
    for made, dtype in ((torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)):
        adapter = adapters.torchvision(lambda picture, made=made: picture.to(made), "jpg")
        batch = next(iter(ShardDataset(path, 4, transform=adapter)))
        assert batch["jpg"].shape == (4, 3, 36, 48) and batch["jpg"].dtype == dtype


def test_which_field_is_meant_is_asked_where_it_is_not_clear() -> None:
    two = {"a": np.zeros((2, 2, 3), np.uint8), "b": np.zeros((2, 2, 3), np.uint8), "cls": 1}
    for adapter in (adapters.albumentations(FLIPS), adapters.torchvision(Noise())):
        with pytest.raises(UsageError, match=r"2 fields of a sample look like pictures.*: a, b"):
            adapter(two, np.random.default_rng(0))
        with pytest.raises(UsageError, match=r"0 fields .* none"):
            adapter({"cls": 1}, np.random.default_rng(0))


def test_a_sample_without_the_field_is_named(path: str) -> None:
    with pytest.raises(TransformError, match=r"'k000'.*has no mask.png. Fields: jpg, cls, __key__|has no mask.png"):
        list(ShardDataset(path, 4, transform=adapters.albumentations(FLIPS, image="jpg", mask="mask.png")))


def test_what_is_no_transform_is_refused_at_once() -> None:
    for wrong in (None, "flip", lambda image: image):
        with pytest.raises(UsageError, match="no transform of albumentations"):
            adapters.albumentations(wrong)
    with pytest.raises(UsageError, match="no function of a tensor"):
        adapters.torchvision("flip")  # type: ignore[arg-type]


def test_plain_functions_need_no_adapter(path: str) -> None:
    dataset = ShardDataset(path, 4, transform=lambda sample: {"jpg": np.float32(sample["jpg"][::-1]) / 255})
    plain = next(iter(ShardDataset(path, 4)))
    assert torch.allclose(next(iter(dataset))["jpg"], plain["jpg"].flip(1) / 255.0, atol=1e-6)
