"""HDF5 shards: one data set per field, contiguous, so that plain h5py reads them and a memory map can too.

    seg.npy           (n, *shape)    arrays of one dtype and shape
    jpg/bytes         uint8 (total,) all values of a byte field one after the other
    jpg/offsets       int64 (n + 1,) value i is bytes[offsets[i]:offsets[i + 1]]
    jpg/present       bool (n,)      only if some rows have no such field
    __key__/bytes, __key__/offsets   the keys

Sizes are known at the end only. So values go to a spool file per field first (unnamed where the system has
such files, and gone when the process ends), and are copied to where HDF5 made room for them.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamio.codecs import codec_for
from streamio.codecs.arrays import NPY, as_array
from streamio.codecs.sniff import looks_like
from streamio.codecs.text import NumberCodec
from streamio.errors import CorruptShard, StreamioError
from streamio.shards.base import Row, ShardFormat
from streamio.shards.index import MISSING, FieldIndex, Keys, ShardIndex
from streamio.shards.manifest import file_checksum
from streamio.shards.uniform import ArrayLayout, is_plain, mark_arrays
from streamio.shards.writing import KEY, Names, discard, storage_error, storage_errors
from streamio.storage.maps import map_file

if TYPE_CHECKING:
    import h5py  # takes as long to load as all the rest of packing: only where HDF5 is written or scanned

_BUFFER = 1 << 20
_ALIGN = 64
_ALIGN_FROM = 512
_AGAIN = "Copy the shard again or pack it again"


class Hdf5Writer:
    """Spools values, and lays out the file at `close`. Needs room for the shard twice while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = Names(path.name)
        with storage_errors(path):
            path.write_bytes(b"")  # fail now, not at close, where it cannot be written
            self._spools = {KEY: _Spool(path)}

    def write_all(self, rows: Sequence[Row]) -> None:
        first = len(self._names)
        for row, (raw, (key, fields)) in enumerate(zip(self._names.add(rows), rows, strict=True), first):
            name = KEY
            try:
                self._spools[KEY].add(row, raw)
                for name, value in fields.items():
                    if name not in self._spools:
                        self._spools[name] = _Spool(self._path)
                    self._spools[name].add(row, value)
            except OSError as error:
                raise storage_error(self._path, error) from error
            except StreamioError as error:
                error.where = {"key": key, "field": name} | error.where
                raise

    def write(self, key: str, fields: Mapping[str, bytes | NDArray[Any]]) -> None:
        self.write_all([(key, fields)])

    def close(self) -> ShardIndex:
        try:
            with storage_errors(self._path, RuntimeError):
                self._lay_out()
            self._close_spools()
            return scan(self._path, escaped=True)
        except BaseException:
            self.abort()
            raise

    def checksum(self) -> str:
        return file_checksum(self._path)

    def abort(self) -> None:
        discard(self._path, self._close_spools)

    def _close_spools(self) -> None:
        for spool in self._spools.values():
            spool.file.close()

    def _lay_out(self) -> None:
        rows = len(self._names)
        copies: list[tuple[int, _Spool, ArrayLayout | None]] = []
        import h5py

        with h5py.File(
            self._path, "w", libver="earliest", alignment_threshold=_ALIGN_FROM, alignment_interval=_ALIGN
        ) as file:
            for name, spool in sorted(self._spools.items()):
                layout = spool.common_layout(rows)
                if layout is None:
                    spool.as_bytes(name)
                    place = _byte_field(file.create_group(_h5_name(name)), spool.sizes(rows))
                else:
                    place = _allocate(file, name, (rows, *layout.shape), layout.dtype)
                copies.append((place, spool, layout))
        with open(self._path, "rb+") as out:
            for place, spool, layout in copies:
                out.seek(place)
                spool.copy_to(out, layout)
            out.flush()
            os.fsync(out.fileno())


class _Spool:
    """The values of one field in a temporary file, arrays as npy.

    So it is a byte field at any moment; and while all its values have one layout, a data set of arrays too,
    that lacks nothing but the removal of the headers.
    """

    def __init__(self, shard: Path) -> None:
        self._shard = shard
        self.file = self._new_file()
        self._rows, self._sizes = array("q"), array("q")
        self._is_array = bytearray()
        self._layout: ArrayLayout | None = None
        self._one_layout = True

    def add(self, row: int, value: bytes | NDArray[Any]) -> None:
        self._rows.append(row)
        self._is_array.append(not isinstance(value, bytes))
        if isinstance(value, bytes):
            self._one_layout = False
            self._sizes.append(self.file.write(value))
        else:
            self._sizes.append(self._add_array(value))

    def as_bytes(self, name: str) -> None:
        """Make a byte field of it that other formats would hold too: numbers as text, arrays as npy."""
        codec = codec_for(name)
        if isinstance(codec, NumberCodec) and any(self._is_array):
            self.file.seek(0)
            with self.file as old:
                self.file = self._new_file()
                for i, size in enumerate(self._sizes):
                    data = old.read(size)
                    data = codec.encode(NPY.decode(data)) if self._is_array[i] else data
                    self._sizes[i] = self.file.write(data)

    def common_layout(self, rows: int) -> ArrayLayout | None:
        return self._layout if self._one_layout and rows == len(self._rows) else None

    def sizes(self, rows: int) -> NDArray[np.int64]:
        """Bytes per row, MISSING where the row has none."""
        sizes = np.full(rows, MISSING, np.int64)
        sizes[np.frombuffer(self._rows, np.int64)] = np.frombuffer(self._sizes, np.int64)
        return sizes

    def copy_to(self, out: IO[bytes], layout: ArrayLayout | None) -> None:
        """Everything to where `out` stands; with a layout, only the elements of the arrays."""
        self.file.seek(0)
        if layout is None:
            shutil.copyfileobj(self.file, out, _BUFFER)
            return
        item = layout.payload_bytes
        while chunk := self.file.read(max(1, _BUFFER // item) * item):
            out.write(np.frombuffer(chunk, np.uint8).reshape(-1, item)[:, layout.skip :].tobytes())

    def _add_array(self, value: NDArray[Any]) -> int:
        plain = as_array(value)
        data = NPY.encode(plain)
        layout = ArrayLayout(plain.dtype, plain.shape, len(data) - plain.nbytes)
        self._layout = self._layout or layout
        self._one_layout &= layout == self._layout and is_plain(plain.dtype)
        return self.file.write(data)

    def _new_file(self) -> IO[bytes]:
        return tempfile.TemporaryFile(dir=self._shard.parent, prefix=f"{self._shard.name}.", buffering=_BUFFER)


def scan(path: Path, escaped: bool) -> ShardIndex:
    """Ask the file for the places of its data sets. `escaped` has no meaning here.

    Raises CorruptShard for a file that is cut, altered, no HDF5, or not laid out as a shard.
    """
    import h5py

    with storage_errors(path), open(path, "rb") as file:
        head, size = file.read(200), os.fstat(file.fileno()).st_size
    if not head.startswith(b"\x89HDF"):
        raise CorruptShard(f"is no HDF5 file: {looks_like(head)}", fix=_AGAIN, shard=path.name)
    try:
        with h5py.File(path, "r", locking=False) as shard:
            keys = _keys(shard)
            fields = {name: _field(item, len(keys), size) for name, item in shard.items() if name != KEY}
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise CorruptShard(_reason(error, size), fix=_AGAIN, shard=path.name) from error
    data = map_file(path)
    return ShardIndex(shard_bytes=size, keys=keys, fields=mark_arrays(data, fields))


def footprint(sizes: Sequence[int]) -> int:
    """The bytes, an offset and a present flag per field; for keys of up to 64 bytes."""
    return 64 + 8 + sum(sizes) + 9 * len(sizes)


HDF5 = ShardFormat(name="hdf5", suffix=".h5", takes_arrays=True, footprint=footprint, create=Hdf5Writer, scan=scan)


def _allocate(group: h5py.Group, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Make a contiguous data set with room in the file and nothing in it; gives its place (0 without bytes)."""
    import h5py

    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_layout(h5py.h5d.CONTIGUOUS)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    settings.set_obj_track_times(False)
    kind = h5py.h5t.py_create(dtype, logical=True)
    made = h5py.h5d.create(group.id, None, kind, h5py.h5s.create_simple(shape), dcpl=settings)
    group[_h5_name(name)] = h5py.Dataset(made)
    return made.get_offset() or 0


def _byte_field(group: h5py.Group, sizes: NDArray[np.int64]) -> int:
    """Make the data sets of a byte field; gives the place of its bytes."""
    present = sizes != MISSING
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(np.where(present, sizes, 0), out=offsets[1:])
    group.create_dataset("offsets", data=offsets, dtype="<i8", track_times=False)
    if not present.all():
        group.create_dataset("present", data=present, track_times=False)
    return _allocate(group, "bytes", (int(offsets[-1]),), np.dtype("u1"))


def _keys(shard: h5py.File) -> Keys:
    offsets, blob = shard[KEY]["offsets"][()], shard[KEY]["bytes"][()]
    _check_offsets(offsets, len(offsets) - 1, len(blob))
    return Keys(offsets=offsets, blob=blob)


def _field(item: h5py.Dataset | h5py.Group, rows: int, file_bytes: int) -> FieldIndex:
    """Where the values of a field lie. Raises ValueError for what a memory map cannot read."""
    if hasattr(item, "dtype"):
        return _arrays(item, rows, file_bytes)
    offsets = item["offsets"][()]
    _check_offsets(offsets, rows, len(item["bytes"]))
    present = item["present"][()] if "present" in item else np.ones(rows, bool)
    return FieldIndex(
        offsets=np.where(present, _start(item["bytes"], file_bytes) + offsets[:-1], 0),
        sizes=np.where(present, np.diff(offsets), MISSING),
    )


def _arrays(data: h5py.Dataset, rows: int, file_bytes: int) -> FieldIndex:
    if data.shape[:1] != (rows,) or not is_plain(data.dtype):
        raise ValueError(f"{data.name} has shape {data.shape} and dtype {data.dtype.str}, for {rows} keys")
    layout = ArrayLayout(np.dtype(data.dtype.str), data.shape[1:], 0)
    size = layout.payload_bytes
    return FieldIndex(
        offsets=_start(data, file_bytes) + np.arange(rows, dtype=np.int64) * size,
        sizes=np.full(rows, size, np.int64),
        dtype=layout.dtype,
        shape=layout.shape,
    )


def _start(data: h5py.Dataset, file_bytes: int) -> int:
    """Byte of the file at which a data set starts."""
    start, size = data.id.get_offset(), data.nbytes
    if start is None:
        if size:
            raise ValueError(f"{data.name} is chunked or compressed; run 'h5repack -l CONTI' on the file")
        return 0
    if start + size > file_bytes:
        raise ValueError(f"{data.name} ends at byte {start + size:,} of {file_bytes:,}")
    return int(start)


def _check_offsets(offsets: NDArray[Any], rows: int, total: int) -> None:
    if offsets.dtype != np.int64 or offsets.shape != (rows + 1,):
        raise ValueError(f"offsets of dtype {offsets.dtype} and shape {offsets.shape} for {rows} keys")
    if offsets[0] != 0 or offsets[-1] != total or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets do not rise from 0 to {total:,}")


def _reason(error: Exception, found: int) -> str:
    """The library's words, or the sizes where it says that the file is cut."""
    text = str(error)
    cut = re.search(r"stored_eof = (\d+)", text)
    return f"expected {int(cut[1]):,} bytes, found {found:,}; the shard is cut" if cut else text


def _h5_name(name: str) -> str | bytes:
    """A name for h5py, which encodes str strictly; what was not UTF-8 goes as bytes."""
    raw = name.encode("utf-8", "surrogateescape")
    return name if name.isascii() or raw.decode("utf-8", "replace") == name else raw
