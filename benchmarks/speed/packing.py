"""Workload g: a folder of pictures and one of tiny files, packed by streamio, `tar`, `cp` and the peers' writers.

Each is a command from start to end, Python's start included, into a folder beside the source; files are in the
page cache. streamio also waits until what it wrote is on disk, which the others leave to the kernel, so all are
followed by a sync that is not timed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.environment import UnavailableError, last_line
from benchmarks.speed.job import Job
from benchmarks.speed.processes import started

FOLDERS = {"pictures": "a", "tiny": "g"}
PACKERS = ("webdataset", "mosaicml", "litdata", "huggingface")
QUICK_PACKERS = ("litdata", "huggingface")
"""Those that were best."""
_TIMEOUT = 900


def commands(source: Path, out: Path) -> dict[str, list[str]]:
    """What needs no peer: name -> command that packs `source` into `out`."""
    pack = [sys.executable, "-m", "streamio", "pack", str(source), str(out), "--quiet", "--workers"]
    return {
        "tar cf": ["tar", "cf", str(out), "-C", str(source), "."],
        "cp -r": ["cp", "-r", str(source), str(out)],
        "streamio pack, 1 worker": [*pack, "1"],
        "streamio pack, 2 workers": [*pack, "2"],
    }


def peer_command(python: str, peer: str, data: Path, folder: str, out: Path) -> list[str]:
    """A peer's writer over the files of a folder; it writes beside `out` first, and renames."""
    job = Job(
        peer=peer, workload="g", variant=folder, workers=0, samples=_count(data, folder),
        data=str(data), store=out.name, seconds=0, started=0,
    )  # fmt: skip
    return [python, "-m", "benchmarks.speed.cell", "write", *job.arguments()]


def _count(data: Path, folder: str) -> int:
    return sum(len(files) for _, _, files in os.walk(data / "source" / folder))


def read_all(source: Path) -> None:
    """Read every file, so that none of the commands is the only one that waits for the disk."""
    for folder, _, files in os.walk(source):
        for file in files:
            Path(folder, file).read_bytes()


def seconds_of(command: list[str], out: Path) -> float:
    """How long a command takes; what it made is removed. Raises UnavailableError if it fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    remove(out)
    try:
        with started(command, subprocess.PIPE) as process:
            began = time.perf_counter()
            _, errors = process.communicate(timeout=_TIMEOUT)
            seconds = time.perf_counter() - began
        if process.returncode or not out.exists():
            raise UnavailableError(last_line(errors or "") or f"ended with {process.returncode}")
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"took longer than {_TIMEOUT} s") from None
    finally:
        remove(out)
        os.sync()
    return seconds


def remove(path: Path) -> None:
    """A file or a folder, and what its writer left beside it."""
    for one in path.parent.glob(f"{path.name}*"):
        shutil.rmtree(one) if one.is_dir() else one.unlink()
