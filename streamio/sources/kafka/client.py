"""Clients of a Kafka cluster: how they are made, what their errors become, and that none crosses a fork."""

from __future__ import annotations

import copy
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from streamio.errors import StorageError, StreamioError, UsageError
from streamio.extras import extra
from streamio.sources.hidden import Address
from streamio.sources.retries import LostConnection

_log = logging.getLogger("streamio")

HINT = "Give host:port, or several: 'a:9092,b:9092'. Who you are goes into config={'sasl.username': …}"
_OWN = {
    "bootstrap.servers": "bootstrap=", "group.id": "group=", "auto.offset.reset": "start= and on_lost=",
    "enable.auto.commit": "loader.commit()", "enable.auto.offset.store": "loader.commit()",
    "enable.partition.eof": "nothing: it is set", "error_cb": "the log: logging.getLogger('streamio')",
}  # fmt: skip
"""Settings of librdkafka that are not for the user, and what is instead of them."""
_SECRET = ("pass", "pwd", "token", "secret", "key", "pem", "credential", "oauthbearer.config")
"""Parts of names of settings whose values may not be shown."""
_USUAL: Mapping[str, Any] = {
    "log_level": 0,  # what matters of it comes as errors
    "fetch.wait.max.ms": 100,
    "max.poll.interval.ms": 86_400_000,  # a step may take long, and there is nobody to rebalance with
    "reconnect.backoff.max.ms": 2000,
    "statistics.interval.ms": 0,
}
_REFUSED = (
    "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)  # fmt: skip
_AWAY = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "_TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT")
_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")


class Cluster:
    """Where a cluster is and how one is let in. Pickled without connections.

    config:  further settings of librdkafka.
    patience: seconds for an answer.

    Raises UsageError for what is no address and for settings that are not the user's.
    """

    def __init__(self, bootstrap: str | Sequence[str], config: Mapping[str, Any] | None, patience: float) -> None:
        named = [bootstrap] if isinstance(bootstrap, str) else list(bootstrap or ())
        if not named or not all(isinstance(one, str) and one for one in named):
            raise UsageError(f"bootstrap of type {type(bootstrap).__name__}, or with what is no text", fix=HINT)
        settings = dict(config or {})
        secrets = {name: value for name, value in settings.items() if isinstance(value, str) and _is_secret(name)}
        self.address = Address([one.strip() for one in ",".join(named).split(",")], secrets, ("",), HINT)
        if any("@" in url for url in self.address.urls):
            raise UsageError(f"bootstrap names a user: {self.address.shown}", fix=HINT)
        own = [name for name in settings if name in _OWN]
        if own:
            raise UsageError(f"config sets {own[0]!r}", fix=f"There is {_OWN[own[0]]}")
        self._open = {name: value for name, value in settings.items() if name not in secrets}
        self.patience = patience

    def hurried(self, seconds: float) -> Cluster:
        """The same, which has no more patience than that."""
        made = copy.copy(self)
        made.patience = min(self.patience, seconds)
        return made

    @property
    def shown(self) -> str:
        return f"kafka {self.address.shown}"

    def settings(self) -> dict[str, Any]:
        return {
            **_USUAL, **self._open, **self.address.options, "bootstrap.servers": ",".join(self.address.urls),
        }  # fmt: skip

    @property
    def isolation(self) -> Any:
        """Up to where the end of a partition is seen: behind the last transaction that is over, by default."""
        kinds = extra("confluent_kafka", "kafka").IsolationLevel
        level = self._open.get("isolation.level", "read_committed")
        return kinds.READ_UNCOMMITTED if level == "read_uncommitted" else kinds.READ_COMMITTED


def _is_secret(name: str) -> bool:
    return any(part in name for part in _SECRET)


class Client:
    """One handle of librdkafka, which only the process that made it uses.

    make: of the settings that all have. `handle` is what it made.
    """

    def __init__(self, cluster: Cluster, make: Callable[[dict[str, Any]], Any]) -> None:
        self.cluster, self._pid = cluster, os.getpid()
        self._complaints: deque[str] = deque(maxlen=1)
        self._refused: StreamioError | None = None
        self._is_away = False
        complain = weakref.WeakMethod(self._complain)  # else each would hold the other until gc comes

        def told(found: Any) -> None:
            if (tell := complain()) is not None:
                tell(found)

        with self.ours():
            self.handle = make({**cluster.settings(), "error_cb": told})
        _open.add(self)

    @property
    def is_mine(self) -> bool:
        """Whether this process made it."""
        return self._pid == os.getpid()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Errors of the client come as ours, without secrets."""
        kafka = extra("confluent_kafka", "kafka")
        try:
            yield
        except kafka.KafkaException as error:
            found = error.args[0]
        except (TypeError, ValueError, RuntimeError) as error:
            found = error
        else:
            return
        raise self.error(found) from None

    def error(self, found: Any, **place: Any) -> StreamioError:
        """Ours for one of the client."""
        name = found.name() if hasattr(found, "name") else ""
        text = self.cluster.address.scrub(found.str() if hasattr(found, "str") else found)
        place = {"path": self.cluster.shown, **place}
        if name in _UNKNOWN:
            return UsageError(f"there is no such topic ({text})", fix="Give the name of a topic", **place)
        if name in ("_INVALID_ARG", "_CONFLICT", "_NOT_IMPLEMENTED", ""):
            return UsageError(f"the client refuses: {text}", fix="Correct config=", **place)
        if name in _REFUSED:
            return StorageError(f"refuses access: {text}", fix="Correct the account in config=", **place)
        if name in _AWAY:
            return self.lost(text)
        return StorageError(text, **place)

    def lost(self, text: str, **place: Any) -> StreamioError:
        """The broker does not answer: why, as far as that is known."""
        if not hasattr(self.handle, "consume"):
            self.handle.poll(0)  # what it has to say
        if self._refused is not None:
            return self._refused
        why = f" ({self._complaints[-1]})" if self._complaints else ""
        fix = "Start the broker, or correct bootstrap= and config="
        return LostConnection(f"{text}{why}", fix=fix, path=self.cluster.shown, **place)

    def check(self) -> None:
        """Raise what the broker refuses for good."""
        if self._refused is not None:
            raise self._refused

    def answered(self) -> None:
        """Something came, so that the next loss is to be told again."""
        self._is_away = False

    def _complain(self, found: Any) -> None:
        """Called by the client where nobody else is told; it tries again by itself."""
        if found.name() in _REFUSED or found.fatal():
            self._refused = self.error(found)
        if found.name() != "_ALL_BROKERS_DOWN":
            self._complaints.append(self.cluster.address.scrub(found.str()))
        elif not self._is_away:
            self._is_away = True
            why = f": {self._complaints[-1]}" if self._complaints else ""
            _log.warning("lost the connection to %s, which is tried again%s", self.cluster.shown, why)

    def close(self) -> None:
        if self.is_mine and hasattr(self.handle, "close"):
            self.handle.close()


_open: weakref.WeakSet[Client] = weakref.WeakSet()
_of_parent: list[Client] = []
"""Clients whose threads did not come along in a fork: to take one down would wait for them for ever."""


def _after_fork() -> None:
    _of_parent.extend(_open)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
