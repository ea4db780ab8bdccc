"""The real servers as fixtures: one of each per pytest worker, started when first asked for.

A test gets a server that runs, also after a test that stopped or killed it. Everything in a test goes into a
database, topic or stream of its own. The clients' packages are imported by the first test that needs one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.servers.process import ServerProcess

if TYPE_CHECKING:
    from tests.servers.kafka import Kafka, KeptKafka
    from tests.servers.nats import Nats
    from tests.servers.postgres import Postgres
    from tests.servers.redis import Redis

S = TypeVar("S", bound=ServerProcess)


class Servers:
    """The servers of one pytest worker."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._made: dict[type[ServerProcess], ServerProcess] = {}

    def get(self, kind: type[S]) -> S:
        """The one server of this kind, running."""
        if kind not in self._made:
            self._made[kind] = kind(self._folders.mktemp(kind.__name__.lower()))
        server = self._made[kind].start()
        assert isinstance(server, kind)
        return server

    def close(self) -> None:
        for server in self._made.values():
            server.close()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Real servers, by their class."""
    made = Servers(tmp_path_factory)
    yield made
    made.close()


@pytest.fixture
def postgres(servers: Servers) -> Postgres:
    """A PostgreSQL server: `postgres.database()` is the URI of a new database."""
    from tests.servers.postgres import Postgres

    return servers.get(Postgres)


@pytest.fixture
def kafka(servers: Servers) -> Kafka:
    """A Kafka-compatible broker with topics in memory: `kafka.topic(partitions=4)`, `kafka.send(...)`."""
    from tests.servers.kafka import Kafka

    return servers.get(Kafka)


@pytest.fixture
def kept_kafka(servers: Servers) -> KeptKafka:
    """A Kafka-compatible broker whose topics are still there after stop and start."""
    from tests.servers.kafka import KeptKafka

    return servers.get(KeptKafka)


@pytest.fixture
def redis_server(servers: Servers) -> Redis:
    """A Redis server: `redis_server.stream(entries)`."""
    from tests.servers.redis import Redis

    return servers.get(Redis)


@pytest.fixture
def nats_server(servers: Servers) -> Nats:
    """A NATS server with JetStream: `nats_server.stream()`, `nats_server.publish(...)`."""
    from tests.servers.nats import Nats

    return servers.get(Nats)
