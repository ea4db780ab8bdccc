"""Kinds, sizes and lookalikes, from the first bytes."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamio.codecs.sniff import Head, looks_like, picture_kind, read_head
from tests.samples import jpg


def saved(kind: str, mode: str = "RGB", size: tuple[int, int] = (37, 21), **options: Any) -> bytes:
    out = io.BytesIO()
    Image.new(mode, size).save(out, kind, **options)
    return out.getvalue()


EXIF = Image.Exif()
EXIF[0x112] = 6

HEADS = [
    ("jpeg", saved("JPEG"), 3),
    ("jpeg", saved("JPEG", progressive=True), 3),
    ("jpeg", saved("JPEG", "L"), 1),
    ("jpeg", saved("JPEG", "CMYK"), 4),
    ("png", saved("PNG"), 0),
    ("webp", saved("WEBP"), 0),
    ("webp", saved("WEBP", lossless=True), 0),
    ("webp", saved("WEBP", "RGBA"), 0),
    ("gif", saved("GIF", "P"), 0),
    ("bmp", saved("BMP"), 0),
    ("tiff", saved("TIFF"), 0),
    ("tiff", saved("TIFF", big_tiff=True), 0),
    ("pnm", saved("PPM"), 0),
    ("pnm", saved("PPM", "1"), 0),
    ("pnm", b"P5 # first\n# second\n 37\n# third\n21 255\n" + bytes(37 * 21), 0),
    ("bmp", b"BM" + bytes(12) + struct.pack("<IHHHH", 12, 37, 21, 1, 24) + bytes(100), 0),  # OS/2
    ("bmp", b"BM" + bytes(12) + struct.pack("<Iii", 40, 37, -21) + bytes(100), 0),  # rows from the top
]


@pytest.mark.parametrize(("kind", "data", "channels"), HEADS)
def test_size_and_kind_come_from_the_header(kind: str, data: bytes, channels: int) -> None:
    assert read_head(data) == Head(kind, 37, 21, 1, channels)
    assert read_head(memoryview(data)) == read_head(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation_comes_from_the_header(kind: str) -> None:
    head = read_head(saved(kind, exif=EXIF))
    assert head is not None and head.orientation == 6
    assert (head.width, head.height) == (37, 21) and head.upright == (21, 37)


def test_orientation_is_found_at_the_end_of_a_png_and_behind_a_prefix_in_webp() -> None:
    data = saved("PNG", exif=EXIF)
    at = data.index(b"eXIf") - 4
    end = at + 12 + int.from_bytes(data[at : at + 4], "big")
    moved = data[:at] + data[end:-12] + data[at:end] + data[-12:]
    assert read_head(moved) == Head("png", 37, 21, 6)
    webp = saved("WEBP", exif=b"Exif\0\0" + EXIF.tobytes().removeprefix(b"Exif\0\0"))
    assert read_head(webp) == Head("webp", 37, 21, 6)


def test_every_cut_of_a_header_is_none_or_the_whole_truth() -> None:
    for kind, data, channels in HEADS:
        for end in range(min(len(data), 700)):
            assert read_head(data[:end]) in (None, Head(kind, 37, 21, 1, channels))


def test_a_picture_without_pixels_is_none() -> None:
    assert read_head(b"GIF89a" + bytes(20)) is None
    assert read_head(b"P6 0 5 255\n") is None


def zipped() -> bytes:
    out = io.BytesIO()
    zipfile.ZipFile(out, "w").writestr("a", b"a")
    return out.getvalue()


def npy() -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(3))
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"", "nothing (0 bytes)"),
        (bytes(300), "only zero bytes"),
        (gzip.compress(jpg(), mtime=0), "a gzip file"),
        (zipped(), "a zip file"),
        (npy(), "an npy array"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "a git-lfs pointer"),
        (b"%PDF-1.7\n%\xe2\xe3", "a PDF"),
        (b"\n<!DOCTYPE html><html><body>403</body>", "an HTML page"),
        (b"<?xml version='1.0'?>\n<svg xmlns=''>", "an SVG drawing"),
        (b"<?xml version='1.0'?><Error>AccessDenied</Error>", "an XML file"),
        (json.dumps({"error": "no such key"}).encode(), "JSON"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC picture"),
        (b"\0\0\0\x18ftypavif\0\0\0\0", "an AVIF picture"),
        (b"\0\0\0\x18ftypisom\0\0\0\0", "an MP4 video"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL picture"),
        (b"Not Found\n", "text"),
        (b"\x01\x02\x03abcdefgh", "unknown bytes that start with 01 02 03 61 62 63 64 65"),
    ],
)
def test_what_is_no_picture_is_named(data: bytes, name: str) -> None:
    assert picture_kind(data) is None and read_head(data) is None
    assert looks_like(data).startswith(name)
