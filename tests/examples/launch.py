"""Starts scripts as processes: one, or the ranks of a group."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def torchrun(ranks: int, *command: str) -> None:
    """Run a script under torchrun. Raises AssertionError with what it said if it fails."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    _finish([_Process([*launch, *command])])


def ranks(number: int, *command: str) -> None:
    """The same, but started from here: what torchrun does, without the time that it takes to start torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    more = {"WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    more |= {"GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "test"}
    _finish([_Process(command, RANK=rank, LOCAL_RANK=rank, **more) for rank in range(number)])


class _Process:
    """One that writes into a file, so that nobody waits for a full pipe."""

    def __init__(self, command: Sequence[str], **environment: object) -> None:
        self._file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by end()
        more = {name: str(value) for name, value in environment.items()}
        self._process = subprocess.Popen(
            [sys.executable, *command], env={**os.environ, "HF_HUB_OFFLINE": "1", **more}, cwd=ROOT,
            stdout=self._file, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def end(self, seconds: float) -> tuple[int, str]:
        """(exit code, what it said); it is killed if it takes longer."""
        with self._file:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._file.seek(0)
            return self._process.returncode, self._file.read()


def _finish(processes: list[_Process]) -> None:
    until = time.monotonic() + 200
    ended = [process.end(max(0.1, until - time.monotonic())) for process in processes]
    assert [code for code, _ in ended] == [0] * len(ended), "\n".join(said[-3000:] for _, said in ended)
