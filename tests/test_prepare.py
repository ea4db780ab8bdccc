"""prepare=: what is made of a sample without a draw is made once where there is a cache, and no batch tells."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamio
from streamio import Fill, ShardDataset, StreamLoader, TransformError, UsageError
from streamio.batching.functions import go_by_value
from streamio.caching import keyed
from streamio.image import CenterCrop, MaxSide, RandomResizedCrop, Resize
from tests.cached import CacheSuite, epochs, ident
from tests.samples import png
from tests.sets import keys, make_set

SAMPLES, BAD, RAISES, NONE = 36, (5, 20), (8, 23), (3, 21, 22)


def _set(path: Path, samples: int = SAMPLES) -> str:
    def all_samples() -> Iterator[dict[str, Any]]:
        for i in range(samples):
            lacks = {} if 12 < i < 16 else {"rank": i * 3, "txt": f"text {i}" * (i % 4)}
            yield {"__key__": f"{i:03d}", "png": b"no picture" if i in BAD else png(20 + i % 3, 30, colour=(i, 0, 0)),
                   "cls": i, "x": np.full(3, i, np.float32), **lacks}  # fmt: skip

    streamio.write(all_samples(), path, shard_samples=10)
    return str(path)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _set(tmp_path_factory.mktemp("set") / "out")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """12 samples of which none is bad."""
    return make_set(tmp_path_factory.mktemp("set") / "small", 12, shard_samples=5)


@pytest.fixture(autouse=True)
def _own_memory() -> None:
    """Logged errors, which pytest keeps, hold on to data sets of earlier tests, and so to their memory."""
    keyed._in_memory.clear()


@pytest.fixture(params=["memory", "disk"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory" if request.param == "memory" else f"disk:{tmp_path / 'cache'}"


def of_kinds(sample: dict[str, Any]) -> Any:
    """Values of many kinds; none for some samples, and an error for others."""
    number = int(sample["cls"])
    if number in RAISES:
        raise ValueError("no boxes")
    if number in NONE:
        return None
    spread = sample["png"].astype(np.float32) / 255
    return {
        **sample, "spread": spread, "first": spread[:2], "codes": np.frombuffer(b"read only", np.uint8),
        "waves": np.asfortranarray(np.sin(np.arange(4000, dtype=np.float32)).reshape(40, 100) + number),
        "boxes": [np.ones((number % 3, 4)), "none", None],
        "facts": {"mean": float(spread.mean()), 3: (number, 2.5, b"raw"), "more": np.float16(number)},
    }  # fmt: skip


def alike(sample: dict[str, Any]) -> Any:
    """What goes into arrays."""
    number = int(sample["cls"])
    if number in RAISES:
        raise ValueError("no boxes")
    if number in NONE:
        return None
    return {"png": sample["png"] // 2, "cls": sample["cls"], "__key__": sample["__key__"]}


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Changes what it gets, and takes sums, whose last bits depend on how numbers lie in memory."""
    sample["spread"] *= 2
    sample["codes"] += 1
    sample["facts"]["drawn"] = rng.random()
    return {**sample, "sum": sample["waves"].sum()}


def drawn_globally(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "drawn": np.float64(random.random() + np.random.random())}


CASES: dict[str, dict[str, Any]] = {
    "alone": {"prepare": alike, "decode": Resize((6, 8))},
    "as a tuple": {"prepare": alike, "decode": Resize((6, 8)), "fields": ("cls", "png"), "on_error": "substitute"},
    "before a transform": {"prepare": of_kinds, "transform": drawn, "collate": ident},
    "substituted": {"prepare": of_kinds, "transform": drawn, "collate": ident, "on_error": "substitute"},
    "of decoded text": {"prepare": of_kinds, "decode": {"png": MaxSide(9), "txt": len}, "collate": ident},
    "filled": {"prepare": of_kinds, "missing": {"txt": Fill("none"), "rank": Fill(-1)}, "collate": ident},
    "filled after": {"prepare": alike, "decode": Resize(9), "missing": {"new": Fill(2.5)}, "collate": ident},
    "left out": {"prepare": of_kinds, "transform": drawn, "missing": {"txt": "skip"}, "collate": ident},
}  # fmt: skip


def _made(source: str, case: str, **more: Any) -> ShardDataset:
    return ShardDataset(source, 5, shuffle="global", seed=3, **{"on_error": "skip", **CASES[case], **more})


@pytest.fixture(scope="module")
def plain(source: str) -> dict[str, list[list[str]]]:
    """Three epochs of each case without a cache."""
    return {case: epochs(_made(source, case)) for case in CASES}


class TestPrepared(CacheSuite):
    made, fixed, anew = staticmethod(_made), "before a transform", len((*BAD, *RAISES))

    @pytest.fixture(params=CASES)
    def case(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


def test_samples_are_counted_alike_with_a_cache(source: str, where: str) -> None:
    for case in CASES:
        counts = []
        for cache in (None, where):
            dataset = _made(source, case, cache=cache)
            epochs(dataset)
            stats = dataset.stats()
            counts.append((stats.samples, stats.batches, stats.skipped, stats.substituted, stats.dropped))
        assert counts[0] == counts[1], case
        assert sum(counts[0][2:]) >= 3 * len((*BAD, *RAISES))


def test_global_generators_draw_the_same_with_a_cache(source: str, where: str) -> None:
    made = []
    for cache in (None, where):
        dataset = _made(source, "alone", transform=drawn_globally, cache=cache)
        with closing(StreamLoader(dataset, num_workers=2, transport="process")) as loader:
            made.append(epochs(loader, 2))
    assert made[0] == made[1]


def test_members_of_a_mixture_keep_what_they_prepared(source: str, where: str) -> None:
    def mixture(**more: Any) -> streamio.Mixture:
        sets = {name: (_made(source, "alone", fields=fields, **options, **more), weight)
                for name, options, weight in (("a", {}, 0.7), ("b", {"transform": dict}, 0.3))}  # fmt: skip
        return streamio.Mixture(sets, 7)

    fields = ("cls", "png", "__key__")
    cached = mixture(cache=where)
    assert epochs(cached) == epochs(mixture())
    assert cached.stats().cache_hits > 0


def test_numbers_are_of_one_type_in_whatever_batch_they_come(source: str) -> None:
    """Some samples of one shard lack `rank`: without prepare, numbers of a batch with these come in another type."""
    types = set()

    def looked(sample: dict[str, Any]) -> dict[str, Any]:
        types.add((type(sample["cls"]), type(sample["rank"])))
        return sample

    options: dict[str, Any] = {"fields": ("cls", "rank"), "collate": ident}
    for shuffle in (False, True):
        list(ShardDataset(source, 2, prepare=looked, shuffle=shuffle, **options))
    assert types == {(int, int), (int, type(None))}

    types.clear()
    list(ShardDataset(source, 2, transform=looked, **options))
    assert len(types) > 2, "they are of one type anyway: _alike has nothing to do any more"


def test_a_sample_is_read_and_prepared_once(small: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []

    def noted(sample: dict[str, Any]) -> dict[str, Any]:
        prepared.append(sample["__key__"])
        return sample

    dataset = ShardDataset(small, 4, prepare=noted, shuffle=True, cache=where, **_key_of(where))
    first = epochs(dataset, 1)[0]
    assert len(prepared) == len(set(prepared)) == 12

    def nothing(*arguments: Any) -> Any:
        raise AssertionError("the samples are read again")

    monkeypatch.setattr(dataset.table, "gather", nothing)
    monkeypatch.setattr(dataset.table, "keys", nothing)
    dataset.set_epoch(0)
    assert epochs(dataset, 1)[0] == first
    epochs(dataset, 2)
    assert len(prepared) == 12
    stats = dataset.stats()
    assert (stats.cache_misses, stats.cache_hits) == (12, 36)


def _key_of(where: str) -> dict[str, str]:
    """For a function that closes over what a test looks at, and whose code therefore changes all the time."""
    return {} if where == "memory" else {"cache_key": "v1"}


def test_a_sample_that_is_dropped_is_prepared_once_and_one_that_fails_each_time(small: str, where: str) -> None:
    prepared = []

    def odd(sample: dict[str, Any]) -> Any:
        prepared.append(int(sample["cls"]))
        if sample["cls"] == 4:
            raise ValueError("no boxes")
        return None if sample["cls"] == 9 else sample

    dataset = ShardDataset(small, 4, prepare=odd, on_error="skip", cache=where, **_key_of(where))
    for _ in range(3):
        assert len(keys(dataset)) == 10
    assert prepared.count(9) == 1 and prepared.count(4) == 3 and len(prepared) == 14
    assert (dataset.stats().dropped, dataset.stats().skipped) == (3, 3)


def test_data_sets_that_prepare_alike_share_memory(source: str) -> None:
    train = _made(source, "before a transform", cache="memory")
    epochs(train, 1)
    evaluated = train.with_(shuffle=False, transform=None)
    epochs(evaluated, 1)
    assert evaluated.stats().cache_misses == len((*BAD, *RAISES))
    counting = train.with_(prepare=len_of, transform=None)
    epochs(counting, 1)
    for changed in (
        {"decode": MaxSide(9)},
        {"prepare": dict},
        {"missing": {"txt": Fill("")}},
        {"fields": ("png",)},
    ):
        other = counting.with_(**changed)
        epochs(other, 1)
        assert other.stats().cache_hits == 0, changed


def len_of(sample: dict[str, Any]) -> dict[str, Any]:
    return {"fields": len(sample)}


def test_other_code_fields_and_fills_are_another_cache(source: str, tmp_path: Path) -> None:
    other = _set(tmp_path / "other", SAMPLES - 1)
    folder = tmp_path / "cache"

    def one(source: str = source, **options: Any) -> int:
        """Stores in the folder after an epoch."""
        options = {"prepare": lambda sample: {"n": len(sample)}, **options}
        epochs(ShardDataset(source, 6, on_error="skip", cache=f"disk:{folder}", collate=ident, **options), 1)
        return len(list(folder.rglob("*.values")))

    def short(text: str) -> Fill:
        return Fill({"words": text.split(), "codes": np.frombuffer(text.encode(), np.uint8)})

    assert one() == 1
    assert one() == 1
    assert one(transform=dict, shuffle=True) == 1  # which come after it
    assert one(prepare=lambda sample: {"n": len(sample) + 1}) == 2
    assert one(fields=("cls", "x")) == 3
    assert one(fields=("cls", "x"), decode=False) == 4
    assert one(decode=Resize(9)) == 5
    assert one(other) == 6
    assert one(decode={"txt": len}, missing={"txt": short("a b")}) == 7
    assert one(decode={"txt": len}, missing={"txt": short("a b")}) == 7
    assert one(decode={"txt": len}, missing={"txt": short("a c")}) == 8
    assert one(missing={"txt": "error"}) == 9
    assert one(prepare=lambda sample: {"n": 1}, cache_key="v1") == 10
    assert one(prepare=lambda sample: {"n": 2}, cache_key="v1") == 10


def test_tokens_of_another_type_are_another_cache(tmp_path: Path) -> None:
    documents = ({"bin": np.arange(40, dtype="<u4").tobytes()} for _ in range(4))
    streamio.write(documents, tmp_path / "tokens")
    for changed in ({}, {"raw_dtype": "int32"}, {"dtype": "uint32"}, {"length": 9}, {"eos": 0}):
        options: dict[str, Any] = {"length": 10, "raw_dtype": "uint32", **changed}
        made = [
            epochs(streamio.TokenDataset(tmp_path / "tokens", 2, prepare=doubled, **options, **more))
            for more in ({}, {"cache": f"disk:{tmp_path / 'cache'}"})
        ]
        assert made[0] == made[1], changed
    assert len(list((tmp_path / "cache").rglob("*.values"))) == 5


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": sample["tokens"] * 2}


def test_it_comes_before_the_transform_and_may_lack_one(small: str) -> None:
    def halved(sample: dict[str, Any]) -> Any:
        return None if sample["cls"] % 2 else {"half": sample["cls"] // 2}

    def transformed(sample: dict[str, Any], rng: np.random.Generator) -> Any:
        assert sample.keys() == {"half"}
        return {"half": sample["half"] + 100}

    alone, both = (ShardDataset(small, 4, prepare=halved, transform=t) for t in (None, transformed))
    assert [batch["half"].tolist() for batch in alone] == [[0, 1], [2, 3], [4, 5]]
    assert [batch["half"].tolist() for batch in both] == [[100, 101], [102, 103], [104, 105]]
    assert alone.stats().dropped == both.stats().dropped == 6
    assert [len(batch["cls"]) for batch in alone.with_(prepare=None)] == [4, 4, 4]


def test_the_batch_says_what_is_no_part_of_a_sample(small: str, where: str) -> None:
    dataset = ShardDataset(small, 5, prepare=len_of, tail="pad", cache=where)
    for _ in range(2):
        assert [batch["__valid__"].tolist() for batch in dataset][-1] == [True, True, False, False, False]
    mixture = streamio.Mixture({"a": (dataset.with_(tail="even"), 1), "b": (dataset.with_(transform=dict), 1)}, 6)
    for batch in mixture:
        assert set(batch) == {"fields", "__source__"}


def test_a_transform_in_a_mixture_gets_no_field_of_ours(small: str) -> None:
    seen = set()

    def looked(sample: dict[str, Any]) -> dict[str, Any]:
        seen.update(sample)
        return {**sample}

    mixture = streamio.Mixture({"a": (ShardDataset(small, 4, transform=looked), 1)}, 4)
    (batch, *_) = mixture
    assert set(batch) == seen == {"__key__", "__source__", "cls", "x", "txt"}


@pytest.mark.parametrize("transport", ["inline", "process"])
def test_a_sample_on_which_it_raises_is_named(small: str, transport: Any) -> None:
    def broken(sample: dict[str, Any]) -> dict[str, Any]:
        return {"n": 1 / (sample["cls"] - 7)}

    loader = StreamLoader(ShardDataset(small, 4, prepare=broken), num_workers=0 if transport == "inline" else 1)
    message = r"row 2 \('k/00007'\): prepare raised ZeroDivisionError"
    with closing(loader), pytest.raises(TransformError, match=message):
        list(loader)


# ruff: noqa: E501 - the table is read by column
KEPT = [
    # prepare                                             what it says
    (lambda sample: {"boxes": {1, 2}, "n": 1},            "field boxes: a builtins.set, which cache= cannot keep"),
    (lambda sample: {"n": 1, "boxes": [{"a": object()}]}, "field boxes: a builtins.object, which cache= cannot keep"),
    (lambda sample: {"a": np.array([None])},              "field a: a numpy.ndarray, which cache= cannot keep"),
    (lambda sample: {(1, object()): 1},                   "a builtins.object, which cache= cannot keep"),
    (lambda sample: [1, 2],                               "prepare returned a list. Return a dict of fields"),
]  # fmt: skip


@pytest.mark.parametrize(("prepare", "message"), KEPT)
def test_a_value_that_cannot_be_kept_is_named(small: str, prepare: Any, message: str) -> None:
    dataset = ShardDataset(small, 4, prepare=prepare, cache="memory", collate=ident, on_error="skip")
    with pytest.raises(UsageError, match=message):
        list(dataset)


WRONG = [
    # options                                                       what it says
    ({"prepare": "f"},                                              "prepare='f'. Give a function"),
    ({"prepare": lambda sample, rng: sample},                       "takes more than the sample. It is called with the sample alone"),
    ({"prepare": lambda sample, rng=None: sample},                  "random work goes into transform="),
    ({"prepare": dict, "cache": "memory", "decode": RandomResizedCrop(8)}, "may draw at random, and prepare= with cache= keeps"),
    ({"prepare": dict, "cache": "ram"},                             "cache='ram'"),
    ({"prepare": dict, "missing": {"cls": Fill("x")}},              "missing gives 'x' for the field 'cls'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_cannot_work_is_refused_at_once(source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ShardDataset(source, 4, **options)


def test_a_random_crop_comes_before_it_where_nothing_is_kept(source: str) -> None:
    dataset = ShardDataset(source, 6, prepare=alike, decode=RandomResizedCrop(8), on_error="skip")
    first, second = (np.concatenate([batch["png"] for batch in dataset]) for _ in range(2))
    assert first.shape[1:] == (8, 8, 3)
    assert len(first) == len(second) == SAMPLES - len((*BAD, *RAISES, *NONE))
    ShardDataset(source, 6, prepare=alike, decode=CenterCrop(8), cache="memory")


def test_a_prepare_that_cannot_go_to_a_worker_is_named(small: str) -> None:
    with open(__file__, "rb") as file:
        dataset = ShardDataset(small, 4, prepare=_Holds(file))
        assert dataset.runs_user_code
        with pytest.raises(UsageError, match=r"prepare\.held"):
            go_by_value(dataset._functions())


class _Holds:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return sample


def test_make_loader_leaves_pictures_to_it(source: str) -> None:
    loader = streamio.make_loader(source, 4, fields=("png", "cls"), prepare=alike, cache="memory", num_workers=0)
    assert all(decoder.op is None for decoder in loader.dataset.reader.decoders.values())
