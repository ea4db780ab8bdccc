"""Getting the bytes of a remote file to the end, over connections that drop, stall and answer oddly.

A `Remote` makes one request at a time; `fetch` decides what follows a failure. Failures are of two kinds:
`Interrupted` (another try may help: dropped, silent, overloaded) and `StorageError` (it will not: no such
file, no permission). Each file gets `TRIES` tries and `SILENCE` seconds of waiting in all; both are given
anew once `PROGRESS` bytes arrived, so a large file survives more drops than a small one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import SystemRandom
from typing import BinaryIO, Protocol, TypeVar

from streamio.errors import StorageError

TRIES = 5
SILENCE = 50.0
PROGRESS = 16 << 20
FIRST_PAUSE = 0.25

_chance = SystemRandom()  # not the generators that training seeds, and different in forked children
_T = TypeVar("_T")


class Interrupted(Exception):
    """A request failed, and another try may help. `after`: seconds that the server asks to wait."""

    def __init__(self, found: str, after: float = 0.0) -> None:
        super().__init__(found)
        self.after = after


class NotFound(StorageError):
    """There is no such file; reaches users as the StorageError that it is."""


class OutOfRange(Exception):
    """The file ends before the first byte that was asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One response.

    offset: byte of the file at which `blocks` begins; before the one asked for where ranges are ignored.
    total:  size of the file, None if the server does not say.
    tag:    names this version of the file, to be given with the next request; None if unknown.
    resumable: a later request may go on in the middle.
    certain: when `blocks` end, the answer was whole; False where a dropped connection looks the same.
    blocks: the bytes; raises Interrupted when they stop early.
    """

    offset: int
    total: int | None
    blocks: Iterator[bytes]
    tag: str | None = None
    resumable: bool = True
    certain: bool = True


class Remote(Protocol):
    """A file, or a folder, at a remote address. Makes one request per call; never retries by itself.

    All methods raise Interrupted or StorageError, in words that hold no secret.
    """

    def open(
        self, start: int, end: int | None, *, size: int | None, tag: str | None, timeout: float
    ) -> AbstractContextManager[Answer]:
        """Ask for the bytes [start, end), or to the end. `size`: what the whole file should have, if known.

        Raises OutOfRange where the file has no byte `start`.
        """
        ...

    def size(self, timeout: float) -> int:
        """Bytes of the file."""
        ...

    def names(self, timeout: float) -> list[str]:
        """Names of the files directly in the folder."""
        ...


@dataclass(slots=True)
class Patience:
    """How often and how long to go on trying. `timeout`: longest silence of one try, in seconds."""

    timeout: float
    tries: int = 0
    silent: float = 0.0
    gained: int = 0
    since: float = field(default_factory=time.monotonic)

    @property
    def limit(self) -> float:
        return max(SILENCE, self.timeout)

    def next_timeout(self) -> float:
        """Longest silence of the next try: `timeout`, halved until what is left of the limit allows it.

        Few different values, because a file system is kept for each (`buckets`).
        """
        wait = self.timeout
        while wait > max(1.0, self.limit - self.silent):
            wait /= 2
        return wait

    def heard(self, count: int) -> None:
        """Bytes arrived."""
        self.since = time.monotonic()
        self.gained += count
        if self.gained >= PROGRESS:
            self.tries, self.silent, self.gained = 0, 0.0, 0

    def wait(self, problem: Interrupted) -> bool:
        """Pause before another try; False where it has been enough."""
        self.tries += 1
        self.silent += time.monotonic() - self.since
        pause = max(problem.after, FIRST_PAUSE * 2 ** (self.tries - 1) * _chance.uniform(0.5, 1))
        if self.tries >= TRIES or self.silent + pause >= self.limit:
            return False
        time.sleep(pause)
        self.silent += pause
        self.since = time.monotonic()
        return True


def persist(ask: Callable[[float], _T], *, path: str, timeout: float) -> _T:
    """The result of `ask(timeout)`, tried again while it is interrupted. `path` is for messages."""
    patience = Patience(timeout)
    while True:
        try:
            return ask(patience.next_timeout())
        except Interrupted as error:
            problem = error
        if not patience.wait(problem):
            raise StorageError(f"{problem} (tries: {patience.tries})", fix=_UNREACHABLE, path=path)


def fetch(
    remote: Remote,
    sink: BinaryIO,
    *,
    path: str,
    start: int = 0,
    end: int | None = None,
    size: int | None = None,
    timeout: float,
) -> int:
    """Write the bytes [start, end) of a file to `sink`; gives their number.

    path: for messages.
    sink: seekable; what it holds already is taken for the beginning of those bytes.
    size: what the whole file should have; anything else is an error.
    After a failure `sink` holds a beginning of the bytes, to be gone on with.
    """
    return _Transfer(remote, sink, path, start, end, size).run(Patience(timeout))


class _Transfer:
    """One file on its way. `have` bytes of `need` are in the sink; `best` is the most there ever were."""

    def __init__(
        self, remote: Remote, sink: BinaryIO, path: str, start: int, end: int | None, size: int | None
    ) -> None:
        self._remote, self._sink, self._path = remote, sink, path
        self._start, self._end, self._size = start, end, size
        stop = size if end is None else end
        self.need = None if stop is None else stop - start
        self.have = self.best = sink.seek(0, 2)
        self._tag: str | None = None
        self._resumable = True
        if self.need is not None and self.have > self.need:
            self._restart()

    def run(self, patience: Patience) -> int:
        while self.have != self.need:
            problem = self._attempt(patience)
            if problem is None:
                break
            if not patience.wait(problem):
                raise StorageError(
                    f"{problem}; got {self._progress()} bytes in {patience.tries} tries",
                    fix=_UNREACHABLE, path=self._path,
                )  # fmt: skip
        return self.have

    def _attempt(self, patience: Patience) -> Interrupted | None:
        """One request; None once everything is there."""
        try:
            with self._remote.open(
                self._start + self.have,
                self._end,
                size=self._size,
                tag=self._tag,
                timeout=patience.next_timeout(),
            ) as answer:
                self._accept(answer)
                self._pour(answer, patience)
            self._check_end(answer)
        except Interrupted as error:
            if not self._resumable:
                self._restart()
            return error
        except OutOfRange:
            if not self.have:
                raise StorageError(f"ends before byte {self._start:,}", fix=_OTHER_FILE, path=self._path) from None
            self._restart()
            return Interrupted("is shorter than what an earlier try brought")
        return None

    def _accept(self, answer: Answer) -> None:
        if None not in (answer.total, self._size) and answer.total != self._size:
            raise StorageError(
                f"has {answer.total:,} bytes, expected {self._size:,}", fix=_OTHER_FILE, path=self._path
            )
        self._tag, self._resumable = answer.tag, answer.resumable
        if answer.offset != self._start + self.have:
            self._restart()

    def _pour(self, answer: Answer, patience: Patience) -> None:
        skip = self._start + self.have - answer.offset
        for block in answer.blocks:
            fresh = block[skip:]
            skip -= len(block) - len(fresh)
            if self.need is not None and len(fresh) > self.need - self.have:
                if self._end is None:
                    raise StorageError(f"has more than {self.need:,} bytes", fix=_OTHER_FILE, path=self._path)
                fresh = fresh[: self.need - self.have]
            self._sink.write(fresh)
            self.have += len(fresh)
            patience.heard(max(0, self.have - self.best))
            self.best = max(self.best, self.have)
            if self._end is not None and self.have == self.need:
                return

    def _check_end(self, answer: Answer) -> None:
        if self.need is None or self.have == self.need:
            return
        if not answer.certain:
            raise Interrupted("the answer ended early")
        raise StorageError(f"ends early: got {self._progress()} bytes", fix=_OTHER_FILE, path=self._path)

    def _restart(self) -> None:
        self._sink.seek(0)
        self._sink.truncate()
        self.have = 0

    def _progress(self) -> str:
        return f"{self.have:,} of {'an unknown number of' if self.need is None else f'{self.need:,}'}"


_UNREACHABLE = "Is the server up, and the network? Run it again: what arrived is used"
_OTHER_FILE = "The file is cut or another one: copy the set again"
