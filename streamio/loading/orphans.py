"""No worker outlives the process that asked it for batches."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """Called in a worker: ends it within a second of its parent's death, whatever it does then.

    One that waits for commands sees its pipe close, but a user's function may never return. Under forkserver the
    parent is the server, which lives as long as the workers do; the sentinel is right but where siblings, forked
    later, hold it open: hence both.
    """
    parent, made_by = multiprocessing.parent_process(), os.getppid()
    assert parent is not None

    def watch() -> None:
        while not wait([parent.sentinel], timeout=1) and os.getppid() == made_by:
            pass
        os._exit(1)

    threading.Thread(target=watch, name="streamio-parent", daemon=True).start()
