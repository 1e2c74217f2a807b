"""The choice between the compiled and the plain core, by ``EBBPOOL_PURE``; `ebbpool.sync` chooses semaphores."""

from __future__ import annotations

import concurrent.futures
import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ebbpool._interpreter import LACKING, PURE

_why = ""
if TYPE_CHECKING or PURE:
    from ebbpool._core import executor_core, future, loop_calls, pool, staff, task, timers, views, worker
else:
    try:
        import ebbpool._core.executor_core_c as executor_core
        from ebbpool._core import future_c as future
        from ebbpool._core import loop_calls_c as loop_calls
        from ebbpool._core import pool_c as pool
        from ebbpool._core import staff_c as staff
        from ebbpool._core import task_c as task
        from ebbpool._core import timers_c as timers
        from ebbpool._core import views_c as views
        from ebbpool._core import worker_c as worker
    except ImportError as error:
        _why = "none is compiled here" if isinstance(error, ModuleNotFoundError) else str(error)
        from ebbpool._core import executor_core, future, loop_calls, pool, staff, task, timers, views, worker

COMPILED = future.COMPILED
"""Whether the compiled core runs."""

_unsaid = [f"the plain engine runs: {_why}"] if _why and sys.implementation.name == "cpython" else []


if LACKING:
    _unsaid.append(f"this Python lacks what ebbpool knows a way without: {', '.join(LACKING)}")


def say_if_plain() -> None:
    """Log, once in a process, that the plain engine runs where that was not asked for, or what Python lacks."""
    with suppress(IndexError):
        while True:
            logging.getLogger("ebbpool").info(_unsaid.pop())


if TYPE_CHECKING:
    T = TypeVar("T")

    class Future(concurrent.futures.Future[T]):
        """The type of the core's `Future` for type checkers, which cannot follow its two bases."""
else:
    Future = future.Future

ALL = staff.ALL
Alarms = timers.Alarms
ExecutorCore = executor_core.ExecutorCore
KeeperCore = timers.KeeperCore
LAGS = loop_calls.LAGS
LaneCore = task.LaneCore
LoopCall = loop_calls.LoopCall
Mailbox = loop_calls.Mailbox
Pool = pool.Pool
Probe = worker.Probe
SPELL = loop_calls.SPELL
SPELLS = loop_calls.SPELLS
Snapshot = pool.Snapshot
Timers = timers.Timers
Worker = staff.Worker
connect = executor_core.connect
count_lane = views.count_lane
current_scope = worker.current_scope
instrumented = executor_core.instrumented
orphans = pool.orphans
perform = worker.perform
relay_by = future.relay_by
retry_after = views.retry_after
survey = views.survey
unclaimed = views.unclaimed
wait_counted = pool.Pool.wait_counted
make_call = getattr(worker, "make_call", worker.work)
work = worker.work
