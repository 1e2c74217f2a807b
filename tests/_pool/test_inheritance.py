"""A worker is like the main thread, whichever thread happens to start it."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Gate

from ebbpool import AdaptiveExecutor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads inherit no such thing there")


def state() -> tuple[set[int], int, set[Any]]:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    return os.sched_getaffinity(0), nice, set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def test_what_the_starter_has_set_for_itself_is_not_inherited() -> None:
    main = state()

    def start() -> list[Any]:
        os.sched_setaffinity(0, {min(main[0])})
        os.setpriority(os.PRIO_PROCESS, 0, main[1] + 1)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
        assert state() == ({min(main[0])}, main[1] + 1, main[2] | {signal.SIGUSR1, signal.SIGUSR2})
        found = []

        def look(gate: Gate) -> None:
            found.append(state())
            gate()

        with AdaptiveExecutor(2) as pool, Gate() as gate:
            # The first is started here, the second by the timekeeper, which may be started here, too.
            for _ in range(2):
                pool.submit(look, gate)
            gate.await_begun(2)
        try:
            os.setpriority(os.PRIO_PROCESS, 0, main[1])
        except PermissionError:
            # So a worker cannot do it, either.
            found = [(processors, main[1], mask) for processors, _, mask in found]
        return found

    assert Background(start).join() == [main, main]


def test_a_signal_that_the_main_thread_blocks_stays_blocked() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with AdaptiveExecutor(1) as pool:
            ours = Background(lambda: pool.submit(state).result(TIMEOUT)).join()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert ours[2] == set(before) | {signal.SIGUSR1}
