"""How long and how often a server that does not answer is asked again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from streamio.errors import StorageError, UsageError

_log = logging.getLogger("streamio")
_T = TypeVar("_T")

RETRY_FOR = 60.0
"""Seconds, by default."""

_FIRST_PAUSE, _LONGEST_PAUSE, _STEP = 0.05, 2.0, 0.1


class LostConnection(StorageError):
    """The server does not answer; asking again may help. Without secrets."""


class Retries:
    """Asks again for a while, with growing pauses; says so once.

    server:    as it may be shown.
    retry_for: seconds from the first failure after which it is given up; 0: at once.
    stopped:   asked during pauses: whether to wait no longer.
    """

    def __init__(self, server: str, retry_for: float, stopped: Callable[[], bool] = lambda: False) -> None:
        self._server, self._retry_for, self._stopped = server, retry_for, stopped
        self.worked()

    def worked(self) -> None:
        """The server answered: the next loss has all the time again."""
        self._since: float | None = None
        self._pause = _FIRST_PAUSE

    def failed(self, error: LostConnection) -> None:
        """Wait a moment, or until the reader is stopped. Raises the error when the time is over."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if self._retry_for:
                _log.warning("lost the connection to %s; trying again for %g s", self._server, self._retry_for)
        until = min(now + self._pause, self._since + self._retry_for)
        if now >= until:
            raise error
        while time.monotonic() < until and not self._stopped():
            time.sleep(min(_STEP, self._pause))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def ask(self, work: Callable[[], _T]) -> _T:
        """What `work` gives, again and again while it raises LostConnection."""
        while True:
            try:
                made = work()
            except LostConnection as error:
                self.failed(error)
            else:
                self.worked()
                return made


def check_retry_for(seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
        raise UsageError(f"retry_for={seconds!r}", fix="Give seconds, or 0 to try once")
