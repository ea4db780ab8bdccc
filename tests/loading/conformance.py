"""What every transport promises. A test class inherits one of these suites and says how its loaders are made."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
import torch

import streamio
from streamio import ShardDataset, StreamLoader, TransformError, UsageError, WorkerDied, WorkerTimeout
from tests import warm
from tests.sets import keys, numbered

SAMPLES = 120
KEYS = [sample["__key__"] for sample in numbered(SAMPLES)]


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def workers_left() -> list[psutil.Process]:
    """Child processes but those that multiprocessing has for itself."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if not any(word in " ".join(child.cmdline()) for word in ("resource_tracker", "forkserver")):
                found.append(child)
    return found


def pipes() -> int:
    """Open files that have no name."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum(name.startswith(("pipe:", "socket:", "/memfd", "anon_inode")) for name in names)


def fail_at_50(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "x": 1 / (int(sample["cls"]) - 50)}


def only_even(sample: dict[str, Any]) -> dict[str, Any] | None:
    return sample if int(sample["cls"]) % 2 == 0 else None


class TransportSuite:
    """options: of a loader with the transport under test. A fixture `path` gives a set of SAMPLES."""

    options: ClassVar[dict[str, Any]]

    @pytest.fixture
    def make(self, path: str) -> Iterator[Callable[..., StreamLoader]]:
        made: list[StreamLoader] = []

        def make(data: Any = None, loader: Any = None, **options: Any) -> StreamLoader:
            dataset = data or ShardDataset(path, 4, **{"shuffle": True, **options})
            made.append(StreamLoader(dataset, **{**self.options, **(loader or {})}))
            return made[-1]

        yield make
        for loader in made:
            loader.close()

    def test_batches_are_those_of_a_loader_without_workers(self, make: Any, path: str) -> None:
        loader, inline = make(), StreamLoader(ShardDataset(path, 4, shuffle=True), num_workers=0)
        for _ in range(2):
            for got, expected in zip(loader, inline, strict=True):
                assert got.keys() == expected.keys()
                for name, value in expected.items():
                    same = torch.equal(got[name], value) if isinstance(value, torch.Tensor) else got[name] == value
                    assert same, name
        assert loader.stats().batches == 60

    def test_a_state_is_that_of_the_loop_and_goes_on_there(self, make: Any, path: str) -> None:
        inline = StreamLoader(ShardDataset(path, 4, shuffle=True), num_workers=0)
        whole, loader = [b["__key__"] for b in inline], make()
        batches = iter(loader)
        seen = [next(batches)["__key__"] for _ in range(11)]
        state = loader.state_dict()
        assert state == ShardDataset(path, 4, shuffle=True).state_at(11, 0)
        loader.load_state_dict(state)  # into the same one, whose workers have gone further
        assert len(loader) == 19
        assert seen + [b["__key__"] for b in loader] == whole
        assert loader.state_dict() == inline.state_dict()

    def test_an_abandoned_epoch_leaves_nothing_to_the_next(self, make: Any) -> None:
        loader = make()
        for stop in (1, 3, 9):
            for number, _ in enumerate(loader, 1):
                if number == stop:
                    break
        assert loader.epoch == 3
        again = make()
        again.set_epoch(3)
        assert keys(loader) == keys(again)

    def test_a_loop_that_raises_is_an_abandoned_epoch(self, make: Any) -> None:
        loader = make(shuffle=False)
        with pytest.raises(ZeroDivisionError):
            [1 / (batch["cls"][0].item() - 20) for batch in loader]
        assert keys(loader) == KEYS

    def test_a_second_iteration_ends_the_first_with_an_error(self, make: Any) -> None:
        loader = make(shuffle=False)
        first = iter(loader)
        next(first)
        second = iter(loader)
        got = [next(second)]
        with pytest.raises(UsageError, match="another iteration over this StreamLoader has begun"):
            next(first)
        assert keys([*got, *second]) == KEYS

    def test_an_error_comes_in_its_place_and_the_loader_lives_on(self, make: Any) -> None:
        loader = make(shuffle=False, transform=fail_at_50)
        for _ in range(2):
            got: list[Any] = []
            with pytest.raises(TransformError, match=r"row 0 \('k/00050'\): transform raised ZeroDivisionError"):
                got.extend(loader)
            assert keys(got) == KEYS[:48]  # a batch is 4 samples
        assert loader.worker_pids() == []

    def test_what_a_transform_drops_is_counted(self, make: Any) -> None:
        loader = make(shuffle=False, transform=only_even)
        assert keys(loader) == KEYS[::2]
        assert loader.dataset.stats().dropped == loader.stats().data.dropped == SAMPLES // 2

    def test_stats_say_where_the_time_went(self, make: Any) -> None:
        loader = make(transform=slowly)
        assert loader.stats().seconds == loader.stats().batches == 0
        before = loader.stats()
        for epoch in range(2):
            assert len(keys(loader)) == SAMPLES
            stats = loader.stats()
            this = stats.since(before)
            assert stats.epoch == epoch and this.batches == SAMPLES // 4 and this.samples == SAMPLES
            assert this.data.samples == SAMPLES and this.data.seconds["transform"] >= SAMPLES * SLOWLY
            assert sum(this.stage_shares.values()) == pytest.approx(1)
            assert max(this.stages, key=lambda name: this.stages[name]) == "transform"
            assert 0 <= this.idle_share <= 1 and 0 <= this.ready_mean <= this.ahead
            assert 0 < this.waited <= this.seconds and this.epoch_seconds == pytest.approx(this.seconds)
            assert this.samples_per_second == pytest.approx(SAMPLES / this.seconds)
            before = stats
        assert 0 < stats.first_wait <= stats.waited
        assert [memory.pid for memory in stats.memory] == loader.worker_pids()
        assert all(0 < memory.uss <= memory.pss <= memory.rss for memory in stats.memory)

    def test_a_loop_that_is_slow_is_compute_bound_and_workers_wait_for_it(self, make: Any) -> None:
        loader = make(loader={"prefetch_bytes": 1})
        for _ in range(10):  # on a busy machine the first epoch may be over before the workers are there
            for _ in (meter := streamio.watch(loader, quiet=True)):
                time.sleep(0.08)
            verdict, stats = meter.verdict, loader.stats()
            if stats.idle_share > 0.02 or not stats.workers:
                break
        assert verdict is not None and verdict.bound == "compute" and verdict.figures.steps == SAMPLES // 4 - 1
        assert stats.waited - stats.first_wait < stats.seconds / 2  # interpreters may start more slowly than that
        assert bool(stats.idle_share > 0.02) == bool(stats.workers)

    def test_a_loop_that_does_nothing_is_data_bound_by_the_slow_transform(self, make: Any) -> None:
        loader = make(transform=slowly)
        with streamio.watch(loader, quiet=True) as meter:
            for _ in range(2):
                for _ in loader:
                    pass
        verdict = meter.verdict
        assert verdict is not None and (verdict.bound, verdict.stage) == ("data", "transform")
        assert verdict.figures.steps == 2 * SAMPLES // 4 - 1
        assert any("transform" in advice.change for advice in verdict.advice)

    def test_all_that_may_be_made_ahead_is_ready_in_time(self, make: Any) -> None:
        loader = make(loader={"prefetch_bytes": 1})
        for _ in range(2):  # what is left of the first is none of the second
            batches = iter(loader)
            next(batches)
            until(lambda: loader.stats().ready == loader.stats().ahead)

    def test_kept_batches_keep_their_values(self, make: Any) -> None:
        loader = make(shuffle=False, loader={"prefetch_bytes": 1})
        batches = list(loader)
        batches += list(loader)
        numbers = list(range(SAMPLES)) * 2
        assert torch.cat([b["x"][:, 1] for b in batches]).tolist() == numbers
        assert torch.cat([b["cls"] for b in batches]).tolist() == numbers

    def test_two_loaders_may_be_nested_over_one_data_set(self, make: Any, path: str) -> None:
        dataset = ShardDataset(path, 40)
        outer, inner = make(dataset), make(dataset)
        for batch in outer:
            assert keys(inner) == KEYS
            assert len(batch["__key__"]) == 40

    def test_copies_are_loaders_of_their_own(self, make: Any) -> None:
        loader = make(shuffle=False)
        batches = iter(loader)
        got = [next(batches)]
        for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
            assert other.worker_pids() == []
            other.set_epoch(0)
            assert keys(other) == KEYS
            other.close()
        assert keys([*got, *batches]) == KEYS

    def test_a_closed_loader_has_nothing_and_starts_anew(self, make: Any) -> None:
        before = pipes(), len(workers_left())
        for _ in range(2):
            loader = make(shuffle=False)
            assert keys(loader) == KEYS
            batches = iter(loader)
            next(batches)
            loader.close()
            with pytest.raises(UsageError, match="the StreamLoader was closed"):
                next(batches)
            assert keys(loader) == KEYS
            del batches
            loader.close()
            assert not [t for t in threading.enumerate() if t.name.startswith("streamio")]
        gc.collect()
        assert pipes() <= before[0] + 3 and len(workers_left()) <= before[1]

    def test_a_dropped_loader_ends_its_workers(self, path: str) -> None:
        before = {c.pid for c in workers_left()}
        loader = StreamLoader(ShardDataset(path, 4), **self.options)
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        del loader, batches
        assert {c.pid for c in workers_left()} <= before

    def test_an_interpreter_that_ends_in_the_middle_of_an_epoch_is_quiet(self, path: str) -> None:
        done = self._script(
            path,
            """
            batches = iter(loader)
            for _ in range(7): next(batches)
            print("end")
            """,
        )
        out, err = done.communicate(timeout=25)
        assert (done.returncode, out, err) == (0, "end\n", "")

    def test_ctrl_c_in_the_loop_is_a_keyboard_interrupt_and_leaves_nobody(self, path: str) -> None:
        done = self._script(
            path,
            """
            import time
            try:
                while True:
                    for number, batch in enumerate(loader):
                        if number == 7:
                            print(*loader.worker_pids(), flush=True)
                        time.sleep(0.01)
            except KeyboardInterrupt:
                print("interrupted")
            """,
        )
        assert done.stdout is not None
        pids = [int(pid) for pid in done.stdout.readline().split()]
        os.killpg(done.pid, signal.SIGINT)  # as a terminal does it: to all
        out, err = done.communicate(timeout=25)
        assert done.returncode == 0 and out.endswith("interrupted\n") and err == ""
        assert not any(map(psutil.pid_exists, pids))

    def _script(self, path: str, body: str, transform: str = "") -> warm.Process:
        """transform: source of a function of this name."""
        lines = textwrap.indent(textwrap.dedent(body), "    ")
        dataset = f"ShardDataset({path!r}, 4{', transform=transform' if transform else ''})"
        code = (
            f"from streamio import ShardDataset, StreamLoader\n{textwrap.dedent(transform)}\n"
            f"if __name__ == '__main__':\n    loader = StreamLoader({dataset}, **{self.options!r})\n{lines}"
        )
        file = Path(path).parent / f"script-{type(self).__name__}-{abs(hash(body))}.py"
        file.write_text(code)
        return warm.start([file])


SLOWLY = 0.002


def slowly(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(SLOWLY)
    return sample


class ProcessSuite(TransportSuite):
    """What worker processes promise beyond."""

    def test_workers_live_on_from_epoch_to_epoch(self, make: Any) -> None:
        loader = make()
        list(loader)
        pids = loader.worker_pids()
        for _ in loader:
            break
        list(loader)
        assert loader.worker_pids() == pids and len(pids) == loader.num_workers
        assert os.getpid() not in pids

    def test_a_killed_worker_is_an_error_with_its_batch_whoever_is_waited_for(self, make: Any) -> None:
        loader = make(shuffle=False, transform=slow_from_20, loader={"prefetch_bytes": 1})
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        victim = loader.worker_pids()[1]
        threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()
        begin = time.monotonic()
        with pytest.raises(WorkerDied, match=rf"{victim} was killed by signal 9 \(SIGKILL\) at batch \d+ of"):
            list(batches)
        assert time.monotonic() - begin < 3
        assert loader.worker_pids() == []

    def test_a_stopped_worker_is_a_timeout(self, make: Any) -> None:
        loader = make(loader={"timeout": 1, "prefetch_bytes": 1})
        batches = iter(loader)
        for _ in range(2):  # both workers have started
            next(batches)
        os.kill(loader.worker_pids()[0], signal.SIGSTOP)
        with pytest.raises(WorkerTimeout, match="within 1 seconds"):
            list(batches)
        assert loader.worker_pids() == []
        assert sorted(keys(loader)) == KEYS

    def test_closing_does_not_wait_for_a_stopped_worker(self, make: Any) -> None:
        loader = make()
        next(iter(loader))
        pids = loader.worker_pids()
        os.kill(pids[0], signal.SIGSTOP)
        begin = time.monotonic()
        loader.close()
        assert time.monotonic() - begin < 8
        assert not any(map(psutil.pid_exists, pids))

    def test_workers_end_with_a_killed_parent(self, path: str) -> None:
        done = self._script(
            path,
            """
            import time
            batches = iter(loader)
            next(batches), next(batches)
            print(*loader.worker_pids(), flush=True)
            time.sleep(60)
            """,
        )
        assert done.stdout is not None
        pids = [int(pid) for pid in done.stdout.readline().split()]
        done.kill()
        done.communicate()
        assert pids
        until(lambda: not any(map(_lives, pids)), 5)

    def test_workers_whose_transform_never_returns_end_with_a_killed_parent(self, path: str) -> None:
        done = self._script(
            path,
            "list(loader)",
            transform="""
            import os, time
            def transform(sample):
                os.write(1, b"%d\\n" % os.getpid())  # one piece, whoever writes beside it
                time.sleep(3600)
            """,
        )
        assert done.stdout is not None
        pids: set[int] = set()
        while len(pids) < self.options["num_workers"]:
            pids.add(int(done.stdout.readline()))
        done.kill()
        try:
            until(lambda: not any(map(_lives, pids)))
        finally:
            for pid in filter(_lives, pids):
                os.kill(pid, signal.SIGKILL)
        done.communicate()

    def test_a_forked_child_has_workers_of_its_own_and_takes_none_of_ours(self, make: Any) -> None:
        loader = make(shuffle=False)
        batches = iter(loader)
        got = [next(batches)]
        pids = loader.worker_pids()
        child = os.fork()
        if not child:
            fine = False
            try:
                try:
                    next(batches)
                except UsageError as error:
                    fine = "began in another process" in str(error)
                loader.set_epoch(0)
                fine = fine and keys(loader) == KEYS and not set(loader.worker_pids()) & set(pids)
                loader.close()
            finally:
                os._exit(0 if fine else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert keys([*got, *batches]) == KEYS
        assert loader.worker_pids() == pids

    def test_the_kernel_has_no_names_of_ours(self, make: Any) -> None:
        before = set(os.listdir("/dev/shm"))
        list(make())
        assert not [name for name in set(os.listdir("/dev/shm")) - before if "streamio" in name]


def slow_from_20(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["cls"]) >= 20:
        time.sleep(2)
    return sample


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
