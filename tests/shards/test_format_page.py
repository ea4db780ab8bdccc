"""`docs/format.md` is enough to write a reader from, and its examples are what streamio writes."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from streamio.shards.formats import FORMATS
from tests.shards.conformance import GOLDEN, golden_rows, npy

PAGE = GOLDEN.parent.parent / "docs" / "format.md"


def test_the_hex_example_is_the_file_that_streamio_writes(tmp_path: Path) -> None:
    writer = FORMATS["tar"].create(tmp_path / "a.tar")
    writer.write("cat/a.1", {"cls": b"0"})
    writer.write("dog/b", {"cls": b"1"})
    data = dataclasses.replace(writer.close(), columns={"cls": np.array([0, 1])}).to_bytes()
    lines = re.findall(r"^    ([0-9a-f]{8}): ((?:[0-9a-f]{4} ?)+) ", PAGE.read_text(), re.M)
    assert len(lines) >= 8
    for offset, digits in lines:
        shown = bytes.fromhex(digits)
        assert data[int(offset, 16) :][: len(shown)] == shown
    assert len(data) == int(lines[-1][0], 16) + 4
    header = re.search(r'^    (\{"__metadata__".*?\]\}\})$', PAGE.read_text(), re.M | re.S)
    assert header is not None
    assert json.loads(header[1]) == json.loads(data[8:512])


@pytest.mark.parametrize("suffix", [".tar", ".lmdb", ".h5"])
def test_a_reader_of_twenty_lines_without_any_library(suffix: str) -> None:
    index = (GOLDEN / f"shard{suffix}.idx").read_bytes()
    shard = (GOLDEN / f"shard{suffix}").read_bytes()
    (length,) = struct.unpack_from("<Q", index)
    header = json.loads(index[8 : 8 + length])

    def numbers(name: str) -> tuple[int, ...]:
        start, end = header[name]["data_offsets"]
        return struct.unpack(f"<{(end - start) // 8}q", index[8 + length + start : 8 + length + end])

    about = json.loads(header["__metadata__"]["streamio"])
    assert about["shard_bytes"] == len(shard)
    start, end = header["key.blob"]["data_offsets"]
    blob, ends = index[8 + length + start : 8 + length + end], numbers("key.offsets")
    for row, (key, fields) in enumerate(golden_rows()):
        assert blob[ends[row] : ends[row + 1]] == key.encode("utf-8", "surrogateescape")
        for name in about["fields"]:
            offset, size = numbers(f"offsets.{name}")[row], numbers(f"sizes.{name}")[row]
            skip = about["fields"][name].get("skip", 0)
            value = fields.get(name)
            wanted = npy(value)[128:] if isinstance(value, np.ndarray) else value
            assert (None if size < 0 else shard[offset + skip : offset + size]) == wanted
