"""The decoder and the crop that all loaders share: simplejpeg, then a random box stretched to 224 x 224.

The box is drawn as torchvision's RandomResizedCrop draws it (8 % to 100 % of the area, ratio 3/4 to 4/3), and the
whole picture is decoded, as streamio does for such a crop too. It is stretched by the function of torch that
torchvision and streamio use, or by Pillow on a processor for which that is no faster. `crop` is for what peers have
decoded by themselves, with Pillow.
"""

from __future__ import annotations

import math
import random

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate

from benchmarks.speed.workloads import CROP

_TRIES = 10
_TORCH_IS_FAST = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def decode_and_crop(data: bytes | memoryview, rng: random.Random) -> NDArray[np.uint8]:
    """uint8 (224, 224, 3) of a JPEG."""
    pixels = simplejpeg.decode_jpeg(data)
    if not _TORCH_IS_FAST:
        return crop(Image.fromarray(pixels), rng)
    left, top, width, height = random_box(pixels.shape[1], pixels.shape[0], rng)
    part = torch.from_numpy(np.ascontiguousarray(pixels[top : top + height, left : left + width]))
    planes = part.permute(2, 0, 1)[None]
    small = interpolate(planes, (CROP, CROP), mode="bilinear", antialias=True)
    array: NDArray[np.uint8] = small[0].permute(1, 2, 0).numpy()
    return array


def crop(picture: Image.Image, rng: random.Random) -> NDArray[np.uint8]:
    """uint8 (224, 224, 3) of a decoded picture."""
    left, top, width, height = random_box(*picture.size, rng)
    box = (left, top, left + width, top + height)
    small = picture.resize((CROP, CROP), Image.Resampling.BILINEAR, box=box)
    return np.asarray(small if small.mode == "RGB" else small.convert("RGB"))


def random_box(width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
    """(left, top, width, height), inside the picture."""
    for _ in range(_TRIES):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side
