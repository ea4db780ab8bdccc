"""torchdata's StatefulDataLoader, on any number of ranks; a checkpoint in the middle of an epoch goes on there.

    torchrun --standalone --nproc_per_node 2 examples/stateful_dataloader.py --checkpoint run.pt

The same command goes on from the checkpoint, on as many ranks or on another number. `./tools/quickstart` makes the
data.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

import streamio


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=".quickstart/tar/train", help="folder with shards")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, over all ranks")
    parser.add_argument("--checkpoint", type=Path, default=Path("stateful.pt"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=0, help="steps of this run; 0: go to the end")
    return parser.parse_args()


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 3, 64), nn.ReLU(), nn.Linear(64, 10))


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")  # "nccl" where there are GPUs
    dataset = streamio.ShardDataset(
        args.data, args.batch_size // dist.get_world_size(), fields=("png", "cls"), shuffle=True, seed=1
    )
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=args.workers)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["loader"])  # loader.load_state_dict wants as many ranks and workers

    def save() -> None:
        state: dict[str, Any] = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        if dist.get_rank() == 0:
            torch.save({**state, "loader": loader.state_dict()}, args.checkpoint)

    steps = 0
    for epoch in range(dataset.epoch, args.epochs):
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(pictures.float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps == args.stop_after:
                break
        save()
        if steps == args.stop_after:
            break
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    dist.barrier()  # nobody leaves before the checkpoint is written
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
