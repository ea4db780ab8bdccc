"""The command line: one command for each question; without one, how fast all loaders are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks import caching, modes, order, profile, shuffle
from benchmarks.environment import DEFAULT_FOLDER, UnavailableError
from benchmarks.shuffle import PEERS
from benchmarks.sources import page as sources_page
from benchmarks.sources import session as sources
from benchmarks.sources.session import KINDS
from benchmarks.speed import page
from benchmarks.speed.peers import SCRIPTS
from benchmarks.speed.results import Results
from benchmarks.speed.rounds import Options, Session
from benchmarks.speed.workloads import WORKLOADS

DOCS = Path(__file__).resolve().parent.parent / "docs"

app = typer.Typer(add_completion=False, help="What streamio costs, and what it is worth.")

Env = Annotated[Path, typer.Option("--env", help="Where the peers' environment is, or is made.")]


Work = Annotated[
    Path | None, typer.Option(help="Where data and results are; by default in the environments' folder.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Less data, fewer loaders, one round: 4 to 5 minutes.")]
Page = Annotated[Path, typer.Option(help="The page; its picture lies beside it.")]


@app.callback(invoke_without_command=True)
def without_command(context: typer.Context, quick: Quick = False, env: Env = DEFAULT_FOLDER) -> None:
    """What streamio costs, and what it is worth. Without a command: `speed`."""
    if context.invoked_subcommand is None:
        speed_command(quick=quick, env=env)


@app.command("speed")
def speed_command(
    quick: Quick = False,
    env: Env = DEFAULT_FOLDER,
    work: Work = None,
    workload: Annotated[
        list[str] | None, typer.Option(help=f"Only these (repeat the option): {', '.join(WORKLOADS)}.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help=f"Only these (repeat the option): {', '.join(SCRIPTS)}.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Times that each cell runs; 3, or 1 if quick.")] = None,
    seconds: Annotated[float | None, typer.Option(help="That a cell is timed; 2, or 0.5 if quick.")] = None,
    out: Page = DOCS / "benchmarks.md",
) -> None:
    """How fast streamio and its peers feed a loop, beside the machine's limits and the goals.

    Prints tables; a full run of all also writes the page and its picture. Exit code 1 if one of streamio's own
    cells failed its check; goals are only told.
    """
    session = Session(
        Options(
            env=env, work=work or env / "work" / "speed", quick=quick, rounds=rounds or (1 if quick else 3),
            seconds=seconds or (0.5 if quick else 2.0), workloads="".join(workload or WORKLOADS),
            peers=tuple(peer or ()),
        )
    )  # fmt: skip
    results = session.run()
    print(page.show(results))
    if not (quick or workload or peer):
        _write_page(results, env, session.options.data, out)
    raise typer.Exit(1 if any(run.role == "ours" for run in results.problems) else 0)


@app.command("report")
def report_command(
    quick: Annotated[bool, typer.Option("--quick", help="Of the last quick run.")] = False,
    env: Env = DEFAULT_FOLDER,
    work: Work = None,
    out: Page = DOCS / "benchmarks.md",
) -> None:
    """Write the page and its picture again from the last run, without measuring."""
    data = (work or env / "work" / "speed") / ("quick" if quick else "full")
    results = Results.load(data / "results.json")
    print(page.show(results))
    _write_page(results, env, data, out)


def _write_page(results: Results, env: Path, data: Path, out: Path) -> None:
    page.write_page(results, out)
    try:
        page.draw(results, env, data, out.with_suffix(".png"))
    except UnavailableError as why:
        print(f"Not drawn: {why}")


@app.command("profile")
def profile_command(
    quick: Quick = False,
    env: Env = DEFAULT_FOLDER,
    work: Work = None,
    workload: Annotated[list[str] | None, typer.Option(help="Only these of a to f (repeat the option).")] = None,
    seconds: Annotated[float, typer.Option(help="That a workload is timed.")] = 2.0,
) -> None:
    """Where the time goes in each workload, in one process: by stage, and by function."""
    print(profile.report(work or env / "work" / "speed", "".join(workload or "abcdef"), seconds, quick))


@app.command("order")
def order_command(
    samples: Annotated[int, typer.Option(help="Samples of the set.")] = 10**9,
    shards: Annotated[int, typer.Option(help="Shards of the set, all of one size.")] = 100_000,
) -> None:
    """Time and memory of the order of a very large set, each against its goal. Exit code 1 if one is missed."""
    raise typer.Exit(0 if order.report(samples, shards) else 1)


@app.command("cache")
def cache_command(samples: Annotated[int, typer.Option(help="Pictures of the set.")] = 1000) -> None:
    """What a cache of decoded pictures saves, beside packing them smaller or decoded."""
    caching.report(samples)


@app.command("sources")
def sources_command(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows, one round; writes no page.")] = False,
    env: Env = DEFAULT_FOLDER,
    work: Work = None,
    rows: Annotated[int | None, typer.Option(min=1000, help="Of each kind; 500,000, or 50,000 if quick.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Times that each cell runs; 3, or 1 if quick.")] = None,
    seconds: Annotated[float, typer.Option(help="That a cell is timed, in whole epochs.")] = 2.0,
    kind: Annotated[
        list[str] | None, typer.Option(help=f"Only these (repeat the option): {', '.join(KINDS)}.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page that the tables go into.")] = DOCS / "sources.md",
) -> None:
    """How fast lines and rows of databases become batches: streamio, loops by hand, Hugging Face datasets.

    Prints tables; a full run of all kinds also puts them into the page. Exit code 1 if one of streamio's own cells
    failed its check; goals are only told.
    """
    options = sources.Options(
        env=env, work=work or env / "work" / "sources", rows=rows or (50_000 if quick else 500_000),
        rounds=rounds or (1 if quick else 3), seconds=seconds, kinds=tuple(kind or KINDS),
    )  # fmt: skip
    results = sources.Session(options).run()
    print(sources_page.show(results))
    if not (quick or kind):
        sources_page.write(results, out)
    raise typer.Exit(1 if any(run.role == "ours" for run in results.problems) else 0)


@app.command("shuffle")
def shuffle_command(
    env: Env = DEFAULT_FOLDER,
    out: Annotated[Path, typer.Option(help="The picture.")] = DOCS / "shuffle.png",
    peer: Annotated[
        list[str] | None, typer.Option(help=f"Only these (repeat the option): {', '.join(PEERS)}.")
    ] = None,
) -> None:
    """How well streamio and its peers shuffle the same set: two numbers and a panel each."""
    shuffle.report(env, out, tuple(peer) if peer else tuple(PEERS))


@app.command("modes")
def modes_command(
    env: Env = DEFAULT_FOLDER,
    out: Annotated[Path, typer.Option(help="The picture.")] = DOCS / "shuffle-modes.png",
) -> None:
    """Draw where the samples of an epoch and of one batch come from under each of streamio's shuffles."""
    modes.report(env, out)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
