"""Who reads which partitions of a source, and in how many batches: for what has no rows, and so no positions.

Partitions are dealt in turn, first to ranks and then to the workers of each. Seven, two ranks of two workers:

    partition   0  1  2  3  4  5  6
    rank        0  1  0  1  0  1  0
    worker      0  0  1  1  0  0  1

Where the samples of each are known, every rank makes as many batches: as many as the one that has most needs, and
the others cut theirs smaller. Batches of at most 10:

    worker      rank 0: 0   1      rank 1: 0   1
    samples           25   31             12  20
    needs              3   4 = 7           2   2 = 4
    makes              3   4               3   4          7 on both
    sizes          9 8 8   8 8 8 7     4 4 4   5 5 5 5
"""

from __future__ import annotations

from collections.abc import Sequence

from streamio.errors import TailError


def dealt(count: int, rank: int, world_size: int, worker: int, workers: int) -> range:
    """Which of `count` partitions a worker of a rank reads."""
    return range(rank + worker * world_size, count, world_size * workers)


def even_batches(samples: Sequence[Sequence[int]], batch_size: int) -> list[list[int]]:
    """Batches that each worker of each rank makes, with the same sum for every rank.

    samples: of each worker, for each rank. No worker gets more batches than it has samples, and none needs batches
    of more than `batch_size`. Raises TailError where a rank has fewer samples than another one needs batches.
    """
    least = [[-(-count // batch_size) for count in rank] for rank in samples]
    steps = max(map(sum, least), default=0)
    for number, rank in enumerate(samples):
        if sum(rank) < steps:
            raise TailError(
                f"rank {number} has {sum(rank):,} samples in its partitions, and another needs {steps:,} batches",
                fix="Make partitions of more even size, use fewer ranks, or give steps=, the batches of each rank",
            )
    return [_with_more(own, rank, steps - sum(own)) for own, rank in zip(least, samples, strict=True)]


def _with_more(batches: list[int], samples: Sequence[int], more: int) -> list[int]:
    """So many batches more, each to the worker whose batches are largest then."""
    made = list(batches)
    for _ in range(more):
        worker = max(range(len(made)), key=lambda w: samples[w] / made[w] if made[w] else 0)
        made[worker] += 1
    return made
