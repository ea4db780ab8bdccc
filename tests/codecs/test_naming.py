"""Stored names, and the registry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from streamio.codecs import BYTES, codec_for, codec_named, encode_field, stored_name
from streamio.codecs.raster import IMAGES
from streamio.errors import UsageError


@pytest.mark.parametrize(
    ("field", "value", "stored", "back"),
    [
        ("x", np.arange(3), "x.npy", np.arange(3)),
        ("x", np.float32(0.1), "x.npy", np.float32(0.1)),  # a typed number keeps its type
        ("x", np.array(5), "x.npy", 5),
        ("x", torch.ones(2, requires_grad=True), "x.npy", [1, 1]),
        ("x", 5, "x.int", 5),
        ("x", 0.1, "x.float", 0.1),
        ("x", True, "x.bool", True),
        ("x", "text", "x.txt", "text"),
        ("x", np.str_("text"), "x.txt", "text"),
        ("x", {"a": [1]}, "x.json", {"a": [1]}),
        ("x", [1, "a"], "x.json", [1, "a"]),
        ("x", (1, 2), "x.json", [1, 2]),
        ("x", b"raw", "x", b"raw"),
        ("x", bytearray(b"raw"), "x", b"raw"),
        ("x", memoryview(b"raw"), "x", b"raw"),
        ("cls", np.int64(3), "cls", 3),
        ("cls", torch.tensor(3), "cls", 3),
        ("score", np.float32(0.5), "score", 0.5),
        ("npy", np.arange(3), "npy", [0, 1, 2]),
        ("a.b.JSON", {"a": 1}, "a.b.JSON", {"a": 1}),
        ("json", None, "json", None),
        ("json", 5, "json", 5),
        ("v1.2", 5, "v1.2.int", 5),
        ("png", np.zeros((2, 3), np.uint8), "png", np.zeros((2, 3, 3))),
    ],
)
def test_a_value_is_stored_under_a_name_that_says_what_it_is(
    field: str, value: Any, stored: str, back: Any
) -> None:
    assert stored_name(field, value) == stored
    decoded = codec_for(stored).decode(encode_field(stored, value))
    assert np.array_equal(decoded, back) and (not isinstance(back, np.generic) or decoded.dtype == back.dtype)


@pytest.mark.parametrize("value", [None, {1}, object(), 1j, Image.new("RGB", (2, 2)), print], ids=type)
def test_values_of_no_storable_kind_are_refused_by_field_and_type(value: Any) -> None:
    with pytest.raises(UsageError, match=rf"field x: a value of type {type(value).__name__} cannot be stored"):
        stored_name("x", value)


@pytest.mark.parametrize(
    ("stored", "value", "words"),
    [
        ("x.npy", np.array([None]), "field x.npy: .*Python objects"),
        ("x.json", {"a": {1}}, "field x.json: .*set"),
        ("cls", "cat", "field cls: .*whole number, not str 'cat'"),
        ("id", np.arange(3), r"field id: .*array of int64 \(3,\).*another name"),
        ("x", 5, "field x: int in a field of bytes"),
    ],
)
def test_what_a_field_cannot_hold_is_refused_by_field_and_type(stored: str, value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        encode_field(stored, value)


def test_bytes_pass_whatever_the_name() -> None:
    for stored in ("cls", "jpg", "x.npy", "json", "pyd", "pickle", "x"):
        assert encode_field(stored, memoryview(b"\x80raw")) == b"\x80raw"


def test_every_codec_is_found_by_the_name_in_the_manifest() -> None:
    names = ["npy", "npz", "json", "text", "int", "float", "bool", "bytes", *(codec.name for codec in IMAGES)]
    assert [codec_named(name).name for name in names] == names
    for codec in map(codec_named, names):
        assert all(codec_for(extension) is codec for extension in codec.extensions)
    with pytest.raises(KeyError):
        codec_named("pickle")


def test_nothing_that_holds_pickles_has_a_codec() -> None:
    for field in ("pyd", "pickle", "pkl", "pt", "pth", "x", ""):
        assert codec_for(field) is BYTES
