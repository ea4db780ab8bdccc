"""What keeps a loop from going faster, worked out from its figures: numbers in, words out.

    41 s, of which the loop waited 23 s for 2 workers, which did not wait for the loop

    with data at once     the loop's own work is left                           41 - 23 = 18 s
    4 workers             make in half the time, while the loop works    max(18, 41 / 2) = 20.5 s
    no decoding (70 %)    making takes 30 % of what it took            max(18, 41 x 0.3) = 18 s

Where workers waited for the loop, making took them so much less than the loop's time. Where the loop makes its
batches itself, making takes the time that it waited, and is added to its own work instead of going on beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DATA_BOUND = 0.1
"""A loop that waits for more than this share of its time is data-bound."""

_WORTH = 0.03
"""A change that saves less than this share of a loop's time is not worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of a loop. Times are in seconds.

    seconds:    it took, without the wait for its first batch, which is `first_wait`.
    waited:     of `seconds`, those that it waited for data.
    steps:      batches behind the first one.
    workers:    processes or threads that made batches, 0: the loop itself; None: it is not known.
    threads:    of each of them.
    idle:       that makers, all together, waited for the loop; None: it is not known.
    stages:     time in each, all makers together; empty: it is not known.
    cpus:       that may really be used, of one rank.
    """

    seconds: float
    waited: float
    steps: int
    first_wait: float = 0.0
    workers: int | None = None
    threads: int = 1
    idle: float | None = None
    stages: Mapping[str, float]
    cpus: int

    @property
    def makers(self) -> int:
        return max(1, (self.workers or 0) * self.threads)

    @property
    def free(self) -> float:
        """What the loop would take if data were there at once."""
        return self.seconds - self.waited

    @property
    def making(self) -> float:
        """What making the batches takes those who make them, if nothing holds them up."""
        if self.workers == 0:
            return self.waited
        return max(0.0, self.seconds - (self.idle or 0.0) / self.makers)

    def estimate(self, factor: float) -> float:
        """What the loop would take if making took this part of its time; never more than now."""
        making = self.making * factor
        return min(self.seconds, self.free + making if self.workers == 0 else max(self.free, making))

    def with_workers(self, workers: int) -> float:
        """What it would take with so many workers of one thread, if there are CPUs for them."""
        return min(self.seconds, max(self.free, self.making * self.makers / workers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something to change, and how many seconds the same loop would then take: about, or `at_best`, if a stage took
    no time at all any more."""

    change: str
    seconds: float
    at_best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What holds a loop up: "data", which it waits for, or "compute", its own work.

    stage:  the one that takes most of the time of making batches; None where that is not known.
    shares: of the stages in that time; they add up to 1.
    advice: what to change, the most useful first. None of it is needed where the loop is compute-bound.
    """

    bound: Literal["data", "compute"]
    stage: str | None
    shares: Mapping[str, float]
    advice: tuple[Advice, ...]
    figures: Figures

    @property
    def text(self) -> str:
        """For a person: some lines."""
        return "\n".join([_headline(self), *_making(self), *_what_to_do(self)])

    def __str__(self) -> str:
        return self.text


def judge(figures: Figures) -> Verdict:
    """The verdict on a loop of at least one step behind its first batch."""
    whole = sum(figures.stages.values())
    shares = {name: time / whole for name, time in figures.stages.items()} if whole > 0 else {}
    stage = max(shares, key=lambda name: shares[name]) if shares else None
    bound: Literal["data", "compute"] = "data" if figures.waited > DATA_BOUND * figures.seconds else "compute"
    advice = _advice(figures, stage, shares) if bound == "data" else []
    worth = [one for one in advice if one.seconds < (1 - _WORTH) * figures.seconds]
    worth.sort(key=lambda one: one.seconds)
    return Verdict(bound=bound, stage=stage, shares=shares, advice=tuple(worth), figures=figures)


def _advice(f: Figures, stage: str | None, shares: Mapping[str, float]) -> list[Advice]:
    advice = []
    if f.workers is not None and f.cpus > f.makers and not (f.workers == 0 and f.cpus < 2):
        change = f"{f.cpus} workers instead of {f.workers or 'none'} (num_workers={f.cpus})"
        advice.append(Advice(change=change, seconds=f.with_workers(f.cpus)))
    for name in [name for name, share in shares.items() if share > _COSTLY or name == stage]:
        change = f"{_CHANGES[name]} ({name} is {_percent(shares[name])})"
        advice.append(Advice(change=change, seconds=f.estimate(1 - shares[name]), at_best=True))
    return advice


_COSTLY = 0.3
"""A stage with more than this share of the time of making is worth a word, as is the largest."""

_CHANGES = {
    "read": "shards on a local disk, or cache=",
    "decode": "pictures packed smaller or decoded (streamio pack --resize-short, --store raw), or cache=",
    "transform": "a lighter transform, batch_transform=, or prepare= with cache= for what draws nothing",
    "collate": "samples of one shape, or a lighter collate",
    "hand-over": "transport='thread', or larger batches",
}
"""What makes a stage cheap."""


def _headline(verdict: Verdict) -> str:
    f = verdict.figures
    after = f" (and {_time(f.first_wait)} until the first batch)" if f.first_wait > 0.05 * f.seconds else ""
    steps = f"{f.steps:,} steps" if f.steps != 1 else "1 step"
    return (
        f"{verdict.bound}-bound: {steps} took {_time(f.seconds)}{after}, {_time(f.waited)} of it waiting for data "
        f"({_percent(f.waited / f.seconds if f.seconds else 0)}); with data at once {_time(f.free)}, "
        f"{_time(f.free / f.steps)} a step"
    )


def _making(verdict: Verdict) -> list[str]:
    f = verdict.figures
    by = {None: "", 0: " by the loop itself", 1: " by 1 worker"}.get(f.workers, f" by {f.workers} workers")
    by += f" of {f.threads} threads" if f.threads > 1 else ""
    parts = ", ".join(f"{name} {_percent(share)}" for name, share in verdict.shares.items() if share >= 0.005)
    lines = [f"  batches were made{by}: {parts}"] if parts else []
    if f.workers and f.idle is not None and f.seconds:
        idle = min(1.0, f.idle / (f.makers * f.seconds))
        lines.append(f"  workers waited for the loop {_percent(idle)} of their time")
    return lines


def _what_to_do(verdict: Verdict) -> list[str]:
    f = verdict.figures
    if verdict.bound == "compute":
        enough = _enough(f)
        fewer = f"; {enough} would do instead of {f.workers}" if enough is not None else ""
        return [f"  faster data would save {_time(f.waited)} at most, more workers nothing{fewer}"]
    if verdict.stage is None and not f.workers:
        return ["  what makes these batches is not known; a StreamLoader over a data set of streamio would say"]
    lines = [
        f"  {one.change}: {_time(one.seconds)} at best"
        if one.at_best
        else f"  {one.change}: about {_time(one.seconds)}"
        for one in verdict.advice
    ]
    if f.workers and f.makers >= f.cpus:
        lines.append(f"  more workers would not help: they have {_count(f.cpus, 'usable CPU')}")
    if not lines:
        lines.append("  no single change would bring much")
    return lines


def _enough(f: Figures) -> int | None:
    """Workers with which this loop would hardly wait longer; None where there are no more than that."""
    if not f.workers or f.idle is None or not f.free:
        return None
    enough = max(1, math.ceil(f.making * f.makers / f.free / f.threads))
    return enough if enough < f.workers else None


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _time(seconds: float) -> str:
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
