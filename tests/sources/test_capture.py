"""What a capture promises: each row lands once whatever ends it, nothing half written is seen, old shards stay."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import webdataset

import streamio
from streamio import (
    Chunk,
    FieldType,
    OutputExists,
    Partition,
    SampleError,
    ShardDataset,
    Source,
    SourceDataset,
    StreamLoader,
    UsageError,
)
from streamio.sources.base import Cursor, Work
from streamio.sources.fieldtypes import parse_fields
from tests.samples import jpg
from tests.sources.counting import Counting

SIZES = (23, 0, 5, 61, 14)
ALL = [p * 1000 + n for p, size in enumerate(SIZES) for n in range(size)]
FORMATS = ("tar", "lmdb", "hdf5")
FORK = multiprocessing.get_context("fork")


def landed(out: Any) -> list[int]:
    return [sample["number"] for sample in streamio.open(out)]


@dataclass(frozen=True)
class Typed(Source):
    """One row of each type, and one that lacks all but its number."""

    types: Mapping[str, FieldType]
    values: tuple[Any, ...]

    fingerprint = "typed"

    @property
    def fields(self) -> Mapping[str, FieldType]:
        return self.types

    def partitions(self) -> Sequence[Partition]:
        return [Partition("only")]

    def read_partition(self, partition: Partition, cursor: Cursor) -> Iterator[Chunk]:
        columns = {name: [value, None] for name, value in zip(self.fields, self.values, strict=True)}
        yield Chunk.of_values(partition, self.fields, {**columns, "number": [0, 1]}, [1, 2])


@dataclass(frozen=True)
class Running(Source):
    """Endless: each partition counts, as fast as it is read."""

    count_of_partitions: int

    endless = True
    fields = MappingProxyType({"number": FieldType.parse("int64")})
    fingerprint = "running"

    def partitions(self) -> Sequence[Partition]:
        return [Partition(f"run-{p}", {"base": p * 1_000_000}) for p in range(self.count_of_partitions)]

    def read(self, work: Work) -> Iterator[Chunk | None]:
        at = {partition.name: cursor or 0 for partition, cursor in work.partitions}
        while not work.stopped():
            for partition, _ in work.partitions:
                begin = at[partition.name]
                at[partition.name] = begin + 7
                numbers = range(begin, begin + 7)
                values = {"number": [partition.facts["base"] + n for n in numbers]}
                yield Chunk.of_values(partition, self.fields, values, [n + 1 for n in numbers])
            time.sleep(0.001)
            yield None


@pytest.mark.parametrize("format", FORMATS)
def test_every_row_lands_once_and_a_capture_that_is_complete_does_nothing_more(format: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = Counting(SIZES)
    asked = iter(range(100))
    first = streamio.capture(source, out, format=format, shard_samples=10, stopped=lambda: next(asked) == 2)
    assert 0 < first.rows < len(ALL) and not first.complete and first.lag == len(ALL) - first.rows
    second = streamio.capture(source, out, format=format, shard_samples=10)
    assert (second.rows, second.complete, second.lag) == (len(ALL) - first.rows, True, 0)
    assert sorted(landed(out)) == ALL
    before = (out / "streamio.json").read_bytes()
    third = streamio.capture(source, out, format=format, shard_samples=10)
    assert (third.rows, third.total_rows, third.complete) == (0, len(ALL), True)
    assert (out / "streamio.json").read_bytes() == before
    assert streamio.verify(out).ok
    assert not (out / ".streamio-partial").exists()


@pytest.mark.parametrize("format", FORMATS)
def test_values_come_back_as_what_they_were_declared(format: str, tmp_path: Path) -> None:
    picture = jpg(6, 4)
    fields = {
        "number": "int64", "cls": "int32", "score": "float64", "f": "float32", "u": "uint64", "flag": "bool",
        "when": "timestamp[ms]", "box": "float32[2,2]", "tokens": "int32[]", "text": "str", "user.name": "str",
        "meta": "json", "raw": "bytes", "picture": "jpg",
    }  # fmt: skip
    values = (
        0, 3, 0.5, 1.25, 2**64 - 1, True, "2024-01-02T03:04:05Z", [[1, 2], [3, 4]], [5, 6, 7], "ä\n", "x",
        {"a": [1, None]}, b"\0\1", picture,
    )  # fmt: skip
    streamio.capture(Typed(parse_fields(fields), values), tmp_path / "out", format=format)
    first, second = streamio.open(tmp_path / "out")
    assert second == {"__key__": "only:2", "number": 1}
    assert (first["number"], first["cls"], first["score"], first["flag"]) == (0, 3, 0.5, True)
    assert first["f"].dtype == np.float32 and first["f"] == 1.25 and first["f"].shape == ()
    assert first["u"].dtype == np.uint64 and int(first["u"]) == 2**64 - 1
    assert first["when"] == 1704164645000
    assert first["box"].dtype == np.float32 and first["box"].tolist() == [[1, 2], [3, 4]]
    assert first["tokens"].dtype == np.int32 and first["tokens"].tolist() == [5, 6, 7]
    assert first["text"].decode() == "ä\n" and first["user.name"] == b"x"
    assert json.loads(first["meta"]) == {"a": [1, None]}
    assert (first["raw"], first["picture"]) == (b"\0\1", picture)
    only = streamio.open(tmp_path / "out").where([0])
    (batch,) = StreamLoader(ShardDataset(only, 1), num_workers=0)
    assert batch["picture"].shape == (1, 4, 6, 3) and batch["meta"] == [{"a": [1, None]}]


def test_fields_of_equal_shape_are_gathered_at_once_until_one_lacks_it(tmp_path: Path) -> None:
    fields = parse_fields({"number": "int64", "box": "float32[2]"})
    source = Typed(fields, (0, [1, 2]))
    streamio.capture(source, tmp_path / "out", shard_samples=1, stopped=lambda: False)
    assert streamio.open(tmp_path / "out", shards=1).fields["box"].shape is None  # of all that are there
    assert [s.get("box") is None for s in streamio.open(tmp_path / "out")] == [False, True]


def test_a_shard_is_finished_after_a_while_and_at_its_size(tmp_path: Path) -> None:
    asked = iter(range(1_000_000))
    source = Running(2)
    until = time.monotonic() + 0.6
    report = streamio.capture(
        source, tmp_path / "slow", every=0.1, stopped=lambda: time.monotonic() > until and next(asked) >= 0
    )
    assert 2 <= report.shards <= 7
    report = streamio.capture(Counting(SIZES), tmp_path / "small", shard_size="20KB")
    sizes = [path.stat().st_size for path in (tmp_path / "small").glob("*.tar")]
    assert len(sizes) > 5 and max(sizes) < 26_000


def test_webdataset_reads_what_landed(tmp_path: Path) -> None:
    streamio.capture(Counting(SIZES), tmp_path / "out", shard_samples=20)
    tars = sorted(map(str, (tmp_path / "out").glob("*.tar")))
    assert len(tars) > 4
    samples = []
    for tar in tars:
        with open(tar, "rb") as stream:
            members = webdataset.tariterators.tar_file_expander([{"url": tar, "stream": stream}])
            samples += list(webdataset.tariterators.group_by_keys(members))
    assert sorted(int(sample["number.int"]) for sample in samples) == ALL
    assert {sample["text"].decode() for sample in samples} == {f"n{number}" for number in ALL}


def check_whole(out: Path, partitions: int) -> int:
    """All numbers of each partition from 0 on, once; how many there are."""
    numbers = Counter(landed(out))
    assert set(numbers.values()) <= {1}
    for p in range(partitions):
        own = sorted(n - p * 1_000_000 for n in numbers if n // 1_000_000 == p)
        assert own == list(range(len(own)))
    return len(numbers)


def hashes(out: Path) -> dict[str, str]:
    shards = [shard["name"] for shard in json.loads((out / "streamio.json").read_bytes())["shards"]]
    return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in shards}


@pytest.mark.parametrize("format", FORMATS)
def test_a_capture_that_is_killed_many_times_has_every_row_once(format: str, tmp_path: Path) -> None:
    out, random_ = tmp_path / "out", random.Random(format)
    seen: dict[str, str] = {}
    rows = 0
    for _ in range(12 if format == "tar" else 4):
        child = FORK.Process(
            target=streamio.capture, args=(Running(3), out), kwargs={"format": format, "every": 0.02}
        )
        child.start()
        until = time.monotonic() + random_.uniform(0.05, 0.25)
        while time.monotonic() < until:  # what can be read meanwhile is whole
            if (out / "streamio.json").exists():
                rows = check_whole(out, 3)
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        if (out / "streamio.json").exists():
            now = hashes(out)
            assert seen.items() <= now.items()
            seen = now
    asked = iter(range(10_000))
    streamio.capture(Running(3), out, format=format, every=0.02, stopped=lambda: next(asked) > 30)
    assert check_whole(out, 3) > rows > 0
    named = {name + end for name in hashes(out) for end in ("", ".idx")} | {"streamio.json"}
    assert set(os.listdir(out)) == named
    assert streamio.verify(out).ok


@pytest.mark.parametrize("call", range(14))
def test_a_capture_that_dies_in_any_step_of_a_publication_goes_on(call: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    streamio.capture(Counting(SIZES), out, shard_samples=30, stopped=lambda: True)
    before = landed(out)
    steps = iter(range(1000))

    def dies() -> None:
        def at(function: Any) -> Any:
            def step(*arguments: Any, **options: Any) -> Any:
                if next(steps) == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **options)

            return step

        os.rename, os.fsync = at(os.rename), at(os.fsync)
        streamio.capture(Counting(SIZES), out, shard_samples=30)

    child = FORK.Process(target=dies)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert set(before) <= set(landed(out)) and len(set(landed(out))) == len(landed(out))
    assert streamio.capture(Counting(SIZES), out, shard_samples=30).complete
    assert sorted(landed(out)) == ALL
    assert {path.suffix for path in out.iterdir()} == {".tar", ".idx", ".json"}
    assert len(list(out.glob("*.tar"))) == len(streamio.open(out).sizes)


def test_bad_rows_stop_it_or_are_left_out_and_the_rows_before_them_are_there(tmp_path: Path) -> None:
    source = Counting(SIZES, bad=(3005, 3060))
    with pytest.raises(SampleError, match=r"part-3.*number"):
        streamio.capture(source, tmp_path / "raise", shard_samples=5)
    assert set(landed(tmp_path / "raise")) < set(ALL)
    report = streamio.capture(SourceDataset(source, 1, on_error="skip"), tmp_path / "skip")
    assert (report.skipped, report.rows) == (2, len(ALL) - 2)
    assert sorted(landed(tmp_path / "skip")) == sorted(set(ALL) - {3005, 3060})


def test_what_belongs_to_something_else_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    streamio.write([{"number": 1}], tmp_path / "packed")
    with pytest.raises(OutputExists, match="does not grow"):
        streamio.capture(Counting(SIZES), tmp_path / "packed")
    streamio.capture(Counting(SIZES), tmp_path / "out")
    with pytest.raises(UsageError, match=r"the source .*counting \(23, 0, 5, 61, 14\); .*counting \(9,\)"):
        streamio.capture(Counting((9,)), tmp_path / "out")
    with pytest.raises(UsageError, match="the fields"):
        streamio.capture(SourceDataset(Counting(SIZES), 1, fields=("number",)), tmp_path / "out")
    with pytest.raises(OutputExists, match="tar shards, not hdf5"):
        streamio.capture(Counting(SIZES), tmp_path / "out", format="hdf5")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(OutputExists, match=r"notes\.txt"):
        streamio.capture(Counting(SIZES), tmp_path / "mine")
    with pytest.raises(UsageError, match="a ShardDataset cannot be captured"):
        streamio.capture(ShardDataset(tmp_path / "out", 1), tmp_path / "new")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="15 parsecs"):
        streamio.capture(Counting(SIZES), tmp_path / "new", every="15 parsecs")
    assert sorted(landed(tmp_path / "out")) == ALL and os.listdir(tmp_path / "mine") == ["notes.txt"]


def test_two_captures_at_a_time_are_refused(tmp_path: Path) -> None:
    ends = threading.Event()
    first = threading.Thread(
        target=streamio.capture, args=(Running(1), tmp_path / "out"), kwargs={"every": 0.02, "stopped": ends.is_set}
    )
    first.start()
    try:
        while not (tmp_path / "out" / "streamio.json").exists():
            time.sleep(0.01)
        with pytest.raises(OutputExists, match="another pack is writing"):
            streamio.capture(Running(1), tmp_path / "out")
    finally:
        ends.set()
        first.join()
    check_whole(tmp_path / "out", 1)
