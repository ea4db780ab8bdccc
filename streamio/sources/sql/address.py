"""Where a database is: an address, or a function that connects. Nothing here shows a password."""

from __future__ import annotations

import base64
import os
import pickle
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from streamio.errors import UsageError
from streamio.storage.addresses import redact

_HIDDEN = "***"
_OPEN_NAMES = frozenset({
    "host", "hostaddr", "port", "dbname", "sslmode", "application_name", "connect_timeout", "target_session_attrs",
    "options", "mode", "cache", "immutable", "vfs", "timezone", "access_mode", "threads",
})  # fmt: skip
"""Parameters of an address whose values may be shown."""
_SECRET_NAMES = ("pass", "pwd", "token", "secret", "key", "credential", "auth")
"""Parts of names of arguments whose values may not."""
_FILES = {"sqlite": "sqlite", "duckdb": "duckdb"}
_SCHEMES = {"postgresql": "postgresql", "postgres": "postgresql", **_FILES}
_HINT = (
    "Give postgresql://user@host/database, sqlite:///path, duckdb:///path, or for any other database a function "
    "that returns a new connection of its DB-API driver"
)


class Address:
    """`postgresql://…`, `sqlite:///path` or `duckdb:///path`.

    kind:  postgresql, sqlite or duckdb.
    value: what the driver is given: the address, or for files the path. It may hold a password.
    shown: the address without secrets.

    Raises UsageError for what is no address, and for a database that only one process could see.
    """

    def __init__(self, uri: str) -> None:
        scheme = uri.partition("://")[0].lower() if "://" in uri else ""
        if scheme not in _SCHEMES:
            raise UsageError(f"{redact(uri)!r} is no address of a database that is known", fix=_HINT)
        self.kind, self._uri = _SCHEMES[scheme], uri
        self.shown = _shown(uri)
        self.value = _file(uri, self.shown) if scheme in _FILES else uri

    def scrub(self, text: str) -> str:
        """A message of the driver without what is secret."""
        text = text.replace(self._uri, self.shown)
        for secret in sorted(_secrets(self._uri), key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return _address, (_masked(self._uri),)

    def __repr__(self) -> str:
        return f"Address('{self.shown}')"


class Factory:
    """A function without arguments that returns a new connection of a DB-API driver. Workers call it too."""

    kind = "dbapi"

    def __init__(self, function: Callable[[], Any]) -> None:
        self.value = function
        bare = function.func if isinstance(function, partial) else function
        self.shown = f"{getattr(bare, '__module__', '')}.{getattr(bare, '__qualname__', type(bare).__qualname__)}()"

    def scrub(self, text: str) -> str:
        """A message of the driver without the passwords that a `functools.partial` holds."""
        if isinstance(self.value, partial):
            given = {str(name): value for name, value in self.value.keywords.items() if isinstance(value, str)}
            secrets = {value for name, value in given.items() if any(part in name for part in _SECRET_NAMES)}
            texts = [one for one in (*self.value.args, *given.values()) if isinstance(one, str)]
            for address in (one for one in texts if "://" in one):
                text, secrets = text.replace(address, redact(address)), secrets | set(_secrets(address))
            for secret in sorted((s for s in secrets if s), key=len, reverse=True):
                text = text.replace(secret, _HIDDEN)
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.value, partial):
            return _factory, (self.value.func, _masked((self.value.args, self.value.keywords)))
        return Factory, (self.value,)

    def __repr__(self) -> str:
        return f"Factory({self.shown})"


Target = Address | Factory


def as_target(source: str | os.PathLike[str] | Callable[[], Any]) -> Target:
    """What the user gave as a place. Raises UsageError."""
    if isinstance(source, str):
        return Address(source)
    if callable(source):
        return Factory(source)
    raise UsageError(f"{type(source).__name__} is no address of a database", fix=_HINT)


def _masked(value: Any) -> bytes:
    """What a worker has to know, as no text in what is sent to it; no more than that."""
    return base64.b85encode(pickle.dumps(value)[::-1])


def _unmasked(masked: bytes) -> Any:
    return pickle.loads(base64.b85decode(masked)[::-1])


def _address(masked: bytes) -> Address:
    return Address(_unmasked(masked))


def _factory(function: Callable[..., Any], masked: bytes) -> Factory:
    arguments, keywords = _unmasked(masked)
    return Factory(partial(function, *arguments, **keywords))


def _file(uri: str, shown: str) -> str:
    """The absolute path: of `sqlite:///data/a.db`, as of any file address, from the root (`sqlite:////data/a.db`
    means the same); of `sqlite://a.db` from here."""
    path = unquote(uri.partition("://")[2].partition("?")[0])
    if path.strip("/") in ("", ":memory:"):
        raise UsageError("a database in memory is seen by one process only", fix="Save it to a file", path=shown)
    if path.startswith("//"):
        path = path[1:]
    full = Path(path).expanduser().absolute()
    if not full.is_file():
        place = shown if redact(uri) != uri else str(full)
        raise UsageError("there is no such file", fix="Paths begin behind sqlite:// or duckdb://", path=place)
    return str(full)


def _shown(uri: str) -> str:
    """The address with host, path and harmless parameters: user and password go."""
    base, _, query = uri.partition("?")
    if not query or "@" in query:
        return redact(uri)  # what stands behind a bare ? may be the rest of a password
    pairs = [_pair(pair) for pair in query.partition("#")[0].split("&")]
    return f"{redact(base)}?{'&'.join(pairs)}"


def _pair(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    if name.lower() in _OPEN_NAMES:
        return pair
    return f"{name}={_HIDDEN}" if equals else _HIDDEN


def _secrets(uri: str) -> set[str]:
    """The password of an address, and the values of parameters that are not known to be harmless."""
    whole = set(_hidden(uri))
    # A driver takes a password with a bare / or : for several things, and complains of one of them.
    pieces = {piece for text in whole for piece in re.split(r"[/?#@:&=]", text) if len(piece) > 3}
    found = whole | pieces
    return {text for text in found | {unquote(text) for text in found} if text}


def _hidden(uri: str) -> Iterator[str]:
    rest = uri.partition("://")[2]
    base = rest.partition("?")[0]
    user = (base if "@" in base else rest).rpartition("@")[0]  # a password may hold a bare ?
    if ":" in user:
        yield user.partition(":")[2]
    for pair in rest.partition("?")[2].partition("#")[0].split("&"):
        name, _, value = pair.partition("=")
        if name and name.lower() not in _OPEN_NAMES:
            yield value or name
