"""Tar shards: what streamio writes, and foreign tars as they come."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
import tempfile
import tracemalloc
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import CorruptShard, ShardWarning, UsageError
from streamio.shards.formats import FORMATS, format_named, format_of
from streamio.shards.index import ShardIndex
from streamio.shards.tar import TAR, escape, member_headers, scan, unescape
from tests.samples import big_tar, raw_tar
from tests.shards.conformance import ODD_KEYS, FormatContract, Row, npy, raw_keys, read, tally, write

NAMED = r"shard\.tar"


def rows_of(path: Path) -> dict[str, Mapping[str, Any]]:
    """What a scan of a foreign tar finds, by key."""
    return dict(read(path, scan(path, False)))


def header(name: bytes, size: int, kind: bytes = b"0", magic: bytes = b"ustar\x0000", **parts: bytes) -> bytes:
    """A header block from raw parts; `signed` sums the checksum as old tars did."""
    block = bytearray(512)
    block[: len(name)] = name
    block[124:136] = parts.get("raw_size", b"%011o\0" % size)
    block[156:157] = kind
    block[257:265] = magic
    prefix = parts.get("prefix", b"")
    block[345 : 345 + len(prefix)] = prefix
    block[148:156] = b" " * 8
    total = sum(block) - (256 * sum(b > 127 for b in block) if "signed" in parts else 0)
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


def member(name: bytes, data: bytes, kind: bytes = b"0", **parts: bytes) -> bytes:
    return header(name, len(data), kind, **parts) + data + bytes(-len(data) % 512)


END = bytes(1024)


class TestTar(FormatContract):
    format = TAR

    @staticmethod
    def plain_read(path: Path) -> list[Row]:
        """With tarfile alone, and the two rules of `docs/format.md`: split at the first dot, take back %XX."""
        rows: dict[str, dict[str, bytes]] = {}
        with tarfile.open(path) as tar:
            for info in tar:
                folder, slash, last = info.name.rpartition("/")
                base, _, field = last.partition(".")
                key = (folder + slash + base).replace("%5F", "_").replace("%2E", ".").replace("%25", "%")
                content = tar.extractfile(info)
                assert content is not None
                rows.setdefault(key, {})[field] = content.read()
        return list(rows.items())

    def test_webdataset_reads_the_same_samples(self, path: Path) -> None:
        table = [(key, tally(i)) for i, key in enumerate(ODD_KEYS)]
        write(path, TAR, table)
        with open(path, "rb") as stream:
            members = webdataset.tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
            got = [
                (unescape(sample["__key__"]), {name: sample[name] for name in ("jpg", "cls")})
                for sample in webdataset.tariterators.group_by_keys(members)
            ]
        assert got == table

    def test_gnu_tar_lists_and_extracts_it_without_a_word(self, path: Path, tmp_path: Path) -> None:
        table = [(key.removeprefix("/").removeprefix("../"), tally(i)) for i, key in enumerate(ODD_KEYS)]
        table = [(key, fields) for key, fields in table if "\n" not in key]
        write(path, TAR, table)
        run = subprocess.run(
            ["tar", "tf", path, "--quoting-style=literal"],
            capture_output=True,
            env={"LC_ALL": "C.UTF-8", **os.environ},
        )
        names = [escape(os.fsencode(key)) + b"." + f.encode() for key, fields in table for f in fields]
        assert (run.returncode, run.stderr) == (0, b"")
        assert run.stdout.splitlines() == names
        out = tmp_path / "out"
        out.mkdir()
        subprocess.run(["tar", "xf", path, "-C", out], check=True)
        assert (out / "a/b/c.jpg").read_bytes() == dict(table)["a/b/c"]["jpg"]

    def test_headers_hold_no_time_no_owner_and_mode_644(self, path: Path, rows: list[Row]) -> None:
        write(path, TAR, rows)
        with tarfile.open(path) as tar:
            facts = {(i.mtime, i.uid, i.gid, i.uname, i.gname, i.mode) for i in tar}
        assert facts == {(0, 0, 0, "", "", 0o644)}
        assert path.read_bytes().endswith(END)

    def test_a_field_keeps_its_case(self, path: Path) -> None:
        index = write(path, TAR, [("a", {"X.npy": b"1", "x.npy": b"2"})])
        assert set(index.fields) == {"X.npy", "x.npy"}

    @given(key=raw_keys)
    def test_escaping_is_undone_and_leaves_no_dot_to_split_at(self, key: bytes) -> None:
        name = escape(key)
        assert os.fsencode(unescape(os.fsdecode(name))) == key
        assert b"." not in name.rpartition(b"/")[2]

    @pytest.mark.parametrize("name", [
        b"a.jpg", b"n" * 100, b"n" * 101, b"p" * 155 + b"/" + b"n" * 100, b"p" * 156 + b"/" + b"n" * 99,
        b"a/" + b"n" * 101, b"/" + b"n" * 100, b"p/" * 120 + b"n", b"caf\xe9.jpg", "é".encode() * 60,
        b"caf\xe9" * 50, b"n" * 700,
    ], ids=lambda name: f"{name[:3]!r} x {len(name)}")  # fmt: skip
    @pytest.mark.parametrize("size", [0, 511, 8 * 2**30 - 1, 8 * 2**30, 10**12])
    def test_headers_say_what_tarfile_reads(self, name: bytes, size: int) -> None:
        blocks = member_headers([name], np.array([size]))[0]
        assert len(blocks) % 512 == 0
        with tempfile.TemporaryFile() as file:
            file.write(blocks)
            file.truncate(len(blocks) + size + 1024)
            file.seek(0)
            with tarfile.open(fileobj=file) as tar:
                info = tar.next()
        assert info is not None and (os.fsencode(info.name), info.size, info.isreg()) == (name, size, True)

    def test_ordinary_names_take_one_block(self) -> None:
        assert len(member_headers([b"n" * 100], np.array([8 * 2**30 - 1]))[0]) == 512
        assert len(member_headers([b"p" * 155 + b"/" + b"n" * 100], np.array([0]))[0]) == 512

    @given(
        members=st.lists(
            st.tuples(
                st.sampled_from([b"", b"p/" * 60, b"p" * 155 + b"/", b"p" * 200 + b"/"]), raw_keys,
                st.sampled_from([0, 511, 8 * 2**30 - 1, 8 * 2**30]) | st.integers(0, 10**11),
            ),
            min_size=1, max_size=20,
        )
    )  # fmt: skip
    def test_headers_of_many_members_are_those_of_each(self, members: list[tuple[bytes, bytes, int]]) -> None:
        names, sizes = [folder + key for folder, key, _ in members], np.array([size for *_, size in members])
        headers = member_headers(names, sizes)
        assert headers == [member_headers([name], sizes[at : at + 1])[0] for at, name in enumerate(names)]
        for name, size, blocks in zip(names, sizes.tolist(), headers, strict=True):
            if len(blocks) > 512:
                assert len(name) > 100 or size >= 8 * 2**30
                continue
            info = tarfile.TarInfo.frombuf(blocks, "utf-8", "surrogateescape")  # says whether the checksum is right
            assert (os.fsencode(info.name), info.size, info.mode, info.isreg()) == (name, size, 0o644, True)

    def test_refuses_what_is_not_bytes(self, path: Path) -> None:
        writer = TAR.create(path)
        with pytest.raises(UsageError, match="ndarray"):
            writer.write("a", {"x.npy": np.zeros(3)})
        writer.abort()

    def test_tar_11_own_shard_without_its_end_is_an_error(self, path: Path) -> None:
        """onekey-sec/unblob#156; mafintosh/tar-stream#82"""
        index = write(path, TAR, [(str(i), {"jpg": b"x"}) for i in range(3)])
        os.truncate(path, 2048)
        with pytest.raises(CorruptShard, match="no end of archive") as caught:
            scan(path, True)
        assert path.name in str(caught.value)
        with pytest.raises(CorruptShard, match=r"expected 4,096 bytes, found 2,048"):
            index.check(path.name, 2048)


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    return tmp_path / "shard.tar"


def test_tar_02_members_of_a_sample_may_lie_apart(tar: Path) -> None:
    """webdataset/webdataset#140, #258; ray-project/ray#63407"""
    raw_tar(tar, [("001.jpg", b"a"), ("002.jpg", b"b"), ("001.txt", b"x"), ("002.txt", b"y")])
    assert rows_of(tar) == {"001": {"jpg": b"a", "txt": b"x"}, "002": {"jpg": b"b", "txt": b"y"}}


@pytest.mark.parametrize("second", ["a.jpg", "a.JPG", "./a.jpg"])
def test_tar_03_a_member_that_comes_twice_is_named_with_both_places(tar: Path, second: str) -> None:
    """webdataset/webdataset#286, #157"""
    raw_tar(tar, [("a.jpg", b"1"), ("a.json", b"{}"), (second, b"2")])
    with pytest.raises(CorruptShard, match=rf"{NAMED}: 'a\.jpg' comes twice, at bytes 512 and 2,560"):
        scan(tar, False)


@pytest.mark.parametrize("fmt", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax size", "base 256"])
def test_tar_06_members_beyond_8_gib(tar: Path, fmt: int) -> None:
    """libarchive/libarchive#880, #2405; golang/go#15573"""
    big_tar(tar, fmt)
    tracemalloc.start()
    index = scan(tar, False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    big, small = index.fields["bin"], index.fields["txt"]
    assert (index.keys[0], int(big.sizes[0])) == ("big", 8589934593)
    with open(tar, "rb") as file:
        file.seek(int(small.offsets[1]))
        assert (index.keys[1], file.read(int(small.sizes[1]))) == ("z", b"end")
    assert peak < 4 << 20


def test_tar_07_apple_doubles_and_pax_headers_are_no_samples(tar: Path) -> None:
    """mvt-project/mvt#922; libarchive/libarchive#900"""
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "a commit"}) as out:
        for name, data in (("._a.jpg", b"mac"), ("a.jpg", b"picture")):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(data), {"comment": "local"}
            out.addfile(info, io.BytesIO(data))
    with pytest.warns(ShardWarning, match=rf"{NAMED}: left out 1 AppleDouble files \('\._a\.jpg'\)"):
        assert rows_of(tar) == {"a": {"jpg": b"picture"}}


def test_tar_10_joined_tars_are_read_to_their_end(tar: Path, tmp_path: Path) -> None:
    """libarchive/libarchive#457; mhausherr/Light-Untar-for-iOS#29"""
    parts = [raw_tar(tmp_path / f"{c}.tar", [(f"{c}{i}.txt", b"t") for i in range(3)]) for c in "ab"]
    tar.write_bytes(b"".join(part.read_bytes() for part in parts))
    with pytest.warns(ShardWarning, match=r"after the end mark, at byte 10,240"):
        assert list(rows_of(tar)) == ["a0", "a1", "a2", "b0", "b1", "b2"]


@pytest.mark.parametrize("length", [2048, 1537], ids=["after the padding", "within the padding"])
def test_tar_11_a_foreign_tar_without_its_end_is_read_with_a_warning(tar: Path, length: int) -> None:
    """onekey-sec/unblob#156; mafintosh/tar-stream#82"""
    raw_tar(tar, [(f"{i}.txt", b"t") for i in range(3)])
    os.truncate(tar, length)
    with pytest.warns(ShardWarning, match=rf"{NAMED}: no end of archive: .* {length:,} "):
        assert list(rows_of(tar)) == ["0", "1"]


@pytest.mark.parametrize(("what", "data"), [
    (r"nothing \(0 bytes\)", b""), ("an HTML page", b"<html>403</html>"), ("gzip.*unpack it", b"gzip"),
    ("HTML", b"<html>" + b" 403" * 400),
])  # fmt: skip
def test_corr_05_what_is_no_tar_is_named_for_what_it_is(tar: Path, what: str, data: bytes) -> None:
    """python/cpython#80777, #67245"""
    tar.write_bytes(gzip.compress(raw_tar(tar, [("a.txt", b"t")]).read_bytes()) if data == b"gzip" else data)
    with pytest.raises(CorruptShard, match=rf"{NAMED}: is no tar: .*{what}"):
        scan(tar, False)


def test_corr_05_zeros_are_an_empty_tar_and_said_to_be(tar: Path) -> None:
    """python/cpython#80777, #67245"""
    tar.write_bytes(bytes(10240))
    with pytest.warns(ShardWarning, match=rf"{NAMED}: all its 10,240 bytes are zero, so it holds 0 samples"):
        assert scan(tar, False).samples == 0


def test_a_member_that_goes_beyond_the_end_is_named_with_both_sizes(tar: Path) -> None:
    raw_tar(tar, [("a.bin", bytes(5000))])
    os.truncate(tar, 3000)
    with pytest.raises(CorruptShard, match=rf"{NAMED}: 'a.bin', at byte 0: expected 5,000 bytes, found 2,488"):
        scan(tar, False)


def test_a_header_that_is_cut_is_named(tar: Path) -> None:
    raw_tar(tar, [("a.bin", b"1"), ("b.bin", b"2")])
    os.truncate(tar, 1024 + 300)
    with pytest.raises(CorruptShard, match=r"header of 512 bytes at byte 1,024, found 300"):
        scan(tar, False)


@pytest.mark.parametrize("at", [0, 1024])
def test_a_wrong_checksum_is_named_with_its_place(tar: Path, at: int) -> None:
    raw_tar(tar, [("a.bin", b"1"), ("b.bin", b"2")])
    data = bytearray(tar.read_bytes())
    data[at + 1] ^= 1
    tar.write_bytes(data)
    with pytest.raises(CorruptShard, match=f"{NAMED}: .*({at:,} has a wrong checksum|is no tar)"):
        scan(tar, False)


@pytest.mark.parametrize(("parts", "name"), [
    pytest.param(member(b"a.txt", b"t"), "a", id="ustar"),
    pytest.param(member(b"a.txt", b"t", prefix=b"deep/er"), "deep/er/a", id="prefix"),
    pytest.param(member(b"a.txt", b"t", b"\0", magic=bytes(8)), "a", id="before POSIX"),
    pytest.param(member(b"a.txt", b"t", b"7"), "a", id="contiguous file"),
    pytest.param(member(b"a.txt", b"t", magic=b"ustar  \0", prefix=b"1234567\0"), "a", id="GNU times there"),
    pytest.param(member(b"a.txt", b"t", raw_size=b"\x80" + bytes(10) + b"\1"), "a", id="base 256"),
    pytest.param(member(b"a.txt", b"t", raw_size=b"          1 "), "a", id="size with spaces"),
    pytest.param(member("ä.txt".encode(), b"t", signed=b"yes"), "ä", id="signed checksum"),
    pytest.param(member(b"@LongLink", b"n" * 150 + b".txt\0", b"L") + member(b"n", b"t"), "n" * 150, id="GNU name"),
    pytest.param(member(b"././@LongLink", b"target\0", b"K") + member(b"a.txt", b"t"), "a", id="GNU long link"),
    pytest.param(member(b"pax", b"14 path=a.txt\n", b"x") + member(b"wrong", b"t"), "a", id="pax path"),
    pytest.param(
        member(b"pax", b"14 path=a.txt\n10 size=1\n", b"x") + header(b"w", 0) + b"t" + bytes(511), "a",
        id="pax size",
    ),
    pytest.param(
        member(b"pax", b"21 hdrcharset=BINARY\n14 path=\xe9.txt\n", b"x") + member(b"w", b"t"), "\udce9",
        id="pax, not UTF-8",
    ),
    pytest.param(member(b"pax", b"17 comment=hello\n", b"g") + member(b"a.txt", b"t"), "a", id="global pax"),
    pytest.param(member(b"././a.txt", b"t"), "a", id="dot slash twice"),
    pytest.param(member(b".//a.txt", b"t"), "a", id="dot slash slash"),
    pytest.param(member(b"x/", b"", b"5") + member(b"a.txt", b"t"), "a", id="folder"),
    pytest.param(member(b"x/", b"", b"\0", magic=bytes(8)) + member(b"a.txt", b"t"), "a", id="folder before POSIX"),
    pytest.param(member(b"a.b/c.d/x.txt", b"t"), "a.b/c.d/x", id="dots in folders"),
])  # fmt: skip
def test_headers_of_all_kinds(tar: Path, parts: bytes, name: str) -> None:
    tar.write_bytes(parts + END)
    assert rows_of(tar) == {name: {"txt": b"t"}}


@pytest.mark.parametrize(("parts", "why"), [
    pytest.param(member(b"a.txt", b"t", raw_size=b"-0000000001\0"), "is no size", id="negative"),
    pytest.param(member(b"a.txt", b"t", raw_size=b"9" * 11 + b"\0"), "is no size", id="not octal"),
    pytest.param(member(b"a.txt", b"t", raw_size=b"\xff" * 12), "is no size", id="negative base 256"),
    pytest.param(member(b"a.txt", b"t", raw_size=b"\x80" + b"\xff" * 11), "expected .* found 1,536", id="96 bits"),
    pytest.param(member(b"pax", b"99 path=a.txt\n", b"x") + member(b"a", b""), "malformed", id="pax too long"),
    pytest.param(member(b"pax", b"0 path=a\n", b"x") + member(b"a", b""), "malformed", id="pax of length 0"),
    pytest.param(member(b"pax", b"path=a\n", b"x") + member(b"a", b""), "malformed", id="pax without length"),
    pytest.param(member(b"pax", b"11 size=-1\n", b"x") + member(b"a", b""), "is no size", id="negative pax size"),
    pytest.param(header(b"pax", 1 << 30, b"x"), "extended header of 1,073,741,824 bytes", id="huge pax header"),
])  # fmt: skip
def test_headers_that_make_no_sense_are_refused(tar: Path, parts: bytes, why: str) -> None:
    tar.write_bytes(parts + END)
    with pytest.raises(CorruptShard, match=why) as caught:
        scan(tar, False)
    assert "shard.tar" in str(caught.value)


@pytest.mark.parametrize("posix", [[], ["--format=posix"]], ids=["GNU", "pax"])
def test_gnu_sparse_members_are_refused_by_name(tar: Path, tmp_path: Path, posix: list[str]) -> None:
    with open(tmp_path / "hole.bin", "wb") as file:
        file.write(b"start")
        file.truncate(10 << 20)
    subprocess.run(["tar", "--sparse", *posix, "-cf", tar, "-C", tmp_path, "hole.bin"], check=True)
    with pytest.raises(CorruptShard, match=r"'hole\.bin'.*sparse"):
        scan(tar, False)


def test_gnu_tar_of_a_folder_is_read_in_every_format(tar: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    wanted = {}
    for key in ("a", "x.y/b", "deep/" * 30 + "c", "n" * 200, "é"):
        file = folder / f"{key}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(key.encode())
        wanted[key] = {"txt": key.encode()}
    for fmt in ("gnu", "oldgnu", "pax", "posix"):
        subprocess.run(["tar", f"--format={fmt}", "-cf", tar, "-C", folder, "."], check=True)
        assert rows_of(tar) == wanted


def test_what_is_no_part_of_a_sample_is_left_out_and_counted(tar: Path) -> None:
    links = [header(b"l.jpg", 0, b"2"), header(b"h.jpg", 0, b"1")]
    names = (b"README", b"a/README", b".hidden", b"dot.", b"__meta__/a.txt", b"__x.y__", b"a.txt")
    tar.write_bytes(b"".join(links + [member(name, b"t") for name in names]) + END)
    with pytest.warns(ShardWarning) as caught:
        assert rows_of(tar) == {"a": {"txt": b"t"}}
    assert str(caught[0].message) == (
        "shard.tar: left out 2 links or devices ('l.jpg'), 4 without a key or an extension ('README'), "
        "2 WebDataset metadata ('__meta__/a.txt')"
    )


def test_field_names_come_in_lower_case_as_in_webdataset(tar: Path) -> None:
    raw_tar(tar, [("A.JPG", b"1"), ("A.Seg.PNG", b"2")])
    assert rows_of(tar) == {"A": {"jpg": b"1", "seg.png": b"2"}}


part = st.text("ab._%é ", min_size=1, max_size=4).filter(lambda text: text not in (".", ".."))
names = st.lists(part, min_size=1, max_size=3).map("/".join)


@given(
    members=st.dictionaries(names, st.binary(max_size=600), min_size=1, max_size=8),
    fmt=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_foreign_tars_hold_the_samples_that_webdataset_finds(members: dict[str, bytes], fmt: int) -> None:
    """Except files without a name before the dot (`x/.rc`), which WebDataset joins to their folder."""
    by_key: dict[str, dict[str, bytes]] = {}
    for name, data in sorted(members.items()):
        key, field = webdataset.tariterators.base_plus_ext(name)
        if key is None or key.endswith("/") or not field or name.rpartition("/")[2].startswith("._"):
            continue
        by_key.setdefault(key, {})[field] = data
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", ShardWarning)
        path = raw_tar(Path(folder, "t.tar"), sorted(members.items()), fmt)
        assert rows_of(path) == by_key


def test_uniform_arrays_of_a_foreign_tar_are_marked(tar: Path) -> None:
    raw_tar(tar, [(f"{i}.npy", npy(np.full((3, 4), i, "f4"))) for i in range(10)])
    field = scan(tar, False).fields["npy"]
    assert (field.dtype, field.shape, field.skip) == (np.dtype("f4"), (3, 4), 128)


def test_the_index_of_a_foreign_tar_knows_which_file_it_saw(tar: Path) -> None:
    raw_tar(tar, [("a.txt", b"t")])
    stat = tar.stat()
    assert scan(tar, False).extra == {"mtime_ns": str(stat.st_mtime_ns), "size": str(stat.st_size)}
    assert ShardIndex.from_buffer(np.frombuffer(scan(tar, False).to_bytes(), np.uint8), "x").samples == 1


def test_formats_are_found_by_name_and_by_suffix() -> None:
    assert [format_named(name).suffix for name in FORMATS] == [".tar", ".lmdb", ".h5"]
    assert [format_of(f"x/shard-000000{suffix}").name for suffix in (".tar", ".lmdb", ".h5", ".TAR")] == [
        *FORMATS,
        "tar",
    ]


@pytest.mark.parametrize(
    ("name", "guess"), [("hdf", "hdf5"), ("h5", "hdf5"), ("LMDB", "lmdb"), ("tat", "tar"), ("zip", "")]
)
def test_an_unknown_format_lists_the_known_ones(name: str, guess: str) -> None:
    with pytest.raises(UsageError, match="Known formats: tar, lmdb, hdf5") as caught:
        format_named(name)
    assert (f"Did you mean '{guess}'?" in str(caught.value)) == bool(guess)
    with pytest.raises(UsageError, match=r"\.tar, \.lmdb, \.h5"):
        format_of("shard.tar.gz")
