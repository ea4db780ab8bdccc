"""The field of a shard set that holds tokens: which one it is, how long its values are, and whether they are there.

How long each document is comes from the sizes in the shard indexes, so nothing is read to know where any row
lies. When a document is read, its own header is compared with that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.codecs import BYTES, NpyHeader, npy_header, npy_header_bytes
from streamio.errors import CorruptShard, UsageError
from streamio.shards.index import MISSING, FieldIndex
from streamio.shards.manifest import FieldSpec
from streamio.shards.shardset import ShardSet
from streamio.shards.space import Addresses, copy_items
from streamio.types import Rows

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


def check_headers(
    places: Addresses, rows: Rows, counts: NDArray[np.int64], dtype: np.dtype[Any], skip: int
) -> None:
    """Compare the headers in front of some documents with what the index makes of their sizes.

    places: addresses of the headers. counts: tokens of each document.

    Raises CorruptShard for the first that says something else: a wrong index gives wrong tokens.
    """
    heads = np.empty((len(places), skip), np.uint8)
    copy_items(places, heads, None)
    found = heads.view(f"V{skip}")[:, 0].tolist()
    for i, (head, count) in enumerate(zip(found, counts.tolist(), strict=True)):
        if head != _usual_header(dtype, count):
            header = npy_header(head)  # other tools may write it in another way
            if header is None or (header.dtype, header.shape, header.skip) != (dtype, (count,), skip):
                raise _another(header, dtype, count, int(rows[i]))


@lru_cache(maxsize=1 << 14)
def _usual_header(dtype: np.dtype[Any], count: int) -> bytes:
    """That of so many tokens as numpy writes it, from that of none: numpy itself takes 20 times as long."""
    none = npy_header_bytes(dtype, (0,))
    start = none.rindex(b"(0,") + 1
    return (none[:start] + b"%d" % count + none[start + 1 :].rstrip()).ljust(len(none) - 1) + b"\n"


def _another(header: NpyHeader | None, dtype: np.dtype[Any], count: int, row: int) -> CorruptShard:
    found = "no npy array" if header is None else f"{header.dtype.name}{list(header.shape)}"
    return CorruptShard(
        f"{found} where its size in the index makes it {dtype.name}[{count}]",
        fix=f"All documents of a set have one type. {_AGAIN}", row=row,
    )  # fmt: skip
