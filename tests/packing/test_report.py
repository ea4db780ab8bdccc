from __future__ import annotations

import json

from streamio.packing.report import Meter, PackReport, Progress, Skipped, SplitReport, named, shown


def test_names_are_fit_to_print() -> None:
    assert shown("café.jpg") == "café.jpg"
    assert shown(b"caf\xe9.jpg".decode("utf-8", "surrogateescape")) == "caf\\xe9.jpg"
    assert shown("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert named(["a", "b", "c"], 2) == "a, b and 1 more"


def test_a_report_becomes_valid_json() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    report = PackReport(
        out=name, format="tar", layout="classes", layout_reason="", fields=("jpg",), samples=1, classes=(name,),
        splits={"all": SplitReport(path=name, samples=1, shards=1, bytes=9)}, shards=1, bytes=9,
        skipped=(Skipped("a", "b"),),
    )  # fmt: skip
    plain = report.to_dict()
    assert json.loads(json.dumps(plain, ensure_ascii=False).encode()) == plain
    assert plain["classes"] == ["caf\\xe9"] and plain["splits"]["all"]["bytes"] == 9
    assert plain["skipped"] == [{"path": "a", "reason": "b"}]


def test_progress_is_told_at_stage_ends_and_rarely_between() -> None:
    told: list[Progress] = []
    meter = Meter(told.append)
    for _ in range(1000):
        meter.add(0, 1, 10)
    meter.finish("scan")
    meter.start("write", samples=5, files=5, bytes=50)
    meter.add(5, 5, 50)
    meter.finish("commit")
    assert len(told) < 30
    assert (told[0].stage, told[0].total_files) == ("scan", None)
    assert told[-1] == Progress(
        stage="commit", done_samples=5, total_samples=5, done_files=5, total_files=5, done_bytes=50, total_bytes=50
    )
