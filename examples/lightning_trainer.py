"""PyTorch Lightning; a checkpoint in the middle of an epoch goes on there.

    python examples/lightning_trainer.py --ranks 2 --checkpoint run/
    python examples/lightning_trainer.py --ranks 2 --checkpoint run/ --resume

Lightning saves the place of a StreamLoader in its checkpoints, and adds no sampler to it. `./tools/quickstart`
makes the data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import streamio


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=".quickstart/tar/train", help="folder with shards")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, over all ranks")
    parser.add_argument("--checkpoint", type=Path, default=Path("lightning-run"), help="folder")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--stop-after", type=int, default=-1, help="steps in all; -1: go to the end")
    parser.add_argument("--ranks", type=int, default=1)
    return parser.parse_args()


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 3, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        pictures, labels = batch
        return nn.functional.cross_entropy(self.net(pictures.float() / 255), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    args = arguments()
    # As many samples in a step on any number of ranks: Lightning counts steps, and goes on after so many.
    dataset = streamio.ShardDataset(
        args.data, args.batch_size // args.ranks, fields=("png", "cls"), shuffle=True, seed=1
    )
    loader = streamio.StreamLoader(dataset, num_workers=1)
    save_every = args.save_every if args.stop_after < 0 else args.stop_after  # where it stops there is a checkpoint
    keep = ModelCheckpoint(args.checkpoint, "last", every_n_train_steps=save_every, enable_version_counter=False)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=args.ranks, strategy="ddp" if args.ranks > 1 else "auto",
        max_epochs=args.epochs, max_steps=args.stop_after, callbacks=[keep], logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Digits(), loader, ckpt_path=str(args.checkpoint / "last.ckpt") if args.resume else None)
    loader.close()


if __name__ == "__main__":
    main()
