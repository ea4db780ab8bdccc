"""CLI-05: progress is a bar on a terminal and a few plain lines anywhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from streamio import Progress
from streamio.cli.progress import PlainProgress
from tests.cli.conftest import Run, spawn
from tests.samples import tree


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("many"), {f"{i % 7}/{i}.txt": b"%d" % i for i in range(2000)})


@pytest.mark.parametrize(
    "env",
    [{}, {"TERM": "dumb"}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1", "CI": "true"}, {"TTY_COMPATIBLE": "1"}],
    ids=str,
)
def test_cli_05_a_pipe_gets_plain_lines(many: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """tqdm/tqdm#750, MaxandreOgeret/collider#47, beeware/briefcase#1267: bars filled logs with escape codes."""
    ran = spawn("pack", many, tmp_path / "out", env=env, shell="2>&1 | cat")
    assert ran.code == 0, ran.text
    assert "\r" not in ran.out
    assert "\x1b" not in ran.out
    assert ran.out.count("\n") < 60
    last = ran.out.splitlines()[-1]
    assert "2,000 samples" in last
    assert "1 shard" in last
    assert "MB" in last


def _on_terminal(env: dict[str, str], *arguments: object, columns: int = 100) -> str:
    """All that a command writes to a terminal of this width."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    command = [sys.executable, "-m", "streamio", *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env={**environment, **env}, start_new_session=True
    ) as process:
        os.close(child)
        pieces = []
        while True:
            try:
                piece = os.read(parent, 1 << 16)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            pieces.append(piece)
        assert process.wait() == 0
    os.close(parent)
    return b"".join(pieces).decode()


def test_a_terminal_gets_a_bar_and_the_table(many: Path, tmp_path: Path) -> None:
    text = _on_terminal({"TERM": "xterm-256color"}, "pack", many, tmp_path / "out")
    assert "\x1b[" in text
    assert "packing" in text
    assert "of 2,000 files" in text
    assert "Packed 2,000 samples" in text


def test_a_dumb_terminal_gets_no_bar(many: Path, tmp_path: Path) -> None:
    text = _on_terminal({"TERM": "dumb"}, "pack", many, tmp_path / "out")
    assert "\x1b" not in text
    assert "Packed 2,000 samples" in text


def test_no_color_takes_the_colours_from_a_terminal(many: Path, tmp_path: Path) -> None:
    text = _on_terminal({"TERM": "xterm-256color", "NO_COLOR": "1"}, "pack", many, tmp_path / "out")
    assert "\x1b[3" not in text.replace("\x1b[39m", "")


def test_quiet_is_quiet_on_a_terminal_too(many: Path, tmp_path: Path) -> None:
    assert _on_terminal({"TERM": "xterm-256color"}, "pack", many, tmp_path / "out", "--quiet") == ""


def _lines(hours: float, **totals: Any) -> list[str]:
    """The lines of a run of this length, told of ten times a second."""
    lines: list[str] = []
    now = [0.0]
    plain = PlainProgress(lambda: now[0], lines.append)
    ticks = int(hours * 36_000)
    for stage in ("scan", "write", "commit"):
        known = totals if stage == "write" else {}
        for tick in range(0, ticks, 10):
            now[0] += 1.0
            done = 10**9 * tick // ticks
            plain(Progress(stage=stage, done_files=done, done_samples=done, done_bytes=done, **known))
    return lines


@pytest.mark.parametrize("hours", [0.01, 1, 20])
@pytest.mark.parametrize("totals", [{}, {"total_bytes": 10**9, "total_files": 10**9, "total_samples": 10**9}])
def test_however_long_a_run_it_writes_few_lines(hours: float, totals: dict[str, int]) -> None:
    lines = _lines(hours, **totals)
    assert len(lines) <= 45
    assert len(lines) >= (20 if totals and hours >= 1 else 3)


def test_a_short_run_writes_no_progress_at_all() -> None:
    assert _lines(0.0005, total_bytes=10**9, total_samples=10) == []


def test_a_line_says_how_far_and_how_fast() -> None:
    lines = _lines(1, total_bytes=10**9, total_files=10**9, total_samples=10**9)
    line = next(line for line in lines if line.startswith("packing "))
    assert " %: " in line
    assert " of 1,000,000,000 files" in line
    assert "MB/s" in line or "KB/s" in line


def test_long_rows_of_the_table_hang_below_their_column(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {f"class-with-a-name-{i}/1.txt": b"1" for i in range(9)})
    text = _on_terminal({"TERM": "xterm", "NO_COLOR": "1"}, "pack", src, tmp_path / "out", columns=60)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    start = text.index("classes   9: ")
    rows = text[start:].splitlines()[:6]
    assert all(row.startswith(" " * 10 + "class-with") for row in rows[1:5]), rows
    assert all(len(row) <= 60 for row in rows)


def test_a_long_run_into_a_pipe_says_how_far_it_is(
    run: Run, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlainProgress, "FIRST", 0.0)
    monkeypatch.setattr(PlainProgress, "MOST", 10_000)  # with no pause a slow machine writes many
    assert "publishing 100 %: 2,000 of 2,000 files" in run("pack", many, tmp_path / "out").err
