"""Who reads a data set: it is told nothing about that, and can only look at its caller.

Loaders and frameworks that would take our batches for samples, or share them out among the ranks once more, are
found here before the first batch; so are trainers that count the batches of an epoch by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType

from streamio.errors import UsageError

_SPLITTERS = ("DataLoaderDispatcher", "IterableDatasetShard")
"""Classes of Accelerate and transformers that give each rank its part of what a data set yields."""

_TRAINER = "transformers.trainer"
_PAGE = "See docs/frameworks.md"


def refuse_batch_size(caller: FrameType) -> None:
    """Raise UsageError if a DataLoader is about to collect our batches into batches of batches.

    The loader's fetcher, which calls `__iter__`, knows its batch_size.
    """
    if caller.f_locals.get("auto_collation") is not True:
        return
    found = "the DataLoader has a batch_size (1 if none is given), but the data set makes whole batches"
    if any(frame.f_globals.get("__name__") == _TRAINER for frame in _stack(caller)):
        raise UsageError(
            f"Hugging Face's Trainer makes a DataLoader of its own: {found}",
            fix=f"Override get_train_dataloader, and return a StreamLoader. {_PAGE}",
        )
    raise UsageError(
        found, fix="Write DataLoader(dataset, batch_size=None, …); the size of a batch is the data set's batch_size"
    )


def refuse_second_split(caller: FrameType, world_size: int) -> None:
    """Raise UsageError if a framework is about to share our batches out among the ranks once more.

    Each rank would get a part of its own share, and the rest would be lost in silence.
    """
    if world_size > 1 and any(_class_of(frame) in _SPLITTERS for frame in _stack(caller)):
        raise UsageError(
            f"Accelerate would share the batches out among {world_size} ranks, but the data set gives each rank "
            "its own share already",
            fix="Use a StreamLoader, which Accelerator.prepare leaves as it is, and with Hugging Face's Trainer "
            f"return it from get_train_dataloader. {_PAGE}",
        )


def refuse_replay(caller: FrameType) -> None:
    """Raise UsageError if torchdata's StatefulDataLoader reads what has no end.

    It goes on by reading again as many batches as came before, and would take new rows for those.
    """
    if any(str(frame.f_globals.get("__name__")).startswith("torchdata.stateful") for frame in _stack(caller)):
        raise UsageError(
            "StatefulDataLoader resumes by reading what came before once more, and a source without end never "
            "gives that again",
            fix="Use streamio.StreamLoader, whose state has the cursors",
        )


def counts_batches(caller: FrameType) -> bool:
    """Whether PyTorch Lightning calls, which counts the batches of an epoch, also of one that it resumes."""
    return str(caller.f_globals.get("__name__")).endswith(".utilities.combined_loader")


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _class_of(frame: FrameType) -> str:
    return frame.f_code.co_qualname.partition(".")[0]
