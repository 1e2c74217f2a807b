"""What the project's own tests need beyond the public face: one place that knows where it is inside."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from types import ModuleType
from typing import Any
from unittest import mock

from ebbpool import _interpreter
from ebbpool._core import accel
from ebbpool._core.accel import Timers
from ebbpool._pool import crew, loop_lag, spill, telling
from ebbpool._pool.timekeeper import Timekeeper, timekeeper

ENGINE = importlib.import_module(accel.Pool.__module__)
"""The engine that runs."""
PURE = _interpreter.PURE
FREE_THREADED = _interpreter.FREE_THREADED

gil_enabled = _interpreter.gil_enabled
interpreter = _interpreter.interpreter

SETTINGS: dict[str, tuple[ModuleType, str]] = {
    "give_up": (crew, "GIVE_UP"),
    "wait_for_timekeeper": (crew, "PATIENCE"),
    "overtaken": (ENGINE, "OVERTAKEN"),
    "spill_linger": (spill, "LINGER"),
    "wait_for_dump": (telling, "PATIENCE"),
}
"""The constants that a test may set, all in seconds: where each is."""


@contextmanager
def setting(**values: float) -> Iterator[None]:
    """Set some of `SETTINGS` for the length of the block."""
    with ExitStack() as stack:
        for name, value in values.items():
            module, constant = SETTINGS[name]
            stack.enter_context(mock.patch.object(module, constant, value))
        yield


def core(which: str, part: str = "engine") -> ModuleType | None:
    """Return the "plain" or the "compiled" module of a part of the core; None if it was not built."""
    try:
        return importlib.import_module(f"ebbpool._core.{part}{'' if which == 'plain' else '_c'}")
    except ImportError:
        return None


@contextmanager
def no_loops_of_before() -> Iterator[None]:
    """Have pools show how late the loops of this block are, and no others."""
    with mock.patch.object(loop_lag, "_mailboxes", {}):
        yield


def in_timekeeper(call: Callable[[], object]) -> None:
    """Have `call()` called in the timekeeper's thread, where a finaliser may run and nobody may wait."""
    timekeeper.start()
    timekeeper.call_soon(lambda: call() and None)


class Nobody(Timekeeper):
    """A timekeeper that never comes: the test looks itself."""

    def start(self) -> None:
        """Start nothing."""

    def watch(self, watched: object) -> None:
        """Look at nothing."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call at once."""
        call()

    def consider(self) -> None:
        """Stay as it is."""

    def dismiss(self, timeout: float = 0.0) -> None:
        """Stay as it is."""


@contextmanager
def watched_by(keeper: Timekeeper) -> Iterator[None]:
    """Have pools that are made and used in the block call `keeper` instead of the timekeeper."""
    with mock.patch.object(crew, "timekeeper", keeper):
        yield


class ManualTimekeeper(Timekeeper):
    """A timekeeper without a thread: the test says what time it is, and takes the turns.

    Attributes:
        now: The time by its clock, in seconds.
        rings: How often it was to be woken.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.rings = 0
        super().__init__(lambda: self.now)

    def start(self) -> None:
        """Start nothing."""

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
