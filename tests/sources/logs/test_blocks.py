"""Lines are cut whole, in whatever pieces they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamio.sources.logs.blocks import Block, LineReader
from streamio.sources.logs.opened import LogFile
from streamio.sources.logs.ranges import cut


def blocks(file: LogFile, reader: LineReader, at: int = 0, until: int | None = None) -> Iterator[Block]:
    while block := reader.next(file, at, until):
        assert (block.start == at and block.begin + len(block.data) == block.end) or block.too_long
        assert block.end > at
        yield block
        at = block.end


def opened(path: Path, data: bytes) -> LogFile:
    path.write_bytes(data)
    return LogFile(str(path))


lines = st.lists(st.text("ab é\r", max_size=12).map(str.encode), max_size=30)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines, st.integers(1, 40), st.integers(1, 60), st.booleans())
def test_ranges_hold_each_line_once(tmp_path: Path, lines: list[bytes], size: int, target: int, ends: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    file = opened(tmp_path / "f", data)
    reader = LineReader(is_finished=True, size=size)
    got = []
    for begin, until in cut(len(data), target):
        first = reader.first_line(file, begin)
        assert first == begin == 0 or data[first - 1 : first] in (b"\n", b"") or first == len(data)
        got += [block.data for block in blocks(file, reader, first, until)]
    file.close()
    assert b"".join(got) == data
    assert all(part.endswith(b"\n") for part in got[:-1])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([b"a\n", b"bcd\n", b"\n", bytes(1), bytes(7), bytes(30)]), max_size=20),
       st.integers(1, 40), st.integers(1, 60))  # fmt: skip
def test_zeros_before_a_line_are_passed_over_in_any_range(
    tmp_path: Path, parts: list[bytes], size: int, target: int
) -> None:
    data = b"".join(parts)
    file = opened(tmp_path / "f", data)
    reader = LineReader(is_finished=True, size=size)
    ranges = cut(len(data), target)
    got = [b.data for at, until in ranges for b in blocks(file, reader, reader.first_line(file, at), until)]
    file.close()
    assert b"".join(got) == data.replace(b"\0", b"")


def test_a_line_that_is_being_written_is_never_half(tmp_path: Path) -> None:
    file = opened(tmp_path / "f", b"one\ntw")
    growing = LineReader(is_finished=False)
    (block,) = blocks(file, growing)
    assert block.data == b"one\n"
    with (tmp_path / "f").open("ab") as more:
        more.write(b"o\nthree")
    (block,) = blocks(file, growing, block.end)
    assert block.data == b"two\n"
    assert [b.data for b in blocks(file, LineReader(is_finished=True), block.end)] == [b"three"]
    file.close()


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path, is_finished: bool) -> None:
    file = opened(tmp_path / "f", b"a\n" + b"x" * 1000 + b"\nb\n")
    found = list(blocks(file, LineReader(is_finished=is_finished, size=4, longest=100)))
    assert b"".join(block.data for block in found) == b"a\nb\n"
    assert [(b.start, b.end) for b in found if b.too_long] == [(2, 1003)]
    file.close()


def test_a_line_of_the_longest_length_is_read(tmp_path: Path) -> None:
    for length, is_read in ((99, True), (100, False)):
        file = opened(tmp_path / "f", b"x" * length + b"\n")
        (block,) = blocks(file, LineReader(is_finished=True, size=7, longest=100))
        assert block.too_long is not is_read
        file.close()


def test_the_mark_of_utf8_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    file = opened(tmp_path / "f", b"\xef\xbb\xbfa\nb\n")
    assert [b.data for b in blocks(file, LineReader(is_finished=True, size=1))] == [b"a\n", b"b\n"]
    file.close()
