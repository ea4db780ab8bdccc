"""The goals: a ratio or a figure each, computed from one session, beside what it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.speed.results import Results, Run, best, bytes_per_second

_RATES = "abcdef"
FFCV_TO_MEMMAP = {"d": 2.23 / 2.1, "e": 501 / 634, "f": 911 / 937}
"""FFCV's rate by that of slices of a memmap, as measured once where both ran: for machines without FFCV."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """value and target in `unit`; value None: nothing to compute it from. at_most: lower is better."""

    workload: str
    text: str
    value: float | None
    target: float
    unit: str = "x"
    at_most: bool = False
    note: str = ""

    @property
    def holds(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


class _Cells:
    """Look-ups in the cells of a session."""

    def __init__(self, results: Results) -> None:
        self._cells = [cell for cell in results.cells() if not cell.problem]

    def best(self, workload: str, keep: Callable[[Run], bool], figure: str = "rate") -> Run | None:
        return best(self._cells, lambda cell: cell.workload == workload and keep(cell), figure)

    def rate(self, workload: str, keep: Callable[[Run], bool]) -> float | None:
        found = self.best(workload, keep)
        return found.rate if found else None

    def lowest(self, workload: str, figure: str, keep: Callable[[Run], bool]) -> float | None:
        found = self.best(workload, keep, figure)
        return float(getattr(found, figure)) if found else None

    @property
    def workloads(self) -> list[str]:
        return sorted({cell.workload for cell in self._cells} & set(_RATES))


def _ours(cell: Run) -> bool:
    return cell.role == "ours" and not cell.torch


def _plain(cell: Run) -> bool:
    return cell.role == "ours" and cell.torch


def _peer(cell: Run) -> bool:
    return cell.role == "peer"


def _not_ffcv(cell: Run) -> bool:
    return cell.role == "peer" and cell.peer != "ffcv"


def _dataloader(cell: Run) -> bool:
    return cell.role == "peer" and cell.torch


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _least(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return min(known, default=None)


def goals(results: Results) -> list[Goal]:
    """All of them, by workload."""
    cells = _Cells(results)
    found = [
        *_pictures(cells, results.limits), *_raw(cells, results.limits), *_small(cells), *_packing(results),
        *_hand_over(cells), *_plain_loader(cells), *_auto(results), *_lowest(cells), *_start(results),
    ]  # fmt: skip
    return sorted(found, key=lambda goal: goal.workload)


def _pictures(cells: _Cells, limits: dict[str, float]) -> Iterator[Goal]:
    ours = cells.rate("a", _ours)
    decode = limits.get("decode a, all cores")
    yield Goal(workload="a", text="of the decode-only rate of all cores", value=_ratio(ours, decode), target=0.95)
    yield Goal(workload="a", text="the best peer", value=_ratio(ours, cells.rate("a", _peer)), target=1)
    yield Goal(workload="b", text="workload a", value=_ratio(cells.rate("b", _ours), ours), target=2)


def _raw(cells: _Cells, limits: dict[str, float]) -> Iterator[Goal]:
    inline = cells.best("c", lambda cell: _ours(cell) and cell.workers == 0)
    process = cells.best("c", lambda cell: _ours(cell) and cell.variant.endswith("/process"))
    peer = cells.rate("c", lambda cell: _dataloader(cell) and cell.workers > 0)
    copied = _ratio(bytes_per_second(inline) if inline else None, limits.get("memcpy, 256 MB"))
    yield Goal(workload="c", text="of a warm memcpy, in one process", value=copied, target=0.7)
    speed = bytes_per_second(process) / 1e9 if process else None
    yield Goal(workload="c", text="from worker processes", value=speed, target=5, unit="GB/s")
    over = _ratio(process.rate if process else None, peer)
    yield Goal(workload="c", text="the best DataLoader peer, from worker processes", value=over, target=5)


def _small(cells: _Cells) -> Iterator[Goal]:
    for workload, over_peer in (("d", 15), ("e", 5), ("f", 5)):
        ours = cells.rate(workload, _ours)
        ffcv, note = _ffcv(cells, workload)
        yield Goal(workload=workload, text="FFCV", value=_ratio(ours, ffcv), target=1.5, note=note)
        peer = cells.rate(workload, _not_ffcv)
        yield Goal(workload=workload, text="the best other peer", value=_ratio(ours, peer), target=over_peer)
    same_tar = cells.rate("d", lambda cell: cell.peer == "webdataset" and cell.variant == "plain")
    tar = cells.rate("d", lambda cell: _ours(cell) and cell.variant.startswith("tar"))
    yield Goal(workload="d", text="WebDataset on the same tar", value=_ratio(tar, same_tar), target=250)
    slices = cells.rate("f", lambda cell: cell.peer == "slices")
    yield Goal(
        workload="f", text="hand-written sequential slices", value=_ratio(cells.rate("f", _ours), slices), target=1
    )


def _ffcv(cells: _Cells, workload: str) -> tuple[float | None, str]:
    """Its rate; where it did not run, what slices of a memmap give, times what it was to those elsewhere."""
    ffcv = cells.rate(workload, lambda cell: cell.peer == "ffcv")
    if ffcv is not None:
        return ffcv, ""
    slices = cells.rate(workload, lambda cell: cell.peer == "slices" and cell.variant == "memmap")
    if slices is None:
        return None, ""
    return slices * FFCV_TO_MEMMAP[workload], "FFCV did not run: scaled from memmap slices"


def _packing(results: Results) -> Iterator[Goal]:
    for folder, name in (("pictures", "pictures"), ("tiny", "tiny files")):
        tar = results.packed(folder, "tar cf")
        for workers, target in ((1, 1), (2, 1.6)):
            ours = results.packed(folder, f"streamio pack, {workers} worker{'s' if workers > 1 else ''}")
            text = f"`tar cf`, {name}, {workers} worker{'s' if workers > 1 else ''}"
            yield Goal(workload="g", text=text, value=_ratio(tar, ours), target=target)
        writers = [how for how in results.packing.get(folder, {}) if how.endswith("writer")]
        peer = _least([results.packed(folder, how) for how in writers])
        ours = _least([results.packed(folder, f"streamio pack, {one}") for one in ("1 worker", "2 workers")])
        yield Goal(workload="g", text=f"the best peer's writer, {name}", value=_ratio(peer, ours), target=2)


def _hand_over(cells: _Cells) -> Iterator[Goal]:
    ratio = _ratio(cells.rate("h", _ours), cells.rate("h", lambda cell: cell.role == "hand"))
    yield Goal(workload="h", text="DataLoader's hand-over", value=ratio, target=5)


def _plain_loader(cells: _Cells) -> Iterator[Goal]:
    for workload in cells.workloads:
        ratio = _ratio(cells.rate(workload, _plain), cells.rate(workload, _dataloader))
        if ratio is not None:
            text = "the best peer in a DataLoader, by the plain DataLoader"
            yield Goal(workload=workload, text=text, value=ratio, target=2 if workload in "cde" else 1)


def _auto(results: Results) -> Iterator[Goal]:
    """auto beside the best fixed choice in the same format."""
    rates = {cell.cell: cell.rate for cell in results.cells() if not cell.problem and _ours(cell)}
    for workload, _, variant, _ in [cell for cell in rates if cell[2].endswith("/auto")]:
        kind = variant.split("/")[0]
        fixed = [rate for cell, rate in rates.items() if cell[0] == workload and cell[2].startswith(kind)]
        best_fixed = max(fixed)
        yield Goal(
            workload=workload, text=f"of the best fixed choice, by auto ({kind})",
            value=rates[workload, "streamio", variant, 2] / best_fixed, target=0.9,
        )  # fmt: skip


def _lowest(cells: _Cells) -> Iterator[Goal]:
    """At both numbers of workers, the lowest of ours beside the lowest of the peers."""
    for figure, name in (("cpu", "CPU seconds"), ("memory", "memory")):
        for workload in cells.workloads:
            ratios = [_lowest_ratio(cells, workload, figure, workers) for workers in (0, 2)]
            ratio = _least(ratios)
            if ratio is not None:
                yield Goal(workload=workload, text=f"{name}: the lowest peer's, by ours", value=ratio, target=1)


def _lowest_ratio(cells: _Cells, workload: str, figure: str, workers: int) -> float | None:
    ours = cells.lowest(workload, figure, lambda cell: _ours(cell) and cell.workers == workers)
    peer = cells.lowest(workload, figure, lambda cell: _peer(cell) and cell.workers == workers)
    return _ratio(peer, ours)


def _start(results: Results) -> Iterator[Goal]:
    """The slowest start of ours, above the bare cost with as many workers."""
    cells = [cell for cell in results.cells() if not cell.problem]
    for workload in _RATES:
        later = [
            cell.first_batch - bare
            for cell in cells
            if _ours(cell) and cell.workload == workload
            and (bare := results.bare_start(workload, cell.workers)) is not None
        ]  # fmt: skip
        if later:
            yield Goal(
                workload=workload, text="first batch after the bare cost", value=max(later), target=0.3, unit="s",
                at_most=True,
            )  # fmt: skip
