"""Why a worker process ended, in words."""

from __future__ import annotations

import signal

_CAUSES: dict[int, str] = {
    signal.SIGKILL: "likely out of memory: look at 'dmesg', use fewer workers or smaller batches",
    signal.SIGBUS: "likely a shard was cut while it was read, or memory is full: look at 'df' and 'dmesg'",
    signal.SIGSEGV: "a fault in a library: run with num_workers=0 and 'python -X faulthandler'",
    signal.SIGTERM: "somebody ended it: a job scheduler, or the training script",
}


def how_it_ended(exitcode: int, doing: str = "") -> str:
    """To follow "worker process 123". doing: what it did then, to be put in between."""
    if exitcode == 0:
        return f"ended by itself{doing}: a transform called exit() or raised KeyboardInterrupt"
    if exitcode > 0:
        return (
            f"ended with exit code {exitcode}{doing}: look at what it printed. Under spawn and forkserver a script "
            "must start its training below 'if __name__ == \"__main__\":'; else run with num_workers=0"
        )
    number = -exitcode
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    cause = _CAUSES.get(number, "run with num_workers=0 to see what it was doing")
    return f"was killed by signal {number} ({name}){doing}; {cause}"
