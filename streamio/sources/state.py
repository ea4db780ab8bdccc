"""The state of a run over a source: the cursors of what a rank has delivered, and what of the epoch is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamio.errors import UsageError
from streamio.sources.base import Cursor, Partition
from streamio.sources.held import Mark

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """What a checkpoint holds: one of each rank, which belong together.

    data:       fingerprint of the source.
    epoch:      the one that goes on, or the one to come.
    steps:      batches of it that each rank has got; 0 at its beginning.
    partitions: of a bounded source: those of this rank that the epoch has left. None: it has not begun.
    cursors:    by partition. Of an endless source all that this rank knows.
    rank, world_size: where it was taken.
    """

    data: str
    epoch: int = 0
    steps: int = 0
    partitions: tuple[Partition, ...] | None = None
    cursors: Mapping[str, Cursor] = field(default_factory=dict)
    rank: int = 0
    world_size: int = 1

    def after(self, mark: Mark) -> SourceState:
        """When one batch more was delivered."""
        gone = {*mark.ended, *mark.forget}
        cursors = {name: cursor for name, cursor in {**self.cursors, **mark.cursors}.items() if name not in gone}
        if self.partitions is None:
            return replace(self, steps=self.steps + 1, cursors=cursors)
        left = tuple(partition for partition in self.partitions if partition.name not in mark.ended)
        return replace(self, steps=self.steps + 1, partitions=left, cursors=cursors)

    def next_epoch(self, *, keeps_cursors: bool) -> SourceState:
        cursors = self.cursors if keeps_cursors else {}
        return replace(self, epoch=self.epoch + 1, steps=0, partitions=None, cursors=cursors)

    def to_json(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts."""
        partitions = None if self.partitions is None else [[p.name, dict(p.facts)] for p in self.partitions]
        return {
            "version": STATE_VERSION, "kind": "source", "data": self.data, "epoch": self.epoch,
            "start": [self.steps] if self.steps else [], "partitions": partitions, "cursors": dict(self.cursors),
            "rank": self.rank, "world_size": self.world_size,
        }  # fmt: skip

    @classmethod
    def from_json(cls, state: Any) -> SourceState:
        """Read what `to_json` gave. Raises UsageError for anything else."""
        if not isinstance(state, Mapping) or state.get("kind") != "source":
            raise UsageError("the state is not that of a source", fix="Give what loader.state_dict() returned")
        if state.get("version") != STATE_VERSION:
            raise UsageError(
                f"the state was saved with version={state.get('version')!r}, here version is {STATE_VERSION}",
                fix="Load it with the streamio that saved it",
            )
        try:
            saved = state["partitions"]
            partitions = None if saved is None else tuple(Partition(name, dict(facts)) for name, facts in saved)
            return cls(
                data=str(state["data"]), epoch=int(state["epoch"]), steps=int(sum(state["start"])),
                partitions=partitions, cursors=dict(state["cursors"]), rank=int(state["rank"]),
                world_size=int(state["world_size"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"the state is damaged: {error!r}", fix="Give what loader.state_dict() returned"
            ) from error


def joined(states: Any) -> SourceState:
    """The states of all ranks of one run as one. states: one state where one rank saved it, else a sequence.

    Raises UsageError where one is missing or they do not belong together.
    """
    given = [states] if isinstance(states, Mapping) or not isinstance(states, Sequence) else list(states)
    parts = [SourceState.from_json(state) for state in given]
    ranks = sorted(part.rank for part in parts)
    size = parts[0].world_size if parts else 1
    if ranks != list(range(size)) or any(part.world_size != size for part in parts):
        raise UsageError(
            f"the state has rank {', '.join(map(str, ranks))} of {size}, and each knows its own cursors only",
            fix="Save those of all ranks, streamio.gather_states(loader), and load that list",
        )
    if len({part.data for part in parts}) > 1:
        raise UsageError("the states are of different sources", fix="Give those of one run")
    # A rank that is one epoch further has finished the one before: nothing of it is left there.
    epoch = min(part.epoch for part in parts)
    begun = [part for part in parts if part.epoch == epoch]
    left = [part.partitions for part in begun if part.partitions is not None]
    if left and len(left) < len(begun):
        raise UsageError(
            f"some ranks have begun epoch {epoch} and others have not", fix="Save the states of all after one step"
        )
    return SourceState(
        data=parts[0].data, epoch=epoch, steps=max(part.steps for part in begun),
        partitions=tuple(partition for partitions in left for partition in partitions) if left else None,
        cursors={name: cursor for part in parts for name, cursor in part.cursors.items()},
    )  # fmt: skip
