"""LitData: StreamingDataset(shuffle=True) over chunks that its own writer made, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from litdata import StreamingDataset
from litdata.streaming.writer import BinaryWriter

from benchmarks.peers.base import Setup, arguments, record


def write_chunks(setup: Setup) -> Path:
    """Chunks of as many samples as a shard has. They are kept for the next run."""
    folder = setup.work / f"chunks-{setup.shards}-{setup.shard_samples}"
    if not (folder / "index.json").exists():
        folder.mkdir(exist_ok=True)
        writer = BinaryWriter(str(folder), chunk_size=setup.shard_samples)
        for row in range(setup.samples):
            writer[row] = row
        writer.done()
        writer.merge()
    return folder


def order(setup: Setup, chunks: Path) -> Iterator[int]:
    return (int(row) for row in StreamingDataset(str(chunks), shuffle=True, seed=setup.seed))


def main(setup: Setup) -> None:
    chunks = write_chunks(setup)
    record(setup, "litdata", "LitData", "StreamingDataset(shuffle=True)", lambda: order(setup, chunks))


if __name__ == "__main__":
    main(arguments())
