"""Documents of tokens in a shard set, shown as a table of windows or documents: what a `TokenDataset` reads.

How long each document is comes from the sizes in the shard indexes, so nothing is read to know where any row
lies. When a document is read, its own header is compared with that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.codecs import BYTES, NpyHeader, npy_header
from streamio.errors import CorruptShard, UsageError, where
from streamio.order.tokens import Cut, Line, Pieces, Split, Truncated, Windows, edges_of
from streamio.shards.index import MISSING, FieldIndex
from streamio.shards.manifest import FieldSpec
from streamio.shards.reader import ShardReader
from streamio.shards.selection import as_rows
from streamio.shards.shardset import ShardSet
from streamio.types import Alloc, ArrayColumn, Column, ListColumn, Rows, new_array

Mode: TypeAlias = Literal["windows", "packed", "documents"]
Overlong: TypeAlias = Literal["truncate", "split"]

TOKENS = "tokens"
STARTS = "document_starts"
LENGTH = "tokens.length"

_KINDS = "Tokens are whole numbers in one dimension: write them as np.array(ids, np.uint16) or np.uint32"
_AGAIN = "Run 'streamio verify', then copy the shard again or pack it again"


@dataclass(frozen=True, kw_only=True)
class TokenField:
    """The field that holds the tokens.

    name, stored: as in the manifest.
    dtype: of the tokens as they are stored.
    skip:  bytes in front of the tokens of each document (an npy header), where a shard's index does not say.
    """

    name: str
    stored: str
    dtype: np.dtype[Any]
    skip: int

    def layout(self, index: FieldIndex) -> tuple[np.dtype[Any], int]:
        """(dtype, skip) in one shard. Raises UsageError where documents of another kind are known to be."""
        if index.dtype is None or index.shape is None:
            return self.dtype, self.skip
        if len(index.shape) != 1 or index.dtype != self.dtype:
            raise UsageError(
                f"documents of {index.dtype.name}{list(index.shape)}, elsewhere of {self.dtype.name}[n]",
                fix="All documents of a set have one type; pack them again, or leave these out with where(…)",
            )
        return self.dtype, index.skip

    def counts(self, index: FieldIndex | None, rows: Rows) -> NDArray[np.int64]:
        """Tokens of some rows of a shard, from the sizes in its index; 0 where a row has no such field."""
        if index is None:
            return np.zeros(len(rows), np.int64)
        dtype, skip = self.layout(index)
        sizes: NDArray[np.int64] = index.sizes[rows]
        there = sizes != MISSING
        counts, rest = np.divmod(np.where(there, sizes - skip, 0), dtype.itemsize)
        odd = (counts < 0) | (rest != 0)
        if odd.any():
            at = int(np.argmax(odd))
            head = f"a header of {skip} bytes and " if skip else ""
            raise UsageError(
                f"{sizes[at]:,} bytes, which are not {head}whole tokens of {dtype.name}",
                fix="All documents of a set have one type; name the right one, or pack them again",
                row=int(rows[at]),
            )
        return counts


@dataclass(frozen=True, kw_only=True)
class Documents:
    """The tokens of each sample of a set, end to end.

    eos: a token put behind every document that has any; None: the documents as they are.

    Each process makes `line` for itself, once, on first use: 8 bytes for each document.
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
        rows = self.set._base_rows(pieces.document)
        shards = np.searchsorted(self.set._opened.ends, rows, side="right")
        order = np.argsort(shards, kind="stable")
        shards, rows = shards[order], rows[order] - self._bases[shards[order]]
        item, target = out.itemsize, out.view(np.uint8).data
        copies = _Copies(
            counts[order].tolist(), (pieces.start[order] * item).tolist(), (length[order] * item).tolist(),
            (pieces.place[order] * item).tolist(),
        )  # fmt: skip
        edges = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(shards)] if len(shards) else []
        for a, b in pairwise(edges):
            reader = self.set._opened.pool.get(int(shards[a]))
            with where(shard=reader.name, field=self.field.name):
                self._copy(reader, rows[a:b], copies.part(a, b), target)

    def _copy(self, reader: ShardReader, rows: Rows, copies: _Copies, target: memoryview) -> None:
        """The pieces of one shard. Each document is compared with its header: a wrong index gives wrong tokens."""
        index, data = reader.index.fields[self.field.stored], reader._data
        dtype, skip = self.field.layout(index)
        # A view of the index file is a memmap, of which any operation takes three times as long.
        offsets = np.asarray(index.offsets)[rows].tolist()
        for i, (offset, count, start, size, place) in enumerate(zip(offsets, *copies, strict=True)):
            begin = offset + skip
            if skip and _tokens_in(bytes(data[offset:begin]), dtype) != count:
                raise _another(npy_header(data[offset:begin]), dtype, count, int(rows[i]))
            begin += start
            target[place : place + size] = data[begin : begin + size]

    def __getstate__(self) -> dict[str, Any]:
        return _without(self, "line", "_bases")


class _Copies(NamedTuple):
    """Pieces to copy, by shard: tokens of the document, first byte in it, bytes, first byte of the target."""

    counts: list[int]
    starts: list[int]
    sizes: list[int]
    places: list[int]

    def part(self, a: int, b: int) -> _Copies:
        return _Copies(*(numbers[a:b] for numbers in self))


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


def find_field(shards: ShardSet, name: str | None, raw_dtype: np.dtype[Any] | None) -> TokenField:
    """The field of that name, or the only one that can be meant. Raises UsageError for what holds no tokens.

    raw_dtype: of the tokens where they are bytes without a header.

    Looks at the header of one value of each field that it considers.
    """
    codec = "npy" if raw_dtype is None else BYTES.name
    if name is not None:
        if name not in shards.fields:
            raise UsageError(f"no field '{name}'", fix=f"Fields: {', '.join(shards.fields)}")
        field, why = _token_field(shards, name, raw_dtype)
        if field is None:
            raise UsageError(f"the field '{name}' {why}", fix=_KINDS)
        return field
    asked = {n: _token_field(shards, n, raw_dtype) for n, spec in shards.fields.items() if spec.codec == codec}
    found = [field for field, _ in asked.values() if field is not None]
    if len(found) > 1:
        names = ", ".join(repr(field.name) for field in found)
        raise UsageError(f"{len(found)} fields may hold tokens: {names}", fix=f"Name one: field={found[0].name!r}")
    if not found:
        kind = "an array" if raw_dtype is None else "raw bytes"
        seen = ", ".join(f"'{n}' {why}" for n, (_, why) in asked.items())
        names = f"none of {', '.join(shards.fields)} is {kind}"
        raise UsageError(
            f"no field holds tokens: {seen or names}",
            fix=_KINDS if raw_dtype is None else "Leave raw_dtype out for arrays; fields of bytes need it",
        )
    return found[0]


def _token_field(shards: ShardSet, name: str, raw_dtype: np.dtype[Any] | None) -> tuple[TokenField | None, str]:
    """(the field, "") or (None, why it cannot hold tokens)."""
    spec = shards.fields[name]
    if raw_dtype is not None:
        if spec.codec != BYTES.name:
            return None, f"is {spec.codec} and not raw bytes, so raw_dtype has no meaning"
        return TokenField(name=name, stored=spec.stored, dtype=raw_dtype, skip=0), ""
    if spec.codec != "npy":
        hint = "; say which type the tokens have: raw_dtype='uint16'" if spec.codec == BYTES.name else ""
        return None, f"is {spec.codec} and no array{hint}"
    header = _first_header(shards, spec)
    if header is None:
        return None, "has no value that is an npy array"
    if header.dtype.kind not in "iu" or len(header.shape) != 1:
        return None, f"holds {header.dtype.name}{list(header.shape)}"
    return TokenField(name=name, stored=spec.stored, dtype=header.dtype, skip=header.skip), ""


def _first_header(shards: ShardSet, spec: FieldSpec) -> NpyHeader | None:
    """What the values of a field are: from manifest and indexes where these say it, else from the first value.

    A shard whose documents are all alike has no headers in HDF5; then another one says how long they are.
    """
    if spec.dtype is not None and spec.shape is not None:
        return NpyHeader(np.dtype(spec.dtype), spec.shape, 0, False)
    opened = shards._opened
    alike: NpyHeader | None = None
    for shard in np.flatnonzero(opened.sizes).tolist():
        index = opened.files.index(shard).fields.get(spec.stored)
        if index is None or not (index.sizes > 0).any():
            continue
        if index.dtype is None or index.shape is None:
            view = opened.pool.get(shard).payload(int(np.argmax(index.sizes > 0)), spec.stored)
            return None if view is None else npy_header(view)
        alike = alike or NpyHeader(index.dtype, index.shape, index.skip, False)
    return alike


@lru_cache(maxsize=1 << 14)
def _tokens_in(head: bytes, dtype: np.dtype[Any]) -> int:
    """How many tokens this npy header stands for, -1 if it is another one.

    Documents of one length share a header, and parsing one takes as long as copying 50,000 tokens.
    """
    header = npy_header(head)
    if header is None or header.dtype != dtype or len(header.shape) != 1 or header.skip != len(head):
        return -1
    return header.shape[0]


def _another(header: NpyHeader | None, dtype: np.dtype[Any], count: int, row: int) -> CorruptShard:
    found = "no npy array" if header is None else f"{header.dtype.name}{list(header.shape)}"
    return CorruptShard(
        f"{found} where its size in the index makes it {dtype.name}[{count}]",
        fix=f"All documents of a set have one type. {_AGAIN}", row=row,
    )  # fmt: skip


def _without(made: object, *names: str) -> dict[str, Any]:
    """For a pickle: what something was made from. Each process works out the rest for itself."""
    return {name: value for name, value in vars(made).items() if name not in names}
