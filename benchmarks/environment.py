"""Virtual environments for the peers, one each: streamio's own needs none of them, and they do not agree with one
another either (MosaicML Streaming and HF datasets ask for different versions of huggingface_hub).

tools/constraints.txt pins torch to a CPU build, and what needs torch then takes that one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "tools" / "constraints.txt"
DEFAULT_FOLDER = ROOT / ".venv-benchmarks"

_QUIET = {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}


class UnavailableError(Exception):
    """A peer that does not install or run here; the reason in one line."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One virtual environment, by its interpreter."""

    python: Path

    @property
    def packages(self) -> Path:
        """Its folder site-packages."""
        return next((self.python.parent.parent / "lib").glob("python*")) / "site-packages"

    def run(self, module: str, *args: str) -> str:
        """Run a module of the checkout in it, and give what it printed. Raises UnavailableError if it fails."""
        command = [str(self.python), "-m", module, *args]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | _QUIET, capture_output=True, text=True)
        if done.returncode:
            raise UnavailableError(last_line(done.stderr) or f"{module} ended with {done.returncode}")
        return done.stdout


def ensure(folder: Path, name: str, packages: Sequence[str], base: Environment | None = None) -> Environment:
    """The environment `folder/name` with these packages: made now, or as an earlier run left it, and added to.

    base: another one, whose packages this one sees behind its own; so torch is there once, and not for each peer.

    Raises UnavailableError where that cannot be.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="ascii")
    environment = Environment(folder / name / "bin" / "python")
    pins = CONSTRAINTS.read_text(encoding="utf-8")
    stamp = folder / name / "installed"
    there = _installed(stamp, pins)
    if there is None:
        _command([sys.executable, "-m", "venv", "--clear", str(folder / name)])
    if base is not None:
        _see(environment, base)
    missing = [package for package in packages if package not in (there or ())]
    if missing or there is None:
        _install(environment, folder / name, missing)
        stamp.write_text("\n".join([*(there or ()), *missing, pins]), encoding="utf-8")
    return environment


def _installed(stamp: Path, pins: str) -> list[str] | None:
    """What an earlier run installed with the same pins; None: nothing that could be added to."""
    if not stamp.exists():
        return None
    text = stamp.read_text(encoding="utf-8")
    return text.removesuffix(pins).split() if text.endswith(pins) else None


def _see(environment: Environment, base: Environment) -> None:
    (environment.packages / "base.pth").write_text(f"{base.packages}\n", encoding="utf-8")


def _install(environment: Environment, folder: Path, packages: Sequence[str]) -> None:
    print(f"Installing {', '.join(packages)} in {folder}", file=sys.stderr, flush=True)
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(CONSTRAINTS)]
    _command([str(environment.python), *pip, *packages])


def _command(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"does not install: {last_line(done.stderr or done.stdout)}")


def last_line(text: str) -> str:
    """The last line with something on it: what a traceback or pip comes down to."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
