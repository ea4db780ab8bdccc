"""What becomes of bad samples: raised, left out or substituted; each is logged, reported and counted.

A bad sample is one that does not decode, lacks a field that becomes an array, or that the user's transform raises
on. An error that another sample would meet as well (a package that is not installed, no memory left, a shard that
is cut) is none, and is raised whatever was asked for.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from streamio.batching.decode import Failure
from streamio.batching.options import ReadOptions
from streamio.errors import MissingExtra, SampleError, StorageError, StreamioError, TooManyBadSamples, UsageError
from streamio.tally import EpochTally

_log = logging.getLogger("streamio")

RAISED, SKIPPED, SUBSTITUTED = "raised", "skipped", "substituted"

_FURTHER = ("line", "byte")
"""Of a place, in the report: those of lines of text."""

SHARE_OF = 1000
"""A share of fewer samples than this is taken of this many: one bad sample among the first ten is no 10 %."""

Locate = Callable[[int], tuple[str, int]]
"""Row -> (shard, row in the shard)."""


@dataclass(frozen=True, slots=True)
class BadSample:
    """One of a batch. row: of the table. repeats: whether it only fills up the batch, and comes elsewhere too."""

    index: int
    row: int
    key: str
    field: str
    error: StreamioError
    repeats: bool = False


class BadSamples:
    """Keeps the books of one data set in one process, and with its other processes by what they share.

    count: adds to the counts of the data set, by the words above.
    """

    def __init__(self, options: ReadOptions, locate: Locate, count: Callable[[str, int], None]) -> None:
        self._options, self._locate, self._count = options, locate, count
        self._tally = None if options.max_errors is None else EpochTally()
        self._forget()

    def _forget(self) -> None:
        self._logged: set[int] = set()
        self._reported: set[int] = set()
        self._epoch = -1

    def read(self, epoch: int, samples: int) -> None:
        """So many samples were read in this epoch; asked for before those that are bad are told."""
        if self._tally is not None:
            self._tally.add(epoch, samples, [])

    def found(self, epoch: int, bad: Sequence[BadSample], done: str, keys: Sequence[str] = ()) -> None:
        """These samples of one batch are bad, and this was done. keys: of those that took their places.

        Raises TooManyBadSamples.
        """
        for number, one in enumerate(bad):
            self._tell(epoch, one, done, keys[number] if keys else None)
        if done != RAISED:
            self._count(done, len(bad))
            self._check(epoch, bad)

    def _tell(self, epoch: int, bad: BadSample, done: str, key: str | None) -> None:
        error = bad.error
        if done != RAISED and bad.row not in self._logged:
            self._logged.add(bad.row)
            by = "" if key is None else f" by {key!r}"
            _log.warning("%s%s %s: %s", done, by, type(error).__name__, error)
        if epoch != self._epoch:
            self._reported, self._epoch = set(), epoch
        if self._options.error_report is None or bad.repeats or bad.row in self._reported:
            return
        self._reported.add(bad.row)
        shard, row = self._locate(bad.row)
        line = {
            "shard": shard, "row": row, "key": bad.key, "field": bad.field or None,
            "error": f"{type(error).__name__}: {error.found}", "epoch": epoch, "done": done,
            **{name: place for name, place in error.where.items() if name in _FURTHER},
        }  # fmt: skip
        append_line(self._options.error_report, line if key is None else {**line, "by": key})

    def _check(self, epoch: int, bad: Sequence[BadSample]) -> None:
        most = self._options.max_errors
        if self._tally is None or most is None:
            return
        self._tally.add(epoch, 0, [one.row for one in bad])
        tally = self._tally.of(epoch)
        allowed = most if isinstance(most, int) else most * max(tally.read, SHARE_OF)
        if tally.bad <= allowed:
            return
        report = self._options.error_report
        raise TooManyBadSamples(
            f"{tally.bad:,} of the {tally.read:,} samples read in epoch {epoch} are bad, more than "
            f"max_errors={most}. The first is {self._name(tally.first)}; the last {self._name(tally.last)}; "
            f"the last here has the key {bad[-1].key!r}: {type(bad[-1].error).__name__}: {bad[-1].error.found}",
            fix=f"All of them are in {report}" if report else "Give error_report= a path to have them listed",
        ) from bad[-1].error

    def _name(self, row: int) -> str:
        shard, local = self._locate(row)
        return f"{shard}, row {local}"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_logged", "_reported")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def is_of_the_sample(error: StreamioError) -> bool:
    """Whether the sample is at fault, and not what would stop any other as well."""
    return not isinstance(error, (MissingExtra, UsageError)) and not isinstance(error.__cause__, MemoryError)


def first_of_each(failures: Sequence[Failure]) -> list[Failure]:
    """One failure for each sample, in the order of the batch."""
    found: dict[int, Failure] = {}
    for failure in failures:
        found.setdefault(failure.index, failure)
    return [found[index] for index in sorted(found)]


def no_substitute(bad: BadSample, tried: int, last: StreamioError | None) -> SampleError:
    """The error for a place that stays empty."""
    others = f"so are {tried} others that were tried in its place; the last: {last}"
    error = SampleError(
        f"is bad ({bad.error.found}), and {others if tried else 'there is no other to take its place'}",
        fix="So many bad samples are no accident: look at the data, the decoder and the transform",
        **bad.error.where,
    )
    error.__cause__ = bad.error
    return error


def append_line(path: str, value: dict[str, Any]) -> None:
    """One line of JSON at the end of a file that several processes append to: one write, which is not torn."""
    line = json.dumps(value, default=str).encode("ascii") + b"\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            written = os.write(file, line)
        finally:
            os.close(file)
    except OSError as error:
        raise StorageError(f"the error report cannot be written: {error.strerror}", path=path) from error
    if written < len(line):
        raise StorageError(f"only {written} of {len(line)} bytes of a line could be written", path=path)
