"""The connection to Redis: made in the process that uses it, with errors that are ours and show no password."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

from streamio.errors import StorageError, UsageError
from streamio.extras import extra
from streamio.sources.hidden import Address
from streamio.sources.retries import LostConnection, Retries, check_retry_for

_T = TypeVar("_T")
HINT = "Give redis://user:password@host:6379/0, rediss://… for TLS, or unix:///path"
_FIX_LOST = "See that it runs and lets this user in; retry_for= says for how many seconds it is tried again"


class RedisServer:
    """Where the server is. Small to pickle; it holds no connection."""

    def __init__(self, address: Address, retry_for: float) -> None:
        check_retry_for(retry_for)
        self.address, self.retry_for = address, retry_for
        extra("redis", "redis")

    def connection(self, stopped: Callable[[], bool] = lambda: False, *, patient: bool = True) -> RedisConnection:
        return RedisConnection(self, Retries(self.address.shown, self.retry_for if patient else 0, stopped))

    def ask(self, work: Callable[[Any], _T], *, patient: bool = True) -> _T:
        """What `work` makes with a client of its own."""
        with closing(self.connection(patient=patient)) as connection:
            return connection.retries.ask(lambda: connection.once(work))


class RedisConnection:
    """One client, made when it is used. Its errors are ours and without secrets."""

    def __init__(self, server: RedisServer, retries: Retries) -> None:
        self._address, self.retries = server.address, retries
        self._client: Any = None

    def once(self, work: Callable[[Any], _T]) -> _T:
        """What `work` makes with the client. Raises LostConnection, or StorageError for what the server refuses."""
        redis = extra("redis", "redis")
        lost = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError)
        refused = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)
        try:
            if self._client is None:
                self._client = self._opened(redis)
            return work(self._client)
        except (*lost, redis.exceptions.RedisError) as error:
            text = self._address.scrub(error)
            is_lost = isinstance(error, lost) and not isinstance(error, refused)
        self.close()
        if is_lost:
            raise LostConnection(f"no answer: {text}", fix=_FIX_LOST, path=self._address.shown)
        raise StorageError(f"the server refused: {text}", path=self._address.shown)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _opened(self, redis: Any) -> Any:
        once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        usual = {"socket_timeout": 30, "socket_connect_timeout": 10, "retry": once, "protocol": 2}
        try:
            return redis.Redis.from_url(self._address.urls[0], **{**usual, **self._address.options})
        except (ValueError, TypeError) as error:
            found = self._address.scrub(error)
        raise UsageError(f"the client does not take this: {found}", fix=HINT, path=self._address.shown)


_STRIDE = 256
_ADVANCE = """
local page = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
if #page == 0 then return {0, ''} end
return {#page, page[#page][1]}
"""
"""(entries, id of the last one) of a page that does not leave the server."""


def walked(client: Any, stream: str, after: str, last: str, rows: int | None = None) -> tuple[int, str]:
    """(entries, id of the last one) from behind `after` to `last`, or of so many of them."""
    count = 0
    while rows is None or count < rows:
        size = _STRIDE if rows is None else min(_STRIDE, rows - count)
        found, behind = client.eval(_ADVANCE, 1, stream, next_id(after), last, size)
        if found == 0:
            break
        count, after = count + found, as_text(behind)
    return count, after


def next_id(after: str) -> str:
    """The least id behind one."""
    milliseconds, number = as_id(after)
    return f"{milliseconds}-{number + 1}" if number + 1 < 1 << 64 else f"{milliseconds + 1}-0"


def as_id(text: str) -> tuple[int, int]:
    """(milliseconds, number) of an id: they compare as entries follow each other."""
    milliseconds, _, number = text.partition("-")
    return int(milliseconds), int(number)


def as_text(value: Any) -> str:
    """A name or an id, which come as bytes or as text."""
    return value.decode() if isinstance(value, bytes) else str(value)
