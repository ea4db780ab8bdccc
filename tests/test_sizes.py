"""Sizes in bytes, as people write them."""

from __future__ import annotations

import pytest

from streamio.errors import UsageError
from streamio.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "bytes"),
    [
        (1, 1), ("1000000", 10**6), ("256MB", 256 * 10**6), ("256 mb", 256 * 10**6), ("1.5GB", 1_500_000_000),
        ("64MiB", 64 * 2**20), ("1KiB", 1024), ("2k", 2000), ("3TB", 3 * 10**12), ("1GiB", 2**30), (" 7b ", 7),
    ],
)  # fmt: skip
def test_sizes_are_decimal_or_binary(text: int | str, bytes: int) -> None:
    assert parse_size(text) == bytes


@pytest.mark.parametrize("text", ["", "0", 0, -1, "-1MB", "256XB", "MB", "1e6", "0.1", "256 MB MB", "1,000", True])
def test_bad_sizes_are_refused_with_examples(text: int | str) -> None:
    with pytest.raises(UsageError, match="256MB"):
        parse_size(text)
