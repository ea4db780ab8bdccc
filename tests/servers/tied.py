"""Run a command that is killed with its parent: `python tied.py PARENT SIGNAL UID:GID command...`.

A server of a test must not outlive pytest, however that ends. The kernel sends SIGNAL when the thread that started
this process is gone. A change of the user clears that wish, so the user comes first; "-" leaves the user as it is.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(parent: str, signal: str, user: str, *command: str) -> None:
    if user != "-":
        uid, gid = map(int, user.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != int(parent):  # it went before the wish was known
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
