"""Real ranks read one source: they agree on its partitions, and their states belong together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamio import SourceDataset, StreamLoader
from tests.conftest import ROOT
from tests.sources.counting import Counting
from tests.sources.train_ranks import SIZES

ALL = [p * 1000 + n for p, size in enumerate(SIZES) for n in range(size)]


@pytest.mark.parametrize("steps", [4, pytest.param(1000, marks=pytest.mark.slow)])
def test_two_ranks_share_a_source_and_one_goes_on_with_their_states(tmp_path: Path, steps: int) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    script = Path(__file__).with_name("train_ranks.py")
    done = subprocess.run(
        [*launch, str(script), str(tmp_path), str(steps)], capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0]["states"] == ranks[1]["states"] and len(ranks[0]["states"]) == 2
    came = ranks[0]["came"] + ranks[1]["came"]
    one = StreamLoader(SourceDataset(Counting(SIZES), 8), num_workers=0)
    one.load_state_dict(ranks[0]["states"])
    rest = [number for batch in one for number in batch["number"].tolist()]
    assert sorted(came if steps == 1000 else came + rest) == ALL
    assert sorted(rest) == ALL or steps == 4
