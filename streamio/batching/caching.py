"""Decoded values that are kept from one epoch to the next: which they are, and the column of a batch from them.

A value is kept as it is before anything is drawn at random: what an operation without randomness, or a function of
the user's, makes of a file; and for an operation that draws, the decoded picture, of which each epoch takes its own
box. A JPEG is decoded at the scale that its box needs, so there it is kept at each scale that came up, and batches
are the same to the bit.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamio.batching.decode import IMAGE_CODECS, Failure, FieldDecoder, Rng, Values, decode_each
from streamio.batching.resizing import best_resize
from streamio.batching.stages import Count
from streamio.caching.keyed import CacheOptions, Origin, open_store
from streamio.caching.store import Store
from streamio.codecs import Known, Pixels
from streamio.errors import UsageError, where
from streamio.image import CenterCrop, MaxSide, Resize
from streamio.types import Alloc, Column, ListColumn, Rows

HITS, MISSES, ADDED_BYTES = "cache_hits", "cache_misses", "cache_bytes"
"""What is counted: values that were there, and that were not; bytes that were put in."""

_FIXED = (Resize, CenterCrop, MaxSide)
"""Operations of which is known that they draw nothing."""

_SCALES = (1, 2, 4, 8)
"""At which a JPEG may be decoded, in eighths."""


class Source(Protocol):
    """What a cache needs of a table."""

    @property
    def sizes(self) -> NDArray[np.int64]: ...

    @property
    def fingerprint(self) -> str: ...

    def gather(self, rows: Rows, fields: Sequence[str]) -> dict[str, Column]: ...


class ValueCache:
    """The kept values of some fields of a table, by row.

    Raises UsageError where nothing is decoded that could be kept, and as `MemoryStore` and `DiskStore` do.
    """

    def __init__(
        self, options: CacheOptions, table: Source, decoders: Mapping[str, FieldDecoder], count: Count
    ) -> None:
        kept = {name: decoder for name, decoder in decoders.items() if _is_costly(decoder)}
        if not kept:
            raise UsageError(
                f"cache={options.where!r}, but none of the fields {', '.join(decoders)} takes long to decode",
                fix="Leave cache= out: arrays, numbers and text are read from the files as fast as from a cache",
            )
        self.fields = tuple(kept)
        self._table, self._count = table, count
        self._rows = int(table.sizes.sum())
        ends = np.cumsum([self._rows * _slots(decoder) for decoder in kept.values()])
        self._first = dict(zip(kept, [0, *ends.tolist()], strict=False))
        origins = [Origin("source", table.fingerprint), made_by(), *map(decoded_by, kept.values())]
        self._held = open_store(options, origins, int(ends[-1]))

    @property
    def store(self) -> Store:
        """Where the values are."""
        return self._held.store

    def column(
        self, decoder: FieldDecoder, rows: Rows, rng: Rng, alloc: Alloc, *, joined: bool
    ) -> tuple[Values, list[Failure]]:
        """What `decode_column` makes of these rows of a field, and what it puts in for the next time."""
        size = None if decoder.op is None else decoder.op.size
        pixels = None if size is None else alloc((len(rows), *size, 3), np.dtype(np.uint8))
        outs: list[Any] = [None] * len(rows) if pixels is None else list(pixels)
        required = pixels is not None or (joined and decoder.fills_array)
        if may_draw(decoder):
            known = _Pictures(self.store, self._first[decoder.field] + rows * len(_SCALES))
            items = self._items(rows, decoder)
            values, failures = decode_each(decoder, items, rng, outs, required, known.of)
            self._counted(known.hits, len(rows) - known.hits, known.added)
            return values if pixels is None else pixels, failures
        slots = self._first[decoder.field] + rows
        values = outs
        missed = []
        for i, (slot, word) in enumerate(zip(slots.tolist(), self.store.words(slots), strict=True)):
            found = self.store.read(slot, word, outs[i]) if word else None
            if found is None:
                missed.append(i)
            else:
                values[i] = found[0]
        failures = self._fill(decoder, rows, missed, slots, values, rng, required) if missed else []
        self._counted(len(rows) - len(missed), len(missed), 0)
        return values if pixels is None else pixels, failures

    def _fill(
        self, decoder: FieldDecoder, rows: Rows, missed: list[int], slots: NDArray[np.int64], values: list[Any],
        rng: Rng, required: bool,
    ) -> list[Failure]:  # fmt: skip
        """Decode the values at these indices, and keep them."""
        items = self._items(rows[missed], decoder)
        made, failures = decode_each(
            decoder, items, lambda i: rng(missed[i]), [values[i] for i in missed], required
        )
        failed = {failure.index for failure in failures}
        added = 0
        with where(field=decoder.field):
            for n, (i, item) in enumerate(zip(missed, items, strict=True)):
                values[i] = made[n]
                if n not in failed and isinstance(item, memoryview):
                    added += self.store.write(int(slots[i]), made[n])
        self._counted(0, 0, added)
        return [Failure(missed[failure.index], failure.field, failure.error) for failure in failures]

    def _items(self, rows: Rows, decoder: FieldDecoder) -> Sequence[memoryview | NDArray[Any] | None]:
        column = self._table.gather(rows, [decoder.field])[decoder.field]
        assert isinstance(column, ListColumn), f"{decoder.field} is to be decoded, and comes as an array"
        return column.values

    def _counted(self, hits: int, misses: int, added: int) -> None:
        for name, count in {HITS: hits, MISSES: misses, ADDED_BYTES: added}.items():
            if count:
                self._count(name, count)


class _Pictures:
    """The decoded pictures of a batch, by index in it.

    first: the slots of the smallest scale; those of the others follow.
    """

    def __init__(self, store: Store, first: NDArray[np.int64]) -> None:
        self._store, self._slots = store, first.tolist()
        self._words = store.words(first[:, None] + np.arange(len(_SCALES)))
        self.hits = self.added = 0

    def of(self, i: int) -> Known:
        def known(
            eighths: int, shape: tuple[int, ...] | None, memory: Pixels | None, decode: Callable[[], Pixels]
        ) -> Pixels:
            scale = _SCALES.index(eighths)
            slot, word = self._slots[i] + scale, self._words[i][scale]
            found = self._read(slot, word, shape, memory) if word else None
            if found is not None:
                self.hits += 1
                return found
            made = decode()
            self.added += self._store.write(slot, made)
            return made

        return known

    def _read(self, slot: int, word: int, shape: tuple[int, ...] | None, memory: Pixels | None) -> Pixels | None:
        out = np.empty(shape, np.uint8) if memory is None and shape is not None else memory
        value = self._store.read(slot, word, out)
        return None if value is None else value[0]


def _is_costly(decoder: FieldDecoder) -> bool:
    return not decoder.raw and (decoder.function is not None or decoder.codec in IMAGE_CODECS)


def may_draw(decoder: FieldDecoder) -> bool:
    """Whether its operation draws at random, as far as is known."""
    return decoder.op is not None and type(decoder.op) not in _FIXED


def _slots(decoder: FieldDecoder) -> int:
    """Of each row."""
    return len(_SCALES) if may_draw(decoder) else 1


def made_by() -> Origin:
    """What all decoding depends on."""
    versions = [_version(package) for package in ("pillow", "simplejpeg", "torch")]
    return Origin("decoding", (*versions, "pillow" if best_resize() is None else "torch"))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def decoded_by(decoder: FieldDecoder, *more: Any) -> Origin:
    """What the kept values of a field depend on. more: further facts."""
    operation = "any" if may_draw(decoder) else repr(decoder.op)
    facts = (decoder.field, decoder.codec, operation, decoder.max_pixels, decoder.function is not None, *more)
    return Origin(f"decode[{decoder.field!r}]", facts, decoder.function)
