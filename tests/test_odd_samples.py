"""Odd pictures and odd tars, end to end: what a training loop gets, or the error that it ends with."""

from __future__ import annotations

import gzip
import io
import os
import re
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import streamio
from streamio import CorruptShard, DecodeError, ShardWarning, StreamioError
from streamio.image import CenterCrop
from tests.samples import big_tar, jpg, png, raw_tar
from tests.sets import keys, read


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def palette_png() -> bytes:
    picture = Image.new("P", (2, 1))
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.putpixel((1, 0), 1)
    return saved(picture, "PNG", transparency=b"\xff\x00")


def bomb_png() -> bytes:
    """20,000 x 20,000 pixels of one bit in 48 KB."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(2501)) for _ in range(20_000)) + packer.flush()
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("operation", [None, CenterCrop(8)])
def test_img_01_cmyk_comes_as_rgb_between_ordinary_pictures(tmp_path: Path, fmt: str, operation: Any) -> None:
    """pytorch/vision#6538; python-pillow/Pillow#2564; modelscope/ms-swift#10095."""
    ink = saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    red = jpg(16, 16, colour=(255, 0, 0))
    pictures = {"a": red, "cmyk": ink, "z": red}
    streamio.write(({"__key__": k, "jpg": d} for k, d in pictures.items()), tmp_path / "s", format=fmt)
    (batch,) = read(tmp_path / "s", 3, decode=operation)
    assert batch["jpg"].shape[3] == 3 and batch["__key__"] == ["a", "cmyk", "z"]
    assert np.abs(batch["jpg"].numpy().astype(int) - [255, 0, 0]).max() <= 4


def test_img_04_a_palette_with_transparency_has_three_channels(tmp_path: Path, fmt: str) -> None:
    """meta-pytorch/torchcodec#1732."""
    streamio.write([{"png": palette_png()}], tmp_path / "s", format=fmt)
    assert read(tmp_path / "s", 1)[0]["png"].tolist() == [[[[255, 0, 0], [0, 0, 255]]]]


def test_img_06_the_bytes_decide_and_the_gzipped_one_is_named(tmp_path: Path) -> None:
    """nothings/stb#427."""
    webp = saved(Image.new("RGB", (8, 8), (200, 30, 30)), "WEBP", lossless=True)
    members = [("a.jpg", png()), ("b.JPEG", gzip.compress(jpg())), ("c.jpg", webp), ("d.jpg", jpg())]
    path = raw_tar(tmp_path / "a.tar", members)
    with pytest.raises(DecodeError, match=r"a\.tar, row 1 \('b'\).*gzip"):
        read([path], 4)
    report = tmp_path / "bad.jsonl"
    (batch,) = read([path], 4, on_error="skip", error_report=report)
    assert batch["__key__"] == ["a", "c", "d"]
    assert np.abs(batch["image"].numpy().astype(int) - [200, 30, 30]).max() <= 4
    assert re.findall(r'"key": "(\w+)"', report.read_text()) == ["b"]


BOMB = """
import resource, sys, logging, streamio
from streamio.image import Resize
logging.disable()
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
for decode in (None, Resize((8, 8))):
    try:
        list(streamio.ShardDataset(sys.argv[1], 4, decode=decode))
    except streamio.DecodeError as error:
        assert "'bomb'" in str(error) and "decompression bomb" in str(error) and "178,956,970" in str(error)
    (batch,) = streamio.ShardDataset(sys.argv[1], 4, decode=decode, on_error="skip")
    assert batch["__key__"] == ["a", "b", "c"]
print(peak() - before)
"""


def test_img_08_a_bomb_is_refused_and_the_others_arrive(tmp_path: Path) -> None:
    """huggingface/dataset-viewer#1192; deepfates/memery#10."""
    pictures = {"a": png(), "b": png(), "bomb": bomb_png(), "c": png()}
    assert len(pictures["bomb"]) < 50_000
    streamio.write(({"__key__": k, "png": d} for k, d in pictures.items()), tmp_path / "s")
    done = subprocess.run([sys.executable, "-c", BOMB, str(tmp_path / "s")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300  # MB


@pytest.mark.parametrize("operation", [None, CenterCrop(8)])
def test_img_08_the_limit_is_the_users(tmp_path: Path, operation: Any) -> None:
    streamio.write([{"png": png(100, 50)}], tmp_path / "s")
    with pytest.raises(DecodeError, match="5,000 pixels, more than the limit of 4,999"):
        read(tmp_path / "s", 1, max_pixels=4999, decode=operation)
    assert read(tmp_path / "s", 1, max_pixels=5000, decode=operation)[0]["png"].shape[0] == 1


A, B = jpg(), jpg(colour=(0, 0, 255))


def test_tar_02_members_of_a_sample_may_lie_apart(tmp_path: Path) -> None:
    """webdataset/webdataset#140, #258; ray-project/ray#63407."""
    members = [("001.jpg", A), ("002.jpg", B), ("001.txt", b"x"), ("002.txt", b"y")]
    (batch,) = read([raw_tar(tmp_path / "a.tar", members)], 4, decode={"jpg": False})
    assert (batch["__key__"], batch["jpg"], batch["txt"]) == (["001", "002"], [A, B], ["x", "y"])


def test_tar_03_a_member_that_comes_twice_ends_with_its_name(tmp_path: Path) -> None:
    """webdataset/webdataset#286, #157."""
    with pytest.raises(CorruptShard, match=r"a\.tar: 'a\.jpg' comes twice, at bytes 512 and"):
        read([raw_tar(tmp_path / "a.tar", [("a.jpg", A), ("a.json", b"{}"), ("a.jpg", B)])], 1)


@pytest.mark.parametrize("fmt", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_tar_06_what_lies_behind_8_gib_arrives(tmp_path: Path, fmt: int) -> None:
    """libarchive/libarchive#880, #2405; golang/go#15573."""
    path = big_tar(tmp_path / "a.tar", fmt)
    ((text, key),) = read([path], 1, fields=("txt", "__key__"))[1:]
    assert (text, key) == (["end"], ["z"])
    assert streamio.open([path])._opened.files.index(0).fields["bin"].sizes.tolist() == [8 * 2**30 + 1, -1]


def test_tar_07_apple_doubles_and_pax_headers_are_no_samples(tmp_path: Path) -> None:
    """mvt-project/mvt#922; libarchive/libarchive#900."""
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "0" * 40}) as tar:
        for name in ("._a.jpg", "a.jpg"):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(A), {"comment": "local"}
            tar.addfile(info, io.BytesIO(A))
    with pytest.warns(ShardWarning, match=r"a\.tar: left out 1 AppleDouble"):
        assert keys(read([tmp_path / "a.tar"], 1)) == ["a"]


def test_tar_10_joined_tars_give_all_their_samples(tmp_path: Path) -> None:
    """libarchive/libarchive#457; mhausherr/Light-Untar-for-iOS#29."""
    parts = [raw_tar(tmp_path / f"{p}.tar", [(f"{p}{i}.txt", b"t") for i in range(3)]) for p in "ab"]
    (tmp_path / "c.tar").write_bytes(b"".join(part.read_bytes() for part in parts))
    with pytest.warns(ShardWarning, match="data goes on after the end mark"):
        assert keys(read([tmp_path / "c.tar"], 6)) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_tar_11_a_tar_without_its_end_gives_what_is_there_with_a_warning(tmp_path: Path) -> None:
    """onekey-sec/unblob#156; mafintosh/tar-stream#82."""
    path = raw_tar(tmp_path / "a.tar", [(f"{i}.txt", b"t") for i in range(3)])
    os.truncate(path, 2048)
    with pytest.warns(ShardWarning, match=r"a\.tar: no end of archive"):
        assert keys(read([path], 3)) == ["0", "1"]
    streamio.write([{"txt": str(i)} for i in range(3)], tmp_path / "own")
    os.truncate(tmp_path / "own" / "shard-000000.tar", 2048)
    with pytest.raises(CorruptShard, match=r"shard-000000\.tar \(2,048 of [\d,]+ bytes, cut\)"):
        read(tmp_path / "own", 3)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "0 bytes"),
        (b"<html>403</html>", "an HTML page"),
        (gzip.compress(bytes(10240), mtime=0), "a gzip file.*unpack it first"),
        (bytes(10240), "all its 10,240 bytes are zero, so it holds 0 samples"),
    ],
    ids=["nothing", "html", "gzip", "zeros"],
)
@pytest.mark.filterwarnings("always::streamio.ShardWarning")
def test_corr_05_what_is_no_tar_is_named_for_what_it_is(tmp_path: Path, data: bytes, found: str) -> None:
    """python/cpython#80777, #67245."""
    path = tmp_path / "shard.tar"
    path.write_bytes(data)
    for source in (path, [path]):
        with pytest.WarningsRecorder(_ispytest=True) as warned, pytest.raises(StreamioError) as caught:
            read(source, 1)
        said = " ".join([str(caught.value), *(str(w.message) for w in warned)])
        assert re.search(rf"shard\.tar: .*{found}", said)


def test_a_tar_that_webdataset_wrote_gives_the_fields_and_keys_that_it_reads(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    sample = {"jpg": A, "cls": 3, "json": {"a": 1}, "seg.png": png(), "x.npy": np.arange(3), "txt": "hé"}
    with wds.ShardWriter(str(tmp_path / "x-%03d.tar"), maxcount=3, verbose=0) as writer:
        for i in range(7):
            writer.write({"__key__": f"dir.x/a{i}", **sample})
    (batch,) = read(str(tmp_path / "x-{000..002}.tar"), 7)
    assert batch["__key__"] == [f"dir.x/a{i}" for i in range(7)]
    assert batch["jpg"].shape == (7, 8, 8, 3) == batch["seg.png"].shape and batch["cls"].tolist() == [3] * 7
    assert (
        batch["json"] == [{"a": 1}] * 7 and batch["x.npy"].tolist() == [[0, 1, 2]] * 7 and batch["txt"][6] == "hé"
    )
