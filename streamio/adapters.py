"""Transforms of other libraries as `transform` of a data set: of one sample, and repeatable from its rng."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from streamio.errors import SampleError, UsageError
from streamio.seeding import torch_draws_from


def albumentations(transform: Any, **fields: str) -> Callable[..., Any]:
    """A transform of albumentations (2.0 or later), or a Compose of them.

        augment = adapters.albumentations(A.Compose([A.RandomCrop(64, 64), A.HorizontalFlip()]), image="jpg")
        ds = ShardDataset(…, transform=augment)

    fields: target of albumentations (`image`, `mask`, `bboxes`, `class_labels`, …) = field of the sample, which its
            result replaces. None given: `image` is the only field that is a picture, (H, W, C).

    All that it draws comes from the rng of the sample, so results are the same on any number of workers, with any
    transport. (`set_random_seed` of albumentations would start every transform of a Compose at the same numbers:
    all flips would be drawn alike.) Each thread works with a copy of its own.

    OpenCV has threads of its own, in each worker: call `cv2.setNumThreads(0)` at the top of the script. (Not in the
    workers: one that was forked after OpenCV ran threads may hang in that call.)
    """
    if not callable(transform) or not hasattr(transform, "set_random_state"):
        raise UsageError(f"{transform!r} is no transform of albumentations 2", fix="Give A.Compose([…])")
    return _Albumentations(transform, fields)


def torchvision(transform: Callable[[torch.Tensor], Any], field: str | None = None) -> Callable[..., Any]:
    """A transform of torchvision, or any function of one picture as a tensor (C, H, W).

        augment = adapters.torchvision(v2.Compose([v2.RandomHorizontalFlip(), v2.AutoAugment()]), "jpg")

    field: of the picture, which the result replaces. None: the only field that is a picture, (H, W, C).

    What it draws from torch's global generator begins at a seed of the sample, and the generator is put back after
    that, so results are the same on any number of workers, inline and in worker processes. With transport "thread",
    a training loop that draws on the CPU at the same time takes numbers of the same generator.
    """
    if not callable(transform):
        raise UsageError(f"{transform!r} is no function of a tensor", fix="Give v2.Compose([…])")
    return _OfTensors(transform, field)


class _Albumentations:
    def __init__(self, transform: Any, fields: Mapping[str, str]) -> None:
        self._transform, self._fields = transform, dict(fields)
        self._own = threading.local()

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        fields = self._fields or {"image": _only_picture(sample)}
        missing = [name for name in fields.values() if sample.get(name) is None]
        if missing:
            raise SampleError(f"has no {', '.join(missing)}", fix=f"Fields: {', '.join(sample)}")
        transform = self._of_this_thread()
        transform.set_random_state(rng, random.Random(int(rng.integers(1 << 63))))
        made = transform(**{target: sample[name] for target, name in fields.items()})
        return {**sample, **{name: made[target] for target, name in fields.items()}}

    def _of_this_thread(self) -> Any:
        """A copy of the transform: it keeps what it drew in itself."""
        if not hasattr(self._own, "transform"):
            self._own.transform = copy.deepcopy(self._transform)
        return self._own.transform

    def __reduce__(self) -> Any:
        return _Albumentations, (self._transform, self._fields)


class _OfTensors:
    def __init__(self, transform: Callable[[torch.Tensor], Any], field: str | None) -> None:
        self._transform, self._field = transform, field

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        name = self._field or _only_picture(sample)
        if sample.get(name) is None:
            raise SampleError(f"has no {name}", fix=f"Fields: {', '.join(sample)}")
        picture = torch.from_numpy(np.require(sample[name], None, ["W"])).permute(2, 0, 1)
        with torch_draws_from(int(rng.integers(1 << 63))):
            made = self._transform(picture)
        # An array is collated right into the memory of the batch. What numpy lacks stays a tensor.
        is_plain = isinstance(made, torch.Tensor) and made.dtype is not torch.bfloat16 and not made.requires_grad
        return {**sample, name: made.numpy() if is_plain else made}


def _only_picture(sample: Mapping[str, Any]) -> str:
    found = [name for name, value in sample.items() if isinstance(value, np.ndarray) and value.ndim == 3]
    if len(found) != 1:
        raise UsageError(
            f"{len(found)} fields of a sample look like pictures, (H, W, C): {', '.join(found) or 'none'}",
            fix=f"Say which one the transform is for ({', '.join(sample)})",
        )
    return found[0]
