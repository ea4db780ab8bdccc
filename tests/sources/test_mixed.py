"""Sources in a mixture: shares hold, each row of a live source comes once, also after a resume elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import streamio
from streamio import Mixture, SampleError, ShardDataset, SourceDataset, StreamLoader, UsageError
from tests.sources.counting import Counting, Ticking
from tests.sources.test_capture import Running

DISK = 400
LOADERS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2, "transport": "thread", "context": None},
    {"workers": 1, "context": "fork"},
    {"workers": 3, "context": "fork", "threads": 2},
    {"workers": 2, "context": "spawn"},
]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers -1 … -400. (A smaller set has many epochs, and each is planned.)"""
    out = tmp_path_factory.mktemp("mixed") / "disk"
    streamio.write([{"number": -1 - i} for i in range(DISK)], out, shard_samples=110)
    return out


@pytest.fixture
def loaders() -> Iterator[list[StreamLoader]]:
    made: list[StreamLoader] = []
    yield made
    for loader in made:
        loader.close()


def mixture(disk: Path, source: Any = None, batch_size: int = 8, stop: Any = "never", **options: Any) -> Mixture:
    """Three of four from the disk, one live."""
    live = SourceDataset(source or Running(6), 1, fields=("number",))
    shards = ShardDataset(disk, 1, fields=("number",), shuffle=True)
    return Mixture({"disk": (shards, 0.75), "live": (live, 0.25)}, batch_size, stop=stop, **options)


def loaded(data: Any, workers: int = 0, **options: Any) -> StreamLoader:
    """A loader that makes few batches ahead: these would cost more than all else here."""
    options = {"context": "fork" if workers else None, **options}
    return StreamLoader(data, num_workers=workers, prefetch_bytes=10_000, **options)


def take(loader: Any, batches: int) -> list[list[int]]:
    return [batch[0].tolist() for _, batch in zip(range(batches), loader, strict=False)]


def check_live(batches: list[list[int]]) -> None:
    """A quarter is live, each partition from its first number on and without a gap."""
    numbers = [number for batch in batches for number in batch]
    live = [number for number in numbers if number >= 0]
    assert len(live) == len(numbers) // 4
    for p in range(6):
        own = sorted(number - p * 1_000_000 for number in live if number // 1_000_000 == p)
        assert own == list(range(len(own)))


def check(batches: list[list[int]]) -> None:
    """The live ones, and the disk's come evenly."""
    check_live(batches)
    times = Counter(number for batch in batches for number in batch if number < 0)
    assert max(times.values()) - min(times.get(-1 - i, 0) for i in range(DISK)) <= 1


@pytest.mark.parametrize(
    ("batches", "options"), [*(("mixed", each) for each in LOADERS), ("single", LOADERS[0]), ("single", LOADERS[3])]
)
def test_shares_hold_and_each_live_row_comes_once(
    batches: Any, options: dict[str, Any], disk: Path, loaders: list[StreamLoader]
) -> None:
    loader = loaded(mixture(disk, batches=batches), **options)
    loaders.append(loader)
    came = take(loader, 40)
    assert {len(batch) for batch in came} == {8}
    check(came)
    for batch in came:
        live = sum(number >= 0 for number in batch)
        assert live in ((0, 8) if batches == "single" else (1, 2, 3))
    # A loop that was left goes on with a further epoch, and with the next live rows.
    check_live(came + take(loader, 20))


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("after", [1, 2])
def test_a_state_goes_on_with_other_workers(
    before: int, after: int, disk: Path, loaders: list[StreamLoader]
) -> None:
    first = loaded(mixture(disk), before)
    loaders.append(first)
    came = take(first, 10)
    state = json.loads(json.dumps(first.state_dict()))
    plain = loaded(mixture(disk))
    uninterrupted = [[n for n in batch if n < 0] for batch in take(plain, 30)]
    second = loaded(mixture(disk), after)
    loaders.append(second)
    second.load_state_dict(state)
    came += take(second, 10)
    third = loaded(mixture(disk))
    third.load_state_dict(json.loads(json.dumps(second.state_dict())))
    came += take(third, 10)
    check(came)
    assert [[n for n in batch if n < 0] for batch in came] == uninterrupted


def test_ranks_have_their_own_rows_and_their_states_go_on_together(disk: Path) -> None:
    came: list[list[int]] = []
    states = []
    for rank in range(2):
        loader = loaded(mixture(disk, batch_size=4, rank=rank, world_size=2))
        came += take(loader, 12)
        states.append(json.loads(json.dumps(loader.state_dict())))
    check(came)
    with pytest.raises(UsageError, match="rank 1 of 2"):
        mixture(disk).load_state_dict(states[1])
    alone = loaded(mixture(disk))
    alone.load_state_dict(states)  # type: ignore[arg-type]
    check(came + take(alone, 12))
    states[1]["start"] = [0]
    with pytest.raises(UsageError, match="after one step"):
        mixture(disk).load_state_dict(states)


def test_epochs_of_a_number_of_samples_go_on_where_the_source_is(disk: Path, loaders: list[StreamLoader]) -> None:
    loader = loaded(mixture(disk, stop=100), 2)
    loaders.append(loader)
    epochs = [[batch[0].tolist() for batch in loader] for _ in range(4)]
    assert [sum(map(len, epoch)) for epoch in epochs] == [100] * 4
    check(list(chain(*epochs)))
    state = json.loads(json.dumps(loader.state_dict()))
    other = StreamLoader(mixture(disk, stop=100), num_workers=0)
    other.load_state_dict(state)
    assert other.epoch == 4
    check(list(chain(*epochs)) + [batch[0].tolist() for batch in other])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_source_with_an_end_begins_anew_behind_it(workers: int, disk: Path, loaders: list[StreamLoader]) -> None:
    sizes = (7, 4, 0, 12)
    every = [p * 1000 + n for p, size in enumerate(sizes) for n in range(size)]
    first = loaded(mixture(disk, Counting(sizes)), workers)
    loaders.append(first)
    came = take(first, 21)
    state = json.loads(json.dumps(first.state_dict()))
    second = loaded(mixture(disk, Counting(sizes)))
    second.load_state_dict(state)
    came += take(second, 2 * 4 * len(every) // 8)
    times = Counter(number for batch in came for number in batch if number >= 0)
    assert set(times) == set(every)
    for p, size in enumerate(sizes):  # readers go round at their own pace, each through all of its rows
        of_one = [times[p * 1000 + n] for n in range(size)]
        assert not of_one or max(of_one) - min(of_one) <= 1


def test_a_live_source_is_waited_for(disk: Path) -> None:
    loader = StreamLoader(mixture(disk, Ticking((0.02,))), num_workers=0)
    came = take(loader, 6)
    assert [number for batch in came for number in batch if number >= 0] == list(range(12))


def test_each_worker_needs_a_partition_and_says_so_before_the_first_batch(
    disk: Path, loaders: list[StreamLoader]
) -> None:
    loader = loaded(mixture(disk, Running(2)), 3)
    loaders.append(loader)
    with pytest.raises(UsageError, match=r"'live' has 2 partitions, and 3 workers.*num_workers=2"):
        next(iter(loader))
    of_rank = loaded(mixture(disk, Running(2), rank=0, world_size=2), 2)
    loaders.append(of_rank)
    with pytest.raises(UsageError, match="4 workers of all ranks"):
        next(iter(of_rank))


def test_a_plain_dataloader_reads_one_epoch_and_further_ones_without_workers(disk: Path) -> None:
    loader = DataLoader(mixture(disk), batch_size=None, num_workers=2)
    check(take(loader, 20))
    finite = DataLoader(mixture(disk, stop=40), batch_size=None)
    check([batch[0].tolist() for _ in range(2) for batch in finite])
    worked = DataLoader(mixture(disk, stop=40), batch_size=None, num_workers=1, persistent_workers=True)
    assert len(list(worked)) == 5
    with pytest.raises(UsageError, match="no cursors to go on from"):
        list(worked)


def test_what_sources_cannot_do_in_a_mixture_is_refused(disk: Path) -> None:
    for stop in ("all", "first"):
        with pytest.raises(UsageError, match=r"stop=.*nobody has counted"):
            mixture(disk, stop=stop)
    with pytest.raises(UsageError, match="tail='pad'"):
        mixture(disk, tail="pad")
    for option in ({"steps": 3}, {"max_wait": 1.0}, {"idle_timeout": 1.0}):
        live = SourceDataset(Running(2), 1, **option)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=next(iter(option))):
            Mixture({"live": (live, 1)}, 4, stop="never")
    with pytest.raises(UsageError, match="have different fields: text"):
        Mixture(
            {"disk": (ShardDataset(disk, 1), 1), "live": (SourceDataset(Counting((5,)), 1), 1)}, 4, stop="never"
        )
    state = mixture(disk).state_at(0)
    with pytest.raises(UsageError, match=r"data=|was saved with 'running'"):
        mixture(disk, Counting((5,))).load_state_dict(state)
    with pytest.raises(UsageError, match="nothing to commit"):
        mixture(disk).commit()


def test_bad_rows_are_raised_or_left_out(disk: Path) -> None:
    source = Counting((50,), bad=(3, 17))
    with pytest.raises(SampleError, match=r"part-0.*number"):
        take(StreamLoader(mixture(disk, source), num_workers=0), 10)
    live = SourceDataset(source, 1, fields=("number",), on_error="skip")
    only = Mixture({"live": (live, 1)}, 8, stop=48)
    came = [number for (batch,) in StreamLoader(only, num_workers=0) for number in batch.tolist()]
    assert came == [number for number in range(50) if number not in (3, 17)]
    assert only.stats().skipped == 2


def test_a_transform_draws_anew_for_each_row_and_the_same_after_a_resume(disk: Path) -> None:
    def drawn(workers: int, state: Any, batches: int) -> tuple[list[list[float]], Any]:
        live = SourceDataset(Counting((9,)), 1, transform=_draw)
        loader = StreamLoader(Mixture({"live": (live, 1)}, 6, stop="never"), num_workers=workers)
        if state is not None:
            loader.load_state_dict(state)
        got = [batch["drawn"].tolist() for _, batch in zip(range(batches), loader, strict=False)]
        return got, loader.state_dict()

    whole, _ = drawn(0, None, 8)
    begin, state = drawn(0, None, 3)
    rest, _ = drawn(0, state, 5)
    assert begin + rest == whole
    assert len({number for batch in whole for number in batch}) == 48


def _draw(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"drawn": rng.random()}
