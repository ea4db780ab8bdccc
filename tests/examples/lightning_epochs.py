"""What Lightning makes of a StreamLoader: epochs after a resume, and its refusals. Run with OUT SET."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from streamio import ShardDataset, StreamLoader


class Line(lightning.LightningModule):
    """Keeps [epoch, number of the batch, labels] of each batch, and the epochs of validation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(3, 1)
        self.seen: list[Any] = []
        self.ready: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append([self.current_epoch, batch_idx, batch["cls"].tolist()])
        return self.net(batch["x"]).pow(2).mean() * 1e-9

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self.net(batch["x"]).mean(), batch_size=len(batch["x"]))

    def on_train_epoch_end(self) -> None:
        self.ready.append(self.trainer.num_training_batches)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 1e-3)


def fit(path: str, out: str, *, batch: int = 4, resume: str | None = None, **options: Any) -> Line:
    loader = StreamLoader(ShardDataset(path, batch, shuffle=True), num_workers=0)
    keep = ModelCheckpoint(out, "{epoch}-{step}", every_n_train_steps=5, save_top_k=-1)
    ends = ModelCheckpoint(out, "end-{epoch}", every_n_epochs=1, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[keep, ends], **options,
    )  # fmt: skip
    model = Line()
    validation = StreamLoader(ShardDataset(path, 4), num_workers=0)
    trainer.fit(model, loader, validation, ckpt_path=resume)
    return model


def main() -> None:
    out, path = sys.argv[1:]
    lightning.seed_everything(1, workers=True)
    found: dict[str, Any] = {}
    found["whole"] = fit(path, out, max_epochs=3).seen
    resumed = fit(path, out, max_epochs=3, resume=f"{out}/epoch=1-step=25.ckpt")
    found["from the middle of epoch 1"], found["lengths"] = resumed.seen, resumed.ready
    found["from the end of epoch 0"] = fit(path, out, max_epochs=3, resume=f"{out}/end-epoch=0.ckpt").seen
    try:
        fit(path, out, batch=8, max_epochs=3, resume=f"{out}/epoch=1-step=25.ckpt")
    except Exception as error:
        found["other batches"] = f"{type(error).__name__}: {error}"
    Path(out, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
