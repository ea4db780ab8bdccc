"""What holds for every source: each row once, on any topology, with any transport, also after a resume."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from streamio import Fill, SourceDataset, StreamLoader, UsageError
from streamio.errors import SampleError, TailError
from tests.sources.conformance import Given, SourceContract
from tests.sources.counting import Counting, Ticking

pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")  # of torchdata

SIZES = (23, 0, 5, 61, 14)
ALL = [p * 1000 + n for p, size in enumerate(SIZES) for n in range(size)]
TRANSPORTS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "transport": "thread"},
    {"num_workers": 1, "context": "fork"},
    {"num_workers": 3, "context": "fork", "threads": 2},
    {"num_workers": 2, "context": "spawn"},
    {},
]


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["number"].tolist()]


def take(loader: StreamLoader, batches: int) -> list[int]:
    iterator = iter(loader)
    return numbers(next(iterator) for _ in range(batches))


@pytest.fixture
def ended() -> Iterator[list[StreamLoader]]:
    loaders: list[StreamLoader] = []
    yield loaders
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("options", TRANSPORTS, ids=str)
def test_every_row_comes_once_in_each_epoch(options: dict[str, Any], ended: list[StreamLoader]) -> None:
    loader = StreamLoader(SourceDataset(Counting(SIZES), 10), **options)
    ended.append(loader)
    for _ in range(2):
        batches = list(loader)
        assert sorted(numbers(batches)) == ALL
        assert all(batch["text"] == [f"n{number}" for number in batch["number"].tolist()] for batch in batches)
        assert all(batch["number"].dtype == torch.int64 for batch in batches)


class TestCounting(SourceContract):
    """What holds for any source with an end."""

    @pytest.fixture
    def given(self) -> Given:
        return Given(Counting(SIZES), "number", ALL)


def test_the_state_behind_the_last_batch_is_the_start_of_the_next_epoch() -> None:
    loader = StreamLoader(SourceDataset(Counting(SIZES), 10), num_workers=0)
    for _ in loader:
        state = loader.state_dict()
    assert state == loader.state_dict()
    assert (state["epoch"], state["partitions"], state["cursors"]) == (1, None, {})
    other = StreamLoader(SourceDataset(Counting(SIZES), 10), num_workers=0)
    other.load_state_dict(state)
    assert sorted(numbers(other)) == ALL


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_make_as_many_batches_and_each_row_comes_once(
    world: int, workers: int, ended: list[StreamLoader]
) -> None:
    sizes = (23, 19, 15, 61, 14)
    epochs = []
    for rank in range(world):
        data = SourceDataset(Counting(sizes), 10, rank=rank, world_size=world)
        loader = StreamLoader(data, num_workers=workers, context="fork" if workers else None)
        ended.append(loader)
        epochs.append([batch["number"].tolist() for batch in loader])
    assert len({len(batches) for batches in epochs}) == 1
    came = [number for batches in epochs for batch in batches for number in batch]
    assert sorted(came) == sorted(p * 1000 + n for p, size in enumerate(sizes) for n in range(size))
    assert all(1 <= len(batch) <= 10 for batches in epochs for batch in batches)


def test_the_states_of_all_ranks_load_on_another_number_of_ranks() -> None:
    states, came = [], []
    for rank in range(2):
        loader = StreamLoader(SourceDataset(Counting(SIZES), 10, rank=rank, world_size=2), num_workers=0)
        came += take(loader, 3)
        states.append(json.loads(json.dumps(loader.state_dict())))
    with pytest.raises(UsageError, match="rank 0 of 2"):
        StreamLoader(SourceDataset(Counting(SIZES), 10)).load_state_dict(states[0])
    one = StreamLoader(SourceDataset(Counting(SIZES), 10), num_workers=0)
    one.load_state_dict(states)  # type: ignore[arg-type]
    assert sorted(came + numbers(one)) == ALL


def test_a_rank_without_enough_rows_is_refused_before_the_first_batch() -> None:
    loader = StreamLoader(SourceDataset(Counting((40, 1)), 10, rank=0, world_size=2), num_workers=0)
    with pytest.raises(TailError, match="rank 1 has 1 samples"):
        iter(loader).__next__()


def test_bad_rows_are_raised_or_left_out_of_full_batches() -> None:
    source = Counting(SIZES, bad=(3, 3005, 3060))
    with pytest.raises(SampleError, match=r"part-0.*number"):
        list(StreamLoader(SourceDataset(source, 10), num_workers=0))
    data = SourceDataset(source, 10, on_error="skip")
    batches = list(StreamLoader(data, num_workers=0))
    assert sorted(numbers(batches)) == [number for number in ALL if number not in (3, 3005, 3060)]
    assert [len(batch["number"]) for batch in batches] == [10] * 10
    assert data.stats().skipped == 3


def test_an_endless_source_ends_when_nothing_came_for_a_while_and_goes_on_where_it_was(
    ended: list[StreamLoader],
) -> None:
    data = SourceDataset(Ticking((0.001, None, 0.002)), 5, steps=6, missing={"text": Fill("")})
    loader = StreamLoader(data, num_workers=3, context="fork")
    ended.append(loader)
    first, second = numbers(loader), numbers(loader)
    assert len(first) == len(second) == 30
    of_one = [number for number in first + second if number < 1_000_000]
    assert of_one == list(range(len(of_one)))
    silent = StreamLoader(SourceDataset(Ticking((None,)), 5, idle_timeout=0.2), num_workers=0)
    assert list(silent) == []


def test_a_silent_worker_holds_up_nobody_and_a_loop_that_is_left_ends_at_once(ended: list[StreamLoader]) -> None:
    data = SourceDataset(Ticking((None, 0.001)), 5, fields=("number",))
    loader = StreamLoader(data, num_workers=2, context="fork")
    ended.append(loader)
    iterator = iter(loader)
    got = [next(iterator)[0].tolist() for _ in range(3)]
    assert list(chain(*got)) == list(range(1_000_000, 1_000_015))
    since = time.monotonic()
    pids = loader.worker_pids()
    del iterator
    again = [batch[0].tolist() for _, batch in zip(range(2), loader, strict=False)]
    assert list(chain(*again)) == list(range(1_000_015, 1_000_025))
    assert loader.worker_pids() == pids
    loader.close()
    assert time.monotonic() - since < 2.5


def test_a_batch_that_waited_too_long_is_delivered_as_it_is() -> None:
    loader = StreamLoader(SourceDataset(Ticking((0.05,)), 1000, max_wait=0.15, fields=("number",)), num_workers=0)
    sizes = [len(batch[0]) for _, batch in zip(range(3), loader, strict=False)]
    assert all(1 <= size < 20 for size in sizes)


def test_stop_ends_the_epoch_with_what_was_read() -> None:
    data = SourceDataset(Ticking((0.001,)), 10, fields=("number",))
    came: list[int] = []
    for (batch,) in StreamLoader(data, num_workers=0):
        came += batch.tolist()
        if len(came) == 20:
            data.stop()
    assert came == list(range(len(came)))


def test_a_data_set_pickles_and_changes_options() -> None:
    data = pickle.loads(pickle.dumps(SourceDataset(Counting(SIZES), 10)))
    assert sorted(numbers(StreamLoader(data, num_workers=0))) == ALL
    assert len(next(iter(StreamLoader(data.with_(batch_size=3), num_workers=0)))["number"]) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_resumes_by_reading_again_is_refused_where_nothing_comes_again(workers: int) -> None:
    loader = StatefulDataLoader(SourceDataset(Ticking((0.001,)), 5), batch_size=None, num_workers=workers)
    with pytest.raises(UsageError, match="StatefulDataLoader resumes by reading"):
        next(iter(loader))


def test_a_stateful_dataloader_goes_on_in_a_bounded_source() -> None:
    first = StatefulDataLoader(SourceDataset(Counting(SIZES), 10), batch_size=None, num_workers=2)
    iterator = iter(first)
    came = numbers(next(iterator) for _ in range(4))
    second = StatefulDataLoader(SourceDataset(Counting(SIZES), 10), batch_size=None, num_workers=2)
    second.load_state_dict(first.state_dict())
    assert sorted(came + numbers(second)) == ALL


def test_fewer_steps_than_an_epoch_has_had_end_it() -> None:
    first = StreamLoader(SourceDataset(Ticking((0.001,)), 5, steps=6, fields=("number",)), num_workers=0)
    iterator = iter(first)
    came = [next(iterator)[0].tolist() for _ in range(4)]
    second = StreamLoader(SourceDataset(Ticking((0.001,)), 5, steps=3, fields=("number",)), num_workers=0)
    second.load_state_dict(first.state_dict())
    assert len(second.dataset) == 0 and list(second) == []
    came += [batch[0].tolist() for batch in second]
    assert list(chain(*came)) == list(range(35))


def test_a_loop_over_the_data_set_itself_goes_on_in_the_next_epoch_and_has_a_state() -> None:
    data = SourceDataset(Ticking((0.001,)), 5, steps=3, fields=("number",))
    came = [batch[0].tolist() for _ in range(2) for batch in DataLoader(data, batch_size=None)]
    other = SourceDataset(Ticking((0.001,)), 5, steps=3, fields=("number",))
    other.load_state_dict(data.state_at(0))
    came += [batch[0].tolist() for batch in other]
    assert list(chain(*came)) == list(range(45))
