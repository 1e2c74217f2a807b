"""The choice of the engine: the compiled one where there is one, the plain one otherwise or with ``EBBPOOL_PURE=1``."""

from __future__ import annotations

import concurrent.futures
import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ebbpool._interpreter import PURE

if TYPE_CHECKING:
    from ebbpool._core import engine as core
    from ebbpool._core import timers
elif PURE:
    from ebbpool._core import engine as core
    from ebbpool._core import timers
else:
    try:
        from ebbpool._core import engine_c as core
        from ebbpool._core import timers_c as timers
    except ImportError:
        from ebbpool._core import engine as core
        from ebbpool._core import timers

COMPILED = core.COMPILED
"""Whether the compiled core runs."""

_unsaid = ["the plain engine runs: none is compiled here"]
if COMPILED or PURE or sys.implementation.name != "cpython":
    _unsaid.clear()


def say_if_plain() -> None:
    """Log, once in a process, that the plain engine runs where that was not asked for."""
    with suppress(IndexError):
        logging.getLogger("ebbpool").info(_unsaid.pop())


if TYPE_CHECKING:
    T = TypeVar("T")

    class Future(concurrent.futures.Future[T]):
        """The type of `engine.Future` for type checkers, which cannot follow its two bases."""
else:
    Future = core.Future

ALL = core.ALL
Alarms = timers.Alarms
ExecutorCore = core.ExecutorCore
KeeperCore = timers.KeeperCore
LAGS = core.LAGS
LaneCore = core.LaneCore
LoopCall = core.LoopCall
Mailbox = core.Mailbox
Pool = core.Pool
Probe = core.Probe
SPELL = core.SPELL
SPELLS = core.SPELLS
Snapshot = core.Snapshot
Timers = timers.Timers
Worker = core.Worker
connect = core.connect
current_worker = core.current_worker
instrumented = core.instrumented
keep_time = core.keep_time
orphans = core.orphans
wait_counted = core.wait_counted
