"""The parts that transports are made of: threads in order, frames in pipes, page-locked copies."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import pytest
import torch

from streamio import WorkerTimeout
from streamio.loading import pinning
from streamio.loading.base import Batches
from streamio.loading.messages import Inbox, Kind, Message, send
from streamio.loading.pinning import PinnedBatches, pinned, pins
from streamio.loading.threads import InOrder


def test_results_of_threads_come_in_the_order_of_the_tasks() -> None:
    order = random.Random(0)
    pauses = [order.random() / 200 for _ in range(60)]

    def make(task: int) -> int:
        time.sleep(pauses[task])
        return task

    made = InOrder(iter(range(60)), make, threads=4, room=61)
    assert list(made) == list(range(60))
    assert list(made) == []
    made.join()


def test_no_more_is_begun_than_there_is_room_for() -> None:
    begun: list[int] = []
    made = InOrder(iter(range(100)), begun.append, threads=3, room=5)
    next(made)
    time.sleep(0.05)
    assert len(begun) == 5
    made.more_room(2)
    time.sleep(0.05)
    assert len(begun) == 7
    made.stop()
    made.join()
    assert not [t for t in threading.enumerate() if t.name.startswith("streamio")]


@pytest.mark.parametrize("error", [ValueError, TimeoutError])
def test_an_exception_comes_in_its_place_and_last(error: type[Exception]) -> None:
    def make(task: int) -> int:
        if task == 3:
            raise error("three")
        time.sleep(0.01)
        return task

    made = InOrder(iter(range(10)), make, threads=3, room=10, timeout=5)
    assert [next(made) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(error, match="three"):
        next(made)
    assert list(made) == []
    made.join()


def test_an_exception_of_the_tasks_is_one_too() -> None:
    def tasks() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    made = InOrder(tasks(), lambda task: task, threads=2, room=10)
    assert next(made) == 1
    with pytest.raises(ValueError, match="no more"):
        next(made)
    assert list(made) == []


def test_a_thread_that_hangs_is_a_timeout() -> None:
    hang = threading.Event()
    made = InOrder(iter(range(2)), lambda task: hang.wait(), threads=1, room=2, timeout=0.1)
    with pytest.raises(WorkerTimeout, match=r"within 0\.1 seconds"):
        next(made)
    made.stop()
    hang.set()
    made.join()


def _messages(inbox: Inbox) -> list[Message]:
    return list(iter(inbox.read, None))


def test_messages_are_read_as_far_as_they_have_come() -> None:
    theirs, ours = Pipe(duplex=False)
    inbox = Inbox(theirs)
    assert inbox.read() is None
    send(ours, Kind.BATCH, 7, b"abc")
    send(ours, Kind.END, 8)
    found = _messages(inbox)
    assert [(m.kind, m.iteration, bytes(m.body)) for m in found] == [(Kind.BATCH, 7, b"abc"), (Kind.END, 8, b"")]
    body = os.urandom(1 << 22)  # more than a pipe holds
    sender = threading.Thread(target=send, args=(ours, Kind.BATCH, 9, body))
    sender.start()
    while not (found := _messages(inbox)):
        time.sleep(0.001)
    sender.join()
    assert bytes(found[0].body) == body
    os.write(ours.fileno(), b"half a header"[:9])
    assert inbox.read() is None
    ours.close()
    with pytest.raises(EOFError):
        inbox.read()


Pair = namedtuple("Pair", "a b")


class Pinnable:
    def pin_memory(self) -> str:
        return "pinned"


def test_all_tensors_of_a_batch_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    one = torch.zeros(1)
    found = pinned({"a": [one, "text"], "b": (one, Pair(one, 5)), "c": b"raw", "d": Pinnable()})
    assert found == {"a": [one + 1, "text"], "b": (one + 1, Pair(one + 1, 5)), "c": b"raw", "d": "pinned"}
    assert isinstance(found["b"][1], Pair)


class Counting(Batches):
    def __init__(self, error: type[Exception] | None) -> None:
        self.number, self.closed, self._error = 0, False, error

    def __next__(self) -> Any:
        self.number += 1
        if self.number > 5:
            raise self._error("five") if self._error else StopIteration
        return self.number

    def ready(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("error", [None, ValueError])
def test_pinned_batches_keep_their_order_and_their_end(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    monkeypatch.setattr(pinning, "pinned", lambda batch: batch * 10)
    source = Counting(error)
    batches = PinnedBatches(source)
    assert next(batches) == 10 and source.number == 2  # one is on its way
    assert [next(batches) for _ in range(4)] == [20, 30, 40, 50]
    with pytest.raises(error or StopIteration):
        next(batches)
    batches.close()
    assert source.closed


def test_pinned_batches_are_ready_once_they_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    monkeypatch.setattr(pinning, "pinned", lambda batch: hold.wait(10) and batch * 10)
    batches = PinnedBatches(Counting(None))
    assert not batches.ready(), "it is on its way, and does not wait"
    hold.set()
    until = time.monotonic() + 10
    while not batches.ready() and time.monotonic() < until:
        time.sleep(0.001)
    assert batches.ready()
    assert [next(batches) for _ in range(5)] == [10, 20, 30, 40, 50]
    batches.close()


def test_pinning_without_cuda_is_said_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="pin_memory=True has no effect"):
        assert not pins(True)
    assert not pins("auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pins(True) and pins("auto") and not pins(False)
