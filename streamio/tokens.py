"""TokenDataset: documents of tokens in shards, as windows, packed sequences or documents, in batches."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from streamio.dataset import ShardDataset
from streamio.errors import UsageError
from streamio.order.lengths import check_batch_size
from streamio.order.plan import Tail, check_count
from streamio.order.tokens import edges_of
from streamio.shards.shardset import ShardSet, open_shards
from streamio.shards.tokenfields import find_field
from streamio.shards.tokens import STARTS, TOKENS, Documents, Mode, Overlong, TokenTable

_log = logging.getLogger("streamio")

_REFUSED = ("decode", "layout", "max_pixels")
_OF_TRANSFORM = ("on_error", "max_errors", "error_report")


class TokenDataset(ShardDataset):
    """Streams documents of tokens as batches of one length, the same for any number of workers.

        streamio.write(({"tokens": np.array(ids, np.uint16)} for ids in documents), "tokens/")
        ds = TokenDataset("tokens/", 16, 2048, shuffle=True)
        for batch in StreamLoader(ds):                                   # int64 (16, 2049)
            inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

    A `ShardDataset` whose samples are windows (or documents), so ranks, workers, shuffle, tail and resuming are as
    there; a state of another length, mode or field is refused. Each batch is a dict, with the keys of the
    documents in which its samples begin in `__key__`.

    source:     path or URL of a shard set, or an opened ShardSet (so `where` selects documents). Documents come in
                the order in which they are stored, across shards; one without the field counts as empty.
    batch_size: windows, or documents, of one batch on one rank.
    length:     T. Every batch row has T inputs and T targets; for documents the most tokens that a row may have.
    mode:       "windows": `tokens` (batch_size, T + 1), cut from all documents end to end, so that each token is a
                target once. The last `dropped_tokens` (fewer than T) are in no window.
                "packed": the same windows, and what attention within documents needs, counted over
                `tokens[:, :-1].flatten()`: `cu_seqlens` int32 (sequences + 1,), where each begins and the end, and
                `max_seqlen`, a number. A sequence ends with its document and with its window.
                "documents": a row is a document: `tokens` (all of the batch,) one behind the other, `cu_seqlens`
                int32 (batch_size + 1,), `max_seqlen`. Empty documents are empty rows.
    field:      default: the only one of whole numbers in one dimension.
    raw_dtype:  of tokens that are stored as bytes without a header (`bin` files): "uint16".
    dtype:      of the tokens in a batch; one that holds all numbers of the stored type.
    eos:        a token to put behind every document that has any.
    overlong:   what becomes of documents with more than T tokens: "truncate", or "split" into rows of T tokens, the
                last one shorter. Must be said where there are any. Only for "documents".
    position_ids: also give `position_ids` int64, counted from 0 in each sequence of `cu_seqlens`: (batch_size, T)
                when packed, (all of the batch,) for documents.
    shuffle, seed, tail, options: as for `ShardDataset`: what decides the order, rank and world_size; prepare (with
                cache), transform (with either on_error, max_errors, error_report) and collate, which take samples
                {"tokens": (T + 1,)}, with "document_starts" when packed; batch_transform, which takes the batch;
                fields, but only for "windows" (`fields=("tokens",)` gives tuples, and spares reading the keys).

    Where documents lie is worked out from the shard indexes, at once, without reading a shard (but one header). It
    takes 8 bytes of memory for each document in each process that does not share it by fork, 16 under "split".

    Raises UsageError before anything is read.
    """

    table: TokenTable

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str] | ShardSet,
        batch_size: int | None,
        length: int,
        *,
        mode: Mode = "windows",
        field: str | None = None,
        raw_dtype: str | np.dtype[Any] | None = None,
        dtype: str | np.dtype[Any] = "int64",
        eos: int | None = None,
        overlong: Overlong | None = None,
        position_ids: bool = False,
        shuffle: bool | str = False,
        seed: int = 0,
        tail: Tail = "even",
        **options: Any,
    ) -> None:
        _check_options(batch_size, length, mode, overlong, position_ids, options)
        raw = None if raw_dtype is None else _whole_numbers("raw_dtype", raw_dtype)
        shards = source if isinstance(source, ShardSet) else open_shards(source)
        found = find_field(shards, field, raw)
        table = TokenTable(
            documents=Documents(set=shards, field=found, eos=_checked_eos(eos, found.dtype)),
            mode=mode, length=length, overlong=overlong, dtype=_checked_dtype(dtype, found.dtype, found.name),
        )  # fmt: skip
        _check_lengths(table)
        if mode != "windows":
            options.setdefault("collate", Join(length if mode == "packed" else None, position_ids))
        super().__init__(table, batch_size, shuffle=shuffle, seed=seed, tail=tail, **options)
        if self.dropped_tokens:
            _log.info("%s: %d of %d tokens are in no row", shards.path, self.dropped_tokens, self.tokens)

    def _opened(self, source: Any) -> Any:
        return self.table.documents.set

    @property
    def length(self) -> int:
        """T, see above."""
        return self.table.length

    @property
    def tokens(self) -> int:
        """Tokens of all documents, with those that `eos` adds."""
        return self.table.documents.line.tokens

    @property
    def dropped_tokens(self) -> int:
        """Tokens that no epoch has: those behind the last window, or those that documents were truncated by."""
        return self.table.cut.dropped


class Join:
    """Makes a batch of samples whose sequences are told apart by `cu_seqlens`; anything else comes as a list.

    length: T, of windows with "document_starts"; None: each sample is a sequence.
    """

    def __init__(self, length: int | None, position_ids: bool) -> None:
        self._length, self._position_ids = length, position_ids

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if self._length is None:
            tokens = np.concatenate([sample[TOKENS] for sample in samples])
            edges = edges_of(np.array([len(sample[TOKENS]) for sample in samples], np.int64))
        else:
            tokens = np.stack([sample[TOKENS] for sample in samples])
            edges = packed_edges([sample[STARTS] for sample in samples], self._length)
        lengths = np.diff(edges)
        batch = {TOKENS: tokens, "cu_seqlens": edges.astype(np.int32), "max_seqlen": int(lengths.max())}
        if self._position_ids:
            ids = np.arange(edges[-1]) - np.repeat(edges[:-1], lengths)
            batch["position_ids"] = ids if self._length is None else ids.reshape(-1, self._length)
        others = [name for name in samples[0] if name not in (TOKENS, STARTS)]
        return batch | {name: _column([sample[name] for sample in samples]) for name in others}


def packed_edges(starts: Sequence[NDArray[np.int64]], length: int) -> NDArray[np.int64]:
    """Where sequences begin in windows of `length` tokens that lie end to end, and the end of the last.

    starts: of each window, counted from its own beginning; the first is 0.
    """
    windows = np.repeat(np.arange(len(starts)), [len(each) for each in starts])
    return np.append(np.concatenate(starts) + windows * length, np.int64(len(starts) * length))


def _column(values: list[Any]) -> Any:
    return np.array(values) if isinstance(values[0], bool | int | float | np.generic) else values


def _check_options(
    batch_size: Any, length: Any, mode: Any, overlong: Any, position_ids: bool, options: Mapping[str, Any]
) -> None:
    """Raise UsageError for what needs no look at the data."""
    check_batch_size(batch_size, options.get("buckets"))
    check_count("length", length)
    if mode not in get_args(Mode):
        raise UsageError(f"mode={mode!r}", fix="Use 'windows', 'packed' or 'documents'")
    if overlong not in (None, *get_args(Overlong)):
        raise UsageError(f"overlong={overlong!r}", fix="Use 'truncate' or 'split'")
    if overlong is not None and mode != "documents":
        raise UsageError(
            f"overlong={overlong!r} with mode={mode!r}", fix="It is for mode='documents'; leave it out"
        )
    if position_ids and mode == "windows":
        raise UsageError("position_ids=True with mode='windows'", fix="Use mode='packed', or leave it out")
    if mode != "windows" and (batch_size or 1) * length > np.iinfo(np.int32).max:
        raise UsageError(
            f"batches of up to {batch_size:,} x {length:,} tokens, which int32 cu_seqlens cannot count",
            fix="Use a smaller batch_size or length",
        )
    for name in _REFUSED:
        if name in options:
            raise UsageError(
                f"{name}={options[name]!r} for tokens", fix="There is nothing for it to do; leave it out"
            )
    for name in _OF_TRANSFORM:
        if name in options and options.get("transform") is None and options.get("prepare") is None:
            raise UsageError(
                f"{name}={options[name]!r} for tokens, of which none is bad unless a transform raises on it",
                fix="Leave it out, or give transform= too",
            )
    if mode != "windows" and options.get("fields") is not None:
        raise UsageError(
            f"fields={options['fields']!r} with mode={mode!r}", fix="Its batches are dicts; leave it out"
        )


def _whole_numbers(name: str, dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any] | None = None
    try:
        found = np.dtype(dtype)
    except TypeError:
        pass
    if found is None or found.kind not in "iu":
        raise UsageError(f"{name}={dtype!r}", fix="Name a type of whole numbers as numpy does: 'int64', 'uint16'")
    return found


def _checked_dtype(dtype: Any, stored: np.dtype[Any], field: str) -> np.dtype[Any]:
    wanted = _whole_numbers("dtype", dtype).newbyteorder("=")
    if not np.can_cast(stored, wanted, "safe"):
        raise UsageError(
            f"dtype={wanted.name!r} does not hold all numbers of {stored.name}, as the tokens are stored",
            fix=f"Use dtype={stored.name!r} or a wider one", field=field,
        )  # fmt: skip
    return wanted


def _checked_eos(eos: Any, stored: np.dtype[Any]) -> int | None:
    if eos is None:
        return None
    limits = np.iinfo(stored)
    if isinstance(eos, bool) or not isinstance(eos, int | np.integer) or not limits.min <= eos <= limits.max:
        raise UsageError(
            f"eos={eos!r} for tokens that are stored as {stored.name}",
            fix=f"Give a whole number from {limits.min} to {limits.max}",
        )
    return int(eos)


def _check_lengths(table: TokenTable) -> None:
    """Raise UsageError where there is not one row, or documents are too long and nothing was said about it."""
    line, length = table.documents.line, table.length
    count, path = len(line.edges) - 1, table.documents.set.path
    if table.mode != "documents" and table.cut.rows == 0:
        raise UsageError(
            f"{line.tokens:,} tokens in {count:,} documents; a window of length {length:,} takes {length + 1:,}",
            fix="Use a smaller length, or more documents", path=path,
        )  # fmt: skip
    if table.mode == "documents" and table.overlong is None:
        longer = line.lengths[line.lengths > length]
        if len(longer):
            raise UsageError(
                f"{len(longer):,} of {count:,} documents have more than {length:,} tokens, up to {longer.max():,}",
                fix="Say what becomes of them, overlong='truncate' or 'split', or use a larger length", path=path,
            )  # fmt: skip
