"""The `streamio` command: its commands put together, and every way it can end as an exit code and one line."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from streamio.cli.console import tell
from streamio.errors import StreamioError, UsageError
from streamio.version import __version__

# Typer brings a click of its own, or (before 0.26) uses the installed one; either way these are its bases.
_ParserError: Any = typer.BadParameter.__base__
_ClickError: Any = _ParserError.__base__

COMMANDS = ("pack", "capture", "info", "verify", "index", "bench")
"""Each is the function of its name in the file of its name."""


def _app(arguments: Sequence[str]) -> typer.Typer:
    """All commands, or the called one alone: loading and describing the others takes longer than a small pack."""
    app = typer.Typer(
        name="streamio",
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Pack folders of small files into a few large shards, and stream them into PyTorch.",
    )
    app.callback()(_options)
    for name in arguments[:1] if arguments[0] in COMMANDS else COMMANDS:
        app.command()(getattr(import_module(f"streamio.cli.{name}"), name))
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"streamio {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", metavar="", envvar="STREAMIO_DEBUG", help="Show Python's traceback when something fails."
        ),
    ] = False,
) -> None: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (default: that of this process) and give its exit code. Never raises Exception."""
    # None where the caller closed them. Opened first, so that no shard gets the descriptor that others print to.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a test's stand-in has not
            stream.reconfigure(errors="backslashreplace")
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    context = None
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            root = get_command(_app(arguments))
            with root.make_context("streamio", arguments) as context:
                root.invoke(context)
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, typer.Exit) and _debug(context):
                traceback.print_exception(error)
            return _end(error, f"streamio {context.invoked_subcommand}" if context is not None else "streamio")
    return 0


def _end(error: BaseException, name: str) -> int:
    """The exit code for what ended a command, after its one line on stderr."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        tell(f"{name}: interrupted", "yellow")
        return 130
    if isinstance(error, _ClickError):
        context = getattr(error, "ctx", None)
        path = name if context is None else context.command_path
        found = error.format_message()
        tell(f"{path}: {found}{'' if found.endswith(('.', '?')) else '.'} See '{path} --help'", "red")
        return 2
    if isinstance(error, UsageError):
        tell(f"{name}: {error}", "red")
        return 2
    if isinstance(error, StreamioError):
        first, *more = str(error).split("\n")  # one line for each of many files
        tell(f"{name}: {first}", "red")
        for line in more:
            tell(line)
        return 1
    if isinstance(error, BrokenPipeError):
        # Who read our output has gone; without this Python complains once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, OSError):
        tell(f"{name}: {error}", "red")
        return 1
    if not isinstance(error, Exception):
        raise error
    tell(
        f"{name}: {type(error).__name__}: {error}. This is a fault in streamio; please report it with what "
        f"'STREAMIO_DEBUG=1 {name} …' prints",
        "red",
    )
    return 1


def _debug(context: Any) -> bool:
    return bool(context.params.get("debug")) if context is not None else bool(os.environ.get("STREAMIO_DEBUG"))


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    tell(f"warning: {message}", "yellow")
