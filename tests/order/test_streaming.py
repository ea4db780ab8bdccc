"""The order of a stream: every shard to one lane, every sample once, the same way each time, by counters alone."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import UsageError
from streamio.order.streaming import Deal, Progress, drawn, shuffled, turns


def take_turns(totals: list[int]) -> list[int]:
    """The lane of every batch, played out: round after round, those that have one more give it."""
    return [lane for number in range(max(totals, default=0)) for lane, n in enumerate(totals) if n > number]


@given(
    shards=st.integers(1, 60), world_size=st.integers(1, 9), workers=st.integers(1, 9), seed=st.integers(0, 3),
    epoch=st.integers(0, 2), shuffle=st.booleans(), number=st.integers(0, 2),
)  # fmt: skip
def test_every_shard_goes_to_one_lane_of_one_rank(
    shards: int, world_size: int, workers: int, seed: int, epoch: int, shuffle: bool, number: int
) -> None:
    if shards < world_size:
        with pytest.raises(UsageError, match=f"{shards} shards cannot be dealt to {world_size} ranks"):
            Deal(shards=shards, world_size=world_size)
        return
    dealt = []
    for rank in range(world_size):
        deal = Deal(
            shards=shards, seed=seed, epoch=epoch, shuffle=shuffle, rank=rank, world_size=world_size,
            workers=workers,
        )  # fmt: skip
        lists = [deal.shard_list(lane, number) for lane in range(deal.lanes)]
        assert 1 <= deal.lanes <= workers and all(lists)
        assert max(map(len, lists)) - min(map(len, lists)) <= 1
        dealt += [shard for each in lists for shard in each]
    assert sorted(dealt) == list(range(shards))


def test_seven_shards_are_dealt_as_the_page_draws() -> None:
    ranks = [Deal(shards=7, rank=rank, world_size=2, workers=2) for rank in range(2)]
    assert [[deal.shard_list(lane) for lane in range(2)] for deal in ranks] == [[[0, 4], [2, 6]], [[1, 5], [3]]]


def test_a_lane_reads_its_own_shards_again_in_another_order() -> None:
    deal = Deal(shards=60, shuffle=True, world_size=2, workers=2)
    passes = [deal.shard_list(1, number) for number in range(3)]
    assert len({tuple(each) for each in passes}) == 3
    assert len({frozenset(each) for each in passes}) == 1


def test_epochs_and_seeds_deal_otherwise() -> None:
    deals = [Deal(shards=30, shuffle=True, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(deal.shard_list(0)) for deal in deals}) == 4
    assert len({deal.buffer_key(0) for deal in deals}) == 4


def test_golden_orders() -> None:
    """They may change with `order.permutation.VERSION` alone: a checkpoint counts in them."""
    deal = Deal(shards=20, shuffle=True, seed=7, epoch=2, rank=1, world_size=2, workers=2)
    assert [deal.shard_list(0), deal.shard_list(1), deal.shard_list(0, 1)] == GOLDEN_SHARDS
    assert list(shuffled(range(12), 4, deal.buffer_key(1))) == GOLDEN_SAMPLES


GOLDEN_SHARDS = [[14, 2, 19, 4, 1], [9, 11, 7, 6, 15], [2, 1, 19, 14, 4]]
GOLDEN_SAMPLES = [0, 1, 5, 2, 7, 3, 8, 6, 4, 11, 10, 9]


@given(items=st.lists(st.integers()), size=st.integers(1, 20), key=st.integers(0, (1 << 64) - 1))
def test_the_buffer_gives_every_sample_once(items: list[int], size: int, key: int) -> None:
    out = list(shuffled(items, size, key))
    assert Counter(out) == Counter(items)
    assert out == list(shuffled(items, size, key))


@given(n=st.integers(0, 60), more=st.integers(0, 60), size=st.integers(1, 20))
def test_what_leaves_depends_on_the_count_alone(n: int, more: int, size: int) -> None:
    """What comes later changes nothing of what left before, so reading again makes the same buffer."""
    sure = max(0, n - size)
    short = list(islice(shuffled(range(n), size, 5), sure))
    assert short == list(islice(shuffled(range(n + more), size, 5), sure))


def test_a_buffer_of_one_changes_nothing() -> None:
    assert list(shuffled("abcdef", 1, 99)) == list("abcdef")


def test_the_buffer_never_holds_more_than_its_size() -> None:
    source = iter(range(10_000))
    for given_out, _ in enumerate(shuffled(source, 100, 3), 1):
        left = source.__length_hint__()  # type: ignore[attr-defined]
        assert 10_000 - left - given_out <= 100
    assert given_out == 10_000


def test_drawn_places_are_uniform() -> None:
    counts = Counter(drawn(12345, count, 10) for count in range(20_000))
    assert set(counts) == set(range(10))
    chi_square = sum((n - 2000) ** 2 / 2000 for n in counts.values())
    assert chi_square < 28  # 9 degrees of freedom; above once in 1,000 keys, and this is one key


@given(totals=st.lists(st.integers(0, 12), min_size=1, max_size=7), data=st.data())
def test_turns_say_what_each_lane_has_made(totals: list[int], data: st.DataObject) -> None:
    order = take_turns(totals)
    done = data.draw(st.integers(0, len(order)))
    made = Counter(order[:done])
    # Lanes that were passed over have ended for sure; of others it may or may not be known.
    passed = {lane for lane in range(len(totals)) if _was_passed(order, done, lane, totals)}
    known = passed | set(data.draw(st.lists(st.integers(0, len(totals) - 1))))
    ended = {lane: totals[lane] for lane in known}
    coming = turns(done, len(totals), ended)
    assert dict(coming) == {lane: made[lane] for lane in range(len(totals)) if ended.get(lane) != made[lane]}
    following = order[done:]
    first = [lane for lane, n in coming if n < totals[lane]]
    assert first == list(dict.fromkeys(following)), "they take over in the order in which they are due"


def _was_passed(order: list[int], done: int, lane: int, totals: list[int]) -> bool:
    """Whether a batch of a later turn than the lane's last was delivered."""
    seen: Counter[int] = Counter()
    for each in order[:done]:
        seen[each] += 1
        if (seen[each], each) > (totals[lane] + 1, lane):
            return True
    return False


def test_more_batches_than_the_lanes_made_are_refused() -> None:
    with pytest.raises(UsageError, match="9 batches, but the lanes made 5 in all"):
        turns(9, 2, {0: 2, 1: 3})


@given(
    batches=st.integers(0, 1 << 40), workers=st.integers(1, 64),
    ended=st.dictionaries(st.integers(0, 63), st.integers(0, 1000)),
)  # fmt: skip
def test_progress_survives_as_words(batches: int, workers: int, ended: dict[int, int]) -> None:
    progress = Progress(
        batches=batches, workers=workers, world_size=2, batch_size=3, buffer=4, steps=5, ended=ended
    )
    assert Progress.from_words(progress.words()) == progress


@pytest.mark.parametrize("words", [(), (1, 2, 3), (1, 1, 1, 1, 1, 1, 7), (1, 1, 1, 1, 1, -1)])
def test_other_words_are_refused(words: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="no place in a stream"):
        Progress.from_words(words)
