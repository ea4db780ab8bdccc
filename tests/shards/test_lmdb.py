"""LMDB shards: written by the library, read by it, and walked without it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import CorruptShard, UsageError
from streamio.shards import lmdb as lmdb_format
from streamio.shards.lmdb import LMDB, scan
from streamio.shards.lmdbpages import LmdbPages
from tests.shards.conformance import FormatContract, Row, read, same, tally, write


def entries(path: Path) -> list[tuple[bytes, bytes]]:
    """Keys and values as the library reads them, with nothing set but how to open one file."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        return list(txn.cursor())


def walked(path: Path) -> list[tuple[bytes, bytes]]:
    data = path.read_bytes()
    with open(path, "rb") as file:
        return [(e.key, data[e.offset : e.offset + e.size]) for e in LmdbPages(file.fileno(), path.name)]


class TestLmdb(FormatContract):
    format = LMDB
    same_everywhere = mmap.PAGESIZE == 4096

    @staticmethod
    def plain_read(path: Path) -> list[Row]:
        """With lmdb alone: `<row>.<field>`, and `<row>.__key__` for the key."""
        keys: dict[int, str] = {}
        rows: dict[int, dict[str, bytes]] = {}
        for name, value in entries(path):
            row, _, field = name.decode("utf-8", "surrogateescape").partition(".")
            if field == "__key__":
                keys[int(row)] = value.decode("utf-8", "surrogateescape")
            else:
                rows.setdefault(int(row), {})[field] = value
        return [(keys[row], rows[row]) for row in sorted(keys)]

    def test_lmdb_03_thirty_large_samples_without_a_map_size(self, path: Path) -> None:
        """jnwatson/py-lmdb#318; BVLC/caffe#4108; kyamagu/matlab-lmdb#5"""
        table = [(str(i), {"bin": bytes([i]) * (1 << 20)}) for i in range(30)]
        assert same(read(path, write(path, LMDB, table)), table)
        assert same(self.plain_read(path), table)
        assert path.stat().st_size < 31 << 20

    @pytest.mark.parametrize("start", [1 << 16, 1 << 18, 10 << 20])
    def test_lmdb_03_a_map_that_is_too_small_grows_and_nothing_is_lost(
        self, path: Path, start: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """jnwatson/py-lmdb#318: put seemed to work, commit failed"""
        monkeypatch.setattr(lmdb_format, "_MAP", start)
        monkeypatch.setattr(lmdb_format, "_COMMIT", 100_000)
        table = [(str(i), {"bin": os.urandom(i * 37 % 9000)}) for i in range(500)]
        assert same(read(path, write(path, LMDB, table)), table)
        assert same(self.plain_read(path), table)

    def test_lmdb_06_keys_of_512_and_700_bytes(self, path: Path) -> None:
        """ThoughtRiver/lmdb-embeddings#4, #5; meilisearch/documentation#3071"""
        table = [("/".join(["d" * 99] * 7) + "/x", tally(1)), ("k" * 512, tally(2))]
        index = write(path, LMDB, table)
        assert [len(key) for key in index.keys.take(np.arange(2))] == [701, 512]
        assert same(self.plain_read(path), table)

    def test_field_names_go_up_to_what_a_key_holds(self, path: Path) -> None:
        table = [("a", {"f" * 502: b"x"})]
        assert same(read(path, write(path, LMDB, table)), table)
        writer = LMDB.create(path)
        with pytest.raises(UsageError, match="503 bytes; LMDB holds up to 502"):
            writer.write("a", {"f" * 503: b"x"})
        writer.abort()

    def test_a_value_over_4_gib_is_refused(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lmdb_format, "_LARGEST_VALUE", 1000)
        writer = LMDB.create(path)
        writer.write("a", {"bin": bytes(1000)})
        with pytest.raises(UsageError, match=r"a value of 1,001 bytes; LMDB holds up to 1,000"):
            writer.write("b", {"bin": bytes(1001)})
        writer.abort()

    def test_no_lock_file_and_no_execute_bit(self, path: Path, rows: list[Row]) -> None:
        write(path, LMDB, rows)
        assert os.listdir(path.parent) == [path.name]
        assert path.stat().st_mode & 0o111 == 0

    def test_the_library_can_copy_and_extend_it(self, path: Path, rows: list[Row], tmp_path: Path) -> None:
        write(path, LMDB, rows)
        before = entries(path)
        with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 24) as env:
            env.copy(str(tmp_path / "copy.lmdb"), compact=True)
            with env.begin(write=True) as txn:
                txn.put(b"00000020.__key__", b"more")
                txn.put(b"00000020.cls", b"1")
        assert entries(path) == [*before, (b"00000020.__key__", b"more"), (b"00000020.cls", b"1")]
        assert scan(path, True).samples == 21
        assert walked(tmp_path / "copy.lmdb") == before

    @pytest.mark.parametrize("size", [*range(2005, 2035), 4080, 4081, 8176, 8177, 65536])
    def test_values_about_the_size_of_half_a_page_are_found(self, path: Path, size: int) -> None:
        table = [(str(i), {"bin": bytes([i + 1]) * size}) for i in range(5)]
        assert same(read(path, write(path, LMDB, table)), table)

    def test_another_lmdb_is_no_shard(self, path: Path) -> None:
        with lmdb.open(str(path), subdir=False, lock=False) as env, env.begin(write=True) as txn:
            txn.put(b"img-1", b"x")
        with pytest.raises(CorruptShard, match=r"'img-1'.*no streamio shard"):
            scan(path, True)

    @pytest.mark.parametrize("gone", [b"00000003.__key__", b"00000019.__key__"])
    def test_a_row_without_a_key_is_noticed(self, path: Path, rows: list[Row], gone: bytes) -> None:
        write(path, LMDB, rows)
        with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 24) as env, env.begin(write=True) as txn:
            assert txn.delete(gone)
        with pytest.raises(CorruptShard, match="rows up to 19, but 19 keys"):
            scan(path, True)

    def test_zeros_are_no_lmdb(self, path: Path) -> None:
        path.write_bytes(bytes(20_000))
        with pytest.raises(CorruptShard, match="no LMDB file: only zero bytes"):
            scan(path, True)

    def test_cut_at_every_page_it_is_an_error_with_both_sizes(self, path: Path) -> None:
        size = write(path, LMDB, [(str(i), {"bin": bytes(1500)}) for i in range(100)]).shard_bytes
        for length in range(size - 4096, 8191, -4096):
            os.truncate(path, length)
            with pytest.raises(CorruptShard, match=rf"expected {size:,} bytes, found {length:,}; the shard is cut"):
                scan(path, True)


@given(
    table=st.dictionaries(st.binary(min_size=1, max_size=500), st.binary(max_size=4000), max_size=120),
    commits=st.integers(1, 4),
    deleted=st.integers(0, 50),
)
def test_the_walk_finds_what_the_library_finds(
    tmp_path_factory: pytest.TempPathFactory, table: dict[bytes, bytes], commits: int, deleted: int
) -> None:
    """Any database of one tree: random order, several commits, deletions, trees of several levels."""
    path = tmp_path_factory.mktemp("walk") / "any.lmdb"
    items = list(table.items())
    with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 24) as env:
        for part in range(commits):
            with env.begin(write=True) as txn:
                for key, value in items[part::commits]:
                    txn.put(key, value)
        with env.begin(write=True) as txn:
            for key, _ in items[:deleted]:
                txn.delete(key)
    assert walked(path) == entries(path)


def test_a_tree_of_many_levels_is_walked(tmp_path: Path) -> None:
    path = tmp_path / "deep.lmdb"
    with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 28) as env:
        with env.begin(write=True) as txn:
            for i in range(20_000):
                txn.put(b"%0500d" % i, b"v%d" % i)
        assert env.stat()["depth"] >= 4
    assert walked(path) == entries(path)
