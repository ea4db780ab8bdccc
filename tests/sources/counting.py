"""A source for tests: partitions that count, in as many lines as a user needs for one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamio import Chunk, FieldType, Partition, Source
from streamio.sources.base import Cursor, Work

FIELDS = {"number": FieldType.parse("int64"), "text": FieldType.parse("str")}


@dataclass(frozen=True)
class Counting(Source):
    """Partition `p` has the numbers p * 1000 … p * 1000 + sizes[p] - 1, in chunks of 7."""

    sizes: tuple[int, ...]
    bad: tuple[int, ...] = ()

    @property
    def fields(self) -> Mapping[str, FieldType]:
        return FIELDS

    @property
    def fingerprint(self) -> str:
        return f"counting {self.sizes}"

    def partitions(self) -> Sequence[Partition]:
        return [Partition(f"part-{p}", {"base": p * 1000, "size": size}) for p, size in enumerate(self.sizes)]

    def read_partition(self, partition: Partition, cursor: Cursor) -> Iterator[Chunk]:
        base, size = partition.facts["base"], partition.facts["size"]
        for begin in range(cursor or 0, size, 7):
            numbers = list(range(base + begin, base + min(begin + 7, size)))
            values: dict[str, list[Any]] = {"number": list(numbers), "text": [f"n{number}" for number in numbers]}
            for number in set(numbers) & set(self.bad):
                values["number"][number - numbers[0]] = "broken"
            yield Chunk.of_values(partition, FIELDS, values, [number - base + 1 for number in numbers])

    def count(self, partition: Partition, cursor: Cursor) -> int:
        return int(partition.facts["size"]) - (cursor or 0)


@dataclass(frozen=True)
class Ticking(Source):
    """Endless: each partition has a further number after so many seconds, and none for ever where that is None."""

    every: tuple[float | None, ...]

    endless = True

    @property
    def fields(self) -> Mapping[str, FieldType]:
        return FIELDS

    @property
    def fingerprint(self) -> str:
        return f"ticking {self.every}"

    def partitions(self) -> Sequence[Partition]:
        return [Partition(f"tick-{p}", {"base": p * 1_000_000}) for p in range(len(self.every))]

    def read(self, work: Work) -> Iterator[Chunk | None]:
        at = {partition.name: cursor or 0 for partition, cursor in work.partitions}
        due = dict.fromkeys(at, time.monotonic())
        while True:
            came = False
            for partition, _ in work.partitions:
                every = self.every[int(partition.name.removeprefix("tick-"))]
                if every is None or time.monotonic() < due[partition.name]:
                    continue
                came = True
                due[partition.name] += every
                number = partition.facts["base"] + at[partition.name]
                at[partition.name] += 1
                values = {"number": [number], "text": [None]}
                yield Chunk.of_values(partition, FIELDS, values, [at[partition.name]])
            if not came:
                time.sleep(0.01)
                yield None
