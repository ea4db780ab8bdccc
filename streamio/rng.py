"""The only place that makes randomness for samples: (seed, epoch, row) -> generator.

An augmentation depends on nothing else, so it is the same whatever the workers, ranks and transport, and
differs between epochs and samples.
"""

from __future__ import annotations

import numpy as np

DECODE, TRANSFORM, BATCH = 0, 1, 2
"""Streams: what a decode-time operation draws does not shift what a transform draws, nor that what is drawn for the
whole batch that the sample begins."""


def generator(seed: int, epoch: int, row: int, stream: int = DECODE) -> np.random.Generator:
    """A generator for one sample in one epoch, independent of all others.

    Philox is keyed, not seeded (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), so
    making one costs microseconds. The key holds the seed and the row; the counter starts at the stream and
    the epoch, in words that drawing never reaches.
    """
    key = np.array([seed & _WORD, row & _WORD], np.uint64)
    counter = np.array([0, 0, stream, epoch & _WORD], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def batch_seed(seed: int, epoch: int, row: int) -> int:
    """A 63-bit seed for the global generators of a worker while it makes the batch that begins with this row.

    Not of the number of the step, which begins at 0 again after a resume.
    """
    words = np.random.SeedSequence([seed & _WORD, epoch & _WORD, row & _WORD]).generate_state(1, np.uint64)
    return int(words[0]) >> 1


_WORD = (1 << 64) - 1
