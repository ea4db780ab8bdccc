"""One rank of two: what Accelerate and the Trainer make of our loaders. Run with OUT SET; writes OUT/RANK.json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import Trainer, TrainingArguments

from streamio import ShardDataset, StreamLoader


def said(read: Any) -> str:
    """Class and text of what it raises."""
    try:
        read()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main() -> None:
    out, path = sys.argv[1:]
    accelerator = Accelerator(cpu=True)
    found: dict[str, Any] = {"ranks": accelerator.num_processes}

    for name, options in {
        "dispatched": {"put_on_device": True},
        "dispatched, workers": {"put_on_device": True, "workers": 2},
        "sharded": {"dispatch_batches": False},
        "sharded, spawned": {"dispatch_batches": False, "workers": 1, "context": "spawn"},
    }.items():
        workers, context = options.pop("workers", 0), options.pop("context", None)
        loader = DataLoader(
            ShardDataset(path, 4), batch_size=None, num_workers=workers, multiprocessing_context=context
        )
        found[name] = said(lambda loader=loader, options=options: list(prepare_data_loader(loader, **options)))
    stateful = StatefulDataLoader(ShardDataset(path, 4), batch_size=None)
    found["stateful"] = said(lambda: list(accelerator.prepare(stateful)))
    found["prepare_data_loader"] = said(
        lambda: accelerator.prepare_data_loader(StreamLoader(ShardDataset(path, 4)))
    )

    found["skipping"] = said(lambda: skip_first_batches(StreamLoader(ShardDataset(path, 4)), 3))
    arguments = TrainingArguments(f"{out}/trainer", use_cpu=True, report_to="none", disable_tqdm=True)
    for name, dataset in {
        "trainer": ShardDataset(path, 4),
        "trainer, undivided": ShardDataset(path, 4, rank=0, world_size=1),
    }.items():
        found[name] = said(Trainer(torch.nn.Linear(3, 1), arguments, train_dataset=dataset).train)

    mine = StreamLoader(ShardDataset(path, 4), num_workers=0)
    found["prepared is itself"] = accelerator.prepare(mine) is mine
    found["mine"] = [n for batch in mine for n in batch["cls"].tolist()]
    # One who wants rank 0 to read for all can have that.
    whole = ShardDataset(path, 4, fields=("x", "cls"), rank=0, world_size=1)
    loader = accelerator.prepare(DataLoader(whole, batch_size=None))
    found["dealt out"] = [n for _, cls in loader for n in cls.tolist()]
    Path(out, f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    accelerator.end_training()


if __name__ == "__main__":
    main()
