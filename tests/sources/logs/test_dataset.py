"""LogDataset: files to their end, on any topology; what is refused, what is told."""

from __future__ import annotations

import bz2
import gzip
import json
import logging
import lzma
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from torch.utils.data import DataLoader

from streamio import LogDataset, StreamLoader
from streamio.errors import SampleError, StorageError, UsageError
from tests.sources.logs.writing import Run, append, lines, write

PACK: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}

LOADING: list[dict[str, Any]] = [{}, {"workers": 1, "transport": "thread"}, {"workers": 3, "transport": "thread"}]


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["i"].tolist()]


@pytest.mark.parametrize("loading", [{}, {"workers": 2}, {"workers": 3, "transport": "thread"}], ids=str)
def test_ranges_of_large_files_are_read_by_all_workers_and_each_line_comes_once(
    tmp_path: Path, loading: dict[str, Any]
) -> None:
    write(tmp_path / "a.jsonl", range(5000))
    (tmp_path / "b.jsonl").write_bytes(gzip.compress(lines(range(5000, 6000))))
    write(tmp_path / "c.jsonl", [6000])
    run = Run(tmp_path / "*.jsonl", 64, split=10_000, **loading)
    assert sum(".jsonl[" in one.name for one in run.dataset.source.partitions()) == 16
    got = run.rest()
    assert (got == list(range(6001))) if not loading else (sorted(got) == list(range(6001)))


def test_a_plain_dataloader_reads_it_too(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", range(1000))
    dataset = LogDataset(tmp_path / "a.jsonl", 64, split=4000)
    assert sorted(numbers(DataLoader(dataset, batch_size=None, num_workers=2))) == list(range(1000))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_get_as_many_batches_and_each_line_comes_once(tmp_path: Path, ranks: int) -> None:
    text = lines(range(700)).replace(b"\n", b"\n\n", 50).replace(b"\n", b"\r\n", 70)  # some blank lines
    (tmp_path / "a.jsonl").write_bytes(text)
    (tmp_path / "b.jsonl").write_bytes(gzip.compress(lines(range(700, 801))[:-1]))
    shares = []
    for rank in range(ranks):
        dataset = LogDataset(tmp_path / "*.jsonl", 16, split=2000, rank=rank, world_size=ranks)
        shares.append([batch["i"].tolist() for batch in StreamLoader(dataset, num_workers=0)])
    assert len({len(share) for share in shares}) == 1
    assert sorted(i for share in shares for batch in share for i in batch) == list(range(801))


@pytest.mark.parametrize("kind", PACK)
def test_a_run_goes_on_at_the_line_where_it_was(tmp_path: Path, kind: str) -> None:
    for part in range(3):
        (tmp_path / f"{part}.jsonl").write_bytes(PACK[kind](lines(range(part * 400, part * 400 + 400))))
    got: list[int] = []
    state: Any = None
    draw = random.Random(1)
    while len(got) < 1200:
        run = Run(tmp_path / "*.jsonl", 16, split=3000, state=state, **draw.choice(LOADING))
        if len(got) < 900:
            got += run.take(draw.randrange(1, 300))
            state = run.state()
        else:
            got += run.rest()
    assert sorted(got) == list(range(1200))


@pytest.mark.parametrize("how", ["renamed", "copied", "compressed", "copied and cut"])
@pytest.mark.parametrize("taken", [0, 100, 700])
def test_a_file_is_found_again_by_its_content(tmp_path: Path, how: str, taken: int) -> None:
    path, other = tmp_path / "app.log", tmp_path / "app.log.1"
    write(path, range(1000))
    run = Run(tmp_path / "app.log", 10, split=7000)
    got = run.take(taken)
    if not taken:
        run.dataset.begin_epoch()  # it is planned, and nothing of it was read
    state = run.state()
    if how == "renamed":
        path.rename(other)
    elif how == "compressed":
        tmp_path.joinpath("app.log.1.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    else:
        other.write_bytes(path.read_bytes())
        path.unlink() if how == "copied" else os.truncate(path, 0)
    write(path, range(5000, 5100))  # the next one
    after = Run(tmp_path / "app.log", 10, split=7000, state=state)
    assert [*got, *after.rest()] == list(range(1000))
    assert after.rest() == list(range(5000, 5100)), "the next epoch reads what is there then"


def test_a_file_that_is_cut_while_it_is_read_goes_on_in_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"".join(b'{"i":%d,"x":"%s"}\n' % (i, b"y" * 10_000) for i in range(1000)))
    run = Run(path, 10)
    got = run.take(10)
    (tmp_path / "app.log.1").write_bytes(path.read_bytes())
    os.truncate(path, 0)
    write(path, range(5000, 5100))
    assert [*got, *run.rest()] == list(range(1000))


def test_a_file_that_is_cut_while_it_is_read_and_has_no_copy_is_an_error_and_no_short_epoch(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"".join(b'{"i":%d,"x":"%s"}\n' % (i, b"y" * 10_000) for i in range(1000)))
    for size in (0, 5_000_000, 9_999_990):
        path.write_bytes(b"".join(b'{"i":%d,"x":"%s"}\n' % (i, b"y" * 10_000) for i in range(1000)))
        run = Run(path, 10)
        run.take(10)
        os.truncate(path, size)
        with pytest.raises(StorageError, match=r"app\.log: is no longer there as it was"):
            run.rest()
        assert run.got == list(range(len(run.got)))


@pytest.mark.parametrize("how", ["deleted", "changed", "cut"])
def test_a_file_that_has_gone_is_an_error_before_the_first_batch(tmp_path: Path, how: str) -> None:
    path = tmp_path / "app.log"
    write(path, range(1000))
    run = Run(path, 10)
    run.take(100)
    state = run.state()
    if how == "deleted":
        path.unlink()
        path.write_text('{"i":5}\n')
    elif how == "changed":
        path.write_bytes(path.read_bytes().replace(b"line 999", b"line 998"))
    else:
        os.truncate(path, 20_000)
    with pytest.raises(StorageError, match=r"app\.log: is no longer there as it was when the epoch began"):
        next(iter(Run(path, 10, state=state).loader))


def test_an_epoch_ends_where_the_files_ended_when_it_began(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", range(100))
    run = Run(tmp_path / "a.jsonl", 10, split=1000)
    run.take(10)
    append(tmp_path / "a.jsonl", range(100, 200))
    run.rest()
    assert run.got == list(range(100))
    assert run.rest() == list(range(200))


def test_the_last_line_needs_no_newline_and_a_broken_one_is_told_to_be_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(range(10))[:-1])
    assert Run(path).rest() == list(range(10))
    path.write_bytes(lines(range(10))[:-3])
    with pytest.raises(SampleError, match=r"a\.jsonl, line 10, byte 243: no JSON .* does not end with a newline"):
        Run(path).rest()


@pytest.mark.parametrize("kind", [kind for kind in PACK if kind != "plain"])
def test_a_compressed_file_that_is_cut_is_an_error_with_its_name(tmp_path: Path, kind: str) -> None:
    data = PACK[kind](lines(random.Random(3).sample(range(10**9), 5_000)))
    (tmp_path / "a.jsonl.z").write_bytes(data[: len(data) * 9 // 10])
    with pytest.raises(StorageError, match=rf"a\.jsonl\.z: the file is cut: its {kind} data ends in the middle"):
        Run(tmp_path / "a.jsonl.z", 100).rest()


def test_a_compressed_file_beside_its_original_is_read_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "app.log.1", range(100))
    (tmp_path / "app.log.1.gz").write_bytes(gzip.compress(lines(range(100)))[:120])
    with caplog.at_level(logging.WARNING):
        assert Run(tmp_path / "app.log*").rest() == list(range(100))
    assert "app.log.1.gz is left out" in caplog.text
    (tmp_path / "app.log.1.gz").write_bytes(gzip.compress(lines(range(200, 300))))
    assert sorted(Run(tmp_path / "app.log*").rest()) == [*range(100), *range(200, 300)]


def test_files_of_the_same_content_are_two_files(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / name, range(10))
    assert sorted(Run(tmp_path / "*.jsonl").rest()) == sorted([*range(10)] * 2)
    assert sorted(Run(tmp_path / "*.jsonl", follow=True).rest()) == sorted([*range(10)] * 2)


def test_line_numbers_are_right_in_any_range_of_any_file(tmp_path: Path) -> None:
    good = [b'{"i":%d}' % i for i in range(3000)]
    for number in (7, 1234, 2999):
        good[number - 1] = b"broken"
    for kind in ("plain", "gzip"):
        (tmp_path / "a.jsonl").write_bytes(PACK[kind](b"\n".join(good)))
        for follow in (False, True):
            report = tmp_path / f"{kind}-{follow}"
            options: dict[str, Any] = {"follow": True} if follow else {"split": 5000}
            run = Run(tmp_path / "a.jsonl", 64, on_error="skip", error_report=str(report), **options)
            assert len(run.rest()) == 3000 - 3 - follow, "a last line without a newline may be half"
            told = [json.loads(line) for line in report.read_text().splitlines()]
            assert [one["line"] for one in told] == [7, 1234, 2999]
            assert all(one["byte"] == sum(map(len, good[: one["line"] - 1])) + one["line"] - 1 for one in told)


def test_a_line_that_is_too_long_is_told_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"i":1}\n{"i":2,"x":"%s"}\n{"i":3}\n' % (b"y" * 10_000_000))
    run = Run(path, 1, types={"i": "int64"}, max_line="4MB", on_error="skip")
    assert run.rest() == [1, 3]
    with pytest.raises(
        SampleError, match=r"a\.jsonl, line 2, byte 8: the line is 10\.0 MB long, more than max_line"
    ):
        Run(path, 1, types={"i": "int64"}, max_line="4MB").rest()


def test_text_patterns_and_functions(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text("INFO one\n\nWARN two\r\nINFO three\n")
    (batch,) = LogDataset(path, 9, parse="text")
    assert batch["text"] == ["INFO one", "WARN two", "INFO three"]
    assert batch["__key__"] == [f"{path}:{at}" for at in (0, 10, 20)]
    (batch,) = LogDataset(path, 9, parse=r"(?P<level>\w+) (?P<what>.*)", fields=("what", "level"))
    assert batch == (["one", "two", "three"], ["INFO", "WARN", "INFO"])
    (batch,) = LogDataset(path, 9, parse=infos, types={"length": "int64"})
    assert batch["length"].tolist() == [8, 10]
    shares = [list(LogDataset(path, 9, parse=infos, rank=rank, world_size=2, split=16)) for rank in (0, 1)]
    assert [len(share) for share in shares] == [1, 1]


def infos(line: str) -> dict[str, int] | None:
    return {"length": len(line)} if line.startswith("INFO") else None


def test_further_fields_are_told_and_types_hold_in_every_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.jsonl").write_text('{"i":1}\n' * 150_000 + '{"i":2,"later":1}\n')
    with caplog.at_level(logging.WARNING):
        run = Run(tmp_path / "a.jsonl", 50_000)
        assert len(run.rest()) == 150_001
    assert "further fields, which are left out: later" in caplog.text


def test_it_is_small_to_pickle_and_says_what_it_is(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", range(100))
    dataset = LogDataset(tmp_path / "a.jsonl", 16)
    assert repr(dataset) == f"LogDataset({tmp_path / 'a.jsonl'}, batch_size=16)"
    assert numbers(pickle.loads(pickle.dumps(dataset))) == list(range(100))
    changed = dataset.with_(split=500)
    assert numbers(changed) == list(range(100)) and len(changed.source.partitions()) > 1


def test_a_state_of_other_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", range(100))
    write(tmp_path / "b.jsonl", range(100))
    run = Run(tmp_path / "a.jsonl")
    run.take(4)
    with pytest.raises(UsageError, match="the state was saved with data="):
        Run(tmp_path / "b.jsonl", state=run.state())


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "sources.md"
    section = page.read_text(encoding="utf-8").split("\n## Logs\n")[1].split("\n## ")[0]
    code = section.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page.name, "exec"), {"__name__": "__page__"})
