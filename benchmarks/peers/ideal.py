"""What all of them try to be: torch.randperm."""

from __future__ import annotations

import torch

from benchmarks.peers.base import Setup, arguments, record


def main(setup: Setup) -> None:
    generator = torch.Generator().manual_seed(setup.seed)
    record(
        setup,
        "torch",
        "torch.randperm",
        "a table of all rows, mixed in memory",
        lambda: torch.randperm(setup.samples, generator=generator).numpy(),
    )


if __name__ == "__main__":
    main(arguments())
