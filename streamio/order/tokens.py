"""Tokens of many documents as one line, and the two ways to cut it into rows. Pure arithmetic.

Documents of 5, 0, 1 and 5 tokens; windows of length 3, which are 3 inputs and 3 targets, so 4 tokens:

    token      0  1  2  3  4  5  6  7  8  9 10
    document   0  0  0  0  0  2  3  3  3  3  3    document 1 is empty
    window 0   0  1  2  3                         targets 1 2 3
    window 1            3  4  5  6                targets 4 5 6; pieces of the documents 0, 2 and 3
    window 2                     6  7  8  9       targets 7 8 9
    left over                              10     fewer than 3 targets at the end make no window

Every token is a target once, except the first one and those left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamio.types import Rows

Counts = NDArray[np.int64]


class Pieces(NamedTuple):
    """What some spans of the line are made of, in the order of the spans. int64 (pieces,), no piece is empty.

    span:     which of the spans a piece belongs to.
    document: where it comes from.
    start:    its first token, counted in the document.
    length:   its tokens.
    place:    where it goes: the spans lie one behind the other, without gaps.
    """

    span: Counts
    document: Counts
    start: Counts
    length: Counts
    place: Counts


@dataclass(frozen=True)
class Line:
    """Documents end to end.

    edges: int64 (documents + 1,); document d has the tokens edges[d] to edges[d + 1] of the line.
    """

    edges: Counts

    def __post_init__(self) -> None:
        assert self.edges.dtype == np.int64 and len(self.edges) >= 1

    @property
    def tokens(self) -> int:
        return int(self.edges[-1])

    @property
    def lengths(self) -> Counts:
        """Tokens of each document."""
        return np.diff(self.edges)

    def documents(self, tokens: Counts) -> Counts:
        """The documents that have these tokens of the line."""
        # Empty documents share their edge with the next one; "right" finds the last of them, which has the token.
        return np.searchsorted(self.edges, tokens, side="right") - 1

    def pieces(self, starts: Counts, lengths: Counts) -> Pieces:
        """Cut spans of the line at the borders of documents. They may overlap and come in any order."""
        assert starts.dtype == lengths.dtype == np.int64
        ends = starts + lengths
        first = self.documents(starts)
        counts = np.maximum(np.searchsorted(self.edges, ends, side="left") - first, 0)
        span = np.repeat(np.arange(len(starts)), counts)
        document = np.arange(len(span)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        begin = np.maximum(starts[span], self.edges[document])
        length = np.minimum(ends[span], self.edges[document + 1]) - begin
        if len(length) and length.min() == 0:  # empty documents inside a span
            kept = length > 0
            span, document, begin, length = span[kept], document[kept], begin[kept], length[kept]
        return Pieces(span, document, begin - self.edges[document], length, np.cumsum(length) - length)


class Cut(Protocol):
    """A way to cut a line into rows 0 … rows - 1."""

    @property
    def rows(self) -> int: ...

    @property
    def dropped(self) -> int:
        """Tokens that are in no row."""
        ...

    def spans(self, rows: Rows) -> tuple[Counts, Counts]:
        """(first token on the line, tokens) of each row."""
        ...

    def documents(self, rows: Rows) -> Counts:
        """The document in which each row begins."""
        ...

    def rows_before(self, documents: Counts) -> Counts:
        """Rows that begin in front of each of these documents (the number of all is one behind the last)."""
        ...


@dataclass(frozen=True)
class Windows:
    """Windows of `length` + 1 tokens; the last token of one is the first of the next."""

    line: Line
    length: int

    @property
    def rows(self) -> int:
        return max(0, self.line.tokens - 1) // self.length

    @property
    def dropped(self) -> int:
        return self.line.tokens - (self.rows * self.length + 1 if self.rows else 0)

    def spans(self, rows: Rows) -> tuple[Counts, Counts]:
        return rows * self.length, np.full(len(rows), self.length + 1, np.int64)

    def documents(self, rows: Rows) -> Counts:
        return self.line.documents(rows * self.length)

    def rows_before(self, documents: Counts) -> Counts:
        return np.minimum(-(-self.line.edges[documents] // self.length), self.rows)


@dataclass(frozen=True)
class Truncated:
    """One row for each document, empty ones too: its first `length` tokens."""

    line: Line
    length: int

    @property
    def rows(self) -> int:
        return len(self.line.edges) - 1

    @cached_property
    def dropped(self) -> int:
        return int(np.maximum(self.line.lengths - self.length, 0).sum())

    def spans(self, rows: Rows) -> tuple[Counts, Counts]:
        starts = self.line.edges[rows]
        return starts, np.minimum(self.line.edges[rows + 1] - starts, self.length)

    def documents(self, rows: Rows) -> Counts:
        return rows

    def rows_before(self, documents: Counts) -> Counts:
        return documents


@dataclass(frozen=True)
class Split:
    """As many rows as it takes for each document, of `length` tokens each but the last; one for an empty one."""

    line: Line
    length: int
    dropped = 0

    @cached_property
    def edges(self) -> Counts:
        """int64 (documents + 1,); document d has the rows edges[d] to edges[d + 1]."""
        return edges_of(np.maximum(-(-self.line.lengths // self.length), 1))

    @property
    def rows(self) -> int:
        return int(self.edges[-1])

    def spans(self, rows: Rows) -> tuple[Counts, Counts]:
        document = self.documents(rows)
        starts = self.line.edges[document] + (rows - self.edges[document]) * self.length
        return starts, np.minimum(self.line.edges[document + 1] - starts, self.length)

    def documents(self, rows: Rows) -> Counts:
        return np.searchsorted(self.edges, rows, side="right") - 1

    def rows_before(self, documents: Counts) -> Counts:
        return self.edges[documents]


def edges_of(counts: Counts) -> Counts:
    """Where each of several things of these sizes begins when they lie end to end, and where the last ends."""
    edges = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=edges[1:])
    return edges
