"""Seeds for the global generators of a worker process, for transforms that draw from them."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_globals(seed: int) -> None:
    """Seed `random`, `numpy.random` and torch's CPU generator of this process. `seed`: 63 bits.

    For worker processes only: in the main process it would take the model's own randomness away.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
