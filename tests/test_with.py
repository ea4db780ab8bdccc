"""`with_`: a further data set with some options changed, over the same opened files."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamio
from streamio import Mixture, SequentialDataset, ShardDataset, StreamLoader, TailError, TokenDataset, UsageError
from tests.sets import keys, make_set, sizes


@pytest.fixture
def path(tmp_path: Path) -> str:
    return make_set(tmp_path / "s", 40)


def only_even(sample: dict[str, Any]) -> dict[str, Any] | None:
    return sample if sample["cls"] % 2 == 0 else None


def test_it_shares_the_opened_files_and_reads_no_manifest_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    train = ShardDataset(path, 4, shuffle=True, transform=only_even)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("opened again")

    monkeypatch.setattr("streamio.dataset.open_shards", refuse)
    val = train.with_(transform=None, shuffle=False)
    assert val.table is train.table
    assert keys(val) == [f"k/{i:05d}" for i in range(40)]
    assert isinstance(val, ShardDataset) and val is not train


def test_what_is_not_changed_stays(path: str) -> None:
    given: dict[str, Any] = {"fields": ("cls", "x"), "shuffle": "global", "seed": 7, "tail": "drop", "rank": 1,
                             "world_size": 2, "transform": only_even}  # fmt: skip
    first = ShardDataset(path, 6, **given)
    second = first.with_(batch_size=3)
    expected = ShardDataset(path, 3, **given)
    assert repr(second) == repr(expected) and repr(first) == repr(ShardDataset(path, 6, **given))
    assert [[x.tolist() for x in batch] for batch in second] == [[x.tolist() for x in batch] for batch in expected]


def test_it_may_be_changed_again_and_back(path: str) -> None:
    first = ShardDataset(path, 4, shuffle=True)
    back = first.with_(shuffle=False, batch_size=7).with_(batch_size=4, shuffle=True)
    assert keys(back) == keys(first)


def test_epochs_and_counts_are_its_own(path: str) -> None:
    train = ShardDataset(path, 4, shuffle=True, transform=only_even)
    list(train)
    val = train.with_()
    assert (train.epoch, val.epoch) == (1, 0)
    assert (train.stats().dropped, val.stats().dropped) == (20, 0)
    train.set_epoch(9)
    list(val)
    assert (train.epoch, val.epoch) == (9, 1)
    assert train.stats().dropped == val.stats().dropped == 20


def test_both_may_be_read_in_turns_also_by_workers(path: str) -> None:
    train = ShardDataset(path, 4, shuffle=True)
    val = train.with_(shuffle=False)
    with_workers = StreamLoader(train, num_workers=2), StreamLoader(val, num_workers=1)
    pairs = list(zip(*with_workers, strict=True))
    assert sorted(keys(a for a, _ in pairs)) == keys(b for _, b in pairs)
    for loader in with_workers:
        loader.close()


def test_an_unknown_option_is_refused_with_the_ones_there_are(path: str) -> None:
    with pytest.raises(
        UsageError, match=r"no option 'batchsize' to change\. Options: batch_size, fields, shuffle"
    ) as e:
        ShardDataset(path, 4).with_(batchsize=3)
    assert "batch_transform" in str(e.value) and "source" not in str(e.value)
    with pytest.raises(UsageError, match="reads something else is made anew"):
        ShardDataset(path, 4).with_(source="elsewhere")


def test_what_does_not_go_together_is_refused_as_at_construction(path: str) -> None:
    dataset = ShardDataset(path, 4)
    with pytest.raises(UsageError, match="batch_size"):
        dataset.with_(batch_size=0)
    with pytest.raises(UsageError, match="transform='x'"):
        dataset.with_(transform="x")
    with pytest.raises(TailError):
        list(dataset.with_(batch_size=3, rank=0, world_size=41))


def test_a_copy_can_do_it_too(path: str) -> None:
    dataset = ShardDataset(path, 4, shuffle=True)
    for again in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert sizes(again.with_(batch_size=8)) == [8] * 5


def test_selections_and_several_sets_are_kept(tmp_path: Path, path: str) -> None:
    chosen = ShardDataset(streamio.open(path).where(lambda columns: columns["cls"] < 10), 5)
    assert sizes(chosen.with_(batch_size=2)) == [2] * 5
    both = ShardDataset({"a": path, "b": make_set(tmp_path / "b", 8)}, 6)
    assert both.with_(batch_size=12).table is both.table
    assert sum(sizes(both.with_(batch_size=12))) == 48


def test_a_data_set_of_tokens_keeps_its_documents(tmp_path: Path) -> None:
    streamio.write(({"tokens": np.arange(i % 7, dtype=np.uint16)} for i in range(200)), tmp_path / "t")
    train = TokenDataset(tmp_path / "t", 4, 8, shuffle=True, tail="drop")
    longer = train.with_(length=16, shuffle=False)
    assert isinstance(longer, TokenDataset) and longer.length == 16 and train.length == 8
    assert longer.table.documents.set is train.table.documents.set
    assert next(iter(longer))["tokens"].shape == (4, 17)
    assert train.with_(mode="packed").with_(mode="windows", repeat=2).length == 8
    with pytest.raises(UsageError, match=r"Options: batch_size, length, mode, .*repeat"):
        train.with_(nothing=1)
    with pytest.raises(UsageError, match="decode=False for tokens"):
        train.with_(decode=False)


def test_a_mixture_has_its_sets_again_with_counts_of_their_own(tmp_path: Path, path: str) -> None:
    a = ShardDataset(path, 1, transform=only_even)
    b = ShardDataset(make_set(tmp_path / "b", 40), 1)
    mix = Mixture({"a": (a, 0.5), "b": (b, 0.5)}, 8)
    other = mix.with_(batch_size=4, stop=16)
    assert len(list(other)) == 4 and len(mix) == 10
    assert other.sets["a"].table is a.table
    assert mix.stats().dropped == 0 < other.stats().dropped
    with pytest.raises(UsageError, match="Options: batch_size, weights, batches"):
        mix.with_(shuffle=True)


def test_a_stream_that_is_read_in_order_begins_anew(path: str) -> None:
    files = sorted(str(p) for p in Path(path).glob("*.tar"))
    dataset = SequentialDataset(files, 4, ("__key__", "cls"))
    assert [len(batch[0]) for batch in dataset.with_(batch_size=16)] == [16, 16, 8]


class Mine(ShardDataset):
    """With a constructor of its own."""

    def __init__(self, path: Any, *, fast: bool = False, **options: Any) -> None:
        super().__init__(path, 20 if fast else 4, **options)


def test_a_class_of_the_users_is_made_by_its_own_constructor(path: str) -> None:
    dataset = Mine(path, shuffle=True)
    fast = dataset.with_(fast=True)
    assert isinstance(fast, Mine) and sizes(fast) == [20, 20] and fast.table is dataset.table
    assert sizes(fast.with_(fast=False, tail="drop")) == [4] * 10
    assert fast.ordering.shuffle == "block"
