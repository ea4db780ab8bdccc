"""Stores: filled by many processes, which may be killed at any moment, up to a limit, and never wrong."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamio.caching.disk import DiskStore
from streamio.caching.memory import MemoryStore
from streamio.caching.store import data_start
from streamio.errors import StorageError, UsageError

SLOTS = 500
KEY = "0" * 32
OTHER = "1" * 32


def value(slot: int) -> np.ndarray[Any, Any]:
    """Tells its slot, in one of many sizes."""
    return np.full((1 + slot % 13, 700), slot % 251, np.uint8)


def found(held: MemoryStore | DiskStore) -> set[int]:
    """The slots that have a value; each of them the right one."""
    store, right = held.store, set()
    for slot, word in enumerate(store.words(np.arange(SLOTS))):
        read = store.read(slot, word) if word else None
        if read is not None:
            assert np.array_equal(read[0], value(slot)), slot
            right.add(slot)
    return right


def fill(held: MemoryStore | DiskStore, seed: int = 0) -> None:
    for slot in np.random.default_rng(seed).permutation(SLOTS).tolist():
        held.store.write(slot, value(slot))


@pytest.fixture(params=["memory", "disk"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., MemoryStore | DiskStore]:
    """Opens a store; one on the disk again and again."""

    def open_store(limit: int = 10 << 20) -> MemoryStore | DiskStore:
        if request.param == "memory":
            return MemoryStore(SLOTS, limit, None)
        return DiskStore(tmp_path / "cache", KEY, SLOTS, limit)

    return open_store


@contextmanager
def child(work: Callable[[], object]) -> Iterator[int]:
    """A forked process that does this; it is ended and waited for."""
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def forever(held: MemoryStore | DiskStore, seed: int) -> None:
    """Fill, forget what there is, and fill again: always in the middle of a write."""
    while True:
        fill(held, seed)
        held.store._words[:] = 0
        held.store._facts[3] = data_start(SLOTS) // 64


def test_what_one_process_keeps_another_finds(opened: Callable[..., MemoryStore | DiskStore]) -> None:
    held = opened()
    with child(lambda: fill(held)) as pid:
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT).si_status == 0
    assert found(held) == set(range(SLOTS))


@pytest.mark.parametrize("limit", [data_start(SLOTS), 50_000, 777_777, 1 << 20])
def test_the_limit_is_kept_to_the_byte(opened: Callable[..., MemoryStore | DiskStore], limit: int) -> None:
    held = opened(limit)
    fill(held)
    facts = os.fstat(held.store.fd)
    assert held.store.used_bytes() <= limit and facts.st_size <= limit
    assert facts.st_blocks * 512 <= limit + 4095  # a last page
    largest = 64 * (1 + 13 * 700 // 64 + 1)
    assert held.store.used_bytes() > limit - largest
    assert found(held) or limit == data_start(SLOTS)


def test_a_limit_without_room_for_the_table_is_refused(opened: Callable[..., MemoryStore | DiskStore]) -> None:
    with pytest.raises(UsageError, match="no room for a table of 500 values"):
        opened(data_start(SLOTS) - 1)


def test_a_process_killed_at_any_moment_leaves_right_values_and_no_lock(
    opened: Callable[..., MemoryStore | DiskStore],
) -> None:
    held = opened()
    for attempt in range(20):
        with child(lambda held=held, attempt=attempt: forever(held, attempt)):  # type: ignore[misc]
            time.sleep(0.003 + 0.004 * attempt % 0.02)
        found(held)
    fill(held)
    found(held)
    if isinstance(held, DiskStore):
        found(opened())


def test_processes_that_fill_it_at_once_do_not_mix_values_up(
    opened: Callable[..., MemoryStore | DiskStore],
) -> None:
    held = opened()
    with child(lambda: fill(held, 1)) as one, child(lambda: fill(held, 2)) as two:
        fill(held, 3)
        for pid in (one, two):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found(held) == set(range(SLOTS))


@pytest.mark.parametrize("out", [None, np.empty((10, 700), np.uint8)], ids=["in its memory", "in memory given"])
def test_a_damaged_value_is_made_again(
    opened: Callable[..., MemoryStore | DiskStore], out: np.ndarray[Any, Any] | None
) -> None:
    held = opened()
    fill(held)
    (word,) = held.store.words(np.array([9]))
    start = (word >> 24) * 64
    os.pwrite(held.store.fd, b"\xee", start + 100)
    assert held.store.read(9, word, out) is None
    assert held.store.words(np.array([9])) == [0]
    held.store.write(9, value(9))
    assert 9 in found(held)


def test_a_value_comes_into_the_memory_that_is_given_or_not_at_all(
    opened: Callable[..., MemoryStore | DiskStore],
) -> None:
    held = opened()
    fill(held)
    (word,) = held.store.words(np.array([9]))
    out = np.empty((10, 700), np.uint8)
    read = held.store.read(9, word, out)
    assert read is not None and read[0] is out and np.array_equal(out, value(9))
    for other in (np.empty((9, 700), np.uint8), np.empty((10, 700), np.int8), np.empty(7000, np.uint8)):
        assert held.store.read(9, word, other) is None
    assert 9 in found(held)


def test_a_cut_file_has_fewer_values_and_no_wrong_ones(tmp_path: Path) -> None:
    held = DiskStore(tmp_path, KEY, SLOTS, 10 << 20)
    fill(held)
    os.truncate(held.store.fd, held.store.used_bytes() // 2)
    assert 0 < len(found(held)) < SLOTS


def test_other_copies_of_a_store_in_memory_are_new_ones() -> None:
    held = MemoryStore(SLOTS, 10 << 20, None)
    fill(held)
    assert found(pickle.loads(pickle.dumps(held))) == set()


def test_a_store_on_the_disk_is_the_same_after_pickling_and_in_the_next_run(tmp_path: Path) -> None:
    held = DiskStore(tmp_path, KEY, SLOTS, 10 << 20)
    fill(held)
    assert found(pickle.loads(pickle.dumps(held))) == set(range(SLOTS))
    del held
    assert found(DiskStore(tmp_path, KEY, SLOTS, 10 << 20)) == set(range(SLOTS))
    assert found(DiskStore(tmp_path, OTHER, SLOTS, 10 << 20)) == set()


def files(folder: Path) -> dict[str, int]:
    return {path.stem[0]: path.stat().st_size for path in folder.rglob("*.values")}


def test_an_unused_store_goes_when_its_room_is_needed(tmp_path: Path) -> None:
    old = DiskStore(tmp_path, KEY, SLOTS, 600_000)
    fill(old)
    new = DiskStore(tmp_path, OTHER, SLOTS, 1_000_000)
    fill(new)
    assert files(tmp_path).keys() == {"0", "1"} and 990_000 < sum(files(tmp_path).values()) <= 1_000_000
    assert found(old), "it is in use"
    del old, new
    new = DiskStore(tmp_path, OTHER, SLOTS, 1_000_000)
    fill(new)
    assert files(tmp_path).keys() == {"1"} and 990_000 < files(tmp_path)["1"] <= 1_000_000


def test_stores_in_use_that_leave_no_room_are_named(tmp_path: Path) -> None:
    other = DiskStore(tmp_path, KEY, SLOTS, 600_000)
    fill(other)
    with pytest.raises(UsageError, match=r"cache_bytes=600,000 .* others that are in use hold [0-9,]+ bytes"):
        DiskStore(tmp_path, OTHER, SLOTS, 600_000)


def test_a_store_beyond_a_smaller_limit_begins_anew(tmp_path: Path) -> None:
    fill(DiskStore(tmp_path, KEY, SLOTS, 2 << 20))
    held = DiskStore(tmp_path, KEY, SLOTS, 100_000)
    assert found(held) == set()
    fill(held)
    assert files(tmp_path)["0"] <= 100_000


def test_a_store_that_was_never_finished_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "decoded-values" / f"{KEY}.values"
    DiskStore(tmp_path, KEY, SLOTS, 10 << 20)
    path.write_bytes(bytes(20_000))  # as a process leaves it that is killed before the magic is written
    held = DiskStore(tmp_path, KEY, SLOTS, 10 << 20)
    fill(held)
    assert found(held) == set(range(SLOTS))


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    inner = tmp_path / "decoded-values"
    inner.mkdir()
    (inner / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="files that no cache made"):
        DiskStore(tmp_path, KEY, SLOTS, 10 << 20)
    assert (inner / "thesis.tex").read_text() == "x"


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"file: cannot hold a cache: .* Give another folder"):
        DiskStore(tmp_path / "file", KEY, SLOTS, 10 << 20)
    if os.getuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(StorageError, match="Permission denied"):
            DiskStore(tmp_path / "closed", KEY, SLOTS, 10 << 20)


def test_a_full_disk_ends_filling_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import resource  # a limit on file sizes stands for the disk

    held = DiskStore(tmp_path, KEY, SLOTS, 10 << 20)
    os.ftruncate(held.store.fd, 5 << 20)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        fill(held)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "filled no further" in caplog.text
    assert found(held)


def test_a_folder_removed_while_it_is_used_ends_filling_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = DiskStore(tmp_path / "cache", KEY, SLOTS, 1 << 20)
    for slot in range(10):
        held.store.write(slot, value(slot))
    shutil.rmtree(tmp_path / "cache")
    fill(held)
    assert found(held) >= set(range(10))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_no_descriptor_and_no_name_is_left(opened: Callable[..., MemoryStore | DiskStore]) -> None:
    def state() -> tuple[list[str], list[str]]:
        return sorted(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))

    before = state()
    for _ in range(3):
        held = opened()
        fill(held)
        del held
    assert state() == before


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


@pytest.mark.usefixtures("two_ranks")
def test_ranks_of_one_launcher_use_one_store_in_memory() -> None:
    """Children of this process are to each other what torchrun's are."""
    filled, rest = os.pipe(), os.pipe()

    def first() -> None:
        held = MemoryStore(SLOTS, 10 << 20, KEY)
        fill(held)
        os.write(filled[1], b"x")
        os.read(rest[0], 1)

    def second() -> None:
        held = MemoryStore(SLOTS, 10 << 20, KEY)
        assert found(held) == set(range(SLOTS))
        os.write(filled[1], b"y")
        os.read(rest[0], 1)
        assert found(held) == set(range(SLOTS)), "also when the rank that made it has gone"
        assert found(MemoryStore(SLOTS, 10 << 20, OTHER)) == set()

    with child(first) as one:
        assert os.read(filled[0], 1) == b"x"
        with child(second) as two:
            assert os.read(filled[0], 1) == b"y"
            os.kill(one, signal.SIGKILL)
            os.waitid(os.P_PID, one, os.WEXITED | os.WNOWAIT)
            os.write(rest[1], b"z")
            assert os.waitid(os.P_PID, two, os.WEXITED | os.WNOWAIT).si_status == 0
    assert found(MemoryStore(SLOTS, 10 << 20, KEY)) == set(), "nobody has it any more"
    for end in (*filled, *rest):
        os.close(end)


@pytest.mark.usefixtures("two_ranks")
def test_ranks_that_begin_at_once_all_use_one_store() -> None:
    begin, ready = os.pipe(), os.pipe()

    def rank(number: int) -> None:
        os.close(begin[1])
        os.read(begin[0], 1)  # until the test closes its end
        held = MemoryStore(SLOTS, 10 << 20, KEY)
        held.store.write(number, value(number))
        deadline = time.monotonic() + 20
        while not found(held) >= {0, 1, 2, 3}:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.write(ready[1], b"x")
        time.sleep(20)

    with child(lambda: rank(0)), child(lambda: rank(1)), child(lambda: rank(2)), child(lambda: rank(3)):
        os.close(begin[1])
        assert b"".join(os.read(ready[0], 1) for _ in range(4)) == b"xxxx"
    for end in (begin[0], *ready):
        os.close(end)
