from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamio.codecs import decode_image
from streamio.errors import InputError, UsageError
from streamio.packing.pack import pack
from tests.packing.reading import contents, manifest
from tests.samples import jpg, png, tree


def _pack(src: Path, out: Path, **options: Any) -> Any:
    return pack(src, out, **{"workers": 1, **options})


def test_pictures_are_made_smaller_once(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {"a.jpg": jpg(64, 32), "b.png": png(10, 50), "c.jpg": jpg(5, 5), "c.txt": b"t"})
    _pack(src, tmp_path / "out", resize_short=8)
    found = contents(tmp_path / "out")
    shapes = {key: decode_image(fields.get("jpg") or fields["png"]).shape for key, fields in found.items()}
    assert shapes == {"a": (8, 16, 3), "b": (40, 8, 3), "c": (5, 5, 3)}
    assert found["c"] == {"jpg": (src / "c.jpg").read_bytes(), "txt": b"t"}  # nothing to do: the very same bytes
    _pack(src, tmp_path / "max", max_side=20)
    found = contents(tmp_path / "max")
    assert decode_image(found["b"]["png"]).shape == (20, 4, 3)
    _pack(src, tmp_path / "quality", quality=10, include=["a.jpg"])
    assert len(contents(tmp_path / "quality")["a"]["jpg"]) < (src / "a.jpg").stat().st_size


def test_raw_pictures_are_one_array(tmp_path: Path, fmt: str) -> None:
    src = tree(tmp_path / "in", {f"{c}/{i}.jpg": jpg(20 + i, 30) for c in "ab" for i in range(4)})
    report = _pack(src, tmp_path / "out", format=fmt, store="raw", resize_short=16, shard_samples=3)
    spec = manifest(tmp_path / "out").fields["jpg"]
    assert (spec.stored, spec.codec, spec.dtype, spec.shape, spec.samples) == (
        "jpg.npy",
        "npy",
        "|u1",
        (16, 16, 3),
        8,
    )
    pixels = contents(tmp_path / "out")["a/1"]["jpg.npy"]
    assert np.frombuffer(pixels[-16 * 16 * 3 :], np.uint8).reshape(16, 16, 3).mean() > 50
    assert report.fields == ("jpg", "cls")


def test_raw_shards_are_dealt_by_decoded_bytes(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {f"{i}.jpg": jpg(100, 100) for i in range(10)})
    for options in ({}, {"resize_short": 100}):
        out = tmp_path / f"out{len(options)}"
        _pack(src, out, store="raw", shard_size=100_000, **options)
        assert [shard.samples for shard in manifest(out).shards] == [3, 3, 3, 1]


def test_raw_pictures_of_two_sizes_are_refused_with_both(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {"a.jpg": jpg(20, 30), "b.jpg": jpg(20, 30), "c.jpg": jpg(20, 31)})
    with pytest.raises(InputError, match=r"a.jpg is 20 x 30 and c.jpg is 20 x 31.*resize-short"):
        _pack(src, tmp_path / "out", store="raw", shard_samples=1, workers=2)
    assert not (tmp_path / "out").exists()


def test_raw_pictures_of_many_kinds_are_one_field(tmp_path: Path, fmt: str) -> None:
    src = tree(tmp_path / "in", {"a/1.jpg": jpg(20, 30), "a/2.png": png(20, 30), "b/3.JPEG": jpg(20, 30)})
    for name, options, shape in (("own", {}, (30, 20, 3)), ("cut", {"resize_short": 8}, (8, 8, 3))):
        plan = _pack(src, tmp_path / name, format=fmt, store="raw", dry_run=True, **options)
        report = _pack(src, tmp_path / name, format=fmt, store="raw", **options)
        spec = manifest(tmp_path / name).fields["image"]
        assert (spec.stored, spec.shape, spec.samples) == ("image.npy", shape, 3)
        assert set(report.fields) == set(plan.fields) == {"image", "cls"}
    tree(src, {"b/4.bmp": png(21, 30)})
    with pytest.raises(InputError, match=r"1.jpg is 20 x 30 and b/4.bmp is 21 x 30"):
        _pack(src, tmp_path / "out", store="raw", shuffle=False)


def test_raw_pictures_of_one_sample_stay_apart(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {"1.jpg": jpg(), "1.png": png(), "2.jpg": jpg()})
    assert _pack(src, tmp_path / "out", store="raw").fields == ("jpg", "png")


@pytest.mark.parametrize("options", [{"resize_short": 8}, {"max_side": 8}, {"store": "raw", "resize_short": 8}])
def test_a_mask_beside_its_picture_is_not_blurred(tmp_path: Path, options: dict[str, Any]) -> None:
    src = tree(tmp_path / "in", {"1.jpg": jpg(64, 64), "2.jpg": jpg(64, 64), "2.png": png(64, 64)})
    with pytest.raises(UsageError, match=r"2.jpg, 2.png are one sample: .* mask would be blurred.*exclude"):
        _pack(src, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    assert _pack(src, tmp_path / "out", exclude="*.png", **options).samples == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_check_finds_pictures_that_do_not_decode(tmp_path: Path, workers: int) -> None:
    src = tree(tmp_path / "in", {f"a/{i}.jpg": jpg() for i in range(8)})
    (src / "a/3.jpg").write_bytes(jpg()[:300])
    (src / "a/5.jpg").write_bytes(b"<html>403</html>")
    _pack(src, tmp_path / "unchecked", workers=workers)
    with pytest.raises(InputError, match=r"(?s)1 file cannot be packed:\n  a/[35].jpg: .*on-error skip"):
        _pack(src, tmp_path / "out", check=True, shard_samples=2, workers=workers)
    assert not (tmp_path / "out").exists()
    report = _pack(
        src, tmp_path / "out", check=True, shard_samples=1, workers=workers, on_error="skip", shuffle=False
    )
    assert [bad.path for bad in report.skipped] == ["a/3.jpg", "a/5.jpg"] and "HTML" in report.skipped[1].reason
    # Shards that would be empty are left out before they are numbered.
    assert [shard.name for shard in manifest(tmp_path / "out").shards] == [f"shard-{n:06d}.tar" for n in range(6)]
    assert len(contents(tmp_path / "out")) == report.samples == 6


def test_a_sample_is_left_out_whole(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {"a.jpg": b"x", "a.txt": b"1", "b.jpg": jpg(), "b.txt": b"1", "c.txt": b"1"})
    report = _pack(src, tmp_path / "out", check=True, on_error="skip")
    assert set(contents(tmp_path / "out")) == {"b", "c"} and [bad.path for bad in report.skipped] == ["a.jpg"]


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {"a.jpg": b"x", "b.jpg": b"y"})
    with pytest.raises(InputError, match="nothing is left to pack"):
        _pack(src, tmp_path / "out", check=True, on_error="skip")
    tree(src, {"a.jpg": b"", "b.jpg": b""})
    with pytest.raises(InputError, match="nothing is left to pack"):
        _pack(src, tmp_path / "out", on_error="skip")
    assert not (tmp_path / "out").exists()


def test_gif_bmp_webp_and_tif_are_pictures(tmp_path: Path) -> None:
    for kind in ("gif", "bmp", "webp", "tiff"):
        Image.new("RGB", (4, 4)).save(_made(tmp_path / "in", f"x.{kind}"))
        os.rename(tmp_path / f"in/x.{kind}", _made(tmp_path / "in", f"{kind}/x.{kind}"))
    report = _pack(tmp_path / "in", tmp_path / "out", check=True)
    assert report.samples == 4 and report.layout == "classes"


def _made(folder: Path, name: str) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    return folder / name
