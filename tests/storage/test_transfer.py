"""When to go on, start again and give up, with a remote that has no network in it."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streamio.errors import StorageError
from streamio.storage import transfer
from streamio.storage.transfer import Answer, Interrupted, OutOfRange, Patience, fetch, persist

DATA = bytes(range(256)) * 4


class Flaky:
    """Serves `data`; each request sends `sends` bytes at most and then breaks."""

    def __init__(
        self, data: bytes = DATA, sends: int | None = None, ranges: bool = True, says_total: bool = True
    ) -> None:
        self.data, self.sends, self.ranges, self.says_total = data, sends, ranges, says_total
        self.starts: list[int] = []
        self.certain = True
        self.changed: bytes | None = None

    @contextmanager
    def open(
        self, start: int, end: int | None, *, size: int | None, tag: str | None, timeout: float
    ) -> Iterator[Answer]:
        self.starts.append(start)
        if self.changed is not None and len(self.starts) > 1:
            self.data = self.changed
        if start and start >= len(self.data):
            raise OutOfRange
        version = str(hash(self.data))
        at = start if self.ranges and tag in (None, version) else 0
        yield Answer(
            at, len(self.data) if self.says_total else None, self._blocks(at, end), version, certain=self.certain
        )

    def _blocks(self, at: int, end: int | None) -> Iterator[bytes]:
        stop = len(self.data) if end is None or not self.ranges else min(end, len(self.data))
        last = stop if self.sends is None else min(stop, at + self.sends)
        for n in range(at, last, 100):
            yield self.data[n : min(n + 100, last)]
        if last < stop:
            raise Interrupted("dropped")

    def size(self, timeout: float) -> int:
        raise NotImplementedError

    def names(self, timeout: float) -> list[str]:
        raise NotImplementedError


def got(remote: Flaky, begin: bytes = b"", **options: Any) -> bytes:
    sink = io.BytesIO(begin)
    count = fetch(remote, sink, path="x", timeout=1, **options)
    assert count == len(sink.getvalue())
    return sink.getvalue()


@pytest.fixture(autouse=True)
def _hurry(hurry: None) -> None:
    pass


@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (0, 10), (5, 5), (5, 105), (150, None), (1000, 1024), (0, 1024)]
)
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("sends", [None, 400])
def test_gets_exactly_the_range(start: int, end: int | None, ranges: bool, sends: int | None) -> None:
    remote = Flaky(ranges=ranges, sends=sends)
    if sends and not ranges and (end is None or end > sends):
        with pytest.raises(StorageError, match=r"dropped; got .* in 5 tries"):
            got(remote, start=start, end=end)
    else:
        assert got(remote, start=start, end=end) == DATA[start:end]


def test_goes_on_at_the_byte_it_has() -> None:
    remote = Flaky(sends=300)
    assert got(remote, size=1024) == DATA
    assert remote.starts == [0, 300, 600, 900]


def test_starts_again_where_ranges_are_ignored() -> None:
    remote = Flaky(sends=600, ranges=False)
    with pytest.raises(StorageError, match=r"x: dropped; got 600 of 1,024 bytes in 5 tries"):
        got(remote, size=1024)
    remote.sends = None
    assert got(remote, DATA[:600], size=1024) == DATA


def test_goes_on_with_what_an_earlier_run_brought() -> None:
    remote = Flaky()
    assert got(remote, DATA[:1000], size=1024) == DATA
    assert remote.starts == [1000]
    assert got(Flaky(), DATA, size=1024) == DATA


def test_does_not_mix_two_versions_of_a_file() -> None:
    remote = Flaky(sends=600)
    remote.changed = DATA[::-1]
    with pytest.raises(StorageError):
        got(remote, size=2000)
    remote = Flaky(sends=600)
    remote.changed = DATA[::-1]
    assert got(remote, size=1024) == DATA[::-1]


def test_beginnings_that_are_too_long_are_thrown_away() -> None:
    assert got(Flaky(), bytes(2000), size=1024) == DATA
    remote = Flaky(data=DATA[:50])
    with pytest.raises(StorageError, match="has 50 bytes, expected 1,024"):
        got(remote, bytes(100), size=1024)


@pytest.mark.parametrize("says_total", [True, False])
@pytest.mark.parametrize("size", [1000, 2000])
def test_another_size_than_expected_is_an_error(says_total: bool, size: int) -> None:
    with pytest.raises(StorageError, match=r"expected|more than|got 1,024 of 2,000 bytes"):
        got(Flaky(says_total=says_total), size=size)


@pytest.mark.parametrize(("start", "end"), [(2000, 2010), (1000, 1100)])
def test_a_range_beyond_the_end_is_an_error(start: int, end: int) -> None:
    remote = Flaky()
    with pytest.raises(StorageError, match=r"ends before byte 2,000|ends early: got 24 of 100 bytes"):
        got(remote, start=start, end=end)
    assert len(remote.starts) == 1


def test_an_end_that_may_be_a_drop_is_tried_again() -> None:
    remote = Flaky(sends=None)
    remote.certain = False
    with pytest.raises(StorageError, match="the answer ended early; got 1,024 of 2,000 bytes in 5 tries"):
        got(remote, start=0, end=2000)


def test_without_a_size_the_end_of_the_answer_counts() -> None:
    assert got(Flaky(says_total=False)) == DATA
    assert got(Flaky(data=b"")) == b""


def test_tries_are_given_anew_only_for_new_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PROGRESS", 200)
    assert got(Flaky(sends=100), size=1024) == DATA  # eleven tries
    remote = Flaky(sends=600, ranges=False)  # the same 600 bytes again and again are no progress
    with pytest.raises(StorageError):
        got(remote, size=1024)
    assert len(remote.starts) < 10


def test_silence_is_bounded_however_many_tries_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    patience, waits = Patience(30.0), []
    while True:
        waits.append(patience.next_timeout())
        now += waits[-1]
        if not patience.wait(Interrupted("silence")):
            break
    assert waits[0] == 30 and sum(waits) < 60 and len(waits) >= 2


def test_a_server_that_asks_for_a_pause_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert Patience(1.0).wait(Interrupted("busy", after=7.0))
    assert not Patience(1.0).wait(Interrupted("busy", after=3600.0))
    assert slept == [7.0]


def test_persist_tries_again_and_says_how_often() -> None:
    answers: list[Any] = [Interrupted("once"), 5]

    def ask(timeout: float) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Interrupted):
            raise answer
        return int(answer)

    assert persist(ask, path="x", timeout=1) == 5
    answers = [Interrupted("dropped")] * 9
    with pytest.raises(StorageError, match=r"x: dropped \(tries: 5\)"):
        persist(ask, path="x", timeout=1)


def test_jitter_leaves_seeded_generators_alone() -> None:
    random.seed(1)
    before = random.getstate()
    Patience(1.0).wait(Interrupted("x"))
    assert random.getstate() == before
