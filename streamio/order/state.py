"""The state of a run: where in which order it is. A few numbers, the same on every rank, for any topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from streamio.errors import UsageError
from streamio.order.permutation import VERSION

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a checkpoint holds.

    epoch, position: what comes next: the position in the order of this epoch.
    data:    fingerprint of the set.
    samples: N, for messages.
    seed, shuffle, order: what makes the order; `order` is the version of the permutation.

    Batch size, ranks, workers and tail are not part of it: they may change from run to run.
    """

    epoch: int
    position: int
    data: str
    samples: int
    seed: int
    shuffle: str
    order: int = VERSION
    version: int = STATE_VERSION

    def to_json(self) -> dict[str, Any]:
        """A dict of numbers and strings, under 1 KB of JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> State:
        """Read what `to_json` gave. Raises UsageError that names what is missing or wrong."""
        kinds = {field.name: str if field.type == "str" else int for field in fields(cls)}
        if not isinstance(state, Mapping):
            raise UsageError(f"a state is a dict, not {type(state).__name__}")
        missing = sorted(set(kinds) - set(state))
        if missing:
            raise UsageError(f"the state has no {', '.join(missing)}", fix="Give what state_dict() returned")
        wrong = [name for name, kind in kinds.items() if not isinstance(state[name], kind)]
        if wrong or state["epoch"] < 0 or not 0 <= state["position"] <= state["samples"]:
            raise UsageError(f"the state is damaged: {dict(state)!r}", fix="Give what state_dict() returned")
        return cls(**{name: state[name] for name in kinds})

    def check(self, here: State) -> None:
        """Raise UsageError, with both values, unless this state belongs to the order that `here` is a state of."""
        for name in ("version", "order", "data", "samples", "seed", "shuffle"):
            saved, now = getattr(self, name), getattr(here, name)
            if saved != now:
                raise UsageError(
                    f"the state was saved with {name}={saved!r}, here {name} is {now!r}",
                    fix="Use what it was saved with, or load it with strict=False to go on at this position anyway",
                )
