"""Trains from the last checkpoint, if there is one, and goes on for some epochs. Run by `test_resume.py`: JSON.

The model is a number: every step multiplies it and adds what all ranks saw, exactly, so that it comes out the same
for any number of ranks, and differently if one sample or step were another. Written below `out`:

    <run>-rank<r>.jsonl   a line for every step that this rank made: {step, epoch, keys, state}
    checkpoint.json       {step, model, loader}, by rank 0 every few steps; always whole
    done.json             the last checkpoint of a run that reached its end
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from streamio import ShardDataset, StreamLoader

PRIME = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Training:
    """epochs: of all runs together. every: steps between checkpoints. pause: seconds that a step takes."""

    data: str
    out: str
    run: str
    batch_size: int
    workers: int
    context: str
    shuffle: str
    epochs: int
    every: int
    pause: float = 0.01

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def write(path: Path, value: Any) -> None:
    """All or nothing, whenever this process is killed."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)


def next_model(model: int, keys: list[str]) -> int:
    """The model after a step of all ranks."""
    seen = torch.tensor(sum(int(key[2:]) ** 2 for key in keys))
    dist.all_reduce(seen)
    return (model * 31 + int(seen)) % PRIME


def train(t: Training, rank: int) -> None:
    out = Path(t.out)
    dataset = ShardDataset(t.data, t.batch_size, shuffle=t.shuffle)
    loader = StreamLoader(dataset, num_workers=t.workers, context=t.context)  # type: ignore[arg-type]
    at: dict[str, Any] = {"step": 0, "model": 1}
    if (out / "checkpoint.json").exists():
        at = json.loads((out / "checkpoint.json").read_text())
        loader.load_state_dict(at["loader"])
    dist.barrier()  # nobody writes a new checkpoint before all have read this one
    step, model = at["step"], at["model"]
    with open(out / f"{t.run}-rank{rank}.jsonl", "w", buffering=1) as log:
        while (epoch := loader.epoch) < t.epochs:
            for batch in loader:
                step, keys, state = step + 1, batch["__key__"], loader.state_dict()
                log.write(json.dumps({"step": step, "epoch": epoch, "keys": keys, "state": state}) + "\n")
                model = next_model(model, keys)  # after it, all ranks have written their line
                at = {"step": step, "model": model, "loader": state}
                if rank == 0 and step % t.every == 0:
                    write(out / "checkpoint.json", at)
                time.sleep(t.pause)
    if rank == 0:
        write(out / "done.json", at)


def main() -> None:
    t = Training(**json.loads(sys.argv[1]))
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # They meet at a file: a free port may be taken before they get there.
    dist.init_process_group("gloo", init_method=f"file://{t.out}/{t.run}.store", rank=rank, world_size=world_size)
    train(t, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
