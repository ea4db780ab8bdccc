"""What log tests write and read. Lines are `{"i": number, …}`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from streamio import LogDataset, StreamLoader


def lines(numbers: Iterable[int]) -> bytes:
    return b"".join(json.dumps({"i": i, "text": f"line {i}"}).encode() + b"\n" for i in numbers)


def write(path: Path, numbers: Iterable[int]) -> None:
    path.write_bytes(lines(numbers))


def append(path: Path, numbers: Iterable[int]) -> None:
    with path.open("ab") as file:
        file.write(lines(numbers))


class Run:
    """A loader over logs and its iterator. `got`: all numbers that it has given."""

    def __init__(self, paths: Any, batch: int = 4, *, state: Any = None, workers: int = 0, **options: Any) -> None:
        loading = {name: options.pop(name) for name in ("transport", "context") if name in options}
        if options.get("follow"):
            options = {"poll": 0.02, "max_wait": 0.05, "idle_timeout": 0.4, **options}
        self.dataset = LogDataset(paths, batch, **options)
        self.loader = StreamLoader(self.dataset, num_workers=workers, **loading)
        if state is not None:
            self.loader.load_state_dict(json.loads(json.dumps(state)))
        self._batches: Iterator[Any] | None = None
        self.got: list[int] = []

    def take(self, rows: int) -> list[int]:
        """The next rows, this many at least: whole batches."""
        begin, end = len(self.got), time.monotonic() + 20
        while len(self.got) - begin < rows:
            self._batches = self._batches or iter(self.loader)
            for batch in self._batches:
                self.got += batch["i"].tolist()
                if len(self.got) - begin >= rows:
                    return self.got[begin:]
            self._batches = None
            assert time.monotonic() < end, f"{len(self.got) - begin} of {rows} rows came"
        return []

    def rest(self) -> list[int]:
        """What is left of an epoch; of files that are followed, what comes until nothing has come for a while."""
        begin = len(self.got)
        for batch in self._batches or self.loader:
            self.got += batch["i"].tolist()
        self._batches = None
        return self.got[begin:]

    def state(self) -> Any:
        return self.loader.state_dict()


def until(condition: Any, seconds: float = 20.0) -> None:
    """Wait for something that will be true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def same_inode(path: Path, content: bytes, inode: int, tries: int = 2000) -> bool:
    """Make a new file with the inode that a deleted one had; whether that could be done."""
    for attempt in range(tries):
        new = path.with_name(f"{path.name}.try{attempt}")
        new.write_bytes(content)
        if new.stat().st_ino == inode:
            os.rename(new, path)
            for other in path.parent.glob(f"{path.name}.try*"):
                other.unlink()
            return True
    return False
