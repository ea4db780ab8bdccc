"""Hugging Face's Trainer; a checkpoint in the middle of an epoch goes on there.

    torchrun --standalone --nproc_per_node 2 examples/hf_trainer.py --checkpoint run/

The same command goes on from the last checkpoint. `./tools/quickstart` makes the data.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import streamio


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=".quickstart/tar/train", help="folder with shards")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, over all ranks")
    parser.add_argument("--checkpoint", type=Path, default=Path("trainer-run"), help="folder")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--stop-after", type=int, default=0, help="step to stop at; 0: go to the end")
    return parser.parse_args()


class StreamTrainer(Trainer):
    def __init__(self, loader: streamio.StreamLoader, **options: Any) -> None:
        super().__init__(**options)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        return self.loader  # not accelerator.prepare(…): the loader gives each rank its own share

    def compute_loss(self, model: nn.Module, inputs: dict[str, torch.Tensor], *_: Any, **__: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(inputs["png"].float() / 255), inputs["cls"])


class KeepPlace(TrainerCallback):
    """The place of the loader, in a file beside the others of each checkpoint."""

    def __init__(self, stop_after: int) -> None:
        self.stop_after = stop_after

    def place(self, args: TrainingArguments, step: int) -> Path:
        return Path(args.output_dir, f"checkpoint-{step}", "loader.json")

    def on_train_begin(self, args: Any, state: Any, control: Any, *, train_dataloader: Any, **_: Any) -> None:
        if state.global_step:
            train_dataloader.load_state_dict(json.loads(self.place(args, state.global_step).read_text()))

    def on_save(self, args: Any, state: Any, control: Any, *, train_dataloader: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self.place(args, state.global_step).write_text(json.dumps(train_dataloader.state_dict()))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.stop_after:
            control.should_save = control.should_training_stop = True


def main() -> None:
    args = arguments()
    training = TrainingArguments(
        str(args.checkpoint), num_train_epochs=args.epochs, save_steps=args.save_every, learning_rate=3e-3,
        ignore_data_skip=True,  # the loader goes on by itself
        report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    # As many samples in a step on any number of ranks: the Trainer counts steps, and plans its schedule in them.
    dataset = streamio.ShardDataset(args.data, args.batch_size // training.world_size, shuffle=True, seed=1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 3, 64), nn.ReLU(), nn.Linear(64, 10))
    loader = streamio.StreamLoader(dataset, num_workers=1)
    trainer = StreamTrainer(loader, model=model, args=training, callbacks=[KeepPlace(args.stop_after)])
    trainer.train(resume_from_checkpoint=args.checkpoint.exists() and get_last_checkpoint(str(args.checkpoint)))


if __name__ == "__main__":
    main()
