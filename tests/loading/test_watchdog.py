"""The limit on waiting."""

from __future__ import annotations

import threading
import time

from streamio.loading.watchdog import Watchdog


def test_barks_once_when_a_wait_is_too_long() -> None:
    barks: list[float] = []
    with Watchdog(0.1, lambda: barks.append(time.monotonic())) as dog:
        dog.pat()
        start = time.monotonic()
        while not dog.barked and time.monotonic() - start < 5:
            time.sleep(0.01)
        time.sleep(0.15)
    assert len(barks) == 1 and barks[0] - start >= 0.1


def test_is_quiet_while_patted_at_rest_or_without_a_limit() -> None:
    before = threading.active_count()
    with Watchdog(0.2, lambda: None) as dog, Watchdog(0, lambda: None) as unlimited:
        unlimited.pat()
        assert threading.active_count() == before + 1
        for _ in range(4):
            dog.pat()
            time.sleep(0.06)
        dog.rest()
        time.sleep(0.3)
        assert not dog.barked and not unlimited.barked
    assert threading.active_count() == before
