"""What the tests of ebbpool need of its private parts: the one place that knows where these are."""
# ruff: noqa: F401

from __future__ import annotations

import importlib
import os
import sys
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from threading import Event
from time import monotonic
from types import ModuleType
from typing import Any
from unittest import mock

from ebbpool import _interpreter
from ebbpool._called import OVER, called_name
from ebbpool._core import accel
from ebbpool._core.accel import ALL, Timers, instrumented, orphans
from ebbpool._frames import COLLECTS, UNREADABLE, is_joined
from ebbpool._maps import items
from ebbpool._pool import census, crew, late, lifecycle, threads
from ebbpool._pool.timekeeper import Tick, Timekeeper, timekeeper

PURE = _interpreter.PURE
REQUIRE_EXT = os.environ.get("EBBPOOL_REQUIRE_EXT", "") not in ("", "0") and not PURE
"""Whether a compiled core that is missing is an error."""
FREE_THREADED = _interpreter.FREE_THREADED

gil_enabled = _interpreter.gil_enabled
interpreter = _interpreter.interpreter
quota = _interpreter

SETTINGS: dict[str, tuple[ModuleType, str]] = {
    "crew": (crew, "CREW"),
    "give_up": (crew, "GIVE_UP"),
    "wait_for_timekeeper": (crew, "PATIENCE"),
    "overtaken": (importlib.import_module(accel.Pool.__module__), "OVERTAKEN"),
    "wait_for_warnings": (lifecycle, "PATIENCE"),
    "quick": (items, "QUICK"),
}
"""The constants that a test may set: where each is. All but `crew` are in seconds."""


def setting(**values: float) -> ExitStack:
    """Set some of `SETTINGS`: at once, and until the end of a block that has this for its context manager."""
    stack = ExitStack()
    for name, value in values.items():
        stack.enter_context(mock.patch.object(*SETTINGS[name], value))
    return stack


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


def engine_of(pool: Any) -> Any:
    """Return the part of a pool that is in the core: its queue, its counts, its mutex, how many workers may run."""
    return pool._pool


def lift(pool: Any, fn: Callable[..., Any], *args: Any) -> Any:
    """Submit a call that has a limit of its own elsewhere, and lifts the ceiling while it runs."""
    return pool.hand_in(pool._unlimited, True, fn, args, {})


def known_of(pool: Any, fn: Callable[..., Any], *args: Any) -> Any:
    """Return what a pool knows of how long the calls of a function take."""
    return pool._pool.functions.of(fn, args)


def know(pool: Any, fn: Callable[..., Any], seconds: float, calls: int = 1) -> None:
    """Let a pool know that so many calls of a function took so long."""
    functions, known = pool._pool.functions, known_of(pool, fn)
    for _ in range(calls):
        functions.begin(known, 0.0)
        functions.end(known, 0.0, seconds)


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


def follow(pool: Any, **rules: Any) -> None:
    """Give a pool another `sizing`, `admission` or `overload`: how many workers to start, and how many may run."""
    for name, rule in rules.items():
        setattr(pool._crew, f"_{name}", rule)


def processors() -> int:
    """Return how many processors there are for a pool now."""
    return _interpreter.available_cpus()


def crew_of(pool: Any) -> Any:
    """Return what starts and keeps the threads of a pool."""
    return pool._crew


def begin_looks(pool: Any, now: float, cpu: float = 0.0) -> None:
    """Begin a spell of looks at a pool, at a time and with so much processor time used by the process."""
    pool._crew.begin(Tick(now, cpu, 0.0))


def look_at(pool: Any, now: float | None = None, cpu: float = 0.0) -> float | None:
    """Look at a pool that has workers once; return after how many seconds the timekeeper would look again."""
    if now is None:
        # In the timekeeper's thread: a look of its own that has read the time before would turn the pool's clock back.
        looked = Event()
        in_timekeeper(lambda: pool._pool.snapshot(monotonic()))
        in_timekeeper(looked.set)
        assert looked.wait(10.0), "the timekeeper does not come"
        return None
    again: float | None = pool._crew.tick(Tick(now, cpu, 0.0))
    return again


def in_timekeeper(call: Callable[[], Any]) -> None:
    """Have `call()` called in the timekeeper's thread, where a finaliser may run and nobody may wait."""
    keeper: Timekeeper = vars(crew)["timekeeper"]
    keeper.start()
    keeper.call_soon(call)


class Nobody(Timekeeper):
    """A timekeeper that never comes: the test looks itself."""

    def start(self) -> None: ...
    def watch(self, watched: object) -> None: ...
    def consider(self, *watched: object) -> None: ...
    def dismiss(self, timeout: float = 0.0) -> None: ...

    def call_soon(self, call: Callable[[], None]) -> None:
        call()


def watched_by(keeper: Timekeeper) -> AbstractContextManager[object]:
    """Have pools that are made and used in the block call `keeper` instead of the timekeeper."""
    return mock.patch.object(crew, "timekeeper", keeper)
