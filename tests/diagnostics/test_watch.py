"""watch: a verdict on whatever loop it is around."""

from __future__ import annotations

import time
import weakref
from typing import Any

import pytest
from torch.utils.data import DataLoader

import streamio
from streamio import ShardDataset, StreamLoader, UsageError
from tests.sets import keys, make_set

SAMPLES, SLOWLY = 80, 0.002


def slowly(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(SLOWLY)
    return sample


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_set(tmp_path_factory.mktemp("set") / "s", SAMPLES)


def test_it_changes_nothing_of_the_loop_and_prints_its_verdict_once(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = StreamLoader(ShardDataset(path, 4, transform=slowly), num_workers=0)
    meter = streamio.watch(loader)
    assert len(meter) == 20 and meter.verdict is None
    assert keys(meter) == keys(StreamLoader(ShardDataset(path, 4), num_workers=0))
    out, err = capsys.readouterr()
    assert (
        out == ""
        and err == f"streamio: {meter.verdict}\n"
        and err.startswith("streamio: data-bound: 19 steps took")
    )
    assert "by the loop itself" in err and "transform" in err


def test_inside_with_several_epochs_get_one_verdict(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    loader = StreamLoader(ShardDataset(path, 4), num_workers=0)
    list(loader)  # nothing of what was before counts
    with streamio.watch(loader) as meter:
        for _ in range(2):
            for _ in meter:
                pass
        left = iter(meter)
        for _ in range(20):
            next(left)
        assert capsys.readouterr().err == "" and meter.verdict is None
    del left
    assert capsys.readouterr().err.count("streamio: ") == 1
    assert meter.verdict is not None and meter.verdict.figures.steps == 60


def test_a_loop_that_is_left_or_fails_gets_its_verdict_too(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number, _ in enumerate(streamio.watch(StreamLoader(ShardDataset(path, 4), num_workers=0))):
        if number == 5:
            break
    assert "5 steps took" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        _fails_at(3, StreamLoader(ShardDataset(path, 4), num_workers=0))
    assert "3 steps took" in capsys.readouterr().err


def _fails_at(place: int, loader: StreamLoader) -> None:
    with streamio.watch(loader) as meter:
        for number, _ in enumerate(meter):
            1 / (place - number)


def test_less_than_two_batches_are_no_verdict(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    meter = streamio.watch(StreamLoader(ShardDataset(path, SAMPLES), num_workers=0))
    assert len(list(meter)) == 1
    assert meter.verdict is None
    assert capsys.readouterr().err.startswith("streamio: no verdict: fewer than two batches")


@pytest.mark.parametrize("workers", [0, 1])
def test_of_a_plain_dataloader_over_our_data_set_the_stages_are_known(path: str, workers: int) -> None:
    dataset = ShardDataset(path, 4, transform=slowly)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    meter = streamio.watch(loader, quiet=True)
    assert len(keys(meter)) == SAMPLES
    verdict = meter.verdict
    assert verdict is not None and (verdict.bound, verdict.stage) == ("data", "transform")
    assert verdict.figures.workers == workers
    assert dataset.stats().seconds["transform"] >= SAMPLES * SLOWLY and dataset.stats().samples == SAMPLES


def test_a_data_set_by_itself_and_any_iterable_can_be_watched(path: str) -> None:
    meter = streamio.watch(ShardDataset(path, 4, transform=slowly), quiet=True)
    assert len(keys(meter)) == SAMPLES
    assert meter.verdict is not None and meter.verdict.stage == "transform" and meter.verdict.figures.workers == 0

    def foreign() -> Any:
        for number in range(5):
            time.sleep(SLOWLY)
            yield number

    meter = streamio.watch(foreign(), quiet=True)
    assert list(meter) == [0, 1, 2, 3, 4]
    assert meter.verdict is not None and meter.verdict.bound == "data" and meter.verdict.stage is None
    assert "is not known" in meter.verdict.text


def test_a_mixture_has_the_stages_of_all_its_sets(path: str) -> None:
    sets = {name: (ShardDataset(path, 4, transform=slowly), 0.5) for name in "ab"}
    mixture = streamio.Mixture(sets, 8, stop=SAMPLES)
    meter = streamio.watch(StreamLoader(mixture, num_workers=0), quiet=True)
    assert len(keys(meter)) == SAMPLES and mixture.stats().samples == SAMPLES
    assert meter.verdict is not None and meter.verdict.stage == "transform"


def test_what_cannot_be_looped_over_is_refused() -> None:
    with pytest.raises(UsageError, match="watch gets a loader, not int"):
        streamio.watch(5)  # type: ignore[arg-type]


def test_a_batch_that_the_loop_let_go_is_not_kept(path: str) -> None:
    last: Any = None
    for batch in streamio.watch(ShardDataset(path, 4), quiet=True):
        assert last is None or last() is None
        last = weakref.ref(batch["x"])
        del batch


def test_a_stream_that_is_read_from_front_to_back_spends_its_time_reading(path: str) -> None:
    source = f"pipe:sleep 0.3; cat {path}/shard-000000.tar"
    dataset = streamio.SequentialDataset(source, 4, ("cls", "__key__"))
    meter = streamio.watch(StreamLoader(dataset, num_workers=0), quiet=True)
    assert sum(len(cls) for cls, _ in meter) == 25
    assert dataset.stats().seconds["read"] >= 0.3 and dataset.stats().samples == 25
    assert meter.verdict is not None and meter.verdict.stage == "read"
