"""A worker's own memory is that of its batches, not of the data set."""

from __future__ import annotations

from pathlib import Path

import pytest

import streamio
from tests import warm

CODE = """
import sys, streamio
dataset = streamio.ShardDataset(sys.argv[1], 100, fields=("cls", "x"), shuffle="global")
for batch in dataset:
    pass
print(next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Anonymous:")))
"""


def own_memory(path: Path) -> int:
    done = warm.run(["-c", CODE, path])
    assert done.returncode == 0, done.stderr
    return int(done.stdout) << 10


@pytest.mark.parametrize("samples", [40_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_own_memory_does_not_grow_with_the_samples(tmp_path: Path, fmt: str, samples: int) -> None:
    """Anonymous pages: what is the process's own and no page of a mapped file, which the kernel may drop."""
    for name, n in (("small", 2000), ("large", samples)):
        numbered = ({"cls": i, "x": b"0123456789"} for i in range(n))
        streamio.write(numbered, tmp_path / name, format=fmt, shard_samples=samples // 10)
    small, large = own_memory(tmp_path / "small"), own_memory(tmp_path / "large")
    assert large - small < samples * 60, f"{(large - small) / 2**20:.1f} MiB more for {samples:,} samples"
