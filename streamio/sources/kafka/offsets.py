"""What a cluster says of its topics: partitions, where they begin and end, and where a group is in them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from streamio.errors import StorageError, UsageError
from streamio.extras import extra
from streamio.sources.kafka.client import Client, Cluster

Start: TypeAlias = Literal["earliest", "latest"] | Mapping[int | str, int] | datetime
End: TypeAlias = Mapping[int | str, int] | datetime | None
Offsets: TypeAlias = "dict[Part, int]"

_T = TypeVar("_T")


class Part(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.number}"

    @classmethod
    def named(cls, name: str) -> Part:
        topic, _, number = name.rpartition("/")
        return cls(topic, int(number))


@dataclass(frozen=True, slots=True)
class Topics:
    """Which topics are read: names, or regular expressions that begin with `^`, of which topics may come later."""

    asked: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.asked or len(set(self.asked)) < len(self.asked) or not all(map(_is_text, self.asked)):
            raise UsageError(f"topic={list(self.asked)!r}", fix="Give the name of a topic, or several that differ")
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise UsageError(f"topic={pattern!r} is no regular expression: {error}") from error

    @property
    def patterns(self) -> list[str]:
        return [text for text in self.asked if text.startswith("^")]

    def takes(self, topic: str) -> bool:
        """Topics of the cluster itself, which begin with `__`, are read only by their name."""
        return topic in self.asked or (
            not topic.startswith("__") and any(re.match(pattern, topic) for pattern in self.patterns)
        )

    def __str__(self) -> str:
        return ", ".join(self.asked)


def _is_text(text: Any) -> bool:
    return isinstance(text, str) and bool(text)


class Clerk:
    """Asks a cluster, and writes down the offsets of a group. Opens its connection when it is first needed."""

    def __init__(self, cluster: Cluster, topics: Topics) -> None:
        self.cluster, self.topics = cluster, topics
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        if self._client is None or not self._client.is_mine:
            self._client = Client(self.cluster, extra("confluent_kafka.admin", "kafka").AdminClient)
        return self._client

    def parts(self) -> list[Part]:
        """All partitions that are read, by topic and number. Raises UsageError for a topic that is not there."""
        until = time.monotonic() + self.cluster.patience
        while True:
            # All of them: to ask for one that is not there may make it.
            topics = self._asked(lambda seconds: self.client.handle.list_topics(timeout=seconds)).topics
            for name in self.topics.asked:
                if not name.startswith("^") and name not in topics:
                    found = "there is no such topic, or none that this account may see"
                    fix = "Give the name of a topic"
                    raise UsageError(found, fix=fix, path=self.cluster.shown, topic=name)
            taken = [topic for name, topic in topics.items() if self.topics.takes(name)]
            errors = [(topic.topic, topic.error) for topic in taken if topic.error is not None]
            if not errors:
                return sorted(Part(topic.topic, number) for topic in taken for number in topic.partitions)
            if errors[0][1].name() != "LEADER_NOT_AVAILABLE" or time.monotonic() > until:
                raise self.client.error(errors[0][1], topic=errors[0][0])
            time.sleep(0.1)  # it was made just now

    def starts(self, parts: Sequence[Part], start: Start, group: str | None) -> Offsets:
        """Where to begin: where the group is, and where it is not yet, where `start` says."""
        known = {} if group is None else self._of_group(parts, group)
        rest = [part for part in parts if part not in known]
        return {**known, **self._offsets(rest, start)}

    def ends(self, parts: Sequence[Part], end: End) -> Offsets:
        """Where they end now, or earlier where `end` says so. Raises UsageError for an end that is to come."""
        latest = self.latest(parts)
        if end is None:
            return latest
        ends = self._offsets(parts, end)
        for part, offset in ends.items():
            if isinstance(end, Mapping) and offset > latest[part]:
                raise UsageError(
                    f"end= names offset {offset:,}, and there are none behind {latest[part]:,}",
                    fix="Leave it out, or read with follow=True", path=self.cluster.shown, shard=part.name,
                )  # fmt: skip
        return ends

    def earliest(self, parts: Sequence[Part]) -> Offsets:
        return self._listed(parts, extra("confluent_kafka.admin", "kafka").OffsetSpec.earliest())

    def latest(self, parts: Sequence[Part]) -> Offsets:
        return self._listed(parts, extra("confluent_kafka.admin", "kafka").OffsetSpec.latest())

    def commit(self, offsets: Offsets, group: str) -> None:
        """Write them down as those of the group, which may have no members."""
        kafka = extra("confluent_kafka", "kafka")
        places = [kafka.TopicPartition(part.topic, part.number, offset) for part, offset in offsets.items()]
        if not places:
            return
        asked = [kafka.ConsumerGroupTopicPartitions(group, places)]
        made = self._answer(lambda seconds: self.client.handle.alter_consumer_group_offsets(asked))
        for place in made[0].topic_partitions:
            if place.error is not None:
                raise StorageError(
                    f"the offsets of group '{group}' were not taken: {place.error.str()}",
                    fix="Give a group that no consumer has joined", path=self.cluster.shown,
                )  # fmt: skip

    def _of_group(self, parts: Sequence[Part], group: str) -> Offsets:
        kafka = extra("confluent_kafka", "kafka")
        if not parts:
            return {}
        asked = [kafka.ConsumerGroupTopicPartitions(group, [kafka.TopicPartition(*part) for part in parts])]
        found = self._answer(lambda seconds: self.client.handle.list_consumer_group_offsets(asked))
        return {Part(at.topic, at.partition): at.offset for at in found[0].topic_partitions if at.offset >= 0}

    def _offsets(self, parts: Sequence[Part], place: Start | datetime) -> Offsets:
        if not parts:
            return {}
        if isinstance(place, Mapping):
            return {part: _offset_of(place, part) for part in parts}
        if isinstance(place, datetime):
            moment = place if place.tzinfo is not None else place.replace(tzinfo=UTC)
            spec = extra("confluent_kafka.admin", "kafka").OffsetSpec.for_timestamp(int(moment.timestamp() * 1000))
            found = self._listed(parts, spec)
            none = [part for part, offset in found.items() if offset < 0]  # nothing is as late as that
            return {**found, **self.latest(none)}
        return self.earliest(parts) if place == "earliest" else self.latest(parts)

    def _listed(self, parts: Sequence[Part], spec: Any) -> Offsets:
        kafka = extra("confluent_kafka", "kafka")
        if not parts:
            return {}
        asked = {kafka.TopicPartition(*part): spec for part in parts}
        return self._asked(
            lambda seconds: {
                Part(at.topic, at.partition): found.result(seconds).offset
                for at, found in self.client.handle.list_offsets(
                    asked, isolation_level=self.cluster.isolation, request_timeout=seconds
                ).items()
            }
        )

    def _answer(self, ask: Callable[[float], Mapping[Any, Any]]) -> list[Any]:
        """The results of all futures that `ask` gives."""
        return self._asked(lambda seconds: [one.result(seconds) for one in ask(seconds).values()])

    def _asked(self, ask: Callable[[float], _T]) -> _T:
        """What `ask` gives, told how many seconds it may take."""
        try:
            with self.client.ours():
                return ask(self.cluster.patience)
        except TimeoutError:
            pass
        raise self.client.lost("no answer")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}


def _offset_of(offsets: Mapping[int | str, int], part: Part) -> int:
    """That which the user gave, by number or by name."""
    offset = offsets.get(part.number, offsets.get(part.name))
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise UsageError(
            f"no offset for {part.name} is given: {offset!r}", fix="Give one for each partition, {0: 1200, 1: …}"
        )
    return offset


def check_place(name: str, place: Any, words: Sequence[str]) -> None:
    """Raise UsageError for what is no place to begin or end at."""
    if not (isinstance(place, Mapping | datetime) or (isinstance(place, str) and place in words)):
        known = ", ".join(map(repr, words)) + (", " if words else "")
        raise UsageError(f"{name}={place!r}", fix=f"Give {known}{{partition: offset}} or a datetime")
