"""What every source must do. A new one that has an end inherits `SourceContract`, and gives one fixture:

class TestMine(SourceContract):
    @pytest.fixture
    def given(self):
        return Given(MySource(…), "id", [1, 2, 3, …])
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import streamio
from streamio import Source, SourceDataset, StreamLoader, UsageError
from streamio.sources.base import Chunk, Partition, Work

LOADERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "transport": "thread"},
    {"num_workers": 3, "context": "fork"},
]


@dataclass(frozen=True)
class Given:
    """A source with four partitions or more, of which two ranks get about as many rows.

    values: of one field of all rows, each once.

    counts: whether rows are counted for several ranks.
    """

    source: Source
    field: str
    values: list[Any]
    counts: bool = True

    def dataset(self, batch_size: int = 10, **options: Any) -> SourceDataset:
        return SourceDataset(self.source, batch_size, fields=(self.field,), **options)

    def sorted(self) -> list[Any]:
        assert len(set(self.values)) == len(self.values) > 40
        return sorted(self.values)

    def chunks(self, partition: Partition, cursor: Any) -> Iterator[Chunk]:
        """Those with rows of one partition, whose end has to be said."""
        ended = False
        for chunk in self.source.read(Work(partitions=[(partition, cursor)])):
            if chunk is not None:
                assert chunk.partition == partition.name and not (ended and len(chunk))
                ended = ended or chunk.ended
                yield chunk
        assert ended


def values(batches: Any) -> list[Any]:
    """Of tuples of one field."""
    return [value for (batch,) in batches for value in (batch.tolist() if hasattr(batch, "tolist") else batch)]


def take(loader: StreamLoader, batches: int) -> list[Any]:
    iterator = iter(loader)
    return values(next(iterator) for _ in range(batches))


def as_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


class SourceContract:
    @pytest.fixture
    def given(self) -> Given:
        raise NotImplementedError

    @pytest.fixture
    def ended(self) -> Iterator[list[StreamLoader]]:
        loaders: list[StreamLoader] = []
        yield loaders
        for loader in loaders:
            loader.close()

    def test_it_names_the_same_partitions_everywhere(self, given: Given) -> None:
        first, again = given.source.partitions(), pickle.loads(pickle.dumps(given.source)).partitions()
        assert [one.name for one in first] == [one.name for one in again]
        assert len({one.name for one in first}) == len(first)
        assert as_json([dict(one.facts) for one in first]) == [dict(one.facts) for one in first]
        assert pickle.loads(pickle.dumps(given.source)).fingerprint == given.source.fingerprint

    def test_it_goes_on_behind_any_row(self, given: Given) -> None:
        for partition in given.source.partitions():
            rows = [
                chunk.cursor(row) for chunk in given.chunks(partition, partition.start) for row in range(len(chunk))
            ]
            for number in sorted({0, len(rows) // 3, len(rows) - 1} & set(range(len(rows)))):
                behind = as_json(rows[number])
                rest = [c.cursor(row) for c in given.chunks(partition, behind) for row in range(len(c))]
                assert rest == rows[number + 1 :]

    def test_every_chunk_has_columns_of_its_length_and_of_known_fields(self, given: Given) -> None:
        for partition in given.source.partitions():
            for chunk in given.chunks(partition, partition.start):
                assert set(chunk.columns) <= set(given.source.fields)
                assert {len(column) for column in chunk.columns.values()} <= {len(chunk)}
                assert len(set(chunk.row_numbers().tolist())) == len(chunk)
                assert len({chunk.place(row) for row in range(len(chunk))}) == len(chunk)

    @pytest.mark.parametrize("options", LOADERS, ids=str)
    def test_every_row_comes_once_in_each_epoch(
        self, options: dict[str, Any], given: Given, ended: list[StreamLoader]
    ) -> None:
        loader = StreamLoader(given.dataset(), **options)
        ended.append(loader)
        for _ in range(2):
            assert sorted(values(loader)) == given.sorted()

    def test_a_plain_dataloader_reads_it_too(self, given: Given) -> None:
        loader = DataLoader(given.dataset(), batch_size=None, num_workers=2)
        assert sorted(values(loader)) == given.sorted()

    @pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 0)])
    def test_a_state_goes_on_with_other_workers(
        self, before: int, after: int, given: Given, ended: list[StreamLoader]
    ) -> None:
        first = StreamLoader(given.dataset(), num_workers=before, context="fork" if before else None)
        ended.append(first)
        came = take(first, 3)
        second = StreamLoader(given.dataset(4), num_workers=after, context="fork" if after else None)
        ended.append(second)
        second.load_state_dict(as_json(first.state_dict()))
        assert sorted(came + values(second)) == given.sorted()
        assert sorted(values(second)) == given.sorted()

    def test_the_state_behind_the_last_batch_is_the_start_of_the_next_epoch(self, given: Given) -> None:
        loader = StreamLoader(given.dataset(), num_workers=0)
        for _ in loader:
            state = loader.state_dict()
        assert state == loader.state_dict()
        other = StreamLoader(given.dataset(), num_workers=0)
        other.load_state_dict(as_json(state))
        assert other.epoch == 1 and sorted(values(other)) == given.sorted()

    def test_ranks_make_as_many_batches_and_each_row_comes_once(self, given: Given) -> None:
        if not given.counts:
            with pytest.raises(UsageError, match="steps="):
                next(iter(StreamLoader(given.dataset(rank=0, world_size=2), num_workers=0)))
            return
        epochs = [
            list(StreamLoader(given.dataset(rank=rank, world_size=2), num_workers=0)) for rank in range(2)
        ]  # fmt: skip
        assert len(epochs[0]) == len(epochs[1])
        assert sorted(values(epochs[0]) + values(epochs[1])) == given.sorted()

    def test_the_states_of_all_ranks_load_on_one(self, given: Given) -> None:
        states, came = [], []
        for rank in range(2):
            loader = StreamLoader(given.dataset(2, rank=rank, world_size=2, steps=5), num_workers=0)
            came += take(loader, 3)
            states.append(as_json(loader.state_dict()))
        one = StreamLoader(given.dataset(), num_workers=0)
        one.load_state_dict(states)  # type: ignore[arg-type]
        assert sorted(came + values(one)) == given.sorted()

    def test_a_capture_that_was_stopped_goes_on(self, given: Given, tmp_path: Path) -> None:
        first = streamio.capture(given.dataset(), tmp_path / "out", shard_samples=15, stopped=lambda: True)
        assert first.rows < len(given.values)
        assert streamio.capture(given.dataset(), tmp_path / "out", shard_samples=15).complete
        landed = values(
            StreamLoader(streamio.ShardDataset(tmp_path / "out", 7, fields=(given.field,)), num_workers=0)
        )
        assert sorted(landed) == given.sorted()
