"""How commands print: results to stdout, all else to stderr, and nothing that a terminal could misread."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from streamio.packing.report import shown


def result(text: str = "") -> None:
    """A line of the result, on stdout."""
    print(text)


def result_json(facts: Any) -> None:
    """The one object of `--json`: ASCII, so that names of any encoding pass through any pipe."""
    print(json.dumps(facts, ensure_ascii=True))


def tell(text: str, style: str = "") -> None:
    """A line for the user on stderr; line breaks and control characters in it are escaped."""
    line = Text(shown(text))
    head, colon, _ = line.plain.partition(": ")
    if style and colon:
        line.stylize(style, 0, len(head) + 1)
    stderr().print(line, soft_wrap=True)


def table(rows: Iterable[Sequence[str]], numbers: bool = False) -> None:
    """Rows of cells on stdout: a name, then values (`numbers`: to the right), aligned in columns."""
    cells = [list(map(shown, row)) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip_longest(*cells, fillvalue="")]
    for row in cells:
        line = Text()
        for at, (cell, width) in enumerate(zip(row, widths, strict=False)):
            space = " " * (width - cell_len(cell))
            line.append(f"{space}{cell}" if numbers and at else f"{cell}{space}", "" if at else "bold")
            line.append("   ")
        line.rstrip()
        _print_hanging(line, cell_len(line.plain) - cell_len(row[-1]))


def _print_hanging(line: Text, indent: int) -> None:
    """On a terminal too narrow for a line its rest begins below its last cell; elsewhere lines stay whole."""
    console = stdout()
    if not console.is_terminal or cell_len(line.plain) <= console.width or console.width < indent + 20:
        console.print(line, soft_wrap=True)
        return
    first, *rest = line[indent:].wrap(console, console.width - indent)
    console.print(line[:indent] + first, soft_wrap=True)
    for more in rest:
        console.print(Text(" " * indent) + more, soft_wrap=True)


def stdout() -> Console:
    return _console(sys.stdout)


def stderr() -> Console:
    return _console(sys.stderr)


def _console(file: Any) -> Console:
    # FORCE_COLOR would have rich write escape codes and live bars into pipes and log files.
    return Console(file=file, force_terminal=file.isatty(), highlight=False, markup=False, emoji=False)
