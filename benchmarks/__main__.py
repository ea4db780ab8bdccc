"""The command line: one command for each question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks import modes, order, shuffle
from benchmarks.environment import DEFAULT_FOLDER
from benchmarks.shuffle import PEERS

DOCS = Path(__file__).resolve().parent.parent / "docs"

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What streamio costs, and what it is worth.")

Env = Annotated[Path, typer.Option("--env", help="Where the peers' environment is, or is made.")]


@app.command("order")
def order_command(
    samples: Annotated[int, typer.Option(help="Samples of the set.")] = 10**9,
    shards: Annotated[int, typer.Option(help="Shards of the set, all of one size.")] = 100_000,
) -> None:
    """Time and memory of the order of a very large set, each against its goal. Exit code 1 if one is missed."""
    raise typer.Exit(0 if order.report(samples, shards) else 1)


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
