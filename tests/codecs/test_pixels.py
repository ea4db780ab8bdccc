"""Odd pictures, damaged pictures, crops while decoding."""

from __future__ import annotations

import gzip
import io
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from streamio.codecs import (
    BACKENDS,
    codec_for,
    decode_image,
    transform_image,
)
from streamio.errors import DecodeError, UsageError
from streamio.image import CenterCrop, Geometry, ImageOp, MaxSide, RandomResizedCrop, Resize
from tests.samples import jpg, png

Pixels = NDArray[np.uint8]
RED = [255, 0, 0]


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def photo(width: int = 500, height: int = 375, seed: int = 0) -> Image.Image:
    """Smooth colour, so that lossy formats and resizing keep it nearly exact."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def away(a: Pixels, b: Any) -> float:
    """Mean difference of two pictures of one shape."""
    b = np.asarray(b)
    assert a.shape == b.shape
    return float(np.abs(a.astype(int) - b.astype(int)).mean())


# Odd pictures.


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_img_01_cmyk_becomes_rgb_on_every_backend(backend: Any, options: dict[str, Any]) -> None:
    """pytorch/vision#6538, python-pillow/Pillow#2564, modelscope/ms-swift#10095."""
    data = saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95, **options)
    pixels = decode_image(data, backend=backend)
    assert pixels.shape == (16, 16, 3) and pixels.dtype == np.uint8 and pixels.flags.writeable
    assert np.abs(pixels.astype(int) - RED).max() <= 4
    assert decode_image(data, Resize((4, 4)), backend=backend).shape == (4, 4, 3)
    assert decode_image(data, mode="RGBA", backend=backend).shape == (16, 16, 4)


def palette_png() -> bytes:
    picture = Image.new("P", (2, 1))
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.putpixel((1, 0), 1)
    return saved(picture, "PNG", transparency=b"\xff\x00")


def test_img_04_palette_with_transparency_has_as_many_channels_as_asked() -> None:
    """meta-pytorch/torchcodec#1732."""
    assert decode_image(palette_png()).tolist() == [[[255, 0, 0], [0, 0, 255]]]
    assert decode_image(palette_png(), mode="RGBA").tolist() == [[[255, 0, 0, 255], [0, 0, 255, 0]]]
    assert decode_image(palette_png(), mode="L").shape == (1, 2, 1)


def test_img_06_the_bytes_decide_and_not_the_name() -> None:
    """nothings/stb#427."""
    codec = codec_for("jpg")
    for data in (png(), saved(Image.new("RGB", (8, 8), (200, 30, 30)), "WEBP", lossless=True), jpg()):
        assert np.abs(codec.decode(data).astype(int) - [200, 30, 30]).max() <= 4
        assert codec.peek(data) == {"width": 8, "height": 8}
    with pytest.raises(DecodeError, match="no picture but a gzip file"):
        codec.decode(gzip.compress(jpg()))


def test_img_08_a_bomb_is_refused_before_it_unpacks() -> None:
    """huggingface/dataset-viewer#1192, deepfates/memery#10."""
    bomb = saved(Image.new("1", (20_000, 20_000)), "PNG")
    assert len(bomb) < 50_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DecodeError, match=r"20000 x 20000 .* 400,000,000 .* limit of 178,956,970.*bomb"):
        decode_image(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB
    assert codec_for("png").peek(bomb) == {"width": 20_000, "height": 20_000}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_every_kind_obeys_the_limit_on_pixels(kind: str) -> None:
    data = saved(photo(100, 50), kind)
    with pytest.raises(DecodeError, match="100 x 50 are 5,000 pixels, more than the limit of 4,999"):
        decode_image(data, max_pixels=4999)
    assert decode_image(data, max_pixels=5000).shape == (50, 100, 3)


def test_a_raised_limit_lets_large_pictures_through_without_a_warning() -> None:
    large = saved(Image.new("1", (12_000, 8_000), 1), "PNG")  # above the size at which Pillow warns
    assert decode_image(large, Resize((3, 2)), mode="L").tolist() == [[[255]] * 2] * 3


def test_a_result_that_is_a_bomb_is_refused_too() -> None:
    with pytest.raises(DecodeError, match="bomb"):
        decode_image(png(2000, 1), Resize(1000))


ODD = {
    "grey": (Image.new("L", (4, 3), 77), [77] * 3),
    "grey and alpha": (Image.new("LA", (4, 3), (77, 10)), [77] * 3),
    "alpha keeps the colour beneath": (Image.new("RGBA", (4, 3), (9, 8, 7, 0)), [9, 8, 7]),
    "one bit": (Image.new("1", (4, 3), 1), [255] * 3),
    "16 bits": (Image.new("I;16", (4, 3), 0x12FF), [0x12] * 3),  # the upper eight, not clipped
    "palette": (Image.new("RGB", (4, 3), (1, 2, 3)).convert("P", palette=Image.Palette.ADAPTIVE), [1, 2, 3]),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_odd_modes_come_out_as_rgb(name: str, kind: str) -> None:
    picture, colour = ODD[name]
    pixels = decode_image(saved(picture, kind))
    assert pixels.shape == (3, 4, 3) and (pixels == colour).all()


def test_grey_jpeg_is_rgb_or_one_channel_as_asked() -> None:
    data = saved(Image.new("L", (9, 8), 77), "JPEG")
    for backend in BACKENDS:
        assert (decode_image(data, backend=backend) == 77).all()
        assert decode_image(data, mode="L", backend=backend).shape == (8, 9, 1)  # type: ignore[arg-type]
        assert (decode_image(data, mode="RGBA", backend=backend)[..., 3] == 255).all()  # type: ignore[arg-type]


def test_16_bit_pgm_and_rgb_are_scaled() -> None:
    assert (decode_image(b"P5\n# a comment\n2 1\n65535\n" + b"\x80\x12\xff\xff") == [[[128] * 3, [255] * 3]]).all()
    colour = decode_image(b"P6 1 1 65535\n" + b"\x10\xff\x20\xff\x30\xff")
    assert np.abs(colour.astype(int) - [16, 32, 48]).max() <= 1


@pytest.mark.parametrize(("mode", "words"), [("F", "floating-point"), ("I", "32-bit whole numbers")])
def test_numbers_that_are_no_colours_are_refused_by_name(mode: str, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        decode_image(saved(Image.new(mode, (4, 3)), "TIFF"))


def test_of_a_gif_and_other_animations_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "blue")]
    for kind, options in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("TIFF", {})):
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert (decode_image(data) == RED).all() and decode_image(data).shape == (4, 5, 3)


def test_memoryviews_and_unaligned_slices_decode() -> None:
    data = memoryview(b"x" + jpg() + png())
    cut = len(jpg()) + 1
    assert (decode_image(data[1:cut]) == decode_image(jpg())).all()
    assert (decode_image(data[cut:]) == decode_image(png())).all()


# Orientation.


def turned(orientation: int, kind: str, size: tuple[int, int] = (96, 64)) -> tuple[bytes, Pixels]:
    """A picture with this EXIF orientation, and what it is to look like."""
    picture = photo(*size)
    exif = Image.Exif()
    exif[0x112] = orientation
    options: dict[str, Any] = {"JPEG": {"quality": 98, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    data = saved(picture, kind, exif=exif, **options)
    picture.getexif()[0x112] = orientation
    return data, np.asarray(ImageOps.exif_transpose(picture))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_upright_whatever_their_exif_orientation(kind: str, orientation: int) -> None:
    data, upright = turned(orientation, kind)
    assert away(decode_image(data), upright) < 1.5
    height, width = upright.shape[:2]
    assert codec_for("jpg").peek(data) == {"width": width, "height": height}


class Corner:
    """Mirrors the upper left quarter, at a fourth of its width and height."""

    size = None

    def plan(self, width: int, height: int, rng: np.random.Generator | None) -> Geometry:
        return Geometry((0, 0, width / 2, height / 2), (height // 8, width // 8), flip=True)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_crops_are_planned_on_the_upright_picture(kind: str, orientation: int) -> None:
    data, upright = turned(orientation, kind, (800, 640))
    height, width = upright.shape[:2]
    pixels = decode_image(data, Corner())
    quarter = Image.fromarray(upright[: height // 2, : width // 2])
    expected = quarter.resize((width // 8, height // 8), Image.Resampling.BILINEAR)
    assert away(pixels, np.asarray(expected)[:, ::-1]) < 2
    assert pixels.flags.c_contiguous


def test_orientation_is_read_past_other_segments_and_damage_means_none() -> None:
    data = jpg(8, 4, exif=6)
    at = data.index(b"\xff\xe1")
    xmp = b"\xff\xe1\x00\x10http://xmp\0xyz"
    assert decode_image(data[:at] + xmp + data[at:]).shape == (8, 4, 3)
    for value in (0, 9, 255):
        assert decode_image(jpg(8, 4, exif=value)).shape == (4, 8, 3)
    assert decode_image(data.replace(b"II*\0", b"II*\1").replace(b"MM\0*", b"MM\1*")).shape in (
        (4, 8, 3),
        (8, 4, 3),
    )


# Crops and resizes while decoding.


def reference(data: bytes, op: ImageOp, seed: int) -> Pixels:
    """Decode whole, then resize the box."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    plan = op.plan(*picture.size, np.random.default_rng(seed))
    assert plan.size is not None
    left, top, width, height = plan.box
    box = (left, top, left + width, top + height)
    pixels = np.asarray(picture.resize(plan.size[::-1], Image.Resampling.BILINEAR, box=box))
    return pixels[:, ::-1] if plan.flip else pixels


OPS = [
    Resize(64), Resize((375, 500)), Resize((188, 250)), Resize((94, 125)), Resize((47, 63)), Resize((10, 300)),
    Resize(700), MaxSide(120), CenterCrop(224), CenterCrop(64, resize=80), CenterCrop((20, 100), resize=400),
    RandomResizedCrop(224, flip=0.5), RandomResizedCrop((32, 48), flip=0.5), RandomResizedCrop(8),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", OPS, ids=repr)
def test_scaled_decoding_is_resizing_the_whole(op: ImageOp, backend: Any) -> None:
    data = saved(photo(), "JPEG", quality=95)
    for seed in range(3):
        pixels = decode_image(data, op, np.random.default_rng(seed), backend=backend)
        assert pixels.flags.c_contiguous
        assert away(pixels, reference(data, op, seed)) < 1.5


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 3), (17, 15), (63, 65), (333, 129)])
def test_small_and_odd_sizes_scale_alike_on_every_backend(size: tuple[int, int]) -> None:
    data = saved(photo(*size), "JPEG", quality=95)
    for result in ((1, 1), (2, 3), (33, 17)):
        a, b = (decode_image(data, Resize(result), backend=backend) for backend in BACKENDS)
        assert a.shape == b.shape == (*result, 3)
        assert away(a, b) < 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("op", [None, CenterCrop((375, 500)), Resize((188, 250)), RandomResizedCrop(64, flip=1)])
def test_out_is_filled_whatever_its_strides(kind: str, op: ImageOp | None) -> None:
    data = saved(photo(), kind)

    def rng() -> np.random.Generator:
        return np.random.default_rng(5)

    plain = decode_image(data, op, rng())
    batch = np.zeros((2, *plain.shape), np.uint8)
    planes = np.zeros((3, *plain.shape[:2]), np.uint8)
    for out in (batch[1], planes.transpose(1, 2, 0), np.zeros(plain.shape, np.uint8)[::-1]):
        assert decode_image(data, op, rng(), out=out) is out
        assert (out == plain).all()
    assert not batch[0].any()


@pytest.mark.parametrize("op", [None, Resize(50), CenterCrop(64), MaxSide(400), Resize((188, 250))], ids=repr)
def test_results_are_the_callers_own(op: ImageOp | None) -> None:
    """Threads reuse memory while decoding; what they gave away before stays as it was."""
    files = [saved(photo(seed=seed), "JPEG" if seed % 2 else "PNG") for seed in range(6)]
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda data: decode_image(data, op), files * 5))
    for pixels, data in zip(made, files * 5, strict=True):
        assert pixels.flags.writeable and pixels.flags.c_contiguous
        assert (pixels == decode_image(data, op)).all()


def test_pictures_larger_than_the_reused_memory_decode_too() -> None:
    data = saved(photo(3000, 2000), "JPEG")
    assert decode_image(data, CenterCrop((1900, 2900))).shape == (1900, 2900, 3)


def test_out_of_another_shape_is_a_fault_of_the_caller() -> None:
    with pytest.raises(AssertionError, match=r"\(3, 3, 3\).*\(8, 8, 3\)"):
        decode_image(jpg(), out=np.zeros((3, 3, 3), np.uint8))


def test_modes_keep_their_channels_through_a_resize() -> None:
    data = saved(Image.new("RGBA", (40, 30), (10, 20, 30, 128)), "PNG")
    resized = decode_image(data, Resize((3, 4)), mode="RGBA")
    assert resized.shape == (3, 4, 4) and np.abs(resized.astype(int) - [10, 20, 30, 128]).max() <= 1
    assert decode_image(data, Resize((3, 4)), mode="L").shape == (3, 4, 1)


def test_transform_does_to_arrays_what_decoding_does_to_pictures() -> None:
    data = saved(photo(), "PNG")
    op = RandomResizedCrop(64, flip=0.5)
    pixels = decode_image(data)
    for seed in range(4):
        a = decode_image(data, op, np.random.default_rng(seed))
        out = np.zeros((64, 64, 3), np.uint8)
        assert transform_image(pixels, op, np.random.default_rng(seed), out=out) is out
        assert (a == out).all()
    assert transform_image(pixels[:, :, :1], Resize((3, 4))).shape == (3, 4, 1)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(UsageError, match="opengl"):
        decode_image(jpg(), backend="opengl")  # type: ignore[arg-type]


# Damage.


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
@pytest.mark.parametrize("share", [0.999, 0.6, 0.3, 0.02])
def test_a_cut_file_is_an_error_that_says_so(kind: str, share: float) -> None:
    data = saved(photo(), kind)
    for backend in BACKENDS:
        with pytest.raises(DecodeError, match=r"cut|damaged"):
            decode_image(data[: int(len(data) * share)], backend=backend)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cut_jpeg_is_noticed_when_it_is_scaled_or_ends_like_a_whole_one(backend: Any) -> None:
    data = saved(photo(), "JPEG")
    half = data[: len(data) // 2]
    with pytest.raises(DecodeError, match="cut"):
        decode_image(half, Resize(50), backend=backend)
    if backend == "simplejpeg":  # Pillow fills up with grey here and says nothing
        with pytest.raises(DecodeError, match="cut"):
            decode_image(half + b"\xff\xd9")


def test_stray_bytes_that_leave_the_picture_whole_are_no_error() -> None:
    data = saved(photo(), "JPEG", quality=95)
    whole = decode_image(data)
    assert away(decode_image(data[:-2] + b"\0\0\0\xff\xd9"), whole) < 1
    assert (decode_image(data + b"trailing") == whole).all()
    at = data.index(b"\xff\xdb")
    assert (decode_image(data[:at] + b"\0\xff\0" + data[at:]) == whole).all()


FUZZED = {
    kind: saved(photo(40, 30), kind, **options)
    for kind, options in (
        ("JPEG", {}),
        ("PNG", {}),
        ("WEBP", {}),
        ("BMP", {}),
        ("GIF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("PPM", {}),
    )
}


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", FUZZED)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_altered_bytes_decode_or_raise_a_decode_error(kind: str, data: st.DataObject) -> None:
    altered = bytearray(FUZZED[kind])
    places = st.integers(0, len(altered) - 1) | st.integers(0, 60)
    for at in data.draw(st.lists(places, min_size=1, max_size=4)):
        altered[at] = data.draw(st.integers(0, 255))
    codec_for("jpg").peek(bytes(altered))
    with suppress(DecodeError):
        assert decode_image(bytes(altered), Resize((5, 6)), max_pixels=1_000_000).shape == (5, 6, 3)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_an_error_and_have_no_size(data: bytes) -> None:
    assert codec_for("jpg").peek(data) == {}
    with pytest.raises(DecodeError):
        decode_image(data)
