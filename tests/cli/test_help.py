"""What a newcomer sees first."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

import streamio
from tests.cli.conftest import Run, spawn

COMMANDS = ("pack", "info", "verify", "index", "bench")


def test_version_is_printed(run: Run) -> None:
    assert run("--version") == (0, f"streamio {streamio.__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert ran.code == 0
    assert not ran.err
    assert all(re.search(rf"\b{command}\b", ran.out) for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.code == 0
    assert f"streamio {command}" in ran.out


def test_help_of_pack_names_every_option(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    text = run("pack", "--help").out
    options = (
        "--format --layout --shard-size --shard-samples --shuffle --no-shuffle --seed --workers --val --include "
        "--exclude --labels --classes-from --overwrite --dry-run --resize-short --max-side --quality --store "
        "--check --on-error --quiet --json"
    )
    assert [option for option in options.split() if option not in text] == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["pack", "--help"], ["pack", "nowhere", "out"]])
def test_the_command_line_starts_without_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from streamio.cli import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules and 'webdataset' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == (2 if "nowhere" in arguments else 0), done.stderr


def test_help_loads_nothing_that_takes_long() -> None:
    code = "import atexit, sys; from streamio.cli import main; sys.argv[1:] = ['pack', '--help']\n"
    code += "atexit.register(lambda: print(sorted({name.split('.')[0] for name in sys.modules})))\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout.splitlines()[-1]))
    assert "typer" in loaded
    assert not loaded & {"torch", "webdataset", "fsspec", "aiohttp", "s3fs", "botocore", "pandas", "cv2", "asyncio"}


def test_a_command_loads_no_other_one_and_packing_no_way_to_read() -> None:
    code = "import sys; from streamio.cli import main; main(['pack', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "streamio.cli.pack" in loaded
    assert not loaded & {"streamio.cli.bench", "streamio.cli.info", "streamio.shards.shardset", "streamio.batching"}


def test_python_m_streamio_is_the_command() -> None:
    assert spawn("--version").out == f"streamio {streamio.__version__}\n"
