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
from typing import IO, Any

from tests import warm

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = f"""import os
os.environ["HF_HUB_OFFLINE"] = "1"
{warm.STREAMIO}
import accelerate, lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import Trainer, TrainingArguments
"""
"""What takes the frameworks ten seconds, for all scripts at once."""


def torchrun(ranks: int, *command: str) -> None:
    """Run a script under torchrun. Raises AssertionError with what it said if it fails."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by _finish()
    process = subprocess.Popen([sys.executable, *launch, *command], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
    _finish([(process, file)])


def ranks(number: int, *command: str) -> None:
    """The same, but started from here: what torchrun does, without the time that it takes to start it and torch."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    more = {"WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    more |= {"GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "test"}
    started = []
    for rank in range(number):
        file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by _finish()
        facts = {name: str(value) for name, value in {**more, "RANK": rank, "LOCAL_RANK": rank}.items()}
        process = warm.start(
            command, imports=IMPORTS, env={**os.environ, **facts}, stdout=file.fileno(), stderr=file.fileno()
        )
        started.append((process, file))
    _finish(started)


def _finish(started: Sequence[tuple[Any, IO[str]]]) -> None:
    """Wait for processes that write into files, so that nobody waits for a full pipe."""
    until, ended = time.monotonic() + 200, []
    for process, file in started:
        with file:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            file.seek(0)
            ended.append((process.returncode, file.read()))
    assert [code for code, _ in ended] == [0] * len(ended), "\n".join(said[-3000:] for _, said in ended)
