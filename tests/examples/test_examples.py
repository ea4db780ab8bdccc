"""The examples run as they are; each goes on in the middle of an epoch, and no sample is lost or comes twice."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import streamio
from tests import warm
from tests.examples import launch
from tests.examples.launch import ROOT

WATCHED = Path(__file__).with_name("watched.py")
pytestmark = pytest.mark.timeout(400)  # on a busy machine
N, GLOBAL_BATCH, EPOCHS, STOP = 61, 8, 2, 3


@dataclass(frozen=True)
class Example:
    """How a script is told to go on. torchrun: whether it starts the first ones."""

    script: str
    resume: tuple[str, ...] = ()
    torchrun: bool = False


EXAMPLES = {
    "ddp": Example("ddp_torchrun.py", torchrun=True),
    "lightning": Example("lightning_trainer.py", resume=("--resume",)),
    "trainer": Example("hf_trainer.py"),
    "accelerate": Example("accelerate_loop.py"),
    "stateful": Example("stateful_dataloader.py"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """N pictures of 8 x 8 pixels, each of which is the number of its sample."""

    def samples() -> Iterator[dict[str, object]]:
        for i in range(N):
            file = io.BytesIO()
            Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(file, "PNG")
            yield {"__key__": f"k/{i:03d}", "png": file.getvalue(), "cls": i % 10}

    path = tmp_path_factory.mktemp("set") / "train"
    streamio.write(samples(), path, shard_samples=20)
    return path


def test_every_example_is_run_here() -> None:
    run_here = {example.script for example in EXAMPLES.values()} | {"digits.py"}
    assert run_here == {file.name for file in (ROOT / "examples").glob("*.py")}


def run(example: Example, ranks: int, out: Path, *arguments: str, torchrun: bool = False) -> list[list[list[int]]]:
    """Train to the end or to the stop; the batches that each rank's network got."""
    command = [str(WATCHED), str(out), str(ROOT / "examples" / example.script), "--batch-size", str(GLOBAL_BATCH)]
    command += [*arguments, "--epochs", str(EPOCHS)]
    if example.script == "lightning_trainer.py":
        command += ["--ranks", str(ranks)]
    (launch.torchrun if torchrun else launch.ranks)(ranks, *command)
    batches: list[list[list[int]]] = [[] for _ in range(ranks)]
    for file in out.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            rank, numbers = json.loads(line)
            batches[rank].append(numbers)
    return batches


def by_step(ranks: list[list[list[int]]]) -> list[list[int]]:
    """What all ranks got in each step; every rank makes as many."""
    return [list(chain(*parts)) for parts in zip(*ranks, strict=True)]


def check_goes_on(example: Example, data: Path, work: Path, before: int, after: int) -> None:
    place = ("--data", str(data), "--checkpoint", str(work / "run"))
    seen = by_step(
        run(example, before, work / "first", *place, "--stop-after", str(STOP), torchrun=example.torchrun)
    )
    assert [len(step) for step in seen] == [GLOBAL_BATCH] * STOP
    rest = by_step(run(example, after, work / "second", *place, *example.resume))

    steps = -(-N // GLOBAL_BATCH)
    assert len(seen) + len(rest) == EPOCHS * steps
    epochs = [seen + rest[: steps - STOP], rest[steps - STOP :]]
    for epoch in epochs:
        assert Counter(number for step in epoch for number in step) == Counter(range(N))
    assert epochs[0] != epochs[1]
    shutil.rmtree(work)


@pytest.mark.parametrize("name", EXAMPLES)
def test_goes_on_in_the_middle_of_an_epoch(name: str, data: Path, tmp_path: Path) -> None:
    check_goes_on(EXAMPLES[name], data, tmp_path, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("name", EXAMPLES)
def test_goes_on_with_another_number_of_ranks(
    name: str, before: int, after: int, data: Path, tmp_path: Path
) -> None:
    check_goes_on(EXAMPLES[name], data, tmp_path, before, after)


def test_the_digits_are_learned_from_each_format(tmp_path: Path) -> None:
    """What ./tools/quickstart runs; it needs no twelve epochs to know 95 % of them."""
    code = f"""import runpy, sys
main = runpy.run_path({str(ROOT / "examples" / "digits.py")!r})["main"]
main.__globals__["EPOCHS"] = 5
sys.exit(main())"""
    done = warm.run(["-c", code], cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^(\w+) +validation accuracy .* ok$", done.stdout, re.M) == ["tar", "lmdb", "hdf5"]
