"""Batches that are handed over are right, whatever becomes of either side, and their memory is used again."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from streamio import WorkerDied, WorkerError
from streamio.handover import leases
from streamio.handover.ring import Handed, SlotRing
from streamio.types import Alloc
from tests import warm

SIZE = 100_000
"""Float32 numbers in a batch: more than travels inside a pickle."""


def numbered(i: int, size: int = SIZE) -> Callable[[Alloc], Any]:
    """The batch number i, as a maker of it."""

    def make(alloc: Alloc) -> Any:
        x = alloc((size,), np.dtype(np.float32))
        x[:] = i
        return {"x": torch.from_numpy(x), "other": torch.full((size // 2,), i), "i": i}

    return make


def is_right(batch: Any) -> bool:
    return bool((batch["x"] == batch["i"]).all() and (batch["other"] == batch["i"]).all())


def received(handed: Handed) -> Any:
    return pickle.loads(pickle.dumps(handed))


class Numbered(IterableDataset[Any]):
    """n batches, each made in the ring of a worker; with them goes what the ring says of itself."""

    def __init__(self, n: int, **options: Any) -> None:
        self.n, self.options = n, options

    def __iter__(self) -> Iterator[Any]:
        ring = SlotRing(**self.options)
        for i in range(self.n):
            yield ring.make(lambda alloc, i=i: numbered(i)(alloc) | {"ring": ring.stats(), "pid": os.getpid()})


def batches(n: int, workers: int = 1, **options: Any) -> DataLoader[Any]:
    return DataLoader(Numbered(n, **options), batch_size=None, num_workers=workers)


def test_slots_are_used_again_when_the_batch_is_gone() -> None:
    got = [(is_right(batch), batch["ring"]) for batch in batches(200)]
    assert all(right for right, _ in got)
    assert got[-1][1].slots <= 6 and got[-1][1].in_pickles == 0 and got[-1][1].segments == 1


def test_a_loop_that_keeps_all_batches_gets_right_values_in_a_bounded_number_of_slots() -> None:
    kept = list(batches(60, workers=2, slots=8))
    assert [b["i"] for b in kept] == [i for i in range(60) for _ in range(2)]
    assert all(map(is_right, kept))
    assert kept[-1]["ring"].slots == 8 and kept[-1]["ring"].in_pickles == 59 - 8


def test_slots_are_bounded_in_bytes_but_for_a_few() -> None:
    ring = SlotRing(max_bytes=8 * SIZE * 10)
    kept = [received(ring.make(numbered(i))) for i in range(30)]
    assert all(map(is_right, kept))
    assert 9 <= ring.stats().slots <= 10
    ring = SlotRing(max_bytes=0)
    kept += [received(ring.make(numbered(i))) for i in range(30)]
    assert ring.stats().slots == 4 and all(map(is_right, kept))


@pytest.mark.parametrize(
    "view",
    [
        lambda b: b["x"], lambda b: b["x"][5:9], lambda b: b["x"].numpy(), lambda b: b["x"].numpy()[3:].data,
        lambda b: b["x"].view(torch.int32), lambda b: b["x"].untyped_storage(), lambda b: [b["x"].reshape(2, -1)],
    ],
)  # fmt: skip
def test_a_slot_comes_back_when_the_last_view_is_gone_and_not_before(view: Callable[[Any], Any]) -> None:
    ring = SlotRing()
    kept = view(received(ring.make(numbered(0))))
    gc.collect()
    assert ring.stats().in_use == 1
    del kept
    gc.collect()
    assert ring.stats().in_use == 0


def test_a_tensor_that_was_sent_on_stays_right() -> None:
    ring = SlotRing()
    batch = received(ring.make(numbered(1)))
    kept = pickle.loads(pickle.dumps(batch["x"])), batch["x"].clone(), batch["other"].share_memory_()
    del batch
    for i in range(3):
        received(ring.make(numbered(i)))
    assert all((k == 1).all() for k in kept)


def test_what_is_made_in_the_slot_is_not_copied_again() -> None:
    ring = SlotRing()
    received(ring.make(numbered(0)))
    made: list[Any] = []
    handed = ring.make(lambda alloc: made.append(numbered(1)(alloc)) or made[0])
    made[0]["x"][:] = 5
    made[0]["other"][:] = 6  # was copied already
    batch = received(handed)
    assert (batch["x"] == 5).all() and (batch["other"] == 1).all()


def test_a_maker_that_asks_for_more_than_its_batch_gets_it_in_one_slot_soon() -> None:
    """As a transform does: the values that it got, and the batch of those that it returned."""
    ring = SlotRing()

    def wasteful(alloc: Alloc) -> Any:
        for _ in range(5):
            alloc((SIZE,), np.dtype(np.float32))[:] = 0
        return numbered(3)(alloc)

    for _ in range(3):
        assert is_right(received(ring.make(wasteful)))
    slots = ring.stats().slots
    for _ in range(10):
        assert is_right(received(ring.make(wasteful)))
    assert ring.stats().slots == slots == 1
    assert ring.stats().in_slots == 13


def test_what_the_maker_keeps_of_a_batch_is_not_written_over() -> None:
    ring = SlotRing()
    kept: list[Any] = []

    def keeping(i: int) -> Callable[[Alloc], Any]:
        return lambda alloc: kept.append(numbered(i)(alloc)) or kept[-1]

    for i in range(6):
        assert is_right(received(ring.make(keeping(i))))
    assert all(map(is_right, kept))
    kept.clear()
    assert ring.stats().in_use == 0


def test_batches_that_outgrow_their_slots_get_larger_ones_and_the_old_go() -> None:
    ring = SlotRing()
    kept = []
    for i, size in enumerate([SIZE, 3 * SIZE, 10 * SIZE, 100, SIZE, 40 * SIZE, 2 * SIZE]):
        batch = received(ring.make(numbered(i, size)))
        assert is_right(batch) and len(batch["x"]) == size
        kept.append(batch)
    assert ring.stats().segments == 4
    assert all(map(is_right, kept))
    del kept, batch
    received(ring.make(numbered(0)))
    assert ring.stats().segments == 1
    leases.forget_retired()
    assert sum(pid == os.getpid() for pid, _ in leases._maps.values()) <= 1


def test_a_batch_that_was_not_sent_leaves_its_slot_free() -> None:
    ring = SlotRing()
    for i in range(20):
        ring.make(numbered(i))
    with pytest.raises(ZeroDivisionError):
        ring.make(lambda alloc: numbered(0)(alloc)["i"] / 0)
    assert ring.stats().in_use == 0 and ring.stats().slots == 1


def test_a_batch_is_handed_over_once() -> None:
    ring = SlotRing()
    handed = ring.make(numbered(0))
    sent = pickle.dumps(handed)
    with pytest.raises(RuntimeError, match="once"):
        pickle.dumps(handed)
    kept = pickle.loads(sent)
    with pytest.raises(WorkerError, match="a second time"):
        pickle.loads(sent)
    assert is_right(kept)


def test_slots_come_back_from_any_thread() -> None:
    """As where a DataLoader's thread for pinned memory receives the batches."""
    ring = SlotRing()
    got: list[Any] = []
    for i in range(20):
        handed = ring.make(numbered(i))
        thread = threading.Thread(target=lambda handed=handed: got.append(received(handed)))
        thread.start()
        thread.join()
        assert is_right(got.pop())
    assert ring.stats().slots == 1


def test_a_child_made_by_fork_keeps_the_batches_that_it_inherited() -> None:
    """The training loop forks evaluation workers, or a process that saves pictures, with a batch in its hands."""
    ring = SlotRing()
    batch = received(ring.make(numbered(7)))
    go, may_go = os.pipe()
    child = os.fork()
    if not child:
        os.close(may_go)
        os.read(go, 1)
        right = is_right(batch)
        del batch
        os._exit(0 if right else 1)
    os.close(go)
    del batch
    for i in range(10):
        assert is_right(received(ring.make(numbered(i))))
    os.close(may_go)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    received(ring.make(numbered(0)))
    assert ring.stats().in_use == 0  # the child is gone, so the slot came back
    assert ring.stats().slots == 2


def test_a_child_does_not_give_back_what_its_parent_holds() -> None:
    ring = SlotRing()
    batch = received(ring.make(numbered(7)))
    child = os.fork()
    if not child:
        del batch
        os._exit(0)
    os.waitpid(child, 0)
    for i in range(5):
        received(ring.make(numbered(i)))
    assert is_right(batch)


def test_forks_with_batches_in_hand_leave_no_open_files() -> None:
    gc.collect()  # what earlier tests left would close files meanwhile
    ring = SlotRing()
    process = psutil.Process()
    before = -1
    for i in range(10):
        batch = received(ring.make(numbered(i)))
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        assert is_right(batch)
        before = process.num_fds() if i == 2 else before
    assert process.num_fds() == before
    assert ring.stats().slots <= 3


def test_neither_side_opens_more_files_as_time_goes() -> None:
    counts: dict[int, list[int]] = {os.getpid(): []}
    for batch in batches(600, workers=2):
        counts[os.getpid()].append(psutil.Process().num_fds())
        counts.setdefault(batch["pid"], []).append(psutil.Process(batch["pid"]).num_fds())
    for pid, numbers in counts.items():
        assert numbers[-1] <= max(numbers[:40]), pid


def test_a_killed_worker_leaves_its_last_batches_right_and_nothing_behind() -> None:
    iterator = iter(batches(1000))
    batch = next(iterator)
    pid = batch["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|is killed by signal"):
        list(iterator)
    assert is_right(batch)
    del batch, iterator
    leases.forget_retired()
    assert all(psutil.pid_exists(pid) for pid, _ in leases._maps.values())
    assert not [name for name in os.listdir("/dev/shm") if str(pid) in name]


def test_a_batch_of_a_dead_worker_is_named_as_such() -> None:
    go, told = os.pipe()
    child = os.fork()
    if not child:
        os.write(told, pickle.dumps(SlotRing().make(numbered(0))))
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(WorkerDied, match=f"{child} ended before its batch was taken"):
        pickle.loads(os.read(go, 10_000))
    os.close(go), os.close(told)


def test_a_copy_of_the_process_gets_a_ring_of_its_own_and_a_pickle_none(tmp_path: Any) -> None:
    from tests.sets import make_set

    dataset = pickle.loads(pickle.dumps(_with_ring(make_set(tmp_path / "s", 8))))
    assert dataset._ring is None
    ring = dataset._own_ring()
    assert dataset._own_ring() is ring
    ring.pid += 1  # as it is in a child
    assert dataset._own_ring() is not ring


def _with_ring(path: str) -> Any:
    from streamio import ShardDataset

    dataset = ShardDataset(path, 4)
    dataset._own_ring()
    return dataset


@pytest.mark.parametrize("missing", ["memfd_create", "readlink"])
def test_without_memory_to_share_batches_are_copied(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> Any:
        raise OSError(1, "refused")

    monkeypatch.setattr(os, missing, refused)
    with caplog.at_level(logging.WARNING, "streamio"):
        ring = SlotRing()
        assert all(is_right(received(ring.make(numbered(i)))) for i in range(5))
    assert [r.getMessage() for r in caplog.records if "refused" in r.getMessage()] == [
        caplog.records[0].getMessage()
    ]
    assert ring.stats().in_pickles == 5


def test_the_interpreter_ends_in_silence_with_batches_in_its_hands() -> None:
    code = """
        from tests.handover.test_ring import *
        kept = [batch for batch, _ in zip(batches(50, workers=2), range(5))]
        ring = SlotRing()
        held = received(ring.make(numbered(0)))
        cycle = [held]; cycle.append(cycle)
        class Late:
            def __del__(self, b=received(ring.make(numbered(1)))): b.clear()
        late = Late()
    """
    done = warm.run(["-c", textwrap.dedent(code)])
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_faster_than_a_new_tensor_each_time() -> None:
    """By far: 9.6 MB take 10 ms and a new mapping with torch. Only the order of magnitude is held here."""

    def seconds(ours: bool) -> float:
        ring = SlotRing()
        started = time.process_time()
        for i in range(30):
            made = numbered(i, 1_600_000)
            sent = ring.make(made) if ours else made(np.empty)["x"].share_memory_()
            received(sent) if ours else sent.sum()
        return time.process_time() - started

    assert min(seconds(True) for _ in range(3)) < min(seconds(False) for _ in range(3))
