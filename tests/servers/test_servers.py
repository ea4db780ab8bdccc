"""The servers that other tests stand on: they start, keep address and data over a stop, and leave nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy

from tests.servers.fixtures import Servers
from tests.servers.kafka import Kafka, KeptKafka
from tests.servers.nats import Nats
from tests.servers.postgres import Postgres
from tests.servers.process import PASSWORD, ServerProcess
from tests.servers.redis import Redis

ROOT = Path(__file__).parents[2]
VALUES = [b"a", b"b", b"c"]
Read = Callable[[], list[bytes]]


def _in_postgres(server: Postgres) -> Read:
    uri = server.database()
    server.execute(uri, "CREATE TABLE t (v bytea)", "INSERT INTO t VALUES ('a'), ('b'), ('c')")
    return lambda: [bytes(value) for (value,) in server.execute(uri, "SELECT v FROM t ORDER BY v")]


def _in_kafka(server: Kafka) -> Read:
    topic = server.topic(partitions=1)
    server.send(topic, [{"value": value} for value in VALUES])

    def read() -> list[bytes]:
        consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "any"})
        partition = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=10)
        consumer.assign([partition])
        found = [message.value() for message in consumer.consume(end, timeout=10)]
        consumer.close()
        return found

    return read


def _in_redis(server: Redis) -> Read:
    stream = server.stream({"v": value} for value in VALUES)

    def read() -> list[bytes]:
        with server.client() as client:
            return [entry[b"v"] for _, entry in client.xrange(stream)]

    return read


def _in_nats(server: Nats) -> Read:
    stream = server.stream()
    server.publish(f"{stream}.x", VALUES)

    async def fetch(js: JetStreamContext) -> list[bytes]:
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
        found = await (await js.pull_subscribe(f"{stream}.>", stream=stream, config=config)).fetch(3, timeout=10)
        return [message.data for message in found]

    return lambda: server.ask_stream(fetch)


KEEP = {Postgres: _in_postgres, KeptKafka: _in_kafka, Redis: _in_redis, Nats: _in_nats}


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("kind", KEEP)
def test_keeps_address_and_data_over_stop_and_start(servers: Servers, kind: type[ServerProcess], end: str) -> None:
    server = servers.get(kind)
    read, address = KEEP[kind](server), server.address
    assert read() == VALUES
    getattr(server, end)()
    assert not server.running and not server.answers()
    server.start()
    assert server.address == address and read() == VALUES


def test_a_broker_in_memory_starts_again_empty(kafka: Kafka) -> None:
    assert _in_kafka(kafka)() == VALUES
    kafka.stop()
    assert not kafka.answers()
    assert _in_kafka(kafka.start())() == VALUES


def test_a_server_that_a_test_left_stopped_runs_in_the_next(servers: Servers) -> None:
    servers.get(Redis).kill()
    assert servers.get(Redis).answers()


def test_a_wrong_password_is_refused(postgres: Postgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres.uri().replace(PASSWORD, "wrong"))


@pytest.mark.parametrize("kind", [Postgres, Kafka, Redis, Nats])
def test_a_server_is_gone_when_its_process_was_killed(kind: type[ServerProcess], tmp_path: Path) -> None:
    code = (
        f"from {kind.__module__} import {kind.__name__} as Kind; from pathlib import Path; import time\n"
        f"server = Kind(Path({str(tmp_path)!r})).start(); print(server.pid, server.folder, flush=True)\n"
        "time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().split()
    server = psutil.Process(int(pid))
    family = [server, *server.children(recursive=True)]
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    _gone, left = psutil.wait_procs(family, timeout=20)
    assert left == []
    shutil.rmtree(folder)


def test_a_server_outlives_the_thread_that_started_it(servers: Servers) -> None:
    server = servers.get(Redis)
    server.stop()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert server.running and server.answers()


def test_says_why_it_does_not_start(tmp_path: Path) -> None:
    server = Redis(tmp_path)
    (tmp_path / "appendonly.aof").write_bytes(b"*not a log of commands")
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"(?s)Redis did not start.*append only file"):
        server.start()
    assert time.monotonic() - began < 20 and not server.running
