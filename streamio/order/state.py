"""The state of a run: where in which order it is. A few numbers, the same on every rank, for any topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeAlias

from streamio.errors import UsageError
from streamio.order.permutation import VERSION

STATE_VERSION = 2

Facts: TypeAlias = Mapping[str, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a checkpoint holds.

    epoch, start: what comes next: the epoch, and where in it, in the words of its plan: () is its beginning, one
              number a position, more for orders whose place needs more.
    data:     fingerprint of the set.
    samples:  positions of an epoch, for messages; 0 where it has no end.
    order:    what makes the order: seed, shuffle and the like. Two runs with the same have the same order.
    version:  of the state; permutation: of what turns positions into rows.

    Batch size, ranks, workers and tail are not part of it: they may change from run to run.
    """

    epoch: int
    start: tuple[int, ...] = ()
    data: str
    samples: int
    order: Facts = field(default_factory=dict)
    permutation: int = VERSION
    version: int = STATE_VERSION

    def to_json(self) -> dict[str, Any]:
        """A dict of numbers and strings, under 1 KB of JSON."""
        return {**asdict(self), "start": list(self.start), "order": dict(self.order)}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> State:
        """Read what `to_json` gave. Raises UsageError that names what is missing or wrong."""
        if not isinstance(state, Mapping):
            raise UsageError(f"a state is a dict, not {type(state).__name__}")
        version = state.get("version", STATE_VERSION)
        if version != STATE_VERSION:
            raise UsageError(
                f"the state was saved with version={version!r}, here version is {STATE_VERSION}",
                fix="Load it with the streamio that saved it",
            )
        names = [f.name for f in fields(cls)]
        missing = sorted(set(names) - set(state))
        if missing:
            raise UsageError(f"the state has no {', '.join(missing)}", fix="Give what state_dict() returned")
        if not _is_whole(state):
            raise UsageError(f"the state is damaged: {dict(state)!r}", fix="Give what state_dict() returned")
        return cls(**{**{name: state[name] for name in names}, "start": tuple(state["start"])})

    def check(self, here: State) -> None:
        """Raise UsageError, with both values, unless this state belongs to the order that `here` is a state of."""
        for name in ("permutation", "data", "samples"):
            _compare(name, getattr(self, name), getattr(here, name))
        for name in dict.fromkeys((*self.order, *here.order)):
            _compare(name, self.order.get(name), here.order.get(name))


def _is_whole(state: Mapping[str, Any]) -> bool:
    numbers = [state[name] for name in ("epoch", "samples", "permutation", "version")]
    start, order = state["start"], state["order"]
    return (
        all(isinstance(number, int) and number >= 0 for number in numbers)
        and isinstance(state["data"], str)
        and isinstance(start, list | tuple)
        and all(isinstance(word, int) and not isinstance(word, bool) for word in start)
        and isinstance(order, Mapping)
    )


def _compare(name: str, saved: object, now: object) -> None:
    if saved != now:
        raise UsageError(
            f"the state was saved with {name}={saved!r}, here {name} is {now!r}",
            fix="Use what it was saved with, or load it with strict=False to go on at this position anyway",
        )
