"""A file that a thread writes: nothing is lost, nothing is kept back, and faults arrive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import xxhash

from streamio.shards.blockfile import BlockFile


def _written(path: Path, pieces: list[bytes]) -> str:
    file = BlockFile(path)
    for piece in pieces:
        file.add((piece,), len(piece))
    file.finish()
    file.close()
    assert file.size == sum(map(len, pieces))
    return file.checksum()


@pytest.mark.parametrize("sizes", [
    [], [0], [1], [100] * 30_000, [1 << 20] * 3, [5 << 20], [70_000, 3] * 100,
], ids=["nothing", "empty", "a byte", "small", "blocks", "large", "mixed"])  # fmt: skip
def test_the_pieces_come_in_their_order_with_their_checksum(tmp_path: Path, sizes: list[int]) -> None:
    pieces = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    assert _written(tmp_path / "a", pieces) == xxhash.xxh3_64_hexdigest(b"".join(pieces))
    assert (tmp_path / "a").read_bytes() == b"".join(pieces)


def test_a_system_that_takes_a_part_at_a_time_gets_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, writev = os.write, os.writev
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:1000]))
    monkeypatch.setattr(os, "writev", lambda fd, pieces: writev(fd, pieces[:1]))
    pieces = [os.urandom(400_000) for _ in range(7)]
    assert _written(tmp_path / "a", pieces) == xxhash.xxh3_64_hexdigest(b"".join(pieces))
    assert (tmp_path / "a").read_bytes() == b"".join(pieces)


def test_what_the_thread_was_refused_is_raised_by_a_later_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    file = BlockFile(tmp_path / "a")
    file.add((bytes(1 << 20),), 1 << 20)
    with pytest.raises(OSError, match="No space"):
        file.add((bytes(1 << 20),), 1 << 20)
    with pytest.raises(OSError, match="No space"):
        file.finish()
    file.close()
    file.close()


def test_files_are_taken_over_in_their_order(tmp_path: Path) -> None:
    parts = [os.urandom(size) for size in (0, 1_500_000, 7, 2_000_000)]
    for n, data in enumerate(parts):
        (tmp_path / str(n)).write_bytes(data)
    file = BlockFile(tmp_path / "all")
    for n in range(len(parts)):
        file.take(tmp_path / str(n))
    file.add((b"end",), 3)
    file.finish()
    file.close()
    whole = b"".join([*parts, b"end"])
    assert os.listdir(tmp_path) == ["all"] and (tmp_path / "all").read_bytes() == whole
    assert (file.size, file.checksum()) == (len(whole), xxhash.xxh3_64_hexdigest(whole))
