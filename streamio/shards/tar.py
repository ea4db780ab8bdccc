"""Tar shards: a strict writer of WebDataset tars, and an index for any tar that WebDataset reads.

A member is named `<key>.<field>`; WebDataset splits at the first dot of the name's last part. The writer
percent-encodes what would not survive that, and `scan(path, escaped=True)` gives it back.

Files are mostly tiny, so headers and places are made for many members at once, in arrays.
"""

from __future__ import annotations

import os
import re
import tarfile
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamio.errors import CorruptShard, ShardWarning, UsageError
from streamio.shards.base import Row, ShardFormat
from streamio.shards.blockfile import BlockFile
from streamio.shards.index import Keys, ShardIndex
from streamio.shards.table import FieldTable
from streamio.shards.tarwalk import BLOCK, Member, TarWalk
from streamio.shards.writing import Names, decoded, discard, encoded, storage_error, storage_errors

_USTAR_LIMIT = 8 << 30
_AT_ONCE = 1 << 20
"""Bytes of members that wait for their headers, about."""
_HIDDEN_FROM_WEBDATASET = re.compile(r"__[^/]*__($|/)")


class TarPiece(NamedTuple):
    """Keys of the samples, and where their fields lie within the piece."""

    keys: list[bytes]
    table: FieldTable


class TarWriter:
    """Writes ustar headers, and pax ones for names and sizes that do not fit; no times, no owners."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = Names(path.name)
        self._table = FieldTable()
        self._waiting: list[tuple[int, str, bytes, bytes]] = []
        """Members that are to be written: row, field, name and value."""
        self._waiting_bytes = 0
        with storage_errors(path):
            self._file = BlockFile(path)

    def write_all(self, rows: Sequence[Row]) -> None:
        first = len(self._names)
        for row, (raw, (key, fields)) in enumerate(zip(self._names.add(rows), rows, strict=True), first):
            stem = escape(raw)
            for field, value in fields.items():
                if not isinstance(value, bytes):
                    raise UsageError(f"a tar holds bytes, not {type(value).__name__}", key=key, field=field)
                self._waiting.append((row, field, stem + _ending(field), value))
                self._waiting_bytes += BLOCK + len(value)
        if self._waiting_bytes >= _AT_ONCE:
            self._write_waiting()

    def write(self, key: str, fields: Mapping[str, bytes | NDArray[Any]]) -> None:
        self.write_all([(key, fields)])

    def cut(self) -> TarPiece:
        try:
            self._write_waiting()
            with storage_errors(self._path):
                self._file.flush()
            self._file.close()
        except BaseException:
            self.abort()
            raise
        return TarPiece(self._names.keys(), self._table)

    def append(self, path: Path, piece: TarPiece) -> None:
        self._table.extend(piece.table, len(self._names), self._file.size)
        self._names.extend(piece.keys)
        with storage_errors(self._path):
            self._file.take(path)

    def close(self) -> ShardIndex:
        try:
            self._write_waiting()
            with storage_errors(self._path):
                self._file.add((bytes(2 * BLOCK),), 2 * BLOCK)
                self._file.finish()
            self._file.close()
            return self._table.index(self._path, Keys.of_bytes(self._names.keys()))
        except BaseException:
            self.abort()
            raise

    def checksum(self) -> str:
        return self._file.checksum()

    def abort(self) -> None:
        discard(self._path, self._file.close)

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        rows, fields, names, values = zip(*self._waiting, strict=True)
        self._waiting, self._waiting_bytes = [], 0
        sizes = np.array(list(map(len, values)), np.int64)
        headers = member_headers(names, sizes)
        heads, pads = np.array(list(map(len, headers)), np.int64), -sizes % BLOCK
        ends = self._file.size + np.cumsum(heads + sizes + pads)
        self._table.add_all(fields, np.array(rows, np.int64), ends - pads - sizes, sizes)
        paddings = [_ZEROS[pad] for pad in pads.tolist()]
        pieces = [piece for member in zip(headers, values, paddings, strict=True) for piece in member]
        try:
            self._file.add(pieces, int(ends[-1]) - self._file.size)
        except OSError as error:
            raise storage_error(self._path, error) from error


def scan(path: Path, escaped: bool) -> ShardIndex:
    """Walk the headers of a tar. A sample's members may lie anywhere in it; keys come in the order in which
    they first appear.

    Warns (ShardWarning) of what was left out, and of a foreign tar that has no end mark or goes on behind
    it. Raises CorruptShard, naming the tar and the byte, for one that is cut or altered, for members that
    come twice, and for GNU sparse members.
    """
    rows: dict[str, int] = {}
    table, left_out = FieldTable(), LeftOut()
    with storage_errors(path), open(path, "rb") as file:
        walk = TarWalk(file.fileno(), path.name)
        if not walk.size:
            raise CorruptShard("is no tar: nothing (0 bytes)", fix="Copy it again", shard=path.name)
        for member in walk:
            key, field = sample_of(member, escaped, left_out)
            if key:
                table.add(field, rows.setdefault(key, len(rows)), member.offset, member.size)
        state = os.fstat(file.fileno())
    _report(path.name, walk, left_out, bool(rows), escaped)
    extra = {} if escaped else {"mtime_ns": str(state.st_mtime_ns), "size": str(state.st_size)}
    return table.index(path, Keys.of(list(rows)), extra)


def escape(key: bytes) -> bytes:
    """The key as it stands in member names.

    No dot is left in its last part, and no `__name__` at its start, which WebDataset takes for metadata.
    """
    if b"%" not in key and b"." not in key and not key.startswith(b"__"):
        return key
    folder, slash, last = key.replace(b"%", b"%25").rpartition(b"/")
    name = folder + slash + last.replace(b".", b"%2E")
    return b"%5F" + name[1:] if name.startswith(b"__") else name


def unescape(name: str) -> str:
    """The key again. Undoes exactly what `escape` does; other percent signs cannot occur."""
    return name.replace("%2E", ".").replace("%5F", "_").replace("%25", "%")


def member_headers(names: Sequence[bytes], sizes: NDArray[np.int64]) -> list[bytes]:
    """For each member one ustar block; where its name does not fit, or its size is 8 GiB or more, pax blocks."""
    bases = names
    blocks = np.zeros(len(names), _HEADER)
    if max(map(len, names)) > _NAME:
        blocks["prefix"], bases = zip(*map(_split_name, names), strict=True)
    blocks["name"], blocks["size"] = bases, _octal(sizes, 11)
    for part, value in _SAME_IN_ALL.items():
        blocks[part] = value
    # The checksum counts its own eight bytes as blanks.
    sums = blocks.view(np.uint8).reshape(-1, BLOCK).sum(1, np.int64) + 8 * ord(" ")
    blocks["checksum"], blocks["after_checksum"] = _octal(sums, 6), b"\0 "
    headers: list[bytes] = blocks.view(f"V{BLOCK}").tolist()
    too_long = np.array([len(base) for base in bases]) > _NAME
    for at in np.flatnonzero(too_long | (sizes >= _USTAR_LIMIT)).tolist():
        headers[at] = _pax(names[at], int(sizes[at]))
    return headers


def footprint(sizes: Sequence[int]) -> int:
    """A header and the payload up to the next block, for each field. Exact for names that fit into ustar."""
    return sum(BLOCK + size + -size % BLOCK for size in sizes)


TAR = ShardFormat(
    name="tar", suffix=".tar", takes_arrays=False, footprint=footprint, create=TarWriter, scan=scan, in_pieces=True
)

_NAME, _PREFIX = 100, 155
_HEADER = np.dtype([
    ("name", f"S{_NAME}"), ("mode", "S8"), ("uid", "S8"), ("gid", "S8"), ("size", "S12"), ("mtime", "S12"),
    ("checksum", "S6"), ("after_checksum", "S2"), ("kind", "S1"), ("link", "S100"), ("magic", "S8"),
    ("owner", "S32"), ("group", "S32"), ("major", "S8"), ("minor", "S8"), ("prefix", f"S{_PREFIX}"),
    ("rest", "S12"),
])  # fmt: skip
"""POSIX.1-2017, "pax", ustar Interchange Format."""
_SAME_IN_ALL = {
    "mode": b"0000644", "uid": b"0000000", "gid": b"0000000", "mtime": b"00000000000", "kind": b"0",
    "magic": b"ustar\x0000", "major": b"0000000", "minor": b"0000000",
}  # fmt: skip
_ZEROS = tuple(map(bytes, range(BLOCK)))


@lru_cache(4096)
def _ending(field: str) -> bytes:
    return b"." + encoded(field)


def _split_name(name: bytes) -> tuple[bytes, bytes]:
    """(prefix, name) that fit, joined by a slash; ("", name) where that need not or cannot be."""
    if len(name) <= _NAME:
        return b"", name
    slash = name.find(b"/", len(name) - _NAME - 1)
    if 0 < slash <= _PREFIX and slash < len(name) - 1:
        return name[:slash], name[slash + 1 :]
    return b"", name


def _octal(numbers: NDArray[np.int64], digits: int) -> NDArray[np.bytes_]:
    places = np.arange(3 * digits - 3, -1, -3)
    return ((numbers[:, None] >> places & 7) + ord("0")).astype(np.uint8).view(f"S{digits}")[:, 0]


def _pax(name: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(decoded(name))
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class LeftOut:
    """Counts members that are no part of a sample, with the first name of each kind."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, str]] = {}

    def add(self, kind: str, name: str) -> tuple[str, str]:
        count, first = self._kinds.get(kind, (0, name))
        self._kinds[kind] = (count + 1, first)
        return "", ""

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {kind} ({first!r})" for kind, (count, first) in self._kinds.items())


def sample_of(member: Member, escaped: bool, left_out: LeftOut) -> tuple[str, str]:
    """(key, field) of a member, or ("", "") for one that is left out."""
    name = member.name
    if member.is_folder:
        return "", ""
    if not member.is_file:
        return left_out.add("links or devices", name)
    if not escaped:
        while name.startswith("./"):
            name = name[2:].lstrip("/")
    folder, slash, last = name.rpartition("/")
    if last.startswith("._"):
        return left_out.add("AppleDouble files", member.name)
    if _HIDDEN_FROM_WEBDATASET.match(name):
        return left_out.add("WebDataset metadata", member.name)
    base, _, field = last.partition(".")
    if not base or not field:
        return left_out.add("without a key or an extension", member.name)
    key = folder + slash + base
    return (unescape(key), field) if escaped else (key, field.lower())


def _report(shard: str, walk: TarWalk, left_out: LeftOut, any_samples: bool, escaped: bool) -> None:
    notes = [f"left out {left_out}"] if str(left_out) else []
    if walk.joined:
        places = ", ".join(f"{at:,}" for at in walk.joined[:3])
        notes.append(f"data goes on after the end mark, at byte {places}; it was read as well")
    if not walk.ended:
        found = f"no end of archive: it stops at byte {walk.size:,} without the closing zero blocks"
        if escaped:
            raise CorruptShard(found, fix="The shard is cut; copy it again or pack it again", shard=shard)
        notes.append(f"{found}, so members may be missing")
    if not any_samples and not escaped:
        zeros = f"all its {walk.size:,} bytes are zero, so it holds " if walk.only_zeros else ""
        notes.append(f"{zeros}0 samples")
    if notes:
        warnings.warn(f"{shard}: {'. '.join(notes)}", ShardWarning, stacklevel=3)
