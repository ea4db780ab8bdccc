"""The codecs of pictures, and how arrays become pictures. Decoding is in `pixels.py`."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from streamio.codecs.arrays import as_array
from streamio.codecs.base import Data, Scalar, codec_for
from streamio.codecs.pixels import Pixels, decode_image
from streamio.codecs.sniff import read_head
from streamio.errors import UsageError

Kind: TypeAlias = Literal["jpeg", "png", "webp"]

JPEG_QUALITY = 95
"""For arrays and for pictures that are made smaller."""


@dataclass(frozen=True)
class ImageCodec:
    """Pictures of one family of names. Decodes any kind of picture; encodes arrays into `name`'s format.

    decode gives RGB, uint8 (height, width, 3). encode takes uint8 (height, width), (…, 1), (…, 3) and, where
    the format has transparency, (…, 4); also a Pillow image. Bytes pass unchanged.
    """

    name: str
    extensions: tuple[str, ...]
    writes: Kind | None = None

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if self.writes is None:
            raise UsageError(
                f"an array cannot be written as {self.name}", fix="Give the bytes of a file, or use a png field"
            )
        return encode_image(value, self.writes)

    def decode(self, data: Data) -> Pixels:
        return decode_image(data)

    def peek(self, data: Data) -> dict[str, Scalar]:
        """width and height, upright."""
        head = read_head(data)
        if head is None:
            return {}
        width, height = head.upright
        return {"width": width, "height": height}


IMAGES = (
    ImageCodec("jpeg", ("jpg", "jpeg"), "jpeg"),
    ImageCodec("png", ("png",), "png"),
    ImageCodec("webp", ("webp",), "webp"),
    ImageCodec("bmp", ("bmp",)),
    ImageCodec("gif", ("gif",)),
    ImageCodec("tiff", ("tif", "tiff")),
    ImageCodec("pnm", ("ppm", "pgm", "pbm", "pnm")),
)


def is_image_field(stored_name: str) -> bool:
    """Is a field or file of this name a picture, going by its extension?"""
    return isinstance(codec_for(stored_name), ImageCodec)


def encode_image(value: Any, kind: Kind, quality: int | None = None, sampling: str = "444") -> bytes:
    """uint8 (height, width), (…, 1), (…, 3) or (…, 4), or a Pillow image, as the bytes of a file.

    quality: 1 to 100, of jpeg (JPEG_QUALITY if not given) and webp (lossless if not given).
    sampling: of the colour in a jpeg: "444" keeps it whole; "420", a quarter of it, is what most cameras write.

    The same input gives the same bytes with the same libraries. Raises UsageError for other arrays, and
    for transparency in a jpeg.
    """
    if quality is not None and not 1 <= quality <= 100:
        raise UsageError(f"quality {quality}", fix="Give 1 to 100")
    pixels = _as_pixels(value)
    channels = pixels.shape[2]
    if kind == "jpeg":
        if channels == 4:
            raise UsageError(
                "a jpeg has no transparency, the array 4 channels", fix="Give array[..., :3], or use png"
            )
        space, sampling = ("GRAY", "Gray") if channels == 1 else ("RGB", sampling)
        encoded: bytes = simplejpeg.encode_jpeg(
            np.ascontiguousarray(pixels), quality or JPEG_QUALITY, space, sampling
        )
        return encoded
    from PIL import Image

    file = io.BytesIO()
    options: dict[str, Any] = {}
    if kind == "webp":
        # exact: colour beneath transparency is kept, as in png.
        options = {"lossless": True, "exact": True} if quality is None else {"quality": quality}
    Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(file, kind.upper(), **options)
    return file.getvalue()


def _as_pixels(value: Any) -> Pixels:
    """(height, width, channels), or UsageError."""
    from PIL import Image

    if isinstance(value, Image.Image) and value.mode not in ("L", "RGB", "RGBA"):
        value = value.convert("RGBA" if value.has_transparency_data else "RGB")
    array = np.asarray(value) if isinstance(value, Image.Image) else as_array(value)
    pixels = array[:, :, None] if array.ndim == 2 else array
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or not pixels.size:
        hint = "Transpose it to (height, width, channels)" if _channels_first(array) else "Or name the field x.npy"
        raise UsageError(
            f"an array of {array.dtype} {array.shape} is no picture: uint8 (height, width[, 1, 3 or 4])", fix=hint
        )
    return pixels


def _channels_first(array: NDArray[Any]) -> bool:
    return array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4)
