"""Walks the headers of any tar, its own or foreign, and never reads a payload.

Understands ustar, pax (local and global headers, sizes beyond 8 GiB, names that are not UTF-8), GNU long
names and base-256 sizes, and old headers without a magic. POSIX.1-2017, "pax", ustar Interchange Format;
GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from streamio.codecs.sniff import looks_like
from streamio.errors import CorruptShard
from streamio.shards.writing import decoded

BLOCK = 512
_ZERO = bytes(BLOCK)
_CHUNK = 1 << 20
_LONGEST_RECORD = 16 << 20
_NO_PAYLOAD = frozenset(b"123456")  # links, devices, folders, pipes: a size here is no size on disk
_REGULAR = frozenset(b"\x0007")
_PAX = frozenset(b"xX")
_PAX_GLOBAL = ord("g")
_LONG_NAME, _LONG_LINK, _SPARSE = ord("L"), ord("K"), ord("S")
_AGAIN = "Copy the tar again, or write it again"


class Member(NamedTuple):
    """One member: its name as stored, whether it is a file, and where its payload lies."""

    name: str
    is_file: bool
    is_folder: bool
    offset: int
    size: int


class TarWalk:
    """Iterate over the members of an open tar, once.

    Afterwards `ended` says whether an end mark was there, `joined` where data went on behind one (tars joined
    with cat), and `only_zeros` whether there was anything at all.
    """

    def __init__(self, fd: int, shard: str) -> None:
        self._fd = fd
        self._shard = shard
        self.size = os.fstat(fd).st_size
        self.at = 0
        self.ended = False
        self.only_zeros = False
        self.joined: list[int] = []

    def __iter__(self) -> Iterator[Member]:
        shared: dict[str, bytes] = {}
        own: dict[str, bytes] = {}
        while (header := self._next_header()) is not None:
            start, kind = self.at, header[156]
            if kind in _PAX:
                own |= self._records(self._payload(header))
            elif kind == _PAX_GLOBAL:
                shared |= self._records(self._payload(header))
            elif kind == _LONG_NAME:
                own["path"] = self._payload(header).split(b"\0", 1)[0]
            elif kind == _LONG_LINK:
                self._payload(header)
            else:
                yield self._member(header, start, {**shared, **own} if shared else own)
                own = {}

    def _read(self, length: int, at: int) -> bytes:
        """Up to `length` bytes from there; fewer only at the end of the tar."""
        return os.pread(self._fd, length, at)

    def _member(self, header: bytes, start: int, records: dict[str, bytes]) -> Member:
        kind = header[156]
        raw = records.get("path") or _name(header)
        name = decoded(raw)
        if kind == _SPARSE or any(record.startswith("GNU.sparse.") for record in records):
            name = decoded(records.get("GNU.sparse.name", raw))
            raise CorruptShard(
                f"{name!r}, at byte {start:,}, is a GNU sparse member, whose bytes are not stored as they are",
                fix="Write the tar again without --sparse", shard=self._shard,
            )  # fmt: skip
        size = 0
        if kind not in _NO_PAYLOAD:
            size = self._decimal(records["size"], start) if records.get("size") else self._number(header, start)
        self._advance(start, size, name)
        is_folder = kind == ord("5") or (kind == 0 and raw.endswith(b"/"))
        return Member(name, kind in _REGULAR and not is_folder, is_folder, start + BLOCK, size)

    def _advance(self, start: int, size: int, name: str) -> None:
        """Step over a payload, which must lie within the file; its padding need not."""
        found = self.size - start - BLOCK
        if size > found:
            raise CorruptShard(
                f"{name!r}, at byte {start:,}: expected {size:,} bytes, found {found:,}; the tar is cut",
                fix=_AGAIN, shard=self._shard,
            )  # fmt: skip
        self.at = start + BLOCK + size + -size % BLOCK

    def _next_header(self) -> bytes | None:
        """The header at `at`, behind any zero blocks; None at the end of the file."""
        block = self._read(BLOCK, self.at)
        if not block.strip(b"\0"):
            if not block:
                return None
            self.ended = True
            start, self.at = self.at, self._skip_zeros(self.at)
            if self.at >= self.size:
                self.only_zeros = start == 0
                return None
            self.joined.append(self.at)
            self.ended = False
            block = self._read(BLOCK, self.at)
        self._verify(block)
        return block

    def _verify(self, block: bytes) -> None:
        if len(block) < BLOCK and self.at:
            raise CorruptShard(
                f"expected a header of {BLOCK} bytes at byte {self.at:,}, found {len(block)}; the tar is cut",
                fix=_AGAIN, shard=self._shard,
            )  # fmt: skip
        total = sum(block) - sum(block[148:156]) + 8 * 0x20
        stored = _octal(block[148:156])
        if total == stored or (stored is not None and total - 256 * _negative(block) == stored):
            return
        found = looks_like(self._read(200, self.at))
        if self.at == 0:
            raise CorruptShard(f"is no tar: {found}", fix=_fix_for(found), shard=self._shard)
        raise CorruptShard(
            f"the header at byte {self.at:,} has a wrong checksum (found {found})", fix=_AGAIN, shard=self._shard
        )

    def _skip_zeros(self, at: int) -> int:
        """Start of the first block from `at` on that holds anything else, or the end of the file."""
        length = BLOCK
        while chunk := self._read(length, at):
            zeros = len(chunk) - len(chunk.lstrip(b"\0"))
            if zeros < len(chunk):
                return at + zeros // BLOCK * BLOCK
            at += len(chunk)
            length = _CHUNK
        return at

    def _payload(self, header: bytes) -> bytes:
        """The payload of a header that speaks of the next member."""
        start = self.at
        size = self._number(header, start)
        if size > _LONGEST_RECORD:
            raise self._bad(start, f"an extended header of {size:,} bytes; the limit is {_LONGEST_RECORD:,}")
        self._advance(start, size, decoded(_name(header)))
        return self._read(size, start + BLOCK)

    def _records(self, data: bytes) -> dict[str, bytes]:
        """The pax records `length key=value\\n`; an empty value takes back a global one."""
        records: dict[str, bytes] = {}
        at = 0
        while at < len(data) and data[at]:
            digits = data[at : at + 20].split(b" ", 1)[0]
            end = at + (int(digits) if digits.isdigit() else 0)
            key, equals, value = data[at + len(digits) + 1 : end - 1].partition(b"=")
            if not equals or data[end - 1 : end] != b"\n" or end <= at:
                raise self._bad(self.at, f"the pax header before it is malformed: {data[at : at + 40]!r}")
            records[decoded(key)] = value
            at = end
        return records

    def _number(self, header: bytes, start: int) -> int:
        field = header[124:136]
        if field[0] & 0x80:  # base 256, big-endian; 0xff would be negative
            size = int.from_bytes(field, "big") & ~(0x80 << 88)
            return size if field[0] == 0x80 else self._no_size(field, start)
        octal = _octal(field)
        return self._no_size(field, start) if octal is None else octal

    def _decimal(self, value: bytes, start: int) -> int:
        return int(value) if value.isdigit() else self._no_size(value, start)

    def _no_size(self, value: bytes, start: int) -> int:
        raise self._bad(start, f"{value!r} is no size")

    def _bad(self, start: int, found: str) -> CorruptShard:
        return CorruptShard(f"the header at byte {start:,}: {found}", fix=_AGAIN, shard=self._shard)


def _name(header: bytes) -> bytes:
    """Name of a header, with the prefix that only ustar has there (GNU keeps times in its place)."""
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _octal(field: bytes) -> int | None:
    digits = field.split(b"\0", 1)[0].strip() or b"0"
    return int(digits, 8) if not digits.strip(b"01234567") else None


def _negative(block: bytes) -> int:
    """Bytes above 127 outside the checksum: some old tars summed them as signed."""
    return sum(byte > 127 for byte in block[:148] + block[156:])


def _fix_for(found: str) -> str:
    if "gzip" in found or "zstd" in found:
        return "streamio maps shards into memory, so they must not be compressed: unpack it first"
    return "Check where the file came from"
