"""A program whose log is rotated, and one that follows this log until it is killed: see test_killed.py."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from pathlib import Path
from typing import Any, BinaryIO

from streamio import LogDataset, StreamLoader
from tests.sources.saving import go_on


def read(folder: Path, workers: int, transport: str, silence: float) -> None:
    """Follow the log, and after each batch save it, and then the state that says that it was saved."""
    dataset = LogDataset(
        str(folder / "logs" / "app.log*"), 1000, types={"i": "int64"}, follow=True, poll=0.02, max_wait=0.05,
        idle_timeout=silence,
    )  # fmt: skip
    loader = StreamLoader(dataset, num_workers=workers, transport=transport)  # type: ignore[arg-type]
    go_on(loader, folder, "i")


def write(live: Path, lines: int, rotations: int, seconds: float) -> None:
    """Bursts of 500 lines, for about so many seconds."""
    file = live.open("ab", buffering=0)
    for begin in range(0, lines, 500):
        file.write(b"".join(b'{"i":%d,"text":"%s"}\n' % (i, b"x" * (i % 50)) for i in range(begin, begin + 500)))
        time.sleep(seconds * 500 / lines)
        number = rotations * (begin + 500) // lines
        if number > rotations * begin // lines:
            file = _rotate(live, file, number)
    file.close()


def late(rotations: int) -> list[int]:
    """Lines that come to a file which was renamed already."""
    return [-number for number in range(1, rotations + 1, 2)]


def _rotate(live: Path, file: BinaryIO, number: int) -> Any:
    """By turns rename and copytruncate; with this, lines that come between copy and cut would be lost by the writer
    itself, so that it waits. At times the second oldest is compressed."""
    for path in sorted(live.parent.glob("app.log.*"), key=lambda path: -int(path.name.split(".")[2])):
        parts = path.name.split(".")
        path.rename(path.with_name(".".join([*parts[:2], str(int(parts[2]) + 1), *parts[3:]])))
    first, second = live.with_name("app.log.1"), live.with_name("app.log.2")
    if number % 2:
        live.rename(first)
        file.write(b'{"i":-%d,"text":"late"}\n' % number)
        file.close()
        file = live.open("ab", buffering=0)
    else:
        shutil.copyfile(live, first)
        os.truncate(live, 0)
    if number % 3 == 0:
        with gzip.open(live.with_name("app.log.2.gz"), "wb") as packed:
            packed.write(second.read_bytes())
        second.unlink()
    return file
