"""What the tests of ebbpool need of its private parts: the one place that knows where these are."""
# ruff: noqa: F401

from __future__ import annotations

import importlib
import os
import sys
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from math import inf
from time import monotonic
from types import ModuleType
from typing import Any
from unittest import mock

from ebbpool import _interpreter
from ebbpool._core import accel
from ebbpool._core.accel import Timers
from ebbpool._frames import UNREADABLE, is_joined
from ebbpool._pool import census, crew, late, lifecycle, spill, threads
from ebbpool._pool.running import OVER, called_name
from ebbpool._pool.timekeeper import Tick, Timekeeper, timekeeper

PURE = _interpreter.PURE
REQUIRE_EXT = os.environ.get("EBBPOOL_REQUIRE_EXT", "") not in ("", "0") and not PURE
"""Whether a compiled core that is missing is an error."""
FREE_THREADED = _interpreter.FREE_THREADED

instrumented = accel.instrumented
ALL = accel.ALL
orphans = accel.orphans
gil_enabled = _interpreter.gil_enabled
interpreter = _interpreter.interpreter
quota = _interpreter

SETTINGS: dict[str, tuple[ModuleType, str]] = {
    "crew": (crew, "CREW"),
    "give_up": (crew, "GIVE_UP"),
    "wait_for_timekeeper": (crew, "PATIENCE"),
    "overtaken": (importlib.import_module(accel.Pool.__module__), "OVERTAKEN"),
    "spill_linger": (spill, "LINGER"),
    "wait_for_dump": (lifecycle, "PATIENCE"),
}
"""The constants that a test may set: where each is. All but `crew` are in seconds."""


@contextmanager
def setting(**values: float) -> Iterator[None]:
    """Set some of `SETTINGS` for the length of the block."""
    with ExitStack() as stack:
        for name, value in values.items():
            module, constant = SETTINGS[name]
            stack.enter_context(mock.patch.object(module, constant, value))
        yield


def set_for_good(name: str, value: float) -> None:
    """Set one of `SETTINGS`, in a process of the test's own."""
    setattr(*SETTINGS[name], value)


def running_part(part: str) -> ModuleType:
    """Return that module of the core which runs."""
    return importlib.import_module(f"ebbpool._core.{part}{'_c' if accel.COMPILED else ''}")


def core(which: str, part: str) -> ModuleType | None:
    """Return the "plain" or the "compiled" module of a part of the core; None if it may be missing, and is."""
    try:
        suffix = "" if which == "plain" else "_c"
        # The pool sets what futures that no executor made need.
        importlib.import_module(f"ebbpool._core.pool{suffix}")
        return importlib.import_module(f"ebbpool._core.{part}{suffix}")
    except ImportError:
        if REQUIRE_EXT:
            raise
        return None


def parts_of_the_core() -> list[type]:
    """Return the classes of the modules of the core that run."""
    modules = [module for name, module in sys.modules.items() if name.startswith("ebbpool._core.")]
    own = dict.fromkeys(one for module in modules for one in vars(module).values() if isinstance(one, type))
    return [one for one in own if one.__module__.startswith("ebbpool.") and not issubclass(one, tuple | Exception)]


def observe(pool: Any, one_in: int, record: Callable[[float, float], object] | None) -> None:
    """Have one task in so many measured: `record` is told how long it waited and ran."""
    pool._pool.observe(one_in, record)


def mutex_of(pool: Any) -> Any:
    """Return the mutex of a pool on the plain core."""
    return pool._pool.mutex


def stop_in_a_step(pool: Any, inside: Any, go: Any) -> Callable[[], None]:
    """On the plain core, have workers wait for `go` with a task in hand that is on no queue; return what ends that.

    The event `inside` is set when a worker waits there.
    """
    dequeue = pool._pool.dequeue

    def slow() -> Any:
        taken = dequeue()
        inside.set()
        assert go.wait(20)
        return taken

    pool._pool.dequeue = slow
    return partial(setattr, pool._pool, "dequeue", dequeue)


def close(pool: Any) -> None:
    """Take no more tasks, which is the first step of a shutdown."""
    pool._pool.close()


def lift(pool: Any, fn: Callable[..., Any], *args: Any) -> Any:
    """Submit a call that has a limit of its own elsewhere, and lifts the ceiling while it runs."""
    return pool.hand_in(pool._unlimited, True, fn, args, {})


def line_up(pool: Any, fn: Callable[..., Any], *args: Any) -> Any:
    """Submit a call that waits for room in a full queue without holding up this thread, as one from a loop does."""
    held = pool.hold_back(fn, args, None)
    pool.release(held)
    return held


def places_lent(pool: Any) -> int:
    """Return by how many workers the ceiling is lifted."""
    return int(pool._pool.max_workers - pool._pool.ceiling)


class BlockedSubmitter:
    """A submitter that stands in line for room in a full queue, each of its steps at the test's word."""

    def __init__(self, pool: Any, fn: Callable[..., Any], *args: Any) -> None:
        self._pool = pool._pool
        self._waiter = allocate_lock()
        self._waiter.acquire()
        assert self._pool.seek(self._waiter, False)
        self._future = pool.hold_back(fn, args, None)

    def let_in(self, timeout: float) -> bool:
        """Wait until there is room."""
        return self._waiter.acquire(timeout=timeout)

    def come(self) -> Any:
        """Take the place that is kept, and return the future."""
        assert self._pool.push(self._future, False, self._waiter) is None
        return self._future

    def give_up(self) -> None:
        """Leave the line."""
        self._pool.unseek(self._waiter)


def allow(pool: Any, count: int = accel.ALL) -> None:
    """Let so many workers run at a time."""
    pool._pool.admit(count)


def follow(pool: Any, *, sizing: Any = None, admission: Any = None, restraint: Any = None) -> None:
    """Give a pool other rules of how many workers to start, and of how many may run."""
    if sizing is not None:
        pool._crew._sizing = sizing
    if admission is not None:
        pool._crew._admission = admission
    if restraint is not None:
        pool._crew._restraint = restraint


def processors() -> int:
    """Return how many processors there are for a pool now."""
    return _interpreter.processors.count(monotonic())


def crew_of(pool: Any) -> Any:
    """Return what starts and keeps the threads of a pool; its `pool` is that of the core."""
    return pool._crew


def threads_of(pool: Any) -> tuple[int, int]:
    """Return how many workers a pool has, and how many of them have not come to the queue yet."""
    return int(pool._pool.headcount), int(pool._pool.starting)


def allowed(pool: Any) -> int:
    """Return how many workers may run at a time."""
    return int(pool._pool.allowed)


def begin_looks(pool: Any, now: float, cpu: float = 0.0) -> None:
    """Begin a spell of looks at a pool, at a time and with so much processor time used by the process."""
    pool._crew.begin(Tick(now, cpu, 0.0))


def look_at(pool: Any, now: float | None = None, cpu: float = 0.0) -> float | None:
    """Look at a pool once; return after how many seconds the timekeeper would look again."""
    if now is None:
        pool._pool.snapshot(monotonic())
        return None
    again: float | None = pool._crew.tick(Tick(now, cpu, 0.0))
    return again


@contextmanager
def no_loops_of_before() -> Iterator[None]:
    """Have pools show how late the loops of this block are, and no others."""
    with mock.patch.object(late, "_mailboxes", {}):
        yield


def in_timekeeper(call: Callable[[], Any]) -> None:
    """Have `call()` called in the timekeeper's thread, where a finaliser may run and nobody may wait."""
    timekeeper.start()
    timekeeper.call_soon(call)


class Nobody(Timekeeper):
    """A timekeeper that never comes: the test looks itself."""

    def start(self) -> None: ...
    def watch(self, watched: object) -> None: ...
    def consider(self, *watched: object) -> None: ...
    def dismiss(self, timeout: float = 0.0) -> None: ...

    def call_soon(self, call: Callable[[], None]) -> None:
        call()


@contextmanager
def watched_by(keeper: Timekeeper) -> Iterator[None]:
    """Have pools that are made and used in the block call `keeper` instead of the timekeeper."""
    with mock.patch.object(crew, "timekeeper", keeper):
        yield


class ManualTimekeeper(Timekeeper):
    """A timekeeper without a thread: the test says what time it is, and takes the turns."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.rings = 0
        """How often it was to be woken."""
        super().__init__(lambda: self.now)

    def start(self) -> None: ...

    def _ring(self) -> None:
        self.rings += 1
        super()._ring()

    def settle(self) -> float:
        """Take turns until there is nothing more to do now; return how many seconds later there is."""
        for _ in range(100_000):
            wake = self.turn()
            if wake > self.now:
                return wake - self.now if wake != inf else inf
        raise AssertionError("the timekeeper finds no rest")

    def advance(self, seconds: float) -> float:
        """Let `seconds` pass at once, as when a machine was suspended, and take the turns that follow."""
        self.now += seconds
        return self.settle()

    def entries(self) -> int:
        """Return how many calls are to come."""
        return len(self._alarms)

    def serve(self, pool: Any) -> None:
        """Have the delayed calls of `pool` wait here; its workers have the real timekeeper."""
        pool._crew.timers = Timers(self)
