"""Deals samples into splits and shards. Pure: keys and sizes in, numbers out, so every engine, machine and
number of workers makes the same files.

Ten samples `a … j` of 40 bytes each, seed 0, shuffled, 100 bytes a shard, a fifth for validation:

    order by hash of (seed, key)             i f d j b h c g e a
    smallest other hash of (seed, key)         f           e       -> val
    train                                    i d | j b | h c | g a -> shards 0, 1, 2, 3
    val                                      f e                   -> shard 0
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamio.types import Rows


@dataclass(frozen=True, slots=True, eq=False)
class ShardTask:
    """One shard to write. `samples` are positions in the sequence that `assign` was given, in writing order."""

    split: str
    number: int
    samples: Rows


def assign(
    keys: Sequence[str],
    sizes: Sequence[int],
    *,
    seed: int,
    shuffle: bool,
    shard_size: int | None = None,
    shard_samples: int | None = None,
    val: float = 0.0,
    labels: Sequence[Hashable] | None = None,
) -> list[ShardTask]:
    """Deal all samples into shard tasks, those of `train` before those of `val` (without one: `all`).

    keys:  of all samples, no two alike, in the order that `shuffle=False` keeps.
    sizes: bytes that each sample adds to a shard. A shard ends before `shard_size` would be passed, or after
           `shard_samples` samples (exactly one of the two is given); a larger sample has a shard of its own.
    val:   share of the samples for validation, taken from each label alike (`validation`).
    """
    order = shuffled(keys, seed) if shuffle else np.arange(len(keys), dtype=np.int64)
    weights = np.asarray(sizes, np.int64)
    if not val:
        splits = {"all": order}
    else:
        held = validation(keys, seed=seed, share=val, labels=labels)
        splits = {"train": order[~held[order]], "val": order[held[order]]}
    tasks: list[ShardTask] = []
    for split, rows in splits.items():
        if shard_samples is not None:
            cuts = list(range(shard_samples, len(rows), shard_samples))
        else:
            assert shard_size is not None
            cuts = _cuts(weights[rows], shard_size)
        tasks += [ShardTask(split, n, part) for n, part in enumerate(np.split(rows, cuts)) if len(part)]
    return tasks


def shuffled(keys: Sequence[str], seed: int) -> Rows:
    """The order of packing: by hash of (seed, key), so it depends on nothing else and no release changes it."""
    return _by_hash(keys, np.arange(len(keys)), seed)


def validation(
    keys: Sequence[str], *, seed: int, share: float, labels: Sequence[Hashable] | None
) -> NDArray[np.bool_]:
    """Which samples go to the validation split: bool, shape (n,).

    `round(share * n)` samples, at least one and at most n - 1. Each label gives its share rounded down; what
    is missing then comes one each from the labels with the largest remainders (larger labels first). So a
    label with very few samples may have none in `val`. Within a label the samples with the smallest hash of
    (seed, key) go, so that a sample that is added or removed moves few of the others.
    """
    total = min(max(round(share * len(keys)), 1), len(keys) - 1)
    groups: dict[Hashable, list[int]] = {}
    for at, label in enumerate(labels if labels is not None else [None] * len(keys)):
        groups.setdefault(label, []).append(at)
    members = list(groups.values())
    counts = [total * len(group) // len(keys) for group in members]
    by_remainder = sorted(
        range(len(members)),
        key=lambda g: (-(total * len(members[g]) % len(keys)), -len(members[g]), g),
    )
    for g in by_remainder[: total - sum(counts)]:
        counts[g] += 1
    held = np.zeros(len(keys), bool)
    for group, count in zip(members, counts, strict=True):
        if count:
            held[_by_hash(keys, np.array(group), seed ^ _VAL)[:count]] = True
    return held


_VAL = 0x76616C
"""Makes the hash of the split another one than that of the order."""


def _by_hash(keys: Sequence[str], rows: NDArray[np.int64], seed: int) -> Rows:
    """`rows` sorted by hash of (seed, key); equal hashes by key."""
    word = seed & 0xFFFFFFFFFFFFFFFF
    names = [keys[row].encode("utf-8", "surrogateescape") for row in rows.tolist()]
    hashes = np.array([xxhash.xxh3_64_intdigest(name, word) for name in names], np.uint64)
    places = np.argsort(hashes, kind="stable")
    ordered = hashes[places]
    if (ordered[1:] == ordered[:-1]).any():
        places = np.array(sorted(range(len(names)), key=lambda at: (hashes[at], names[at])))
    return np.asarray(rows[places], np.int64)


def _cuts(sizes: NDArray[np.int64], limit: int) -> list[int]:
    """Where new shards begin, so that none passes `limit` unless its one sample does."""
    ends = np.cumsum(sizes)
    cuts: list[int] = []
    start, before = 0, 0
    while len(ends) and ends[-1] - before > limit:
        start = max(int(np.searchsorted(ends, before + limit, "right")), start + 1)
        if start >= len(ends):
            break
        cuts.append(start)
        before = int(ends[start - 1])
    return cuts
