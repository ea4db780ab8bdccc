"""Where a server is and how one is let in: nothing of it shows a password."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from streamio.errors import UsageError
from streamio.storage.addresses import protocol, redact, scrub


class Address:
    """The addresses of a server, and further arguments of its client.

    urls:    such as `redis://user:password@host:6379/0`; several for the servers of one cluster.
    schemes: that are known; "" allows for host:port.
    shown:   the addresses without secrets.

    Raises UsageError for what is no address.
    """

    def __init__(
        self, urls: str | Sequence[str], options: Mapping[str, Any] | None, schemes: Sequence[str], hint: str
    ) -> None:
        self.urls = (urls,) if isinstance(urls, str) else tuple(urls)
        self.options = dict(options or {})
        if not self.urls or not all(isinstance(url, str) and url for url in self.urls):
            raise UsageError(f"{len(self.urls)} addresses, or one that is no text", fix=hint)
        for url in self.urls:
            if protocol(url) not in schemes:
                raise UsageError(f"{self._hidden(url)!r} is no address that is known here", fix=hint)
        self.shown = ", ".join(map(self._hidden, self.urls))

    def scrub(self, error: object) -> str:
        """A message of the client without what is secret, on one line; the name of its type where it has none."""
        text = str(error)
        for url in self.urls:
            text = scrub(text, url if "://" in url else f"at://{url}", self.options)
        return " ".join(text.split()) or type(error).__name__

    @staticmethod
    def _hidden(url: str) -> str:
        return redact(url) if "://" in url else redact(f"at://{url}").removeprefix("at://")

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker has to know the password. It is masked, so that it is no text in what is sent; no more than that.
        return _unmasked, (base64.b85encode(pickle.dumps((self.urls, self.options, self.shown))[::-1]),)

    def __repr__(self) -> str:
        return f"Address('{self.shown}')"


def _unmasked(masked: bytes) -> Address:
    address = Address.__new__(Address)
    address.urls, address.options, address.shown = pickle.loads(base64.b85decode(masked)[::-1])
    return address
