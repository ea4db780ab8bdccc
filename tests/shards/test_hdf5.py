"""HDF5 shards: what plain h5py finds in them, and where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from streamio.errors import CorruptShard
from streamio.shards import hdf5
from streamio.shards.hdf5 import HDF5, scan
from tests.shards.conformance import FormatContract, Row, npy, read, same, write


def decoded(name: str | bytes) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


class TestHdf5(FormatContract):
    format = HDF5

    @staticmethod
    def plain_read(path: Path) -> list[Row]:
        """With h5py alone: data sets of arrays, groups of bytes and offsets."""
        with h5py.File(path, "r") as file:
            columns = {decoded(name): values(item) for name, item in file.items()}
        keys = [decoded(key) for key in columns.pop("__key__")]
        return [(key, {n: c[i] for n, c in columns.items() if c[i] is not None}) for i, key in enumerate(keys)]

    def test_hdf_05_zero_bytes_and_empty_values_survive(self, path: Path) -> None:
        """zarr-developers/zarr-python#474; ilastik/ilastik#1565; h5py/h5py#379"""
        wanted = [b"\x01\x00\x00\x00", b"\x00", b"", b"a\x00b", b"a text that ends in NUL\0"]
        table = [(str(i), {"bin": value}) for i, value in enumerate(wanted)]
        assert [fields["bin"] for _, fields in read(path, write(path, HDF5, table))] == wanted
        assert same(self.plain_read(path), table)

    def test_fields_that_are_empty_everywhere_survive(self, path: Path) -> None:
        table = [(str(i), {"bin": b"", "txt": b""}) for i in range(3)]
        assert same(read(path, write(path, HDF5, table)), table)
        assert same(self.plain_read(path), table)

    def test_arrays_are_one_data_set_without_headers(self, path: Path) -> None:
        index = write(path, HDF5, [(str(i), {"x.npy": np.full((2, 3), i, "f4")}) for i in range(7)])
        assert index.fields["x.npy"].skip == 0
        assert np.diff(index.fields["x.npy"].offsets).tolist() == [24] * 6
        with h5py.File(path) as file:
            assert file["x.npy"].shape == (7, 2, 3)
            assert file["x.npy"].dtype == np.float32
            assert (file["x.npy"][:, 1, 2] == np.arange(7)).all()

    def test_large_arrays_pass_through_in_pieces(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hdf5, "_BUFFER", 1000)
        table = [(str(i), {"x.npy": np.full((9, 9), i, "i4"), "y.npy": np.full(1000, i)}) for i in range(50)]
        assert same(read(path, write(path, HDF5, table)), table)

    def test_a_field_that_some_rows_lack_has_a_present_data_set(self, path: Path) -> None:
        write(path, HDF5, [("a", {"jpg": b"x", "txt": b""}), ("b", {"jpg": b"y"})])
        with h5py.File(path) as file:
            assert file["txt/present"][()].tolist() == [True, False]
            assert file["txt/offsets"][()].tolist() == [0, 0, 0]
            assert "present" not in file["jpg"]

    def test_it_holds_no_times_and_is_laid_out_for_old_libraries(self, path: Path, rows: list[Row]) -> None:
        write(path, HDF5, [(key, fields | {"x.npy": np.zeros(3)}) for key, fields in rows])
        assert path.read_bytes()[8] == 0, "the superblock that HDF5 1.0 reads"
        with h5py.File(path) as file:
            for data in (file["x.npy"], file["jpg/bytes"], file["jpg/offsets"], file["__key__/bytes"]):
                assert h5py.h5g.get_objinfo(data.id).mtime == 0
                assert data.chunks is None and data.compression is None

    def test_large_data_sets_start_at_multiples_of_64(self, path: Path) -> None:
        write(path, HDF5, [(str(i), {"x.npy": np.zeros(300, "u1"), "jpg": bytes(i + 400)}) for i in range(9)])
        with h5py.File(path) as file:
            assert file["x.npy"].id.get_offset() % 64 == file["jpg/bytes"].id.get_offset() % 64 == 0

    def test_no_spool_is_ever_seen_beside_the_shard_for_long(self, path: Path, rows: list[Row]) -> None:
        writer = HDF5.create(path)
        for key, fields in rows:
            writer.write(key, fields)
        assert all(name.startswith(path.name) for name in os.listdir(path.parent))
        writer.close()
        assert os.listdir(path.parent) == [path.name]

    def test_a_scan_takes_no_lock(self, path: Path, rows: list[Row]) -> None:
        """h5py/h5py#1101, #1722: somebody else holds one, or the disk knows none"""
        write(path, HDF5, rows)
        code = (
            "import fcntl, sys; file = open(sys.argv[1], 'rb+'); fcntl.flock(file, fcntl.LOCK_EX)\n"
            "print('held', flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
            assert scan(path, True).samples == 20
            holder.communicate()

    @pytest.mark.parametrize(("change", "why"), [
        pytest.param({"chunks": (5,)}, "chunked or compressed", id="chunked"),
        pytest.param({"compression": "gzip"}, "chunked or compressed", id="compressed"),
        pytest.param({"dtype": ">f4"}, "dtype >f4", id="big-endian"),
        pytest.param({"shape": (19,)}, r"shape \(19,\)", id="a row less"),
        pytest.param({"shape": ()}, r"shape \(\)", id="no rows"),
    ])  # fmt: skip
    def test_data_sets_that_cannot_be_mapped_are_refused(
        self, path: Path, rows: list[Row], change: dict[str, Any], why: str
    ) -> None:
        write(path, HDF5, rows)
        with h5py.File(path, "r+") as file:
            file.create_dataset("x.npy", **{"shape": (20,), "dtype": "<f4", **change})
        with pytest.raises(CorruptShard, match=why):
            scan(path, True)

    @pytest.mark.parametrize("offsets", [[0, 1], [1, *range(1, 21)], [0, 5, 4, *range(3, 21)], list(range(21))])
    def test_offsets_that_make_no_sense_are_refused(self, path: Path, rows: list[Row], offsets: list[int]) -> None:
        write(path, HDF5, rows)
        with h5py.File(path, "r+") as file:
            del file["jpg/offsets"]
            file["jpg/offsets"] = np.array(offsets, np.int64)
        with pytest.raises(CorruptShard, match="offsets"):
            scan(path, True)

    def test_another_hdf5_file_is_no_shard(self, path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["data"] = np.zeros(3)
        with pytest.raises(CorruptShard, match="__key__"):
            scan(path, True)

    def test_a_cut_file_says_both_sizes(self, path: Path, rows: list[Row]) -> None:
        size = write(path, HDF5, rows).shard_bytes
        os.truncate(path, size - 10)
        with pytest.raises(CorruptShard, match=rf"expected {size:,} bytes, found {size - 10:,}; the shard is cut"):
            scan(path, True)

    def test_numbers_that_all_rows_have_are_one_data_set(self, path: Path) -> None:
        index = write(
            path, HDF5, [(str(i), {"cls": np.array(i), "score.float": np.array(i / 4)}) for i in range(5)]
        )
        assert (index.fields["cls"].dtype, index.fields["cls"].shape) == (np.dtype("i8"), ())
        with h5py.File(path) as file:
            assert file["cls"][()].tolist() == [0, 1, 2, 3, 4]
            assert file["score.float"][()].tolist() == [0, 0.25, 0.5, 0.75, 1]

    @pytest.mark.parametrize(("values", "wanted"), [
        pytest.param([np.array(7), None, np.array(9)], [b"7", None, b"9"], id="missing"),
        pytest.param([np.array(7), np.array(2**63, "u8")], [b"7", b"9223372036854775808"], id="two dtypes"),
        pytest.param([np.array(7), b"8\n", b"\x93NUMPY"], [b"7", b"8\n", b"\x93NUMPY"], id="numbers and bytes"),
    ])  # fmt: skip
    def test_other_numbers_are_text_as_in_the_other_formats(
        self, path: Path, values: list[Any], wanted: list[bytes | None]
    ) -> None:
        table = [(str(i), {"txt": b"", **({} if v is None else {"cls": v})}) for i, v in enumerate(values)]
        index = write(path, HDF5, table)
        assert [fields.get("cls") for _, fields in read(path, index)] == wanted
        assert [fields.get("cls") for _, fields in self.plain_read(path)] == wanted

    def test_npy_bytes_keep_their_headers(self, path: Path) -> None:
        """A folder's .npy files come back byte for byte, whatever wrote them."""
        table = [(str(i), {"x.npy": npy(np.full(3, i))}) for i in range(4)]
        index = write(path, HDF5, table)
        assert index.fields["x.npy"].skip == 128
        assert same(self.plain_read(path), table)


def values(item: h5py.Dataset | h5py.Group) -> list[Any]:
    """The values of a field as plain h5py gives them; None where a row has none."""
    if isinstance(item, h5py.Dataset):
        return list(item[()]) if item.ndim == 1 else [item[i] for i in range(len(item))]
    offsets, data = item["offsets"][()], item["bytes"][()].tobytes()
    present = item["present"][()] if "present" in item else np.ones(len(offsets) - 1, bool)
    return [data[a:b] if p else None for a, b, p in zip(offsets[:-1], offsets[1:], present, strict=True)]
