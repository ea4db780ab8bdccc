"""KafkaDataset: messages of topics as batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Unpack

from streamio.batching.options import check_choice
from streamio.errors import UsageError
from streamio.sources.base import Chunk, Cursor, Partition, Source, Work
from streamio.sources.dataset import SourceDataset, SourceOptions
from streamio.sources.fieldtypes import FieldType
from streamio.sources.kafka.client import Cluster
from streamio.sources.kafka.offsets import Clerk, End, Part, Start, Topics, check_place
from streamio.sources.kafka.reading import FACTS, OnLost, PartitionReader, Reading
from streamio.sources.messages import MessageReader, Parse, message_reader
from streamio.sources.retries import RETRY_FOR, check_retry_for

_NO_GROUP = "streamio"
"""The name that a consumer must have. Nothing is written under it."""
_SAMPLES = 100
_FIRST_PATIENCE = 10.0
"""Seconds for a broker to answer when the data set is built."""


class KafkaDataset(SourceDataset):
    """Streams messages of Kafka topics as ready-made batches.

        ds = KafkaDataset("host:9092", "clicks", 256, types={"url": "str", "ms": "int64"}, group="training")
        loader = StreamLoader(ds, num_workers=4)
        for batch in loader:
            step(batch)
            loader.commit()

    bootstrap: brokers to begin with, `host:port`, several with commas or as a list.
    topic:   the name of a topic, or a regular expression that begins with `^`, or several of these.
    parse:   how the value of a message is read. "json": an object, whose keys are fields; "raw": one field,
             `value`; a function of the bytes (None where there is no value), which returns a dict of fields, or
             None for a message that is no sample.
    types:   of the fields, such as {"url": "str", "ms": "int64"}. None: taken from the first messages; with "raw"
             the field is bytes.
    meta:    what else of a message becomes a field: "key", "headers", "timestamp", "offset", "partition", "topic";
             {fact: field} renames it.
    follow:  False: an epoch is what is in the topic when it begins. True: messages are read as they come, without
             end, from where the last epoch stopped; so are partitions and topics that are made later.
    start:   where a run without a state begins: "earliest", "latest" (with follow=True), {partition: offset} for
             all partitions (`{"topic/0": …}` where there are several topics), or a datetime: with the first message
             as late as that. One without a zone is UTC.
    end:     where an epoch ends, before what is there: {partition: offset}, or a datetime.
    group:   a consumer group that keeps offsets in the cluster, and has no members. A run without a state begins
             there, every epoch of one without `follow` too; `loader.commit()` writes them.
    on_lost: what becomes of messages that the broker removed before they were read: "raise", or "skip", which logs
             how many.
    discover: seconds from one look for new partitions to the next, with follow=True.
    retry_for: seconds for which a broker that does not answer is tried again. With follow=True it is tried for ever
             once messages are read.
    config:  further settings of librdkafka, such as {"security.protocol": "SASL_SSL", "sasl.username": …}.
    For the rest see `SourceDataset`.

    A message without a value has no field: see `missing=`. Raises UsageError for what cannot work and a topic that
    is not there, StorageError for a broker that does not answer or refuses access, at construction too.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], topic: str | Sequence[str], batch_size: int, *, parse: Parse = "json",
        types: Mapping[str, Any] | None = None, meta: Sequence[str] | Mapping[str, str] = (), follow: bool = False,
        start: Start = "earliest", end: End = None, group: str | None = None, on_lost: OnLost = "raise",
        discover: float = 30.0, retry_for: float = RETRY_FOR, config: Mapping[str, Any] | None = None,
        **options: Unpack[SourceOptions],
    ) -> None:  # fmt: skip
        check_retry_for(retry_for)
        source = KafkaTopics(
            Cluster(bootstrap, config, max(1.0, retry_for)), topic, parse=parse, types=types, meta=meta,
            follow=follow, start=start, end=end, group=group, on_lost=on_lost, discover=discover,
        )  # fmt: skip
        super().__init__(source, batch_size, **options)


class KafkaTopics(Source):
    """Partitions of topics; see `KafkaDataset`. A cursor is the offset of the next message."""

    def __init__(
        self, cluster: Cluster, topic: str | Sequence[str], *, parse: Parse, types: Mapping[str, Any] | None,
        meta: Sequence[str] | Mapping[str, str], follow: bool, start: Start, end: End, group: str | None,
        on_lost: OnLost, discover: float,
    ) -> None:  # fmt: skip
        _check(follow, start, end, group, on_lost, discover)
        self.endless, self._start, self._end, self._group = follow, start, end, group
        self._cluster, self._topics = cluster, Topics((topic,) if isinstance(topic, str) else tuple(topic or ()))
        self._clerk = Clerk(cluster, self._topics)
        first = Clerk(cluster.hurried(_FIRST_PATIENCE), self._topics)
        parts = first.parts()
        reader = message_reader(parse, types, meta, FACTS, lambda: _first(first, parts), str(self._topics))
        self._how = Reading(reader=reader, follow=follow, on_lost=on_lost, discover=discover)

    @property
    def fields(self) -> Mapping[str, FieldType]:
        return self._how.reader.fields

    @property
    def fingerprint(self) -> str:
        return f"kafka {self._topics}{' (follow)' if self.endless else ''}"

    def partitions(self) -> Sequence[Partition]:
        parts = self._clerk.parts()
        starts = self._clerk.starts(parts, self._start, self._group)
        if self.endless:
            return [Partition(part.name, start=starts[part]) for part in parts]
        ends = self._clerk.ends(parts, self._end)
        # Also those that have ended: who reads which does not depend on what was committed.
        return [Partition(part.name, {"end": ends[part]}, start=starts[part]) for part in parts]

    def found_again(self, partitions: Sequence[Partition], cursors: Mapping[str, Cursor]) -> Sequence[Partition]:
        """Partitions that came since the state was saved are new, and read from their beginning."""
        new = [Part.named(one.name) for one in partitions if one.name not in cursors]
        if not (self.endless and new):
            return partitions
        starts = {part.name: offset for part, offset in self._clerk.earliest(new).items()}
        return [Partition(one.name, start=starts.get(one.name)) for one in partitions]

    def count(self, partition: Partition, cursor: Cursor) -> int:
        """Offsets that are left: as many as messages, or more where some were compacted away."""
        return max(0, int(partition.facts["end"]) - int(cursor))

    def read(self, work: Work) -> Iterator[Chunk | None]:
        with closing(PartitionReader(self._clerk, self._how, work, self._group or _NO_GROUP)) as reader:
            yield from reader.chunks()

    def commit(self, cursors: Mapping[str, Cursor]) -> None:
        if self._group is None:
            raise UsageError("commit() without a group", fix="Give group=, the name that offsets are kept under")
        self._clerk.commit({Part.named(name): cursor for name, cursor in cursors.items()}, self._group)

    def __repr__(self) -> str:
        return f"KafkaTopics('{self._cluster.address.shown}', {', '.join(map(repr, self._topics.asked))})"


def _first(clerk: Clerk, parts: Sequence[Part]) -> list[Any]:
    """The values of some messages, for their types."""
    starts, ends = clerk.earliest(parts), clerk.latest(parts)
    work = Work(partitions=[(Partition(part.name, {"end": ends[part]}), starts[part]) for part in parts])
    raw = MessageReader(parse="raw", types={"value": FieldType.parse("bytes")})
    how = Reading(reader=raw, follow=False, on_lost="skip", discover=1.0)
    found: list[Any] = []
    with closing(PartitionReader(clerk, how, work, _NO_GROUP)) as reader:
        for chunk in reader.chunks():
            found += [] if chunk is None or not len(chunk) else chunk.columns["value"].values
            if len(found) >= _SAMPLES:
                break
    return [None if value is None else bytes(value) for value in found[:_SAMPLES]]


def _check(follow: bool, start: Start, end: End, group: str | None, on_lost: OnLost, discover: float) -> None:
    """Refuse what cannot work."""
    check_place("start", start, ("earliest", "latest"))
    if end is not None:
        check_place("end", end, ())
    check_choice("on_lost", on_lost, ("raise", "skip"))
    if follow and end is not None:
        raise UsageError("end= with follow=True, which has no end", fix="Leave one of them out")
    if start == "latest" and not follow:
        raise UsageError(
            "start='latest' of an epoch that ends with what is there now", fix="Use follow=True, or leave it out"
        )
    if group is not None and (not isinstance(group, str) or not group):
        raise UsageError(f"group={group!r}", fix="Give the name of a group, or None")
    if isinstance(discover, bool) or not isinstance(discover, int | float) or discover <= 0:
        raise UsageError(f"discover={discover!r}", fix="Give seconds, more than 0")
