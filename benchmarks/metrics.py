"""How well an order is mixed: what a batch of it is worth.

Neighbours in storage are alike: they are of one class, one film, one day. Take the worst case, where all samples of
a shard are copies of each other, and ask how far the mix of a batch strays from that of the whole set. A batch of n
samples drawn at random strays by a known variance; the *effective size* of a real batch is the number of samples
drawn at random that would stray as far (the "effective sample size" of cluster sampling: Kish, "Survey Sampling",
1965):

    effective = (1 - sum p²) / (mean over batches of sum share² - sum p²)

with p the share of each shard in the set, and share that in a batch. Every batch from one shard: 1. Drawn at
random from all: n (a little more, since nothing comes twice). It holds buffers and blocks to the same measure,
since it asks only what came together. With a window of several batches it also shows how slowly the mix drifts
along the epoch, which the number for one batch hides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def effective_size(origins: NDArray[np.int64], window: int) -> float:
    """What `window` consecutive samples are worth.

    origins: int64 (N,), the shard of each sample, 0 … S-1, in the order in which they come.
    """
    if not 0 < window <= len(origins):
        raise ValueError(f"window={window} of {len(origins)} samples")
    if origins.dtype != np.int64:
        raise TypeError(f"origins are {origins.dtype}, not int64")
    shares = np.bincount(origins) / len(origins)
    of_set = float((shares**2).sum())
    windows = len(origins) // window
    within = origins[: windows * window].reshape(windows, window)
    stray = float(np.mean([(np.bincount(one) ** 2).sum() for one in within])) / window**2 - of_set
    return (1 - of_set) / stray if stray > 0 else float("inf")


def check_permutation(rows: NDArray[np.int64], samples: int) -> str:
    """ "" if every row comes once, else what is wrong."""
    if rows.dtype != np.int64:
        return f"rows are {rows.dtype}"
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= samples):
        return f"rows {rows.min()} to {rows.max()} of {samples:,}"
    comings = np.bincount(rows, minlength=samples)
    never, more = int((comings == 0).sum()), int((comings > 1).sum())
    return f"{never:,} rows never come, {more:,} more than once" if never or more else ""
