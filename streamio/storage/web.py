"""Files behind http(s), with the standard library's client.

fsspec's http file system is not used, for three reasons. It keeps an aiohttp session on a thread of its own,
which does not exist in a forked worker. It writes whole addresses, signatures included, to the debug log.
And `cat_file` takes an answer of 200 to a range request for the range. Here each request has its own
connection, closed with the answer, so there is nothing that a fork, a pickle or a dead worker could share;
one connection per shard costs nothing beside the shard. Proxies come from the environment as usual.
"""

from __future__ import annotations

import base64
import re
import socket
import ssl
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html.parser import HTMLParser
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit
from urllib.request import Request, build_opener

from streamio.errors import StorageError, UsageError
from streamio.storage.addresses import redact, scrub
from streamio.storage.transfer import Answer, Interrupted, NotFound, OutOfRange

_BLOCK = 1 << 20
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_LISTING = 16 << 20


class WebFile:
    """A file or folder behind http(s); a `Remote`. Options: `headers`, sent with each request."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        if unknown := sorted(set(options) - {"headers"}):
            raise UsageError(
                f"no such storage option for http: {', '.join(unknown)}",
                fix="Known ones: headers", path=redact(url),
            )  # fmt: skip
        self._shown, self._given, self._options = redact(url), url, options
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        self._user = unquote(user)
        self._url = urlunsplit((parts.scheme, host, quote(parts.path, _KEPT), quote(parts.query, _KEPT), ""))
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "streamio", **options.get("headers", {})}

    @contextmanager
    def open(
        self, start: int, end: int | None, *, size: int | None, tag: str | None, timeout: float
    ) -> Iterator[Answer]:
        wanted = {}
        if start or end is not None:
            wanted["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
            if tag is not None:
                wanted["If-Range"] = tag
        with self._ask(wanted, timeout) as response:
            yield self._answer(response, start)

    def size(self, timeout: float) -> int:
        # GET of one byte: addresses that are signed for GET refuse HEAD
        try:
            with self._ask({"Range": "bytes=0-0"}, timeout) as response:
                total = self._answer(response, 0).total
        except OutOfRange:
            return 0
        if total is None:
            raise StorageError("the server does not say how large it is", path=self._shown)
        return total

    def names(self, timeout: float) -> list[str]:
        with self._ask({}, timeout) as response:
            blocks = self._answer(response, 0).blocks
            page = b"".join(self._bounded(blocks)).decode("utf-8", "replace")
        links = _Links()
        links.feed(page)
        return sorted(_children(self._url, links.found))

    def _bounded(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        total = 0
        for block in blocks:
            total += len(block)
            if total > _LISTING:
                raise StorageError(f"is no list of files: more than {_LISTING:,} bytes", path=self._shown)
            yield block

    def _ask(self, wanted: Mapping[str, str], timeout: float) -> HTTPResponse:
        request = Request(self._url, headers={**self._headers, **wanted})
        if self._user:
            # unredirected: it must not reach the host that a redirect names
            login = base64.b64encode(self._user.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {login}")
        try:
            return build_opener().open(request, timeout=timeout)  # type: ignore[no-any-return]
        except HTTPError as error:
            error.close()
            raise self._refused(error) from None
        except (OSError, HTTPException) as error:
            raise self._failed(error, timeout) from None

    def _refused(self, error: HTTPError) -> Exception:
        if error.code == 416:
            return OutOfRange()
        phrase = _phrase(error.code)
        if error.code in _BUSY:
            after = error.headers.get("Retry-After", "")
            return Interrupted(f"the server answers {phrase}", float(after) if after.isdigit() else 0.0)
        kind = NotFound if error.code in (404, 410) else StorageError
        return kind(f"the server answers {phrase}", fix=_FIXES.get(error.code, ""), path=self._shown)

    def _failed(self, error: Exception, timeout: float) -> Exception:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME:
            return StorageError("there is no host of this name", fix="Look at the address", path=self._shown)
        if isinstance(reason, ssl.SSLCertVerificationError):
            return StorageError(f"its certificate is refused: {reason.verify_message}", path=self._shown)
        if isinstance(reason, TimeoutError):
            return Interrupted(f"the server sent nothing for {timeout:.3g} s")
        return Interrupted(f"{type(reason).__name__}: {scrub(str(reason), self._given, self._options)}")

    def _answer(self, response: HTTPResponse, start: int) -> Answer:
        headers = response.headers
        coding = headers.get("Content-Encoding", "identity").lower()
        blocks = self._blocks(response)
        if coding != "identity":
            return Answer(0, None, self._decoded(blocks, coding, response.status), None, resumable=False)
        strong = headers.get("ETag", "W/")
        tag = headers.get("Last-Modified") if strong.startswith("W/") else strong
        if response.status != 206:
            certain = response.length is not None or response.chunked
            return Answer(0, response.length, blocks, tag, certain=certain)
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", ""))
        if not span or int(span[1]) != start:
            raise Interrupted("the server answers with another range than the one asked for")
        return Answer(start, None if span[2] == "*" else int(span[2]), blocks, tag)

    def _blocks(self, response: HTTPResponse) -> Iterator[bytes]:
        promised, got = response.length, 0
        while got != promised:
            try:
                block = response.read1(_BLOCK if promised is None else min(_BLOCK, promised - got))
            except TimeoutError:
                raise Interrupted("the server stopped sending in the middle") from None
            except (OSError, HTTPException) as error:
                raise self._failed(error, 0) from None
            if not block:
                break
            got += len(block)
            yield block
        # the client takes a connection that closes early for the end of the file
        if promised is not None and got < promised:
            raise Interrupted("the connection dropped")

    def _decoded(self, blocks: Iterator[bytes], coding: str, status: int) -> Iterator[bytes]:
        """The file's bytes, from a server that compresses although it was asked not to."""
        if coding not in ("gzip", "x-gzip", "deflate") or status == 206:
            raise StorageError(
                f"the server sends it compressed ({coding}) though asked not to",
                fix="Turn compression off for shard files on the server", path=self._shown,
            )  # fmt: skip
        inflate = zlib.decompressobj(wbits=47)
        for block in blocks:
            try:
                while block:
                    yield inflate.decompress(block, _BLOCK)
                    block = inflate.unconsumed_tail
            except zlib.error as error:
                raise Interrupted(f"the compressed answer is broken: {error}") from None
        if not inflate.eof:
            raise Interrupted("the compressed answer ended early")


_KEPT = "/%:=&?~+!$,;'@()*[]"
_FIXES = {
    401: "Give a login: https://user:password@host/…, or storage_options={'headers': …}",
    403: "Has the signature of the address run out? May this account read it?",
    404: "Look at the address; is the set complete there?",
}


def _phrase(code: int) -> str:
    try:
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        return str(code)


class _Links(HTMLParser):
    """The targets of all links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _children(url: str, links: list[str]) -> set[str]:
    """Names of the files directly below a folder, of all that its page links to."""
    folder = urlunsplit(urlsplit(url)._replace(path=urlsplit(url).path.rstrip("/") + "/", query=""))
    below = (urljoin(folder, link).partition("?")[0].partition("#")[0] for link in links)
    names = {unquote(link[len(folder) :]) for link in below if link.startswith(folder)}
    return {name for name in names if name and "/" not in name}
