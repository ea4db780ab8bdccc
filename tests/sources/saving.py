"""What a run that may be killed at any moment saves: each batch, and then the state that says that it was saved."""

from __future__ import annotations

import json
import os
from pathlib import Path

from streamio import StreamLoader


def go_on(loader: StreamLoader, folder: Path, field: str) -> None:
    """From the saved state, if there is one. field: of the batches, what is saved of them."""
    number = 0
    if (folder / "state").exists():
        known = json.loads((folder / "state").read_text())
        number = known["batches"]
        loader.load_state_dict(known["state"])
    for batch in loader:
        number += 1
        (folder / f"batch.{number}").write_text(json.dumps(batch[field].tolist()))
        (folder / "new").write_text(json.dumps({"batches": number, "state": loader.state_dict()}))
        os.replace(folder / "new", folder / "state")


def saved(folder: Path) -> list[list[int]]:
    """The batches that the state knows of."""
    if not (folder / "state").exists():
        return []
    count = json.loads((folder / "state").read_text())["batches"]
    return [json.loads((folder / f"batch.{number}").read_text()) for number in range(1, count + 1)]
