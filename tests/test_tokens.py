"""TokenDataset: what batches hold, and that order, ranks, workers and resuming are those of any data set."""

from __future__ import annotations

import json
import logging
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import streamio
from streamio.errors import UsageError
from streamio.loading.loader import StreamLoader
from streamio.tokens import Join, TokenDataset, packed_edges
from tests.conftest import FORMATS

T = 16
LENGTHS = [0, 3, 100, 1, 1, 0, 17, 16, 40, 5, 0, 64, 2, 33, 80, 9, 0, 120, 7, 26]
TOTAL = sum(LENGTHS)
FLAT = np.arange(1, TOTAL + 1)


def documents() -> list[np.ndarray]:
    return np.split(FLAT.astype(np.uint16), np.cumsum(LENGTHS)[:-1])


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("tokens")
    for fmt in FORMATS:
        streamio.write(({"tokens": doc} for doc in documents()), root / fmt, format=fmt, shard_samples=6)
    return {fmt: str(root / fmt) for fmt in FORMATS}


def tokens(batches: Any) -> list[list[list[int]]]:
    return [batch["tokens"].tolist() for batch in batches]


def expected() -> list[list[int]]:
    return [FLAT[a : a + T + 1].tolist() for a in range(0, TOTAL - T, T)]


def test_inputs_and_targets_are_the_documents_end_to_end(paths: dict[str, str], fmt: str) -> None:
    dataset = TokenDataset(paths[fmt], 4, T)
    batches = list(DataLoader(dataset, batch_size=None))
    assert len(batches) == len(dataset) and batches[0]["tokens"].dtype == torch.int64
    assert [row for batch in tokens(batches) for row in batch] == expected()
    targets = torch.cat([batch["tokens"][:, 1:].flatten() for batch in batches])
    assert targets.tolist() == FLAT[1 : TOTAL - dataset.dropped_tokens].tolist()
    assert dataset.dropped_tokens == (TOTAL - 1) % T and dataset.tokens == TOTAL and dataset.length == T
    assert batches[0]["__key__"][0] == "00000001" and set(batches[0]) == {"tokens", "__key__"}


def test_tokens_that_are_dropped_are_said_once(paths: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamio")
    dataset = TokenDataset(paths["tar"], 4, T)
    list(dataset), list(dataset)
    assert [record.message for record in caplog.records] == [
        f"{paths['tar']}: {(TOTAL - 1) % T} of {TOTAL} tokens are in no row"
    ]


@pytest.mark.parametrize(
    ("dtype", "kind"), [("int32", torch.int32), ("uint16", torch.uint16), (np.int64, torch.int64)]
)
def test_tokens_come_in_the_type_that_is_asked_for(paths: dict[str, str], dtype: Any, kind: Any) -> None:
    batch = next(iter(TokenDataset(paths["tar"], 4, T, dtype=dtype)))["tokens"]
    assert batch.dtype == kind and batch.tolist() == expected()[:4]


def naive(rows: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """cu_seqlens and position ids of packed windows, token by token."""
    first = {int(doc[0]) for doc in documents() if len(doc)}
    edges, ids = [], []
    for i, row in enumerate(rows):
        ids.append([])
        for at, token in enumerate(row[:-1]):
            if at == 0 or token in first:
                edges.append(i * T + at)
                position = 0
            ids[-1].append(position)
            position += 1
    return [*edges, len(rows) * T], ids


@pytest.mark.parametrize("shuffle", [False, True])
def test_packed_batches_tell_documents_apart(paths: dict[str, str], fmt: str, shuffle: bool) -> None:
    dataset = TokenDataset(paths[fmt], 5, T, mode="packed", position_ids=True, shuffle=shuffle)
    rows = []
    for batch in dataset:
        rows += batch["tokens"].tolist()
        edges, ids = naive(batch["tokens"].tolist())
        assert batch["cu_seqlens"].dtype == torch.int32 and batch["cu_seqlens"].tolist() == edges
        assert batch["max_seqlen"] == np.diff(edges).max() and type(batch["max_seqlen"]) is int
        assert batch["position_ids"].tolist() == ids
        assert set(batch) == {"tokens", "cu_seqlens", "max_seqlen", "position_ids", "__key__"}
    assert sorted(rows) == expected() and (rows == expected()) == (not shuffle)


@given(st.lists(st.lists(st.integers(1, 9), max_size=4, unique=True), min_size=1, max_size=6))
def test_edges_of_packed_windows(inner: list[list[int]]) -> None:
    starts = [np.array([0, *sorted(each)], np.int64) for each in inner]
    wanted = [10 * i + at for i, each in enumerate(starts) for at in each.tolist()]
    assert packed_edges(starts, 10).tolist() == [*wanted, 10 * len(inner)]


def test_documents_are_flat_with_their_edges(paths: dict[str, str], fmt: str) -> None:
    dataset = TokenDataset(paths[fmt], 8, 200, mode="documents", position_ids=True)
    found: list[list[int]] = []
    for batch in dataset:
        edges = batch["cu_seqlens"].tolist()
        parts = [batch["tokens"][a:b].tolist() for a, b in pairwise(edges)]
        assert edges[-1] == len(batch["tokens"]) and batch["max_seqlen"] == max(map(len, parts))
        assert batch["position_ids"].tolist() == [i for part in parts for i in range(len(part))]
        assert batch["cu_seqlens"].dtype == torch.int32 and len(batch["__key__"]) == len(parts)
        found += parts
    assert found == [doc.tolist() for doc in documents()]


def test_long_documents_are_truncated_or_split_where_that_is_said(paths: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"6 of 20 documents have more than 30 tokens, up to 120\. .*'split'"):
        TokenDataset(paths["tar"], 4, 30, mode="documents")
    cut = TokenDataset(paths["tar"], 20, 30, mode="documents", overlong="truncate")
    assert tokens(cut) == [[t for doc in documents() for t in doc[:30].tolist()]]
    assert cut.dropped_tokens == sum(max(0, n - 30) for n in LENGTHS)
    split = TokenDataset(paths["tar"], 1000, 30, mode="documents", overlong="split")
    batch = next(iter(split))
    assert batch["tokens"].tolist() == FLAT.tolist() and batch["max_seqlen"] == 30 and split.dropped_tokens == 0


def test_a_padded_batch_says_which_rows_are_real(paths: dict[str, str]) -> None:
    for mode in ("windows", "packed"):
        last = list(TokenDataset(paths["tar"], 20, T, mode=mode, tail="pad"))[-1]
        rows = len(expected())
        assert last["__valid__"].tolist() == [i < rows % 20 for i in range(20)]
        assert last["tokens"].tolist()[: rows % 20] == expected()[rows // 20 * 20 :]


def test_a_transform_comes_before_batches_are_joined(paths: dict[str, str]) -> None:
    dataset = TokenDataset(paths["tar"], 8, 200, mode="documents", transform=_twice)
    batch = next(iter(dataset))
    assert np.diff(batch["cu_seqlens"]).tolist() == [2 * n for n in LENGTHS[:8]]
    own = TokenDataset(paths["tar"], 8, T, mode="packed", collate=len)
    assert next(iter(own)) == 8


def _twice(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "tokens": np.tile(sample["tokens"], 2)}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_change_nothing(paths: dict[str, str], context: Any) -> None:
    alone = tokens(TokenDataset(paths["hdf5"], 3, T, mode="packed", shuffle=True, eos=9))
    loader = StreamLoader(
        TokenDataset(paths["hdf5"], 3, T, mode="packed", shuffle=True, eos=9), num_workers=2, context=context
    )
    assert tokens(loader) == alone
    loader.close()


@pytest.mark.parametrize("mode", ["windows", "documents"])
def test_ranks_share_every_row_and_steps_stay_the_same(paths: dict[str, str], mode: Any) -> None:
    options: dict[str, Any] = {"mode": mode, "shuffle": "global"} | (
        {"overlong": "split"} if mode == "documents" else {}
    )
    whole = list(TokenDataset(paths["lmdb"], 6, T, **options))
    for world in (2, 3):
        ranks = [
            list(TokenDataset(paths["lmdb"], 6 // world, T, rank=rank, world_size=world, **options))
            for rank in range(world)
        ]
        assert len({len(batches) for batches in ranks}) == 1
        for step, batches in zip(whole, zip(*ranks, strict=True), strict=True):
            assert step["__key__"] == [key for batch in batches for key in batch["__key__"]]
            assert torch.equal(step["tokens"], torch.cat([batch["tokens"] for batch in batches]))


def test_resumes_exactly_on_other_ranks(paths: dict[str, str]) -> None:
    whole = tokens(TokenDataset(paths["tar"], 4, T, shuffle=True))
    first = StreamLoader(TokenDataset(paths["tar"], 4, T, shuffle=True), num_workers=0)
    seen = [batch["tokens"].tolist() for _, batch in zip(range(3), first, strict=False)]
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1000
    ranks = []
    for rank in range(2):
        dataset = TokenDataset(paths["tar"], 2, T, shuffle=True, rank=rank, world_size=2)
        dataset.load_state_dict(state)
        ranks.append(tokens(dataset))
    assert seen + [a + b for a, b in zip(*ranks, strict=True)] == whole


@pytest.mark.parametrize("other", [{"length": T + 1}, {"mode": "packed"}, {"eos": 1}])
def test_a_state_of_other_windows_is_refused(paths: dict[str, str], other: dict[str, Any]) -> None:
    state = TokenDataset(paths["tar"], 4, T).state_at(2)
    with pytest.raises(UsageError, match=r"state was saved with data=.*windows, length 16, field tokens"):
        TokenDataset(paths["tar"], 4, **{"length": T, **other}).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, r"length=0\. Give a whole number of at least 1"),
        ({"length": 2.5}, r"length=2\.5"),
        ({"batch_size": 0}, r"batch_size=0"),
        ({"length": TOTAL}, rf"{TOTAL} tokens in 20 documents; a window .* takes {TOTAL + 1}\. Use a"),
        ({"mode": "rows"}, r"mode='rows'\. Use 'windows', 'packed' or 'documents'"),
        ({"overlong": "split"}, r"overlong='split' with mode='windows'"),
        ({"overlong": "no"}, r"overlong='no'\. Use 'truncate' or 'split'"),
        ({"position_ids": True}, r"position_ids=True with mode='windows'\. Use mode='packed'"),
        ({"mode": "packed", "fields": ("tokens",)}, r"fields=\('tokens',\) with mode='packed'"),
        ({"mode": "packed", "batch_size": 2**27}, r"134,217,728 x 16 tokens, which int32"),
        ({"decode": False}, r"decode=False for tokens"),
        ({"dtype": "float32"}, r"dtype='float32'\. Name a type of whole numbers"),
        ({"dtype": "tokens"}, r"dtype='tokens'\."),
        ({"dtype": "int16"}, r"field tokens: dtype='int16' does not hold all numbers of uint16.*Use dtype='ui"),
        ({"eos": 65536}, r"eos=65536 for tokens that are stored as uint16\. Give a whole number from 0 to 65535"),
        ({"field": "x"}, r"no field 'x'\. Fields: tokens"),
        ({"raw_dtype": "float16"}, r"raw_dtype='float16'"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_any_work(
    paths: dict[str, str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        TokenDataset(paths["tar"], **{"batch_size": 4, "length": T, **options})


def test_fields_gives_tuples(paths: dict[str, str]) -> None:
    (values,) = next(iter(TokenDataset(paths["tar"], 4, T, fields=("tokens",))))
    assert values.tolist() == expected()[:4]


def test_other_fields_of_samples_are_kept() -> None:
    samples = [{"tokens": np.arange(n), "weight": 0.5, "source": "web"} for n in (2, 0, 3)]
    batch = Join(None, position_ids=False)(samples)
    assert batch["weight"].tolist() == [0.5] * 3 and batch["source"] == ["web"] * 3
    assert batch["cu_seqlens"].tolist() == [0, 2, 2, 5] and batch["tokens"].tolist() == [0, 1, 0, 1, 2]
