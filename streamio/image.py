"""Crops and resizes that are decided before a picture is decoded: pure geometry, no pixels.

An operation looks at a picture's size and says which box of it becomes a result of which size. The decoder
(`streamio.codecs`) then decodes a JPEG no larger than that needs. Sizes of pictures are (width, height),
sizes of results and of arrays (height, width), as everywhere.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from streamio.errors import ShapeMismatch, UsageError

Size: TypeAlias = tuple[int, int]
"""(height, width) in pixels."""

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Geometry:
    """What becomes of one picture.

    box:  (left, top, width, height) in pixels of the picture at full size, upright (EXIF orientation
          applied); it lies inside the picture and may have fractions.
    size: (height, width) of the result; None leaves the box at its own size.
    flip: mirror the result left to right.
    """

    box: tuple[float, float, float, float]
    size: Size | None
    flip: bool = False


@runtime_checkable
class ImageOp(Protocol):
    """A decode-time operation. Frozen and picklable; used from any thread."""

    @property
    def size(self) -> Size | None:
        """(height, width) of every result, None if it depends on the picture."""
        ...

    def plan(self, width: int, height: int, rng: np.random.Generator | None) -> Geometry:
        """For a picture of this size. Random operations draw from `rng` and from nothing else.

        Raises ShapeMismatch for a picture that cannot be made into such a result.
        """
        ...


@dataclass(frozen=True, init=False)
class Resize:
    """The whole picture, resized.

    size: an int is the length of the shorter side, and the longer one follows (rounded down, as in
    torchvision); (height, width) is taken exactly, and the picture is stretched to it.
    """

    short: int | None
    size: Size | None

    def __init__(self, size: int | Size) -> None:
        exact = isinstance(size, tuple | list)
        _set(self, short=None if exact else _length(size, "Resize"), size=_pair(size, "Resize") if exact else None)

    def __repr__(self) -> str:
        return f"Resize({self.size or self.short})"

    def plan(self, width: int, height: int, rng: np.random.Generator | None) -> Geometry:
        if self.short is None:
            return Geometry((0, 0, width, height), self.size)
        w, h = short_side_size(width, height, self.short)
        return Geometry((0, 0, width, height), (h, w))


@dataclass(frozen=True, init=False)
class MaxSide:
    """The whole picture, with its longer side at most this long; smaller pictures stay as they are."""

    side: int

    def __init__(self, size: int) -> None:
        _set(self, side=_length(size, "MaxSide"))

    def __repr__(self) -> str:
        return f"MaxSide({self.side})"

    @property
    def size(self) -> Size | None:
        return None

    def plan(self, width: int, height: int, rng: np.random.Generator | None) -> Geometry:
        w, h = max_side_size(width, height, self.side)
        return Geometry((0, 0, width, height), (h, w))


@dataclass(frozen=True, init=False)
class CenterCrop:
    """The middle of the picture, `size` large (an int is a square).

    resize: the shorter side is made this long before, as by `Resize`; the usual evaluation of ImageNet is
    `CenterCrop(224, resize=256)`. Both happen in one step. Without it the crop is cut out at full size, and
    a picture smaller than the crop raises ShapeMismatch.
    """

    size: Size
    resize: int | None

    def __init__(self, size: int | Size, resize: int | None = None) -> None:
        crop = _pair(size, "CenterCrop")
        if resize is not None and _length(resize, "CenterCrop(resize=…)") < min(crop):
            raise UsageError(
                f"CenterCrop({size!r}, resize={resize}): after the resize no crop of {_times(crop)} fits",
                fix=f"Use resize={max(crop)} or more",
            )
        _set(self, size=crop, resize=resize)

    def plan(self, width: int, height: int, rng: np.random.Generator | None) -> Geometry:
        w, h = (width, height) if self.resize is None else short_side_size(width, height, self.resize)
        crop_h, crop_w = self.size
        if crop_w > w or crop_h > h:
            at = "" if self.resize is None else f", {h} x {w} after the resize,"
            raise ShapeMismatch(
                f"a picture of {height} x {width}{at} is smaller than the crop of {_times(self.size)}",
                fix=f"Resize first: CenterCrop({self.size}, resize={max(self.size)}) or more",
            )
        left, top = round((w - crop_w) / 2), round((h - crop_h) / 2)
        x, y = width / w, height / h
        return Geometry(_inside(left * x, top * y, crop_w * x, crop_h * y, width, height), self.size)


@dataclass(frozen=True, init=False)
class RandomResizedCrop:
    """A random box of the picture, stretched to `size` (an int is a square).

    scale: share of the picture's area that the box covers, from and to.
    ratio: width / height of the box, from and to; drawn evenly on a log scale.
    flip:  probability of mirroring left to right.

    The box is found as in torchvision (Szegedy et al., "Going deeper with convolutions", section 6): ten
    tries, then the largest box in the middle whose ratio is allowed. `plan` needs an `rng`.
    """

    size: Size
    scale: tuple[float, float]
    ratio: tuple[float, float]
    flip: float

    def __init__(
        self,
        size: int | Size,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.0,
    ) -> None:
        _set(
            self,
            size=_pair(size, "RandomResizedCrop"),
            scale=_span(scale, "scale", 1.0),
            ratio=_span(ratio, "ratio", math.inf),
            flip=float(flip),
        )
        if not 0 <= self.flip <= 1:
            raise UsageError(f"RandomResizedCrop(flip={flip!r})", fix="flip is a probability, 0 to 1")

    def plan(self, width: int, height: int, rng: np.random.Generator | None) -> Geometry:
        if rng is None:
            raise UsageError(
                "RandomResizedCrop was called without a random generator",
                fix="Pass one: rng=numpy.random.default_rng(seed)",
            )
        left, top, w, h = self._box(width, height, rng)
        flip = self.flip > 0 and rng.random() < self.flip
        return Geometry((left, top, w, h), self.size, flip)

    def _box(self, width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(_TRIES):
            area = width * height * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
        return self._middle(width, height)

    def _middle(self, width: int, height: int) -> tuple[int, int, int, int]:
        w, h = width, height
        if width < height * self.ratio[0]:
            h = min(height, max(1, round(width / self.ratio[0])))
        elif width > height * self.ratio[1]:
            w = min(width, max(1, round(height * self.ratio[1])))
        return (width - w) // 2, (height - h) // 2, w, h


def short_side_size(width: int, height: int, side: int) -> tuple[int, int]:
    """(width, height) with the shorter side `side` long and the longer one rounded down, as in torchvision.

    >>> short_side_size(500, 375, 256)
    (341, 256)
    """
    if width <= height:
        return side, side * height // width
    return side * width // height, side


def max_side_size(width: int, height: int, side: int) -> tuple[int, int]:
    """(width, height) with the longer side at most `side` long, the shorter one rounded down, at least 1.

    >>> max_side_size(500, 375, 256), max_side_size(20, 10, 256)
    ((256, 192), (20, 10))
    """
    longer = max(width, height)
    if longer <= side:
        return width, height
    return max(1, side * width // longer), max(1, side * height // longer)


def _inside(
    left: float, top: float, width: float, height: float, full_width: int, full_height: int
) -> tuple[float, float, float, float]:
    """The box without what rounding errors let stick out."""
    return left, top, min(width, full_width - left), min(height, full_height - top)


def _set(op: object, **values: object) -> None:
    """Fill a frozen dataclass whose arguments are not quite its fields."""
    for name, value in values.items():
        object.__setattr__(op, name, value)


def _length(value: object, what: str) -> int:
    try:
        length = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        length = 0
    if length < 1 or isinstance(value, bool):
        raise UsageError(f"{what}: size {value!r}", fix="Lengths are whole pixels, 1 or more")
    return length


def _pair(size: int | Size, what: str) -> Size:
    """(height, width) of an int or a pair."""
    if not isinstance(size, tuple | list):
        return _length(size, what), _length(size, what)
    if len(size) != 2:
        raise UsageError(f"{what}: size {size!r}", fix="Give one length or (height, width)")
    return _length(size[0], what), _length(size[1], what)


def _span(span: tuple[float, float], name: str, top: float) -> tuple[float, float]:
    low, high = (float(edge) for edge in span) if len(span) == 2 else (0.0, 0.0)
    if not 0 < low <= high <= top or math.isinf(high):
        above = "" if math.isinf(top) else f" and at most {top:g}"
        raise UsageError(f"RandomResizedCrop({name}={span!r})", fix=f"Give (from, to), both above 0{above}")
    return low, high


def _times(size: Size) -> str:
    return f"{size[0]} x {size[1]}"
