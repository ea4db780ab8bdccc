"""Small inputs that tests share: folders, tars that nobody tidied up, pictures, damage."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from PIL import Image


def tree(root: str | Path, files: Mapping[str, bytes]) -> Path:
    """Write {"a/b.jpg": bytes} below `root`."""
    for name, data in files.items():
        path = Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Path(root)


def raw_tar(path: str | Path, members: Iterable[tuple[str, bytes]], fmt: int = tarfile.USTAR_FORMAT) -> Path:
    """A tar with these members in this order, nothing tidied up."""
    with tarfile.open(path, "w", format=fmt) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return Path(path)


def big_tar(path: str | Path, fmt: int) -> Path:
    """A sparse tar of 8 GiB + 1 byte (8 KiB on disk): `big.bin`, a hole, and `z.txt` = b"end"."""
    big = tarfile.TarInfo("big.bin")
    big.size = 8 * 2**30 + 1
    small = tarfile.TarInfo("z.txt")
    small.size = 3
    with open(path, "wb") as file:
        file.write(big.tobuf(fmt))
        file.seek(file.tell() + (big.size + 511) // 512 * 512)
        file.write(small.tobuf(tarfile.USTAR_FORMAT) + b"end".ljust(512, b"\0") + bytes(1024))
    return Path(path)


def jpg(
    w: int = 8, h: int = 8, mode: str = "RGB", colour: object = (200, 30, 30), exif: int | None = None
) -> bytes:
    """A JPEG of one colour, optionally with an EXIF orientation."""
    picture = Image.new(mode, (w, h), colour)  # type: ignore[arg-type]
    tags = picture.getexif()
    if exif:
        tags[0x112] = exif
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=95, exif=tags)
    return out.getvalue()


def png(w: int = 8, h: int = 8, mode: str = "RGB", colour: object = (200, 30, 30)) -> bytes:
    """A PNG of one colour."""
    out = io.BytesIO()
    Image.new(mode, (w, h), colour).save(out, "PNG")  # type: ignore[arg-type]
    return out.getvalue()


def flip(path: str | Path, offset: int) -> None:
    """Change one bit of one byte in a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def listing(path: str | Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder with its size and modification time, to show that nothing was touched."""
    return {
        str(p.relative_to(path)): (p.lstat().st_size, p.lstat().st_mtime_ns)
        for p in sorted(Path(path).rglob("*"))
        if os.path.lexists(p) and not p.is_dir()
    }
