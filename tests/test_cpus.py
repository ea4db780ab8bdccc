"""The CPUs of affinity and cgroups, of both versions, in containers and in jobs of a cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamio import cpus
from streamio.cpus import cgroup_quota, usable_cpus
from tests.samples import tree

NO_LIMIT = {"cpu.cfs_quota_us": b"-1\n", "cpu.cfs_period_us": b"100000\n"}


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("", {}, None),
        ("0::/\n", {"cpu.max": b"max 100000\n"}, None),
        ("0::/\n", {"cpu.max": b"150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": b"rubbish"}, None),
        ("0::/a/job\n", {"a/job/cpu.max": b"max 100000\n", "a/cpu.max": b"300000 100000\n"}, 3.0),
        ("0::/a/job\n", {"a/job/cpu.max": b"50000 100000\n", "a/cpu.max": b"300000 100000\n"}, 0.5),
        ("0::/a/job\n", {"a/other/cpu.max": b"50000 100000\n"}, None),
        ("0::/../..\n", {"cpu.max": b"200000 100000\n"}, 2.0),  # of a container, seen from outside its namespace
        ("4:cpu,cpuacct:/\n", {f"cpu/{name}": data for name, data in NO_LIMIT.items()}, None),
        (
            "9:memory:/job\n4:cpu,cpuacct:/job\n",
            {"cpu/job/cpu.cfs_quota_us": b"400000\n", "cpu/job/cpu.cfs_period_us": b"100000\n"},
            4.0,
        ),
    ],
)
def test_the_quota_of_a_cgroup_and_of_those_above_it_is_read_in_both_versions(
    tmp_path: Path, own: str, files: dict[str, bytes], quota: float | None
) -> None:
    (tmp_path / "own").write_text(own)
    assert cgroup_quota(tree(tmp_path / "root", files), tmp_path / "own") == quota


def test_a_system_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path / "none", tmp_path / "nothing") is None


@pytest.mark.parametrize(("quota", "count"), [(None, 6), (0.5, 1), (1.5, 2), (4.0, 4), (64.0, 6)])
def test_cpus_are_those_of_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, count: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setattr(cpus, "cgroup_quota", lambda root, own: quota)
    assert usable_cpus() == count


def test_here_there_is_one_at_least() -> None:
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
