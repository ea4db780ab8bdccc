"""Small batches are planned one by one, and made several at once: what a batch costs beside its bytes is shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np

from streamio.order.plan import BatchRows

Bundle: TypeAlias = Sequence[BatchRows]
"""Batches that one worker makes one after the other; one at least."""

BUNDLE_BYTES = 2 << 20
"""Of all batches of a bundle. Measured on one core, CPU time a sample, by batches at once: records of 768 bytes in
batches of 0.2 MB 0.62 µs (1), 0.47 (4), 0.45 (8), 0.45 (16); windows of 8 KB, in four documents each, in batches of
0.5 MB 7.8 µs (1), 5.6 (2), 5.1 (4), 5.2 (8). Batches of 3 MB gain nothing."""

_MOST = 16


def bundle_size(batch_bytes: int) -> int:
    """Batches of about so many bytes that are best made at once."""
    return max(1, min(_MOST, BUNDLE_BYTES // max(1, batch_bytes)))


def bundled(batches: Iterator[BatchRows | None], most: int) -> Iterator[Bundle | None]:
    """1, 2, 4, … batches at a time, up to `most`: the first one should come soon. None: nothing is there now."""
    bundle: list[BatchRows] = []
    size = 1
    for batch in batches:
        if batch is None:
            yield None
            continue
        bundle.append(batch)
        if len(bundle) == size:
            yield bundle
            bundle, size = [], min(most, 2 * size)
    if bundle:
        yield bundle


def joined(bundle: Bundle) -> BatchRows:
    """The batches of a bundle end to end."""
    first = bundle[0]
    if len(bundle) == 1:
        return first
    valid = None if first.valid is None else np.concatenate([batch.valid for batch in bundle])
    rows, visits = (np.concatenate([batch[i] for batch in bundle]) for i in (1, 2))
    return BatchRows(first.step, rows, visits, valid, first.epoch)


def spans(bundle: Bundle) -> list[tuple[int, int]]:
    """Where each batch of a bundle begins and ends in what `joined` gives."""
    return list(pairwise(accumulate((len(batch.rows) for batch in bundle), initial=0)))
