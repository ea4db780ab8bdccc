"""Reads partitions of topics from their offsets with one consumer, as chunks of columns."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from types import NoneType
from typing import Any, Literal, TypeAlias

import numpy as np

from streamio.errors import StorageError
from streamio.extras import extra
from streamio.sources.base import Chunk, Work
from streamio.sources.kafka.client import Client
from streamio.sources.kafka.offsets import Clerk, Part
from streamio.sources.messages import MessageReader

_log = logging.getLogger("streamio")

OnLost: TypeAlias = Literal["raise", "skip"]

FACTS = {
    "key": "bytes", "headers": "json", "timestamp": "timestamp[ms]", "offset": "int64", "partition": "int64",
    "topic": "str",
}  # fmt: skip
"""What comes along with the value of a message, and its usual type."""
_MOST = 500
"""Messages that are taken from the client at a time."""
_WAIT = 0.1
"""Seconds to wait for them."""
_LOOK = 1.0
"""Seconds that a look for new partitions may hold up those that are there."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How partitions are read.

    follow:   whether they have no end.
    on_lost:  what to do where messages are gone that were not read yet.
    discover: seconds from one look for new partitions to the next.
    """

    reader: MessageReader
    follow: bool
    on_lost: OnLost
    discover: float


@dataclass(slots=True)
class _Place:
    """Where a partition is being read. end: before which offset it ends; None: never."""

    part: Part
    position: int
    end: int | None

    @property
    def left(self) -> int:
        """Messages up to its end, or fewer."""
        return _MOST if self.end is None else max(0, self.end - self.position)


class PartitionReader:
    """Reads what one worker is to read. To be closed by who made it."""

    def __init__(self, clerk: Clerk, how: Reading, work: Work, group: str) -> None:
        self._clerk, self._how, self._work = clerk, how, work
        self._scout = Clerk(clerk.cluster.hurried(_LOOK), clerk.topics)
        self._places: dict[Part, _Place] = {}
        for partition, cursor in work.partitions:
            part, end = Part.named(partition.name), partition.facts.get("end")
            self._places[part] = _Place(part, partition.start if cursor is None else cursor, end)
        self._known = {*work.cursors, *(part.name for part in self._places)}
        kafka = extra("confluent_kafka", "kafka")
        self._kafka, self._looked, self._silent_since = kafka, time.monotonic(), 0.0
        own = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "error"}
        self._client = Client(
            clerk.cluster, lambda settings: kafka.Consumer({**settings, **own, "enable.partition.eof": True})
        )

    def close(self) -> None:
        self._client.close()

    def chunks(self) -> Iterator[Chunk | None]:
        """What comes; None where nothing is there now. Ends where all partitions have ended."""
        for place in self._places.values():
            if place.left == 0:
                yield Chunk(partition=place.part.name, ended=True)
        self._assign()
        while self._how.follow or self._open:
            messages = self._call("consume", min(_MOST, sum(place.left for place in self._open)) or 1, _WAIT)
            if self._how.follow and time.monotonic() - self._looked > self._how.discover:
                self._look_for_more()
            if not messages:
                self._client.check()
                self._check_silence()
                yield None
                continue
            self._silent_since = 0.0
            self._client.answered()
            yield from self._chunks_of(messages)

    def _assign(self) -> None:
        self._call("assign", [self._at(place) for place in self._open])

    @property
    def _open(self) -> list[_Place]:
        """The places that have not ended."""
        return [place for place in self._places.values() if place.left]

    def _chunks_of(self, messages: Sequence[Any]) -> Iterator[Chunk]:
        kind = self._kafka.Message
        errors = list(map(kind.error, messages))
        good, events = messages, []
        if set(map(type, errors)) != {NoneType}:
            good = [message for message, error in zip(messages, errors, strict=True) if error is None]
            events = [message for message, error in zip(messages, errors, strict=True) if error is not None]
        runs: dict[Part, list[Any]] = {}
        for topic, of_topic in groupby(good, kind.topic):
            for number, run in groupby(of_topic, kind.partition):
                runs.setdefault(Part(topic, number), []).extend(run)
        for part, of_part in runs.items():
            place = self._places[part]
            if place.left:
                yield self._chunk(place, of_part)
        for event in events:
            place = self._places[Part(event.topic(), event.partition())]
            if place.left and (chunk := self._of_event(place, event)) is not None:
                yield chunk

    def _chunk(self, place: _Place, messages: Sequence[Any]) -> Chunk:
        """Messages of one partition. Offsets may have gaps, where others were compacted away or are no messages."""
        kind = self._kafka.Message
        offsets = np.fromiter(map(kind.offset, messages), np.int64, len(messages))
        begin = int(np.searchsorted(offsets, place.position))
        stop = len(offsets) if place.end is None else int(np.searchsorted(offsets, place.end))
        messages, kept_offsets = messages[begin:stop], offsets[begin:stop]
        last = int(offsets[-1]) + 1
        behind = max(place.position, last if place.end is None else min(last, place.end))
        facts = {name: self._fact(name, messages, kept_offsets) for name in self._how.reader.facts}
        columns, bad, kept = self._how.reader.read(list(map(kind.value, messages)), facts)
        places = kept_offsets if kept is None else kept_offsets[kept]
        return Chunk(
            partition=place.part.name, columns=columns, cursors=places + 1, places=places, bad=bad,
            **self._moved(place, behind),
        )  # fmt: skip

    def _fact(self, name: str, messages: Sequence[Any], offsets: Any) -> Any:
        kind = self._kafka.Message
        if name == "offset":
            return offsets
        if name == "timestamp":
            times = np.fromiter((message.timestamp()[1] for message in messages), np.int64, len(messages))
            if (times >= 0).all():
                return times * 1000
            return [None if time < 0 else _EPOCH + timedelta(milliseconds=time) for time in times.tolist()]
        if name == "partition":
            return np.fromiter(map(kind.partition, messages), np.int64, len(messages))
        return list(map(getattr(kind, name), messages))

    def _of_event(self, place: _Place, event: Any) -> Chunk | None:
        error = event.error()
        name = error.name()
        if name == "_PARTITION_EOF":
            # Behind the last message there may be offsets of what is none, such as the end of a transaction.
            behind = event.offset() if place.end is None else min(event.offset(), place.end)
            if behind <= place.position:
                return None
            return Chunk(partition=place.part.name, **self._moved(place, behind))
        if name in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            return self._lost(place)
        raise self._client.error(error, shard=place.part.name)

    def _lost(self, place: _Place) -> Chunk:
        """The broker has not got the offset that is next. Goes on behind what is gone, if that is asked for."""
        earliest = self._clerk.earliest([place.part])[place.part]
        latest = self._clerk.latest([place.part])[place.part]
        at, where = place.position, {"path": self._client.cluster.shown, "shard": place.part.name}
        if at > latest:
            raise StorageError(
                f"offset {at:,} is next, and the partition ends at {latest:,}: the topic was made anew, or the "
                "broker lost what it had", fix="Begin anew: without the state, with another group=", **where,
            )  # fmt: skip
        if at < earliest:
            gone = min(earliest, earliest if place.end is None else place.end) - at
            if self._how.on_lost == "raise":
                raise StorageError(
                    f"{gone:,} messages from offset {at:,} on were removed before they were read: the first one "
                    f"that is there is {earliest:,}",
                    fix="Let the topic keep messages for longer, or go on without them: on_lost='skip'", **where,
                )  # fmt: skip
            _log.warning("%s: %s messages from offset %s on were removed unread", place.part.name, f"{gone:,}", at)
        moved = self._moved(place, earliest if place.end is None else min(earliest, place.end))
        if place.left:
            self._assign()
        return Chunk(partition=place.part.name, **moved)

    def _moved(self, place: _Place, behind: int) -> dict[str, Any]:
        """What a chunk says of the way to `behind`. A partition that has ended is fetched no more."""
        passed, place.position = behind - place.position, behind
        ended = place.left == 0
        if ended:
            self._call("pause", [self._kafka.TopicPartition(*place.part)])
        return {"behind": behind, "passed": passed, "ended": ended}

    def _look_for_more(self) -> None:
        """Take up partitions that are new and this worker's: from their beginning."""
        self._looked = time.monotonic()
        try:
            new = [part for part in self._scout.parts() if part.name not in self._known]
            starts = self._scout.earliest([part for part in new if self._work.share.owns(part.name)])
        except StorageError as error:
            _log.debug("looking for new partitions: %s", error)  # it is tried again
            return
        self._known |= {part.name for part in new}
        for part, start in starts.items():
            self._places[part] = _Place(part, start, None)
        if starts:
            self._call("incremental_assign", [self._at(self._places[part]) for part in starts])

    def _check_silence(self) -> None:
        """Raise LostConnection where there must be something and nothing has come for long."""
        if self._how.follow:
            return
        now, patience = time.monotonic(), self._client.cluster.patience
        self._silent_since = self._silent_since or now
        if now - self._silent_since > patience:
            place = self._open[0]
            raise self._client.lost(
                f"nothing came for {patience:g} s, and offset {place.position:,} of {place.end:,} is next",
                shard=place.part.name,
            )

    def _at(self, place: _Place) -> Any:
        return self._kafka.TopicPartition(place.part.topic, place.part.number, place.position)

    def _call(self, name: str, *arguments: Any) -> Any:
        with self._client.ours():
            return getattr(self._client.handle, name)(*arguments)
