"""The order of what has no index: who reads which shards, and which sample leaves the shuffle buffer next.

The exception among the orders. How many samples a shard holds is known only when it has been read, so there are
no positions and no rows, and nothing can be reached but by reading what comes before it. What can be a function
is one: of seed, epoch, topology and the number of samples read so far. So a state is a few counters, and a buffer
is made again by reading again.

Shards are dealt to ranks, and those of a rank to its *lanes*, one for each worker that gets a shard. Seven
shards, two ranks of two workers, no shuffle:

    shard   0  1  2  3  4  5  6
    rank    0  1  0  1  0  1  0
    lane    0  0  1  1  0  0  1

The lanes of a rank take turns: its batches come from lane 0, 1, 0, 1, …, and a lane that has ended is passed
over. A `DataLoader` takes from its workers in this way, so from the number of delivered batches follows how many
each lane has made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from streamio.errors import UsageError
from streamio.order.permutation import derive_key, permute

_T = TypeVar("_T")
_DEAL, _AGAIN, _BUFFER, _DRAIN = 11, 12, 13, 14  # what a key is for


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """The shards of one rank in one epoch, and how its workers share them.

    shards:  of the whole stream.
    shuffle: whether their order is drawn anew in each epoch, or is the one given.

    Raises UsageError where a rank would get no shard.
    """

    shards: int
    seed: int = 0
    epoch: int = 0
    shuffle: bool = False
    rank: int = 0
    world_size: int = 1
    workers: int = 1

    def __post_init__(self) -> None:
        if self.shards < self.world_size:
            raise UsageError(
                f"{self.shards} shards cannot be dealt to {self.world_size} ranks",
                fix="Without an index a rank reads whole shards: write more of them, use fewer ranks, or index "
                "them ('streamio index') and use ShardDataset",
            )

    @property
    def lanes(self) -> int:
        """Workers of this rank that get a shard; those beyond have nothing to do."""
        own = len(range(self.rank, self.shards, self.world_size))
        return min(self.workers, own)

    def shard_list(self, lane: int, number: int = 0) -> list[int]:
        """The shards of one lane in the order of its pass `number`; each pass has the same ones."""
        order = np.arange(self.shards, dtype=np.int64)
        if self.shuffle:
            order = permute(order, self.shards, derive_key(self.seed, self.epoch, _DEAL))
        own = order[self.rank :: self.world_size][lane :: self.lanes]
        if self.shuffle and number:
            key = derive_key(self.seed, self.epoch, _AGAIN, self.rank, lane, number)
            own = own[permute(np.arange(len(own), dtype=np.int64), len(own), key)]
        return own.tolist()  # type: ignore[no-any-return]

    def buffer_key(self, lane: int) -> int:
        """The key of the shuffle buffer of a lane, for `shuffled`."""
        return derive_key(self.seed, self.epoch, _BUFFER, self.rank, lane)


def shuffled(items: Iterable[_T], size: int, key: int) -> Iterator[_T]:
    """The items in another order, from a buffer of `size`: the first fill it, each later one takes a drawn place.

    Which place is a function of the key and of how many items came before, so the same items always leave in
    the same order. What is in the buffer when the items end leaves in drawn order too. Size 3, drawn places
    2, 0, 0:

        in       a b c   d  e  f
        buffer   a b c   abd  ebd  fbd
        out              c    a    e   then f, b and d
    """
    held: list[_T] = []
    for count, item in enumerate(items):
        if count < size:
            held.append(item)
            continue
        place = drawn(key, count, size)
        out, held[place] = held[place], item
        yield out
    for place in permute(np.arange(len(held), dtype=np.int64), len(held), derive_key(key, _DRAIN)).tolist():
        yield held[place]


def drawn(key: int, count: int, size: int) -> int:
    """A number in [0, size), uniform to one part in 2^64 / size."""
    return (derive_key(key, count) * size) >> 64


def turns(batches: int, lanes: int, ended: Mapping[int, int]) -> list[tuple[int, int]]:
    """(lane, batches that it has made), in the order in which they come next, after so many batches of a rank.

    ended: what the lanes that are known to have ended made in all; those that are done are left out.

        3 lanes, lane 1 ends after 1 batch:   batch  0 1 2 3 4 5 6
                                              lane   0 1 2 0 2 0 2     turns(4, 3, {1: 1}) = [(2, 1), (0, 2)]

    Raises UsageError where there were never so many.
    """
    alive = [lane for lane in range(lanes) if ended.get(lane) != 0]
    rounds, left = 0, batches
    while left >= len(alive) > 0:
        whole = min([left // len(alive), *(ended[lane] - rounds for lane in alive if lane in ended)])
        rounds, left = rounds + whole, left - whole * len(alive)
        alive = [lane for lane in alive if ended.get(lane) != rounds]
    if left > len(alive):
        raise UsageError(f"{batches:,} batches, but the lanes made {sum(ended.values()):,} in all")
    came = [(lane, rounds + 1) for lane in alive[:left] if ended.get(lane) != rounds + 1]
    return [(lane, rounds) for lane in alive[left:]] + came


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where in its epoch a stream is, and the topology that counted so far: elsewhere these numbers mean nothing.

    batches:    delivered to each rank since the epoch began.
    workers, world_size, batch_size, buffer, steps: with which.
    ended:      what the lanes that ended made in all, by lane; empty where the epoch has a number of steps.
    """

    batches: int
    workers: int
    world_size: int
    batch_size: int
    buffer: int
    steps: int
    ended: Mapping[int, int]

    def words(self) -> tuple[int, ...]:
        """As the `start` of a `State`."""
        pairs = [word for pair in sorted(self.ended.items()) for word in pair]
        return (*(getattr(self, name) for name in _TOPOLOGY), self.batches, *pairs)

    @classmethod
    def from_words(cls, words: Sequence[int]) -> Progress:
        """Read what `words` gave. Raises UsageError for anything else."""
        head, pairs = words[: len(_TOPOLOGY) + 1], words[len(_TOPOLOGY) + 1 :]
        if len(head) <= len(_TOPOLOGY) or len(pairs) % 2 or min(words) < 0:
            raise UsageError(f"{list(words)} is no place in a stream", fix="Give what state_at() returned")
        ended = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return cls(**dict(zip(_TOPOLOGY, head, strict=False)), batches=head[-1], ended=ended)

    def differs(self, here: Progress) -> str | None:
        """What of the topology is another one here, in words; None where nothing is."""
        for name in _TOPOLOGY:
            saved, now = getattr(self, name), getattr(here, name)
            if saved != now:
                return f"the state was saved in the middle of an epoch with {name}={saved}, here {name} is {now}"
        return None


_TOPOLOGY = ("workers", "world_size", "batch_size", "buffer", "steps")
