"""A file server on 127.0.0.1 with one vice at a time, which counts what it is asked for."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Vices:
    """What the server does wrong.

    ranges:   answers Range requests; False: always the whole file.
    cut:      closes the connection after this part (0 to 1) of the body.
    status:   answers files with these codes.
    encoding: "gzip": compresses although nobody asked for it.
    stall:    sends the headers of this file and then nothing; True: of every file.
    rate:     bytes per second.
    reset:    closes without an answer.
    times:    how often per file the vice shows, None for always.

    Files are named by a part of their name, or by a shard's number (2 is the file with 000002).
    """

    ranges: bool = True
    cut: float | None = None
    status: Mapping[str | int, int] = field(default_factory=dict)
    encoding: str | None = None
    stall: str | int | bool | None = None
    rate: float | None = None
    reset: str | int | bool | None = None
    times: int | None = None


class Server:
    """A running server.

    url:   of its folder.
    asked: (file, header X-Reader, client's port, header Range) of each request.
    """

    def __init__(self, folder: Path, vices: Vices) -> None:
        self.folder, self.vices = folder, vices
        self.asked: list[tuple[str, str | None, int, str | None]] = []
        self.stopping = threading.Event()
        self._shown: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._http = _Quiet(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def hits(self, name: str | int | None = None) -> Any:
        """Requests per file; with a name or number, the requests for the files that it means."""
        counts = Counter(asked[0] for asked in self.asked)
        return counts if name is None else sum(n for file, n in counts.items() if _means(name, file))

    def shows(self, name: str) -> bool:
        """Whether the vice is due for this request."""
        with self._lock:
            self._shown[name] += 1
            return self.vices.times is None or self._shown[name] <= self.vices.times

    def close(self) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextmanager
def serve(folder: str | Path, **vices: Any) -> Iterator[Server]:
    """Serve a folder over http until the block ends; `vices` as in `Vices`."""
    server = Server(Path(folder), Vices(**vices))
    try:
        yield server
    finally:
        server.close()


def _means(key: str | int | bool, name: str) -> bool:
    if isinstance(key, bool):
        return key
    return (f"{int(key):06d}" if str(key).isdigit() else str(key)) in name


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    owner: Server

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what is tested."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def _serve(self, *, body: bool) -> None:
        server: Server = self.server.owner  # type: ignore[attr-defined]
        vices = server.vices
        name = unquote(urlsplit(self.path).path).strip("/")
        server.asked.append((name, self.headers["X-Reader"], self.client_address[1], self.headers["Range"]))
        path = server.folder / name
        if path.is_dir():
            return self._listing(path)
        bad = server.shows(name)
        codes = [code for key, code in vices.status.items() if _means(key, name)]
        if bad and vices.reset is not None and _means(vices.reset, name):
            return self._hang_up()
        if (codes and bad) or not path.is_file():
            self.send_response(codes[0] if codes and bad else 404)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        data = path.read_bytes()
        start, stop = self._headers(data, str(path.stat().st_mtime_ns))
        if vices.encoding:
            data = gzip.compress(data)
            stop = len(data)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if body:
            if bad and vices.stall is not None and _means(vices.stall, name):
                server.stopping.wait()
                return self._hang_up()
            self._body(data[start:stop], vices.cut if bad else None, vices.rate)

    def _headers(self, data: bytes, tag: str) -> tuple[int, int]:
        """Send all but the length; gives the range to send."""
        vices = self.server.owner.vices  # type: ignore[attr-defined]
        wanted = self.headers["Range"]
        start, stop, code = 0, len(data), 200
        if wanted and vices.ranges and self.headers["If-Range"] in (None, f'"{tag}"'):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop, code = int(first), min(len(data), int(last or len(data)) + 1), 206
            if start >= len(data):
                start, stop, code = 0, 0, 416
        self.send_response(code)
        if code == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("ETag", f'"{tag}"')
        if vices.encoding:
            self.send_header("Content-Encoding", vices.encoding)
        return start, stop

    def _body(self, data: bytes, cut: float | None, rate: float | None) -> None:
        end = len(data) if cut is None else int(len(data) * cut)
        step = end if rate is None else max(1, int(rate / 20))
        for at in range(0, end, step or 1):
            self.wfile.write(data[at : min(end, at + step)])
            if rate is not None:
                time.sleep(0.05)
        if end < len(data):
            self._hang_up()

    def _listing(self, folder: Path) -> None:
        links = "".join(f'<a href="{item.name}">{item.name}</a>\n' for item in sorted(folder.iterdir()))
        page = f'<html><a href="../">up</a><a href="?C=M">sort</a>{links}</html>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def _hang_up(self) -> None:
        """Close for good: forked children of the test hold this socket too, so closing alone says nothing."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
