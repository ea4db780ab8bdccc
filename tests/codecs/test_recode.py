"""Pictures made smaller while they are packed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from streamio.codecs import decode_image, recode
from streamio.codecs.sniff import Head, read_head
from streamio.errors import DecodeError, UsageError
from streamio.image import Resize
from tests.samples import jpg, png


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (90, 60), **options: Any) -> bytes:
    coarse = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode).save(out, kind, **options)
    return out.getvalue()


def size_of(data: bytes) -> tuple[int, int]:
    head = read_head(data)
    assert head is not None and head.orientation == 1
    return head.width, head.height


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_kind_stays_and_the_picture_is_that_of_a_resize(kind: str) -> None:
    data = picture(kind)
    small = recode(data, resize_short=30)
    head = read_head(small)
    assert head is not None and (head.kind, head.width, head.height) == (kind.lower(), 45, 30)
    difference = decode_image(small).astype(int) - decode_image(data, Resize((30, 45)))
    assert np.abs(difference).mean() < 5
    assert recode(data, resize_short=30) == small


@pytest.mark.parametrize(("had", "has"), [(50, 85), (85, 85), (88, 88), (92, 92), (95, 95), (100, 95)])
def test_a_jpeg_made_smaller_has_the_quality_that_it_had_within_bounds(had: int, has: int) -> None:
    small = recode(picture("JPEG", quality=had), resize_short=30)
    tables = Image.open(io.BytesIO(small)).quantization  # type: ignore[attr-defined]
    assert tables == Image.open(io.BytesIO(picture("JPEG", quality=has))).quantization  # type: ignore[attr-defined]


@pytest.mark.parametrize(("stored", "sampling"), [(0, "444"), (1, "422"), (2, "420")])
def test_the_colour_of_a_jpeg_is_sampled_as_it_was(stored: int, sampling: str) -> None:
    data = picture("JPEG", subsampling=stored)
    for small in (recode(data, resize_short=30), recode(data, quality=80)):
        assert simplejpeg.decode_jpeg_header(small)[3] == sampling
    assert simplejpeg.decode_jpeg_header(recode(picture("JPEG", "L"), resize_short=30))[3] == "Gray"


@pytest.mark.parametrize("kind", ["BMP", "GIF", "TIFF", "PPM"])
def test_other_kinds_become_png(kind: str) -> None:
    assert read_head(recode(picture(kind), max_side=45)) == Head("png", 45, 30)


@pytest.mark.parametrize(
    "options", [{}, {"resize_short": 60}, {"max_side": 90}, {"resize_short": 500, "max_side": 900}]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
def test_the_same_bytes_where_nothing_has_to_change(kind: str, options: dict[str, int]) -> None:
    data = picture(kind)
    assert recode(data, **options) == data
    assert recode(memoryview(data), **options) == data


def test_a_turned_picture_keeps_its_bytes_or_is_written_upright() -> None:
    data = jpg(90, 60, exif=6)  # stands 60 wide, 90 high
    assert recode(data, resize_short=60) == data
    assert size_of(recode(data, resize_short=30)) == (30, 45)


def test_both_limits_hold_together() -> None:
    assert size_of(recode(picture("PNG", size=(400, 50)), resize_short=40, max_side=160)) == (160, 20)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 70) | st.none(), st.integers(1, 70) | st.none())
def test_sizes_shrink_to_the_limits_and_never_grow(
    width: int, height: int, short: int | None, side: int | None
) -> None:
    data = png(width, height)
    w, h = size_of(recode(data, resize_short=short, max_side=side))
    assert w <= width and h <= height
    assert side is None or max(w, h) <= side
    assert short is None or side is not None or min(w, h) == min(short, width, height)
    if short is None and side is None:
        assert (w, h) == (width, height)


def test_quality_writes_lossy_kinds_again_and_no_others() -> None:
    for kind in ("JPEG", "WEBP"):
        data = picture(kind, quality=100)
        assert len(recode(data, quality=40)) < len(data)
        assert size_of(recode(data, quality=40)) == (90, 60)
    assert recode(picture("PNG"), quality=40) == picture("PNG")
    assert recode(picture("PNG"), quality=40, max_side=45) == recode(picture("PNG"), max_side=45)
    with pytest.raises(UsageError, match="quality 0"):
        recode(picture("JPEG"), quality=0)


def test_transparency_and_grey_stay_and_cmyk_becomes_rgb() -> None:
    clear = io.BytesIO()
    Image.new("RGBA", (8, 8), (250, 0, 0, 100)).save(clear, "PNG")
    assert (decode_image(recode(clear.getvalue(), max_side=4), mode="RGBA")[..., 3] == 100).all()

    def mode(data: bytes) -> str:
        return Image.open(io.BytesIO(data)).mode

    assert mode(recode(picture("PNG"), max_side=4)) == "RGB"
    assert mode(recode(picture("JPEG", "L"), max_side=4)) == "L"
    assert mode(recode(picture("JPEG", "CMYK"), max_side=4)) == "RGB"


def test_what_is_no_picture_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="an HTML page"):
        recode(b"<html>", max_side=3)
    data = picture("JPEG")
    with pytest.raises(DecodeError, match="cut"):
        recode(data[:-300], max_side=30)
