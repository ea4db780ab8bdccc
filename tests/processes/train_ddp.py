"""Trains a line with DDP on its ranks' share; writes down what it saw. Run by torchrun: SET OUT START_METHOD."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from streamio import ShardDataset, StreamLoader


def main() -> None:
    path, out, method = sys.argv[1:]
    # Made before the process group: the rank is read when iteration starts.
    dataset = ShardDataset(path, 16, fields=("x", "cls"), shuffle=True)
    loader = StreamLoader(dataset, num_workers=2 if method == "fork" else 1, context=method)  # spawn takes its time
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-9)
    epochs: list[list[int]] = []
    steps = []
    for _ in range(2):
        seen: list[int] = []
        steps.append(0)
        for x, label in loader:
            loss = (model(x) - label[:, None]).pow(2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            seen += label.tolist()
            steps[-1] += 1
        epochs.append(seen)
    report = {"epochs": epochs, "steps": steps, "weight": model.module.weight.tolist()}
    Path(out, f"rank{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
