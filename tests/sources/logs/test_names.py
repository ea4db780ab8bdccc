"""Names of logs: which log, how old."""

from __future__ import annotations

import random

import pytest

from streamio.sources.logs.names import age, is_packed_twin, log_name, may_be_copy

ORDERS = (
    ["app.log.10.gz", "app.log.2.gz", "app.log.1", "app.log"],
    ["app.log-20231231.gz", "app.log-20240101", "app.log-20240102", "app.log"],
    ["app-2024-01-09.log", "app-2024-01-10.log", "app.log"],
    ["app.log.2024-01-01_23", "app.log.2024-01-02_00", "app.log"],
    ["app.2024-01-01.1.log", "app.2024-01-01.2.log", "app.2024-01-01.10.log", "app.log"],
    ["app.2024-01-01_09-30-00_123456.log", "app.2024-01-01_10-00-00_000001.log", "app.log"],
    ["app.log-1700000000", "app.log-1700000600.zst", "app.log"],
    ["app.log.old", "app.log"],
    ["part-1.jsonl", "part-2.jsonl", "part-10.jsonl"],
    ["a.log.1", "a.log", "b.log.1", "b.log"],
    ["app.log.1", "app.log.1.gz", "app.log"],
    ["a/x.log.1", "a/x.log", "a10/x.log"],
)


@pytest.mark.parametrize("names", ORDERS, ids=lambda names: names[0])
def test_logs_are_read_the_oldest_first(names: list[str]) -> None:
    mixed = names * 1
    random.Random(7).shuffle(mixed)
    assert sorted(mixed, key=age) == names


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("app.log", "app.log"),
        ("app.log.3", "app.log"),
        ("app.log.3.gz", "app.log"),
        ("app.log-20240131.zst", "app.log"),
        ("app-20240131.log.xz", "app.log"),
        ("app.log.bak", "app.log"),
        ("app.log~", "app.log"),
        ("part-00001.jsonl", "part-00001.jsonl"),  # a number of a file, not of a rotation
        ("part.7.jsonl", "part.7.jsonl"),
        ("v1.2", "v1"),
        ("20240131.log", "20240131.log"),
        (".gz", ".gz"),
    ],
)
def test_a_rotated_file_belongs_to_its_log(name: str, family: str) -> None:
    assert log_name("/var/log/" + name).family == family


@pytest.mark.parametrize(
    ("name", "original", "may"),
    [
        ("/l/app.log.1", "/l/app.log", True),  # copytruncate
        ("/l/app.log-20240101", "/l/app.log", True),
        ("/old/app.log.1.gz", "/l/app.log", True),
        ("/l/app.log.1.gz", "/l/app.log.1", True),  # is being compressed
        ("/l/app.log", "/l/app.log.1", False),  # the next one
        ("/l/app.log.2", "/l/app.log.1", False),
        ("/l/app.log.2.gz", "/l/app.log.1", False),
        ("/l/b.jsonl", "/l/a.jsonl", False),
        ("/m/app.log", "/l/app.log", False),
    ],
)
def test_copies_have_names_that_rotation_gives(name: str, original: str, may: bool) -> None:
    assert may_be_copy(name, original) is may


def test_a_packed_twin_lies_beside_the_plain_file() -> None:
    assert is_packed_twin("/l/a.1.gz", "/l/a.1")
    assert not is_packed_twin("/m/a.1.gz", "/l/a.1")
    assert not is_packed_twin("/l/a.1", "/l/a.1")
