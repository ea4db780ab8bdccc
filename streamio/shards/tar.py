"""Tar shards: a strict writer of WebDataset tars, and an index for any tar that WebDataset reads.

A member is named `<key>.<field>`; WebDataset splits at the first dot of the name's last part. The writer
percent-encodes what would not survive that, and `scan(path, escaped=True)` gives it back.
"""

from __future__ import annotations

import os
import re
import tarfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from streamio.errors import CorruptShard, ShardWarning, UsageError
from streamio.shards.base import ShardFormat
from streamio.shards.blockfile import BlockFile
from streamio.shards.index import Keys, ShardIndex
from streamio.shards.table import FieldTable
from streamio.shards.tarwalk import BLOCK, Member, TarWalk
from streamio.shards.writing import Names, decoded, discard, encoded, storage_error, storage_errors

_USTAR_LIMIT = 8 << 30
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
        with storage_errors(path):
            self._file = BlockFile(path)

    def write(self, key: str, fields: Mapping[str, bytes | NDArray[Any]]) -> None:
        row = len(self._names)
        stem = escape(self._names.add(key, fields))
        pieces: list[bytes] = []
        at = self._file.size
        for field, value in fields.items():
            if not isinstance(value, bytes):
                raise UsageError(f"a tar holds bytes, not {type(value).__name__}", key=key, field=field)
            size = len(value)
            header = member_header(b"%b.%b" % (stem, encoded(field)), size)
            padding = bytes(-size % BLOCK)
            at += len(header)
            self._table.add(field, row, at, size)
            at += size + len(padding)
            pieces += header, value, padding
        try:
            self._file.add(pieces, at - self._file.size)
        except OSError as error:
            raise storage_error(self._path, error) from error

    def cut(self) -> TarPiece:
        try:
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


def member_header(name: bytes, size: int) -> bytes:
    """One ustar block where the name fits and the size is under 8 GiB; pax blocks before it otherwise."""
    prefix, base = _split_name(name) if len(name) > 100 else (b"", name)
    if len(base) > 100 or size >= _USTAR_LIMIT:
        info = tarfile.TarInfo(decoded(name))
        info.size = size
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    digits = b"%011o" % size
    total = _FIXED_SUM + sum(base) + sum(prefix) + sum(digits)
    return b"".join((base.ljust(100, b"\0"), _OWNER, digits, _TIME, b"%06o\0 " % total, _MAGIC,
                     prefix.ljust(167, b"\0")))  # fmt: skip


def footprint(sizes: Sequence[int]) -> int:
    """A header and the payload up to the next block, for each field. Exact for names that fit into ustar."""
    return sum(BLOCK + size + -size % BLOCK for size in sizes)


TAR = ShardFormat(
    name="tar", suffix=".tar", takes_arrays=False, footprint=footprint, create=TarWriter, scan=scan, in_pieces=True
)

_OWNER = b"0000644\0" + b"0000000\0" * 2
_TIME = b"\0" + b"00000000000\0"
_MAGIC = b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2
_FIXED_SUM = sum(_OWNER) + sum(_TIME) + sum(_MAGIC) + 8 * 0x20


def _split_name(name: bytes) -> tuple[bytes, bytes]:
    """(prefix, name) of at most 155 and 100 bytes, joined by a slash, for a longer one; ("", name) where that
    cannot be."""
    slash = name.find(b"/", len(name) - 101)
    if 0 < slash <= 155 and slash < len(name) - 1:
        return name[:slash], name[slash + 1 :]
    return b"", name


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
