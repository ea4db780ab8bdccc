"""Every line once: a log that is rotated in both ways while it is written, a reader that is killed and resumed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.sources.logs import killed
from tests.sources.saving import saved

READERS = [(0, "auto"), (2, "process"), (1, "thread"), (3, "process"), (3, "thread"), (1, "process")]


def start(target: Callable[..., Any], *arguments: Any) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=_in_own_group, args=(target, *arguments))
    process.start()
    return process


def _in_own_group(target: Callable[..., Any], *arguments: Any) -> None:
    os.setsid()
    target(*arguments)


def follow_and_kill(folder: Path, lines: int, rotations: int, kills: int, seconds: float) -> None:
    (folder / "logs").mkdir()
    draw = random.Random(5)
    writer = start(killed.write, folder / "logs" / "app.log", lines, rotations, seconds)
    for number in range(kills):
        wanted = len(saved(folder)) + 2
        reader = start(killed.read, folder, *READERS[number % len(READERS)], 60.0)
        end = time.monotonic() + 60
        while len(saved(folder)) < wanted and reader.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(draw.random() * seconds / kills)
        assert reader.is_alive() and len(saved(folder)) >= wanted
        os.killpg(reader.pid or 0, signal.SIGKILL)
        reader.join()
    writer.join(60)
    reader = start(killed.read, folder, *READERS[kills % len(READERS)], 1.5)
    reader.join(60)
    assert (writer.exitcode, reader.exitcode) == (0, 0)
    got = [number for batch in saved(folder) for number in batch]
    assert sorted(got) == sorted([*killed.late(rotations), *range(lines)])


def test_every_line_comes_once_through_rotation_and_sigkill(tmp_path: Path) -> None:
    follow_and_kill(tmp_path, lines=20_000, rotations=8, kills=3, seconds=2)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_one_of_200_000_lines_comes_once_through_20_rotations_and_10_kills(tmp_path: Path) -> None:
    follow_and_kill(tmp_path, lines=200_000, rotations=20, kills=10, seconds=20)
