"""Hugging Face Accelerate; a checkpoint in the middle of an epoch goes on there.

    accelerate launch --num_processes 2 examples/accelerate_loop.py --checkpoint run/

The same command goes on from the checkpoint, on as many ranks or on another number. `./tools/quickstart` makes the
data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

import streamio


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=".quickstart/tar/train", help="folder with shards")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, over all ranks")
    parser.add_argument("--checkpoint", type=Path, default=Path("accelerate-run"), help="folder")
    parser.add_argument("--stop-after", type=int, default=0, help="steps of this run; 0: go to the end")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())  # else ranks on a CPU do not find each other
    dataset = streamio.ShardDataset(
        args.data, args.batch_size // accelerator.num_processes, fields=("png", "cls"), shuffle=True, seed=1
    )
    loader = streamio.StreamLoader(dataset, num_workers=1)  # gives each rank its share: not to be prepared
    model = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 3, 64), nn.ReLU(), nn.Linear(64, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))

    accelerator.register_for_checkpointing(loader)
    if args.checkpoint.exists():
        accelerator.load_state(str(args.checkpoint))

    steps = 0
    for epoch in range(loader.epoch, args.epochs):
        for pictures, labels in loader:
            pictures, labels = pictures.to(accelerator.device), labels.to(accelerator.device)
            loss = nn.functional.cross_entropy(model(pictures.float() / 255), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            steps += 1
            if steps == args.stop_after:
                break
        accelerator.save_state(str(args.checkpoint))
        if steps == args.stop_after:
            break
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
