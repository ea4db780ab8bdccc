"""NatsDataset: messages of a NATS JetStream stream as batches.

A partition is a range of sequences, or with `follow` what comes on some subjects. Nothing is acknowledged: a cursor
is a sequence, so a message can neither be handed out twice nor be held up. How many messages a range has is counted
when the epoch begins, so that what is deleted while it is read is noticed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import combinations, pairwise
from typing import Any, Unpack

import numpy as np
import xxhash

from streamio.errors import StorageError, UsageError
from streamio.order.plan import check_count
from streamio.sources.base import Chunk, Cursor, Partition, Work
from streamio.sources.dataset import SourceDataset, SourceOptions
from streamio.sources.hidden import Address
from streamio.sources.messages import Parse, message_reader
from streamio.sources.natswire import (
    HINT,
    Message,
    NatsConnection,
    NatsServer,
    Pull,
    keep_places,
    kept_place,
    overlap,
    pending,
)
from streamio.sources.retries import RETRY_FOR, LostConnection
from streamio.sources.streams import MessageStreams

_log = logging.getLogger("streamio")
_FACTS = {"subject": "str", "sequence": "int64", "timestamp": "timestamp[us]", "headers": "json"}
_SAMPLES = 100
_PAGE, _PAGE_BYTES, _LARGEST_PAGE = 64, 4 << 20, 1024
"""Messages that are asked for first; about how many bytes later, and at most how many."""
_WAIT = 0.1
"""Seconds that the server lets us wait for what comes."""
_ATTEMPTS = 50


class NatsDataset(SourceDataset):
    """Streams messages of a JetStream stream as ready-made batches.

        ds = NatsDataset("nats://host:4222", "CLICKS", 256, subjects="clicks.eu.>", group="training")
        loader = StreamLoader(ds)
        for batch in loader:
            step(batch)
            loader.commit()

    servers:  `nats://user:password@host:4222`, or several of one cluster.
    stream:   its name. It must keep its messages by limits: reading would take them away from a work queue.
    subjects: of the messages to read, with `*` and `>`; None: all.
    parse:    "json": a message is a JSON object; "raw": its bytes are the field `value`; a function of the bytes,
              which returns a dict, or None for a message that is no sample.
    types:    of the fields, such as {"url": "str", "ms": "int64"}. None: inferred from the first messages.
    meta:     what else of a message becomes a field: "subject", "sequence", "timestamp", "headers"; {fact: field}
              renames it. All with "raw", otherwise none.
    follow:   False: an epoch is what is in the stream when it begins, and each epoch reads it anew. True: messages
              are read as they come, without end, from where the last epoch stopped; each of `subjects` is a
              partition then.
    start:    where a run without a state begins: "earliest", "latest" (with follow=True), or a sequence.
    group:    a name under which the server keeps the place of the run, in the key-value bucket `streamio-groups`,
              which is made when it is not there. A run without a state begins there, every epoch of one without
              `follow` too; `loader.commit()` moves it.
    splits:   partitions of an epoch, for as many workers: ranges of sequences.
    retry_for: seconds for which a server that is gone is tried again.
    client:   further arguments of `nats.connect`: credentials, TLS.
    For the rest see `SourceDataset`.

    A message that is deleted before it was read is an error at the end of its partition: StorageError; with
    `follow` it is not noticed. Raises UsageError for what cannot work, StorageError where the server is not there.
    """

    def __init__(
        self, servers: str | Sequence[str], stream: str, batch_size: int, *,
        subjects: str | Sequence[str] | None = None, parse: Parse = "json", types: Mapping[str, Any] | None = None,
        meta: Sequence[str] | Mapping[str, str] | None = None, follow: bool = False, start: str | int = "earliest",
        group: str | None = None, splits: int = 1, retry_for: float = RETRY_FOR,
        client: Mapping[str, Any] | None = None, **options: Unpack[SourceOptions],
    ) -> None:  # fmt: skip
        server = NatsServer(Address(servers, client, ("nats", "tls", "ws", "wss", ""), HINT), retry_for)
        source = NatsStream(
            server, stream, subjects, parse=parse, types=types, meta=meta, follow=follow, start=start, group=group,
            splits=splits,
        )  # fmt: skip
        super().__init__(source, batch_size, **options)


class NatsStream(MessageStreams):
    """Messages of a stream; see `NatsDataset`."""

    server: NatsServer

    def __init__(
        self, server: NatsServer, stream: str, subjects: str | Sequence[str] | None, *, parse: Parse,
        types: Mapping[str, Any] | None, meta: Sequence[str] | Mapping[str, str] | None, follow: bool,
        start: str | int, group: str | None, splits: int,
    ) -> None:  # fmt: skip
        self.server, self.stream, self.endless = server, stream, follow
        self.subjects = (subjects,) if isinstance(subjects, str) else tuple(subjects or ())
        self._start, self._group, self._splits = start, group, splits
        _check(stream, self.subjects, follow, start, group, splits)
        server.ask(self._check_there, patient=False)
        self._reader = message_reader(parse, types, meta, _FACTS, self._first, stream)

    @property
    def fingerprint(self) -> str:
        ends = "follow" if self.endless else f"splits={self._splits}"
        return f"nats {' '.join((self.stream, *self.subjects))} ({ends})"

    def partitions(self) -> Sequence[Partition]:
        return self.server.ask(self._followed if self.endless else self._ranges)

    def _keep(self, places: Mapping[str, Any]) -> None:
        kept = {self._key(name): place for name, place in places.items()}
        self.server.ask(lambda js: keep_places(js, kept))

    def _key(self, partition: str) -> str:
        """Where the group keeps the place of a partition. Subjects have signs that a key may not have."""
        return f"{self._group}.{self.stream}.{xxhash.xxh3_64_hexdigest(partition.encode())}"

    async def _begin(self, js: Any, partition: str, state: Any) -> int:
        """The first sequence that a run without a state reads."""
        place = None if self._group is None else await kept_place(js, self._key(partition))
        if place is not None:
            self._check_place(place, state, f"group '{self._group}'")
            return place + 1
        if self._start == "latest":
            return int(state.last_seq) + 1
        return max(1, state.first_seq) if self._start == "earliest" else int(self._start)

    def found_again(self, partitions: Sequence[Partition], cursors: Mapping[str, Cursor]) -> Sequence[Partition]:
        state = self.server.ask(lambda js: js.stream_info(self.stream)).state
        for partition in partitions:
            cursor = cursors.get(partition.name, partition.start)
            self._check_place(cursor if self.endless else cursor[0], state, "the run")
        return partitions

    def _check_place(self, place: int, state: Any, who: str) -> None:
        if place > state.last_seq:
            raise StorageError(
                f"{who} stands at sequence {place:,}, and the stream ends at {state.last_seq:,}: it was made anew",
                fix="Begin without this state or group", path=self.server.address.shown, shard=self.stream,
            )  # fmt: skip
        if self.endless and place + 1 < state.first_seq:
            _log.warning(
                "%s: %s stands at sequence %d, and the stream begins at %d: what lay between was not read",
                self.stream, who, place, state.first_seq,
            )  # fmt: skip

    async def _followed(self, js: Any) -> list[Partition]:
        state = (await js.stream_info(self.stream)).state
        made = []
        for subject in self.subjects or ("",):
            name = f"{self.stream} {subject}".strip()
            begin = await self._begin(js, name, state)
            made.append(Partition(name, {"subjects": [subject] if subject else []}, begin - 1))
        return made

    async def _ranges(self, js: Any) -> list[Partition]:
        """Ranges of sequences with as many each, as the stream is now, and how many messages each has."""
        for _ in range(_ATTEMPTS):
            state = (await js.stream_info(self.stream)).state
            whole = " ".join((self.stream, *self.subjects))
            begin, stop = await self._begin(js, whole, state), state.last_seq + 1
            begin = min(max(begin, state.first_seq), stop)
            cuts = [begin + (stop - begin) * number // self._splits for number in range(self._splits + 1)]
            if not self.subjects and not state.num_deleted:
                behind = [stop - cut for cut in cuts]
                break
            behind = [await pending(js, self.stream, self.subjects, cut) for cut in cuts]
            if _seen(state) == _seen((await js.stream_info(self.stream)).state):
                break
        else:
            raise StorageError(
                "the stream changes too fast for its messages to be counted", path=self.server.address.shown,
                shard=self.stream, fix="Use follow=True with steps=, or leave subjects= out",
            )  # fmt: skip
        return [
            Partition(
                whole if self._splits == 1 else f"{whole}[{number}/{self._splits}]",
                {"last": b - 1, "rows": behind[number - 1] - behind[number]},
                [a - 1, 0],
            )
            for number, (a, b) in enumerate(pairwise(cuts), 1)
        ]

    def _range(
        self, connection: NatsConnection, partition: Partition, cursor: Cursor, work: Work
    ) -> Iterator[Chunk]:
        """The rest of a partition that has an end."""
        last, rows = partition.facts["last"], partition.facts["rows"]
        at, done = cursor
        size, pull = _PAGE, None

        async def next_page(client: Any) -> list[Message]:
            nonlocal pull
            if pull is None:
                pull = await Pull.open(client, self.stream, self.subjects, at + 1)
            if pull.left == 0:
                return []
            page = await pull.page(min(size, rows - done, pull.left))
            if not page:
                raise ConnectionError("messages that are there did not come")
            return page

        while done < rows:
            try:
                page = connection.once(next_page)
            except LostConnection as error:
                pull = None
                connection.retries.failed(error)
                if work.stopped():
                    return
                continue
            connection.retries.worked()
            if not page:
                break
            size = _fitting(page)
            mine = [message for message in page if at < message.sequence <= last]
            if mine:
                yield self._chunk(partition, mine, done)
                at, done = mine[-1].sequence, done + len(mine)
            if page[-1].sequence > last:
                break
        if done < rows:
            raise StorageError(
                f"{rows - done:,} of {rows:,} messages were deleted before they were read",
                fix="Let the stream keep messages for longer than an epoch takes, and begin the epoch anew",
                path=self.server.address.shown, shard=partition.name,
            )  # fmt: skip
        yield Chunk(partition=partition.name, ended=True)

    def _follow(self, connection: NatsConnection, work: Work) -> Iterator[Chunk | None]:
        """What comes, without end."""
        at: dict[str, int] = {partition.name: cursor for partition, cursor in work.partitions}
        pulls: dict[str, Pull] = {}
        sizes = dict.fromkeys(at, _PAGE)

        async def pages(client: Any) -> list[list[Message]]:
            for partition, _ in work.partitions:
                if partition.name not in pulls:
                    subjects, begin = partition.facts["subjects"], at[partition.name] + 1
                    pulls[partition.name] = await Pull.open(client, self.stream, subjects, begin)
            return await asyncio.gather(*(pulls[name].page(sizes[name], _WAIT) for name in at))

        while not at:  # other workers have the subjects
            time.sleep(_WAIT)
            yield None
        while True:
            try:
                found = connection.once(pages)
            except LostConnection as error:
                pulls.clear()
                connection.retries.failed(error)
                yield None
                continue
            connection.retries.worked()
            if not any(found):
                yield None
            for (partition, _), page in zip(work.partitions, found, strict=True):
                mine = [message for message in page if message.sequence > at[partition.name]]
                if mine:
                    yield self._chunk(partition, mine)
                    at[partition.name], sizes[partition.name] = mine[-1].sequence, _fitting(mine)

    def _chunk(self, partition: Partition, page: Sequence[Message], done: int | None = None) -> Chunk:
        """Messages as columns. done: of the partition before them; None: it has no end."""
        sequences = np.array([message.sequence for message in page], np.int64)
        facts: dict[str, Any] = {
            "subject": [message.subject for message in page],
            "sequence": sequences,
            "timestamp": np.array([message.moment for message in page], np.int64),
            "headers": [list(map(list, (message.headers or {}).items())) for message in page],
        }
        columns, bad, kept = self._reader.read([message.data for message in page], facts)
        cursors: Any = sequences
        if done is not None:
            cursors = [[sequence, done + n] for n, sequence in enumerate(sequences.tolist(), 1)]
        if kept is not None:
            sequences = sequences[kept]
            cursors = sequences if done is None else [cursors[i] for i in kept]
        return Chunk(partition=partition.name, columns=columns, cursors=cursors, places=sequences, bad=bad)

    def _first(self) -> list[bytes]:
        """The values of the first messages."""

        async def first(client: Any) -> list[bytes]:
            pull = await Pull.open(client, self.stream, self.subjects, 1)
            return [message.data for message in await pull.page(_SAMPLES)]

        with closing(self.server.connection(patient=False)) as connection:
            return connection.once(first)

    async def _check_there(self, js: Any) -> None:
        info = await js.stream_info(self.stream)
        if info.config.retention not in (None, "limits"):
            raise UsageError(
                f"the stream keeps messages by {info.config.retention}, and reading would take them away",
                fix="Read a stream with retention 'limits', such as a mirror of it",
                path=self.server.address.shown, shard=self.stream,
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"NatsStream('{self.server.address.shown}', {', '.join(map(repr, (self.stream, *self.subjects)))})"


def _check(
    stream: str, subjects: Sequence[str], follow: bool, start: str | int, group: str | None, splits: int
) -> None:
    """Refuse what cannot work."""
    check_count("splits", splits)
    if not isinstance(stream, str) or not stream or re.search(r"[\s.*>/\\]", stream):
        raise UsageError(
            f"stream={stream!r}", fix="Give the name of a stream; subjects= chooses among its messages"
        )
    if not all(isinstance(subject, str) and subject for subject in subjects):
        raise UsageError(f"subjects={list(subjects)!r}", fix="Give a subject such as 'clicks.>', or several")
    for one, other in combinations(subjects, 2):
        if overlap(one.split("."), other.split(".")):
            raise UsageError(f"the subjects '{one}' and '{other}' have messages in common", fix="Give one of them")
    if not (start in ("earliest", "latest") or (type(start) is int and start > 0)):
        raise UsageError(f"start={start!r}", fix='Use "earliest", "latest", or the sequence of a message')
    if start == "latest" and not follow:
        raise UsageError(
            "start='latest', and an epoch that ends with what is there now",
            fix="Use follow=True, or leave start= out",
        )
    if group is not None and not re.fullmatch(r"[A-Za-z0-9_=-]+", group):
        raise UsageError(f"group={group!r}", fix="Use letters, digits, - and _")
    if splits > 1 and follow:
        raise UsageError(f"splits={splits} with follow=True", fix="Give several subjects, each is a partition")
    if splits > 1 and group is not None:
        raise UsageError(
            f"splits={splits} with group={group!r}, which keeps one place for the stream",
            fix="Leave splits= out, or save loader.state_dict() instead of commit()",
        )


def _fitting(page: Sequence[Message]) -> int:
    """How many such messages make a page of a useful size."""
    total = sum(len(message.data) for message in page)
    return int(min(_LARGEST_PAGE, max(1, _PAGE_BYTES * len(page) // max(1, total))))


def _seen(state: Any) -> tuple[int, int, int]:
    """What changes when a stream gets or loses a message."""
    return state.first_seq, state.last_seq, state.num_deleted
