"""The house stands on rungs: files import from lower rungs or their own folder, in no circle, and at the top."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "streamio"

RUNGS = (
    {"version", "errors", "memory"},
    {"types", "sizes", "cpus", "extras"},
    {"rng", "seeding", "image", "world", "callers", "mainguard", "pickling"},
    {"order", "storage", "codecs", "handover", "caching", "tally", "growth"},
    {"shards"},
    {"packing", "batching", "device"},
    {"stream"},
    {"dataset", "sequential", "adapters"},
    {"sources"},
    {"mixture", "tokens", "loading"},
    {"diagnostics", "viewer", "making", "interop"},
    {"__init__"},
    {"cli"},
    {"__main__"},
)
"""Files and folders of the package, from the ground up. `__init__` is `import streamio`: all public names."""

TORCH = {
    "seeding.py",
    "world.py",
    "tally.py",
    "pickling.py",
    "batching/checks.py",
    "handover/structure.py",
    "adapters.py",
    "batching/mixup.py",
    "batching/tensors.py",
    "batching/resizing.py",
    "sequential.py",
    "stream.py",
    "device.py",
    "loading/device.py",
    "loading/nested.py",
    "loading/pinning.py",
}
"""The only files that may import torch."""


@dataclass(frozen=True)
class Import:
    """`file` (relative to the package) imports `name` on `line`; `late`: inside a function."""

    file: str
    line: int
    name: str
    late: bool

    def __str__(self) -> str:
        return f"streamio/{self.file}:{self.line} imports {self.name}"


def _imports(file: Path, package: Path) -> Iterator[Import]:
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    late = {id(inner) for function in functions for inner in ast.walk(function)}
    for node in ast.walk(tree):
        for name in _imported(node, package):
            yield Import(file.relative_to(package).as_posix(), node.lineno, name, id(node) in late)


def _imported(node: ast.AST, package: Path) -> list[str]:
    """Full module names, `streamio.shards.tar` for `from streamio.shards import tar`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        inside = [f"{node.module}.{alias.name}" for alias in node.names]
        modules = [name for name in inside if _file_of(name, package)]
        return modules if len(modules) == len(inside) else [str(node.module), *modules]
    is_call = isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "import_module")
    if is_call and node.args and isinstance(node.args[0], ast.Constant):
        return [str(node.args[0].value)]
    return []


def _file_of(module: str, package: Path) -> str | None:
    """`shards/tar.py` for a module of ours, None for any other."""
    top, *parts = module.split(".")
    if top != package.name:
        return None
    for file in (package.joinpath(*parts, "__init__.py"), package.joinpath(*parts).with_suffix(".py")):
        if file.is_file():
            return file.relative_to(package).as_posix()
    return None


def _rung(file: str) -> int:
    top = file.split("/")[0].removesuffix(".py")
    for number, names in enumerate(RUNGS):
        if top in names:
            return number
    raise AssertionError(f"streamio/{file} stands on no rung: give it one in RUNGS, and in docs/design.md")


@cache
def _all_imports(package: Path) -> list[Import]:
    return [found for file in sorted(package.rglob("*.py")) for found in _imports(file, package)]


def _own(package: Path) -> list[tuple[Import, str]]:
    """Imports of our own modules and the file that each one names, without the lazy ones of `__init__`."""
    found = [(i, _file_of(i.name, package)) for i in _all_imports(package) if i.file != "__init__.py"]
    return [(i, target) for i, target in found if target is not None]


def wrong_rungs(package: Path) -> list[str]:
    """Imports that go up, or sideways into another folder."""

    def folder(file: str) -> str:
        return file.split("/")[0]

    return [
        str(found)
        for found, target in _own(package)
        if _rung(target) >= _rung(found.file) and folder(target) != folder(found.file)
    ]


def circle(package: Path) -> list[str]:
    graph: dict[str, set[str]] = {}
    for found, target in _own(package):
        graph.setdefault(found.file, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def late_imports(package: Path) -> list[str]:
    return [str(found) for found, _ in _own(package) if found.late]


def torch_imports(package: Path) -> list[str]:
    return [str(i) for i in _all_imports(package) if i.name.split(".")[0] == "torch" and i.file not in TORCH]


def test_files_import_from_lower_rungs_only() -> None:
    assert wrong_rungs(PACKAGE) == []


def test_no_two_files_import_each_other_in_a_circle() -> None:
    assert circle(PACKAGE) == []


def test_own_modules_are_imported_at_the_top_of_a_file() -> None:
    assert late_imports(PACKAGE) == []


def test_torch_is_imported_where_the_design_marks_it() -> None:
    assert torch_imports(PACKAGE) == []
    stale = {name for name in TORCH if not any(i.file == name and "torch" in i.name for i in _all_imports(PACKAGE))}
    assert stale == set(), "these need torch no longer"


@pytest.mark.parametrize(
    ("check", "file", "code"),
    [
        (wrong_rungs, "order/a.py", "from streamio.shards import b\n"),
        (wrong_rungs, "order/a.py", "import streamio\n"),
        (wrong_rungs, "storage/a.py", "import streamio.order.c\n"),  # sideways
        (circle, "order/a.py", "from streamio.order import c\n"),
        (late_imports, "shards/a.py", "def f():\n    from streamio.order import c\n"),
        (
            late_imports,
            "shards/a.py",
            "f = lambda: import_module('streamio.order.c')\n",
        ),
        (torch_imports, "order/a.py", "def f():\n    import torch.nn\n"),
    ],
)
def test_a_breach_is_found(tmp_path: Path, check: object, file: str, code: str) -> None:
    package = tmp_path / "streamio"
    for name, text in {
        "__init__.py": "", "order/__init__.py": "", "storage/__init__.py": "", "shards/__init__.py": "",
        "order/c.py": "import streamio.order.a\n", "shards/b.py": "", "order/a.py": "", file: code,
    }.items():  # fmt: skip
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    assert callable(check)
    assert check(package) != []
