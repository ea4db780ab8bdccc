"""The plan: which rows every rank gets in every step. There is one planner, and its slices tile the epoch.

A step is one global batch: `batch_size x world_size` consecutive positions, one slice for each rank.
Ten samples, two ranks, batches of 2, tail "even":

    position   0 1 2 3   4 5 6   7 8 9
    step       0 0 0 0   1 1 1   2 2 2      the last two steps share 4 + 2 samples as 3 and 3
    rank       0 0 1 1   0 0 1   0 0 1      and each is cut for its ranks as evenly as can be

Where the steps are cut depends on the global batch (batch_size x world_size) alone: with the same one, a step
holds the same samples on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from streamio.errors import TailError, UsageError
from streamio.order.shuffle import Order, Shuffle, make_order
from streamio.types import Rows

Tail: TypeAlias = Literal["even", "drop", "pad"]

_POSITIONS_AT_ONCE = 1 << 14
"""The order is computed for about so many positions in one call (see `permute` for what that saves)."""


class BatchRows(NamedTuple):
    """One rank's share of one step.

    rows:  int64 (n,), in the order of the epoch.
    valid: bool (n,), False where a row only fills up the batch (tail "pad"); None when all are real.
    """

    step: int
    rows: Rows
    valid: NDArray[np.bool_] | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One epoch: (sizes, seed, epoch, topology) -> the rows of any batch, in constant time and memory.

    sizes:      int64 (shards,), samples of each shard; N is their sum.
    batch_size: samples that a rank gets in a step.
    world_size: ranks that share the epoch.
    shuffle:    see `streamio.order.shuffle`.
    tail:       what becomes of N mod (batch_size x world_size) samples:
                "even"  every sample once, every rank the same number of batches: the last two steps are shared
                        out so that the sizes of their slices differ by at most one;
                "drop"  they are left out of this epoch;
                "pad"   the last step is filled up with the first samples of the order, marked in `valid`.
    start:      positions of this epoch that were done before, on whatever topology; the plan shares out the rest.

    Raises UsageError for values out of range, and TailError where "even" cannot be: fewer samples than ranks,
    or an odd rest with one sample per rank and step.
    """

    sizes: NDArray[np.int64]
    batch_size: int
    world_size: int = 1
    seed: int = 0
    epoch: int = 0
    shuffle: Shuffle = "none"
    tail: Tail = "even"
    start: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size"):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{name}={value!r}", fix="Give a whole number of at least 1")
        if self.tail not in get_args(Tail):
            raise UsageError(f"tail={self.tail!r}", fix="Use 'even', 'drop' or 'pad'")
        if self.samples == 0:
            raise UsageError("the set has no samples", fix="Pack it again, or widen the selection")
        if not 0 <= self.start <= self.samples:
            raise UsageError(f"start={self.start:,} of {self.samples:,} samples")
        if self.tail == "even" and self.left and self._last_step_samples < self.world_size:
            raise TailError(
                f"{self.left:,} samples cannot go once each to {self.world_size} ranks in equal numbers of "
                f"batches of up to {self.batch_size}",
                fix=f"Use tail='pad' (some samples twice, marked) or tail='drop' (leaves out "
                f"{self.left % self.step_samples}), or another batch size",
            )

    @cached_property
    def samples(self) -> int:
        """N, the samples of the set."""
        return int(self.sizes.sum())

    @property
    def left(self) -> int:
        """Samples from `start` on."""
        return self.samples - self.start

    @property
    def step_samples(self) -> int:
        """The global batch."""
        return self.batch_size * self.world_size

    @cached_property
    def steps(self) -> int:
        """Batches that every rank gets."""
        full, rest = divmod(self.left, self.step_samples)
        return full if self.tail == "drop" or rest == 0 else full + 1

    @cached_property
    def _order(self) -> Order:
        return make_order(self.sizes, self.shuffle, self.seed, self.epoch)

    @cached_property
    def _last_step_samples(self) -> int:
        """Samples of the last step under "even"; the one before it has as many or one more."""
        full, rest = divmod(self.left, self.step_samples)
        if rest == 0:
            return self.step_samples
        return rest if full == 0 else (self.step_samples + rest) // 2

    def span(self, step: int) -> tuple[int, int]:
        """Positions [start, stop) of a whole step. Under "pad" the last may end behind N."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of {self.steps}")
        start = self.start + step * self.step_samples
        stop = start + self.step_samples
        if self.tail != "even" or self.left % self.step_samples == 0:
            return start, stop
        cut = self.samples - self._last_step_samples  # where the last step begins
        if step == self.steps - 1:
            return cut, self.samples
        return start, cut if step == self.steps - 2 else stop

    def state_at(self, steps: int) -> tuple[int, int]:
        """(epoch, start) of what is left after this many steps; the next epoch where nothing is.

        With the same global batch, a plan from there on cuts the rest into the very steps that this one would.
        """
        if not 0 <= steps <= self.steps:
            raise IndexError(f"{steps} steps done of {self.steps}")
        if steps == self.steps:
            return self.epoch + 1, 0
        return self.epoch, self.span(steps)[0]

    def slice(self, step: int, rank: int) -> tuple[int, int]:
        """Positions [start, stop) of one rank in one step: equal parts, the first ranks one more if need be."""
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} of {self.world_size}")
        start, stop = self.span(step)
        each, more = divmod(stop - start, self.world_size)
        begin = start + rank * each + min(rank, more)
        return begin, begin + each + (rank < more)

    def rows(self, step: int, rank: int) -> Rows:
        """The rows of one batch, int64 (n,). For many, `batches` is far cheaper a batch."""
        return next(self.batches([step], rank)).rows

    def batches(self, steps: Iterable[int], rank: int) -> Iterator[BatchRows]:
        """The batches of some steps for one rank, with the order computed for many of them at a time."""
        steps = iter(steps)
        at_once = max(1, _POSITIONS_AT_ONCE // self.batch_size)
        while chunk := list(islice(steps, at_once)):
            slices = [self.slice(step, rank) for step in chunk]
            positions = np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in slices])
            rows = self._order(positions % self.samples)
            at = 0
            for step, (start, stop) in zip(chunk, slices, strict=True):
                end = at + stop - start
                yield BatchRows(step, rows[at:end], self._valid(start, stop))
                at = end

    def _valid(self, start: int, stop: int) -> NDArray[np.bool_] | None:
        if self.tail != "pad":
            return None
        return np.arange(start, stop) < self.samples
