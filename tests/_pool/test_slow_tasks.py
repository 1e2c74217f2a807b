"""Warnings about tasks that run, or wait, for longer than they should."""

from __future__ import annotations

import logging
import re

import pytest
from support.common import FORK, LONG, STACKS, TIMEOUT, Gate, eventually, needs_fork, output_of, wait_for_idle

from ebbpool import AdaptiveExecutor


def warnings(caplog: pytest.LogCaptureFixture, of: str) -> list[str]:
    """Return the warnings with these words."""
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [text for text in texts if of in text]


def hang(gate: Gate) -> None:
    gate()


def test_a_task_that_runs_for_too_long_is_logged_once_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    with AdaptiveExecutor(thread_name_prefix="web", warn_after=0.01) as pool, Gate() as gate:
        lane = pool.lane("reports", limit=1)
        pool.submit(hang, gate)
        lane.submit(hang, gate)
        gate.await_begun(2)
        eventually(lambda: len(warnings(caplog, "has been running for")) == 2)
        eventually(lambda: min(task.seconds for task in pool.running()) > 0.1)
        assert len(warnings(caplog, "has been running for")) == 2
        for text in warnings(caplog, "has been running for"):
            first, *stack = text.splitlines()
            assert first.startswith(f"{__name__}.hang in pool 'web'") and re.search(
                r" has been running for \d+\.\d s on ", first
            )
            assert any(("in hang" if STACKS else "(no stack") in line for line in stack)
        assert len(warnings(caplog, ", lane 'reports',")) == 1


def test_each_late_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with AdaptiveExecutor(1, keep_alive=LONG, warn_after=0.01) as pool:
        for count in range(1, 4):
            with Gate() as gate:
                gate.hold(pool)
                eventually(lambda: len(warnings(caplog, "has been running for")) == count)  # noqa: B023  (used at once)
                gate.open()
            wait_for_idle(pool)


def test_a_queue_that_waits_for_too_long_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with AdaptiveExecutor(1, thread_name_prefix="narrow", warn_after=0.01) as pool, Gate() as gate:
        gate.hold(pool)
        waiting = [pool.submit(abs, -1) for _ in range(3)]
        eventually(lambda: warnings(caplog, "waiting in"))
        warned_at = pool.stats().oldest_wait
        eventually(lambda: pool.stats().oldest_wait > warned_at + 0.1)
        (text,) = warnings(caplog, "waiting in")
        assert re.match(
            r"\d tasks are waiting in pool 'narrow'; the oldest, abs, has waited \d+\.\d s; the pool ", text
        )
        gate.open()
        assert [future.result(TIMEOUT) for future in waiting] == [1, 1, 1]


@needs_fork
def test_a_forked_child_warns_of_its_own_tasks() -> None:
    script = """
        import logging
        pool = AdaptiveExecutor(warn_after=0.05)
        pool.submit(int).result(10)
        def check():
            told = threading.Event()
            class Handler(logging.Handler):
                def emit(self, record):
                    told.set()
            logging.getLogger("concurrent.futures").addHandler(Handler())
            assert pool.submit(told.wait, 10).result(20)
        print(in_child(check))
    """
    assert output_of(script, FORK) == ["0"]


class Handler(logging.Handler):
    """A handler that needs a pool, and the timekeeper, to be done."""

    def __init__(self, pool: AdaptiveExecutor) -> None:
        super().__init__()
        self.pool = pool
        self.sent: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sent.append(self.pool.submit_later(0.0, int).result(TIMEOUT))


def test_a_handler_may_need_a_pool_that_needs_the_timekeeper() -> None:
    with AdaptiveExecutor(warn_after=0.01) as pool, AdaptiveExecutor() as other, Gate() as gate:
        handler = Handler(other)
        logging.getLogger("concurrent.futures").addHandler(handler)
        try:
            gate.hold(pool)
            eventually(lambda: handler.sent == [0])
        finally:
            logging.getLogger("concurrent.futures").removeHandler(handler)
