"""MixUp and CutMix: each picture of a batch is mixed with another one, and their labels become soft ones.

cut = CutMix(classes=1000, label="cls")
ds = ShardDataset(…, fields=("jpg", "cls"), batch_transform=RandomChoice(MixUp(classes=1000, label="cls"), cut))
for pictures, labels in StreamLoader(ds): ...     # labels float32 (B, 1000), rows that sum to 1
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from streamio.batching.decode import channels_last
from streamio.batching.options import check_choice
from streamio.batching.picked import KEY, VALID
from streamio.errors import SampleError, ShapeMismatch, UsageError
from streamio.order.plan import check_count
from streamio.types import Rows, new_array

Where: TypeAlias = str | int
"""A field of a batch: its name, or its place in a tuple."""

_PICTURES = ("uint8", "uint16", "float16", "float32", "float64")


@dataclass(frozen=True, kw_only=True)
class _Pairs(ABC):
    """Mixes each picture with that of a partner: a random permutation of the samples that are real."""

    classes: int
    label: Where
    alpha: float
    pictures: Where | None = None
    p: float = 1.0

    by_name: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("classes", self.classes)
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 < self.alpha < math.inf:
            raise UsageError(f"alpha={self.alpha!r}", fix="Give a number above 0; to mix nothing, leave it out")
        if isinstance(self.p, bool) or not isinstance(self.p, int | float) or not 0 <= self.p <= 1:
            raise UsageError(f"p={self.p!r}", fix="Give a probability, 0 to 1")

    def __call__(self, batch: Any, rng: np.random.Generator) -> Any:
        """A new batch, of dict or tuple as before; the one given stays as it is.

        Raises UsageError for a batch without these fields, SampleError for a label that is none of the classes,
        ShapeMismatch for pictures of different sizes.
        """
        fields = _fields(batch)
        at = self._pictures_at(fields)
        pictures = _pictures(at, fields[at])
        labels = self._soft(fields)
        if len(labels) != len(pictures):
            raise UsageError(f"{len(pictures)} pictures and {len(labels)} labels in one batch")
        partners = _partners(len(pictures), fields.get(VALID), rng)
        mixed: Any = fields[at]
        if rng.random() < self.p:
            share, array = self._mix(pictures, partners, rng)
            mixed, labels = torch.from_numpy(array), _blend(labels, partners, share)
        changed = {**fields, at: mixed, self.label: torch.from_numpy(labels)}
        return changed if isinstance(batch, Mapping) else tuple(changed[i] for i in range(len(changed)))

    @abstractmethod
    def _mix(self, pictures: NDArray[Any], partners: Rows, rng: np.random.Generator) -> tuple[float, NDArray[Any]]:
        """(what of a label is its own picture's, the mixed pictures in new memory)."""

    def _pictures_at(self, fields: Mapping[Where, Any]) -> Where:
        if self.pictures is not None:
            return _known("pictures", self.pictures, fields)
        found = [name for name, value in fields.items() if getattr(value, "ndim", 0) == 4]
        if len(found) != 1:
            _refuse_lists(fields)
            raise UsageError(
                f"{len(found)} fields of the batch look like pictures, (B, H, W, C) or (B, C, H, W)",
                fix=f"Say which one: pictures=… ({', '.join(map(repr, fields))})",
            )
        return found[0]

    def _soft(self, fields: Mapping[Where, Any]) -> NDArray[np.float32]:
        """The labels as float32 (B, classes): whole numbers as one-hot rows, soft ones as they are."""
        given = fields[_known("label", self.label, fields)]
        labels = np.asarray(given)
        if labels.dtype.kind == "f" and labels.shape[1:] == (self.classes,):
            return labels.astype(np.float32)
        if labels.dtype.kind not in "iu" or labels.ndim != 1:
            raise UsageError(
                f"labels of {labels.dtype}, shape {labels.shape}",
                fix=f"Mixing takes whole numbers (B,), or soft labels (B, {self.classes})", field=self.label,
            )  # fmt: skip
        wrong = np.flatnonzero((labels < 0) | (labels >= self.classes))
        if len(wrong):
            keys = fields.get(KEY)
            raise SampleError(
                f"label {labels[wrong[0]]} with classes={self.classes}",
                fix=f"Labels count from 0 to classes - 1; give classes={labels.max() + 1} or more, or correct them",
                key=None if keys is None else keys[wrong[0]], field=self.label,
            )  # fmt: skip
        soft = np.zeros((len(labels), self.classes), np.float32)
        soft[np.arange(len(labels)), labels] = 1
        return soft


@dataclass(frozen=True, kw_only=True)
class MixUp(_Pairs):
    """Batch transform: picture and label are `lam * own + (1 - lam) * partner's`, with lam ~ Beta(alpha, alpha).

    Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018, arXiv:1710.09412. One lam for a batch, and
    partners by a random permutation, as there. Samples that only fill up a batch, as `__valid__` says, keep to
    themselves, as does a batch of one.

    classes:  number of classes. The labels become float32 (B, classes).
    label:    field of the labels: int (B,), or float (B, classes) that are soft already.
    alpha:    0.1 to 0.4 in the paper, for ImageNet.
    pictures: field of the pictures; None: the only one with 4 dimensions. uint8 and uint16 stay so, rounded to the
              nearest; floats are mixed as they are. Where batches are tuples, fields go by the names in `fields=`
              of the data set; where your transform or collate returns tuples of its own, by their places, 0, 1, …
    p:        probability that a batch is mixed at all; the labels are soft ones in any case.
    """

    alpha: float = 0.2

    def _mix(self, pictures: NDArray[Any], partners: Rows, rng: np.random.Generator) -> tuple[float, NDArray[Any]]:
        share = float(rng.beta(self.alpha, self.alpha))
        return share, _blend(pictures, partners, share)


@dataclass(frozen=True, kw_only=True)
class CutMix(_Pairs):
    """Batch transform: a box of each picture is that of its partner, and labels are mixed by area.

    Yun et al., "CutMix: Regularization strategy to train strong classifiers with localizable features", ICCV 2019,
    arXiv:1905.04899. lam ~ Beta(alpha, alpha); the box has a share of 1 - lam of the area, the picture's ratio of
    sides, and a centre that is uniform in the picture. It is cut at the border, and the labels go by the pixels
    that were really replaced. One box for a batch.

    layout: of the pictures, "hwc" or "chw"; None tells by the shape: up to 4 channels, and sides of more.
    The other arguments are those of `MixUp`; alpha is 1 in the paper: lam is uniform.
    """

    alpha: float = 1.0
    layout: Literal["hwc", "chw"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout is not None:
            check_choice("layout", self.layout, ("hwc", "chw"))

    def _mix(self, pictures: NDArray[Any], partners: Rows, rng: np.random.Generator) -> tuple[float, NDArray[Any]]:
        first = self._first_side(pictures.shape)
        height, width = pictures.shape[first : first + 2]
        side = math.sqrt(1 - rng.beta(self.alpha, self.alpha))
        top, bottom = _span(height, side, rng)
        left, right = _span(width, side, rng)
        mixed = _like(pictures)
        mixed[...] = pictures
        box = (slice(None),) * first + (slice(top, bottom), slice(left, right))
        mixed[box] = pictures[box][partners]
        return 1 - (bottom - top) * (right - left) / (height * width), mixed

    def _first_side(self, shape: tuple[int, ...]) -> int:
        """The axis of the height; that of the width follows."""
        if len(shape) == 3:
            return 1
        last = channels_last(shape) if self.layout is None else self.layout == "hwc"
        if last is None:
            raise UsageError(f"pictures of shape {shape}", fix="Say what is what: layout='hwc' or 'chw'")
        return 1 if last else 2


def _fields(batch: Any) -> dict[Where, Any]:
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, tuple | list):
        return dict(enumerate(batch))
    raise UsageError(f"a batch that is a {type(batch).__name__}", fix="Mixing takes a dict or a tuple of fields")


def _known(argument: str, where: Where, fields: Mapping[Where, Any]) -> Where:
    if where not in fields:
        raise UsageError(
            f"{argument}={where!r} is not in the batch, which has {', '.join(map(repr, fields))}",
            fix="Give one of these",
        )
    return where


def _refuse_lists(fields: Mapping[Where, Any]) -> None:
    """Raise ShapeMismatch where pictures came as a list, which is what becomes of those of different sizes."""
    for name, value in fields.items():
        if isinstance(value, list | tuple) and value and all(getattr(one, "ndim", 0) == 3 for one in value):
            shapes = sorted({tuple(one.shape) for one in value})
            raise ShapeMismatch(
                f"pictures of {len(shapes)} sizes cannot be mixed: {', '.join(map(str, shapes[:4]))}",
                fix="Give them one size while decoding: decode=streamio.image.RandomResizedCrop(224)", field=name,
            )  # fmt: skip


def _pictures(name: Where, value: Any) -> NDArray[Any]:
    """A view of the pictures as an array."""
    _refuse_lists({name: value})
    kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    if kind not in _PICTURES or value.ndim not in (3, 4):
        shape = tuple(getattr(value, "shape", ()))
        raise UsageError(
            f"pictures of {kind}, shape {shape}", fix=f"Mixing takes {', '.join(_PICTURES)} (B, …)", field=name
        )
    array: NDArray[Any] = value.detach().numpy() if isinstance(value, torch.Tensor) else value
    return array


def _partners(count: int, valid: Any, rng: np.random.Generator) -> Rows:
    """For each sample of a batch the one that it is mixed with; itself where it is not real."""
    partners = np.arange(count)
    real = partners if valid is None else np.flatnonzero(np.asarray(valid))
    partners[real] = rng.permutation(real)
    return partners


def _blend(values: NDArray[Any], partners: Rows, share: float) -> NDArray[Any]:
    """`share * own + (1 - share) * partner's`, in new memory; what is its own partner exactly as it was."""
    mixed = _like(values)
    exact = np.dtype(np.float64) if values.dtype == np.float64 else np.dtype(np.float32)
    own, other = np.empty_like(values[0], exact), np.empty_like(values[0], exact)
    for i, partner in enumerate(partners.tolist()):
        if partner == i:
            mixed[i] = values[i]
            continue
        # One operation at a time, so that each is rounded in one way wherever the batch is made.
        np.copyto(own, values[i])
        np.copyto(other, values[partner])
        np.multiply(own, share, out=own)
        np.multiply(other, 1 - share, out=other)
        np.add(own, other, out=own)
        if mixed.dtype.kind == "u":
            np.rint(own, out=own)
        np.copyto(mixed[i], own, casting="unsafe")
    return mixed


def _span(length: int, part: float, rng: np.random.Generator) -> tuple[int, int]:
    """Begin and end of a part of a side, around a uniform centre, cut at the border."""
    centre, half = rng.uniform(0, length), length * part / 2
    return round(max(0.0, centre - half)), round(min(float(length), centre + half))


def _like(array: NDArray[Any]) -> NDArray[Any]:
    """New memory that lies as that of the array does: "chw" pictures are views of "hwc" ones."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    memory = new_array(tuple(array.shape[axis] for axis in order), array.dtype)
    return memory.transpose(np.argsort(order))
