"""A run that is killed at any moment, and started again on another topology, has every message once.

What the loop got behind its last commit (or state) comes again: that is what the test throws away.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, TopicPartition

from streamio import KafkaDataset, StreamLoader
from tests.servers.kafka import Kafka

PARTITIONS = 8
BATCH = 64
EVERY = 3
"""Batches from one commit to the next."""
TOPOLOGIES: list[tuple[int, dict[str, Any]]] = [
    (1, {"num_workers": 0}),
    (2, {"num_workers": 2, "context": "fork"}),
    (1, {"num_workers": 2, "transport": "thread"}),
    (1, {"num_workers": 4, "context": "fork"}),
    (2, {"num_workers": 0}),
    (1, {"num_workers": 1, "context": "fork"}),
    (1, {"num_workers": 3, "context": "fork", "threads": 2}),
    (1, {"num_workers": 1, "transport": "thread"}),
    (1, {"num_workers": 2, "context": "fork"}),
    (1, {"num_workers": 0}),
]
"""(ranks, where batches are made) of each life."""
Rows = np.ndarray[Any, np.dtype[np.int64]]


def _live(given: dict[str, Any], rank: int, world: int, options: dict[str, Any], out: Path, states: Any) -> None:
    """One life of one rank. Without states it has a group."""
    data = KafkaDataset(
        batch_size=BATCH, types={"n": "int64"}, meta=("partition", "offset"),
        fields=("n", "partition", "offset"), rank=rank, world_size=world, **given,
    )  # fmt: skip
    loader = StreamLoader(data, **options)
    if states:
        loader.load_state_dict(states)
    rows = []
    with open(out / f"rows{rank}", "ab", buffering=0) as log:
        for step, (n, partition, offset) in enumerate(loader):
            rows.append(np.stack([n.numpy(), partition.numpy(), offset.numpy()], 1))
            if "group" in given:
                log.write(rows[-1].tobytes())
            if step == 0:
                _meet(out, rank, world)
            if step % EVERY == 0:
                _save(loader, given, rows, out, rank)
    _save(loader, given, rows, out, rank)
    (out / f"done{rank}").touch()
    loader.close()


def _meet(out: Path, rank: int, world: int) -> None:
    """As gradients let ranks meet: none commits a step before all have begun, and so counted what there is."""
    (out / f"begun{rank}").touch()
    give_up = time.monotonic() + 60
    while len(list(out.glob("begun*"))) < world:
        assert time.monotonic() < give_up
        time.sleep(0.001)


def _save(loader: StreamLoader, given: dict[str, Any], rows: list[Rows], out: Path, rank: int) -> None:
    if "group" in given:
        loader.commit()
        return
    state = {"state": loader.state_dict(), "rows": np.concatenate(rows).tolist() if rows else []}
    (out / f"new{rank}").write_text(json.dumps(state))
    os.replace(out / f"new{rank}", out / f"state{rank}")


def _killed(ranks: list[BaseProcess], out: Path, states: bool, rows: int) -> None:
    """End them some moment after each has done so much; or let them come to their end."""
    draws, give_up = random.Random(rows), time.monotonic() + 300

    def far_enough(rank: int) -> bool:
        if (out / f"done{rank}").exists():
            return True
        path = out / f"{'state' if states else 'rows'}{rank}"
        return path.exists() and path.stat().st_size >= (1 if states else rows * 24 // len(ranks))

    while not all(map(far_enough, range(len(ranks)))):
        assert time.monotonic() < give_up and all(rank.exitcode in (None, 0) for rank in ranks)
        time.sleep(0.001)
    time.sleep(draws.random() * 0.02)
    for rank in ranks:
        assert rank.pid is not None
        if rank.exitcode is None:
            os.kill(rank.pid, signal.SIGKILL)
    for rank in ranks:
        rank.join()


def _lives(
    folder: Path, given: dict[str, Any], topologies: Iterable[tuple[int, dict[str, Any]]], rows: int
) -> Iterable[Path]:
    """Run, kill, run again; the last one may end. Gives what each left."""
    topologies, context, states = list(topologies), get_context("fork"), None
    for life, (world, options) in enumerate(topologies):
        out = folder / str(life)
        out.mkdir()
        ranks = [
            context.Process(target=_live, args=(given, rank, world, options, out, states)) for rank in range(world)
        ]
        for process in ranks:
            process.start()
        if life + 1 < len(topologies):
            _killed(ranks, out, "group" not in given, rows)
            assert not all((out / f"done{rank}").exists() for rank in range(world)), "nobody was killed"
        for process in ranks:
            process.join()
        if "group" not in given:
            states = [json.loads((out / f"state{rank}").read_text())["state"] for rank in range(world)]
        yield out
    assert [process.exitcode for process in ranks] == [0] * world


def _committed(kafka: Kafka, topic: str, group: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 0})
    places = consumer.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], timeout=10)
    consumer.close()
    return [max(0, place.offset) for place in places]


@pytest.mark.parametrize(
    ("messages", "lives"), [(24_000, 4), pytest.param(1_000_000, 11, marks=pytest.mark.slow)], ids=str
)
def test_after_the_last_commit_no_message_is_lost_and_none_comes_twice(
    kafka: Kafka, tmp_path: Path, messages: int, lives: int
) -> None:
    topic, group = kafka.topic(PARTITIONS), kafka.fresh("group")
    kafka.send(topic, ({"value": b'{"n": %d}' % n} for n in range(messages)))
    given = {"bootstrap": kafka.bootstrap, "topic": topic, "group": group}
    before, used = [0] * PARTITIONS, []
    topologies = [TOPOLOGIES[life % len(TOPOLOGIES)] for life in range(lives)]
    for out in _lives(tmp_path, given, topologies, messages // (lives + 1)):
        after = _committed(kafka, topic, group)
        logs = [np.frombuffer(path.read_bytes(), np.int64).reshape(-1, 3) for path in sorted(out.glob("rows*"))]
        rows = np.concatenate(logs)
        for part in range(PARTITIONS):
            got = rows[rows[:, 1] == part]
            got = got[got[:, 2] < after[part]]
            assert got[:, 2].tolist() == list(range(before[part], after[part]))
            used.append(got[:, 0])
        before = after
    assert np.array_equal(np.sort(np.concatenate(used)), np.arange(messages))


def test_from_states_no_message_is_lost_and_none_comes_twice(kafka: Kafka, tmp_path: Path) -> None:
    messages = 6000
    topic = kafka.topic(PARTITIONS)
    kafka.send(topic, ({"value": b'{"n": %d}' % n} for n in range(messages)))
    used = []
    for out in _lives(tmp_path, {"bootstrap": kafka.bootstrap, "topic": topic}, TOPOLOGIES[:4], 1):
        used += [row[0] for path in out.glob("state*") for row in json.loads(path.read_text())["rows"]]
    assert sorted(used) == list(range(messages))
