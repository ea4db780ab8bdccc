"""Run by torchrun: reads some steps of a source on real ranks, and saves what came and the states of all.

usage: train_ranks.py OUT STEPS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from streamio import Partition, SourceDataset, StreamLoader, gather_states
from tests.sources.counting import Counting

SIZES = (40, 31, 22, 53)


class SeenDifferently(Counting):
    """Rank 1 looks later, and sees a partition that rank 0 does not know."""

    def partitions(self) -> Sequence[Partition]:
        later = [Partition("part-9", {"base": 9000, "size": 50})] if dist.get_rank() == 1 else []
        return [*super().partitions(), *later]


def main(out: Path, steps: int) -> None:
    dist.init_process_group("gloo")
    loader = StreamLoader(SourceDataset(SeenDifferently(SIZES), 8), num_workers=2, context="fork")
    came: list[int] = []
    done = torch.zeros(1)
    for batch in loader:
        dist.all_reduce(done)  # hangs where a rank has a batch less
        came += batch["number"].tolist()
        steps -= 1
        if not steps:
            break
    result = {"came": came, "states": gather_states(loader)}
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(result))
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
