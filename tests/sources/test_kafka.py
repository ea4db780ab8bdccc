"""KafkaDataset over a real broker: each message once, on any topology, and offsets that say what was used."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from torch.utils.data import DataLoader

from streamio import Fill, KafkaDataset, StreamLoader, UsageError
from streamio.errors import DecodeError, SampleError, StorageError
from streamio.sources.base import Share, Work
from tests.conftest import ROOT
from tests.servers.kafka import Kafka, KeptKafka
from tests.servers.process import HOST, PASSWORD, free_port
from tests.sources.conformance import Given, SourceContract

N = 500
TYPES = {"n": "int64"}


def number(n: int) -> dict[str, Any]:
    return {"value": json.dumps({"n": n, "text": f"message {n}"}).encode()}


def filled(kafka: Kafka, count: int = N, partitions: int = 4) -> str:
    """A new topic with the numbers from 0 on."""
    topic = kafka.topic(partitions)
    kafka.send(topic, map(number, range(count)))
    return topic


def numbers(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch["n"].tolist()]


def committed(kafka: Kafka, topic: str, group: str, partitions: int = 4) -> list[int]:
    """What any other tool sees of a group."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 0})
    found = consumer.committed([TopicPartition(topic, p) for p in range(partitions)], timeout=10)
    consumer.close()
    return [max(0, place.offset) for place in found]


class Retaining:
    """The broker that librdkafka has within, over TCP: it knows which topics are not there, and a partition of it
    keeps about 5 MB and removes what is older."""

    def __init__(self) -> None:
        self._producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        (broker,) = self._producer.list_topics(timeout=10).brokers.values()
        self.bootstrap = f"{broker.host}:{broker.port}"

    def send(self, topic: str, values: Iterator[bytes]) -> None:
        for value in values:
            self._producer.produce(topic, value, partition=0)
            assert self._producer.flush(10) == 0


@pytest.fixture
def retaining() -> Retaining:
    return Retaining()


@pytest.fixture
def ended() -> Iterator[Callable[..., StreamLoader]]:
    """Makes loaders that are closed behind the test."""
    loaders: list[StreamLoader] = []

    def make(*arguments: Any, **options: Any) -> StreamLoader:
        loaders.append(StreamLoader(*arguments, **options))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


class TestKafka(SourceContract):
    @pytest.fixture
    def given(self, kafka: Kafka) -> Given:
        return Given(KafkaDataset(kafka.bootstrap, filled(kafka, 200), 10).source, "n", list(range(200)))


def test_with_more_workers_than_partitions_every_message_comes_once(
    kafka: Kafka, ended: Callable[..., StreamLoader]
) -> None:
    loader = ended(KafkaDataset(kafka.bootstrap, filled(kafka), 32), num_workers=6, context="fork")
    for _ in range(2):
        batches = list(loader)
        assert sorted(numbers(batches)) == list(range(N))
        assert all(batch["text"] == [f"message {n}" for n in batch["n"].tolist()] for batch in batches)


def test_a_plain_dataloader_reads_it_too(kafka: Kafka) -> None:
    data = KafkaDataset(kafka.bootstrap, filled(kafka), 32, types=TYPES)
    assert sorted(numbers(DataLoader(data, batch_size=None, num_workers=2))) == list(range(N))


def test_what_comes_along_with_a_message_becomes_fields(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, [
        {"value": b"a", "key": b"k", "partition": 1, "timestamp": 1_700_000_000_123, "headers": [("h", b"1")]},
        {"value": b"b", "key": None, "partition": 1, "timestamp": 1_700_000_000_456},
    ])  # fmt: skip
    data = KafkaDataset(
        kafka.bootstrap, topic, 10, parse="raw", types={"value": "str", "key": "str"},
        meta=("key", "headers", "timestamp", "offset", "partition", "topic"), missing={"key": Fill("none")},
    )  # fmt: skip
    (batch,) = StreamLoader(data, num_workers=0)
    assert batch["value"] == ["a", "b"]
    assert batch["key"] == ["k", "none"]
    assert batch["headers"] == [[("h", b"1")], None]
    assert batch["timestamp"].tolist() == [1_700_000_000_123, 1_700_000_000_456]
    assert batch["offset"].tolist() == [0, 1]
    assert batch["partition"].tolist() == [1, 1]
    assert batch["topic"] == [topic, topic]
    assert batch["__key__"] == [f"{topic}/1:0", f"{topic}/1:1"]


def test_a_message_without_a_value_has_no_field(kafka: Kafka) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [number(0), {"value": None, "key": b"gone"}, number(2)])
    with pytest.raises(SampleError, match=rf"{topic}/0, row 1 .*field n"):
        list(StreamLoader(KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES), num_workers=0))
    data = KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES, missing={"n": Fill(-1)})
    assert numbers(StreamLoader(data, num_workers=0)) == [0, -1, 2]
    data = KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES, missing={"n": "skip"}, on_error="skip")
    assert numbers(StreamLoader(data, num_workers=0)) == [0, 2]


def test_a_function_makes_fields_of_a_message_or_none(kafka: Kafka) -> None:
    data = KafkaDataset(kafka.bootstrap, filled(kafka, 100), 10, parse=halves, types={"half": "int64"})
    assert sorted(n for batch in StreamLoader(data, num_workers=0) for n in batch["half"].tolist()) == list(
        range(50)
    )


def halves(value: bytes) -> dict[str, int] | None:
    n = json.loads(value)["n"]
    return None if n % 2 else {"half": n // 2}


def test_a_message_that_is_no_json_is_named_by_its_offset(kafka: Kafka) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [number(0), {"value": b"{oops"}, number(2)])
    with pytest.raises(DecodeError, match=rf"{topic}/0, row 1"):
        list(StreamLoader(KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES), num_workers=0))
    data = KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES, on_error="skip")
    assert numbers(StreamLoader(data, num_workers=0)) == [0, 2]
    assert data.stats().skipped == 1


def test_an_epoch_is_what_was_there_when_it_began(kafka: Kafka) -> None:
    topic = filled(kafka, 100)
    loader = StreamLoader(KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES), num_workers=0)
    batches = iter(loader)
    came = numbers([next(batches)])
    kafka.send(topic, map(number, range(100, 150)))
    assert sorted(came + numbers(batches)) == list(range(100))
    assert sorted(numbers(loader)) == list(range(150))


def test_a_state_goes_on_with_other_workers_and_with_the_same_end(
    kafka: Kafka, ended: Callable[..., StreamLoader]
) -> None:
    topic = filled(kafka)
    first = ended(KafkaDataset(kafka.bootstrap, topic, 32, types=TYPES), num_workers=3, context="fork")
    batches = iter(first)
    came = numbers(next(batches) for _ in range(5))
    state = json.loads(json.dumps(first.state_dict()))
    kafka.send(topic, map(number, range(N, N + 10)))
    second = StreamLoader(KafkaDataset(kafka.bootstrap, topic, 7, types=TYPES), num_workers=0)
    second.load_state_dict(state)
    assert sorted(came + numbers(second)) == list(range(N))


def test_commit_writes_the_offsets_of_what_the_loop_got(kafka: Kafka, ended: Callable[..., StreamLoader]) -> None:
    topic, group = filled(kafka), kafka.fresh("group")
    data = KafkaDataset(kafka.bootstrap, topic, 16, types=TYPES, meta=("offset", "partition"), group=group)
    loader = ended(data, num_workers=2, context="fork")
    expected = dict.fromkeys(range(4), 0)
    for step, batch in enumerate(loader):
        for partition, offset in zip(batch["partition"].tolist(), batch["offset"].tolist(), strict=True):
            expected[partition] = offset + 1
        if step % 5 == 0:
            loader.commit()
            assert committed(kafka, topic, group) == list(expected.values())
    loader.commit()
    assert committed(kafka, topic, group) == [125] * 4
    assert list(loader) == []
    kafka.send(topic, map(number, range(N, N + 10)))
    again = ended(KafkaDataset(kafka.bootstrap, topic, 16, types=TYPES, group=group), num_workers=0)
    assert sorted(numbers(again)) == list(range(N, N + 10))


def test_a_child_that_forks_after_a_commit_is_not_held_up(kafka: Kafka, ended: Callable[..., StreamLoader]) -> None:
    topic, group = filled(kafka), kafka.fresh("group")
    data = KafkaDataset(kafka.bootstrap, topic, 50, types=TYPES, group=group)
    loader = ended(data, num_workers=0)
    came = numbers([next(iter(loader))])
    loader.commit()
    forked = ended(data, num_workers=2, context="fork")
    assert sorted(came + numbers(forked)) == list(range(N))
    forked.commit()
    since = time.monotonic()
    forked.close()
    assert time.monotonic() - since < 2.5  # else they were killed
    assert committed(kafka, topic, group) == [125] * 4


def _reads(data: KafkaDataset, count: int) -> None:
    assert sorted(numbers(StreamLoader(data, num_workers=0))) == list(range(count))
    gc.collect()  # which would take down what came along in a fork


def test_a_forked_child_opens_connections_of_its_own(kafka: Kafka) -> None:
    data = KafkaDataset(kafka.bootstrap, filled(kafka), 50, types=TYPES)
    _reads(data, N)
    child = get_context("fork").Process(target=_reads, args=(data, N))
    child.start()
    child.join(20)
    exitcode = child.exitcode
    child.kill()
    assert exitcode == 0
    _reads(data, N)


def _takes_three_and_waits(bootstrap: str, topic: str, group: str, out: Path) -> None:
    data = KafkaDataset(bootstrap, topic, 10, types=TYPES, group=group)
    loader = StreamLoader(data, num_workers=1, context="fork")
    came: list[int] = []
    for step, batch in enumerate(loader, 1):
        came += batch["n"].tolist()
        if step == 3:
            loader.commit()
            time.sleep(0.3)  # the worker makes more meanwhile
            out.write_text(json.dumps([came, loader.state_dict()]))
            time.sleep(60)


def test_brok_01_what_was_only_fetched_comes_again_after_a_crash(kafka: Kafka, tmp_path: Path) -> None:
    topic, group, out = filled(kafka, 100, partitions=1), kafka.fresh("group"), tmp_path / "out"
    child = get_context("fork").Process(target=_takes_three_and_waits, args=(kafka.bootstrap, topic, group, out))
    child.start()
    give_up = time.monotonic() + 30
    while not (out.exists() and out.read_text().endswith("]")):
        assert time.monotonic() < give_up and child.is_alive()
        time.sleep(0.02)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    came, state = json.loads(out.read_text())
    assert came == list(range(30))
    by_group = KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES, group=group)
    assert numbers(StreamLoader(by_group, num_workers=0)) == list(range(30, 100))
    by_state = StreamLoader(KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES), num_workers=0)
    by_state.load_state_dict(state)
    assert numbers(by_state) == list(range(30, 100))


def test_an_empty_topic_has_an_epoch_of_no_batches(kafka: Kafka, ended: Callable[..., StreamLoader]) -> None:
    topic = kafka.topic(2)
    loader = ended(KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES), num_workers=3, context="fork")
    assert list(loader) == []
    with pytest.raises(UsageError, match=r"it is empty.*Declare them"):
        KafkaDataset(kafka.bootstrap, topic, 10)


def test_several_topics_and_patterns(kafka: Kafka) -> None:
    first, second = filled(kafka, 20, partitions=2), kafka.topic(1)
    kafka.send(second, map(number, range(20, 30)))
    both = KafkaDataset(kafka.bootstrap, [first, second], 8, types=TYPES)
    assert sorted(numbers(StreamLoader(both, num_workers=0))) == list(range(30))
    pattern = KafkaDataset(kafka.bootstrap, f"^({first}|{second})$", 8, types=TYPES, meta=("topic",))
    batches = list(StreamLoader(pattern, num_workers=0))
    assert sorted(numbers(batches)) == list(range(30))
    assert {topic for batch in batches for topic in batch["topic"]} == {first, second}


def test_begins_and_ends_at_the_offsets_that_are_given(kafka: Kafka) -> None:
    topic = filled(kafka, 40, partitions=2)
    data = KafkaDataset(
        kafka.bootstrap, topic, 100, types=TYPES, meta=("offset", "partition"), start={0: 5, 1: 7},
        end={0: 9, f"{topic}/1": 8},
    )  # fmt: skip
    (batch,) = StreamLoader(data, num_workers=0)
    assert sorted(zip(batch["partition"].tolist(), batch["offset"].tolist(), strict=True)) == [
        (0, 5), (0, 6), (0, 7), (0, 8), (1, 7),
    ]  # fmt: skip
    for places, message in [
        ({"end": {0: 9, 1: 21}}, f"{topic}/1: end= names offset 21, and there are none behind 20"),
        ({"start": {0: 9}}, f"no offset for {topic}/1"),
    ]:
        with pytest.raises(UsageError, match=message):
            list(StreamLoader(KafkaDataset(kafka.bootstrap, topic, 9, types=TYPES, **places), num_workers=0))


def test_a_time_that_is_to_come_is_the_end(retaining: Retaining) -> None:
    retaining.send("t", iter([b"0", b"1"]))
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    common: dict[str, Any] = {"parse": "raw", "meta": ("offset",)}
    to = KafkaDataset(retaining.bootstrap, "t", 9, end=moment, **common)
    assert [batch["offset"].tolist() for batch in StreamLoader(to, num_workers=0)] == [[0, 1]]
    since = KafkaDataset(retaining.bootstrap, "t", 9, start=moment, **common)
    assert list(StreamLoader(since, num_workers=0)) == []


def test_gaps_of_transactions_hold_up_nobody(kafka: Kafka) -> None:
    topic, group = kafka.topic(2), kafka.fresh("group")
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "linger.ms": 0, "log_level": 0}
    )
    producer.init_transactions(20)
    for begin in range(0, 60, 2):  # each ends with a mark that takes an offset of both partitions
        producer.begin_transaction()
        for n in (begin, begin + 1):
            producer.produce(topic, **number(n), partition=n % 2)
        producer.commit_transaction(20)
    ranks, loaders = [], []
    for rank in range(2):
        data = KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES, group=group, rank=rank, world_size=2)
        assert [data.source.count(one, one.start) for one in data.source.partitions()] == [60, 60]
        loader = StreamLoader(data, num_workers=0)
        ranks.append([batch["n"].tolist() for batch in loader])
        loaders.append(loader)
    for loader in loaders:
        loader.commit()
    assert sorted(n for batches in ranks for batch in batches for n in batch) == list(range(60))
    assert [len(batches) for batches in ranks] == [6, 6]
    assert all(4 <= len(batch) <= 6 for batches in ranks for batch in batches)
    assert committed(kafka, topic, group, 2) == [60, 60]


def test_ranks_make_as_many_batches_and_their_states_load_anywhere(kafka: Kafka) -> None:
    topic = filled(kafka, 500, partitions=5)

    def run(world: int, states: Any, steps: int) -> tuple[list[int], list[Any]]:
        came, after = [], []
        for rank in range(world):
            data = KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES, rank=rank, world_size=world)
            loader = StreamLoader(data, num_workers=0)
            if states:
                loader.load_state_dict(states)
            batches = iter(loader)
            came += numbers(next(batches) for _ in range(steps))
            after.append(json.loads(json.dumps(loader.state_dict())))
        return came, after

    first, states = run(2, None, 4)
    second, states = run(2, states, 3)
    third, states = run(3, states, 2)
    rest = StreamLoader(KafkaDataset(kafka.bootstrap, topic, 10, types=TYPES), num_workers=0)
    rest.load_state_dict(states)
    assert sorted(first + second + third + numbers(rest)) == list(range(500))
    lengths = [
        len(list(StreamLoader(KafkaDataset(kafka.bootstrap, topic, 10, rank=rank, world_size=2), num_workers=0)))
        for rank in range(2)
    ]
    assert lengths == [30, 30]


def test_follows_what_comes_and_loses_nothing_between_two_runs(
    kafka: Kafka, ended: Callable[..., StreamLoader]
) -> None:
    topic = filled(kafka, 100)

    def follow() -> StreamLoader:
        data = KafkaDataset(
            kafka.bootstrap, topic, 10, types=TYPES, follow=True, start="latest", max_wait=0.1, idle_timeout=0.8
        )
        return ended(data, num_workers=2, context="fork")

    first = follow()
    batches = iter(first)
    sender = threading.Timer(
        0.3, lambda: kafka.send(topic, [number(n) | {"partition": 0} for n in range(100, 120)])
    )
    sender.start()
    came = numbers(batches)
    sender.join()
    assert sorted(came) == list(range(100, 120))
    state = json.loads(json.dumps(first.state_dict()))
    kafka.send(topic, map(number, range(120, 150)))  # in partitions of which no message came yet, too
    second = follow()
    second.load_state_dict(state)
    assert sorted(numbers(second)) == list(range(120, 150))


def test_a_topic_that_is_made_while_it_runs_is_found_and_read_from_its_beginning(
    kafka: Kafka, ended: Callable[..., StreamLoader]
) -> None:
    first = kafka.topic(2)
    topics = [first, f"^{first.rpartition('_')[0]}_"]
    data = KafkaDataset(
        kafka.bootstrap, topics, 5, types=TYPES, meta=("topic",), follow=True, start="latest", discover=0.1,
        max_wait=0.1, idle_timeout=1.2,
    )  # fmt: skip
    loader = ended(data, num_workers=2, context="fork")
    batches = iter(loader)
    made: list[str] = []

    def grow() -> None:
        kafka.send(first, map(number, range(10)))
        made.append(kafka.topic(3))
        kafka.send(made[0], map(number, range(10, 40)))

    sender = threading.Timer(0.3, grow)
    sender.start()
    found = [(topic, n) for batch in batches for topic, n in zip(batch["topic"], batch["n"].tolist(), strict=True)]
    sender.join()
    assert sorted(n for _, n in found) == list(range(40))
    assert {topic for topic, n in found if n >= 10} == set(made)
    cursors: Mapping[str, int] = loader.state_dict()["cursors"]
    assert [cursors[f"{made[0]}/{p}"] for p in range(3)] == [10, 10, 10]
    made.append(kafka.topic(2))  # between two runs, of which the second would else begin at the end
    kafka.send(made[1], map(number, range(40, 60)))
    again = ended(data.with_(idle_timeout=0.5), num_workers=0)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert sorted(numbers(again)) == list(range(40, 60))


def test_each_new_partition_is_read_by_one_worker(kafka: Kafka) -> None:
    first = kafka.topic(2)
    topics = [first, f"^{first.rpartition('_')[0]}_{kafka.topic(5).rpartition('_')[2]}$"]
    source = KafkaDataset(
        kafka.bootstrap, topics[:1], 5, types=TYPES, follow=True, discover=0.05, start="latest"
    ).source
    known = source.partitions()
    source = KafkaDataset(kafka.bootstrap, topics, 5, types=TYPES, follow=True, discover=0.05).source
    (new,) = {part.name.partition("/")[0] for part in source.partitions()} - {first}
    kafka.send(new, map(number, range(30)))
    readers = [
        source.read(
            Work(
                partitions=[(part, None) for part in known[number::3]], share=Share(number, 3),
                cursors={part.name: part.start for part in known},
            )
        )
        for number in range(3)
    ]  # fmt: skip
    came: list[tuple[int, str]] = []
    give_up = time.monotonic() + 30
    turns = 2  # further ones, in which nothing may come
    while turns:
        assert time.monotonic() < give_up
        turns -= len(came) >= 30
        for reader, chunks in enumerate(readers):
            chunk = next(chunks)
            came += [] if chunk is None else [(reader, chunk.partition)] * len(chunk)
    for chunks in readers:
        chunks.close()  # type: ignore[attr-defined]
    assert len(came) == 30
    names = [f"{new}/{number}" for number in range(5)]
    assert set(came) == {(number, name) for number in range(3) for name in names if Share(number, 3).owns(name)}


def test_messages_that_were_removed_are_an_error_that_says_how_many(
    retaining: Retaining, caplog: pytest.LogCaptureFixture
) -> None:
    def data(**options: Any) -> KafkaDataset:
        return KafkaDataset(
            retaining.bootstrap, "t", 5, parse="raw", meta=("offset",), fields=("offset",), **options
        )

    retaining.send("t", (b"x" * 100_000 for _ in range(30)))
    loader = StreamLoader(data(), num_workers=0)
    came = next(iter(loader))[0].tolist()
    state = loader.state_dict()
    retaining.send("t", (b"x" * 100_000 for _ in range(50)))
    earliest = data().source.partitions()[0].start
    assert came == [0, 1, 2, 3, 4] and 5 < earliest < 30
    loader = StreamLoader(data(), num_workers=0)
    loader.load_state_dict(state)
    with pytest.raises(StorageError, match=rf"t/0: {earliest - 5} messages from offset 5 on.*on_lost='skip'"):
        list(loader)
    loader = StreamLoader(data(on_lost="skip"), num_workers=0)
    loader.load_state_dict(state)
    with caplog.at_level(logging.WARNING):
        assert [n for (batch,) in loader for n in batch.tolist()] == list(range(earliest, 30))
    assert [record.message for record in caplog.records] == [
        f"t/0: {earliest - 5} messages from offset 5 on were removed unread"
    ]


def test_a_place_behind_the_end_of_a_topic_is_an_error(retaining: Retaining) -> None:
    retaining.send("t", iter([b"a"]))
    data = KafkaDataset(retaining.bootstrap, "t", 5, parse="raw", follow=True, start=dict.fromkeys(range(4), 7))
    with pytest.raises(StorageError, match=r"t/\d: offset 7 is next, and the partition ends at \d"):
        list(StreamLoader(data, num_workers=0))


def test_a_topic_that_is_not_there_is_refused(retaining: Retaining) -> None:
    with pytest.raises(UsageError, match="no such topic"):
        KafkaDataset(retaining.bootstrap, "nowhere", 5, types=TYPES)
    retaining.send("t", iter([b"a"]))
    with pytest.raises(UsageError, match=r"no such topic.*|topic nowhere"):
        KafkaDataset(retaining.bootstrap, ["t", "nowhere"], 5, types=TYPES)


SECRET = {"sasl.username": "me", "sasl.password": PASSWORD, "sasl.mechanisms": "PLAIN"}


def test_a_broker_that_is_not_there_is_an_error_in_time_and_no_password_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    address, since = f"{HOST}:{free_port()}", time.monotonic()
    config = {"security.protocol": "SASL_PLAINTEXT", **SECRET}
    with caplog.at_level(logging.DEBUG), pytest.raises(StorageError, match=rf"{address}.*refused.*") as raised:
        KafkaDataset(address, "t", 5, types=TYPES, retry_for=1, config=config)
    assert time.monotonic() - since < 5
    assert PASSWORD not in f"{raised.value!r} {raised.value} {caplog.text}"


def test_an_account_that_is_refused_is_an_error_without_the_password(kafka: Kafka) -> None:
    config = {"security.protocol": "SASL_PLAINTEXT", **SECRET}  # the broker has no accounts
    with pytest.raises(StorageError) as raised:
        KafkaDataset(kafka.bootstrap, "t", 5, types=TYPES, retry_for=1, config=config)
    assert PASSWORD not in f"{raised.value!r} {raised.value}"


def test_a_password_is_in_nothing_that_is_shown_or_kept(kafka: Kafka) -> None:
    topic = filled(kafka, 20)
    data = KafkaDataset(kafka.bootstrap, topic, 5, types=TYPES, config=SECRET)  # not asked for without SASL
    loader = StreamLoader(data, num_workers=0)
    next(iter(loader))
    told = f"{data} {data.source} {vars(data.source)} {loader.state_dict()} {data.source.fingerprint}"
    assert PASSWORD not in told
    copy = pickle.loads(pickle.dumps(data))
    assert sorted(numbers(StreamLoader(copy, num_workers=0))) == list(range(20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": {"group.id": "mine"}}, r"config sets 'group.id'.*group="),
        ({"config": {"no.such.setting": 1}}, "No such configuration property"),
        ({"start": "now"}, r"start='now'.*'earliest'"),
        ({"start": "latest"}, r"start='latest'.*follow=True"),
        ({"follow": True, "end": {0: 1}}, r"end= with follow=True"),
        ({"on_lost": "ignore"}, "on_lost"),
        ({"meta": ("colour",)}, r"meta=.*'headers'"),
        ({"group": ""}, "group=''"),
        ({"topic": "^("}, "no regular expression"),
        ({"topic": ()}, r"topic=\[\]"),
        ({"discover": 0}, "discover=0"),
        ({"retry_for": -1}, "retry_for=-1"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_when_the_data_set_is_built(
    kafka: Kafka, options: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"topic": kafka.topic(1), "types": TYPES, **options}
    with pytest.raises(UsageError, match=message):
        KafkaDataset(kafka.bootstrap, batch_size=5, **given)


def test_a_user_in_the_address_is_refused_without_being_shown() -> None:
    with pytest.raises(UsageError, match=r"\*\*\*@host:9092") as raised:
        KafkaDataset(f"me:{PASSWORD}@host:9092", "t", 5, types=TYPES)
    assert PASSWORD not in str(raised.value)


def test_commit_without_a_group_says_what_to_give(kafka: Kafka) -> None:
    data = KafkaDataset(kafka.bootstrap, filled(kafka, 20), 5, types=TYPES)
    loader = StreamLoader(data, num_workers=0)
    next(iter(loader))
    with pytest.raises(UsageError, match="group="):
        loader.commit()


def tall(broker: Kafka, count: int, retry_for: float) -> KafkaDataset:
    """The numbers, in messages of which the client has only some at a time."""
    topic = broker.topic(2)
    broker.send(topic, (number(n) | {"key": bytes(500)} for n in range(count)), **{"batch.size": 50_000})
    small = {"queued.max.messages.kbytes": 1, "queued.min.messages": 1, "fetch.message.max.bytes": 2000}
    return KafkaDataset(broker.bootstrap, topic, 20, types=TYPES, config=small, retry_for=retry_for)


@pytest.mark.slow
def test_an_epoch_goes_on_when_a_broker_that_was_killed_is_there_again(kept_kafka: KeptKafka) -> None:
    batches = iter(StreamLoader(tall(kept_kafka, 8000, 20), num_workers=0))
    came = numbers(next(batches) for _ in range(3))
    kept_kafka.kill()
    starter = threading.Timer(0.5, kept_kafka.start)
    starter.start()
    came += numbers(batches)
    starter.join()
    assert sorted(came) == list(range(8000))


def test_an_epoch_ends_with_an_error_when_a_broker_stays_away(kafka: Kafka) -> None:
    batches = iter(StreamLoader(tall(kafka, 8000, 1), num_workers=0))
    came = numbers(next(batches) for _ in range(3))
    rest: list[Any] = []
    kafka.kill()
    with pytest.raises(StorageError, match=r"nothing came for 1 s, and offset [\d,]+ of 4,000 is next .*Start the"):
        deque(map(rest.append, batches), 0)
    came += numbers(rest)
    assert len(came) == len(set(came)) < 8000


def test_what_the_page_shows_runs(kafka: Kafka) -> None:
    topic, came = kafka.topic(2), []
    kafka.send(topic, [{"value": json.dumps({"url": f"/{n}", "ms": n}).encode(), "key": b"k"} for n in range(600)])
    page = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    code = page.partition("## Kafka\n```python\n")[2].partition("```")[0]
    assert "commit()" in code
    code = (
        code.replace("localhost:9092", kafka.bootstrap)
        .replace("clicks", topic)
        .replace("num_workers=4", "num_workers=0")
    )
    exec(compile(code, "sources.md", "exec"), {"train": came.append})
    assert sorted(n for batch in came for n in batch["ms"].tolist()) == list(range(600))
    assert committed(kafka, topic, "training", 2) == [300, 300]
