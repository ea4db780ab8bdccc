"""Page-locked batches, which a GPU can take while the program goes on."""

from __future__ import annotations

import warnings
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import torch

from streamio.errors import UsageError
from streamio.loading.base import Batches
from streamio.loading.nested import over_tensors

_AHEAD = 2


def pins(pin_memory: bool | Literal["auto"]) -> bool:
    """Whether to pin: "auto" and True do where CUDA is available."""
    if pin_memory not in (True, False, "auto"):
        raise UsageError(f"pin_memory={pin_memory!r}", fix="Use True, False or 'auto'")
    available = bool(pin_memory) and torch.cuda.is_available()
    if pin_memory is True and not available:
        warnings.warn("pin_memory=True has no effect: CUDA is not available here", UserWarning, stacklevel=3)
    return available


def pinned(batch: Any) -> Any:
    """A batch of any structure with its tensors page-locked; what has a method `pin_memory` is asked for it."""
    return over_tensors(batch, lambda tensor: tensor.pin_memory(), "pin_memory", lambda value: value.pin_memory())


class PinnedBatches(Batches):
    """Batches that are already there are copied to page-locked memory in a thread, while the loop has another."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._thread = ThreadPoolExecutor(1, "streamio-pin")
        self._coming: deque[Future[Any]] = deque()
        self._ended: BaseException | None = None

    def __next__(self) -> Any:
        self._take(waits=True)
        if self._coming:
            return self._coming.popleft().result()
        assert self._ended is not None
        raise self._ended

    def _take(self, waits: bool) -> None:
        """Give the thread what is there; and wait for something, if nothing is on its way."""
        while self._ended is None and (
            (waits and not self._coming) or (len(self._coming) < _AHEAD and self._batches.ready())
        ):
            try:
                self._coming.append(self._thread.submit(pinned, next(self._batches)))
            except Exception as error:  # in its turn: batches before it are on their way
                self._ended = error

    def ready(self) -> bool:
        self._take(waits=False)
        return bool(self._coming) and self._coming[0].done()

    def ready_now(self) -> int:
        return len(self._coming) + self._batches.ready_now()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._batches.close()
