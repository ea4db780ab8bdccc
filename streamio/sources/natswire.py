"""The connection to NATS: made in the process that uses it, with errors that are ours and show no password."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from streamio.errors import StorageError, StreamioError, UsageError
from streamio.extras import extra
from streamio.sources.hidden import Address
from streamio.sources.retries import LostConnection, Retries, check_retry_for

_T = TypeVar("_T")
HINT = "Give nats://user:password@host:4222, tls://…, or several of them for the servers of one cluster"
_FIX_LOST = "See that it runs and lets this user in; retry_for= says for how many seconds it is tried again"
_CONNECT, _ANSWER = 10.0, 20.0
_REFUSED = ("authorization", "authentication", "permissions", "credentials")
_FORGOTTEN = 300.0
"""Seconds without a request after which the server forgets a consumer of ours."""
BUCKET = "streamio-groups"
"""The key-value bucket that holds the places of groups."""
_HEARTBEAT, _NO_MORE, _NO_LIMIT = "100", ("404", "408"), 1 << 40


class Message(NamedTuple):
    """One message. moment: when the stream took it, in microseconds since 1970. left: how many come behind it."""

    subject: str
    data: bytes
    headers: dict[str, str] | None
    sequence: int
    number: int
    moment: int
    left: int


class NatsServer:
    """Where the servers are. Small to pickle; it holds no connection."""

    def __init__(self, address: Address, retry_for: float) -> None:
        check_retry_for(retry_for)
        self.address, self.retry_for = address, retry_for
        extra("nats", "nats")

    def connection(self, stopped: Callable[[], bool] = lambda: False, *, patient: bool = True) -> NatsConnection:
        return NatsConnection(self.address, Retries(self.address.shown, self.retry_for if patient else 0, stopped))

    def ask(self, work: Callable[[Any], Coroutine[Any, Any, _T]], *, patient: bool = True) -> _T:
        """What `work` makes with the JetStream context of a connection of its own."""
        with closing(self.connection(patient=patient)) as connection:
            return connection.retries.ask(
                lambda: connection.once(lambda client: work(client.jetstream(timeout=_ANSWER)))
            )


class NatsConnection:
    """One connection, made when it is used, on an event loop of its own: the caller's thread may have one too."""

    def __init__(self, address: Address, retries: Retries) -> None:
        self._address, self.retries = address, retries
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._gone: asyncio.Event
        self._pid = os.getpid()

    def once(self, work: Callable[[Any], Coroutine[Any, Any, _T]]) -> _T:
        """What `work` makes with the client. Raises LostConnection, or StorageError for a refusal.

        After either, what was opened is gone.
        """
        nats, js = extra("nats", "nats"), extra("nats.js.errors", "nats")
        lost = (js.ServiceUnavailableError, js.NoStreamResponseError, js.ServerError)
        try:
            made: _T = self._run(self._done(work))
            return made
        except StreamioError:
            raise
        except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
            text = self._address.scrub(error)
            refused = any(word in text.lower() for word in _REFUSED)
            is_lost = not refused and (isinstance(error, lost) or not isinstance(error, js.APIError))
        self.close()
        if is_lost:
            raise LostConnection(f"no answer: {text}", fix=_FIX_LOST, path=self._address.shown)
        raise StorageError(f"the server refused: {text}", path=self._address.shown)

    def close(self) -> None:
        """Close it; use opens it again."""
        loop, thread, client = self._loop, self._thread, self._client
        self._loop = self._thread = self._client = None
        if loop is None or thread is None or self._pid != os.getpid():  # the thread is the parent's
            return
        if client is not None:
            try:
                asyncio.run_coroutine_threadsafe(client.close(), loop).result(_CONNECT)
            except Exception:  # it is gone already
                pass
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    async def _done(self, work: Callable[[Any], Coroutine[Any, Any, _T]]) -> _T:
        if self._client is None:
            self._gone = asyncio.Event()
            self._client = await self._opened(self._gone)
        doing, gone = asyncio.ensure_future(work(self._client)), asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise ConnectionError("the server closed the connection")
            return doing.result()
        finally:
            doing.cancel()
            gone.cancel()

    async def _opened(self, gone: asyncio.Event) -> Any:
        async def quiet(_: Exception) -> None:
            """What is wrong is raised where it matters."""

        async def closed() -> None:
            gone.set()

        usual = {
            "connect_timeout": _CONNECT, "allow_reconnect": False, "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0.05, "error_cb": quiet, "closed_cb": closed,
        }  # fmt: skip
        client = extra("nats", "nats").NATS()
        try:
            connecting = client.connect(list(self._address.urls), **{**usual, **self._address.options})
            await asyncio.wait_for(connecting, _CONNECT * (len(self._address.urls) + 1))
            return client
        except TypeError as error:
            found = self._address.scrub(error)
        except BaseException:
            await client.close()  # it may have a socket, which it leaves open
            raise
        raise UsageError(f"the client does not take this: {found}", fix=HINT, path=self._address.shown)

    def _run(self, work: Any) -> Any:
        if self._loop is None:
            self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name="streamio-nats", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    async def end_all() -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed is told so, and lets go of its socket

    loop.run_forever()
    loop.run_until_complete(end_all())
    loop.close()


class Pull:
    """A consumer of ours, from a sequence on. It asks for no acknowledgement, so the server sends nothing twice.

    left: messages that it has still to give, as far as is known.
    """

    def __init__(self, client: Any, stream: str, info: Any) -> None:
        self._client, self.left = client, int(info.num_pending)
        self._asked, self._inbox = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{info.name}", client.new_inbox()
        self._given, self._wanted = 0, 0
        self._page: list[Message] = []
        self._trouble = ""
        self._full = asyncio.Event()

    @classmethod
    async def open(cls, client: Any, stream: str, subjects: Sequence[str], begin: int) -> Pull:
        """begin: the sequence of the first message, at least. subjects: all where it is empty."""
        info = await client.jetstream(timeout=_ANSWER).add_consumer(stream, _config(subjects, begin))
        pull = cls(client, stream, info)
        await client.subscribe(pull._inbox, cb=pull._take, pending_bytes_limit=_NO_LIMIT)
        return pull

    async def page(self, size: int, wait: float = 0) -> list[Message]:
        """Up to so many messages: those that are there, or what comes within `wait` seconds. Raises for a gap."""
        self._page, self._wanted = [], size
        self._full.clear()
        how = {"expires": int(wait * 1e9)} if wait else {"no_wait": True}
        await self._client.publish(self._asked, json.dumps({"batch": size, **how}).encode(), self._inbox)
        await asyncio.wait_for(self._full.wait(), wait + _ANSWER)
        if self._trouble:
            raise ConnectionError(self._trouble)
        self.left = self._page[-1].left if self._page else self.left
        return self._page

    async def _take(self, raw: Any) -> None:
        """A message, or the server's word that the request is over."""
        if not raw.reply:
            status = (raw.headers or {}).get("Status", "")
            if status == _HEARTBEAT:
                return
            self._trouble = "" if status in _NO_MORE else f"{status} {(raw.headers or {}).get('Description', '')}"
            self._full.set()
            return
        message = _message(raw)
        self._given += 1
        if message.number != self._given:
            self._trouble = f"message {self._given} of the consumer did not come"
        self._page.append(message)
        if len(self._page) == self._wanted or self._trouble:
            self._full.set()


async def pending(js: Any, stream: str, subjects: Sequence[str], begin: int) -> int:
    """Messages from a sequence on."""
    info = await js.add_consumer(stream, _config(subjects, begin))
    await js.delete_consumer(stream, info.name)
    return int(info.num_pending)


def _config(subjects: Sequence[str], begin: int) -> Any:
    api = extra("nats.js.api", "nats")
    one = len(subjects) == 1
    filters = {"filter_subject": subjects[0]} if one else {"filter_subjects": list(subjects) or None}
    return api.ConsumerConfig(
        deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=max(1, begin), num_replicas=1,
        ack_policy=api.AckPolicy.NONE, inactive_threshold=_FORGOTTEN, mem_storage=True, **filters,
    )  # fmt: skip


def _message(raw: Any) -> Message:
    """What its reply subject tells: `$JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<number>.<ns>.<left>`.

    Newer servers put a domain and an account before the stream, and a token behind all.
    """
    parts = raw.reply.split(".")
    sequence, number, moment, left = map(int, parts[5:9] if len(parts) == 9 else parts[7:11])
    return Message(raw.subject, raw.data, raw.headers, sequence, number, moment // 1000, left)


async def kept_place(js: Any, key: str) -> int | None:
    """The sequence that a group was committed to; None where it was not."""
    try:
        bucket = await js.key_value(BUCKET)
        return int((await bucket.get(key)).value)
    except extra("nats.js.errors", "nats").NotFoundError:
        return None


async def keep_places(js: Any, places: Mapping[str, int]) -> None:
    """Write down sequences by their keys."""
    try:
        bucket = await js.key_value(BUCKET)
    except extra("nats.js.errors", "nats").NotFoundError:
        bucket = await js.create_key_value(bucket=BUCKET)
    for key, place in places.items():
        await bucket.put(key, str(place).encode())


def overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a subject may match both filters. `*` is any word, `>` one or more."""
    for a, b in zip_longest(one, other):
        if a is None or b is None:
            return False
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return True
