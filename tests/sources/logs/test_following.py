"""Files that grow, come to be, are rotated and deleted while they are followed."""

from __future__ import annotations

import gzip
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamio.sources.base import Share
from streamio.sources.logs import tailing
from streamio.sources.logs.blocks import LineReader
from streamio.sources.logs.following import _saved
from streamio.sources.logs.tailing import Saved, Tail
from tests.sources.logs.writing import Run, append, lines, write


class Clock:
    """Stands in for the clock of `tailing`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(tailing.time, "monotonic", lambda: self.now)


def tail(
    pattern: Path, saved: dict[str, Saved] | None = None, *, linger: float = 10.0, share: Share | None = None
) -> Tail:
    owns = (share or Share()).owns
    return Tail((str(pattern),), owns, saved or {}, LineReader(is_finished=False), linger)


def got(tail: Tail, looks: int = 3) -> bytes:
    """What is there now."""
    data = b""
    for _ in range(looks):
        tail.look()
        data += b"".join(portion.block.data for portion in tail.portions())
    return data


def test_a_line_that_is_being_written_comes_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"on")
    follower = tail(log)
    assert got(follower) == b""
    for data, whole in ((b"e", b""), (b"\ntwo", b"one\n"), (b"\n\nthree", b"two\n\n"), (b"\n", b"three\n")):
        with log.open("ab") as file:
            file.write(data)
        assert got(follower) == whole
    follower.close()


def test_several_files_are_followed_at_once_and_the_older_ones_of_a_log_come_first(tmp_path: Path) -> None:
    run = Run(str(tmp_path / "**" / "*.log*"), 3, follow=True, types={"i": "int64"})
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "x.log", range(10, 20))
        write(tmp_path / name / "x.log.1", range(10))
    write(tmp_path / "new.log", range(20, 25))
    assert sorted(run.rest()) == sorted([*range(20)] * 2 + [*range(20, 25)])
    for begin in range(30, 60, 10):
        append(tmp_path / "a" / "x.log", range(begin, begin + 5))
        append(tmp_path / "new.log", range(begin + 5, begin + 10))
        assert sorted(run.rest()) == list(range(begin, begin + 10))


def test_a_deleted_file_is_read_to_its_end_also_what_is_written_after(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    write(log, range(10))
    run = Run(str(log), 5, follow=True)
    run.take(5)
    with log.open("ab", buffering=0) as file:
        log.unlink()
        file.write(lines(range(10, 20)))
        assert run.rest() == list(range(5, 20))
    write(log, range(20, 30))
    assert run.rest() == list(range(20, 30))


def test_copytruncate_goes_on_in_the_copy_even_if_no_pattern_matches_it(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    write(log, range(10))
    run = Run(str(log), 5, follow=True)
    run.take(5)
    append(log, range(10, 20))
    (tmp_path / "app.log.1").write_bytes(log.read_bytes())
    os.truncate(log, 0)
    write(log, range(20, 200))  # longer than it was
    assert run.rest() == list(range(5, 200))


def test_a_copy_beside_its_original_is_not_read_until_that_is_cut(tmp_path: Path) -> None:
    log, copy = tmp_path / "app.log", tmp_path / "app.log.1"
    data = lines(range(50))
    log.write_bytes(data)
    follower = tail(tmp_path / "app.log*")
    assert got(follower) == data
    for size in (1, 30, 500, len(data)):
        copy.write_bytes(data[:size])
        assert got(follower) == b""
    with log.open("ab") as file:
        file.write(b"more\n")
    assert got(follower) == b"more\n", "it is no longer all of it"
    os.truncate(log, 0)
    assert got(follower) == b""
    log.write_bytes(b"next\n")
    assert got(follower) == b"next\n"
    follower.close()


def test_a_file_that_stays_the_same_as_another_is_one_of_its_own_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    write(tmp_path / "app.log", range(5))
    write(tmp_path / "app.log.1", range(5))
    follower = tail(tmp_path / "app.log*")
    assert got(follower) == lines(range(5))
    clock.now += tailing.HOLD + 1
    assert got(follower) == lines(range(5))
    assert got(follower) == b""
    follower.close()


def test_files_that_begin_with_the_same_line_stay_apart(tmp_path: Path) -> None:
    begin = b"#fields: a b\n"
    for name, rest in (("a.log", b"1\n"), ("b.log", b"2\n"), ("a.log.1", b"3\n"), ("a.log.2", b"")):
        (tmp_path / name).write_bytes(begin + rest)
    follower = tail(tmp_path / "*.log*")
    names: dict[str, Saved] = {}
    data = []
    for _ in range(4):
        follower.look()
        for portion in follower.portions():
            data.append(portion.block.data)
            names[portion.name] = _saved(portion.cursor(portion.block.end))
    follower.close()
    assert sorted(data) == [begin + rest for rest in (b"1\n", b"2\n", b"3\n")], "a.log.2 is the beginning of a.log"
    for name in ("a.log", "b.log", "a.log.1"):
        with (tmp_path / name).open("ab") as file:
            file.write(name.encode() + b"\n")
    again = tail(tmp_path / "*.log*", names)
    assert sorted(got(again).split()) == [b"a.log", b"a.log.1", b"b.log"]
    again.close()


def test_a_compressed_file_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    data = gzip.compress(lines(range(3000)))
    path = tmp_path / "app.log.gz"
    follower, read = tail(path), b""
    for cut in (0, 2, 9, 1000, 5000, len(data)):
        path.write_bytes(data[:cut])
        read += got(follower)
    assert read == lines(range(3000))
    follower.close()


def test_ranks_share_the_files_and_their_states_go_on_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    pattern, seen, states = str(tmp_path / "*.log"), list[int](), None
    for number in range(12):
        write(tmp_path / f"{number}.log", range(number * 100, number * 100 + 50))
    for turn, ranks in enumerate((2, 1, 3, 2)):
        runs = [
            Run(pattern, 5, follow=True, steps=10_000, rank=rank, world_size=ranks, state=states)
            for rank in range(ranks)
        ]
        for run in runs:
            seen += run.take(40)
        states = [run.state() for run in runs]
        for number in range(12):
            append(tmp_path / f"{number}.log", [number * 100 + 50 + turn])
    seen += Run(pattern, 5, follow=True, state=states).rest()
    assert sorted(seen) == [number * 100 + line for number in range(12) for line in range(54)]


@pytest.mark.parametrize("workers", [2, 5])
def test_each_file_has_one_reader_whoever_asks(tmp_path: Path, workers: int) -> None:
    for number in range(40):
        write(tmp_path / f"{number}.log", [number])
    followers = [tail(tmp_path / "*.log", share=Share(number, workers)) for number in range(workers)]
    shares = [got(follower) for follower in followers]
    assert sorted(b"".join(shares).splitlines()) == sorted(lines(range(40)).splitlines())
    assert all(shares)
    for follower in followers:
        follower.close()


def test_more_files_than_may_be_open_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailing, "MOST_OPEN", 4)
    for number in range(20):
        write(tmp_path / f"{number}.log", [number])
    follower = tail(tmp_path / "*.log")
    assert sorted(got(follower, 20).splitlines()) == sorted(lines(range(20)).splitlines())
    follower.look()
    assert len(follower._known.open()) <= 4
    for number in range(20):
        append(tmp_path / f"{number}.log", [100 + number])
    assert sorted(got(follower, 20).splitlines()) == sorted(lines(range(100, 120)).splitlines())
    follower.close()


def cursors(follower: Tail, looks: int = 2) -> dict[str, Saved]:
    found = {}
    for _ in range(looks):
        follower.look()
        for portion in follower.portions():
            found[portion.name] = _saved(portion.cursor(portion.block.end))
    follower.close()
    return found


def test_files_that_are_gone_are_forgotten_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    for name in ("a.log", "b.log"):
        write(tmp_path / name, [len(name)])
    follower = tail(tmp_path / "*.log")
    got(follower)
    (tmp_path / "a.log").unlink()  # gone
    (tmp_path / "b.log").rename(tmp_path / "b.log.1")  # under a name that does not match
    forgotten: list[str] = []
    for seconds in (1.0, 20.0, 20.0, tailing.FORGET + 1, 1.0):
        follower.look()
        forgotten += [os.path.basename(name).split("#")[0] for name in follower.forgotten()]
        assert ("b.log" in forgotten) == (clock.now > 1020)
        clock.now += seconds
    assert forgotten == ["b.log", "a.log"]
    follower.close()


def test_files_that_went_while_nobody_looked_are_forgotten_after_a_day(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        write(tmp_path / name, [len(name)])
    saved = cursors(tail(tmp_path / "*.log"))
    (tmp_path / "a.log").unlink()
    for days, count in ((0.5, 0), (1.5, 1)):
        old = {name: Saved(one.trace, one.time - int(days * 86400), one.length) for name, one in saved.items()}
        follower = tail(tmp_path / "*.log", old)
        follower.look()
        assert len(follower.forgotten()) == count
        follower.close()


def test_a_compressed_file_that_was_read_is_not_unpacked_again(tmp_path: Path) -> None:
    path = tmp_path / "app.log.1.gz"
    path.write_bytes(gzip.compress(lines(range(1000))))
    saved = cursors(tail(path))
    assert [one.length for one in saved.values()] == [path.stat().st_size]
    again = tail(path, saved)
    again.look()
    assert again._known.open() == [] and got(again) == b""
    path.write_bytes(path.read_bytes() + gzip.compress(b"more\n"))
    assert got(again) == b"more\n"
    again.close()


def test_a_state_says_little_of_each_file(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / f"{number}.log", range(1000))
    run = Run(str(tmp_path / "*.log"), 100, follow=True)
    run.rest()
    state = run.state()
    assert len(state["cursors"]) == 10
    assert all(len(repr(cursor)) < 400 for cursor in state["cursors"].values())


def test_a_file_that_was_cut_without_a_copy_is_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "app.log"
    for next_ones in (range(100, 103), range(200, 300)):
        write(log, range(10))
        run = Run(str(log), 5, follow=True)
        assert run.rest() == list(range(10))
        os.truncate(log, 0)
        append(log, next_ones)
        assert run.rest() == list(next_ones)


def test_a_file_that_grows_at_every_look_is_read_although_it_begins_like_one_that_is_gone(tmp_path: Path) -> None:
    log, begin = tmp_path / "app.log", b"#fields: a\n"
    log.write_bytes(begin + b"1\n2\n")
    follower = tail(tmp_path / "app.log*")
    assert got(follower) == begin + b"1\n2\n"
    log.write_bytes(begin)  # cut, and begun anew
    seen = b""
    for line in (b"3\n", b"4\n", b"5\n", b"6\n"):
        with log.open("ab") as file:
            file.write(line)
        seen += got(follower, looks=1)
    assert seen == begin + b"3\n4\n5\n6\n"
    follower.close()


def test_zeros_after_a_writer_went_on_at_its_old_offset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "app.log"
    with log.open("wb", buffering=0) as file:
        file.write(lines(range(10)))
        run = Run(str(log), 5, follow=True)
        assert run.rest() == list(range(10))
        with caplog.at_level(logging.WARNING):
            os.truncate(log, 0)
            file.write(lines(range(10, 20)))
            assert run.rest() == list(range(10, 20))
    assert "270 bytes of NUL at byte 0 were left out" in caplog.text


def test_the_loop_can_be_stopped_and_goes_on_later(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    write(log, range(10))
    run = Run(str(log), 4, follow=True, idle_timeout=60)
    for batch in run.loader:
        run.got += batch["i"].tolist()
        if len(run.got) >= 8:
            run.dataset.stop()
    assert run.got[:8] == list(range(8))
    after = Run(str(log), 4, follow=True, state=run.state())
    assert [*run.got, *after.rest()] == list(range(10))


def test_what_a_state_must_not_hold_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    write(log, range(10))
    run = Run(str(log), 4, follow=True)
    run.take(4)
    state = run.state()
    for wrong in (7, {}, {"path": "x"}, {**next(iter(state["cursors"].values())), "file": [1]}):
        broken: Sequence[object] = [{**state, "cursors": dict.fromkeys(state["cursors"], wrong)}]
        with pytest.raises(ValueError, match="the cursor of a file is none"):
            Run(str(log), 4, follow=True, state=broken).rest()
