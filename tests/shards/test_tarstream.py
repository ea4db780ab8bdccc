"""Samples out of a sequential tar: those that WebDataset would give, or an error that names shard and sample."""

from __future__ import annotations

import gzip
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import webdataset

from streamio.errors import CorruptShard, ShardWarning, UsageError
from streamio.shards.tar import member_headers
from streamio.shards.tarstream import HeldSamples, StreamSample, stream_samples, stream_sources
from tests.samples import raw_tar

MEMBERS = [
    ("a/0.jpg", b"J" * 700), ("a/0.cls", b"3"), ("a/1.jpg", b""), ("a/1.seg.png", b"S" * 512), ("a/1.cls", b"4"),
    ("b.x/2.JPG", b"K" * 1025),
]  # fmt: skip
SAMPLES = [
    ("a/0", {"jpg": b"J" * 700, "cls": b"3"}),
    ("a/1", {"jpg": b"", "seg.png": b"S" * 512, "cls": b"4"}),
    ("b.x/2", {"jpg": b"K" * 1025}),
]


def blocks(data: bytes, size: int = 1000) -> Iterator[bytes]:
    return iter([data[at : at + size] for at in range(0, len(data), size)])


def samples(data: bytes, size: int = 1000) -> list[StreamSample]:
    return list(stream_samples(blocks(data, size), "s.tar"))


def pairs(data: bytes, size: int = 1000) -> list[tuple[str, dict[str, bytes]]]:
    return [(sample.key, sample.fields) for sample in samples(data, size)]


@pytest.fixture
def tar(tmp_path: Path) -> bytes:
    return raw_tar(tmp_path / "a.tar", MEMBERS).read_bytes()


@pytest.mark.parametrize("size", [1, 511, 512, 513, 100_000])
def test_samples_come_whole_however_the_bytes_are_cut(tar: bytes, size: int) -> None:
    assert pairs(tar, size) == SAMPLES
    assert [sample.number for sample in samples(tar, size)] == [0, 1, 2]


@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_they_are_those_of_webdataset(tmp_path: Path, fmt: int) -> None:
    more = [("long/" + "n" * 90 + ".cls", b"5"), ("größe.txt", b"g")]
    path = raw_tar(tmp_path / "a.tar", [*MEMBERS, *more], fmt)
    with open(path, "rb") as file:
        members = webdataset.tariterators.tar_file_expander([{"url": "a.tar", "stream": file}])
        theirs = [
            (sample["__key__"], {k: v for k, v in sample.items() if not k.startswith("__")})
            for sample in webdataset.tariterators.group_by_keys(members)
        ]
    assert pairs(path.read_bytes()) == theirs


@pytest.mark.parametrize("parts", [1, 2])
def test_gzip_is_unpacked_on_the_way(tar: bytes, parts: int) -> None:
    at = len(tar) // parts
    packed = b"".join(gzip.compress(tar[n * at :][: at if n < parts - 1 else None]) for n in range(parts))
    assert pairs(packed, 7) == pairs(packed + bytes(100)) == SAMPLES


def test_a_bomb_is_unpacked_in_small_pieces() -> None:
    """50 MB of zeros behind the end mark of a tar, in 50 KB; only what is at hand is kept."""
    packed = gzip.compress(bytes(50 << 20), 9)
    with pytest.warns(ShardWarning, match="0 samples"):
        assert samples(packed, len(packed)) == []


def test_a_name_is_a_key_and_never_a_path(tmp_path: Path) -> None:
    names = ["../../etc/x.jpg", "/abs/y.jpg", "a/../b/z.jpg"]
    tar = raw_tar(tmp_path / "a.tar", [(name, b"1") for name in names]).read_bytes()
    assert [sample.key for sample in samples(tar)] == ["../../etc/x", "/abs/y", "a/../b/z"]


@pytest.mark.parametrize("lost", [1, 512, 1024, 1500, 2000, 3000])
def test_a_cut_stream_names_shard_and_sample(tar: bytes, lost: int) -> None:
    end = len(tar.rstrip(b"\0")) // 512 * 512 + 512  # of the last payload
    got: list[tuple[str, dict[str, bytes]]] = []
    coming = stream_samples(blocks(tar[: end - lost]), "s.tar")
    with pytest.raises(CorruptShard, match=r"s\.tar, row \d \('(a/1|b\.x/2)'\).*cut") as error:
        got.extend((sample.key, sample.fields) for sample in coming)
    assert got == SAMPLES[: len(got)]
    assert error.value.where["row"] == len(got)


def test_a_stream_that_stops_between_two_members_is_cut(tar: bytes) -> None:
    """WebDataset takes this for the end of the shard."""
    end = 512 + 1024 + 512 + 512
    with pytest.raises(CorruptShard, match=r"row 0 \('a/0'\).*without the closing zero blocks"):
        samples(tar[:end])


def test_a_cut_gzip_file_is_an_error(tar: bytes) -> None:
    packed = gzip.compress(tar)
    with pytest.raises(CorruptShard, match="gzip data is cut"):
        samples(packed[:-10])
    damaged = packed[:-8] + b"\0\0\0\0" + packed[-4:]
    with pytest.raises(CorruptShard, match="gzip data is damaged"):
        samples(damaged)


def test_a_damaged_header_is_not_the_end(tar: bytes) -> None:
    at = tar.index(b"a/1.seg.png")
    with pytest.raises(CorruptShard, match=r"row 1 \('a/1'\).*wrong checksum"):
        samples(tar[:at] + b"b" + tar[at + 1 :])


def test_a_cut_pax_header_is_an_error(tmp_path: Path) -> None:
    tar = raw_tar(tmp_path / "a.tar", [("ü" * 200 + ".cls", b"1")], tarfile.PAX_FORMAT).read_bytes()
    with pytest.raises(CorruptShard, match="cut"):
        samples(tar[:700])


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "nothing"),
        (b"<html><body>Sign in</body></html>", "an HTML page"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "a zstd file.*pipe:zstd -dc"),
        (gzip.compress(b"no tar at all" * 100, mtime=0), "is no tar: text"),
        (b"x", "is no tar"),
    ],
)
def test_what_is_no_tar_is_said_to_be_what_it_is(data: bytes, found: str) -> None:
    with pytest.raises(CorruptShard, match=f"s\\.tar.*{found}"):
        samples(data)


def test_a_field_that_comes_twice_is_an_error(tmp_path: Path) -> None:
    tar = raw_tar(tmp_path / "a.tar", [("0.jpg", b"1"), ("0.jpg", b"2")]).read_bytes()
    with pytest.raises(CorruptShard, match=r"row 0 \('0'\): '0.jpg' comes twice"):
        samples(tar)


def test_members_that_lie_apart_are_two_samples(tmp_path: Path) -> None:
    """Nobody can know better without reading to the end; the docs say so."""
    tar = raw_tar(tmp_path / "a.tar", [("0.jpg", b"1"), ("1.jpg", b"2"), ("0.cls", b"3")]).read_bytes()
    assert [sample.key for sample in samples(tar)] == ["0", "1", "0"]


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    tar = raw_tar(tmp_path / "a.tar", [("._0.jpg", b"x"), ("0.jpg", b"1"), ("README", b"r")]).read_bytes()
    with pytest.warns(ShardWarning, match="AppleDouble"):
        assert pairs(tar) == [("0", {"jpg": b"1"})]


def test_tars_joined_with_cat_are_one_stream(tar: bytes) -> None:
    assert pairs(tar + tar) == SAMPLES * 2


def test_memory_does_not_grow_with_the_stream() -> None:
    """One sample, one block and no list of members: 20 MB go through in under 1 MB."""

    def endless() -> Iterator[bytes]:
        for n in range(20_000):
            yield member_headers([b"%d.bin" % n], np.array([512]))[0] + bytes(512)
        yield bytes(1024)

    tracemalloc.start()
    try:
        assert sum(1 for _ in stream_samples(endless(), "s.tar")) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_held_samples_are_read_as_a_table() -> None:
    table = HeldSamples(("jpg", "cls", "image"), ("x/s.tar",))
    table.hold({7: StreamSample("s.tar", 3, "k", {"png": b"P", "cls": b"1"}),
                9: StreamSample("s.tar", 4, "l", {"jpg": b"J", "cls": b"2"})})  # fmt: skip
    columns = table.gather(np.array([9, 7, 9]), ["jpg", "image"])
    assert [[None if v is None else bytes(v) for v in column.values] for column in columns.values()] == [
        [b"J", None, b"J"], [b"J", b"P", b"J"]
    ]  # fmt: skip
    assert table.keys(np.array([9, 7])) == ["l", "k"] and table.locate(7) == ("s.tar", 3)


def test_a_field_that_no_sample_has_is_named_at_once() -> None:
    table = HeldSamples(("jpeg",), ("s.tar",))
    with pytest.raises(UsageError, match=r"s\.tar, row 0 \('k'\): none of the first 1 .* field 'jpeg'. .*has: jpg"):
        table.hold({0: StreamSample("s.tar", 0, "k", {"jpg": b""})})


def test_sources_are_expanded_where_they_are_patterns(tmp_path: Path) -> None:
    for name in ("a-0.tar", "a-1.tar", "b.tar"):
        (tmp_path / name).touch()
    assert stream_sources("pipe:cat a-{0..1}.tar | awk '{print}'") == (
        "pipe:cat a-0.tar | awk '{print}'", "pipe:cat a-1.tar | awk '{print}'"
    )  # fmt: skip
    assert stream_sources("pipe:echo {") == ("pipe:echo {",)
    paths = stream_sources([f"{tmp_path}/a-*.tar", f"{tmp_path}/{{b,a-0}}.tar", "http://host/{0..1}.tar"])
    assert [Path(path).name for path in paths] == ["a-0.tar", "a-1.tar", "b.tar", "a-0.tar", "0.tar", "1.tar"]


@pytest.mark.parametrize("source", [[], ["-", "a.tar"], ["-", "-"]])
def test_sources_that_make_no_sense_are_refused(
    source: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tar").touch()
    with pytest.raises(UsageError, match=r"no shards|standard input as one of 2"):
        stream_sources(source)


def test_a_set_that_moved_has_the_same_fingerprint() -> None:
    places = [("/a/x.tar", "/a/y.tar"), ("https://user:pass@host/x.tar?sig=1", "/b/y.tar")]
    assert len({HeldSamples(("jpg",), place).fingerprint for place in places}) == 1
    assert (
        HeldSamples(("jpg",), ("/a/y.tar", "/a/x.tar")).fingerprint != HeldSamples(("jpg",), places[0]).fingerprint
    )
