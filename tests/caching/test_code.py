"""The key of a function changes when what the function does changes, and only then."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamio.caching.code import code_key
from streamio.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]

Load = Callable[..., Any]

PLAIN = "def f(data):\n    return len(data) + 1\n"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports these modules anew, and gives `f` of the first one."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names: set[str] = set()

    def load_modules(code: str, **others: str) -> Any:
        for name, text in {**others, "mine": code}.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
            names.add(name)
        for name in names:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode = True
        return importlib.import_module("mine").f

    before = sys.dont_write_bytecode
    yield load_modules
    sys.dont_write_bytecode = before
    for name in names:
        sys.modules.pop(name, None)


def key(function: Any) -> str:
    return code_key("decode['x']", function)


def test_the_same_code_has_the_same_key_whatever_is_written_around_it(load: Load) -> None:
    plain = key(load(PLAIN))
    assert key(load(PLAIN)) == plain
    assert key(load("# a comment\n\n\n" + PLAIN)) == plain
    assert key(load("unused = 3\n" + PLAIN)) == plain


# ruff: noqa: E501 - the table is read by column
CHANGES = [
    # what                     before                                              after
    ("a constant",             PLAIN,                                              PLAIN.replace("1", "2")),
    ("an operator",            PLAIN,                                              PLAIN.replace("+", "-")),
    ("a builtin",              PLAIN,                                              PLAIN.replace("len", "max")),
    ("a default",              "def f(data, n=1): return n",                       "def f(data, n=2): return n"),
    ("a keyword default",      "def f(data, *, n=1): return n",                    "def f(data, *, n=2): return n"),
    ("a global",               "n = 1\ndef f(data): return n",                     "n = 2\ndef f(data): return n"),
    ("a global table",         "n = {'a': [1]}\ndef f(data): return n",            "n = {'a': [2]}\ndef f(data): return n"),
    ("a global array",         "import numpy as np\nn = np.arange(3)\ndef f(data): return n",
                               "import numpy as np\nn = np.arange(4)\ndef f(data): return n"),
    ("a function it calls",    "def g(): return 1\ndef f(data): return g()",       "def g(): return 2\ndef f(data): return g()"),
    ("a function inside",      "def f(data):\n def g(): return 1\n return g()",    "def f(data):\n def g(): return 2\n return g()"),
    ("what is closed over",    "def m(n):\n def g(data): return n\n return g\nf = m(1)",
                               "def m(n):\n def g(data): return n\n return g\nf = m(2)"),
    ("arguments of a partial", "from functools import partial\ndef g(n, data): return n\nf = partial(g, 1)",
                               "from functools import partial\ndef g(n, data): return n\nf = partial(g, 2)"),
    ("a method's code",        "class C:\n def __call__(self, data): return 1\nf = C()",
                               "class C:\n def __call__(self, data): return 2\nf = C()"),
    ("a base's code",          "class B:\n def g(self): return 1\nclass C(B):\n def __call__(self, data): return self.g()\nf = C()",
                               "class B:\n def g(self): return 2\nclass C(B):\n def __call__(self, data): return self.g()\nf = C()"),
    ("an attribute",           "class C:\n def __init__(self): self.n = 1\n def __call__(self, data): return self.n\nf = C()",
                               "class C:\n def __init__(self): self.n = 2\n def __call__(self, data): return self.n\nf = C()"),
    ("a bound method's self",  "class C:\n n = 1\n def g(self, data): return self.n\nf = C().g",
                               "class C:\n n = 2\n def g(self, data): return self.n\nf = C().g"),
    ("the attribute it takes", "import math\ndef f(data): return math.sin(1)",     "import math\ndef f(data): return math.cos(1)"),
    ("order of arguments",     "def f(a, b=0): return a - b",                      "def f(b, a=0): return a - b"),
    ("a slice",                "def f(data): return data[1:]",                     "def f(data): return data[2:]"),
    ("a comparison",           "def f(data): return data < 3",                     "def f(data): return data > 3"),
    ("a set",                  "def f(data): return data in {'a', 'b'}",           "def f(data): return data in {'a', 'c'}"),
    ("a recursion's constant", "def f(data): return f(data) if data else 1",       "def f(data): return f(data) if data else 2"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), [pytest.param(*case, id=name) for name, *case in CHANGES])
def test_a_change_of_what_it_does_changes_the_key(load: Load, before: str, after: str) -> None:
    first = key(load(before))
    assert key(load(before)) == first
    assert key(load(after)) != first


@pytest.mark.parametrize("use", ["import helper\ndef f(data): return helper.g()",
                                 "from helper import g\ndef f(data): return g()"])  # fmt: skip
def test_a_change_in_another_module_of_the_users_changes_the_key(load: Load, use: str) -> None:
    first = key(load(use, helper="def g(): return 1"))
    assert key(load(use, helper="def g(): return 1")) == first
    assert key(load(use, helper="def g(): return 2")) != first


def test_functions_of_installed_packages_have_keys() -> None:
    known = {
        key(f) for f in (len, np.frombuffer, np.load, np.sin, functools.partial(np.asarray, dtype="f4"), bytes)
    }
    assert len(known) == 6


def test_what_cannot_be_seen_is_refused_with_the_way_out(load: Load) -> None:
    function = load("import threading\nlock = threading.Lock()\ndef f(data):\n    with lock: return 1")
    with pytest.raises(UsageError, match=r"decode\['x'\]=.* depends on an object of _thread.lock.*cache_key="):
        key(function)


def test_another_interpreter_finds_the_same_key(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import json, numpy as np\nnames = {'a', 'b', 'c', 'd'}\ntable = {'x': (1, {2, 3})}\n"
        "def g(data): return data in {'p', 'q', 'r'}\n"
        "def f(data): return g(json.loads(data)), names, table, np.sum(data)\n"
        "from streamio.caching.code import code_key\nprint(code_key('f', f))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = {
        subprocess.run(
            [sys.executable, "-c", "import mine"], cwd=tmp_path, check=True, capture_output=True, text=True,
            env={**environment, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (1, 2, 3)
    }  # fmt: skip
    assert len(found) == 1 and len(found.pop()) == 33
