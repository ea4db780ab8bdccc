"""Work that is cut so that all workers end together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamio.errors import InputError
from streamio.packing import pieces
from streamio.packing.pack import pack
from streamio.packing.pieces import Tasks, cut, weights, worth
from streamio.packing.samples import Sample
from streamio.packing.write import Job, Join, Options, batches
from streamio.shards.manifest import MANIFEST_NAME
from tests.packing.reading import contents, files, manifest
from tests.samples import jpg, tree


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any work is worth a process."""
    monkeypatch.setattr(pieces, "LEAST", 1)
    monkeypatch.setattr(pieces, "FIELD", 0)


def _jobs(*shards: list[int], format: str = "tar", **options: Any) -> list[Job]:
    settings = Options(root="", stored={}, sizes={}, **options)
    return [
        Job(
            split="all", number=n, path=f"part-{n}", format=format, options=settings,
            samples=tuple(Sample(f"{n}-{i}", (("bin", f"{n}-{i}.bin", size),)) for i, size in enumerate(sizes)),
        )
        for n, sizes in enumerate(shards)
    ]  # fmt: skip


def _cut(jobs: list[Job], workers: int) -> list[list[Job]]:
    return cut(jobs, [weights(job) for job in jobs], workers)


def _counts(parts: list[list[Job]]) -> list[list[int]]:
    return [[len(job.samples) for job in part] for part in parts]


@pytest.mark.parametrize(
    ("shards", "workers", "counts"),
    [
        ([[1] * 4, [1] * 2], 1, [[4], [2]]),
        ([[1] * 4, [1] * 2], 2, [[3, 1], [2]]),
        ([[1] * 4, [1] * 2], 3, [[2, 2], [2]]),
        ([[1] * 6], 4, [[2, 2, 2]]),  # no worker has more than two, whether three or four share them
        ([[9, 1]], 2, [[2]]),  # the middle lies in the first sample
        ([[0, 0]], 2, [[2]]),  # nothing to do but making headers
        ([[1] * 3] * 4, 2, [[3]] * 4),
    ],
)
def test_the_work_is_cut_where_the_next_worker_starts(
    shards: list[list[int]], workers: int, counts: list[list[int]]
) -> None:
    assert _counts(_cut(_jobs(*shards), workers)) == counts


@settings(deadline=None)
@given(
    shards=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=30), min_size=1, max_size=6),
    workers=st.integers(1, 9),
)
def test_pieces_are_the_shards_in_their_order(shards: list[list[int]], workers: int) -> None:
    jobs = _jobs(*shards)
    parts = _cut(jobs, workers)
    assert [[s for job in part for s in job.samples] for part in parts] == [list(job.samples) for job in jobs]
    assert all(job.samples for part in parts for job in part)
    assert len({job.path for part in parts for job in part}) == sum(map(len, parts))
    assert sum(map(len, parts)) < len(jobs) + workers
    assert all(job.is_piece == (len(part) > 1) for part in parts for job in part)


@given(
    sizes=st.lists(st.integers(0, 3 << 20) | st.integers(0, 2000), min_size=1, max_size=40),
    store=st.sampled_from(["", "raw"]),
)
def test_samples_in_memory_together_are_few_and_all_come(sizes: list[int], store: str) -> None:
    (job,) = _jobs(sizes, raw={"jpg": "jpg"} if store else {})
    parts = list(batches(job))
    assert [sample for part in parts for sample in part] == list(job.samples)
    assert all(len(part) == 1 for part in parts) or not store
    assert all(sum(sample.bytes for sample in part[1:]) < 1 << 20 for part in parts)
    assert store or len(parts) <= 1 + sum(size + 1024 for size in sizes) // (1 << 20)


@pytest.mark.parametrize("format", ["lmdb", "hdf5"])
def test_formats_that_one_process_must_write_are_not_cut(format: str) -> None:
    assert _counts(_cut(_jobs([1] * 8, format=format), 4)) == [[8]]


def test_little_work_is_for_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST", 10)
    assert [worth(weight, 4) for weight in (0, 9, 10, 25, 1000)] == [1, 1, 1, 2, 4]
    assert [Tasks(_jobs([1] * n, [1]), 4).workers for n in (18, 19, 100)] == [1, 2, 4]
    assert Tasks(_jobs([1], check=True), 4).workers == 4  # decoding is more work than copying


def test_a_shard_is_joined_as_soon_as_its_pieces_are_there() -> None:
    tasks = Tasks(_jobs([1] * 4, [1] * 4, [1] * 4), 6)
    first, second, other = (tasks.next() for _ in range(3))
    assert first and second and other and (second.at, second.number, other.at) == (0, 1, 1)
    tasks.add(second, "b")  # type: ignore[arg-type]
    tasks.add(first, "a")  # type: ignore[arg-type]
    join = tasks.next()
    assert join and isinstance(join.what, Join) and (join.at, join.what.pieces) == (0, ("a", "b"))
    assert len(tasks) == 3


@pytest.mark.parametrize("options", [
    {}, {"shuffle": True}, {"shard_samples": 17}, {"val": 0.3}, {"resize_short": 8}, {"store": "raw"},
    {"check": True}, {"on_error": "skip"},
], ids=str)  # fmt: skip
def test_pieces_give_the_same_bytes(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-09: the number of workers changes nothing but the time."""
    names = {f"{'ab'[i % 2]}/{i:02d}.v{i % 3}": jpg(20, 12) for i in range(60)}
    src = tree(tmp_path / "in", {f"{name}.jpg": data for name, data in names.items()})
    for i in range(0, 60, 7):
        tree(src, {f"a/{i:02d}x.json": b"{}", f"{'ab'[i % 2]}/{i:02d}.v{i % 3}.txt": b"t" * i})
    if options.get("on_error"):
        tree(src, {f"b/broken{i}.jpg": b"none" for i in range(30)})
        options = options | {"check": True}
    for workers in (1, 2, 5):
        pack(src, tmp_path / f"out{workers}", workers=workers, **options)
    assert files(tmp_path / "out1") == files(tmp_path / "out2") == files(tmp_path / "out5")
    out = tmp_path / "out5"
    assert contents(out if (out / MANIFEST_NAME).exists() else out / "val")


def test_a_shard_all_of_whose_pieces_are_left_out_is_no_shard(tmp_path: Path) -> None:
    src = tree(
        tmp_path / "in", {f"a{i}.jpg": b"none" for i in range(9)} | {f"b{i}.jpg": jpg(4, 4) for i in range(3)}
    )
    for workers in (1, 4):
        pack(src, tmp_path / f"out{workers}", workers=workers, check=True, on_error="skip", shard_samples=9)
    assert files(tmp_path / "out1") == files(tmp_path / "out4")
    assert [shard.samples for shard in manifest(tmp_path / "out4").shards] == [3]


def test_a_file_that_grows_meanwhile_is_packed_as_it_is_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src = tree(tmp_path / "in", {f"{i}.bin": b"x" * i for i in range(1, 12)})
    whole = Tasks.__init__

    def grow(self: Tasks, jobs: Any, workers: int) -> None:
        tree(src, {"3.bin": b"long" * 1000})
        whole(self, jobs, workers)

    monkeypatch.setattr(Tasks, "__init__", grow)
    pack(src, tmp_path / "out", workers=3)
    assert contents(tmp_path / "out")["3"]["bin"] == b"long" * 1000


def test_a_bad_file_in_any_piece_leaves_nothing(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {f"{i:02d}.jpg": jpg(4, 4) if i != 17 else b"none" for i in range(20)})
    with pytest.raises(InputError, match=r"17\.jpg"):
        pack(src, tmp_path / "out", workers=3, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
