"""Documents of tokens as a table: every window, wherever its pieces lie, in all formats."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamio
from streamio.codecs import npy_header_bytes
from streamio.errors import CorruptShard, UsageError
from streamio.shards.shardset import ShardSet, open_shards
from streamio.shards.tokenfields import _usual_header, find_field
from streamio.shards.tokens import STARTS, TOKENS, Documents, TokenTable
from streamio.types import ArrayColumn, ListColumn
from tests.conftest import FORMATS

LENGTHS = [7, 0, 1, 40, 3, 0, 0, 12, 100, 2, 5, 5, 0, 31]
"""Tokens of the documents, 206 in all; four a shard, so that windows cross documents and shards."""


def documents(lengths: list[int], dtype: Any = np.uint16) -> list[np.ndarray]:
    """All tokens differ, and the largest are out of the range of a signed type of that size."""
    flat = (np.arange(sum(lengths)) + np.iinfo(np.uint16).max - 210).astype(dtype)
    return np.split(flat, np.cumsum(lengths)[:-1])


def write(
    path: Path, values: list[Any], fmt: str = "tar", field: str = "tokens", shard_samples: int = 4
) -> ShardSet:
    samples = ({"__key__": f"d{i}", "txt": "x", field: value} for i, value in enumerate(values))
    streamio.write(samples, path, format=fmt, shard_samples=shard_samples)
    return open_shards(path)


def table(shards: ShardSet, length: int = 8, mode: Any = "windows", **options: Any) -> TokenTable:
    field = find_field(shards, None, options.pop("raw", None))
    documents = Documents(set=shards, field=field, eos=options.pop("eos", None))
    dtype = np.dtype(options.pop("dtype", np.int64))
    return TokenTable(
        documents=documents,
        mode=mode,
        length=length,
        overlong=options.pop("overlong", None),
        dtype=dtype,
        **options,
    )


def gather(made: TokenTable, rows: Any = None, field: str = TOKENS) -> list[list[int]]:
    rows = np.arange(made.cut.rows) if rows is None else np.array(rows)
    return [value.tolist() for value in made.gather(rows, [field])[field].values]  # type: ignore[union-attr]


def windows_of(flat: np.ndarray, length: int) -> list[list[int]]:
    return [flat[a : a + length + 1].tolist() for a in range(0, len(flat) - length, length)]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ShardSet]:
    root = tmp_path_factory.mktemp("tokens")
    return {fmt: write(root / fmt, documents(LENGTHS), fmt) for fmt in FORMATS}


@pytest.mark.parametrize("length", [1, 8, 50, 205])
def test_windows_are_those_of_all_documents_end_to_end(sets: dict[str, ShardSet], fmt: str, length: int) -> None:
    made = table(sets[fmt], length)
    flat = np.concatenate(documents(LENGTHS))
    assert gather(made) == windows_of(flat, length)
    assert int(made.sizes.sum()) == made.cut.rows and len(made.sizes) == 4
    assert made.cut.dropped == len(flat) - made.cut.rows * length - 1
    column = made.gather(np.array([0]), [TOKENS])[TOKENS]
    assert isinstance(column, ArrayColumn) and column.values.dtype == np.int64
    assert made.fields[TOKENS].shape == (length + 1,) and made.fields[TOKENS].dtype == "<i8"


@settings(max_examples=25)
@given(st.lists(st.integers(0, 24), max_size=12), st.sampled_from(FORMATS))
def test_any_rows_come_in_any_order(sets: dict[str, ShardSet], rows: list[int], fmt: str) -> None:
    wanted = windows_of(np.concatenate(documents(LENGTHS)), 8)
    assert gather(table(sets[fmt]), np.array(rows, np.int64)) == [wanted[row] for row in rows]


def test_windows_lie_in_the_memory_that_was_given(sets: dict[str, ShardSet], fmt: str) -> None:
    given: list[np.ndarray] = []

    def alloc(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        given.append(np.full(shape, 0, dtype))
        return given[-1]

    for dtype in ("int64", "uint16"):
        values = table(sets[fmt], dtype=dtype).gather(np.array([3, 1]), [TOKENS], alloc)[TOKENS].values
        assert values is given[-1] and given[-1].dtype == dtype and given[-1].shape == (2, 9)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.uint32, np.int64, ">u2"])
@pytest.mark.parametrize("alike", [True, False])
def test_tokens_of_any_integer_type_are_read(tmp_path: Path, fmt: str, dtype: Any, alike: bool) -> None:
    lengths = [5] * 9 if alike else [5, 5, 5, 5, 9, 2]  # and of a set in which one shard alone is alike
    docs = documents(lengths, dtype)
    shards = write(tmp_path / "s", docs, fmt)
    assert gather(table(shards)) == windows_of(np.concatenate(docs).astype(np.int64), 8)


def test_raw_bytes_are_tokens_of_the_type_that_is_said(tmp_path: Path, fmt: str) -> None:
    docs = documents(LENGTHS)
    shards = write(tmp_path / "s", [doc.tobytes() for doc in docs], fmt, "bin")
    made = table(shards, raw=np.dtype(np.uint16))
    assert gather(made) == windows_of(np.concatenate(docs), 8)
    with pytest.raises(UsageError, match=r"shard-000000.*row 0.*field bin: 14 bytes.*whole tokens of uint32"):
        _ = table(shards, raw=np.dtype(np.uint32)).sizes


def test_a_piece_of_one_long_document_is_read_without_the_rest(tmp_path: Path, fmt: str) -> None:
    """A batch of arrays that are alike is gathered whole: 16 MB for two tokens."""
    made = table(write(tmp_path / "s", [np.arange(2_000_000)], fmt), 1)
    gather(made, [0])
    tracemalloc.start()
    try:
        assert gather(made, [1_999_998]) == [[1_999_998, 1_999_999]]
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_packed_windows_know_where_documents_begin(sets: dict[str, ShardSet], fmt: str) -> None:
    made = table(sets[fmt], mode="packed")
    borders = set(np.cumsum(LENGTHS).tolist())
    wanted = [[0, *(t - a for t in range(a + 1, a + 8) if t in borders)] for a in range(0, 8 * made.cut.rows, 8)]
    assert gather(made, field=STARTS) == wanted
    assert gather(made, [4, 0, 4], STARTS) == [wanted[4], wanted[0], wanted[4]]
    assert gather(made, np.empty(0, np.int64), STARTS) == []


def test_documents_come_whole_truncated_or_split(sets: dict[str, ShardSet], fmt: str) -> None:
    docs = [doc.tolist() for doc in documents(LENGTHS)]
    assert gather(table(sets[fmt], 100, "documents")) == docs
    assert gather(table(sets[fmt], 10, "documents", overlong="truncate")) == [doc[:10] for doc in docs]
    split = table(sets[fmt], 10, "documents", overlong="split")
    assert gather(split) == [doc[a : a + 10] for doc in docs for a in range(0, max(1, len(doc)), 10)]
    assert split.keys(np.array([3, 4, 6])) == ["d3", "d3+10", "d3+30"]
    assert isinstance(split.gather(np.array([3]), [TOKENS])[TOKENS], ListColumn)


def test_a_token_is_put_behind_every_document_that_has_any(sets: dict[str, ShardSet], fmt: str) -> None:
    ended = [[*doc.tolist(), 7] if len(doc) else [] for doc in documents(LENGTHS)]
    assert gather(table(sets[fmt], 101, "documents", eos=7)) == ended
    for length in (1, 8, 50):
        assert gather(table(sets[fmt], length, eos=7)) == windows_of(np.concatenate(ended).astype(int), length)


def test_a_selection_has_the_windows_of_its_documents(sets: dict[str, ShardSet], fmt: str) -> None:
    chosen = [1, 3, 4, 11, 13]
    made = table(sets[fmt].where(chosen))
    assert gather(made) == windows_of(np.concatenate([documents(LENGTHS)[i] for i in chosen]), 8)
    assert made.sizes.tolist() == [5, 1, 0, 3] and made.locate(8) == (sets[fmt].locate(13)[0], 1)


def test_a_sample_without_the_field_is_empty(tmp_path: Path, fmt: str) -> None:
    docs = documents([5, 9, 4])
    samples = [{"tokens": docs[0]}, {"txt": "none"}, {"tokens": docs[1]}, {"txt": "a"}, {"tokens": docs[2]}]
    streamio.write(samples, tmp_path / "s", format=fmt, shard_samples=1)
    made = table(open_shards(tmp_path / "s"), 4)
    assert gather(made) == windows_of(np.concatenate(docs), 4)
    assert gather(table(open_shards(tmp_path / "s"), 9, "documents"))[1] == []


def test_keys_and_places_name_the_document_in_which_a_row_begins(sets: dict[str, ShardSet], fmt: str) -> None:
    made = table(sets[fmt])
    assert made.keys(np.array([0, 1, 6, 7])) == ["d0", "d3", "d4", "d7+5"]
    name, row = made.locate(1)
    assert name.startswith("shard-000000") and row == 3
    with pytest.raises(IndexError, match="rows 0 to 25 of 25"):
        made.keys(np.array([0, 25]))


def test_rows_have_the_columns_of_their_documents_and_their_length(tmp_path: Path, fmt: str) -> None:
    docs = documents([5, 9, 0, 4])
    streamio.write(({"tokens": doc, "cls": i} for i, doc in enumerate(docs)), tmp_path / "s", format=fmt)
    shards = open_shards(tmp_path / "s")
    split = table(shards, 4, "documents", overlong="split").columns
    assert list(split) == ["tokens.length", "cls"]
    assert split["tokens.length"].tolist() == [4, 1, 4, 4, 1, 0, 4]
    assert split["cls"].tolist() == [0, 0, 1, 1, 1, 2, 3]
    assert table(shards, 4).columns["cls"].tolist() == [0, 0, 1, 1]


def test_the_fingerprint_says_what_a_row_is(sets: dict[str, ShardSet]) -> None:
    shards = sets["tar"]
    made = [
        table(shards), table(shards, 9), table(shards, mode="packed"), table(shards, eos=3),
        table(shards, mode="documents"), table(shards, mode="documents", overlong="split"),
        table(shards.where([1, 3])),
    ]  # fmt: skip
    assert len({each.fingerprint for each in made}) == len(made)
    assert "windows, length 8, field tokens" in made[0].fingerprint
    assert table(shards, dtype=np.uint16).fingerprint == made[0].fingerprint  # the same order


def test_a_pickle_holds_no_offsets(tmp_path: Path) -> None:
    shards = write(tmp_path / "s", documents([3] * 1000), shard_samples=500)
    made = table(shards)
    _ = made.sizes, made.fields, gather(made)
    raw = pickle.dumps(made)
    assert len(raw) < 1500
    assert gather(pickle.loads(raw)) == gather(made)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (b"(40,)", b"(39,)", r"uint16\[39\]"),
        (b"'<u2'", b"'<i2'", r"int16\[40\]"),
        (b"NUMPY", b"NUMPX", "no npy array"),
    ],
    ids=["length", "type", "magic"],
)
def test_a_document_that_is_not_what_its_index_says_is_named(
    tmp_path: Path, fmt: str, old: bytes, new: bytes, found: str
) -> None:
    shards = write(tmp_path / "s", documents(LENGTHS), fmt)
    _damage(next((tmp_path / "s").glob(f"shard-000000.{'h5' if fmt == 'hdf5' else fmt}")), b"(40,)", old, new)
    made = table(shards, 7)
    assert gather(made, [0])  # lies in front of it
    with pytest.raises(CorruptShard, match=rf"shard-000000.*row 3, field tokens: {found} where .* uint16\[40\]"):
        gather(made, [1])


def _damage(path: Path, header_with: bytes, old: bytes, new: bytes) -> None:
    """Change one npy header in a shard."""
    raw = path.read_bytes()
    start = raw.rindex(b"\x93NUMPY", 0, raw.index(header_with))
    path.write_bytes(raw[:start] + raw[start : start + 128].replace(old, new) + raw[start + 128 :])


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([{"txt": "a"}], {}, r"no field holds tokens: none of txt is an array\. Tokens are whole numbers"),
        ([{"x": np.zeros(3)}, {"x": np.zeros(4)}], {}, r"no field holds tokens: 'x' holds float64\[3\]"),
        ([{"x": np.zeros((2, 3), int)}], {}, r"'x' holds int64\[2, 3\]"),
        ([{"a": np.zeros(3, int), "b": np.ones(2, int)}], {}, r"2 fields may hold tokens: 'a', 'b'\. .*field='a'"),
        ([{"a": np.zeros(3, int)}], {"name": "b"}, r"no field 'b'\. Fields: a"),
        ([{"a": np.zeros(3)}], {"name": "a"}, r"the field 'a' holds float64\[3\]\. Tokens are"),
        ([{"bin": b"1234"}], {"name": "bin"}, r"the field 'bin' is bytes and no array.*raw_dtype='uint16'"),
        ([{"a": np.zeros(3, int)}], {"name": "a", "raw": np.dtype("u2")}, r"'a' is npy and not raw bytes"),
        ([{"a": np.zeros(3, int)}], {"raw": np.dtype("u2")}, r"none of a is raw bytes\. Leave raw_dtype out"),
    ],
)  # fmt: skip
def test_what_holds_no_tokens_is_refused_with_the_reason(
    tmp_path: Path, samples: list[Any], options: dict[str, Any], message: str
) -> None:
    streamio.write(samples, tmp_path / "s")
    with pytest.raises(UsageError, match=message):
        find_field(open_shards(tmp_path / "s"), options.get("name"), options.get("raw"))


def test_the_one_field_of_whole_numbers_is_found(tmp_path: Path, fmt: str) -> None:
    """Beside scalars, pictures and vectors of floats."""
    samples = ({"cls": i, "v": np.zeros(i), "ids": np.arange(i + 1), "n": np.int16(3)} for i in range(9))
    streamio.write(samples, tmp_path / "s", format=fmt)
    assert find_field(open_shards(tmp_path / "s"), None, None).name == "ids"


def test_documents_of_two_types_are_refused(tmp_path: Path, fmt: str) -> None:
    alike = write(tmp_path / "a", [np.zeros(4, np.uint16)] * 4 + [np.zeros(4, np.uint32)] * 4, fmt)
    with pytest.raises(UsageError, match=r"shard-000001.*documents of uint32\[4\], elsewhere of uint16"):
        _ = table(alike, 2).sizes
    mixed = write(tmp_path / "b", [np.zeros(4, np.uint16), np.zeros(5, np.uint32)], fmt)
    with pytest.raises(CorruptShard, match=r"row 1, field tokens: uint32\[5\] where .* uint16\[10\]"):
        gather(table(mixed, 2))


def test_a_header_that_another_tool_wrote_means_the_same(tmp_path: Path, fmt: str) -> None:
    """numpy 1.x and other libraries pad headers differently; here with a space more inside the braces."""
    docs = documents([5, 9, 12])
    heads = [npy_header_bytes(doc.dtype, doc.shape) for doc in docs]
    other = [head.replace(b"{'descr'", b"{ 'descr'").replace(b" \n", b"\n") for head in heads]
    assert all(len(one) == len(head) for one, head in zip(other, heads, strict=True))
    values = [head + doc.tobytes() for head, doc in zip(other, docs, strict=True)]
    assert gather(table(write(tmp_path / "s", values, fmt, "tokens.npy"), 5)) == windows_of(np.concatenate(docs), 5)


@given(st.sampled_from(["|u1", "<u2", ">u2", "<i8"]), st.one_of(st.integers(0, 1000), st.integers(0, 10**18)))
def test_the_usual_header_is_what_numpy_writes(dtype: str, count: int) -> None:
    assert _usual_header(np.dtype(dtype), count) == npy_header_bytes(np.dtype(dtype), (count,))
