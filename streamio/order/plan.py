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
from streamio.order.base import Order
from streamio.order.epoch import EpochOrder
from streamio.order.lanes import residue
from streamio.order.shuffle import BLOCK_SAMPLES, Shuffle
from streamio.types import Rows

Tail: TypeAlias = Literal["even", "drop", "pad"]

_POSITIONS_AT_ONCE = 1 << 14
"""The order is computed for about so many positions in one call (see `permute` for what that saves)."""


class BatchRows(NamedTuple):
    """One rank's share of one step.

    rows:   int64 (n,), in the order of the epoch.
    visits: int64 (n,), see `streamio.order.base.Picks`.
    valid:  bool (n,), False where a row only fills up the batch (tail "pad"); None when all are real.
    epoch:  that the step is of.
    """

    step: int
    rows: Rows
    visits: NDArray[np.int64]
    valid: NDArray[np.bool_] | None
    epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One epoch: (sizes, seed, epoch, topology) -> the rows of any batch, in constant time and memory.

    sizes:      int64 (shards,), samples of each shard; N is their sum.
    batch_size: samples that a rank gets in a step.
    world_size: ranks that share the epoch.
    shuffle, block_samples: see `streamio.order.shuffle`.
    lanes:      see `streamio.order.lanes`; 1 is none.
    repeat:     passes over the set in one epoch, each with an order of its own.
    order:      an order in the place of the one that sizes, seed, shuffle, block_samples and repeat make.
    tail:       what becomes of N mod (batch_size x world_size) samples:
                "even"  every sample once, every rank the same number of batches: the last two steps are shared
                        out so that the sizes of their slices differ by at most one;
                "drop"  they are left out of this epoch;
                "pad"   the last step is filled up with the first samples of the order, marked in `valid`.
    start:      positions of this epoch that were done before, on whatever topology; the plan shares out the rest.
    fill_from:  position from which "pad" fills up, for orders that know nothing of those before `start`.
    mark:       numbers that `order` was made with and that a state must keep beside the position.

    Raises UsageError for values out of range, and TailError where "even" cannot be: fewer samples than ranks,
    or an odd rest with one sample per rank and step.
    """

    sizes: NDArray[np.int64] | None = None
    batch_size: int
    world_size: int = 1
    seed: int = 0
    epoch: int = 0
    shuffle: Shuffle = "none"
    tail: Tail = "even"
    start: int = 0
    lanes: int = 1
    block_samples: int = BLOCK_SAMPLES
    repeat: int = 1
    order: Order | None = None
    fill_from: int = 0
    mark: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size", "lanes", "block_samples", "repeat"):
            check_count(name, getattr(self, name))
        if self.tail not in get_args(Tail):
            raise UsageError(f"tail={self.tail!r}", fix="Use 'even', 'drop' or 'pad'")
        check_lanes(self.lanes, self.repeat)
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
        """Positions of the epoch: N, but for repeats and orders of another length."""
        if self.order is not None:
            return self.order.samples
        assert self.sizes is not None, "a plan needs sizes or an order"
        return int(self.sizes.sum()) * self.repeat

    @property
    def left(self) -> int:
        """Positions from `start` on."""
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
        if self.order is not None:
            return self.order
        assert self.sizes is not None
        return EpochOrder(
            self.sizes, shuffle=self.shuffle, seed=self.seed, epoch=self.epoch, lanes=self.lanes,
            block_samples=self.block_samples, repeat=self.repeat,
        )  # fmt: skip

    @cached_property
    def _last_step_samples(self) -> int:
        """Samples of the last step under "even"; the one before it has as many or one more."""
        full, rest = divmod(self.left, self.step_samples)
        if rest == 0:
            return self.step_samples
        return rest if full == 0 else (self.step_samples + rest) // 2

    def span(self, step: int) -> tuple[int, int]:
        """Positions [start, stop) of a whole step. Under "pad" the last may end behind the epoch."""
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

    def positions(self, step: int, rank: int) -> Rows:
        """Positions of one rank in one step, int64: equal parts, some ranks one more if need be.

        Without lanes these are neighbours, and the first ranks have one more; with lanes they are those of one
        residue (see `streamio.order.lanes.residue`).
        """
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} of {self.world_size}")
        start, stop = self.span(step)
        if self.lanes > 1:
            first = start + (residue(rank, self.world_size, self.lanes) - start) % self.world_size
            return np.arange(first, stop, self.world_size, dtype=np.int64)
        each, more = divmod(stop - start, self.world_size)
        begin = start + rank * each + min(rank, more)
        return np.arange(begin, begin + each + (rank < more), dtype=np.int64)

    def rows(self, step: int, rank: int) -> Rows:
        """The rows of one batch, int64 (n,). For many, `batches` is far cheaper a batch."""
        return next(self.batches([step], rank)).rows

    def share(self, rank: int, worker: int = 0, workers: int = 1) -> Iterator[BatchRows]:
        """The batches that one of a rank's workers makes: the steps worker, worker + workers, …"""
        return self.batches(range(worker, self.steps, workers), rank)

    def batches(self, steps: Iterable[int], rank: int) -> Iterator[BatchRows]:
        """The batches of some steps for one rank, with the order computed for many of them at a time."""
        steps = iter(steps)
        at_once = max(1, _POSITIONS_AT_ONCE // self.batch_size)
        while chunk := list(islice(steps, at_once)):
            of_step = [self.positions(step, rank) for step in chunk]
            rows, visits = self._order(self._filled_up(np.concatenate(of_step)))
            at = 0
            for step, positions in zip(chunk, of_step, strict=True):
                end = at + len(positions)
                valid = positions < self.samples if self.tail == "pad" else None
                yield BatchRows(step, rows[at:end], visits[at:end], valid, self.epoch)
                at = end

    def _filled_up(self, positions: Rows) -> Rows:
        """Positions behind the epoch begin again with its start; in lanes, with that of the same lane."""
        behind = positions >= self.samples
        if self.tail != "pad" or not behind.any():
            return positions
        over = positions - self.samples
        again = over // self.lanes * self.lanes + positions % self.lanes
        return np.where(behind, self.fill_from + again % (self.samples - self.fill_from), positions)


def check_count(name: str, value: object) -> None:
    """Raise UsageError for what is no whole number of at least 1."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name}={value!r}", fix="Give a whole number of at least 1")


def check_lanes(lanes: int, repeat: int) -> None:
    """Raise UsageError for lanes with repeats: passes begin at positions that would move the lanes."""
    if repeat > 1 and lanes > 1:
        raise UsageError(f"repeat={repeat} with lanes={lanes}", fix="Use lanes, and repeat times as many epochs")
