"""A stream of numbers on a real server, in the same words for Redis and NATS."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from streamio import NatsDataset, RedisDataset, SourceDataset
from tests.servers.nats import Nats
from tests.servers.process import ServerProcess
from tests.servers.redis import Redis


class Place:
    """A new stream. Each message is {"n": number}."""

    server: ServerProcess
    name: str

    def add(self, numbers: Iterable[int]) -> None:
        self.write([json.dumps({"n": number}).encode() for number in numbers])

    def write(self, values: list[bytes]) -> None:
        raise NotImplementedError

    def data(self, batch_size: int = 10, **options: Any) -> SourceDataset:
        raise NotImplementedError

    def drop_first(self, count: int) -> None:
        """Have the server forget the oldest messages."""
        raise NotImplementedError

    def make_anew(self) -> None:
        """The same name, and nothing in it."""
        raise NotImplementedError


class RedisPlace(Place):
    def __init__(self, server: Redis) -> None:
        self.server: Redis = server
        self.name = server.stream()

    def write(self, values: list[bytes]) -> None:
        self.server.add(self.name, [{"value": value} for value in values])

    def data(self, batch_size: int = 10, **options: Any) -> SourceDataset:
        return RedisDataset(
            options.pop("url", self.server.url), self.name, batch_size,
            **{"parse": "json", "types": {"n": "int64"}, **options},
        )  # fmt: skip

    def drop_first(self, count: int) -> None:
        with self.server.client() as client:
            client.xtrim(self.name, maxlen=client.xlen(self.name) - count, approximate=False)

    def make_anew(self) -> None:
        with self.server.client() as client:
            client.delete(self.name)
            client.xadd(self.name, {"value": b"{}"}, id="1-1")


class NatsPlace(Place):
    def __init__(self, server: Nats) -> None:
        self.server: Nats = server
        self.name = server.stream()

    def write(self, values: list[bytes]) -> None:
        self.server.publish(f"{self.name}.a", values)

    def data(self, batch_size: int = 10, **options: Any) -> SourceDataset:
        return NatsDataset(
            options.pop("url", self.server.url), self.name, batch_size, **{"types": {"n": "int64"}, **options}
        )

    def drop_first(self, count: int) -> None:
        async def purge(js: Any) -> None:
            first = (await js.stream_info(self.name)).state.first_seq
            await js.purge_stream(self.name, seq=first + count)

        self.server.ask_stream(purge)

    def make_anew(self) -> None:
        async def anew(js: Any) -> None:
            await js.delete_stream(self.name)
            await js.add_stream(name=self.name, subjects=[f"{self.name}.>"])

        self.server.ask_stream(anew)


PLACES = {"redis": (Redis, RedisPlace), "nats": (Nats, NatsPlace)}
