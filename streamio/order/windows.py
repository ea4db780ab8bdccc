"""Windows of 1,000 draws of a mixture: how many of them each of K sets has, and which. See `order/mixing.py`.

Shares are whole millionths, so that a window is worth a whole number of thousandths of a draw to each set. Three
sets of weights 1, 1, 1:

    share       333,334  333,333  333,333    each window is worth 333.334, 333.333 and 333.333 draws
    window 0        334      333      333    the whole draws, and one extra to whom it is due first
    owed after     -666      333      333    thousandths of a draw; always less than 1,000, a whole draw
    window 1        333      334      333
    owed after     -332     -334      666
    …                                        after 1,000 windows nothing is owed, and all begins again

So with constant shares any window is found in closed form.

Which draws: the i-th of the q whole draws of a set falls at a fixed pseudo-random time in [i/q, (i+1)/q), the
extras likewise, and times are sorted. So all windows are alike but for who has the extras, and a set that has one
in two windows on end has the same one. Any 1,000 draws on end hold each place of the pattern once, so the shares
hold in them too. Equal distances would be a little more even, but with them two sets of equal share
alternate, and with two ranks and batches of one, each rank sees one set only. What remains of that: if the global
batch is a multiple of 1,000 draws, a rank gets the same places in every step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamio.order.permutation import VERSION, derive_key, permute

WINDOW = 1000
MILLION = 1_000_000
"""Shares are millionths. A draw of a window is a thousandth, and what a window owes are thousandths of a draw."""

_BLOCK = 128
"""Windows under a function of the step that are made and kept together."""

_BLOCKS_KEPT = 16


class WindowTable(NamedTuple):
    """Some windows, int64 (n, K) each.

    before: draws of each set before the window.
    owed:   thousandths of a draw that each set is behind its share there; they sum to 0.
    kept:   the extra that each set had in the window before, by number; -1 for none.
    shares: millionths, in this window.
    extras: the extra that each set has in this window.
    """

    before: NDArray[np.int64]
    owed: NDArray[np.int64]
    kept: NDArray[np.int64]
    shares: NDArray[np.int64]
    extras: NDArray[np.int64]

    @property
    def quotas(self) -> NDArray[np.int64]:
        """Draws of each set in the window."""
        return self.shares // WINDOW + (self.extras >= 0)


class Windows(Protocol):
    def at(self, windows: NDArray[np.int64]) -> WindowTable:
        """These windows, counted from the one that the run went on in."""
        ...


def extras_of(owed: Sequence[int], kept: Sequence[int], shares: Sequence[int]) -> list[int]:
    """The extra draw that each set has in a window, by number from 0; -1 for none."""
    extras = [-1] * len(shares)
    number = WINDOW - sum(share // WINDOW for share in shares)
    if number == 0:
        return extras
    turns = [_turn(due, share % WINDOW) for due, share in zip(owed, shares, strict=True)]
    chosen = sorted(sorted(range(len(turns)), key=turns.__getitem__)[:number])
    # Where nothing is owed all are dealt anew, or the cycle of 1,000 windows would not close.
    stay = [i for i in chosen if 0 <= kept[i] < number] if any(owed) else []
    for i in stay:
        extras[i] = kept[i]
    free = (extra for extra in range(number) if extra not in extras)
    for i in chosen:
        if extras[i] < 0:
            extras[i] = next(free)
    return extras


def _turn(owed: int, rate: int) -> tuple[int, int, int]:
    """When a set that is owed so much, and `rate` more each window, gets an extra draw: the least tuple first.

    Whoever may wait the fewest windows before a whole draw is owed; of equals the one that would then have the
    longest run of windows without a choice. Extras by the largest debt alone get sets more than a draw off (seen:
    1.24). This is the rule PD2 for fair scheduling of several processors (Anderson and Srinivasan, "Mixed
    Pfair/ERfair scheduling of asynchronous periodic tasks", 2004); "several" are the extras of a window.
    """
    if rate == 0:
        return 2, 0, 0
    if owed + rate <= 0:
        return 1, -owed, 0
    windows = -((owed - WINDOW) // rate)
    ahead = owed + windows * rate - WINDOW
    return 0, windows, -ahead // (WINDOW - rate)


class _Begin(NamedTuple):
    """What one window hands to the next; see `WindowTable`."""

    before: Sequence[int]
    owed: Sequence[int]
    kept: Sequence[int]


def _walk(begin: _Begin, each: Iterable[Sequence[int]]) -> tuple[WindowTable, _Begin]:
    """Windows on end with these shares each, and how the next one begins."""
    rows = []
    before, owed, kept = begin
    for shares in each:
        extras = extras_of(owed, kept, shares)
        rows.append((before, owed, kept, shares, extras))
        quotas = [share // WINDOW + (extra >= 0) for share, extra in zip(shares, extras, strict=True)]
        before = [b + q for b, q in zip(before, quotas, strict=True)]
        owed = [due + share - WINDOW * q for due, share, q in zip(owed, shares, quotas, strict=True)]
        kept = extras
    return WindowTable(*(np.array(column, np.int64) for column in zip(*rows, strict=True))), _Begin(
        before, owed, kept
    )


class Cycle(NamedTuple):
    """1,000 windows of constant shares. closes: the next one begins as the first did, so they come again."""

    table: WindowTable
    closes: bool


@lru_cache(maxsize=32)
def cycle(shares: tuple[int, ...], owed: tuple[int, ...], kept: tuple[int, ...]) -> Cycle:
    table, end = _walk(_Begin((0,) * len(shares), owed, kept), [shares] * WINDOW)
    alike = extras_of(end.owed, end.kept, shares) == table.extras[0].tolist()
    return Cycle(table, tuple(end.owed) == owed and alike)


class Steady:
    """Windows of constant shares, in closed form: a cycle is a draw for each millionth of a share."""

    def __init__(self, shares: tuple[int, ...], owed: tuple[int, ...], kept: tuple[int, ...]) -> None:
        self._begin = shares, owed, kept

    def at(self, windows: NDArray[np.int64]) -> WindowTable:
        found = WindowTable(*(column[windows % WINDOW] for column in cycle(*self._begin).table))
        cycles: NDArray[np.int64] = windows // WINDOW
        return found._replace(before=found.before + cycles[:, None] * found.shares)


class Changing:
    """Windows whose shares a function gives, walked through block by block; where each block began is kept."""

    def __init__(
        self, owed: tuple[int, ...], kept: tuple[int, ...], shares_of: Callable[[int], tuple[int, ...]]
    ) -> None:
        self._shares_of, self._count = shares_of, len(owed)
        self._begins = [_Begin((0,) * len(owed), owed, kept)]
        self._blocks: OrderedDict[int, WindowTable] = OrderedDict()
        self._lock = Lock()

    def at(self, windows: NDArray[np.int64]) -> WindowTable:
        made = WindowTable(*np.empty((5, len(windows), self._count), np.int64))
        blocks, within = np.divmod(windows, _BLOCK)
        for block in np.unique(blocks).tolist():
            here = np.flatnonzero(blocks == block)
            with self._lock:
                table = self._block(block)
            for column, known in zip(made, table, strict=True):
                column[here] = known[within[here]]
        return made

    def _block(self, block: int) -> WindowTable:
        if block not in self._blocks:
            for earlier in range(min(block, len(self._begins) - 1), block + 1):
                table, end = _walk(self._begins[earlier], map(self._shares_of, _windows_of(earlier)))
                if earlier == len(self._begins) - 1:
                    self._begins.append(end)
            self._blocks[block] = table
            if len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(block)
        return self._blocks[block]


def _windows_of(block: int) -> range:
    return range(block * _BLOCK, (block + 1) * _BLOCK)


class Pattern(NamedTuple):
    """The draws of a window, up to who has the extras; int64.

    sets:  (1000,) the set of each draw; K + j for extra j.
    ranks: (1000,) the how-manieth whole draw of its set it is.
    extra_places: (K,) the place of each extra.
    extra_ranks:  (K, K) whole draws of each set before each extra.
    """

    sets: NDArray[np.int64]
    ranks: NDArray[np.int64]
    extra_places: NDArray[np.int64]
    extra_ranks: NDArray[np.int64]


@lru_cache(maxsize=1024)
def _pattern(wholes: bytes) -> Pattern:
    """wholes: the whole draws of each set, int64 (K,), as bytes."""
    whole = np.frombuffer(wholes, np.int64)
    count = len(whole)
    quotas = np.append(whole, WINDOW - whole.sum())
    kinds = np.repeat(np.arange(count + 1, dtype=np.int64), quotas)
    ranks = np.arange(WINDOW, dtype=np.int64) - np.repeat(np.cumsum(quotas) - quotas, quotas)
    # The time (rank + jitter) / quota as an integer: 26 bits, and 30 more for the division. No platform rounds it.
    times = (((ranks << 16) + _jitter(count + 1)[kinds, ranks]) << 30) // quotas[kinds]
    order = np.argsort(times, kind="stable")
    kinds, ranks = kinds[order], ranks[order]
    places = np.flatnonzero(kinds == count)
    extra_places, extra_ranks = np.full(count, WINDOW, np.int64), np.zeros((count, count), np.int64)
    extra_places[: len(places)] = places
    for extra, place in enumerate(places.tolist()):
        extra_ranks[extra] = np.bincount(kinds[:place], minlength=count)[:count]
    kinds[places] += ranks[places]
    return Pattern(kinds, ranks, extra_places, extra_ranks)


@lru_cache(maxsize=32)
def _jitter(count: int) -> NDArray[np.int64]:
    """(count, 1000) numbers of 16 bits, each from its row and column alone."""
    numbers = np.arange(count * WINDOW, dtype=np.int64)
    return (permute(numbers, 1 << 40, derive_key(VERSION, WINDOW)) >> 24).reshape(count, WINDOW)


def sets_of(shares: Sequence[int], extras: Sequence[int]) -> NDArray[np.int64]:
    """(1000,) the set of each draw of one window."""
    count = len(shares)
    owners = np.arange(2 * count)
    for number, extra in enumerate(extras):
        if extra >= 0:
            owners[count + extra] = number
    found: NDArray[np.int64] = owners[_pattern((np.array(shares, np.int64) // WINDOW).tobytes()).sets]
    return found


def look_up(
    windows: Windows, numbers: NDArray[np.int64], places: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(set, the how-manieth draw of that set since window 0) at these places, 0 … 999, of these windows."""
    distinct, which = _distinct(numbers)
    table = windows.at(distinct)
    count = table.shares.shape[1]
    kinds, pattern = _patterns(table.shares // WINDOW)
    at = kinds[which] * WINDOW + places
    sets, ranks = pattern.sets.take(at), pattern.ranks.take(at)

    rows, owners = np.nonzero(table.extras >= 0)
    held = table.extras[rows, owners]
    owner_of = np.zeros_like(table.extras)
    owner_of[rows, held] = owners
    extra_place = np.full_like(table.extras, WINDOW)
    extra_place[rows, owners] = pattern.extra_places[kinds[rows], held]

    here = np.flatnonzero(sets >= count)
    row, extra = which[here], sets[here] - count
    sets[here] = owner_of[row, extra]
    ranks[here] = pattern.extra_ranks[kinds[row], extra, sets[here]]
    of_set = which * count + sets
    ranks += places > extra_place.take(of_set)  # behind the extra draw of their set
    ranks += table.before.take(of_set)
    return sets, ranks


def _patterns(wholes: NDArray[np.int64]) -> tuple[NDArray[np.int64], Pattern]:
    """Which pattern each window has, and these patterns one below the other."""
    if (wholes == wholes[0]).all():
        kinds, keys = np.zeros(len(wholes), np.int64), [wholes[0].tobytes()]
    else:
        known: dict[bytes, int] = {}
        kinds = np.array([known.setdefault(row.tobytes(), len(known)) for row in wholes], np.int64)
        keys = list(known)
    return kinds, Pattern(*(np.stack(column) for column in zip(*map(_pattern, keys), strict=True)))


def _distinct(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The windows that occur, and which of them each is; those in between too where they are few."""
    first, last = int(numbers.min()), int(numbers.max())
    if last - first < 256:
        return np.arange(first, last + 1, dtype=np.int64), numbers - first
    distinct, which = np.unique(numbers, return_inverse=True)
    return distinct, which.astype(np.int64, copy=False)
