"""Any source by its address, landed as shards: bounded and followed, over real servers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import streamio
from streamio import Mixture, ShardDataset, StreamLoader, UsageError
from streamio.sources.named import dataset_at

Send = Callable[[Iterable[int]], None]


def lines(numbers: Iterable[int]) -> str:
    return "".join(json.dumps({"number": number}) + "\n" for number in numbers)


@pytest.fixture
def logs(tmp_path: Path) -> tuple[str, Send]:
    def send(numbers: Iterable[int]) -> None:
        with open(tmp_path / "app.jsonl", "a") as file:
            file.write(lines(numbers))

    return f"{tmp_path}/*.jsonl", send


@pytest.fixture
def kafka_topic(kafka: Any) -> tuple[str, Send]:
    topic = kafka.topic(partitions=2)
    return f"kafka://{kafka.bootstrap}/{topic}", lambda numbers: kafka.send(
        topic, [{"value": lines([number]).encode()} for number in numbers]
    )


@pytest.fixture
def redis_stream(redis_server: Any) -> tuple[str, Send]:
    stream = redis_server.stream()
    return f"{redis_server.url}?stream={stream}", lambda numbers: redis_server.add(
        stream, [{"value": lines([number])} for number in numbers]
    )


@pytest.fixture
def nats_stream(nats_server: Any) -> tuple[str, Send]:
    stream = nats_server.stream()
    return f"{nats_server.url}/{stream}", lambda numbers: nats_server.publish(
        f"{stream}.a", [lines([number]).encode() for number in numbers]
    )


@pytest.fixture
def table(tmp_path: Path) -> tuple[str, Send]:
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, number INTEGER NOT NULL)")
    database.close()

    def send(numbers: Iterable[int]) -> None:
        with sqlite3.connect(tmp_path / "x.db") as database:
            database.executemany("INSERT INTO t (number) VALUES (?)", [(number,) for number in numbers])
        database.close()

    return f"sqlite:///{tmp_path}/x.db?table=t&key=id&columns=id,number", send


@pytest.fixture
def postgres_table(postgres: Any) -> tuple[str, Send]:
    uri = postgres.database()
    postgres.execute(uri, "CREATE TABLE t (id BIGSERIAL PRIMARY KEY, number BIGINT NOT NULL)")
    return (
        f"{uri}?table=t&key=id",
        lambda numbers: (
            postgres.execute(uri, f"INSERT INTO t (number) VALUES {', '.join(f'({number})' for number in numbers)}")
            and None
        ),
    )


ALL = ("logs", "kafka_topic", "redis_stream", "nats_stream", "table", "postgres_table")


def landed(out: Path) -> list[int]:
    return sorted(int(sample["number"]) for sample in streamio.open(out))


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("kind", ALL)
def test_a_capture_by_address_has_every_row_once_and_goes_on(
    kind: str, follow: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address, send = request.getfixturevalue(kind)
    options: dict[str, Any] = {"follow": follow, "parse": "json" if kind in ALL[1:4] else None}
    if follow:
        options["idle_timeout"] = 0.7
    send(range(100))
    streamio.capture(address, tmp_path / "out", shard_samples=30, stopped=lambda: True, **options)
    before = len(landed(tmp_path / "out")) if (tmp_path / "out").exists() else 0
    assert before <= 100
    if follow:
        send(range(100, 140))
    report = streamio.capture(address, tmp_path / "out", shard_samples=30, **options)
    assert landed(tmp_path / "out") == list(range(140 if follow else 100))
    assert (report.lag, report.complete) == (0, not follow)
    again = streamio.capture(address, tmp_path / "out", shard_samples=30, **options)
    assert again.rows == 0
    assert "password" not in (tmp_path / "out" / "streamio.json").read_text().lower()


@pytest.mark.parametrize("kind", ["kafka_topic", "logs"])
def test_a_live_source_mixes_with_shards(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    streamio.write([{"number": -1 - i} for i in range(50)], tmp_path / "disk")
    address, send = request.getfixturevalue(kind)
    send(range(60))
    data = dataset_at(address, follow=True, fields=("number",))

    def mixed() -> Mixture:
        disk = ShardDataset(tmp_path / "disk", 1, fields=("number",))
        return Mixture({"disk": (disk, 0.5), "live": (data, 0.5)}, 10, stop="never")

    workers = 2 if kind == "kafka_topic" else 1
    first = StreamLoader(mixed(), num_workers=workers, context="fork", prefetch_bytes=10_000)
    came = [number for _, (batch,) in zip(range(6), first, strict=False) for number in batch.tolist()]
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    second = StreamLoader(mixed(), num_workers=0)
    second.load_state_dict(state)
    came += [number for _, (batch,) in zip(range(6), second, strict=False) for number in batch.tolist()]
    assert sorted(number for number in came if number >= 0) == list(range(60))
    if kind == "logs":
        with pytest.raises(UsageError, match=r"finds its partitions.*num_workers=1"):
            next(iter(StreamLoader(mixed(), num_workers=2, transport="process", context="fork")))


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("ftp://me:hunter2@host/x", "is no source that is known"),
        ("kafka://host:9092/", "names no topic"),
        ("kafka://me:hunter2@host:9092/x", "a user in it"),
        ("redis://:hunter2@host/0", "names no stream"),
        ("nats://me:hunter2@host", "names no stream"),
    ],
)
def test_an_address_that_is_none_is_refused_without_its_secrets(address: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=found) as refused:
        streamio.capture(address, tmp_path / "out")
    assert "hunter2" not in str(refused.value)


def test_options_of_an_address_go_with_one_only(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(range(5)))
    with pytest.raises(UsageError, match="follow= beside a data set"):
        streamio.capture(dataset_at(f"{tmp_path}/a.jsonl"), tmp_path / "out", follow=True)
