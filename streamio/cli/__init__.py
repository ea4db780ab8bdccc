"""The command line. One file per command: parse, call, print.

Results go to stdout; progress, notes and errors to stderr. Exit codes: 0 done, 1 something is wrong with the
data or the machine, 2 a call that cannot work, 130 interrupted.
"""

from streamio.cli.app import main

__all__ = ["main"]
