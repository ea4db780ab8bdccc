"""LMDB shards: one file, one value per field of a sample, under the key `<row, 8 digits>.<field>`.

Written with the lmdb library, so that any LMDB binding reads them. (`import lmdb` is the library: a package's
own modules do not shadow it.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
from numpy.typing import NDArray

from streamio.errors import CorruptShard, UsageError
from streamio.shards.base import Row, ShardFormat
from streamio.shards.index import Keys, ShardIndex
from streamio.shards.lmdbpages import Entry, LmdbPages
from streamio.shards.manifest import file_checksum
from streamio.shards.table import FieldTable
from streamio.shards.writing import KEY, Names, decoded, discard, encoded, storage_errors

_KEY = KEY.encode()
_MAP = 64 << 20
_COMMIT = 32 << 20
_LONGEST_NAME = 511 - 9
_LARGEST_VALUE = (1 << 32) - 1
_MOST_ROWS = 10**8
_PAGE = 4096
_LEAF = _PAGE - 16
_IN_PAGE = 2038  # a node of more bytes puts its value on pages of its own (half of a page, two nodes at least)


class LmdbWriter:
    """Appends in the order of the keys; commits every 32 MiB, so memory stays bounded.

    The map grows by itself: what did not fit is written again after doubling it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = Names(path.name)
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes = 0
        with storage_errors(path, lmdb.Error):
            path.unlink(missing_ok=True)
            self._env = lmdb.open(str(path), subdir=False, lock=False, sync=False, map_size=_MAP, mode=0o644)

    def write_all(self, rows: Sequence[Row]) -> None:
        first = len(self._names)
        if first + len(rows) > _MOST_ROWS:
            raise UsageError(f"an LMDB shard holds up to {_MOST_ROWS:,} samples", fix="Make smaller shards")
        for row, (raw, (key, fields)) in enumerate(zip(self._names.add(rows), rows, strict=True), first):
            prefix = b"%08d." % row
            values = [(prefix + _KEY, raw)]
            for field, value in fields.items():
                values.append((prefix + _name(field, key), _value(value, field, key)))
            self._pending += sorted(values)
            for _, data in values:
                self._pending_bytes += len(data)
        if self._pending_bytes >= _COMMIT:
            self._commit()

    def write(self, key: str, fields: Mapping[str, bytes | NDArray[Any]]) -> None:
        self.write_all([(key, fields)])

    def close(self) -> ShardIndex:
        try:
            self._commit()
            with storage_errors(self._path, lmdb.Error):
                self._env.sync(True)
                self._env.close()
                with open(self._path, "rb+") as file:
                    os.fsync(file.fileno())
            return scan(self._path, escaped=True)
        except BaseException:
            self.abort()
            raise

    def checksum(self) -> str:
        return file_checksum(self._path)

    def abort(self) -> None:
        self._pending.clear()
        discard(self._path, self._env.close)

    def _commit(self) -> None:
        with storage_errors(self._path, lmdb.Error):
            while self._pending:
                try:
                    with self._env.begin(write=True) as transaction:
                        transaction.cursor().putmulti(self._pending, append=True)
                    self._pending.clear()
                except lmdb.MapFullError:
                    self._env.set_mapsize(2 * self._env.info()["map_size"])
        self._pending_bytes = 0


def scan(path: Path, escaped: bool) -> ShardIndex:
    """Walk the pages of an LMDB shard; values are not read, except the keys. `escaped` has no meaning here.

    Raises CorruptShard for a file that is cut, altered, no LMDB, or not written as a shard.
    """
    keys: dict[int, str] = {}
    table, rows = FieldTable(), 0
    with storage_errors(path), open(path, "rb") as file:
        for entry in LmdbPages(file.fileno(), path.name):
            row, field = _row_and_field(entry, path.name)
            rows = row + 1
            if field == KEY:
                keys[row] = decoded(os.pread(file.fileno(), entry.size, entry.offset))
            else:
                table.add(field, row, entry.offset, entry.size)
    if len(keys) != rows:
        raise CorruptShard(
            f"rows up to {rows - 1:,}, but {len(keys):,} keys ('<row>.{KEY}')",
            fix="Pack it again", shard=path.name,
        )  # fmt: skip
    return table.index(path, Keys.of(list(keys.values())))


def footprint(sizes: Sequence[int]) -> int:
    """Bytes for keys of up to 64 and field names of up to 20 bytes, rounded up.

    A small value shares a leaf page with others. A page is closed by the first node that does not fit, so it
    is full but for less than such a node.
    """
    total = 0
    for size in (64, *sizes):
        node = 8 + 29 + size + 2
        if node <= _IN_PAGE:
            total += node * _LEAF // (_LEAF - node) + 1
        else:
            total += -(-(16 + size) // _PAGE) * _PAGE + 64
    return total + total // 64  # page headers, and the branch pages above the leaves


LMDB = ShardFormat(
    name="lmdb", suffix=".lmdb", takes_arrays=False, footprint=footprint, create=LmdbWriter, scan=scan
)


def _name(field: str, key: str) -> bytes:
    name = encoded(field)
    if len(name) > _LONGEST_NAME:
        raise UsageError(
            f"a field name of {len(name)} bytes; LMDB holds up to {_LONGEST_NAME}",
            fix="Give the field a shorter name", key=key, field=field,
        )  # fmt: skip
    return name


def _value(value: bytes | NDArray[Any], field: str, key: str) -> bytes:
    if not isinstance(value, bytes):
        raise UsageError(f"LMDB holds bytes, not {type(value).__name__}", key=key, field=field)
    if len(value) > _LARGEST_VALUE:
        raise UsageError(
            f"a value of {len(value):,} bytes; LMDB holds up to {_LARGEST_VALUE:,}",
            fix="Take --format tar", key=key, field=field,
        )  # fmt: skip
    return value


def _row_and_field(entry: Entry, shard: str) -> tuple[int, str]:
    row, field = entry.key[:8], entry.key[9:]
    if not row.isdigit() or entry.key[8:9] != b"." or not field:
        raise CorruptShard(
            f"the LMDB key {entry.key[:40]!r} is not '<row, 8 digits>.<field>': no streamio shard",
            fix="Read it with lmdb and write its values with streamio.write", shard=shard,
        )  # fmt: skip
    return int(row), decoded(field)
