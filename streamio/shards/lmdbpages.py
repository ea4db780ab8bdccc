"""Walks the pages of an LMDB file and says where each value lies; the lmdb library is not needed.

Reads leaf pages only, never a value, so a large shard is indexed at the cost of its keys. And a file that was
cut or altered gives an error, where the library's map would end the process with SIGBUS (or read rubbish).

Layout (LMDB 0.9, data version 1, 64 bits, little-endian; `docs/format.md` has the tables): pages 0 and 1 are
meta pages, the one with the higher transaction number counts; it names the root of a B+ tree of branch and
leaf pages; a value over half a page lies on overflow pages of its own, behind one page header.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from streamio.codecs.sniff import looks_like
from streamio.errors import CorruptShard

_META = struct.Struct("<IIQQ")  # magic, version, address, map size
_TREE = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf and overflow pages, entries, root
_LAST = struct.Struct("<QQ")  # last page, transaction number
_PAGE = struct.Struct("<QHHHH")  # page number, pad, flags, lower, upper
_NODE = struct.Struct("<HHHH")  # low and high half of a number, flags, key size
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF = 0x01, 0x02
_BIG = 0x01
_NO_ROOT = (1 << 64) - 1
_DEEPEST = 32  # the library's own limit
_AGAIN = "Copy the shard again or pack it again"


class Entry(NamedTuple):
    key: bytes
    offset: int
    size: int


class LmdbPages:
    """Iterate over the entries of an open LMDB file, in the order of their keys. Offsets lie within the file.

    Raises CorruptShard, naming shard and page.
    """

    def __init__(self, fd: int, shard: str) -> None:
        self._fd = fd
        self._shard = shard
        self._size = os.fstat(fd).st_size
        head = os.pread(fd, 200, 0)
        if len(head) < 152 or _META.unpack_from(head, _PAGE.size)[0] != _MAGIC:
            raise self._bad(f"is no LMDB file: {looks_like(head)}")
        self._page_size: int = _TREE.unpack_from(head, _PAGE.size + _META.size)[0]
        if self._page_size not in (1 << power for power in range(9, 16)):
            raise self._bad(f"a page size of {self._page_size:,} bytes")
        self._last = -1  # not known until the meta pages are read
        self._root, self._last, _ = max((self._meta(page) for page in (0, 1)), key=lambda meta: meta[2])

    def __iter__(self) -> Iterator[Entry]:
        previous = b""
        for entry in self._below(self._root, 0) if self._root != _NO_ROOT else ():
            if entry.key <= previous:
                raise self._bad(f"the keys {previous[:40]!r} and {entry.key[:40]!r} are out of order")
            previous = entry.key
            yield entry

    def _meta(self, page: int) -> tuple[int, int, int]:
        """(root page, last page, transaction number) of a meta page."""
        data = self._read(page)
        magic, version, _, _ = _META.unpack_from(data, _PAGE.size)
        if magic != _MAGIC or version != _VERSION:
            raise self._bad(f"magic {magic:#x} and data version {version}; this reads version {_VERSION}", page)
        main = _PAGE.size + _META.size + _TREE.size
        last, transaction = _LAST.unpack_from(data, main + _TREE.size)
        return _TREE.unpack_from(data, main)[7], last, transaction

    def _below(self, page: int, depth: int) -> Iterator[Entry]:
        data = self._read(page)
        number, _, flags, lower, _ = _PAGE.unpack_from(data)
        if number != page or flags & (_BRANCH | _LEAF) not in (_BRANCH, _LEAF) or depth > _DEEPEST:
            raise self._bad(f"no branch or leaf (number {number}, flags {flags:#x}, depth {depth})", page)
        if not _PAGE.size <= lower <= self._page_size:
            raise self._bad(f"a table of nodes that ends at {lower}", page)
        for at in struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", data, _PAGE.size):
            if at + _NODE.size > self._page_size:
                raise self._bad(f"a node at {at}", page)
            if flags & _BRANCH:
                low, high, top, _ = _NODE.unpack_from(data, at)
                yield from self._below(low | high << 16 | top << 32, depth + 1)
            else:
                yield self._entry(data, at, page)

    def _entry(self, data: bytes, at: int, page: int) -> Entry:
        low, high, flags, key_size = _NODE.unpack_from(data, at)
        size, start = low | high << 16, at + _NODE.size + key_size
        if flags & ~_BIG or start + (8 if flags & _BIG else size) > self._page_size:
            raise self._bad(f"the node at {at} does not fit (flags {flags}, {key_size} and {size:,} bytes)", page)
        offset = page * self._page_size + start
        if flags & _BIG:
            offset = int.from_bytes(data[start : start + 8], "little") * self._page_size + _PAGE.size
        if offset + size > self._size:
            raise self._cut(offset + size)
        return Entry(data[start - key_size : start], offset, size)

    def _read(self, page: int) -> bytes:
        data = os.pread(self._fd, self._page_size, page * self._page_size) if page < 1 << 47 else b""
        if len(data) < self._page_size:
            raise self._cut((page + 1) * self._page_size)
        return data

    def _cut(self, needed: int) -> CorruptShard:
        written = (self._last + 1) * self._page_size
        if needed > written > 0:
            return self._bad(f"a value that ends at byte {needed:,} of {written:,}")
        expected = max(needed, written)
        return self._bad(f"expected {expected:,} bytes, found {self._size:,}; the shard is cut")

    def _bad(self, found: str, page: int | None = None) -> CorruptShard:
        return CorruptShard(found, fix=_AGAIN, shard=self._shard, page=page)
