"""A missing `if __name__ == "__main__":`, found before any process starts.

Under spawn and forkserver a worker imports the main script. Where that starts workers again as it is imported, each
worker would start workers.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import sys
from functools import cache
from types import FrameType
from typing import Any

from streamio.errors import UsageError

EXIT_CODE = 79
"""Of a worker that came to start workers while it imported the main script."""

_GUARDS = {"__name__", "current_process"}
"""Names by which a script asks whether it is the main process. `parent_process()` is None while it is imported."""


def no_guard(where: str = "") -> UsageError:
    """The error, for a place in a script, or for one that is not known."""
    return UsageError(
        f"{where}the script starts worker processes outside of 'if __name__ == \"__main__\":'. Under spawn and "
        "forkserver each worker imports the script, and would start workers itself",
        fix="Put what the script does into a function, say main(), and end it with\n\n"
        '    if __name__ == "__main__":\n        main()\n\nor use num_workers=0 or the start method fork\n',
    )


def check_main_guard() -> None:
    """To be called where a worker under spawn or forkserver is about to start.

    Raises UsageError, also for a script that workers cannot import.
    """
    main: Any = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is None or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):
        return  # nothing that a worker would import
    if file == "<stdin>":
        raise UsageError(
            "the script comes from standard input, and workers under spawn and forkserver import it from a file",
            fix="Save it as a file, or use num_workers=0 or the start method fork",
        )
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is vars(main):
            if frame.f_code.co_name == "<module>":
                break
            if _GUARDS & {*frame.f_code.co_names}:
                return  # a function of the script asks
        frame = frame.f_back
    if frame is None or os.path.abspath(frame.f_code.co_filename) != os.path.abspath(file):
        return
    if not _is_guarded(file, frame.f_lineno):
        raise no_guard(f"{file}, line {frame.f_lineno}: ")


def leave_import_of_main() -> None:
    """Where workers are about to be started: end this process if it is a worker that still imports the main script.

    Without a word: the main process hears of it by the exit code. Scripts get here that start their workers under
    a condition, which says nothing to `check_main_guard`.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(EXIT_CODE)


@cache
def _is_guarded(file: str, line: int) -> bool:
    """Whether this line of a script may run in the main process only. True where that cannot be told."""
    try:
        with open(file, "rb") as source:
            module = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return True
    return _asks(module) and _depends(module.body, line)


def _depends(statements: list[Any], line: int) -> bool:
    """Whether the line, within one of these statements, is reached under a condition only."""
    for statement in statements:
        if statement.lineno <= line <= (statement.end_lineno or line):
            if isinstance(statement, ast.If | ast.Match | ast.ExceptHandler):
                return True
            parts = ast.iter_child_nodes(statement)
            inner = [part for part in parts if isinstance(part, ast.stmt | ast.ExceptHandler)]
            return _depends(inner, line) if inner else _asks(statement)
        if isinstance(statement, ast.If) and _asks(statement.test):
            return True  # it may have left the script
    return False


def _asks(code: ast.AST) -> bool:
    """Whether it has one of the names by which a script asks."""
    names = (getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(code))
    return any(name in _GUARDS for name in names)
