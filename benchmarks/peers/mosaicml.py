"""MosaicML Streaming: each of its algorithms, through its own get_shuffle and get_partitions.

As StreamingDataset does it: one permutation of the samples (get_shuffle), read in the order in which the canonical
nodes are dealt to ranks and workers (get_partitions). One node, one rank, one worker. The number of canonical nodes
is what StreamingDataset takes by default: 64 for py1s and py2s, 1 for the others. A block has 2^18 samples, the
default of get_shuffle and of streamio; and, for the algorithm that StreamingDataset takes by default, also the
4,000,000 that it takes on one node.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.base import Setup, arguments, record

# `import streaming` also imports its picture and text extras, and with them torchvision, whose wheels on PyPI are
# CUDA builds that do not load beside a CPU build of torch. Nothing here needs them: this is the package without
# what its __init__ does.
_package = ModuleType("streaming")
_package.__path__ = list(importlib.util.find_spec("streaming").submodule_search_locations or ())  # type: ignore[union-attr]
sys.modules["streaming"] = _package

from streaming.base.partition import get_partitions  # noqa: E402
from streaming.base.shuffle import algos, get_shuffle  # noqa: E402

_BLOCK, _LARGE_BLOCK = 1 << 18, 4_000_000
_ORDERS = (
    ("py1e", "py1e", 1, _BLOCK, "1 canonical node, block 2^18"),
    ("py1e, block 4M", "py1e", 1, _LARGE_BLOCK, "its default on one node: the block is larger than the set"),
    ("py1br", "py1br", 1, _BLOCK, "1 canonical node, block 2^18"),
    ("py1b", "py1b", 1, _BLOCK, "1 canonical node, block 2^18"),  # not in 0.13 any more
    ("py1s", "py1s", 64, _BLOCK, "64 canonical nodes"),
    ("py2s", "py2s", 64, _BLOCK, "64 canonical nodes"),
    ("naive", "naive", 1, _BLOCK, "1 canonical node"),
)


def order(setup: Setup, algorithm: str, nodes: int, block: int) -> NDArray[np.int64]:
    sizes = np.full(setup.shards, setup.shard_samples, np.int64)
    shuffled = get_shuffle(algorithm, sizes, nodes, setup.seed, 0, block)
    places = get_partitions("relaxed", setup.samples, nodes, 1, 1, 1, setup.batch).reshape(-1)
    rows: NDArray[np.int64] = shuffled[places[places >= 0]]
    return rows


def main(setup: Setup) -> None:
    for name, algorithm, nodes, block, note in _ORDERS:
        if algorithm in algos:
            how = partial(order, setup, algorithm, nodes, block)
            record(setup, "mosaicml-streaming", f"MosaicML {name}", note, how)


if __name__ == "__main__":
    main(arguments())
