"""What bytes are, by their content: kind, size and orientation of a picture, read from its header alone.

Nothing here decodes, and nothing raises: what cannot be read is None. Pictures in the wild are misnamed,
cut and hostile, so every offset is checked by `struct` or by slicing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from streamio.codecs.base import Data

_LOOKALIKES: tuple[tuple[re.Pattern[bytes], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), name)
    for pattern, name in (
        (rb"\Z", "nothing (0 bytes)"),
        (rb"\0+\Z", "only zero bytes"),
        (rb"\x1f\x8b", "a gzip file"),
        (rb"\x28\xb5\x2f\xfd", "a zstd file"),
        (rb"PK\x03\x04", "a zip file"),
        (rb"version https://git-lfs", "a git-lfs pointer, not the file itself (run 'git lfs pull')"),
        (rb"%PDF-", "a PDF"),
        (rb"....ftyp(heic|heix|mif1|msf1)", "a HEIC picture"),
        (rb"....ftypavi[fs]", "an AVIF picture"),
        (rb"....ftyp", "an MP4 video"),
        (rb"\0\0\0\x0cjXL |\0\0\0\x0cJXL |\xff\x0a", "a JPEG XL picture"),
        (rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51", "a JPEG 2000 picture"),
        (rb"\x93NUMPY", "an npy array"),
        (rb"\x89HDF", "an HDF5 file"),
        (rb"\s*(<!doctype html|<html)", "an HTML page"),
        (rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?<svg", "an SVG drawing"),
        (rb"\s*<\?xml", "an XML file"),
        (rb"\s*[\[{]\s*[\"\[{\]}]", "JSON"),
        (rb"[\t\n\r\x20-\x7e]+\Z", "text"),
    )
)

_EXIF = b"Exif\0\0"
_SMALL = 1 << 14
"""Up to so many bytes a search is faster than going from chunk to chunk."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the header of a picture says.

    kind:        jpeg, png, webp, bmp, gif, tiff or pnm.
    width, height: as stored, before the orientation is applied.
    orientation: EXIF, 1 to 8; above 4 width and height are swapped to stand upright.
    channels:    components of a JPEG; 0 for other kinds.
    """

    kind: str
    width: int
    height: int
    orientation: int = 1
    channels: int = 0

    @property
    def upright(self) -> tuple[int, int]:
        """(width, height) after the orientation is applied."""
        return (self.height, self.width) if self.orientation > 4 else (self.width, self.height)


def picture_kind(data: Data) -> str | None:
    """The kind of picture that the first bytes announce, or None."""
    start = bytes(data[:16])
    if start.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if start.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return "tiff"
    if start.startswith(b"BM") and len(start) == 16:
        return "bmp"
    if re.match(rb"P[1-6]\s", start):
        return "pnm"
    return None


def read_head(data: Data) -> Head | None:
    """The header of a picture; None if these bytes are none, or its header is cut or makes no sense.

    Touches the first bytes of most files; of a TIFF its directory, of PNG and WebP the chunk headers, as
    both may carry the orientation at their end.
    """
    kind = picture_kind(data)
    if kind is None:
        return None
    view = memoryview(data)
    try:
        head = _READ[kind](view)
    except (struct.error, IndexError, ValueError):
        return None
    return head if head is not None and head.width > 0 and head.height > 0 else None


def looks_like(data: Data) -> str:
    """A few words for bytes that are no picture: `a gzip file`, `nothing (0 bytes)`, `bytes 00 01 …`."""
    start = bytes(data[:200])
    for pattern, name in _LOOKALIKES:
        if pattern.match(start):
            return name
    return f"unknown bytes that start with {start[:8].hex(' ')}"


def _word(data: memoryview, at: int, size: int = 4) -> bytes:
    return bytes(data[at : at + size])


def _jpeg(data: memoryview) -> Head | None:
    at, orientation, size = 2, 1, len(data)
    while at + 4 <= size:
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0, 0xFF):  # stray and fill bytes, which every decoder skips
            at += 1
            continue
        if marker == 1 or 0xD0 <= marker <= 0xD8:  # no length follows
            at += 2
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width, channels = struct.unpack_from(">HHB", data, at + 5)
            return Head("jpeg", width, height, orientation, channels)
        if marker in (0xD9, 0xDA) or length < 2:
            return None
        if marker == 0xE1 and orientation == 1 and _word(data, at + 4, 6) == _EXIF:
            orientation = _orientation(data[at + 10 : at + 2 + length])
        at += 2 + length
    return None


def _png(data: memoryview) -> Head | None:
    if _word(data, 12) != b"IHDR":
        return None
    width, height = struct.unpack_from(">II", data, 16)
    at, size = 8, len(data)
    if size <= _SMALL and b"eXIf" not in bytes(data):
        return Head("png", width, height)
    while at + 12 <= size:
        length: int = struct.unpack_from(">I", data, at)[0]
        if _word(data, at + 4) == b"eXIf":
            return Head("png", width, height, _orientation(data[at + 8 : at + 8 + length]))
        at += 12 + length
    return Head("png", width, height)


def _webp(data: memoryview) -> Head | None:
    first = _word(data, 12)
    if first == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return Head("webp", width & 0x3FFF, height & 0x3FFF)
    if first == b"VP8L":
        bits: int = struct.unpack_from("<I", data, 21)[0]
        return Head("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if first != b"VP8X" or len(data) < 30:
        return None
    width = int.from_bytes(data[24:27], "little") + 1
    height = int.from_bytes(data[27:30], "little") + 1
    has_exif = data[20] & 8
    return Head("webp", width, height, _webp_orientation(data) if has_exif else 1)


def _webp_orientation(data: memoryview) -> int:
    at, size = 12, len(data)
    while at + 8 <= size:
        length: int = struct.unpack_from("<I", data, at + 4)[0]
        if _word(data, at) == b"EXIF":
            exif = data[at + 8 : at + 8 + length]
            # Some writers keep the prefix that only JPEG needs.
            return _orientation(exif[6:] if _word(exif, 0, 6) == _EXIF else exif)
        at += 8 + length + (length & 1)
    return 1


def _gif(data: memoryview) -> Head:
    return Head("gif", *struct.unpack_from("<HH", data, 6))


def _bmp(data: memoryview) -> Head:
    core: bool = struct.unpack_from("<I", data, 14)[0] == 12
    width, height = struct.unpack_from("<HH" if core else "<ii", data, 18)
    return Head("bmp", width, abs(height))


_PNM = re.compile(rb"P[1-6](?:\s+(?:#[^\n]*\n\s*)*)(\d+)(?:\s+(?:#[^\n]*\n\s*)*)(\d+)\s")


def _pnm(data: memoryview) -> Head | None:
    found = _PNM.match(bytes(data[:4096]))
    return Head("pnm", int(found[1]), int(found[2])) if found else None


def _tiff(data: memoryview) -> Head:
    tags = dict(_first_directory(data))
    return Head("tiff", tags.get(256, 0), tags.get(257, 0), _valid(tags.get(274, 1)))


def _orientation(exif: memoryview) -> int:
    """The orientation of an EXIF block, which is a small TIFF; 1 where there is none or it is damaged."""
    try:
        return _valid(dict(_first_directory(exif)).get(274, 1))
    except (struct.error, ValueError, IndexError):
        return 1


def _valid(orientation: int) -> int:
    return orientation if 1 <= orientation <= 8 else 1


def _first_directory(tiff: memoryview) -> Iterator[tuple[int, int]]:
    """(tag, value) of the first directory of a TIFF or BigTIFF, single whole numbers only."""
    order = {b"II": "<", b"MM": ">"}[bytes(tiff[:2])] if bytes(tiff[:2]) in (b"II", b"MM") else ""
    if not order:
        return
    big = struct.unpack_from(order + "H", tiff, 2)[0] == 43
    offset: int = struct.unpack_from(order + ("Q" if big else "I"), tiff, 8 if big else 4)[0]
    if offset + 2 > len(tiff):
        return
    count: int = struct.unpack_from(order + ("Q" if big else "H"), tiff, offset)[0]
    start, step, value = (offset + 8, 20, 12) if big else (offset + 2, 12, 8)
    for at in range(start, min(start + count * step, len(tiff) - step + 1), step):
        tag, kind = struct.unpack_from(order + "HH", tiff, at)
        form = {3: "H", 4: "I", 16: "Q"}.get(kind)
        if form is not None:
            yield tag, struct.unpack_from(order + form, tiff, at + value)[0]


_READ = {"jpeg": _jpeg, "png": _png, "webp": _webp, "gif": _gif, "bmp": _bmp, "pnm": _pnm, "tiff": _tiff}
