"""What every shard format must do. A new format inherits `FormatContract`, names its `ShardFormat` and adds
one reader that does without streamio.

    class TestZip(FormatContract):
        format = ZIP
        @staticmethod
        def plain_read(path): ...    # with the standard tools of that format
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamio.errors import ShardError, StorageError, UsageError
from streamio.shards.base import ShardFormat
from streamio.shards.index import MISSING, ShardIndex

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
Row = tuple[str, Mapping[str, Any]]

DTYPES = ("bool", "uint8", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64", "complex64")
SHAPES = ((), (3,), (2, 3), (0,), (2, 0, 1), (1, 1, 1, 1))
ODD_KEYS = (
    "plain", "a/b/c", "dots.in.it", "a.b/c.d", ".hidden", "._apple", "a/.hidden", "per%cent", "%2E", "%252E.%25",
    "__meta__/x", "__x__", "./dot", "../up", "/root", "Über/ß", "e\u0301", "日本/語", "with space", "new\nline",
    "caf\udce9", "\udccf\udcf0.x", "q'\"\\", "-dash", "a" * 150, "/".join(["deep" * 10] * 17),
    "x" * 90 + "/" + "y" * 90,
)  # fmt: skip

_contract = settings(
    deadline=None,
    # Each format runs the inherited property with its own class; that is the point of the suite.
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def tally(i: int) -> dict[str, bytes]:
    """Ordinary fields of sample i."""
    return {"jpg": bytes([i % 256]) * (i * 7 % 50), "cls": str(i).encode()}


def golden_rows() -> list[Row]:
    """What the files in `tests/golden` hold."""
    return [
        ("cat/a.1", {"jpg": b"\xff\xd8one\xff\xd9", "cls": b"0", "x.npy": np.array([[1, 2, 3]], np.uint16)}),
        ("dog/\udce9", {"jpg": b"\xff\xd8two\0", "cls": b"1", "x.npy": np.array([[4, 5, 6]], np.uint16)}),
        ("e", {"jpg": b"", "txt": b"only here", "cls": b"2", "x.npy": np.array([[7, 8, 9]], np.uint16)}),
    ]


def write(path: Path, format: ShardFormat, rows: Sequence[Row]) -> ShardIndex:
    """A shard with these rows; arrays as the format wants them."""
    writer = format.create(path)
    for key, fields in rows:
        writer.write(
            key, {n: v if format.takes_arrays or isinstance(v, bytes) else npy(v) for n, v in fields.items()}
        )
    return writer.close()


def read(path: Path, index: ShardIndex) -> list[Row]:
    """Every value from the file's bytes at the places that the index names, and nothing else."""
    data = path.read_bytes()
    index.check(path.name, len(data))
    rows: list[Row] = []
    for row in range(index.samples):
        fields = {}
        for name, field in index.fields.items():
            start, size = int(field.offsets[row]), int(field.sizes[row])
            if size != MISSING and field.dtype is not None:
                flat = np.frombuffer(data[start + field.skip : start + size], field.dtype)
                fields[name] = flat.reshape(field.shape)
            elif size != MISSING:
                fields[name] = data[start : start + size]
        rows.append((index.keys[row], fields))
    return rows


def same(got: Sequence[Row], wanted: Sequence[Row]) -> bool:
    """Equal keys in order, equal fields; an array equals its npy bytes."""
    return [key for key, _ in got] == [key for key, _ in wanted] and all(
        a.keys() == b.keys() and all(_as_bytes(a[name]) == _as_bytes(b[name]) for name in a)
        for (_, a), (_, b) in zip(got, wanted, strict=True)
    )


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    array = np.asarray(value)
    return npy(np.array(array.astype(array.dtype.newbyteorder("<")), order="C"))


def write_golden(formats: Sequence[ShardFormat]) -> None:
    """Make the files of `tests/golden` again, after a change of the format that is meant."""
    for format in formats:
        path = GOLDEN / f"shard{format.suffix}"
        write(path, format, golden_rows()).save(f"{path}.idx")


raw_keys = st.binary(min_size=1, max_size=80).filter(lambda raw: b"\0" not in raw and not raw.endswith(b"/"))
keys = st.sampled_from(ODD_KEYS) | raw_keys.map(lambda raw: raw.decode("utf-8", "surrogateescape"))
values = (
    st.binary(max_size=40)
    | st.sampled_from([b"", b"\0", b"\1\0\0\0", b"a\0b", b"\x93NUMPY", bytes(512), bytes(5000)])
    | st.integers(500, 6000).map(lambda n: os.urandom(1) * n)
)
arrays = st.builds(
    lambda shape, dtype: np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape).astype(dtype),
    st.sampled_from(SHAPES), st.sampled_from(DTYPES),
)  # fmt: skip
samples = st.fixed_dictionaries(
    {"cls": values},
    optional={
        "jpg": values,
        "seg.png": values,
        "x.npy": arrays,
        "y.npy": arrays | values,
        "Ü.x": values,
        "X": values,
    },
)
tables = st.dictionaries(keys, samples, max_size=12).map(lambda table: list(table.items()))


class FormatContract:
    """Inherit, and set `format` and `plain_read`."""

    format: ShardFormat
    same_everywhere = True
    """The bytes of a shard do not depend on the machine."""

    @staticmethod
    def plain_read(path: Path) -> list[Row]:
        """All rows, keys and fields as they were written, with the format's usual tools alone."""
        raise NotImplementedError

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / f"shard-000000{self.format.suffix}"

    @pytest.fixture
    def rows(self) -> list[Row]:
        return [(f"k/{i}", tally(i)) for i in range(20)]

    @given(table=tables)
    @example(table=[(key, tally(i)) for i, key in enumerate(ODD_KEYS)])
    @_contract
    def test_what_is_written_is_found_by_the_index_by_a_scan_and_by_other_tools(self, table: list[Row]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"s{self.format.suffix}")
            index = write(path, self.format, table)
            assert os.listdir(folder) == [path.name]
            assert same(read(path, index), table)
            assert self.format.scan(path, True).to_bytes() == index.to_bytes()
            assert same(self.plain_read(path), table)

    def test_a_key_of_700_bytes_comes_back_in_full(self, path: Path) -> None:
        table = [("/".join("n" * 99 for _ in range(7)), tally(1)), ("m" * 700, tally(2)), ("é" * 350, tally(3))]
        assert same(read(path, write(path, self.format, table)), table)
        assert same(self.plain_read(path), table)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_arrays_of_one_dtype_and_shape_are_marked(self, path: Path, dtype: str, shape: tuple[int, ...]) -> None:
        arrays = [np.array(np.random.default_rng(i).integers(0, 99, shape), dtype) for i in range(5)]
        table = [(str(i), {"x.npy": array}) for i, array in enumerate(arrays)]
        index = write(path, self.format, table)
        field = index.fields["x.npy"]
        assert (field.dtype, field.shape) == (np.dtype(dtype), shape)
        assert same(read(path, index), table)
        assert same(self.plain_read(path), table)

    @pytest.mark.parametrize("array", [
        pytest.param(np.arange(6, dtype=">i4").reshape(2, 3), id="big-endian"),
        pytest.param(np.arange(12, dtype=np.float32).reshape(3, 4)[::2, ::2], id="strided"),
        pytest.param(np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)), id="Fortran order"),
        pytest.param(np.array("2020-01-01", "M8[D]"), id="date"),
        pytest.param(np.array(["a", "bc"]), id="text"),
        pytest.param(np.array([(1, 2.0)], "i4,f8"), id="structured"),
    ])  # fmt: skip
    def test_any_array_without_objects_comes_back(self, path: Path, array: np.ndarray[Any, Any]) -> None:
        index = write(path, self.format, [("a", {"x.npy": array}), ("b", {"x.npy": array})])
        for _, fields in read(path, index):
            got = fields["x.npy"]
            got = np.load(io.BytesIO(got)) if isinstance(got, bytes) else got
            assert got.shape == array.shape and (got == array).all()
        assert index.fields["x.npy"].dtype is None or index.fields["x.npy"].dtype.str[0] in "<|"

    @pytest.mark.parametrize("values", [
        pytest.param([np.zeros(3), np.zeros(4)], id="two shapes"),
        pytest.param([np.zeros(3), np.zeros(3, "f4")], id="two dtypes"),
        pytest.param([np.zeros(3), None], id="missing at the end"),
        pytest.param([None, np.zeros(3)], id="missing at the start"),
        pytest.param([np.zeros(3), b"bytes"], id="arrays and bytes"),
        pytest.param([b"bytes", np.zeros(3)], id="bytes and arrays"),
        pytest.param([npy(np.zeros(3)) + b"x"] * 2, id="bytes behind the elements"),
        pytest.param([npy(np.zeros(3))[:-1]] * 2, id="cut"),
        pytest.param([npy(np.array([None]))] * 2, id="objects"),
        pytest.param([npy(np.asfortranarray(np.zeros((2, 2))))] * 2, id="Fortran order"),
        pytest.param([npy(np.zeros(2, ">f4"))] * 2, id="big-endian"),
        pytest.param([npy(np.zeros(2, "f4,i4"))] * 2, id="structured"),
        pytest.param([b"\x93NUMPY\1\0\xff\xff{"] * 2, id="header longer than the value"),
        pytest.param([b"\x93NUMPY\1\0\2\0{]"] * 2, id="header that is no Python"),
        pytest.param([b"\x93NUMPY\1\0\2\0[]"] * 2, id="header that is a list"),
        pytest.param([b""] * 2, id="empty"),
    ])  # fmt: skip
    def test_what_is_not_uniform_is_bytes(self, path: Path, values: list[Any]) -> None:
        table = [(str(i), {"cls": b"", **({} if v is None else {"x.npy": v})}) for i, v in enumerate(values)]
        index = write(path, self.format, table)
        assert not index.fields["x.npy"].is_array
        assert same(read(path, index), table)
        assert same(self.plain_read(path), table)

    def test_npy_files_given_as_bytes_are_marked_too(self, path: Path) -> None:
        index = write(path, self.format, [(str(i), {"x.npy": npy(np.full((2, 2), i))}) for i in range(5000)])
        field = index.fields["x.npy"]
        assert (field.dtype, field.shape, field.skip) == (np.dtype("i8"), (2, 2), 128)

    def test_one_odd_value_among_thousands_is_noticed(self, path: Path) -> None:
        table = [(str(i), {"x.npy": npy(np.full(4, i, "f4" if i != 4321 else "i4"))}) for i in range(5000)]
        assert not write(path, self.format, table).fields["x.npy"].is_array

    def test_an_empty_shard_is_a_shard(self, path: Path) -> None:
        index = write(path, self.format, [])
        assert index.samples == 0 and index.fields == {}
        assert index.shard_bytes == path.stat().st_size > 0
        assert self.plain_read(path) == []

    def test_golden_bytes(self, path: Path) -> None:
        """May change when the format does, or when the pinned lmdb or h5py lays out files in another way."""
        golden = GOLDEN / f"shard{self.format.suffix}"
        index = write(path, self.format, golden_rows())
        if not self.same_everywhere:
            return
        assert path.read_bytes() == golden.read_bytes()
        assert index.to_bytes() == Path(f"{golden}.idx").read_bytes()

    def test_golden_files_are_still_read(self) -> None:
        golden = GOLDEN / f"shard{self.format.suffix}"
        index = ShardIndex.load(f"{golden}.idx")
        assert same(read(golden, index), golden_rows())
        assert same(read(golden, self.format.scan(golden, True)), golden_rows())

    def test_the_same_input_gives_the_same_bytes_at_any_time_in_any_process(
        self, path: Path, rows: list[Row]
    ) -> None:
        """Later than a second (clocks in headers), with dirty memory (gaps in pages) and another hash seed."""
        write(path, self.format, rows)
        code = (
            "import sys; from pathlib import Path; from tests.shards.conformance import *\n"
            "from streamio.shards.formats import FORMATS\n"
            "write(Path(sys.argv[1]), FORMATS[sys.argv[2]], [(f'k/{i}', tally(i)) for i in range(20)])"
        )
        again = path.with_name(f"again{path.suffix}")
        time.sleep(1.1)
        environment = os.environ | {"MALLOC_PERTURB_": "165", "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
        root = GOLDEN.parent.parent
        subprocess.run([sys.executable, "-c", code, again, self.format.name], check=True, cwd=root, env=environment)
        assert again.read_bytes() == path.read_bytes()

    def test_fields_may_come_in_any_order_and_rows_keep_theirs(self, path: Path) -> None:
        table = [("b", {"cls": b"1", "jpg": b"x"}), ("a", {"jpg": b"y", "cls": b"2"})]
        assert same(read(path, write(path, self.format, table)), table)

    @given(table=tables, cuts=st.lists(st.integers(0, 12), max_size=4))
    @_contract
    def test_samples_may_come_many_at_a_time(self, table: list[Row], cuts: list[int]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            one, many = Path(folder, f"a/s{self.format.suffix}"), Path(folder, f"b/s{self.format.suffix}")
            one.parent.mkdir()
            many.parent.mkdir()
            index = write(one, self.format, table)
            writer = self.format.create(many)
            rows = [(key, {name: self.stored(value) for name, value in fields.items()}) for key, fields in table]
            for start, end in pairwise([0, *sorted(cuts), len(rows)]):
                writer.write_all(rows[start:end])
            assert writer.close().to_bytes() == index.to_bytes()
            assert many.read_bytes() == one.read_bytes()

    @classmethod
    def stored(cls, value: Any) -> Any:
        """A value as the writer of this format takes it."""
        return value if cls.format.takes_arrays or isinstance(value, bytes) else npy(value)

    @pytest.mark.parametrize("key", ["", "a/", "a\0b", "\ud800", 7, None], ids=repr)
    def test_refuses_keys_that_cannot_be_file_names(self, path: Path, key: Any) -> None:
        writer = self.format.create(path)
        with pytest.raises(UsageError, match="key"):
            writer.write(key, {"jpg": b""})
        with pytest.raises(UsageError, match="key"):
            writer.write_all([("a", {"jpg": b""}), (key, {"jpg": b""}), ("b", {"jpg": b""})])
        writer.abort()

    @pytest.mark.parametrize("field", ["", ".", "..", "a/b", "a\0", "__key__", "\ud800"], ids=repr)
    def test_refuses_fields_that_cannot_be_extensions(self, path: Path, field: str) -> None:
        writer = self.format.create(path)
        with pytest.raises(UsageError, match="field"):
            writer.write("a", {field: b""})
        writer.abort()

    def test_refuses_a_sample_without_fields(self, path: Path) -> None:
        writer = self.format.create(path)
        with pytest.raises(UsageError, match="'a' has no fields"):
            writer.write("a", {})
        writer.abort()

    def test_refuses_a_key_that_came_before(self, path: Path) -> None:
        writer = self.format.create(path)
        writer.write("a/b", {"jpg": b""})
        with pytest.raises(UsageError, match="'a/b' comes twice") as caught:
            writer.write("a/b", {"txt": b""})
        assert path.name in str(caught.value)
        with pytest.raises(UsageError, match="'c' comes twice"):
            writer.write_all([("c", {"jpg": b""}), ("d", {"jpg": b""}), ("c", {"txt": b""})])
        writer.abort()

    def test_refuses_arrays_of_objects(self, path: Path) -> None:
        writer = self.format.create(path)
        with pytest.raises(UsageError, match=r"x\.npy"):
            writer.write("a", {"x.npy": np.array([None])})
        writer.abort()

    @pytest.mark.parametrize("rows_before", [0, 1, 50])
    def test_abort_removes_everything(self, path: Path, rows_before: int) -> None:
        writer = self.format.create(path)
        for i in range(rows_before):
            writer.write(str(i), tally(i))
        writer.abort()
        assert os.listdir(path.parent) == []

    def test_a_close_that_fails_leaves_nothing(
        self, path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = self.format.create(path)
        for key, fields in rows:
            writer.write(key, fields)

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left") as caught:
            writer.close()
        assert str(path) in str(caught.value)
        assert os.listdir(path.parent) == []

    def test_a_folder_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        missing = tmp_path / "none" / f"a{self.format.suffix}"
        with pytest.raises(StorageError, match="none"):
            self.format.create(missing)
        with pytest.raises(StorageError, match="none"):
            self.format.scan(missing, True)

    def test_what_lay_there_is_written_over(self, path: Path, rows: list[Row]) -> None:
        write(path, self.format, rows)
        first = path.read_bytes()
        write(path, self.format, [("other", tally(3))])
        write(path, self.format, rows)
        assert path.read_bytes() == first

    def test_no_file_stays_open(self, path: Path, rows: list[Row]) -> None:
        before = sorted(os.listdir("/proc/self/fd"))
        write(path, self.format, rows)
        self.format.scan(path, True)
        assert sorted(os.listdir("/proc/self/fd")) == before

    @pytest.mark.slow
    @pytest.mark.parametrize(("rows", "size"), [(150, 4 << 20), (3, 200 << 20), (300_000, 1000)])
    def test_memory_stays_bounded_while_writing_and_scanning(self, path: Path, rows: int, size: int) -> None:
        """600 MB in large, huge and small values: the keys, one value and the buffers are held."""
        code = (
            "import resource, sys; from pathlib import Path; from streamio.shards.formats import FORMATS\n"
            "rows, size, value = int(sys.argv[3]), int(sys.argv[4]), bytes(int(sys.argv[4]))\n"
            "writer = FORMATS[sys.argv[2]].create(Path(sys.argv[1]))\n"
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "for i in range(rows): writer.write(f'{i:08d}', {'bin': value})\n"
            "index = writer.close(); FORMATS[sys.argv[2]].scan(Path(sys.argv[1]), True)\n"
            "print(index.samples, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
        )
        command = [sys.executable, "-c", code, path, self.format.name, str(rows), str(size)]
        samples, kibibytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        path.unlink()
        assert int(samples) == rows
        assert int(kibibytes) << 10 < (100 << 20) + 2 * size + 500 * rows

    @given(
        sizes=st.lists(st.lists(st.integers(0, 9000) | st.integers(300, 2200), min_size=1, max_size=3), max_size=60)
    )
    @example(sizes=[[1362]] * 60)
    @example(sizes=[[2000], [1330], [700]] * 20)
    @example(sizes=[[1, 1, 1]] * 60)
    @_contract
    def test_a_shard_is_no_larger_than_its_footprints(self, sizes: list[list[int]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"s{self.format.suffix}")
            table = [(f"k/{i}", {f"f{j}": bytes(n) for j, n in enumerate(row)}) for i, row in enumerate(sizes)]
            index = write(path, self.format, table)
            assert index.shard_bytes <= sum(self.format.footprint(row) for row in sizes) + 32_768

    def test_a_shard_cut_anywhere_is_an_error_that_names_it(self, path: Path, rows: list[Row]) -> None:
        size = write(path, self.format, rows).shard_bytes
        for length in {0, 1, 100, size // 3, size // 2, size - 1024}:
            os.truncate(path, length)
            with pytest.raises(ShardError) as caught:
                self.format.scan(path, True)
            assert path.name in str(caught.value)
            write(path, self.format, rows)

    def test_a_cut_shard_does_not_fit_its_index(self, path: Path, rows: list[Row]) -> None:
        index = write(path, self.format, rows)
        with pytest.raises(
            ShardError, match=f"expected {index.shard_bytes:,} bytes, found {index.shard_bytes - 1:,}"
        ):
            index.check(path.name, index.shard_bytes - 1)

    @pytest.mark.parametrize(("what", "data"), [
        ("0 bytes", b""), ("HTML", b"<!DOCTYPE html><html>403</html>"), ("gzip", b"\x1f\x8b" + bytes(600)),
        ("unknown", bytes(range(200, 256)) * 40),
    ])  # fmt: skip
    def test_another_file_is_named_for_what_it_is(self, path: Path, what: str, data: bytes) -> None:
        path.write_bytes(data)
        with pytest.raises(ShardError, match=what) as caught:
            self.format.scan(path, True)
        assert path.name in str(caught.value)

    def test_a_scan_of_altered_bytes_gives_an_error_or_places_within_the_file(
        self, path: Path, rows: list[Row]
    ) -> None:
        write(path, self.format, rows)
        good = path.read_bytes()
        rng = np.random.default_rng(0)
        for _ in range(400):
            data = np.frombuffer(good, np.uint8).copy()
            at = rng.integers(0, len(data), 3)
            data[at] = rng.integers(0, 256, 3)
            path.write_bytes(data.tobytes())
            try:
                index = self.format.scan(path, True)
            except ShardError:
                continue
            index.check(path.name, len(good))
