"""Joined arrays -> what the loop gets: tensors, and what the user's `batch_transform` makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

from streamio.batching.functions import takes_rng
from streamio.batching.stages import TRANSFORM, Count, spent
from streamio.batching.tensors import as_tensors
from streamio.errors import StreamioError, TransformError, UsageError
from streamio.order.plan import BatchRows
from streamio.rng import BATCH, generator


class Delivery:
    """The last thing that happens to a batch where it is made.

    function: of a batch of tensors, as the loop would get it, or of (batch, rng). rng is keyed by (seed, visit,
              row) of the first sample that the batch was to have. So it is the same wherever the batch is made, and
              after a resume with the same global batch.
    count:    is told the time that the function takes.
    names:    of the fields, where batches are tuples. A function with `by_name = True` gets a dict all the same,
              and what it returns becomes a tuple again.

    Raises UsageError at construction for what is no function.
    """

    def __init__(
        self, function: Callable[..., Any] | None, *, seed: int, names: tuple[str, ...] | None, count: Count
    ) -> None:
        if function is not None and not callable(function):
            raise UsageError(f"batch_transform={function!r}", fix="Give a function of a batch, or leave it out")
        self.function = function
        self._seed, self._names, self._count = seed, names, count
        self._takes_rng = function is not None and takes_rng(function)
        self._by_name = names is not None and getattr(function, "by_name", False)

    def __call__(self, made: Any, rows: BatchRows) -> Any:
        """made: of arrays. The result has tensors for all arrays, also for those that the function returns."""
        batch = as_tensors(made)
        if self.function is None:
            return batch
        since = perf_counter_ns()
        made = as_tensors(self._transformed(batch, rows))
        spent(self._count, TRANSFORM, since)
        return made

    def _transformed(self, batch: Any, rows: BatchRows) -> Any:
        try:
            made = self._named(batch, rows) if self._by_name else self._called(batch, rows)
        except StreamioError:
            raise
        except Exception as error:
            raise TransformError(
                f"batch_transform raised {type(error).__name__}: {error}; "
                f"the batch begins with row {rows.rows[0]:,}"
            ) from error
        if made is None:
            raise TransformError(
                "batch_transform returned None", fix="Return the batch, also where it was changed in place"
            )
        return made

    def _named(self, batch: Any, rows: BatchRows) -> Any:
        names = self._names
        if not isinstance(batch, tuple) or names is None or len(batch) != len(names):
            return self._called(batch, rows)  # a transform or collate of the user's gave it another form
        made = self._called(dict(zip(names, batch, strict=True)), rows)
        return tuple(made[name] for name in names) if isinstance(made, Mapping) else made

    def _called(self, batch: Any, rows: BatchRows) -> Any:
        assert self.function is not None
        if not self._takes_rng:
            return self.function(batch)
        return self.function(batch, generator(self._seed, int(rows.visits[0]), int(rows.rows[0]), BATCH))
