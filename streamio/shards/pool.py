"""The shards that a process has open: opened on first use, bounded in number, never carried over a fork."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from streamio.shards.reader import ShardReader


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """What a pool did in this process.

    open:      shards open now.
    opens:     times a shard was opened.
    evictions: times one was closed to make room.
    mapped_bytes: size of the open shards, which is address space, not memory.
    """

    open: int
    opens: int
    evictions: int
    mapped_bytes: int


class ReaderPool:
    """Readers by shard number, at most `limit` of them; the one not used for longest goes first.

    Used from any thread. Dropping a reader only drops the pool's hold on it: a thread that is reading from
    it, and views of its map, keep the map until they are done.
    """

    def __init__(self, open_reader: Callable[[int], ShardReader], limit: int) -> None:
        self._open_reader, self.limit = open_reader, limit
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._own_lock = threading.Lock()
        self._readers: OrderedDict[int, ShardReader] = OrderedDict()
        self._opens = self._evictions = 0
        self._era = object()
        self._pid = os.getpid()  # last: whoever sees it finds the new lock

    @property
    def _lock(self) -> threading.Lock:
        if self._pid != os.getpid():
            # A fork: another thread of the parent may have held the lock, which nobody here would open again.
            self._start_afresh()
        return self._own_lock

    @property
    def era(self) -> object:
        """Another one whenever readers were dropped; what was made of readers is to be dropped as well."""
        with self._lock:
            return self._era

    def get(self, shard: int) -> ShardReader:
        """The reader of a shard; opens it if need be, and may raise what opening raises."""
        with self._lock:
            reader = self._readers.get(shard)
            if reader is not None:
                self._readers.move_to_end(shard)
                return reader
        # Opening may download, so other threads are not kept waiting; the second of two that open one shard wins.
        reader = self._open_reader(shard)
        with self._lock:
            self._opens += 1
            self._readers[shard] = reader
            self._readers.move_to_end(shard)
            while len(self._readers) > self.limit:
                self._readers.popitem(last=False)
                self._evictions += 1
                self._era = object()
        return reader

    def close(self) -> None:
        """Drop all readers; the next `get` opens anew."""
        with self._lock:
            self._readers.clear()
            self._era = object()

    def stats(self) -> PoolStats:
        with self._lock:
            return PoolStats(
                open=len(self._readers),
                opens=self._opens,
                evictions=self._evictions,
                mapped_bytes=sum(reader.mapped_bytes for reader in self._readers.values()),
            )
