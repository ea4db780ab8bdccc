"""The sources of streamio that have an end keep the contract that one of a user's has to."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streamio import KafkaDataset, LogDataset, NatsDataset, RedisDataset
from streamio.sources.sql.stream import SqlStream
from tests.sources.conformance import Given, SourceContract

NUMBERS = list(range(60))


def message(number: int) -> bytes:
    return json.dumps({"number": number}).encode()


class TestLogs(SourceContract):
    @pytest.fixture
    def given(self, tmp_path: Path) -> Given:
        for i in range(5):
            (tmp_path / f"{i}.jsonl").write_bytes(b"".join(message(n) + b"\n" for n in NUMBERS[i::5]))
        return Given(LogDataset(f"{tmp_path}/*.jsonl", 1).source, "number", NUMBERS)


class TestKafka(SourceContract):
    @pytest.fixture
    def given(self, kafka: Any) -> Given:
        topic = kafka.topic(partitions=5)
        kafka.send(topic, [{"value": message(n), "partition": n % 5} for n in NUMBERS])
        return Given(KafkaDataset(kafka.bootstrap, topic, 1).source, "number", NUMBERS)


class TestRedis(SourceContract):
    @pytest.fixture
    def given(self, redis_server: Any) -> Given:
        stream = redis_server.stream([{"value": message(n)} for n in NUMBERS])
        return Given(RedisDataset(redis_server.url, stream, 1, parse="json", splits=5).source, "number", NUMBERS)


class TestNats(SourceContract):
    @pytest.fixture
    def given(self, nats_server: Any) -> Given:
        stream = nats_server.stream()
        nats_server.publish(f"{stream}.a", [message(n) for n in NUMBERS])
        return Given(NatsDataset(nats_server.url, stream, 1, splits=5).source, "number", NUMBERS)


class TestSql(SourceContract):
    @pytest.fixture
    def given(self, tmp_path: Path) -> Given:
        with closing(sqlite3.connect(tmp_path / "x.db")) as database, database:
            database.execute("CREATE TABLE t (number INTEGER PRIMARY KEY)")
            database.executemany("INSERT INTO t VALUES (?)", [(n,) for n in NUMBERS])
        parts = [f"number >= {n} AND number < {n + 12}" for n in range(0, 60, 12)]
        data = SqlStream(f"sqlite:///{tmp_path}/x.db", 1, table="t", order="number", partitions=parts)
        return Given(data.source, "number", NUMBERS)
