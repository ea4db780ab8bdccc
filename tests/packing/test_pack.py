from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

from streamio.codecs import decode_image
from streamio.errors import UsageError
from streamio.packing import pieces
from streamio.packing.pack import pack
from streamio.packing.report import Progress
from tests.packing.reading import contents, files, labels, manifest, shard_keys
from tests.samples import jpg, png, tree


def _pack(src: Path, out: Path, **options: Any) -> Any:
    return pack(src, out, **{"workers": 1, **options})


def test_every_byte_comes_back_in_each_format(tmp_path: Path, fmt: str) -> None:
    original = {
        f"{c}/{i}.{e}": os.urandom(i * 97) + b"x" for c in "ab" for i in range(9) for e in ("jpg", "json", "xyz")
    }
    report = _pack(tree(tmp_path / "in", original), tmp_path / "out", format=fmt, shard_samples=4, layout="classes")
    found = contents(tmp_path / "out")
    for name, data in original.items():
        key, _, field = name.rpartition(".")
        assert found[key][field] == data
    assert (report.samples, report.shards, report.classes) == (18, 5, ("a", "b"))
    assert report.fields == ("jpg", "cls", "json", "xyz")
    assert labels(tmp_path / "out") == {f"{c}/{i}": "ab".index(c) for c in "ab" for i in range(9)}


def test_plain_libraries_read_the_shards(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {"a/1.jpg": b"J1", "b/2.jpg": b"J2"})
    for fmt in ("tar", "lmdb", "hdf5"):
        _pack(src, tmp_path / fmt, format=fmt, shuffle=False)
    with tarfile.open(tmp_path / "tar/shard-000000.tar") as tar:
        members = [(m.name, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]
    assert members == [("a/1.jpg", b"J1"), ("a/1.cls", b"0"), ("b/2.jpg", b"J2"), ("b/2.cls", b"1")]
    with lmdb.open(str(tmp_path / "lmdb/shard-000000.lmdb"), subdir=False, lock=False, readonly=True) as env:
        with env.begin() as transaction:
            values = dict(transaction.cursor())
    assert values[b"00000001.jpg"] == b"J2" and values[b"00000001.cls"] == b"1"
    with h5py.File(tmp_path / "hdf5/shard-000000.h5") as file:
        assert file["cls"][:].tolist() == [0, 1] and file["cls"].dtype == np.int64
        assert bytes(file["jpg/bytes"]) == b"J1J2"


def test_the_manifest_says_what_is_in_the_set(tmp_path: Path) -> None:
    tree(tmp_path / "in", {"a/1.jpg": b"1", "a/2.jpg": b"1", "a/2.txt": b"", "b/3.npy": _npy(np.arange(3.0))})
    _pack(tmp_path / "in", tmp_path / "out", shard_samples=1)
    made = manifest(tmp_path / "out")
    assert {name: (spec.stored, spec.codec, spec.samples) for name, spec in made.fields.items()} == {
        "cls": ("cls", "int", 3), "jpg": ("jpg", "jpeg", 2), "npy": ("npy", "npy", 1), "txt": ("txt", "text", 1),
    }  # fmt: skip
    assert made.fields["npy"].dtype is None  # not all samples have it
    assert (made.samples, made.classes, len(made.shards)) == (3, ("a", "b"), 3)


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_arrays_of_one_shape_can_be_gathered_from_each_format(tmp_path: Path, fmt: str) -> None:
    src = tree(tmp_path / "in", {f"{i}.npy": _npy(np.full((2, 3), i, ">f4")) for i in range(5)})
    _pack(src, tmp_path / "out", format=fmt, shard_samples=2)
    spec = manifest(tmp_path / "out").fields["npy"]
    if fmt == "hdf5":  # arrays are stored as arrays there; the others keep the file's bytes
        assert (spec.dtype, spec.shape) == ("<f4", (2, 3))
    else:
        assert contents(tmp_path / "out")["3"]["npy"] == (src / "3.npy").read_bytes()


@pytest.mark.parametrize("payload", [b"no npy", _npy(np.array([object()], object)), _npy(np.zeros(3))[:-1], b""])
def test_files_that_are_no_array_are_kept_as_they_are(tmp_path: Path, fmt: str, payload: bytes) -> None:
    src = tree(tmp_path / "in", {"a.npy": payload, "b.npy": _npy(np.zeros(3))})
    _pack(src, tmp_path / "out", format=fmt)
    assert contents(tmp_path / "out")["a"]["npy"] == payload


def test_pack_04_upper_case_extensions(tmp_path: Path, fmt: str) -> None:
    """pytorch/vision#552: pictures with an upper-case extension were not found, or counted twice."""
    src = tree(tmp_path / "in", {"cat/a.JPEG": jpg(), "cat/b.Jpg": jpg(), "dog/c.PNG": png()})
    _pack(src, tmp_path / "out", format=fmt)
    found = contents(tmp_path / "out")
    assert {key: sorted(set(fields) - {"cls"}) for key, fields in found.items()} == {
        "cat/a": ["jpeg"], "cat/b": ["jpg"], "dog/c": ["png"],
    }  # fmt: skip
    for fields in found.values():
        assert decode_image(next(data for name, data in fields.items() if name != "cls")).shape == (8, 8, 3)
    assert labels(tmp_path / "out") == {"cat/a": 0, "cat/b": 0, "dog/c": 1}


def test_pack_12_labels_from_a_table(tmp_path: Path) -> None:
    """llmsresearch/paperbanana#240; the matching itself is tested in test_labels.py."""
    src = tree(tmp_path / "in", {"\u00e9.jpg": b"A", "e\u0301.jpg": b"B"})
    (tmp_path / "l.csv").write_text("path,label\n\u00e9.jpg,7\n", "utf-8")
    report = _pack(src, tmp_path / "out", labels=tmp_path / "l.csv")
    assert contents(tmp_path / "out") == {"\u00e9": {"jpg": b"A", "cls": b"7"}, "e\u0301": {"jpg": b"B"}}
    assert any("no label" in note and "e\\u0301.jpg" in note for note in report.notes)


def test_pack_15_classes_of_the_training_set(tmp_path: Path) -> None:
    """huggingface/pytorch-image-models#957: an empty class folder shifted all later class numbers."""
    tree(tmp_path, {f"train/{c}/1.jpg": b"1" for c in "abc"} | {f"val/{c}/1.jpg": b"1" for c in "ac"})
    _pack(tmp_path / "train", tmp_path / "ot", val=0.3)
    _pack(tmp_path / "val", tmp_path / "ov", classes_from=tmp_path / "ot")
    assert labels(tmp_path / "ov") == {"a/1": 0, "c/1": 2} and manifest(tmp_path / "ov").classes == ("a", "b", "c")
    (tmp_path / "val/b").mkdir()
    report = _pack(tmp_path / "val", tmp_path / "ow")
    assert labels(tmp_path / "ow")["c/1"] == 2 and "no sample: b" in report.notes[0]
    with pytest.raises(UsageError, match="not among the 2 classes"):
        _pack(tmp_path / "train", tmp_path / "ox", classes_from=_two_classes(tmp_path))
    assert not (tmp_path / "ox").exists()


def _two_classes(tmp_path: Path) -> Path:
    _pack(tree(tmp_path / "two", {"a/1.jpg": b"1", "b/1.jpg": b"1"}), tmp_path / "otwo")
    return tmp_path / "otwo"


def test_pack_17_a_sample_larger_than_a_shard(tmp_path: Path, fmt: str) -> None:
    """libffcv/ffcv#135: one sample larger than the page size stopped the writer."""
    sizes = [1000, 1000, 5_000_000, 1000, 1000]
    src = tree(tmp_path / "in", {f"{n}.bin": os.urandom(size) for n, size in enumerate(sizes)})
    report = _pack(src, tmp_path / "out", format=fmt, shard_size="1MB")
    found = contents(tmp_path / "out")
    assert {key: len(fields["bin"]) for key, fields in found.items()} == dict(zip("01234", sizes, strict=True))
    assert sum(shard.bytes > 1.2e6 for shard in manifest(tmp_path / "out").shards) == 1
    assert shard_keys(tmp_path / "out") == [["0", "1"], ["2"], ["3", "4"]]
    (note,) = report.notes
    assert note.startswith("1 sample is larger than the shard limit of 1.0 MB: 2 (5.")


@pytest.mark.parametrize("n", [1, 3])
def test_pack_18_fewer_samples_than_workers(tmp_path: Path, n: int) -> None:
    """libffcv/ffcv#1: index error, or a hang."""
    src = tree(tmp_path / "in", {f"{i}.txt": b"x" for i in range(n)})
    for options in ({}, {"shard_samples": 1}):
        out = tmp_path / f"out{len(options)}"
        report = _pack(src, out, workers=8, **options)
        assert report.samples == n == len(contents(out))
        assert all(shard.samples for shard in manifest(out).shards)


def test_lmdb_03_the_user_never_hears_of_a_map_size(tmp_path: Path) -> None:
    """jnwatson/py-lmdb#318: the map size ran out while packing."""
    original = {f"{i:02d}.bin": os.urandom(2**20) for i in range(30)}
    _pack(tree(tmp_path / "in", original), tmp_path / "out", format="lmdb", shard_size="8MiB")
    assert {f"{key}.bin": fields["bin"] for key, fields in contents(tmp_path / "out").items()} == original


@pytest.mark.parametrize("length", [512, 700])
def test_lmdb_06_keys_of_any_length(tmp_path: Path, fmt: str, length: int) -> None:
    """ThoughtRiver/lmdb-embeddings#4: one key over 511 bytes failed the whole write."""
    name = "/".join(["x" * 90] * 7)[: length - 6] + "/a.bin"
    _pack(tree(tmp_path / "in", {name: b"1", "b/b.bin": b"2"}), tmp_path / "out", format=fmt)
    assert contents(tmp_path / "out")[name[:-4]]["bin"] == b"1"


def test_cli_09_workers_and_time_change_nothing(tmp_path: Path, fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning-AI/litData#758: the result depended on the number of packing workers."""
    monkeypatch.setattr(pieces, "LEAST", 1)
    original = {f"{c}/{i}.{e}": os.urandom(50 + i) for c in "abcde" for i in range(50) for e in ("jpg", "json")}
    src = tree(tmp_path / "in", original)
    made = []
    for n, workers in enumerate((1, 7)):
        for path in src.rglob("*.jpg"):
            os.utime(path, (n * 1e9, n * 1e9))
        _pack(src, tmp_path / f"out{n}", format=fmt, workers=workers, shard_samples=30, val=0.2)
        made.append(files(tmp_path / f"out{n}"))
    assert made[0] == made[1] and len(made[0]) == 2 * (7 + 2 + 1)


def test_val_makes_two_sets_with_every_label(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {f"{c}/{i}.jpg": b"1" for c in "abc" for i in range(20)})
    report = _pack(src, tmp_path / "out", val=0.1)
    train, val = labels(tmp_path / "out/train"), labels(tmp_path / "out/val")
    assert len(train) == 54 and len(val) == 6 and not set(train) & set(val)
    assert sorted(val.values()) == [0, 0, 1, 1, 2, 2]
    assert {name: (split.samples, split.path) for name, split in report.splits.items()} == {
        "train": (54, f"{tmp_path}/out/train"), "val": (6, f"{tmp_path}/out/val"),
    }  # fmt: skip
    assert report.samples == 60 and not (tmp_path / "out/streamio.json").exists()


def test_classes_are_shuffled_and_stems_are_not(tmp_path: Path) -> None:
    names = [f"{c}/{i:02d}.jpg" for c in "ab" for i in range(30)]
    src = tree(tmp_path / "in", dict.fromkeys(names, b"1"))
    keys = [name[:-4] for name in names]
    _pack(src, tmp_path / "classes")
    _pack(src, tmp_path / "stems", layout="stems")
    _pack(src, tmp_path / "plain", shuffle=False)
    _pack(src, tmp_path / "seed", seed=1)
    orders = {name: shard_keys(tmp_path / name)[0] for name in ("classes", "stems", "plain", "seed")}
    assert orders["stems"] == orders["plain"] == keys
    assert sorted(orders["classes"]) == sorted(orders["seed"]) == keys
    assert len({tuple(order) for order in orders.values()}) == 3


def test_a_list_with_columns(tmp_path: Path, fmt: str) -> None:
    src = tree(tmp_path, {"p/a.jpg": b"A", "p/b.jpg": b"B"}) / "l.jsonl"
    rows = [
        {"path": "p/a.jpg", "label": "x", "w": 0.5, "n": 3, "box": [1, 2], "text": "é", "id": "k1", "ok": True},
        {"path": "p/b.jpg", "label": "y", "w": 1.5, "n": 4, "box": {}, "text": "", "id": "k2"},
    ]
    src.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _pack(src, tmp_path / "out", format=fmt)
    made = manifest(tmp_path / "out")
    assert {name: spec.stored for name, spec in made.fields.items()} == {
        "jpg": "jpg", "cls": "cls", "w": "w.float", "n": "n.int", "box": "box.json", "text": "text",
        "id": "id.txt", "ok": "ok.bool",
    }  # fmt: skip
    found = contents(tmp_path / "out")["p/a"]
    assert found["box.json"] == b"[1,2]" and found["text"] == "é".encode() and found["id.txt"] == b"k1"
    if fmt != "hdf5":
        assert (found["w.float"], found["n.int"], found["cls"]) == (b"0.5", b"3", b"0")


def test_a_dry_run_writes_nothing_and_tells_the_same(tmp_path: Path, fmt: str) -> None:
    src = tree(tmp_path / "in", {f"{c}/{i}.jpg": os.urandom(5000) for c in "ab" for i in range(20)})
    options: dict[str, Any] = {"format": fmt, "val": 0.2, "shard_size": 50_000}
    planned = _pack(src, tmp_path / "out", dry_run=True, **options)
    assert not (tmp_path / "out").exists() and planned.dry_run
    made = _pack(src, tmp_path / "out", **options)
    assert (planned.samples, planned.shards, planned.fields, planned.classes, planned.layout_reason) == (
        made.samples, made.shards, made.fields, made.classes, made.layout_reason,
    )  # fmt: skip
    for name, split in planned.splits.items():
        assert split.path == made.splits[name].path and split.samples == made.splits[name].samples
        assert split.bytes == pytest.approx(made.splits[name].bytes, rel=0.25)


def test_progress_ends_with_everything_done(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {f"{i}.jpg": jpg() for i in range(20)})
    for workers in (1, 2):
        told: list[Progress] = []
        _pack(src, tmp_path / f"out{workers}", progress=told.append, shard_samples=5, workers=workers)
        assert list(dict.fromkeys(p.stage for p in told)) == ["scan", "write", "commit"]
        last = told[-1]
        assert last.done_samples == last.total_samples == last.done_files == last.total_files == 20
        assert last.done_bytes == last.total_bytes == 20 * len(jpg())


def test_text_that_cannot_be_stored_is_named_with_its_sample(tmp_path: Path) -> None:
    src = tree(tmp_path, {"a.jpg": b"1", "l.jsonl": b'{"path": "a.jpg", "t": "\\ud800"}\n'})
    with pytest.raises(UsageError, match=r"sample 'a', field t.txt: text that is not Unicode"):
        pack(src / "l.jsonl", tmp_path / "out")
