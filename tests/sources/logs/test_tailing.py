"""Every line once, whatever rotation does and whenever readers are stopped: many histories, drawn at random."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from streamio.sources.base import Share
from streamio.sources.logs.blocks import LineReader
from streamio.sources.logs.following import _saved
from streamio.sources.logs.tailing import Tail


class Writer:
    """A program that logs, and what rotates its log, in steps between which readers may look.

    Half of the histories have a first line that all files share.
    """

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.live, self._draw, self.written = folder / "app.log", draw, 0
        self.may_be_lost = set[int]()  # lines that came between the copy and the cut
        self._header, self._half = draw.random() < 0.5, b""
        self._file = self.live.open("ab", buffering=0)
        self._begin()

    def _begin(self) -> None:
        if self._header:
            self._file.write(b"header\n")

    def close(self) -> None:
        self._file.close()

    def append(self) -> None:
        """Some lines; at times the last one is half, and the rest comes with the next ones."""
        data = self._half
        for _ in range(self._draw.randrange(1, 40)):
            data += b"%d %s\n" % (self.written, b"x" * self._draw.randrange(60))
            self.written += 1
        cut = len(data) - (self._draw.randrange(1, 9) if self._draw.random() < 0.3 else 0)
        self._file.write(data[:cut])
        self._half = data[cut:]

    def finish(self) -> None:
        self._file.write(self._half)
        self._half = b""

    def _shift(self) -> None:
        def number(path: Path) -> int:
            return int(path.name.split(".")[2])

        for path in sorted(self.live.parent.glob("app.log.*"), key=number, reverse=True):
            parts = path.name.split(".")
            parts[2] = str(int(parts[2]) + 1)
            path.rename(path.with_name(".".join(parts)))

    def rename(self) -> Iterator[None]:
        self._shift()
        yield
        self.live.rename(self.live.with_name("app.log.1"))
        yield
        for _ in range(self._draw.randrange(3)):  # the program has the old file open
            self.append()
            yield
        self.finish()
        old, self._file = self._file, self.live.open("ab", buffering=0)
        old.close()
        self._begin()

    def copytruncate(self) -> Iterator[None]:
        self.finish()
        self._shift()
        yield
        data = self.live.read_bytes()
        with self.live.with_name("app.log.1").open("wb", buffering=0) as copy:
            for _ in range(self._draw.randrange(1, 4)):
                cut = self._draw.randrange(len(data) + 1)
                copy.write(data[:cut])
                data = data[cut:]
                yield
            copy.write(data)
            if self._draw.random() < 0.5:
                yield
        if self.live.stat().st_size >= 256 and self._draw.random() < 0.3:
            begin = self.written
            self.append()
            self.finish()
            self.may_be_lost.update(range(begin, self.written))
            yield
        os.truncate(self.live, 0)
        if self._draw.random() < 0.5:
            yield
        self._begin()

    def compress(self) -> Iterator[None]:
        plain = [p for p in self.live.parent.glob("app.log.*") if p.suffix not in (".gz", ".zst")]
        if not plain or self._half:
            return
        path = self._draw.choice(plain)
        pack, end = self._draw.choice([(gzip.compress, ".gz"), (zstandard.ZstdCompressor().compress, ".zst")])
        data = pack(path.read_bytes())
        with path.with_name(path.name + end).open("wb", buffering=0) as packed:
            for _ in range(self._draw.randrange(1, 3)):
                cut = self._draw.randrange(len(data) + 1)
                packed.write(data[:cut])
                data = data[cut:]
                yield
            packed.write(data)
        if self._draw.random() < 0.5:
            yield
        path.unlink()


class Readers:
    """Some workers. `got`: the lines that were delivered, and `state` the cursors behind them."""

    def __init__(self, pattern: str, draw: random.Random) -> None:
        self._pattern, self._draw = pattern, draw
        self.got: list[bytes] = []
        self.state: dict[str, Any] = {}
        self._tails: list[Tail] = []
        self.restart()

    def restart(self) -> None:
        """As after SIGKILL: what was not delivered is lost with the process. On another number of workers."""
        self.close()
        count = self._draw.randrange(1, 4)
        saved = {name: _saved(cursor) for name, cursor in self.state.items()}
        reader = LineReader(is_finished=False, size=self._draw.choice([64, 1000, 1 << 20]))
        self._tails = [
            Tail((self._pattern,), Share(number, count).owns, saved, reader, 3600.0) for number in range(count)
        ]

    def read(self, tail: Tail) -> bool:
        """Look, and read a block of each log. All of its lines are delivered, or the readers are killed."""
        if tail.must_look or self._draw.random() < 0.5:
            tail.look()
            self.state.update(tail.moved())
        for portion in tail.portions():
            ends = [at + 1 for at in range(len(portion.block.data)) if portion.block.data[at : at + 1] == b"\n"]
            is_killed = self._draw.random() < 0.1
            if is_killed:
                ends = ends[: self._draw.randrange(len(ends) + 1)]
            if ends:
                self.got += portion.block.data[: ends[-1]].splitlines()
                self.state[portion.name] = portion.cursor(portion.block.begin + ends[-1])
            if is_killed:
                self.restart()
                return True
        for name in tail.forgotten():
            self.state.pop(name, None)
        return False

    def step(self) -> None:
        for tail in self._tails:
            if self._draw.random() < 0.7 and self.read(tail):
                return

    def drain(self) -> None:
        quiet = 0
        while quiet < 4:
            before = len(self.got)
            for tail in self._tails:
                tail.look()
                self.state.update(tail.moved())
                if self.read(tail):
                    break
            quiet = quiet + 1 if len(self.got) == before and not any(t.must_look for t in self._tails) else 0

    def close(self) -> None:
        for tail in self._tails:
            tail.close()


def history(folder: Path, seed: int) -> None:
    folder.mkdir()
    draw = random.Random(seed)
    writer = Writer(folder, draw)
    readers = Readers(str(folder / "app.log*"), draw)
    for _ in range(draw.randrange(5, 25)):
        what = draw.choice(["append"] * 4 + ["rename", "copytruncate", "compress", "restart"])
        if what == "append":
            writer.append()
        elif what == "restart":
            readers.restart()
        else:
            for _ in getattr(writer, what)():
                readers.step()
        for _ in range(draw.randrange(3)):
            readers.step()
    writer.finish()
    readers.drain()
    numbers = [int(line.split()[0]) for line in readers.got if line != b"header"]
    readers.close()
    writer.close()
    assert len(set(numbers)) == len(numbers), f"history {seed}: lines came twice"
    assert set(range(writer.written)) - set(numbers) <= writer.may_be_lost, f"history {seed}: lines were lost"


@pytest.mark.parametrize("part", range(3))
def test_every_line_comes_once_in_any_history(tmp_path: Path, part: int) -> None:
    for seed in range(part * 20, part * 20 + 20):
        history(tmp_path / str(seed), seed)


@pytest.mark.slow
def test_every_line_comes_once_in_many_histories(tmp_path: Path) -> None:
    for seed in range(1000, 2000):
        history(tmp_path / str(seed), seed)
