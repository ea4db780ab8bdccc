"""Pictures: bytes -> uint8 (height, width, channels), in the size that is asked for.

The bytes decide what they are, not the name. Every picture is made upright (EXIF orientation). Colour
profiles are not applied, as in torchvision and OpenCV: the numbers in the file are the numbers of the array.

What it takes, in µs on one core of a 2-core virtual machine (JPEG of 500 x 375, quality 90; best of 5
means of 200): decoding 350, CenterCrop(224) 350, RandomResizedCrop(224) 900, of which 540 are resizing;
with Pillow alone about 1,000, 1,000 and 1,500.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from streamio.codecs.base import Data
from streamio.codecs.sniff import Head, looks_like, picture_kind, read_head
from streamio.errors import DecodeError, StreamioError, UsageError
from streamio.image import Geometry, ImageOp

if TYPE_CHECKING:
    from PIL import Image, ImageFile

Pixels: TypeAlias = NDArray[np.uint8]
Mode: TypeAlias = Literal["RGB", "RGBA", "L"]
Backend: TypeAlias = Literal["simplejpeg", "pillow"]

Resize: TypeAlias = Callable[[Pixels, bool, Pixels], None]
"""(pixels, whether to mirror them, where they go): resizes to the size of the last, bilinear and antialiased. Both
are RGB; the last is C-contiguous, the first any part of a picture, and may be read-only."""

Known: TypeAlias = Callable[[int, tuple[int, ...] | None, Pixels | None, Callable[[], Pixels]], Pixels]
"""(eighths, shape, memory to use, what decodes) -> the picture as it is decoded at this scale, of this shape (None:
of whatever it has), and in this memory if that is given; from somewhere else, if it is known."""

MAX_PIXELS = 178_956_970
"""Pictures with more are refused before they are decoded: 512 MiB of RGB, the limit at which Pillow raises."""

BACKENDS: tuple[Backend, ...] = ("simplejpeg", "pillow")
_CHANNELS = {"RGB": 3, "RGBA": 4, "L": 1}
_COLORSPACE = {"RGB": "RGB", "RGBA": "RGBA", "L": "GRAY"}

# What libjpeg says where a part of the picture is missing. Its other complaints (stray bytes before a
# marker, an unknown Adobe transform) leave the picture whole: Pillow, which ignores them, decodes it.
_JPEG_LOSS = ("remature end", "bad Huffman code", "found marker", "nconsistent progression")


def decode_image(
    data: Data,
    op: ImageOp | None = None,
    rng: np.random.Generator | None = None,
    *,
    mode: Mode = "RGB",
    out: Pixels | None = None,
    max_pixels: int = MAX_PIXELS,
    backend: Backend = "simplejpeg",
    resize: Resize | None = None,
    known: Known | None = None,
) -> Pixels:
    """A picture's bytes as uint8 (height, width, channels), upright; 3 channels, 4 for RGBA, 1 for L.

    op, rng: what becomes of it, and the generator for operations that draw. JPEGs are decoded at 1/2, 1/4
             or 1/8 where that is still large enough; resizing is bilinear and antialiased (Pillow).
    mode:    RGB drops transparency, and keeps the colour that lies beneath it. 16 bits become the upper 8.
    out:     is filled and returned; its shape must be that of the result, any strides will do.
    backend: what decodes a JPEG. simplejpeg leaves CMYK to Pillow; everything else is Pillow's anyway.
    resize:  does it instead of Pillow, where the box is of whole pixels.
    known:   is asked for the decoded picture, from which the box is taken.

    Raises DecodeError for what is no picture, or cut, or damaged where the decoder can tell, or has more
    than `max_pixels` pixels; `out` is then undefined.
    """
    head = _checked_head(data, max_pixels)
    whole = None
    if head.kind != "jpeg":
        whole = (known or _decoded)(8, None, None, lambda: _with_pillow(data, head, mode, 8, max_pixels))
        # The decoder has the last word on the size; and it has turned a TIFF already.
        head = Head(head.kind, whole.shape[1], whole.shape[0], 1 if head.kind == "tiff" else head.orientation)
    width, height = head.upright
    plan = Geometry((0, 0, width, height), None) if op is None else op.plan(width, height, rng)
    size = _result_size(plan, max_pixels)
    if out is not None:
        assert out.shape == (*size, _CHANNELS[mode]) and out.dtype == np.uint8, (
            f"out is {out.dtype} {out.shape}, the picture uint8 {(*size, _CHANNELS[mode])}"
        )
    box, stored_size = _as_stored(plan.box, size, head)
    turn = _turn(head.orientation, plan.flip)
    if whole is None:
        eighths = _eighths(box, stored_size, head)
        as_it_is = turn is None and _is_whole(box, head) and stored_size == _decoded_size(head, eighths)
        buffer = out if as_it_is else _scratch(head, eighths, mode)
        whole = (known or _decoded)(
            eighths,
            (*_decoded_size(head, eighths), _CHANNELS[mode]),
            buffer,
            lambda: _decode_jpeg(data, head, mode, eighths, backend, buffer, max_pixels),
        )
        if whole.shape[:2] != _decoded_size(head, eighths):
            raise DecodeError(f"the header of this jpeg does not fit its {whole.shape[:2]} pixels", fix=_AGAIN)
        if as_it_is and (whole is out or (out is None and whole.flags.writeable)):
            return whole
        box = _scaled(box, head, eighths)
    return _make(whole, box, stored_size, turn, out, resize)


def transform_image(
    pixels: Pixels,
    op: ImageOp,
    rng: np.random.Generator | None = None,
    *,
    out: Pixels | None = None,
    resize: Resize | None = None,
) -> Pixels:
    """What `decode_image` does after decoding, for a picture that is uint8 (height, width, channels) already."""
    height, width = pixels.shape[:2]
    plan = op.plan(width, height, rng)
    size = _result_size(plan, MAX_PIXELS)
    return _make(pixels, plan.box, size, _turn(1, plan.flip), out, resize)


def _checked_head(data: Data, max_pixels: int) -> Head:
    """The header, of a picture that may be decoded."""
    head = read_head(data)
    if head is None:
        kind = picture_kind(data)
        if kind is not None:
            raise DecodeError(f"the header of this {kind} is damaged or cut ({len(data):,} bytes)", fix=_AGAIN)
        raise DecodeError(
            f"no picture but {looks_like(data)}", fix="Leave it out, or name its field for what it is"
        )
    _refuse_bomb(head.width, head.height, max_pixels)
    return head


def _refuse_bomb(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise DecodeError(
            f"{width} x {height} are {width * height:,} pixels, more than the limit of {max_pixels:,}; "
            "it may be a decompression bomb",
            fix="If the picture is meant to be that large, raise max_pixels",
        )


_AGAIN = "Get the file again, or leave it out"


def _result_size(plan: Geometry, max_pixels: int) -> tuple[int, int]:
    size = plan.size or (round(plan.box[3]), round(plan.box[2]))
    _refuse_bomb(size[1], size[0], max_pixels)
    return size


# What stands upright is the stored picture with its axes swapped, then mirrored left to right, then turned
# upside down: EXIF orientation -> which of the three, and all of it in one move.
_TURNS = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}
_MOVES = {
    _TURNS[2]: "FLIP_LEFT_RIGHT",
    _TURNS[3]: "ROTATE_180",
    _TURNS[4]: "FLIP_TOP_BOTTOM",
    _TURNS[5]: "TRANSPOSE",
    _TURNS[6]: "ROTATE_270",
    _TURNS[7]: "TRANSVERSE",
    _TURNS[8]: "ROTATE_90",
}
"""By the names that Pillow has for them."""
Box: TypeAlias = tuple[float, float, float, float]


def _as_stored(box: Box, size: tuple[int, int], head: Head) -> tuple[Box, tuple[int, int]]:
    """Box and result size of the upright picture as those of the picture that lies in the file."""
    if head.orientation == 1:
        return box, size
    swap, mirror, upside = _TURNS[head.orientation]
    width, height = head.upright
    left, top, w, h = box
    left = width - left - w if mirror else left
    top = height - top - h if upside else top
    return ((top, left, h, w), (size[1], size[0])) if swap else ((left, top, w, h), size)


def _turn(orientation: int, flip: bool) -> str | None:
    """What makes the picture upright and then mirrors it."""
    swap, mirror, upside = _TURNS[orientation]
    return _MOVES.get((swap, mirror != flip, upside))


def _make(
    pixels: Pixels,
    box: Box,
    size: tuple[int, int],
    turn: str | None,
    out: Pixels | None,
    resize: Resize | None,
) -> Pixels:
    """The box of the picture in this size, then turned: in `out`, or in memory of its own."""
    left, top, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]
    x, y = max(0, math.floor(left)), max(0, math.floor(top))
    part = pixels[y : math.ceil(bottom), x : math.ceil(right)]
    height, width, channels = part.shape
    inner = (max(0, left - x), max(0, top - y), min(right - x, width), min(bottom - y, height))
    whole = inner == (0, 0, width, height)
    if whole and size == (height, width) and turn is None:
        return _put(part, out)
    mirrored = turn == "FLIP_LEFT_RIGHT"
    if resize is None or not whole or channels != 3 or (turn is not None and not mirrored):
        return _put(_made_by_pillow(part, inner, size, turn), out)
    made = out if out is not None and out.flags.c_contiguous else np.empty((*size, channels), np.uint8)
    resize(part, mirrored, made)
    return made if out is None or made is out else _put(made, out)


def _made_by_pillow(part: Pixels, inner: Box, size: tuple[int, int], turn: str | None) -> Pixels:
    """inner: (left, top, right, bottom) in the part."""
    from PIL import Image

    grey = part.shape[2] == 1
    picture = Image.fromarray(part[:, :, 0] if grey else part)
    if (*inner, *size) != (0, 0, *picture.size, picture.height, picture.width):
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=inner)
    if turn is not None:
        picture = picture.transpose(Image.Transpose[turn])
    made = np.asarray(picture)
    return made[:, :, None] if grey else made


def _put(pixels: Pixels, out: Pixels | None) -> Pixels:
    """A copy, as the pixels may be Pillow's (read-only) or lie in the scratch memory."""
    if out is None:
        return np.array(pixels, order="C")
    out[...] = pixels
    return out


def _eighths(box: Box, size: tuple[int, int], head: Head) -> int:
    """The smallest scale, in eighths, at which the box has at least the size of the result.

    libjpeg has all of 1 to 16, but only 1, 2, 4 and 8 in vector code: 7/8 takes twice as long as 8/8, and
    3/8 longer than 4/8.
    """
    need = 8 * max(size[0] / box[3], size[1] / box[2])
    shorter = min(head.width, head.height)
    return next((n for n in (1, 2, 4) if n >= need and n * shorter >= 8), 8)


def _is_whole(box: Box, head: Head) -> bool:
    return box[2] == head.width and box[3] == head.height


def _decoded_size(head: Head, eighths: int) -> tuple[int, int]:
    """(height, width) of the picture as stored, decoded at this scale."""
    return -(-head.height * eighths // 8), -(-head.width * eighths // 8)


def _scaled(box: Box, head: Head, eighths: int) -> Box:
    """The box in a picture decoded at this scale, whose last pixels may stand for less than the others."""
    if _is_whole(box, head):
        height, width = _decoded_size(head, eighths)
        return 0, 0, width, height
    left, top, w, h = (edge * eighths / 8 for edge in box)
    return left, top, w, h


def _decoded(eighths: int, shape: object, memory: object, decode: Callable[[], Pixels]) -> Pixels:
    """A `Known` that knows nothing."""
    return decode()


def _scratch(head: Head, eighths: int, mode: Mode) -> Pixels | None:
    """Memory of this thread to decode into, for pictures that are not handed over as they are.

    Fresh memory for each picture costs 400 µs of page faults, more than decoding it. None for large ones,
    so that a thread keeps no more than `_SCRATCH_BYTES`.
    """
    height, width = _decoded_size(head, eighths)
    shape = (height, width, _CHANNELS[mode])
    if math.prod(shape) > _SCRATCH_BYTES:
        return None
    if not hasattr(_thread, "scratch"):
        _thread.scratch = np.empty(_SCRATCH_BYTES, np.uint8)
    part: Pixels = _thread.scratch[: math.prod(shape)]
    return part.reshape(shape)


_SCRATCH_BYTES = 16 << 20
_thread = threading.local()


def _decode_jpeg(
    data: Data, head: Head, mode: Mode, eighths: int, backend: str, buffer: Pixels | None, max_pixels: int
) -> Pixels:
    """The picture as stored, at this scale; in `buffer` if that is given and can be used."""
    if backend not in BACKENDS:
        raise UsageError(f"no such backend: {backend!r}", fix=f"Choose one of {', '.join(BACKENDS)}")
    if backend == "pillow" or head.channels == 4:
        return _with_pillow(data, head, mode, eighths, max_pixels)
    height, width = _decoded_size(head, eighths)
    if buffer is not None and not (buffer.flags.c_contiguous and buffer.flags.writeable):
        buffer = None
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            data, _COLORSPACE[mode], min_height=height, min_width=width, buffer=buffer
        )
    except ValueError as error:
        if any(words in str(error) for words in _JPEG_LOSS):
            raise DecodeError(f"this jpeg is cut or damaged: {error}", fix=_AGAIN) from error
        return _with_pillow(data, head, mode, eighths, max_pixels)
    return buffer if buffer is not None and buffer.shape == pixels.shape else pixels


@cache
def _pillow() -> dict[str, type[ImageFile.ImageFile]]:
    """What opens a picture, by kind.

    Not Image.open, which would try every format that is installed, and whose limit on pixels is one for the whole
    process. Pillow is loaded where it is used: that takes 20 ms, and most JPEGs do without it.
    """
    from PIL import (
        BmpImagePlugin,
        GifImagePlugin,
        JpegImagePlugin,
        PngImagePlugin,
        PpmImagePlugin,
        TiffImagePlugin,
        WebPImagePlugin,
    )

    return {
        "jpeg": JpegImagePlugin.JpegImageFile,
        "png": PngImagePlugin.PngImageFile,
        "webp": WebPImagePlugin.WebPImageFile,
        "bmp": BmpImagePlugin.BmpImageFile,
        "gif": GifImagePlugin.GifImageFile,
        "tiff": TiffImagePlugin.TiffImageFile,
        "pnm": PpmImagePlugin.PpmImageFile,
    }


def _with_pillow(data: Data, head: Head, mode: Mode, eighths: int, max_pixels: int) -> Pixels:
    """The picture as stored (a TIFF: upright), in this mode."""
    opener = _pillow()[head.kind]
    try:
        with opener(io.BytesIO(data)) as picture:
            _refuse_bomb(*picture.size, max_pixels)
            if eighths < 8:
                picture.draft(None, (head.width * eighths // 8, head.height * eighths // 8))
            return _to_array(picture, mode, head.kind)
    except (StreamioError, MemoryError):
        raise
    except Exception as error:  # Pillow raises nearly anything for damaged files
        raise DecodeError(f"this {head.kind} is cut or damaged: {error}", fix=_AGAIN) from error


def _to_array(picture: Image.Image, mode: Mode, kind: str) -> Pixels:
    from PIL import Image

    picture.load()
    if picture.mode.startswith("I;16") or (picture.mode == "I" and kind in ("png", "pnm")):
        upper = (np.asarray(picture).astype(np.uint32) >> 8).astype(np.uint8)
        picture = Image.fromarray(upper)
    if picture.mode in ("I", "F", "LAB", "HSV"):
        what = {"I": "32-bit whole numbers", "F": "floating-point numbers"}.get(picture.mode, picture.mode)
        raise DecodeError(
            f"this {kind} holds {what}, which have no place in 8-bit {mode}",
            fix="Read its bytes with a decoder of your own (decode={field: function}), or store it as npy",
        )
    if mode != "RGBA":
        picture.info.pop("transparency", None)  # else Pillow blends it into the palette, or warns
    array = np.asarray(picture if picture.mode == mode else picture.convert(mode))
    return array[:, :, None] if mode == "L" else array
