"""What StreamLoader does for trainers that number epochs and count their batches by themselves.

PyTorch Lightning asks a loader for `len()` once, after a resume, and takes it for that of every epoch. So a loader
that Lightning resumed counts the batches of before the resume, too: 13 were got, 13 are left, len() is 26.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamio.errors import UsageError

_COUNT = "batches"
_STEP = "global_batch"


@dataclass(frozen=True, slots=True)
class Counted:
    """Batches of `epoch` that each rank got in earlier runs."""

    epoch: int
    batches: int


def with_count(state: Mapping[str, Any], batches: int, global_batch: int | None) -> dict[str, Any]:
    """A state that also says how many batches of its epoch each rank got, and of how many samples in all."""
    return {**state, _COUNT: batches, _STEP: global_batch}


def count_in(state: Mapping[str, Any], global_batch: int | None) -> Counted:
    """What `with_count` put into a state. Raises UsageError where the batches here are others."""
    if _COUNT not in state:
        raise UsageError("the state was not saved by Lightning", fix="Give it to loader.load_state_dict")
    if state[_COUNT] and state.get(_STEP) != global_batch:
        raise UsageError(
            f"Lightning counts the batches of an epoch, of which {state[_COUNT]} of {state.get(_STEP)} samples "
            f"over all ranks were got; here they have {global_batch}",
            fix=f"Keep batch_size x ranks the same: batch_size={state.get(_STEP)} // ranks",
        )
    return Counted(int(state["epoch"]), int(state[_COUNT]))


class EpochListener:
    """Lightning tells the number of an epoch to `loader.batch_sampler.sampler`; this is both of them."""

    def __init__(self, set_epoch: Callable[[int], None]) -> None:
        self.set_epoch = set_epoch

    @property
    def sampler(self) -> EpochListener:
        return self


def no_attribute(name: str) -> AttributeError:
    """The exception for an attribute that StreamLoader lacks; a DataLoader's are what frameworks wrap it by."""
    found = f"'StreamLoader' object has no attribute {name!r}"
    if name not in ("batch_size", "drop_last", "sampler"):
        return AttributeError(found)
    return AttributeError(
        f"{found}: it is not a DataLoader, and gives each rank its own share already. Accelerate's "
        "prepare_data_loader is not for it; Hugging Face's Trainer needs ignore_data_skip=True. "
        "See docs/frameworks.md"
    )
