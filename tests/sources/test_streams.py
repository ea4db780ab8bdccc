"""What holds for RedisDataset and NatsDataset alike, beside the contract of all sources, with real servers."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamio import Fill, MissingExtra, StorageError, StreamLoader, UsageError
from streamio.errors import SampleError
from tests.servers.fixtures import Servers
from tests.servers.nats import Nats
from tests.servers.process import PASSWORD, free_port
from tests.servers.redis import Redis
from tests.sources.places import PLACES, NatsPlace, Place

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, servers: Servers) -> Place:
    """A new, empty stream on each kind of server."""
    kind, of = PLACES[request.param]
    return of(servers.get(kind))


@pytest.fixture
def load() -> Iterator[Any]:
    """Makes loaders that are closed at the end of the test."""
    made: list[StreamLoader] = []

    def make(data: Any, **options: Any) -> StreamLoader:
        made.append(StreamLoader(data, **{"num_workers": 0, **options}))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["n"].tolist()]


def take(loader: StreamLoader, batches: int) -> list[int]:
    iterator = iter(loader)
    return numbers(next(iterator) for _ in range(batches))


@pytest.mark.slow
def test_every_message_comes_once_under_spawn(place: Place, load: Any) -> None:
    place.add(range(101))
    loader = load(place.data(splits=3), num_workers=2, context="spawn")
    for _ in range(2):
        assert sorted(numbers(loader)) == list(range(101))


def test_a_data_set_goes_to_another_process_by_pickle(place: Place, load: Any) -> None:
    place.add(range(35))
    assert numbers(load(pickle.loads(pickle.dumps(place.data())))) == list(range(35))


def test_an_epoch_is_what_was_there_when_it_began(place: Place, load: Any) -> None:
    place.add(range(30))
    loader = load(place.data())
    iterator = iter(loader)
    came = next(iterator)["n"].tolist()
    place.add(range(30, 50))
    assert came + numbers(iterator) == list(range(30))
    assert numbers(loader) == list(range(50))


def test_a_state_goes_on_in_what_was_there_when_its_epoch_began(place: Place, load: Any) -> None:
    place.add(range(100))
    first = load(place.data(splits=4), num_workers=2, transport="thread")
    came = take(first, 4)
    place.add(range(100, 120))
    second = load(place.data(7, splits=4))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert sorted(came + numbers(second)) == list(range(100))
    assert sorted(numbers(second)) == list(range(120))


def test_follow_reads_what_comes_and_a_state_goes_on_there(place: Place, load: Any) -> None:
    place.add(range(20))
    first = load(place.data(follow=True, idle_timeout=0.4))
    assert numbers(first) == list(range(20))
    place.add(range(20, 43))
    writer = threading.Timer(0.1, place.add, [range(43, 50)])
    writer.start()
    came = take(first, 3)  # the last of them begins before its rows are there
    writer.join()
    assert came == list(range(20, 50))
    state = json.loads(json.dumps(first.state_dict()))
    place.add(range(50, 60))
    second = load(place.data(follow=True, idle_timeout=0.5), num_workers=2, transport="thread")
    second.load_state_dict(state)
    assert numbers(second) == list(range(50, 60))


def test_latest_begins_behind_what_is_there_and_loses_nothing_after(place: Place, load: Any) -> None:
    place.add(range(20))
    loader = load(place.data(follow=True, start="latest", idle_timeout=0.2))
    assert numbers(loader) == []
    place.add(range(20, 25))  # between two epochs
    assert numbers(loader) == list(range(20, 25))


def test_a_partial_batch_is_delivered_after_max_wait(place: Place, load: Any) -> None:
    place.add(range(3))
    loader = load(place.data(follow=True, max_wait=0.2))
    assert next(iter(loader))["n"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("follow", [False, True])
def test_a_run_without_a_state_begins_where_its_group_was_committed(place: Place, load: Any, follow: bool) -> None:
    options: dict[str, Any] = {"group": "training", "follow": follow, **({"idle_timeout": 0.3} if follow else {})}
    place.add(range(40))
    loader = load(place.data(**options), num_workers=1, transport="thread")
    assert take(loader, 2) == list(range(20))
    loader.commit()
    rest = load(place.data(**options))
    assert numbers(rest) == list(range(20, 40))
    rest.commit()
    assert numbers(load(place.data(**options))) == []
    place.add(range(40, 45))
    assert numbers(load(place.data(**options))) == list(range(40, 45))
    assert numbers(load(place.data(**{**options, "group": "other"}))) == list(range(45))


def test_brok_01_what_was_prefetched_and_not_used_is_not_lost(place: Place, load: Any) -> None:
    place.add(range(100))
    fork = multiprocessing.get_context("fork")
    took, say = fork.Pipe(duplex=False)
    child = fork.Process(target=_take_and_commit, args=(place.data(group="training"), say))
    child.start()
    came = [number for _ in range(3) for number in took.recv()]
    assert took.recv() == "committed"
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert came == list(range(30))
    assert numbers(load(place.data(group="training"))) == list(range(30, 100))


def _take_and_commit(data: Any, say: Any) -> None:
    """Three batches, each committed, of a loader that has made more; then wait to be killed."""
    loader = StreamLoader(data, num_workers=1, context="fork")
    for _, batch in zip(range(3), loader, strict=False):
        say.send(batch["n"].tolist())
        loader.commit()
    say.send("committed")
    time.sleep(60)


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_server_that_is_started_again_in_an_epoch_leaves_it_complete(
    place: Place, load: Any, end: str, workers: int
) -> None:
    place.add(range(3000))
    loader = load(place.data(50, splits=2), num_workers=workers, context="fork" if workers else None)
    came: list[int] = []
    starter = threading.Timer(0.3, place.server.start)
    for number, batch in enumerate(loader):
        came += batch["n"].tolist()
        if number == 1:
            getattr(place.server, end)()
            starter.start()
    starter.join()
    assert sorted(came) == list(range(3000))


def test_follow_goes_on_when_the_server_is_back(place: Place, load: Any) -> None:
    place.add(range(10))
    iterator = iter(load(place.data(follow=True)))
    came = next(iterator)["n"].tolist()
    place.server.stop()
    again = threading.Timer(0.3, lambda: place.server.start() and place.add(range(10, 30)))
    again.start()
    came += next(iterator)["n"].tolist() + next(iterator)["n"].tolist()
    again.join()
    assert came == list(range(30))


def test_a_server_that_stays_away_is_an_error_that_says_what_to_do(
    place: Place, load: Any, caplog: pytest.LogCaptureFixture
) -> None:
    place.add(range(3000))
    iterator = iter(load(place.data(50, retry_for=0.3)))
    next(iterator)
    place.server.stop()
    with caplog.at_level(logging.WARNING), pytest.raises(StorageError, match=r"no answer.*retry_for=") as failed:
        list(iterator)
    assert "trying again for 0.3 s" in caplog.text
    assert PASSWORD not in f"{failed.value!r} {failed.value} {caplog.text}"


def test_messages_that_vanish_before_they_were_read_are_no_short_epoch(place: Place, load: Any) -> None:
    place.add(range(3000))
    iterator = iter(load(place.data(50)))
    next(iterator)
    place.drop_first(2000)
    with pytest.raises(StorageError, match=r"of 3,000 .* before they were read"):
        list(iterator)


def test_a_state_notices_what_vanished_meanwhile(place: Place, load: Any) -> None:
    place.add(range(100))
    first = load(place.data())
    take(first, 3)
    place.drop_first(60)
    second = load(place.data())
    second.load_state_dict(first.state_dict())
    with pytest.raises(StorageError, match=r"30 of 100 .* before they were read"):
        list(second)


@pytest.mark.parametrize("follow", [False, True])
def test_a_stream_that_was_made_anew_is_refused_for_an_old_state_and_group(
    place: Place, load: Any, follow: bool
) -> None:
    place.add(range(50))
    first = load(place.data(follow=follow, group="training"))
    take(first, 2)
    first.commit()
    place.make_anew()
    second = load(place.data(follow=follow))
    second.load_state_dict(first.state_dict())
    with pytest.raises(StorageError, match=r"the run stands at .* made anew"):
        next(iter(second))
    if isinstance(place, NatsPlace):  # a group of Redis goes with its stream
        with pytest.raises(StorageError, match=r"group 'training' stands at .* made anew"):
            next(iter(load(place.data(follow=follow, group="training"))))


def test_bad_messages_are_raised_or_left_out_and_named(place: Place, load: Any) -> None:
    place.write([b'{"n": 1}', b'{"n": "x"}', b"{", b"[1]", b'{"n": 2}'])
    with pytest.raises(SampleError, match=rf"{place.name}, row .*, field n: str 'x' is no int64"):
        list(load(place.data()))
    data = place.data(on_error="skip")
    assert numbers(load(data)) == [1, 2]
    assert data.stats().skipped == 3


def test_fields_are_inferred_where_they_are_not_declared(place: Place, load: Any) -> None:
    place.write([])
    with pytest.raises(UsageError, match="it is empty"):
        place.data(types=None, follow=True)
    place.write([b'{"n": 1, "text": "a"}', b'{"n": 2, "text": null}', b'{"n": 3, "text": "c"}'])
    (batch,) = load(place.data(types=None, missing={"text": Fill("")}))
    assert (batch["n"].tolist(), batch["text"]) == ([1, 2, 3], ["a", "", "c"])


def test_a_function_parses_messages_and_may_leave_some_out(place: Place, load: Any) -> None:
    place.add(range(40))
    loader = load(place.data(parse=_even, splits=2))
    assert numbers(loader) == list(range(0, 40, 2))
    assert take(loader, 1) == list(range(0, 20, 2))
    other = load(place.data(parse=_even, splits=2))
    other.load_state_dict(loader.state_dict())
    assert numbers(other) == list(range(20, 40, 2))


def _even(message: Any) -> dict[str, int] | None:
    value = message["value"] if isinstance(message, dict) else message
    number = json.loads(value)["n"]
    return {"n": number} if number % 2 == 0 else None


def test_shows_no_password_anywhere(place: Place, load: Any) -> None:
    place.add(range(20))
    data = place.data(group="training")
    loader = load(data)
    next(iter(loader))
    shown = [repr(data), repr(data.source), data.source.fingerprint, json.dumps(loader.state_dict())]
    shown += [str(vars(data.source)), str(pickle.dumps(data.source)), repr(data.source.partitions())]
    assert PASSWORD not in " ".join(shown)
    wrong = place.server.url.replace(PASSWORD, "other-secret")
    with pytest.raises(StorageError, match="refused") as failed:
        place.data(url=wrong)
    error = failed.value
    assert "other-secret" not in f"{error} {error!r} {error.__cause__} {error.__context__}"


def test_a_server_that_is_not_there_is_an_error_at_once(place: Place) -> None:
    began = time.monotonic()
    with pytest.raises(StorageError, match="no answer"):
        place.data(url=place.server.url.replace(str(place.server.port), str(free_port())))
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"splits": 0}, "splits=0"),
        ({"splits": 2, "follow": True}, "splits=2 with follow=True"),
        ({"splits": 2, "group": "g"}, "splits=2 with group='g'"),
        ({"start": "latest"}, "start='latest'"),
        ({"start": "yesterday", "follow": True}, "start='yesterday'"),
        ({"retry_for": -1}, "retry_for=-1"),
        ({"meta": ["colour"]}, "meta="),
        ({"meta": "timestamp"}, "meta='timestamp'"),
        ({"meta": {"timestamp": "n"}}, "field n: is declared int64"),
        ({"parse": "xml"}, "parse='xml'"),
        ({"types": {"n": "integer"}}, "'integer' is no type"),
        ({"url": "http://host"}, "no address that is known"),
        ({"url": ""}, "no text"),
    ],
)
def test_what_cannot_work_is_refused_at_once(place: Place, options: dict[str, Any], match: str) -> None:
    place.add(range(1))
    with pytest.raises(UsageError, match=match):
        place.data(**options)


@pytest.mark.parametrize("module", PLACES)
def test_a_missing_package_names_the_command_that_brings_it(
    place: Place, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(place, PLACES[module][1]):
        return
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'streamio\[{module}\]'"):
        place.data()


@pytest.mark.parametrize("kind", PLACES)
def test_the_example_of_the_page_runs(kind: str, servers: Servers) -> None:
    title = {"redis": "## Redis Streams", "nats": "## NATS JetStream"}[kind]
    code = (ROOT / "docs" / "sources.md").read_text().partition(title)[2].split("```")[1].removeprefix("python")
    server = servers.get(PLACES[kind][0])
    messages = [{"url": f"u{n}", "ms": n} for n in range(20)]
    if isinstance(server, Redis):
        name = server.stream(messages)
        subject = ""
    else:
        assert isinstance(server, Nats)
        name = server.stream()
        subject = f"{name}.eu.x"
        server.publish(subject, [json.dumps(message).encode() for message in messages])
    for there, here in {
        "redis://user:password@localhost:6379/0": server.url, "nats://user:password@localhost:4222": server.url,
        '"clicks"': repr(name), '"CLICKS"': repr(name), "clicks.eu.>": f"{name}.eu.>",
    }.items():  # fmt: skip
        code = code.replace(there, here)
    trained: list[int] = []
    exec(code, {"train": lambda url, ms: trained.extend(ms.tolist())})
    assert trained == list(range(20))


def test_commit_without_a_group_is_refused(place: Place, load: Any) -> None:
    place.add(range(10))
    loader = load(place.data())
    take(loader, 1)
    with pytest.raises(UsageError, match="without a group"):
        loader.commit()
