"""What is special to JetStream: subjects, sequences, headers, what is never acknowledged."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio import NatsDataset, StreamLoader, UsageError
from streamio.sources.natswire import overlap
from tests.servers.nats import Nats
from tests.sources.conformance import Given, SourceContract


class TestNats(SourceContract):
    @pytest.fixture
    def given(self, nats_server: Nats) -> Given:
        name = nats_server.stream()
        nats_server.publish(f"{name}.x", _values(range(101)))
        data = NatsDataset(nats_server.url, name, 8, types={"n": "int64"}, splits=5)
        return Given(data.source, "n", list(range(101)))


def _read(data: NatsDataset, **options: Any) -> list[Any]:
    return list(StreamLoader(data, **{"num_workers": 0, **options}))


def _values(numbers: Sequence[int]) -> list[bytes]:
    return [b'{"n": %d}' % number for number in numbers]


@pytest.fixture
def stream(nats_server: Nats) -> str:
    """30 messages in turn on .a, .b and .c.d."""
    name = nats_server.stream()
    for n in range(10):
        for m, subject in enumerate(("a", "b", "c.d")):
            nats_server.publish(f"{name}.{subject}", _values([3 * n + m]))
    return name


def _delete(server: Nats, stream: str, sequences: Sequence[int]) -> None:
    async def work(js: Any) -> None:
        for sequence in sequences:
            await js.delete_msg(stream, sequence)

    server.ask_stream(work)


@pytest.mark.parametrize("splits", [1, 4])
def test_subjects_choose_messages(nats_server: Nats, stream: str, splits: int) -> None:
    def numbers(*subjects: str) -> list[int]:
        chosen = [f"{stream}.{subject}" for subject in subjects]
        data = NatsDataset(nats_server.url, stream, 4, subjects=chosen, types={"n": "int64"}, splits=splits)
        rows = sum(data.source.count(partition, partition.start) for partition in data.source.partitions())
        came = sorted(number for batch in _read(data) for number in batch["n"].tolist())
        assert rows == len(came)
        return came

    assert numbers("a") == list(range(0, 30, 3))
    assert numbers("a", "c.*") == sorted([*range(0, 30, 3), *range(2, 30, 3)])
    assert numbers("*") == sorted([*range(0, 30, 3), *range(1, 30, 3)])
    assert numbers("none") == []


@pytest.mark.parametrize("splits", [1, 4])
def test_messages_that_were_deleted_before_are_no_loss(nats_server: Nats, stream: str, splits: int) -> None:
    _delete(nats_server, stream, [1, 2, 10, 11, 12, 13, 14, 15, 16, 17, 30])
    data = NatsDataset(nats_server.url, stream, 4, types={"n": "int64"}, splits=splits)
    came = sorted(number for batch in _read(data) for number in batch["n"].tolist())
    assert came == [*range(2, 9), *range(17, 29)]


def test_with_follow_each_subject_is_a_partition_with_its_own_place(nats_server: Nats, stream: str) -> None:
    subjects = [f"{stream}.a", f"{stream}.c.>"]
    options: dict[str, Any] = {"follow": True, "subjects": subjects, "idle_timeout": 0.4, "group": "g"}
    first = StreamLoader(
        NatsDataset(nats_server.url, stream, 5, types={"n": "int64"}, **options), num_workers=2, transport="thread"
    )
    came = sorted(number for batch in first for number in batch["n"].tolist())
    assert came == sorted([*range(0, 30, 3), *range(2, 30, 3)])
    first.commit()
    nats_server.publish(f"{stream}.c.x.y", _values([77]))
    again = NatsDataset(nats_server.url, stream, 5, types={"n": "int64"}, **options)
    assert [batch["n"].tolist() for batch in _read(again)] == [[77]]


def test_subject_sequence_time_and_headers_come_along(nats_server: Nats) -> None:
    name = nats_server.stream()
    before = time.time()
    nats_server.publish(f"{name}.x", [b"one"], headers={"kind": "a", "by": "me"})
    nats_server.publish(f"{name}.y", [b"two"])
    (batch,) = _read(NatsDataset(nats_server.url, name, 4, parse="raw", types={"value": "str"}))
    assert batch["value"] == ["one", "two"] and batch["subject"] == [f"{name}.x", f"{name}.y"]
    assert batch["sequence"].tolist() == [1, 2] and batch["__key__"] == [f"{name}:1", f"{name}:2"]
    assert batch["headers"] == [[["kind", "a"], ["by", "me"]], []]
    assert before - 60 < batch["timestamp"][0].item() / 1e6 <= batch["timestamp"][1].item() / 1e6 < time.time() + 60
    assert _read(NatsDataset(nats_server.url, name, 4, parse="raw", start=2))[0]["sequence"].tolist() == [2]


def test_brok_04_a_batch_that_takes_long_to_collect_has_no_message_twice(nats_server: Nats) -> None:
    name = nats_server.stream()

    def publish() -> None:
        for number in range(10):
            nats_server.publish(f"{name}.x", _values([number]))
            time.sleep(0.1)

    writer = threading.Thread(target=publish)
    writer.start()
    data = NatsDataset(nats_server.url, name, 10, types={"n": "int64"}, meta=["sequence"], follow=True)
    iterator = iter(StreamLoader(data, num_workers=0))
    batch = next(iterator)
    writer.join()
    assert batch["n"].tolist() == list(range(10)) and batch["sequence"].tolist() == list(range(1, 11))

    async def consumers(js: Any) -> list[Any]:
        return list(await js.consumers_info(name))

    (consumer,) = nats_server.ask_stream(consumers)
    assert (consumer.num_redelivered, consumer.num_ack_pending) == (0, 0)
    assert consumer.delivered.consumer_seq == 10


def test_what_is_gone_before_follow_came_to_it_is_told(nats_server: Nats, caplog: pytest.LogCaptureFixture) -> None:
    name = nats_server.stream()
    nats_server.publish(f"{name}.x", _values(range(20)))
    first = StreamLoader(NatsDataset(nats_server.url, name, 5, types={"n": "int64"}, follow=True), num_workers=0)
    next(iter(first))

    async def purge(js: Any) -> None:
        await js.purge_stream(name, seq=11)

    nats_server.ask_stream(purge)
    data = NatsDataset(nats_server.url, name, 5, types={"n": "int64"}, follow=True, idle_timeout=0.3)
    data.load_state_dict(first.state_dict())
    with caplog.at_level(logging.WARNING):
        assert [n for batch in _read(data) for n in batch["n"].tolist()] == list(range(10, 20))
    assert "the run stands at sequence 5, and the stream begins at 11" in caplog.text


def test_a_stream_that_is_used_up_by_reading_is_refused(nats_server: Nats) -> None:
    name = nats_server.stream(retention="workqueue")
    with pytest.raises(UsageError, match="reading would take them away"):
        NatsDataset(nats_server.url, name, 4, types={"n": "int64"})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"stream": "a.b"}, "stream='a.b'"),
        ({"subjects": [""]}, "subjects="),
        ({"subjects": ["a.*", "a.b"]}, r"'a.\*' and 'a.b' have messages in common"),
        ({"group": "a b"}, "group='a b'"),
        ({"start": 0}, "start=0"),
    ],
)
def test_wrong_names_are_refused(nats_server: Nats, stream: str, options: dict[str, Any], match: str) -> None:
    given = {"stream": stream, "batch_size": 4, "types": {"n": "int64"}, **options}
    with pytest.raises(UsageError, match=match):
        NatsDataset(nats_server.url, **given)


WORDS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3)
FILTERS = st.one_of(WORDS, WORDS.map(lambda words: [*words[:2], ">"]))


@given(FILTERS, FILTERS)
def test_filters_overlap_where_one_subject_matches_both(one: list[str], other: list[str]) -> None:
    subjects = [[]]
    for _ in range(4):
        subjects += [[*subject, word] for subject in subjects for word in "ab" if [*subject, word] not in subjects]
    both = [subject for subject in subjects if _matches(one, subject) and _matches(other, subject)]
    assert overlap(one, other) == bool(both)


def _matches(pattern: list[str], subject: list[str]) -> bool:
    for place, word in enumerate(pattern):
        if word == ">":
            return len(subject) > place
        if place >= len(subject) or word not in ("*", subject[place]):
            return False
    return len(pattern) == len(subject)
