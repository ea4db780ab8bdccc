"""How many workers, whether any, and how many batches ahead: from what this machine and this data set are."""

from __future__ import annotations

import os

from streamio.cpus import usable_cpus
from streamio.errors import UsageError

PREFETCH_BYTES = 128 << 20
"""Memory that batches made ahead may take, over all workers of one loader."""

_MAX_WORKERS = 16
_MIN_AHEAD, _MAX_AHEAD = 2, 16


def worker_count(num_workers: int | str, threads: int = 1) -> int:
    """The number of workers. "auto": the usable CPUs shared by the ranks on this node, at most 16.

    threads: of each worker. The ranks on the node are read from LOCAL_WORLD_SIZE (torchrun sets it). Raises
    UsageError.
    """
    if num_workers == "auto":
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        return max(1, min(_MAX_WORKERS, usable_cpus() // max(1, ranks)) // threads)
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise UsageError(f"num_workers={num_workers!r}", fix="Give a number of at least 0, or 'auto'")
    return num_workers


def made_ahead(batch_bytes: int, bundle: int, workers: int, budget: int = PREFETCH_BYTES) -> tuple[int, int]:
    """(batches of a bundle, bundles that each worker makes ahead), as the budget holds.

    bundle: batches that are best made at once. Of bundles there are 2 at least, and more up to 16 batches.
    """
    batches = budget // max(1, batch_bytes * workers)
    bundle = max(1, min(bundle, batches // _MIN_AHEAD))
    return bundle, max(_MIN_AHEAD, min(_MAX_AHEAD, batches) // bundle)


_TAKING, _GIVING, _EACH = 80e-6, 280e-6, 20e-6
"""Seconds that a bundle from a worker process costs the loop, and the worker beyond making it; and either of them
beside that for each batch in it. Measured."""

_CHANCE = 2 / 3
"""Workers that should take up to 1 / so much as long may be quicker on this machine all the same, and are tried."""

_SHARED_BYTES = 12e9
"""Bytes a second that worker processes, however many, put into memory for the loop: the most that was measured on
two cores."""


def best_inline(making: float, loop: float, batch_bytes: int, workers: int, bundle: int = 1) -> bool:
    """Whether workers are not worth a try, by what one batch takes in seconds: they would be much slower.

    making: a batch in this process. loop: what the loop does with it; not counted where it would speak against
    workers, since the first steps of a training take longer than those to come. bundle: batches that travel as one.

    With workers a step takes as long as the slowest of three: the loop, the workers, and the memory. Two workers:

                             making   loop   bytes    without   with workers
        JPEG, 64 pictures     75 ms      0   10 MB      75 ms          38 ms   workers
        raw pictures           1 ms      0   10 MB       1 ms         0.8 ms   workers
        the same, at once    0.5 ms      0   10 MB     0.5 ms         0.8 ms   inline
        raw pictures           1 ms   3 ms   10 MB       4 ms         3.1 ms   workers
        small records        0.1 ms      0  0.2 MB     0.1 ms         0.2 ms   inline
        the same, bundles of 8           0  0.2 MB     0.1 ms        0.08 ms   workers
        small records        0.1 ms   3 ms  0.2 MB     3.1 ms         3.1 ms   inline
    """

    def with_workers(loop: float) -> float:
        taking, giving = _TAKING / bundle + _EACH, _GIVING / bundle + _EACH
        return max(loop + taking, (making + giving) / workers, batch_bytes / _SHARED_BYTES)

    return making <= _CHANCE * with_workers(0) and making + loop <= 1.1 * with_workers(loop)
