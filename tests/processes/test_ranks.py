"""Ranks: real process groups under torchrun; nobody hangs, nobody sees a sample twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sets import make_set

TRAIN = Path(__file__).with_name("train_ddp.py")


def torchrun(ranks: int, *arguments: str, timeout: float = 100) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    done = subprocess.run([*launch, str(TRAIN), *arguments], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("method", [pytest.param("fork", marks=pytest.mark.slow), "spawn"])
def test_two_ranks_train_to_the_end_and_see_every_sample_once_an_epoch(tmp_path: Path, method: str) -> None:
    """1009 is a prime; batches of 16; DDP waits for all ranks in every step."""
    path = make_set(tmp_path / "s", 1009, shard_samples=100)
    torchrun(2, path, str(tmp_path), method)
    ranks = [json.loads((tmp_path / f"rank{r}.json").read_text()) for r in range(2)]
    for epoch in range(2):
        seen = Counter(n for rank in ranks for n in rank["epochs"][epoch])
        assert seen == Counter(range(1009))
    assert ranks[0]["steps"] == ranks[1]["steps"] == [32, 32]
    assert ranks[0]["epochs"][0] != ranks[0]["epochs"][1]
    assert ranks[0]["weight"] == ranks[1]["weight"]
