"""What is special to Redis Streams: entries are fields, several streams, ids."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamio import RedisDataset, StreamLoader, UsageError
from streamio.sources.rediswire import as_id, next_id
from tests.servers.redis import Redis
from tests.sources.conformance import Given, SourceContract

IDS = st.tuples(st.integers(0, 2**63), st.integers(0, 2**64 - 1))


class TestRedis(SourceContract):
    @pytest.fixture
    def given(self, redis_server: Redis) -> Given:
        stream = redis_server.stream({"n": n} for n in range(101))
        data = RedisDataset(redis_server.url, stream, 8, types={"n": "int64"}, splits=5)
        return Given(data.source, "n", list(range(101)))


def _read(data: RedisDataset) -> list[Any]:
    return list(StreamLoader(data, num_workers=0))


def test_the_fields_of_an_entry_are_those_of_the_sample(redis_server: Redis) -> None:
    entries = [
        {"text": f"héllo {n}", "n": n, "score": n / 4, "xy": f"[{n},{n + 1}]", "raw": b"\xff"} for n in range(5)
    ]
    stream = redis_server.stream(entries)
    types = {"text": "str", "n": "int64", "score": "float32", "xy": "int16[2]", "raw": "bytes"}
    (batch,) = _read(RedisDataset(redis_server.url, stream, 8, types=types))
    assert batch["text"] == [f"héllo {n}" for n in range(5)]
    assert batch["n"].tolist() == list(range(5)) and batch["n"].dtype == torch.int64
    assert batch["score"].tolist() == [n / 4 for n in range(5)]
    assert batch["xy"].tolist() == [[n, n + 1] for n in range(5)] and batch["xy"].dtype == torch.int16
    assert [bytes(value) for value in batch["raw"]] == [b"\xff"] * 5
    (batch,) = _read(RedisDataset(redis_server.url, stream, 8))  # undeclared, they are bytes
    assert [bytes(value) for value in batch["n"]] == [b"0", b"1", b"2", b"3", b"4"]


def test_id_time_and_stream_come_along_where_they_are_asked_for(redis_server: Redis) -> None:
    stream = redis_server.fresh("stream")
    with redis_server.client() as client:
        for n in range(3):
            client.xadd(stream, {"n": n}, id=f"17000000000{n}0-{n + 1}")
    data = RedisDataset(
        redis_server.url, stream, 8, types={"n": "int64", "at": "timestamp[s]"},
        meta={"id": "id", "timestamp": "at", "stream": "from"},
    )  # fmt: skip
    (batch,) = _read(data)
    assert batch["id"] == ["1700000000000-1", "1700000000010-2", "1700000000020-3"]
    assert batch["at"].tolist() == [1700000000] * 3 and batch["from"] == [stream] * 3
    assert batch["__key__"] == [f"{stream}:{name}" for name in batch["id"]]
    later = RedisDataset(redis_server.url, stream, 8, types={"n": "int64"}, start="1700000000000-1")
    assert _read(later)[0]["n"].tolist() == [1, 2]


@pytest.mark.parametrize("follow", [False, True])
def test_several_streams_are_partitions(redis_server: Redis, follow: bool) -> None:
    streams = [redis_server.stream({"n": 100 * s + n} for n in range(20 + s)) for s in range(3)]
    options: dict[str, Any] = {"follow": True, "idle_timeout": 0.3} if follow else {}
    data = RedisDataset(redis_server.url, streams, 7, types={"n": "int64"}, group="g", **options)
    assert [partition.name for partition in data.source.partitions()] == streams
    loader = StreamLoader(data, num_workers=2, transport="thread")
    came = [number for batch in loader for number in batch["n"].tolist()]
    assert sorted(came) == [100 * s + n for s in range(3) for n in range(20 + s)]
    loader.commit()
    redis_server.add(streams[1], [{"n": 999}])
    again = RedisDataset(redis_server.url, streams, 7, types={"n": "int64"}, group="g", **options)
    assert [batch["n"].tolist() for batch in StreamLoader(again, num_workers=0)] == [[999]]


@pytest.mark.parametrize("splits", [1, 3, 7])
def test_ranges_have_as_many_entries_each(redis_server: Redis, splits: int) -> None:
    stream = redis_server.stream({"n": n} for n in range(1000))
    with redis_server.client() as client:
        client.xdel(stream, *[name for name, _ in client.xrange(stream)[100:400:3]])
    data = RedisDataset(redis_server.url, stream, 64, types={"n": "int64"}, splits=splits)
    rows = [data.source.count(partition, partition.start) for partition in data.source.partitions()]
    assert sum(rows) == 900 and max(rows) - min(rows) <= 1
    assert sum(len(batch["n"]) for batch in _read(data)) == 900


def test_a_stream_that_is_gone_when_an_epoch_begins_is_no_empty_epoch(redis_server: Redis) -> None:
    stream = redis_server.stream([{"n": 1}])
    data = RedisDataset(redis_server.url, stream, 8, types={"n": "int64"})
    with redis_server.client() as client:
        client.delete(stream)
    with pytest.raises(UsageError, match="there is no such stream"):
        _read(data)


def test_large_entries_are_read_in_small_pages(redis_server: Redis) -> None:
    stream = redis_server.stream({"v": bytes(300_000), "n": n} for n in range(100))
    batches = _read(RedisDataset(redis_server.url, stream, 16, types={"v": "bytes", "n": "int64"}))
    assert [n for batch in batches for n in batch["n"].tolist()] == list(range(100))


def test_what_is_no_stream_is_refused(redis_server: Redis) -> None:
    name = redis_server.fresh("list")
    with redis_server.client() as client:
        client.rpush(name, 1)
    with pytest.raises(UsageError, match=f"{name}: is a list, and no stream"):
        RedisDataset(redis_server.url, name, 8)
    with pytest.raises(UsageError, match="there is no such stream"):
        RedisDataset(redis_server.url, redis_server.fresh("none"), 8, types={"n": "int64"})
    for streams in ([], ["a", "a"], [""]):
        with pytest.raises(UsageError, match="streams="):
            RedisDataset(redis_server.url, streams, 8)
    later = RedisDataset(
        redis_server.url, redis_server.fresh("none"), 8, types={"n": "int64"}, follow=True, idle_timeout=0.2
    )
    assert _read(later) == []


@given(IDS, IDS)
def test_the_next_id_is_the_least_behind_one(one: tuple[int, int], other: tuple[int, int]) -> None:
    following = as_id(next_id(f"{one[0]}-{one[1]}"))
    assert following > one
    assert not one < other < following
