"""Resuming with real processes: training is killed, and goes on with other ranks and workers as before."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

import streamio
from streamio import ShardDataset, StreamLoader
from tests import warm
from tests.processes.train_resume import PRIME, Training
from tests.sets import make_set, numbered

TRAIN = Path(__file__).with_name("train_resume.py")
TOPOLOGIES = ((1, 2, "fork"), (2, 1, "spawn"), (4, 3, "fork"))  # ranks, workers of each, how these start
SAMPLES = 509  # a prime; in shards of 40
FOR_EVER = 1_000_000

pytestmark = pytest.mark.timeout(900)  # every process needs seconds to start, more on a busy machine


class Ranks:
    """The processes of one run: started as torchrun would, in a process group that their workers belong to."""

    def __init__(self, training: Training, world_size: int) -> None:
        self.training = training
        self._processes: list[warm.Process] = []
        for rank in range(world_size):
            facts = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
            environment = {**os.environ, **{name: str(value) for name, value in facts.items()}}
            with open(self._file(rank, "err"), "wb") as errors:
                process = warm.start(
                    [TRAIN, training.to_json()], env=environment, group=self.group if rank else 0,
                    stdout=1, stderr=errors.fileno(),
                )  # fmt: skip
            self._processes.append(process)

    @property
    def group(self) -> int:
        return self._processes[0].pid

    def _file(self, rank: int, kind: str) -> Path:
        return Path(self.training.out, f"{self.training.run}-rank{rank}.{kind}")

    def errors(self) -> str:
        return "\n".join(self._file(rank, "err").read_text()[-2000:] for rank in range(len(self._processes)))

    def wait_for_steps(self, steps: int, rank: int) -> None:
        """Until this rank has got so many batches; 0: until its log is there."""
        log = self._file(rank, "jsonl")
        until(lambda: (log.exists() and log.read_bytes().count(b"\n") >= steps) or self._anyone_ended(), 90)
        assert not self._anyone_ended(), self.errors()

    def _anyone_ended(self) -> bool:
        return any(process.poll() is not None for process in self._processes)

    def wait(self) -> None:
        """To the end of training."""
        for process in self._processes:
            assert process.wait(90) == 0, self.errors()

    def kill(self, how: str, order: random.Random) -> None:
        """SIGKILL. "all": to ranks and workers at once; "ranks": to these alone, one after the other."""
        if how == "all":
            os.killpg(self.group, signal.SIGKILL)
        for process in order.sample(self._processes, len(self._processes)):
            process.kill()
        for process in self._processes:
            process.wait()

    def left(self) -> list[psutil.Process]:
        """Who of them lives, workers included, whoever is their parent now."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def wait_until_idle(self) -> None:
        """Workers have made all that they may, or wait for room to hand it over."""
        before: float = -1

        def idle() -> bool:
            nonlocal before
            last, before = before, sum(sum(process.cpu_times()[:2]) for process in self.left())
            return before == last

        until(idle, 90, pause=0.3)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return os.getpgid(process.pid) == self.group and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, ProcessLookupError):
            return False

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def lines(self, done: int, stop: int) -> Iterator[list[dict[str, Any]]]:
        """For the steps behind `done` up to `stop`: what each rank wrote."""
        if stop == done:
            return  # killed so early that a rank may not even have a log
        logs = [self._file(rank, "jsonl").read_text().split("\n") for rank in range(len(self._processes))]
        for step, texts in enumerate(zip(*(log[: stop - done] for log in logs), strict=True), done + 1):
            ranks = [json.loads(text) for text in texts]
            assert [line["step"] for line in ranks] == [step] * len(ranks)
            yield ranks


class Step(NamedTuple):
    epoch: int
    keys: list[str]  # of all ranks, in their order


class Story:
    """A training from start to end over many runs, and the steps that count: those up to a checkpoint."""

    def __init__(self, training: Training, seed: int) -> None:
        self.training = training
        self.steps: list[Step] = []
        self.runs: list[Ranks] = []
        self._random = random.Random(seed)

    def run(self, world_size: int, workers: int, context: str, batch_size: int) -> Ranks:
        training = dataclasses.replace(
            self.training, run=f"run{len(self.runs)}", workers=workers, context=context, batch_size=batch_size,
            every=self._random.randint(1, 4),
        )  # fmt: skip
        self.runs.append(Ranks(training, world_size))
        return self.runs[-1]

    def is_killed(self, world_size: int, workers: int, context: str, batch_size: int) -> None:
        """A run that goes on from the last checkpoint, and is killed within 25 steps or soon after."""
        ranks = self.run(world_size, workers, context, batch_size)
        steps, how = self._random.randint(0, 25), self._random.choice(["all", "ranks"])
        ranks.wait_for_steps(steps, self._random.randrange(world_size))
        ranks.kill(how, self._random)
        self._commit(ranks)
        print(f"{world_size}x{workers} killed ({how}) from step {steps} on; checkpoint at step {len(self.steps)}")

    def goes_to_the_end(self, world_size: int, workers: int, context: str, batch_size: int) -> None:
        """A run that finishes the epoch of the last checkpoint, and one more."""
        epochs = self._checkpoint("checkpoint")["loader"]["epoch"] + 2
        self.training = dataclasses.replace(self.training, epochs=epochs)
        ranks = self.run(world_size, workers, context, batch_size)
        ranks.wait()
        self._commit(ranks, "done")

    def _checkpoint(self, name: str) -> dict[str, Any]:
        path = Path(self.training.out, f"{name}.json")
        if not path.exists():
            return {"step": 0, "model": 1, "loader": {"epoch": 0}}
        return json.loads(path.read_text())  # type: ignore[no-any-return]

    def _commit(self, ranks: Ranks, name: str = "checkpoint") -> None:
        """Take the steps up to the checkpoint; what was trained behind it is forgotten and will come again."""
        checkpoint = self._checkpoint(name)
        done, lines = len(self.steps), []
        for lines in ranks.lines(done, checkpoint["step"]):
            assert all(line["state"] == lines[0]["state"] for line in lines), "the ranks do not agree"
            assert all(line["epoch"] == lines[0]["epoch"] for line in lines)
            self.steps.append(Step(lines[0]["epoch"], [key for line in lines for key in line["keys"]]))
        assert len(self.steps) == checkpoint["step"]
        assert not lines or checkpoint["loader"] == lines[0]["state"]
        assert checkpoint["model"] == model(self.steps)

    def check_every_sample_once_an_epoch(self) -> None:
        every = Counter(sample["__key__"] for sample in numbered(SAMPLES))
        for epoch, steps in itertools.groupby(self.steps, key=lambda step: step.epoch):
            assert Counter(key for step in steps for key in step.keys) == every, f"epoch {epoch}"
        assert [epoch for epoch, _ in itertools.groupby(self.steps, key=lambda step: step.epoch)] == list(
            range(self.training.epochs)
        )

    def check_nothing_is_left(self) -> None:
        """Workers notice within some seconds that who asked them for batches is gone."""
        until(lambda: not any(ranks.left() for ranks in self.runs), 15)

    def end(self) -> None:
        for ranks in self.runs:
            ranks.end()


def until(condition: Callable[[], Any], seconds: float, pause: float = 0.005) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for {seconds} seconds"
        time.sleep(pause)


def model(steps: list[Step]) -> int:
    """What `train_resume.py` comes to after these steps."""
    value = 1
    for step in steps:
        value = (value * 31 + sum(int(key[2:]) ** 2 for key in step.keys)) % PRIME
    return value


def uninterrupted(training: Training, batch_size: int) -> list[Step]:
    """The same on one rank without workers, in this process."""
    loader = StreamLoader(ShardDataset(training.data, batch_size, shuffle=training.shuffle), num_workers=0)
    return [Step(epoch, batch["__key__"]) for epoch in range(training.epochs) for batch in loader]


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Callable[..., Story]]:
    stories: list[Story] = []

    def begin(shuffle: str, seed: int) -> Story:
        training = Training(
            data=make_set(tmp_path / "set", SAMPLES, shard_samples=40), out=str(tmp_path), run="", batch_size=0,
            workers=0, context="fork", shuffle=shuffle, epochs=FOR_EVER, every=1,
        )  # fmt: skip
        stories.append(Story(training, seed))
        return stories[-1]

    yield begin
    for each in stories:
        each.end()


def killed_and_resumed(story: Story, kills: int, batch: int) -> None:
    for topology, _ in zip(itertools.cycle(TOPOLOGIES), range(kills), strict=False):
        story.is_killed(*topology, batch // topology[0])
    story.goes_to_the_end(1, 2, "fork", batch)
    story.check_every_sample_once_an_epoch()
    assert story.steps == uninterrupted(story.training, batch)
    story.check_nothing_is_left()


def test_training_killed_on_1x2_2x1_and_4x3_is_the_uninterrupted_one_step_for_step(
    story: Callable[..., Story],
) -> None:
    killed_and_resumed(story("block", seed=1), kills=3, batch=24)


@pytest.mark.slow
@pytest.mark.parametrize(("shuffle", "batch"), [("block", 12), ("global", 24)])
def test_training_killed_20_times_is_the_uninterrupted_one_step_for_step(
    story: Callable[..., Story], shuffle: str, batch: int
) -> None:
    killed_and_resumed(story(shuffle, seed=batch), kills=20, batch=batch)


def killed_and_resumed_with_other_batches(story: Story, kills: int) -> None:
    """Steps of 24, 14 and 12 samples, in the last run of 9: each leaves enough for a sample a rank of any other."""
    sizes = itertools.cycle((24, 7, 3))
    for topology, size, _ in zip(itertools.cycle(TOPOLOGIES), sizes, range(kills), strict=False):
        story.is_killed(*topology, size)
    story.goes_to_the_end(1, 2, "fork", 9)
    story.check_every_sample_once_an_epoch()
    story.check_nothing_is_left()


def test_with_another_batch_size_at_each_resume_every_sample_comes_once(story: Callable[..., Story]) -> None:
    killed_and_resumed_with_other_batches(story("global", seed=2), kills=3)


@pytest.mark.slow
def test_with_20_changes_of_the_batch_size_every_sample_comes_once(story: Callable[..., Story]) -> None:
    killed_and_resumed_with_other_batches(story("block", seed=3), kills=20)


@pytest.mark.parametrize(
    "context",
    ["fork", pytest.param("spawn", marks=pytest.mark.slow), pytest.param("forkserver", marks=pytest.mark.slow)],
)
def test_no_worker_outlives_a_killed_training_that_was_slower_than_its_workers(
    tmp_path: Path, story: Callable[..., Story], context: str
) -> None:
    """Their batches are larger than a pipe, and its other end is open in every worker."""
    texts = ({"__key__": f"k/{i:05d}", "txt": "x" * 1000} for i in range(2000))
    streamio.write(texts, tmp_path / "texts")
    begun = story("block", seed=4)
    begun.training = dataclasses.replace(begun.training, data=str(tmp_path / "texts"), pause=3600)
    ranks = begun.run(1, 3, context, 100)
    ranks.wait_for_steps(1, 0)
    ranks.wait_until_idle()
    ranks.kill("ranks", random.Random(0))
    begun.check_nothing_is_left()
