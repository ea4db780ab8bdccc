"""A worker's own memory is that of its batches, not of the data set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import streamio

CODE = """
import sys, streamio
dataset = streamio.ShardDataset(sys.argv[1], 100, fields=("cls", "x"), shuffle="global")
for batch in dataset:
    pass
print(next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Anonymous:")))
"""


def own_memory(path: Path) -> int:
    done = subprocess.run([sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout) << 10


@pytest.mark.parametrize("samples", [200_000])
def test_own_memory_does_not_grow_with_the_samples(tmp_path: Path, fmt: str, samples: int) -> None:
    """Anonymous pages: what is the process's own and no page of a mapped file, which the kernel may drop."""
    for name, n in (("small", 2000), ("large", samples)):
        streamio.write(
            ({"cls": i, "x": b"0123456789"} for i in range(n)), tmp_path / name, format=fmt, shard_samples=20_000
        )
    small, large = own_memory(tmp_path / "small"), own_memory(tmp_path / "large")
    assert large - small < 12 * 2**20, f"{(large - small) / 2**20:.1f} MiB more for {samples:,} samples"
