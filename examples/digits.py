"""From a folder of pictures to a trained network, in each of the three formats: what ./tools/quickstart runs.

The data are the 1,797 hand-written digits of scikit-learn, written out as PNG files in a folder for each class.
Exits with 1 unless every network knows more than 95 % of the digits that it was not trained on.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import streamio

WORK = Path(".quickstart")
EPOCHS = 12
WANTED = 0.95


def write_pictures(folder: Path) -> None:
    """folder/0/0000.png … folder/9/1796.png, 8 x 8 pixels each."""
    shutil.rmtree(folder, ignore_errors=True)
    digits = load_digits()
    for i, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / str(label) / f"{i:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype("uint8")).save(path)


def pack(folder: Path, out: Path, form: str) -> None:
    command = ["pack", str(folder), str(out), "--format", form, "--val", "0.2", "--overwrite"]
    print(f"\n$ streamio {' '.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", "streamio", *command], check=True)


def loader(split: Path, *, shuffle: bool) -> streamio.StreamLoader:
    dataset = streamio.ShardDataset(split, 64, fields=("png", "cls"), shuffle=shuffle, seed=1)
    return streamio.StreamLoader(dataset, num_workers=2)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )  # fmt: skip


def as_input(pictures: torch.Tensor) -> torch.Tensor:
    """uint8 (B, 8, 8, 3), grey in three equal channels -> float (B, 1, 8, 8), 0 to 1."""
    return pictures[..., 0].unsqueeze(1).float() / 255


def train(model: nn.Module, batches: streamio.StreamLoader) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for pictures, labels in batches:
            loss = nn.functional.cross_entropy(model(as_input(pictures)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, batches: streamio.StreamLoader) -> float:
    right = seen = 0
    for pictures, labels in batches:
        right += int((model(as_input(pictures)).argmax(1) == labels).sum())
        seen += len(labels)
    return right / seen


def main() -> int:
    torch.set_num_threads(1)  # the network is tiny; more threads would only take the CPU from the workers
    print(f"Writing the digits of scikit-learn to {WORK / 'digits'}", flush=True)
    write_pictures(WORK / "digits")
    results = {}
    for form in ("tar", "lmdb", "hdf5"):
        out = WORK / form
        pack(WORK / "digits", out, form)
        torch.manual_seed(0)
        model, training, validation = (
            network(),
            loader(out / "train", shuffle=True),
            loader(out / "val", shuffle=False),
        )
        begin = time.perf_counter()
        train(model, training)
        rate = EPOCHS * len(streamio.open(out / "train")) / (time.perf_counter() - begin)
        results[form] = accuracy(model, validation)
        print(f"\nTrained from {form}: {rate:,.0f} samples/s, validation accuracy {results[form]:.3f}", flush=True)
        training.close()
        validation.close()
    print()
    for form, value in results.items():
        print(f"{form:5} validation accuracy {value:.3f}  {'ok' if value > WANTED else 'too low'}")
    return 0 if min(results.values()) > WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
