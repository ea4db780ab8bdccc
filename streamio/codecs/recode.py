"""Pictures made smaller while they are packed, once instead of in every epoch."""

from __future__ import annotations

import io
from typing import get_args

import simplejpeg

from streamio.codecs.base import Data
from streamio.codecs.pixels import Mode, decode_image
from streamio.codecs.raster import JPEG_QUALITY, Kind, encode_image
from streamio.codecs.sniff import Head, looks_like, read_head
from streamio.errors import DecodeError
from streamio.image import Resize, max_side_size, short_side_size

_LOSSY = ("jpeg", "webp")
_LEAST_QUALITY = 85
_DIVISORS = 3688
"""The sum of the table for brightness at quality 50 (ITU-T T.81, table K.1)."""
_SAMPLINGS = ("444", "422", "420", "440", "411")


def recode(
    data: Data, *, resize_short: int | None = None, max_side: int | None = None, quality: int | None = None
) -> bytes:
    """A picture made smaller and written again; the very same bytes where nothing has to change.

    resize_short: its shorter side becomes this long; max_side: its longer side at most this long (both
                  given: first one, then the other). Pictures are never made larger.
    quality:      jpeg and webp are written again at this quality even if their size stays. None: a jpeg that is
                  made smaller has the quality that it had, but 85 to 95; webp is written without loss.

    jpeg, png and webp stay what they are, other kinds become png (of several frames, the first). What is
    written is upright and holds the numbers that decoding gives: 8 bits, CMYK as RGB, transparency kept
    where there was some, grey kept grey in a jpeg, whose colour is sampled as it was. EXIF and colour profiles are
    left behind, as decoding ignores profiles too. Raises DecodeError as `decode_image` does.
    """
    head = read_head(data)
    if head is None:
        raise DecodeError(f"no picture but {looks_like(data)}", fix="Leave it out")
    width, height = _smaller(*head.upright, resize_short, max_side)
    again = quality is not None and head.kind in _LOSSY
    if (width, height) == head.upright and not again:
        return bytes(data)
    pixels = decode_image(data, Resize((height, width)), mode=_mode(head))
    if pixels.shape[2] == 4 and (pixels[:, :, 3] == 255).all():
        pixels = pixels[:, :, :3]
    kind: Kind = next((k for k in get_args(Kind) if k == head.kind), "png")
    if quality is None and kind == "jpeg":
        quality = _quality(data)
    return encode_image(pixels, kind, quality if kind in _LOSSY else None, _sampling(data, head))


def _quality(data: Data) -> int:
    """That of a jpeg, within bounds: what was lost already need not be kept, and costs a tenth of the decoding.

    From the sum of its table of divisors for brightness, by the formula of the IJG's library that makes such tables
    of a quality from 1 to 100 (jpeg_quality_scaling in jcparam.c).
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        tables = getattr(image, "quantization", {})
    scale = 100 * sum(tables[0]) / _DIVISORS if 0 in tables else 0
    quality = (200 - scale) / 2 if scale <= 100 else 5000 / scale
    return round(min(max(quality, _LEAST_QUALITY), JPEG_QUALITY))


def _sampling(data: Data, head: Head) -> str:
    """That of the colour in a jpeg: as fine as it was. More would be invented, and cost a third of the decoding."""
    if head.kind != "jpeg" or head.channels != 3:
        return "444"
    try:
        found: str = simplejpeg.decode_jpeg_header(data)[3]
    except ValueError:  # a jpeg that only Pillow reads
        return "444"
    return found if found in _SAMPLINGS else "444"


def _mode(head: Head) -> Mode:
    if head.kind == "jpeg":
        return "L" if head.channels == 1 else "RGB"
    return "RGBA"


def _smaller(width: int, height: int, resize_short: int | None, max_side: int | None) -> tuple[int, int]:
    if resize_short is not None and min(width, height) > resize_short:
        width, height = short_side_size(width, height, resize_short)
    return (width, height) if max_side is None else max_side_size(width, height, max_side)
