"""RedisDataset: entries of Redis Streams as batches.

Each stream is a partition, or several: ranges of ids with as many entries each. How many entries a partition has is
counted when the epoch begins, so that what is deleted or trimmed while it is read is noticed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from streamio.errors import StorageError, UsageError
from streamio.order.plan import check_count
from streamio.sources.base import Chunk, Cursor, Partition, Work
from streamio.sources.dataset import SourceDataset, SourceOptions
from streamio.sources.hidden import Address
from streamio.sources.messages import Parse, message_reader
from streamio.sources.rediswire import HINT, RedisConnection, RedisServer, as_id, as_text, next_id, walked
from streamio.sources.retries import RETRY_FOR, LostConnection
from streamio.sources.streams import MessageStreams

_FACTS = {"id": "str", "timestamp": "timestamp[ms]", "stream": "str"}
_BEGINNING = "0-0"
_SAMPLES = 100
_PAGE, _PAGE_BYTES, _LARGEST_PAGE = 64, 4 << 20, 1024
"""Entries that are asked for first; about how many bytes later, and at most how many."""
_WAIT = 0.1
"""Seconds that the server lets us wait for what comes."""


class RedisDataset(SourceDataset):
    """Streams entries of Redis Streams as ready-made batches.

        ds = RedisDataset("redis://host/0", "clicks", 256, types={"url": "str", "ms": "int64"}, group="training")
        loader = StreamLoader(ds)
        for batch in loader:
            step(batch)
            loader.commit()

    url:     `redis://user:password@host:6379/0`, `rediss://` for TLS, `unix:///path`.
    streams: the name of one stream, or several.
    parse:   "raw": the fields of an entry are those of the sample; "json": one field of the entry, `value`, holds
             a JSON object; a function of the entry, a dict of bytes by name, which returns a dict, or None for an
             entry that is no sample.
    types:   of the fields, such as {"url": "str", "ms": "int64"}. With "raw", text is UTF-8 and numbers are written
             as text. None: taken from the first entries; "raw" ones are bytes then.
    meta:    what else of an entry becomes a field: "id", "timestamp", "stream"; {fact: field} renames it.
    follow:  False: an epoch is what is in the streams when it begins, and each epoch reads it anew. True: entries
             are read as they come, without end, from where the last epoch stopped.
    start:   where a run without a state begins: "earliest", "latest" (with follow=True), or an id: with what comes
             after it.
    group:   a consumer group that keeps the place of each stream on the server. A run without a state begins there,
             every epoch of one without `follow` too; `loader.commit()` moves it. It is made when it is not there.
    splits:  partitions of each stream, for more workers than streams: ranges of ids. The server walks over all
             entries to find them when an epoch begins.
    retry_for: seconds for which a server that is gone is tried again.
    client:  further arguments of `redis.Redis.from_url`.
    For the rest see `SourceDataset`.

    An entry that is deleted or trimmed before it was read is an error at the end of its partition: StorageError;
    with `follow` it is not noticed. Raises UsageError for what cannot work, StorageError where the server is not
    there.
    """

    def __init__(
        self, url: str, streams: str | Sequence[str], batch_size: int, *, parse: Parse = "raw",
        types: Mapping[str, Any] | None = None, meta: Sequence[str] | Mapping[str, str] | None = None,
        value: str = "value", follow: bool = False, start: str = "earliest", group: str | None = None,
        splits: int = 1, retry_for: float = RETRY_FOR, client: Mapping[str, Any] | None = None,
        **options: Unpack[SourceOptions],
    ) -> None:  # fmt: skip
        source = RedisStreams(
            RedisServer(Address(url, client, ("redis", "rediss", "unix"), HINT), retry_for), streams, parse=parse,
            types=types, meta=meta, value=value, follow=follow, start=start, group=group, splits=splits,
        )  # fmt: skip
        super().__init__(source, batch_size, **options)


class RedisStreams(MessageStreams):
    """Entries of streams; see `RedisDataset`."""

    server: RedisServer

    def __init__(
        self, server: RedisServer, streams: str | Sequence[str], *, parse: Parse, types: Mapping[str, Any] | None,
        meta: Sequence[str] | Mapping[str, str] | None, value: str, follow: bool, start: str, group: str | None,
        splits: int,
    ) -> None:  # fmt: skip
        self.server, self.endless, self._group = server, follow, group
        self.streams = (streams,) if isinstance(streams, str) else tuple(streams)
        self._start, self._splits, self._value = start, splits, value.encode()
        self._parse: Parse = parse
        _check(self.streams, follow, start, group, splits)
        server.ask(self._check_there, patient=False)
        self._reader = message_reader(
            parse, types, meta, _FACTS, lambda: server.ask(self._first, patient=False), self.streams[0],
            entries=parse != "json",
        )  # fmt: skip

    @property
    def fingerprint(self) -> str:
        ends = "follow" if self.endless else f"splits={self._splits}"
        return f"redis {', '.join(self.streams)} ({ends})"

    def partitions(self) -> Sequence[Partition]:
        def cut(client: Any) -> list[Partition]:
            self._check_there(client)
            return [partition for stream in self.streams for partition in self._cut(client, stream)]

        return self.server.ask(cut)

    def _keep(self, places: Mapping[str, Any]) -> None:
        self.server.ask(lambda client: self._set_places(client, places))

    def found_again(self, partitions: Sequence[Partition], cursors: Mapping[str, Cursor]) -> Sequence[Partition]:
        def check(client: Any) -> None:
            for partition in partitions:
                cursor = cursors.get(partition.name, partition.start)
                stream, at = (partition.name, cursor) if self.endless else (partition.facts["stream"], cursor[0])
                self._check_place(client, stream, at, "the run")

        self.server.ask(check)
        return partitions

    def _check_place(self, client: Any, stream: str, place: str, who: str) -> None:
        """That the stream has got as far as this: one that was made anew has not."""
        last = as_text(client.xinfo_stream(stream)["last-generated-id"]) if client.exists(stream) else _BEGINNING
        if as_id(place) > as_id(last):
            raise StorageError(
                f"{who} stands at {place}, and the stream ends at {last}: it was made anew",
                fix="Begin without this state or group", path=self.server.address.shown, shard=stream,
            )  # fmt: skip

    def _set_places(self, client: Any, places: Mapping[str, str]) -> None:
        for stream, place in places.items():
            if self._place(client, stream) is None:
                client.xgroup_create(stream, self._group, place, mkstream=True)
            else:
                client.xgroup_setid(stream, self._group, place)

    def _place(self, client: Any, stream: str) -> str | None:
        """Where the group is; None where there is no such group."""
        if self._group is None or not client.exists(stream):
            return None
        groups = client.xinfo_groups(stream)
        found = [group["last-delivered-id"] for group in groups if as_text(group["name"]) == self._group]
        if not found:
            return None
        self._check_place(client, stream, as_text(found[0]), f"group '{self._group}'")
        return as_text(found[0])

    def _cut(self, client: Any, stream: str) -> list[Partition]:
        """The partitions of one stream, as it is now."""
        after = self._place(client, stream) or self._first_id(client, stream)
        if self.endless:
            return [Partition(stream, start=after)]
        pipe = client.pipeline(transaction=True)
        pipe.xlen(stream)
        pipe.xrevrange(stream, count=1)
        rows, newest = pipe.execute()
        last = as_text(newest[0][0]) if newest else after
        if after != _BEGINNING:
            rows, _ = walked(client, stream, after, last)
        if self._splits == 1:
            return [Partition(stream, {"stream": stream, "last": last, "rows": rows}, [after, 0])]
        cuts = [rows * number // self._splits for number in range(self._splits + 1)]
        made = []
        for number, (begin, end) in enumerate(pairwise(cuts), 1):
            stop = last if number == self._splits else walked(client, stream, after, last, end - begin)[1]
            facts = {"stream": stream, "last": stop, "rows": end - begin}
            made.append(Partition(f"{stream}[{number}/{self._splits}]", facts, [after, 0]))
            after = stop
        return made

    def _first_id(self, client: Any, stream: str) -> str:
        """After which id a run without a state begins."""
        if self._start != "latest":
            return _BEGINNING if self._start == "earliest" else self._start
        newest = client.xrevrange(stream, count=1)
        return as_text(newest[0][0]) if newest else _BEGINNING

    def _range(
        self, connection: RedisConnection, partition: Partition, cursor: Cursor, work: Work
    ) -> Iterator[Chunk]:
        """The rest of a partition that has an end."""
        stream, last, rows = (partition.facts[name] for name in ("stream", "last", "rows"))
        at, done = cursor
        size = _PAGE
        while True:
            try:
                page = connection.once(lambda client: client.xrange(stream, next_id(at), last, size))  # noqa: B023
            except LostConnection as error:
                connection.retries.failed(error)
                if work.stopped():
                    return
                continue
            connection.retries.worked()
            if page:
                yield self._chunk(partition, stream, page, done)
                at, done = as_text(page[-1][0]), done + len(page)
            if len(page) < size:
                break
            size = _fitting(page)
        if done < rows:
            raise StorageError(
                f"{rows - done:,} of {rows:,} entries were deleted or trimmed before they were read",
                fix="Let the stream keep entries for longer than an epoch takes, and begin the epoch anew",
                path=self.server.address.shown, shard=partition.name,
            )  # fmt: skip
        yield Chunk(partition=partition.name, ended=True)

    def _follow(self, connection: RedisConnection, work: Work) -> Iterator[Chunk | None]:
        """What comes, without end."""
        partitions = {partition.name: partition for partition, _ in work.partitions}
        at = {partition.name: cursor for partition, cursor in work.partitions}
        size = _PAGE
        while not at:  # another worker has the streams
            time.sleep(_WAIT)
            yield None
        while True:
            try:
                found = connection.once(lambda client: client.xread(at, count=size, block=int(_WAIT * 1000)))  # noqa: B023
            except LostConnection as error:
                connection.retries.failed(error)
                found = []
            else:
                connection.retries.worked()
            if not found:
                yield None
            for name, page in found:
                stream = as_text(name)
                yield self._chunk(partitions[stream], stream, page)
                at[stream], size = as_text(page[-1][0]), _fitting(page)

    def _chunk(self, partition: Partition, stream: str, page: Sequence[Any], done: int | None = None) -> Chunk:
        """Entries as columns. done: of the partition before them; None: it has no end."""
        ids = [as_text(entry[0]) for entry in page]
        facts: dict[str, Any] = {"id": ids, "timestamp": _moments(ids), "stream": [stream] * len(ids)}
        columns, bad, kept = self._reader.read(self._values(page), facts)
        cursors: Sequence[Cursor] = ids if done is None else [[name, done + n] for n, name in enumerate(ids, 1)]
        if kept is not None:
            ids, cursors = [ids[i] for i in kept], [cursors[i] for i in kept]
        return Chunk(partition=partition.name, columns=columns, cursors=cursors, places=ids, bad=bad)

    def _values(self, page: Sequence[Any]) -> list[Any]:
        """What the entries hold, as `parse` wants it."""
        if self._parse == "json":
            return [entry.get(self._value) for _, entry in page]
        names = _Names()
        return [{names[name]: value for name, value in entry.items()} for _, entry in page]

    def _first(self, client: Any) -> list[Any]:
        """The values of the first entries of all streams."""
        pages = [client.xrange(stream, count=_SAMPLES) for stream in self.streams]
        return [value for page in pages for value in self._values(page)]

    def _check_there(self, client: Any) -> None:
        shown = self.server.address.shown
        for stream in self.streams:
            kind = as_text(client.type(stream))
            if kind != "stream" and (kind != "none" or not self.endless):
                found = "there is no such stream" if kind == "none" else f"is a {kind}, and no stream"
                raise UsageError(found, fix="Give the name of a stream", path=shown, shard=stream)

    def __repr__(self) -> str:
        return f"RedisStreams('{self.server.address.shown}', {', '.join(map(repr, self.streams))})"


def _check(streams: Sequence[str], follow: bool, start: str, group: str | None, splits: int) -> None:
    """Refuse what cannot work."""
    check_count("splits", splits)
    if not streams or len(set(streams)) < len(streams) or not all(isinstance(s, str) and s for s in streams):
        raise UsageError(f"streams={list(streams)!r}", fix="Give the name of a stream, or several that differ")
    if start not in ("earliest", "latest") and not re.fullmatch(r"[0-9]+-[0-9]+", str(start)):
        raise UsageError(f"start={start!r}", fix='Use "earliest", "latest", or an id such as "1700000000000-0"')
    if start == "latest" and not follow:
        raise UsageError(
            "start='latest' of an epoch that ends with what is there now",
            fix="Use follow=True, or leave start= out",
        )
    if splits > 1 and follow:
        raise UsageError(f"splits={splits} with follow=True", fix="Leave splits= out: what comes has no ranges yet")
    if splits > 1 and group is not None:
        raise UsageError(
            f"splits={splits} with group={group!r}, which keeps one place for each stream",
            fix="Leave splits= out, or save loader.state_dict() instead of commit()",
        )


class _Names(dict[bytes, str]):
    """Names of fields as text: the few that there are, each decoded once."""

    def __missing__(self, name: bytes) -> str:
        self[name] = name.decode(errors="replace")
        return self[name]


def _moments(ids: Sequence[str]) -> NDArray[np.int64]:
    """When entries were added, by their ids: int64 (n,), in microseconds since 1970."""
    return np.array([int(name[: name.index("-")]) for name in ids], np.int64) * 1000


def _fitting(page: Sequence[Any]) -> int:
    """How many such entries make a page of a useful size."""
    total = sum(len(value) for _, entry in page for value in entry.values())
    return int(min(_LARGEST_PAGE, max(1, _PAGE_BYTES * len(page) // max(1, total))))
