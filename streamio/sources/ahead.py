"""An iterator that runs ahead in a thread of its own: connections belong to the thread that opened them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_STEP = 0.1
_END = object()
_PATIENCE = 5.0
"""Seconds to wait for a thread that is to end: it may be in the middle of a query."""


def in_own_thread(make: Callable[[], Iterator[T]], ahead: int = 2) -> Iterator[T]:
    """What an iterator gives. It is made, run and closed in one thread, whoever takes from this one.

    ahead: values that it makes before they are asked for.

    Closing this one closes it; a query that lasts is left to end by itself.
    """
    values: queue.Queue[Any] = queue.Queue(ahead)
    stopped = threading.Event()

    def put(value: Any) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                values.put(value, timeout=_STEP)
                return

    def run() -> None:
        end: Any = _END
        iterator = make()
        try:
            while not stopped.is_set():
                value = next(iterator, _END)
                if value is _END:
                    break
                put((value,))
        except BaseException as error:
            end = error
        try:
            getattr(iterator, "close", bool)()
        except BaseException as error:
            end = error if end is _END else end
        put(end)

    thread = threading.Thread(target=run, name="streamio-ahead", daemon=True)
    thread.start()
    try:
        while isinstance(value := values.get(), tuple):
            yield value[0]
        if value is not _END:
            try:
                raise value
            finally:
                del value  # the error holds this frame
    finally:
        stopped.set()
        thread.join(_PATIENCE)
