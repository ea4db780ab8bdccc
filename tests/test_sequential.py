"""SequentialDataset, with real workers: each sample once, equal batches on all ranks, and an exact resume."""

from __future__ import annotations

import gzip
import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from streamio.errors import CorruptShard, SampleError, ShardError, StorageError, UsageError
from streamio.image import CenterCrop
from streamio.loading.loader import StreamLoader
from streamio.sequential import SequentialDataset
from tests.samples import jpg, raw_tar
from tests.servers.http import serve

SIZES = (17, 18, 19, 20, 21)
ALL = [shard * 100 + i for shard, size in enumerate(SIZES) for i in range(size)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five tars `a-0.tar` … of 17 to 21 samples, with `cls` shard * 100 + i."""
    path = tmp_path_factory.mktemp("tars")
    for shard, size in enumerate(SIZES):
        raw_tar(path / f"a-{shard}.tar", _members(shard, size))
    return path


def _members(shard: int, size: int) -> Iterator[tuple[str, bytes]]:
    picture = jpg()
    for i in range(size):
        yield f"s{shard}/{i:03d}.jpg", picture
        yield f"s{shard}/{i:03d}.cls", str(shard * 100 + i).encode()


def cat(folder: Path) -> str:
    return f"pipe:cat {folder}/a-{{0..4}}.tar"


def make(folder: Path, batch_size: int = 4, **options: Any) -> SequentialDataset:
    return SequentialDataset(cat(folder), batch_size, options.pop("fields", ("cls",)), **options)


def read(ds: SequentialDataset, workers: int = 0, **options: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in DataLoader(ds, batch_size=None, num_workers=workers, **options)]


def flat(batches: list[list[int]]) -> list[int]:
    return [value for batch in batches for value in batch]


@pytest.mark.parametrize(
    ("workers", "context", "shuffle"),
    [(0, None, False), (0, None, True), (2, "fork", False), (2, "spawn", True), (7, "fork", True)],
)
def test_every_sample_comes_once(folder: Path, workers: int, context: str | None, shuffle: bool) -> None:
    """Seven workers: two have no shard."""
    ds = make(folder, shuffle=shuffle, buffer=10)
    batches = read(ds, workers, multiprocessing_context=context)
    assert sorted(flat(batches)) == ALL
    assert (flat(batches) == ALL) is (workers == 0 and not shuffle)
    assert sum(len(batch) < 4 for batch in batches) <= max(1, min(workers, 5))


@pytest.mark.parametrize("source", ["paths", "http", "gzip", "fsspec"])
def test_every_source_gives_the_same(folder: Path, tmp_path: Path, source: str) -> None:
    with serve(folder, ranges=False) as server:
        if source == "gzip":
            for file in folder.glob("*.tar"):
                (tmp_path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        pattern = {
            "paths": f"{folder}/a-*.tar", "http": f"{server.url}/a-{{0..4}}.tar", "gzip": f"{tmp_path}/*.gz",
            "fsspec": f"local://{folder}/a-{{0..4}}.tar",
        }[source]  # fmt: skip
        assert read(SequentialDataset(pattern, 4, ("cls",))) == read(make(folder))


def test_pictures_numbers_and_keys_are_made_as_elsewhere(folder: Path) -> None:
    ds = make(folder, 3, fields=("jpg", "cls", "__key__"), decode=CenterCrop(4), layout="chw")
    pictures, numbers, keys = next(iter(ds))
    assert pictures.shape == (3, 3, 4, 4) and pictures.dtype == torch.uint8
    assert numbers.dtype == torch.int64 and keys == ["s0/000", "s0/001", "s0/002"]


def test_pictures_of_any_kind_are_one_field(folder: Path) -> None:
    assert next(iter(make(folder, 2, fields=("image",), decode=CenterCrop(4))))[0].shape == (2, 4, 4, 3)


def test_a_transform_draws_the_same_on_any_workers(folder: Path) -> None:
    def drawn(workers: int) -> dict[str, float]:
        ds = make(folder, shuffle=True, fields=("__key__", "cls"), transform=_draw)
        loader = DataLoader(ds, batch_size=None, num_workers=workers)
        return {key: value for keys, values in loader for key, value in zip(keys, values.tolist(), strict=True)}

    first = drawn(0)
    assert first == drawn(2) and len(set(first.values())) == len(ALL)


def _draw(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "cls": float(rng.random())}


def test_epochs_differ_and_come_again(folder: Path) -> None:
    ds = make(folder, shuffle=True, buffer=10)
    first, second = read(ds), read(ds)
    assert first != second and sorted(flat(second)) == ALL and ds.epoch == 2
    ds.set_epoch(0)
    assert read(ds) == first


def test_shuffle_mixes_shards(folder: Path) -> None:
    order = flat(read(make(folder, shuffle=True, buffer=50)))
    assert len({value // 100 for value in order[:20]}) >= 2
    assert np.corrcoef(order, ALL)[0, 1] < 0.9


def test_the_last_batches_are_kept_or_dropped(folder: Path) -> None:
    kept, dropped = read(make(folder, 8), 2), read(make(folder, 8, tail="drop"), 2)
    assert dropped == [batch for batch in kept if len(batch) == 8] and len(dropped) < len(kept)


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_with_steps_every_rank_gets_as_many_whole_batches(folder: Path, workers: int) -> None:
    ranks = [
        read(make(folder, shuffle=True, buffer=10, steps=23, rank=rank, world_size=2), workers) for rank in (0, 1)
    ]
    assert [len(batches) for batches in ranks] == [23, 23]
    assert {len(batch) for batches in ranks for batch in batches} == {4}
    shards = [{value // 100 for value in flat(batches)} for batches in ranks]
    assert shards[0] | shards[1] == set(range(5)) and not shards[0] & shards[1]


def test_shards_that_run_out_are_read_again(folder: Path) -> None:
    counts = Counter(flat(read(make(folder, 5, shuffle=True, buffer=1, steps=57))))
    assert set(counts) == set(ALL) and set(counts.values()) == {3}


def test_a_pass_draws_anew(folder: Path) -> None:
    ds = make(folder, 19, steps=10, fields=("__key__", "cls"), transform=_draw)
    values = [value for _, numbers in ds for value in numbers.tolist()]
    assert len(set(values)) == len(values) == 2 * len(ALL)


def test_len_is_known_where_there_are_steps(folder: Path) -> None:
    assert len(make(folder, steps=7)) == 7
    with pytest.raises(TypeError, match="without steps= has no length"):
        len(make(folder))


def test_epochs_within_the_first_shard_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streamio"):
        read(make(folder, steps=10))
        assert not caplog.records
        read(make(folder, steps=2))
    assert "what lies behind there is never read" in caplog.text


@pytest.mark.parametrize("steps", [None, 30])
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_resume_is_exact(folder: Path, workers: int, steps: int | None) -> None:
    """Twice in a row, also behind the end of the first workers, which ends the simple taking of turns."""
    whole = read(make(folder, shuffle=True, buffer=10, steps=steps), workers)
    for stop in (1, 6, len(whole) - 3, len(whole) - 1):
        got, state = _some(make(folder, shuffle=True, buffer=10, steps=steps), stop // 2, workers)
        ds = make(folder, shuffle=True, buffer=10, steps=steps)
        ds.load_state_dict(state)
        more, state = _some(ds, stop - stop // 2, workers)
        assert len(json.dumps(state)) < 1000
        ds = make(folder, shuffle=True, buffer=10, steps=steps)
        ds.load_state_dict(json.loads(json.dumps(state)))
        assert steps is None or len(ds) == steps - stop
        assert got + more + read(ds, workers) == whole
        assert ds.epoch == 1


def _some(ds: SequentialDataset, stop: int, workers: int) -> tuple[list[list[int]], dict[str, Any]]:
    """The first batches of the epoch to come, and the state after them."""
    epoch, got = ds.epoch, []
    for batch in DataLoader(ds, batch_size=None, num_workers=workers) if stop else ():
        got.append(batch[0].tolist())
        if len(got) == stop:
            break
    return got, ds.state_at(stop, epoch)


def test_a_state_at_the_end_is_that_of_the_next_epoch(folder: Path) -> None:
    for steps in (None, 10):
        ds = make(folder, steps=steps)
        state = ds.state_at(len(read(ds, 2)))
        assert (state["epoch"], state["start"]) == (1, [])


def test_a_state_between_epochs_loads_on_any_topology(folder: Path) -> None:
    state = make(folder, steps=5).state_at(0, 3)
    ds = make(folder, 8, steps=6, rank=1, world_size=2)
    ds.load_state_dict(state)
    assert ds.epoch == 3 and len(read(ds, 2)) == 6


def test_in_the_middle_another_topology_is_refused(folder: Path) -> None:
    _, state = _some(make(folder, steps=9), 4, 2)
    for options, name in (
        ({"batch_size": 5}, "batch_size=4, here batch_size is 5"),
        ({"steps": 8}, "steps=9, here steps is 8"),
        ({"rank": 0, "world_size": 2}, "world_size=1, here world_size is 2"),
        ({"seed": 1}, "seed=0, here seed is 1"),
        ({"shuffle": True}, "shuffle=False, here shuffle is True"),
    ):
        with pytest.raises(UsageError, match=name):
            make(folder, **{"steps": 9, **options}).load_state_dict(state)  # type: ignore[arg-type]
    ds = make(folder, steps=9)
    ds.load_state_dict(state)
    with pytest.raises(UsageError, match="workers=2, here workers is 1"):
        read(ds)
    ds.load_state_dict(state, strict=False)
    assert ds.epoch == 0 and len(read(ds)) == 9


def test_shards_that_shrank_since_are_told(folder: Path, tmp_path: Path) -> None:
    for shard in range(5):
        raw_tar(tmp_path / f"a-{shard}.tar", _members(shard, 2))
    ds = SequentialDataset(f"{folder}/a-*.tar", 4, ("cls",))
    _, state = _some(ds, 10, 0)
    ds = SequentialDataset(f"{tmp_path}/a-*.tar", 4, ("cls",))
    ds.load_state_dict(state)
    with pytest.raises(ShardError, match="after 40 samples of these shards, which have 10 now"):
        read(ds)


def test_stream_loader_runs_it(folder: Path) -> None:
    loader = StreamLoader(make(folder, shuffle=True, steps=12), num_workers=2)
    try:
        first = [batch[0].tolist() for batch in loader]
        loader.set_epoch(0)
        got = []
        for batch in loader:
            got.append(batch[0].tolist())
            if len(got) == 5:
                break
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert got + [batch[0].tolist() for batch in loader] == first
    finally:
        loader.close()


def test_ranks_without_steps_are_refused_before_the_first_batch(folder: Path) -> None:
    ds = make(folder, rank=0, world_size=2)
    with pytest.raises(UsageError, match=r"2 ranks would make unequal .*Give steps="):
        iter(ds)


def test_more_ranks_than_shards_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="5 shards cannot be dealt to 6 ranks"):
        iter(make(folder, steps=1, rank=0, world_size=6))


def test_standard_input_is_read_by_the_main_process(folder: Path) -> None:
    script = (
        "from torch.utils.data import DataLoader\n"
        "from streamio.sequential import SequentialDataset\n"
        "ds = SequentialDataset('-', 6, ('cls',))\n"
        "try: next(iter(DataLoader(ds, batch_size=None, num_workers=1)))\n"
        "except ValueError as error: print('num_workers=0' in str(error))\n"
        "print(sum(len(b[0]) for b in ds))"
    )
    tar = (folder / "a-0.tar").read_bytes()
    done = subprocess.run([sys.executable, "-c", script], input=tar, capture_output=True, check=True)
    assert done.stdout.split() == [b"True", b"17"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failing_command_reaches_the_loop(folder: Path, workers: int) -> None:
    ds = SequentialDataset(f"pipe:cat {folder}/a-{{0..1}}.tar; echo gone >&2; exit 3", 4, ("cls",), steps=1000)
    with pytest.raises(StorageError, match="exit code 3: gone"):
        list(StreamLoader(ds, num_workers=workers))


def test_a_cut_stream_names_shard_and_sample(folder: Path) -> None:
    ds = SequentialDataset(f"pipe:head -c 9000 {folder}/a-0.tar", 2, ("cls",))
    with pytest.raises(CorruptShard, match=r"pipe:head -c 9000 .*a-0\.tar, row 3 \('s0/003'\)"):
        read(ds)


def test_a_dropped_connection_costs_nothing_but_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamio.storage.transfer.FIRST_PAUSE", 0.001)
    with serve(folder, ranges=False, cut=0.5, times=1) as server:
        assert read(SequentialDataset(f"{server.url}/a-{{0..4}}.tar", 4, ("cls",))) == read(make(folder))


def test_samples_that_do_not_decode_are_skipped_and_counted(tmp_path: Path) -> None:
    members = [(f"{i}.jpg", b"no picture" if i == 2 else jpg()) for i in range(6)]
    tar = str(raw_tar(tmp_path / "a.tar", members))
    with pytest.raises(SampleError, match=r"a\.tar, row 2 \('2'\), field jpg"):
        list(SequentialDataset(tar, 3, ("jpg",), decode=CenterCrop(4)))
    ds = SequentialDataset(tar, 3, ("jpg",), decode=CenterCrop(4), on_error="skip")
    assert [len(batch[0]) for batch in ds] == [2, 3] and ds.stats().skipped == 1


def test_shards_without_samples_do_not_go_round_for_ever(tmp_path: Path) -> None:
    tar = raw_tar(tmp_path / "a.tar", [])
    ds = SequentialDataset(str(tar), 3, ("jpg",), steps=2)
    with pytest.warns(match="0 samples"), pytest.raises(ShardError, match="no sample in all 1 shards"):
        list(ds)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f: make(f, 0), "batch_size=0"),
        (lambda f: make(f, steps=0), "steps=0"),
        (lambda f: make(f, buffer=True), "buffer=True"),
        (lambda f: make(f, steps=3, tail="drop"), "tail='drop' with steps=3"),
        (lambda f: make(f, tail="pad"), "tail='pad'. Use 'even' or 'drop'"),
        (lambda f: make(f, shuffle="block"), "shuffle='block'"),
        (lambda f: make(f, fields="cls"), "fields='cls'"),
        (lambda f: make(f, fields=()), "fields is empty"),
        (lambda f: next(iter(make(f, fields=("clas",)))), "none of the first 4 samples has a field 'clas'"),
        (lambda f: read_batches_of_batches(f), "batch_size=None"),
    ],
)
def test_what_cannot_work_is_refused(folder: Path, call: Callable[[Path], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call(folder)


def read_batches_of_batches(folder: Path) -> None:
    next(iter(DataLoader(make(folder))))
