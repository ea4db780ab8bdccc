"""Seeds for the global generators, for transforms that draw from them."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_globals(seed: int) -> None:
    """Seed `random`, `numpy.random` and torch's CPU generator of this process. `seed`: 63 bits.

    For worker processes only: in the main process it would take the model's own randomness away.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    with _drawing:
        torch.default_generator.manual_seed(seed)


@contextmanager
def torch_draws_from(seed: int) -> Iterator[None]:
    """What is drawn from torch's CPU generator begins at `seed`; after that the generator is as it was before.

    For one thread at a time; others wait. Who draws from it without asking here takes part of the numbers.
    """
    with _drawing:
        before = torch.default_generator.get_state()
        try:
            torch.default_generator.manual_seed(seed)
            yield
        finally:
            torch.default_generator.set_state(before)


_drawing = threading.Lock()


def _after_fork() -> None:
    global _drawing
    _drawing = threading.Lock()  # somebody in the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
