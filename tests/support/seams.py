"""What the tests of ebbpool need of its private parts: the one place that knows where these are."""
# ruff: noqa: F401

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections import Counter
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
from ebbpool._core.latch import LockType, allocate_lock
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
    other = (tuple, Exception, LockType)
    return [one for one in own if one.__module__.startswith("ebbpool.") and not issubclass(one, other)]


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


def check(pool: Any) -> None:
    """Assert that the counts of a plain pool are the sums of what it has; under its mutex."""
    engine = sys.modules[type(pool).__module__]
    queued = [future for line in (pool.front, pool.short, pool.queue) for future in line]
    pending = [future for future in queued if future._code == engine.PENDING]
    current = [worker.current for worker in pool.workers if worker.current is not None]
    held = [each for each in pool.seekers if isinstance(each, engine.FutureCore)]
    measured = [future for future in [*pending, *held] if future._known is not None]

    def workers(has: Callable[[Any], object]) -> int:
        return sum(map(bool, map(has, pool.workers)))

    def sums(name: str, ought: object, told: object = None) -> None:
        told = getattr(pool, name) if told is None else told
        assert told == ought, f"{name} is {told}, and ought to be {ought}"

    # Some places may be reserved for workers that are not among them yet.
    sums("headcount", len(pool.workers) + pool.starting - workers(lambda each: each.starting))
    assert pool.starting >= workers(lambda each: each.starting)
    sums("roused", workers(lambda each: each.fresh and not each.starting))
    sums("parked", {each for each in pool.workers if each.parked}, set(pool.parked))
    sums("searching", True, not workers(lambda each: each.searching) or pool.searching)
    sums("searching", True, not pool.searching or pool.headcount > len(pool.workers) or workers(lambda w: w.searching))
    sums("blocked", workers(lambda each: each.waits))
    sums("written_off", workers(lambda each: each.written_off))
    assert pool.written_off <= (pool.ceiling if pool.ceiling > 1 else 0)
    sums("ahead", workers(lambda each: each.ahead))
    sums("shorts", workers(lambda each: each.short and not each.waits))
    for worker in pool.workers:
        noted = worker.ahead or worker.short or worker.written_off or worker.known is not None
        assert not noted or (worker.noted and worker.current is not None)
    lent = sum(engine._is_lent(each) for each in pending)
    lent += workers(lambda each: each.current is not None and engine._is_lent(each.current) and not each.waits)
    sums("max_workers", pool.ceiling + lent)
    sums("limit", min(pool.allowed, pool.max_workers))
    sums("short_room", max(1, pool.ceiling // engine.SHORT_ROOM) if pool.short_first and pool.ceiling > 1 else 0)
    sums("dead", len(queued) - len(pending))
    sums("mixed", True, pool.mixed or not (pool.front or pool.short or set(measured) - set(held)))
    sums("measured", {each._known for each in measured})
    for known in pool.measured | {worker.known for worker in pool.workers if worker.known is not None}:
        sums(f"{known.name}: waiting", sum(each._known is known for each in measured), known.waiting)
        running = [worker for worker in pool.workers if worker.known is known]
        sums(f"{known.name}: running", len(running), known.running)
        if not known.ended:
            tried = sum(worker.ahead for worker in running) + sum(
                each._known is known and each._short for each in pending
            )
            sums(f"{known.name}, of which nothing is known: taken for short", tried, int(known.tried))
    sums("all: running", workers(lambda each: each.known is not None), pool.functions.all.running)
    for line, short in ((pool.short, True), (pool.queue, False)):
        assert all(each._known is None or each._short is short for each in line if each._code == engine.PENDING)
    assert all(each._known is not None for each in pool.short if each._code == engine.PENDING)
    waiting = [each for each in [*pool.queue, *held] if each._code == engine.PENDING]
    behind = Counter(each._task for each in waiting if each._known and each._task)
    sums("behind", behind)
    for lane in {each._lane for each in [*queued, *current] if each._lane is not None}:
        inside = sum(each._lane is lane for each in [*pending, *current])
        sums(f"lane {lane.name}: admitted", inside, lane.admitted)
        assert not len(lane.backlog) - lane.dead or lane.admitted >= lane.limit, f"lane {lane.name} admits nobody"


def add_up(pool: Any) -> None:
    """`check` a pool; only the plain core lets that be done."""
    if not accel.COMPILED:
        with pool._pool.mutex:
            check(pool._pool)


class CheckedMutex:
    """A plain pool's mutex: each time that it becomes free, the pool's counts have to add up.

    Attributes:
        wrong: What did not; the first thing counts.
        taken: The tasks that workers have taken, in order: what is called, and with which arguments.
    """

    def __init__(self, pool: Any) -> None:
        self._lock = pool.mutex
        self._depth = 0
        self._pool = pool
        self._headcount = 0
        self._in_hand: dict[Any, Any] = {}
        self.wrong: list[str] = []
        self.taken: list[tuple[Any, Any]] = []

    def acquire(self, *args: Any) -> bool:
        taken: bool = self._lock.acquire(*args)
        self._depth += taken
        return taken

    def release(self) -> None:
        if self._depth == 1:
            try:
                check(self._pool)
                self._see(self._pool)
            except BaseException:
                self.wrong.append(traceback.format_exc())
        self._depth -= 1
        self._lock.release()

    def _see(self, pool: Any) -> None:
        """Note which tasks have been taken, by workers that had a place for them, and who has been started."""
        in_hand = {worker: worker.current for worker in pool.workers if worker.current is not None}
        before, self._in_hand = self._in_hand, in_hand
        for worker, future in in_hand.items():
            if before.get(worker) is not future:
                self.taken.append((future._fn, future._args))
                if worker.short:
                    assert future._short, "a call that is not short has a thread of theirs"
                    assert pool.shorts <= (1 if pool.allowed < pool.ceiling else pool.short_room)
                elif future._lane is None or not future._lane.lifts_ceiling:
                    ordinary = [each for each in in_hand if not (each.short or each.waits)]
                    assert len(ordinary) <= pool.limit, "a task has no place"
        headcount, self._headcount = self._headcount, pool.headcount
        if pool.headcount > max(headcount, pool.max_workers + pool.blocked) and not pool._lends():
            assert pool.short and pool.headcount <= pool.max_workers + pool.blocked + pool.short_room, (
                "too many threads"
            )

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        owned: bool = self._lock._is_owned()
        return owned


def checked(pool: Any) -> CheckedMutex | None:
    """Have the counts of a new pool checked whenever its mutex becomes free; only the plain core lets that be done."""
    if accel.COMPILED:
        return None
    pool._pool.mutex = CheckedMutex(pool._pool)
    mutex: CheckedMutex = pool._pool.mutex
    return mutex


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


def look_ahead(pool: Any, seconds: float) -> None:
    """Have the timekeeper look at a pool as if so many seconds had passed, and go on to look at it."""

    def look() -> None:
        pool._pool.snapshot(monotonic() + seconds)
        pool._crew.watch()

    in_timekeeper(look)


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
