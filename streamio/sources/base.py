"""The contract of sources: what has no fixed rows, but partitions that are read from cursors.

A source names its partitions when an epoch begins; they are dealt to ranks and workers; each worker reads its own
from the cursor where the run is, as *chunks* of columns. Every batch that the loop gets brings the cursors behind
it, and these are the state. So a source needs three things: names that mean the same everywhere, a cursor behind
each row, and a way to go on from one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamio.errors import StreamioError, UsageError
from streamio.sources.fieldtypes import FieldType
from streamio.sources.values import from_values
from streamio.types import ArrayColumn, Column, ListColumn, NullableColumn

Cursor: TypeAlias = Any
"""Where in a partition to go on: a number or another JSON value; None is its beginning."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of a source that one worker reads: a file, a range of it, a partition of a topic.

    name:  the same in every process and after a restart. It comes in keys and messages.
    facts: what reading it needs beside the source: JSON values, kept in the state.
    start: the cursor to begin at, where the run has none; None: its beginning. Kept in the state too.
    """

    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    start: Cursor = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some rows of one partition, in columns.

    columns: each of n rows, by field; a field that is not there is lacking in all of them.
    cursors: behind each row, n of them; int64 (n,) where they are numbers.
    places:  of each row for messages and keys ("byte 1204"), or what comes before its cursor; default: the cursors.
    bad:     rows whose values are undefined, by index, and why.
    behind:  where to go on behind all of it, if that is not behind its last row. May be said with no rows.
    passed:  rows of `Source.count` that it stands for, if not as many as it has: with gaps, and what was left out.
    ended:   nothing of this partition comes after it. May be said with no rows.
    forget:  names of partitions that are gone, whose cursors the state need not keep.
    """

    partition: str
    columns: Mapping[str, Column] = field(default_factory=dict)
    cursors: NDArray[np.int64] | Sequence[Cursor] = ()
    places: NDArray[np.int64] | Sequence[Any] | None = None
    bad: Mapping[int, StreamioError] = field(default_factory=dict)
    behind: Cursor = None
    passed: int | None = None
    ended: bool = False
    forget: Sequence[str] = ()

    @classmethod
    def of_values(
        cls, partition: Partition, fields: Mapping[str, FieldType], values: Mapping[str, Sequence[Any]],
        cursors: Sequence[Cursor] | NDArray[np.int64],
    ) -> Chunk:  # fmt: skip
        """A chunk of Python values, n of each field (None: lacking), with a cursor behind each of the n rows.

        What does not fit the type of its field makes a bad row.
        """
        columns, bad = dict[str, Column](), dict[int, StreamioError]()
        for name, kind in fields.items():
            columns[name], wrong = from_values(values[name], kind, name)
            bad = {**wrong, **bad}
        behind = np.array(cursors, np.int64) if all(type(one) is int for one in cursors) else cursors
        return cls(partition=partition.name, columns=columns, cursors=behind, bad=bad)

    def __len__(self) -> int:
        return len(self.cursors)

    def place(self, index: int) -> Any:
        """That of one row."""
        place = (self.cursors if self.places is None else self.places)[index]
        return place.item() if isinstance(place, np.generic) else place

    def cursor(self, index: int) -> Cursor:
        """The one behind a row, as JSON."""
        cursor = self.cursors[index]
        return cursor.item() if isinstance(cursor, np.generic) else cursor

    def row_numbers(self, rows: slice = slice(None)) -> NDArray[np.int64]:
        """int64 (n,): numbers that follow from the partition and the cursors; randomness is keyed by them."""
        begin, cursors = xxhash.xxh3_64_intdigest(self.partition.encode()), self.cursors[rows]
        if isinstance(cursors, np.ndarray):
            numbers = cursors.astype(np.uint64) + np.uint64(begin)
        else:
            hashes = [xxhash.xxh3_64_intdigest(repr(cursor).encode(), begin) for cursor in cursors]
            numbers = np.array(hashes, np.uint64)
        return (numbers & np.uint64((1 << 63) - 1)).astype(np.int64)

    def kept(self, rows: NDArray[np.int64]) -> Chunk:
        """These rows of it, none of them bad."""
        return replace(
            self, columns={name: taken(column, rows) for name, column in self.columns.items()},
            cursors=_picked(self.cursors, rows), places=None if self.places is None else _picked(self.places, rows),
            bad={},
        )  # fmt: skip


def _picked(values: Any, rows: NDArray[np.int64]) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows.tolist()]


def taken(column: Column, rows: NDArray[np.int64]) -> Column:
    """These rows of a column."""
    if isinstance(column, ArrayColumn):
        return ArrayColumn(column.values[rows])
    if isinstance(column, NullableColumn):
        return NullableColumn(column.values[rows], column.lacking[rows])
    return ListColumn([column.values[row] for row in rows.tolist()])


@dataclass(frozen=True, slots=True)
class Share:
    """Which of all readers one is: the workers of all ranks, counted through."""

    number: int = 0
    of: int = 1

    def owns(self, name: str) -> bool:
        """Whether this reader, and no other, is to read what has this name. What is behind a `#` in it decides."""
        return xxhash.xxh3_64_intdigest(name.rpartition("#")[2].encode()) % self.of == self.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one reader is to read.

    partitions: that were dealt to it, and where to go on in each.
    share:      for sources that find further partitions by themselves: which of them are this reader's.
    cursors:    all that the state has, of other readers too.
    stopped:    whether the reader may end now. To be asked where it waits; chunks may still be given.
    """

    partitions: Sequence[tuple[Partition, Cursor]]
    share: Share = Share()
    cursors: Mapping[str, Cursor] = field(default_factory=dict)
    stopped: Callable[[], bool] = lambda: False


class Source(ABC):
    """What a `SourceDataset` reads. It is pickled to workers: connections open in `read`, and close there.

    Of a bounded source an epoch is all that there is when it begins; each epoch reads it anew. An endless one goes
    on where it was in every epoch.
    """

    endless = False

    @property
    @abstractmethod
    def fields(self) -> Mapping[str, FieldType]:
        """The fields of its rows, known when the data set is built."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What a state belongs to: the same for the same files, topic or query. Without secrets."""

    @abstractmethod
    def partitions(self) -> Sequence[Partition]:
        """The partitions of an epoch that begins now, in an order that is the same everywhere."""

    def read_partition(self, partition: Partition, cursor: Cursor) -> Iterator[Chunk]:
        """The rows of one partition behind a cursor; None: from its beginning. Sources that have a `read` of
        their own need none."""
        raise NotImplementedError(f"{type(self).__name__} has neither read_partition() nor read()")

    def read(self, work: Work) -> Iterator[Chunk | None]:
        """The rows of some partitions. None says that nothing is there now, after a short wait (0.1 s or so).

        A bounded source says of each partition when it has ended. Closing the generator closes its connections.
        """
        for partition, cursor in work.partitions:
            yield from self.read_partition(partition, cursor)
            yield Chunk(partition=partition.name, ended=True)

    def found_again(self, partitions: Sequence[Partition], cursors: Mapping[str, Cursor]) -> Sequence[Partition]:
        """The partitions that are left of an epoch which is taken up again, as they are to be read now.

        Of an endless source: all that there are now, where the run has cursors of some already.
        """
        return partitions

    def count(self, partition: Partition, cursor: Cursor) -> int:
        """Rows of a partition behind a cursor, bad ones too, or a few more. Asked where several ranks read a
        bounded source, which make as many batches as it takes for so many; fewer rows make batches smaller."""
        raise UsageError(
            f"several ranks, and how many rows a {type(self).__name__} has is not known before it was read",
            fix="Give steps=, the batches of an epoch on each rank",
        )

    def commit(self, cursors: Mapping[str, Cursor]) -> None:
        """Tell the server that all before these cursors was used."""
        raise UsageError(
            f"a {type(self).__name__} has nothing to commit to", fix="Save loader.state_dict() with the checkpoint"
        )
