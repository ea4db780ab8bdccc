"""Compressed logs are read by offset, as if they were plain."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import StorageError
from streamio.sources.logs.opened import LogFile
from streamio.sources.logs.unpacking import may_become_packed, packing

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
TEXT = "\n".join(f'{{"i":{i},"x":"{random.Random(i).random()}"}}' for i in range(8_000)).encode()

kinds = pytest.mark.parametrize("kind", PACK)


@kinds
def test_any_bytes_can_be_asked_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "no-suffix"
    path.write_bytes(PACK[kind](TEXT))
    file = LogFile(str(path))
    assert file.is_packed
    draw = random.Random(3)
    for _ in range(12):
        offset, size = draw.randrange(len(TEXT) + 100), draw.choice([0, 1, 100, 1 << 20])
        assert file.read_at(offset, size) == TEXT[offset : offset + size]
    assert file.ending(1000) == (len(TEXT), TEXT[-1000:])
    file.check_whole()
    file.close()


@kinds
def test_several_members_and_padding_are_one_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "joined"
    path.write_bytes(b"".join(PACK[kind](part) for part in (b"one\n", b"", TEXT, b"two\n")) + bytes(512))
    file = LogFile(str(path))
    assert file.read_at(0, 1 << 30) == b"one\n" + TEXT + b"two\n"
    file.check_whole()
    file.close()


@kinds
def test_a_file_that_is_still_being_written_is_gone_on_with(tmp_path: Path, kind: str) -> None:
    data = PACK[kind](TEXT[:100_000]) + PACK[kind](TEXT[100_000:200_000])
    path = tmp_path / "grows"
    path.write_bytes(data[:20])
    file = LogFile(str(path))
    got = b""
    with path.open("ab") as grow:
        for begin in range(20, len(data), 9973):
            got += file.read_at(len(got), 1 << 20)
            grow.write(data[begin : begin + 9973])
            grow.flush()
    got += file.read_at(len(got), 1 << 20)
    assert got == TEXT[:200_000]
    file.check_whole()
    file.close()


@kinds
def test_a_cut_file_is_an_error_that_says_where(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cut"
    data = PACK[kind](TEXT)
    path.write_bytes(data[: len(data) // 2])
    file = LogFile(str(path))
    assert TEXT.startswith(file.read_at(0, 1 << 30))
    with pytest.raises(StorageError, match=rf"is cut: its {kind} data ends in the middle, at about byte [\d,]+ of"):
        file.check_whole()
    file.close()


@kinds
def test_what_is_damaged_is_an_error_with_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd"
    for wrong in (PACK[kind](TEXT) + b"something else", PACK[kind](TEXT[:10_000])[:40] + os.urandom(4000)):
        path.write_bytes(wrong)
        file = LogFile(str(path))
        with pytest.raises(StorageError, match=r"odd: the file .* at about byte"):
            file.read_at(0, 1 << 30)
        file.close()


def test_zeros_unpack_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    for kind, pack in PACK.items():
        path.write_bytes(pack(bytes(6_000_000)))
        file = LogFile(str(path))
        assert file.ending(10) == (6_000_000, bytes(10)), kind
        assert file._unpacker is not None and len(file._unpacker._buffer) < 5_000_000
        file.close()


@given(st.sampled_from(sorted(PACK)), st.integers(0, 9))
def test_the_first_bytes_tell_or_are_waited_for(kind: str, length: int) -> None:
    head = PACK[kind](b"text")
    assert packing(head[:10]) == kind
    assert may_become_packed(head[:length]) or packing(head[:length]) == kind


def test_text_is_plain() -> None:
    for text in (b'{"i":1}\n', b"BZh is no magic\n", b"\0\0\0\0\0\0\0\0\0\0", b"(not zstd"):
        assert packing(text) is None and not may_become_packed(text)
