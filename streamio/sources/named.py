"""A source by its address, as the command line has it: `kafka://host:9092/clicks`, `logs/*.jsonl`, and so on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from streamio.errors import UsageError
from streamio.sources.dataset import SourceDataset
from streamio.sources.kafka.dataset import KafkaDataset
from streamio.sources.logs.dataset import LogDataset
from streamio.sources.nats import NatsDataset
from streamio.sources.redis import RedisDataset
from streamio.sources.sql.stream import SqlStream
from streamio.storage.addresses import protocol, redact

Options = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """An address taken apart. rest: the address without the parameters that are ours."""

    rest: str
    hosts: str
    path: str
    own: Mapping[str, Any]


def _kafka(at: _Parts, options: Options) -> SourceDataset:
    if "@" in at.hosts:
        raise UsageError(
            "kafka:// with a user in it",
            fix="Use streamio.KafkaDataset(…, config=…) and streamio.capture in Python",
        )
    return KafkaDataset(at.hosts, _needed(at.path, "topic", "kafka://host:9092/topic"), 1, **at.own, **options)


def _redis(at: _Parts, options: Options) -> SourceDataset:
    own: Options = dict(at.own)
    streams = _needed(own.pop("stream", ""), "stream", "redis://host/0?stream=clicks").split(",")
    return RedisDataset(at.rest, streams, 1, **own, **options)


def _nats(at: _Parts, options: Options) -> SourceDataset:
    own: Options = dict(at.own)
    if "subject" in own:
        own["subjects"] = own.pop("subject").split(",")
    server = at.rest.removesuffix("/" + quote(at.path))
    return NatsDataset(server, _needed(at.path, "stream", "nats://host:4222/STREAM"), 1, **own, **options)


def _sql(at: _Parts, options: Options) -> SourceDataset:
    own: Options = dict(at.own)
    if options.pop("parse", None) is not None:
        raise UsageError("--parse for a database, whose columns have types", fix="Leave it out")
    key = own.pop("key", "").split(",") if "key" in own else None
    if "columns" in own:
        own["columns"] = own["columns"].split(",")
    options.pop("types", None)  # it has them of its own
    own["key" if options.get("follow") else "order"] = key
    return SqlStream(at.rest, 1, **own, **options)


@dataclass(frozen=True, slots=True)
class _Scheme:
    """make: from the parts and further options. own: parameters of the address that are ours."""

    make: Callable[[_Parts, Options], SourceDataset]
    own: tuple[str, ...]


_SQL = _Scheme(_sql, ("table", "query", "key", "where", "columns"))
_SCHEMES = {
    "kafka": _Scheme(_kafka, ("group", "start")),
    "redis": _Scheme(_redis, ("stream", "group", "start")),
    "rediss": _Scheme(_redis, ("stream", "group", "start")),
    "nats": _Scheme(_nats, ("subject", "group", "start")),
    "postgresql": _SQL,
    "postgres": _SQL,
    "sqlite": _SQL,
    "duckdb": _SQL,
}


def dataset_at(address: str, **options: Any) -> SourceDataset:
    """A data set over what an address names, with batches of one row.

    address: a path or glob of logs, or one of

        kafka://host:9092/topic                    nats://host:4222/STREAM?subject=a.*,b
        redis://host:6379/0?stream=a,b             postgresql://user@host/db?table=t&key=id  (sqlite, duckdb)

    options: parse, types, follow, on_error and what else the data set takes; None is left to it.

    Raises UsageError for what is none of these, without what is secret in it.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if not protocol(address):
        return LogDataset(address.removeprefix("file://"), 1, **given)
    scheme = _SCHEMES.get(protocol(address))
    if scheme is None:
        raise UsageError(
            f"{redact(address)!r} is no source that is known",
            fix=f"Give paths of logs, or an address with {', '.join(f'{name}://' for name in _SCHEMES)}",
        )
    return scheme.make(_parts(address, scheme.own), given)


def _parts(address: str, own: tuple[str, ...]) -> _Parts:
    # Not by urlunsplit, which would take slashes from sqlite:///path.
    head, _, query = address.partition("?")
    found = urlsplit(head)
    pairs = parse_qsl(query, keep_blank_values=True)
    others = urlencode([(name, value) for name, value in pairs if name not in own])
    return _Parts(
        rest=f"{head}?{others}" if others else head, hosts=found.netloc, path=unquote(found.path.strip("/")),
        own={name: value for name, value in pairs if name in own},
    )  # fmt: skip


def _needed(value: str, what: str, example: str) -> str:
    if not value:
        raise UsageError(f"the address names no {what}", fix=f"Write it as in {example}")
    return value
