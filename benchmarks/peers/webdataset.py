"""WebDataset: a buffer of shards that holds all of them (100 is usual), then a buffer of samples."""

from __future__ import annotations

import io
import tarfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import webdataset

from benchmarks.peers.base import Setup, arguments, record


def write_tars(setup: Setup) -> list[str]:
    """Tars whose members say their row: 00004711.txt. They are kept for the next run."""
    folder = setup.work / f"tars-{setup.shards}-{setup.shard_samples}"
    folder.mkdir(exist_ok=True)
    names = [folder / f"{shard:06d}.tar" for shard in range(setup.shards)]
    for shard, name in enumerate(names):
        if not name.exists():
            _write_tar(name, shard * setup.shard_samples, setup.shard_samples)
    return [str(name) for name in names]


def _write_tar(name: Path, first: int, count: int) -> None:
    unfinished = name.with_suffix(".part")
    with tarfile.open(unfinished, "w") as tar:
        for row in range(first, first + count):
            value = b"%d" % row
            member = tarfile.TarInfo(f"{row:010d}.txt")
            member.size = len(value)
            tar.addfile(member, io.BytesIO(value))
    unfinished.rename(name)


def order(setup: Setup, tars: list[str], buffer: int) -> Iterator[int]:
    pipeline = webdataset.WebDataset(tars, shardshuffle=len(tars), seed=setup.seed).shuffle(buffer, seed=setup.seed)
    return (int(sample["txt"]) for sample in pipeline)


def main(setup: Setup) -> None:
    warnings.simplefilter("ignore")
    tars = write_tars(setup)
    for buffer in (1_000, 10_000):
        record(
            setup,
            "webdataset",
            f"WebDataset, buffer {buffer:,}",
            f"shardshuffle={setup.shards}, then .shuffle({buffer})",
            partial(order, setup, tars, buffer),
        )


if __name__ == "__main__":
    main(arguments())
