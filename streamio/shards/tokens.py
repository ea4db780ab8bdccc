"""Documents of tokens in a shard set, shown as a table of windows or documents: what a `TokenDataset` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.errors import UsageError, where
from streamio.memory import address
from streamio.order.tokens import Counts, Cut, Line, Pieces, Split, Truncated, Windows, edges_of
from streamio.shards.manifest import FieldSpec
from streamio.shards.reader import ShardReader
from streamio.shards.selection import as_rows
from streamio.shards.shardset import ShardSet
from streamio.shards.space import Addresses, copy_spans
from streamio.shards.tokenfields import TokenField, check_headers
from streamio.types import Alloc, ArrayColumn, Column, ListColumn, Rows, new_array

Mode: TypeAlias = Literal["windows", "packed", "documents"]
Overlong: TypeAlias = Literal["truncate", "split"]

TOKENS = "tokens"
STARTS = "document_starts"
LENGTH = "tokens.length"


@dataclass(frozen=True, kw_only=True)
class Documents:
    """The tokens of each sample of a set, end to end.

    eos: a token put behind every document that has any; None: the documents as they are.

    Each process makes `line` for itself, once, on first use: 8 bytes for each document; and one byte more, which
    says whether it has compared the document's header.
    """

    set: ShardSet
    field: TokenField
    eos: int | None = None

    @cached_property
    def line(self) -> Line:
        files, field = self.set._opened.files, self.field
        counts = np.zeros(len(self.set), np.int64)
        at = 0
        for shard, (samples, base) in enumerate(zip(self.set.sizes.tolist(), self._bases.tolist(), strict=True)):
            if samples:
                rows = self.set._base_rows(np.arange(at, at + samples)) - base
                with where(shard=files.manifest.shards[shard].name, field=field.name):
                    counts[at : at + samples] = field.counts(files.index(shard).fields.get(field.stored), rows)
            at += samples
        if self.eos is not None:
            counts += counts > 0
        return Line(edges_of(counts))

    @cached_property
    def _bases(self) -> NDArray[np.int64]:
        """The first row of each shard, in rows of the whole set."""
        opened = self.set._opened
        return opened.ends - opened.sizes

    def read(self, pieces: Pieces, out: NDArray[Any]) -> None:
        """Copy pieces of documents to their places in `out`: (tokens,), of the type as stored."""
        counts = self.line.edges[pieces.document + 1] - self.line.edges[pieces.document]
        length = pieces.length
        if self.eos is not None:
            out.fill(self.eos)
            counts -= 1
            length = np.minimum(length, counts - pieces.start)  # 0 where a piece is the added token alone
        item = out.itemsize
        places, held = self._places(pieces.document, counts)
        copy_spans(places + pieces.start * item, length * item, out.view(np.uint8), pieces.place * item)
        del held  # until now: the addresses are of its memory

    def _places(self, documents: Counts, counts: Counts) -> tuple[Addresses, list[ShardReader]]:
        """The address of the first token of each document, and the readers that hold this memory."""
        opened = self.set._opened
        rows = self.set._base_rows(documents)
        shards = np.searchsorted(opened.ends, rows, side="right")
        rows = rows - self._bases[shards]
        places, held = np.empty(len(rows), np.int64), []
        for shard in sorted(set(shards.tolist())):
            here = np.flatnonzero(shards == shard)
            reader = opened.pool.get(shard)
            held.append(reader)
            with where(shard=reader.name, field=self.field.name):
                places[here] = self._places_in(reader, documents[here], rows[here], counts[here])
        return places, held

    def _places_in(self, reader: ShardReader, documents: Counts, rows: Rows, counts: Counts) -> Addresses:
        index = reader.index.fields[self.field.stored]
        dtype, skip = self.field.layout(index)
        # A view of the index file is a memmap, of which any operation takes three times as long.
        starts = np.asarray(index.offsets)[rows] + address(reader._bytes)
        if skip:
            new = np.flatnonzero(~self._compared[documents])
            if len(new):
                check_headers(starts[new], rows[new], counts[new], dtype, skip)
                self._compared[documents[new]] = True
        return starts + skip

    @cached_property
    def _compared(self) -> NDArray[np.bool_]:
        """Whether the header of each document was compared in this process: windows come to it again and again."""
        return np.zeros(len(self.line.edges) - 1, np.bool_)

    def __getstate__(self) -> dict[str, Any]:
        return _without(self, "line", "_bases", "_compared")


@dataclass(frozen=True, kw_only=True)
class TokenTable:
    """Windows or documents of tokens as rows, shard by shard: a row belongs to the shard in which it begins.

    length:   T. Windows have T + 1 tokens and overlap by one; documents have T at most.
    overlong: what becomes of documents with more; only for documents.
    dtype:    of the tokens that are given out.

    Fields: "tokens": (T + 1,), or of any length for documents. In mode "packed" also "document_starts": where
    in the first T tokens of the window a document begins, and 0.

    Takes 8 bytes of memory for each document and process (16 where documents are split); see `Documents`.
    """

    documents: Documents
    mode: Mode
    length: int
    overlong: Overlong | None
    dtype: np.dtype[Any]

    @cached_property
    def cut(self) -> Cut:
        line = self.documents.line
        if self.mode != "documents":
            return Windows(line, self.length)
        return Split(line, self.length) if self.overlong == "split" else Truncated(line, self.length)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.cut.rows_before(edges_of(self.documents.set.sizes)))

    @cached_property
    def fields(self) -> Mapping[str, FieldSpec]:
        shape = None if self.mode == "documents" else (self.length + 1,)
        tokens = FieldSpec(
            stored=self.documents.field.stored, codec="npy", shape=shape, samples=self.cut.rows,
            dtype=None if shape is None else self.dtype.str,
        )  # fmt: skip
        if self.mode != "packed":
            return {TOKENS: tokens}
        return {TOKENS: tokens, STARTS: FieldSpec(stored=f"{STARTS}.npy", codec="npy", samples=self.cut.rows)}

    @cached_property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """For drawing and for buckets: the columns of the document in which a row begins, and "tokens.length"."""
        return _RowColumns(self.documents.set.columns, self.cut)

    @property
    def fingerprint(self) -> str:
        """That of the set, and in words whatever decides what a row is."""
        how = [self.mode, f"length {self.length}", f"field {self.documents.field.name}"]
        how += [] if self.documents.field.skip else [f"bytes of {self.documents.field.dtype.name}"]
        how += [] if self.overlong is None else [self.overlong]
        how += [] if self.documents.eos is None else [f"eos {self.documents.eos}"]
        return ", ".join([self.documents.set.fingerprint, *how])

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc = new_array) -> dict[str, Column]:
        rows = self._rows(rows)
        starts, lengths = self.cut.spans(rows)
        pieces = self.documents.line.pieces(starts, lengths)
        columns: dict[str, Column] = {}
        for field in fields:
            if field not in self.fields:
                raise UsageError(f"no field '{field}'", fix=f"Fields: {', '.join(self.fields)}")
            columns[field] = self._starts(pieces, rows) if field == STARTS else self._tokens(pieces, lengths, alloc)
        return columns

    def _tokens(self, pieces: Pieces, lengths: NDArray[np.int64], alloc: Alloc) -> Column:
        alike = self.fields[TOKENS].shape
        out = alloc((int(lengths.sum()),) if alike is None else (len(lengths), *alike), self.dtype)
        flat = out.reshape(-1)
        stored = self.documents.field.dtype
        if stored == self.dtype:
            self.documents.read(pieces, flat)
        else:
            # One pass over all pieces widens them 2.4 times faster than one call for each.
            raw = np.empty(len(flat), stored)
            self.documents.read(pieces, raw)
            flat[:] = raw
        if alike is not None:
            return ArrayColumn(out)
        return ListColumn([flat[a:b] for a, b in pairwise(edges_of(lengths).tolist())])

    def _starts(self, pieces: Pieces, rows: Rows) -> ListColumn:
        offset = pieces.place - pieces.span * (self.length + 1)
        kept = offset < self.length  # the last token of a window is only a target
        counts = np.bincount(pieces.span[kept], minlength=len(rows))
        return ListColumn(np.split(offset[kept], np.cumsum(counts)[:-1]) if len(rows) else [])

    def keys(self, rows: Rows) -> list[str]:
        """The document in which each row begins, and `+4711` where that is not at its first token."""
        rows = self._rows(rows)
        document = self.cut.documents(rows)
        offsets = self.cut.spans(rows)[0] - self.documents.line.edges[document]
        keys = self.documents.set.keys(document)
        return [f"{key}+{at}" if at else key for key, at in zip(keys, offsets.tolist(), strict=True)]

    def locate(self, row: int) -> tuple[str, int]:
        """(shard, row in the shard) of the document in which a row begins."""
        return self.documents.set.locate(int(self.cut.documents(self._rows(np.array([row])))[0]))

    def _rows(self, rows: Rows) -> Rows:
        rows = as_rows(rows, "rows")
        if len(rows) and (rows.min() < 0 or rows.max() >= self.cut.rows):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {self.cut.rows:,} (0 to {self.cut.rows - 1})")
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return _without(self, "cut", "sizes", "fields", "columns")

    def __repr__(self) -> str:
        what = f"{self.mode} of {self.length:,} tokens"
        return (
            f"TokenTable({self.cut.rows:,} {what}: {self.documents.line.tokens:,} tokens in {self.documents.set})"
        )


class _RowColumns(Mapping[str, "NDArray[Any]"]):
    """The columns of a set by row of a cut; each is made when it is asked for."""

    def __init__(self, base: Mapping[str, NDArray[Any]], cut: Cut) -> None:
        self._base, self._cut = base, cut

    def __getitem__(self, name: str) -> NDArray[Any]:
        rows = np.arange(self._cut.rows)
        return self._cut.spans(rows)[1] if name == LENGTH else self._base[name][self._cut.documents(rows)]

    def __iter__(self) -> Iterator[str]:
        yield LENGTH
        yield from self._base

    def __len__(self) -> int:
        return 1 + len(self._base)


def _without(made: object, *names: str) -> dict[str, Any]:
    """For a pickle: what something was made from. Each process works out the rest for itself."""
    return {name: value for name, value in vars(made).items() if name not in names}
