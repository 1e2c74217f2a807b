"""What the tests of ebbpool need of its private parts: the one place that knows where these are."""
# ruff: noqa: F401

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from threading import Event, Thread
from time import monotonic
from types import ModuleType
from typing import Any, get_args
from unittest import mock

from ebbpool import _frames as frames
from ebbpool import _interpreter
from ebbpool._called import OVER, called_name
from ebbpool._core import accel
from ebbpool._core.accel import ALL, Timers, instrumented, orphans
from ebbpool._core.latch import LockType, allocate_lock
from ebbpool._frames import COLLECTS, UNREADABLE, is_joined
from ebbpool._maps import items
from ebbpool._pool import census, crew, executor_base, late, lifecycle, threads
from ebbpool._pool.executor_base import WhenFull
from ebbpool._pool.interval import interval
from ebbpool._pool.timekeeper import Tick, Timekeeper, timekeeper

PURE = _interpreter.PURE
REQUIRE_EXT = os.environ.get("EBBPOOL_REQUIRE_EXT", "") not in ("", "0") and not PURE
"""Whether a compiled core that is missing is an error."""
FREE_THREADED = _interpreter.FREE_THREADED

gil_enabled = _interpreter.gil_enabled
interpreter = _interpreter.interpreter
quota = _interpreter

POLICIES = get_args(WhenFull)
"""What `when_full` may be."""

SETTINGS: dict[str, tuple[ModuleType, str]] = {
    "crew": (crew, "CREW"),
    "keep_alive": (executor_base, "KEEP_ALIVE"),
    "give_up": (crew, "GIVE_UP"),
    "wait_for_timekeeper": (crew, "JOIN_TIMEOUT"),
    "overtaken": (importlib.import_module(accel.Pool.__module__.replace("_core.pool", "_core.backlog")), "OVERTAKEN"),
    "wait_for_warnings": (lifecycle, "WARNINGS_TIMEOUT"),
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
    return pool._pool.backlog.functions.of(fn, args)


def know(pool: Any, fn: Callable[..., Any], seconds: float, calls: int = 1) -> None:
    """Let a pool know that so many calls of a function took so long."""
    functions, known = pool._pool.backlog.functions, known_of(pool, fn)
    for _ in range(calls):
        functions.begin(known, 0.0)
        functions.end(known, 0.0, seconds)


def check(pool: Any, visit: bool = True) -> None:
    """Assert that the counts of a plain pool are the sums of what it has; under its mutex, at the end of a `visit`."""
    engine = sys.modules[type(pool).__module__]
    staff, backlog, workers = pool.staff, pool.backlog, pool.staff.workers
    lines = [backlog.lent, backlog.front, backlog.short, backlog.queue]
    queued = [task for line in lines for task in line.tasks]
    pending = [task for task in queued if task._code == engine.PENDING]
    current = [worker.current for worker in workers if worker.current is not None]
    held = [task for task in pool.room.tasks if task._code == engine.PENDING]
    measured = [task for task in [*pending, *held] if task._known is not None]
    lanes = {task._lane for task in [*queued, *current] if task._lane is not None}

    def sums(name: str, told: object, ought: object) -> None:
        assert told == ought, f"{name} is {told}, and ought to be {ought}"

    # Workers by state. Some places may be for workers that are not among them yet.
    counts = [sum(worker.state == state for worker in workers) for state in range(engine.GONE)]
    unseen = staff.headcount - len(workers)
    assert unseen >= staff.unborn >= 0, (unseen, staff.unborn)
    counts[engine.STARTING] += unseen
    sums("counts", staff.counts[: engine.GONE], counts)
    sums("parked", set(staff.parked), {worker for worker in workers if worker.state == engine.PARKED})
    sums("off", staff.off, sum(counts[engine.LENT :]))
    sums("written off", staff.written_off, sum(worker.kind in (engine.LONG, engine.LEFT) for worker in workers))
    assert staff.written_off <= (staff.ceiling if staff.ceiling > 1 else 0)
    for worker in workers:
        idle = worker.state in (engine.STARTING, engine.COMING, engine.PARKED)
        assert idle == (worker.current is None), worker.state
        assert idle or worker.state == (engine.BLOCKED if worker.waits else worker.kind), (worker.state, worker.kind)
        assert worker.known is None or worker.current is not None
    sums("limit", staff.limit, min(staff.allowed, staff.ceiling))
    many = staff.short_first and staff.ceiling > 1
    sums("short_room", staff.short_room, max(1, staff.ceiling // staff_of(pool).SHORT_ROOM) if many else 0)
    # Tasks by where they wait.
    for line in [*lines, pool.room, *[lane.backlog for lane in lanes]]:
        sums("dead", line.dead, sum(task._code != engine.PENDING for task in line.tasks))
        assert all(task._line is line for task in line.tasks)
    assert set(pool.submitters) <= set(held)
    timed = [*pending, *held, *[task for lane in lanes for task in lane.backlog.tasks if task._code == engine.PENDING]]
    limited = {task for task in timed if task._latest and task not in pool.submitters}
    entries = {entry[2] for entry in backlog.times} - {None}
    assert entries <= limited and all(task._latest <= pool.clock for task in limited - entries), "a time is missing"
    sums("gone", backlog.gone, sum(entry[2] is None for entry in backlog.times))
    # Measured calls.
    sums("measured", backlog.measured, {task._known for task in measured})
    for known in backlog.measured | {worker.known for worker in workers if worker.known is not None}:
        sums(f"{known.name}: waiting", known.waiting, sum(task._known is known for task in measured))
        running = [worker for worker in workers if worker.known is known]
        sums(f"{known.name}: running", known.running, len(running))
        if not known.ended:
            tried = sum(worker.current._short for worker in running)
            tried += sum(task._known is known and task._short for task in pending)
            sums(f"{known.name}, of which nothing is known: taken for short", int(known.tried), tried)
    sums("all: running", backlog.functions.all.running, sum(worker.known is not None for worker in workers))
    for line, short in ((backlog.short, True), (backlog.queue, False)):
        assert all(task._known is None or task._short is short for task in line.tasks if task._code == engine.PENDING)
    waiting = [task for task in [*backlog.queue.tasks, *held] if task._code == engine.PENDING]
    others = [*backlog.lent.tasks, *backlog.front.tasks, *backlog.short.tasks, *backlog.measured]
    assert backlog.mixed or not (others or backlog.newest or pool.room.tasks), "not all wait in one line"
    sums("not_short", backlog.not_short, Counter(task._task for task in waiting if task._known and task._task))
    for lane in lanes:
        inside = sum(task._lane is lane for task in [*pending, *current])
        sums(f"lane {lane.name}: admitted", lane.admitted, inside)
        assert not lane.backlog.live() or lane.admitted >= lane.limit, f"lane {lane.name} admits nobody"
    if visit:
        check_balance(pool)


def check_balance(pool: Any) -> None:
    """Assert that a visit has left nothing to be done that nobody is about to do."""
    engine, staff, backlog = sys.modules[type(pool).__module__], pool.staff, pool.backlog
    waiting = backlog.waiting()
    assert not pool.room.live() or pool._refusal(False) == "full", "somebody waits beside an empty place"
    assert not (pool.idlers and not waiting and staff.headcount == staff.counts[engine.PARKED]), "nobody tells idlers"
    assert not staff.parked or staff.active() <= pool._most() + staff.short_room, "some should leave"
    assert not (staff.parked and pool.closed and not waiting), "all should leave"
    if not staff.counts[engine.COMING]:
        assert not (waiting and staff.parked and pool._has_room(1)), "a worker should be woken"
        assert not (waiting or pool.room.live()) or pool.next_look <= pool.clock + engine.HORIZON, "nobody looks"
    assert pool.next_look <= max(backlog.soonest(), pool.clock), "the timekeeper should look for late ones"


def comes_to(pool: Any, call: Any, inside: Iterable[Thread]) -> bool:
    """Tell whether a worker of a pool is on its way to a task, or has taken `call` and is not one of those `inside`."""
    if pool._pool.staff.on_their_way() > 0:
        return True
    taken = Counter(task.thread for task in accel.survey(pool._pool, True).running if is_for(call, *task.call))
    return bool(taken - Counter(inside))


def is_for(call: Any, fn: Any, args: tuple[Any, ...] | None) -> bool:
    """Tell whether `call` is what is called, directly or through something that is given it."""
    while isinstance(fn, functools.partial):
        fn, args = fn.func, (*fn.args, *(args or ()))
    return any(each is call for each in (fn, *(args or ())))


def waiters(pool: Any) -> int:
    """Return how many threads wait for room in a pool's queue, or for the pool, or a lane, to be idle or to end."""
    return len(pool._pool.submitters) + len(pool._pool.idlers)


def executors_of(pool: Any) -> Any:
    """Return the executors that a pool like fastthreadpool's has for its jobs and their callbacks."""
    return pool._executors


def staff_of(pool: Any) -> ModuleType:
    """Return the module of a pool's workers."""
    return sys.modules[type(pool.staff).__module__]


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
        engine, staff = sys.modules[type(pool).__module__], pool.staff
        in_hand = {worker: worker.current for worker in staff.workers if worker.current is not None}
        before, self._in_hand = self._in_hand, in_hand
        for worker, future in in_hand.items():
            if before.get(worker) is not future:
                self.taken.append((future._fn, future._args))
                if worker.state == engine.SHORT:
                    assert future._short, "a call that is not short has a thread of theirs"
                    room = 1 if staff.allowed < staff.ceiling else staff.short_room
                    assert staff.counts[engine.SHORT] <= room
                elif worker.state != engine.LENT:
                    ordinary = staff.counts[engine.WORKING] + staff.counts[engine.AHEAD]
                    assert ordinary <= staff.limit, "a task has no place"
        headcount, self._headcount = self._headcount, staff.headcount
        # A task that a thread is lent to has one, however many there are.
        few = staff.headcount <= headcount or pool.backlog.lent.live() > 0 or staff.active() <= pool._most()
        assert few, f"too many threads: {staff.counts}"

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
        self.future = pool.hold_back(fn, args, None)
        self.future._executor = None
        assert self._pool.push(self.future, False, True, self._waiter) is None

    def let_in(self, timeout: float) -> bool:
        """Wait until there is room."""
        return self._waiter.acquire(timeout=timeout)

    def give_up(self) -> None:
        """Leave the line."""
        assert self._pool.leave_room(self.future)


def follow(pool: Any, **rules: Any) -> None:
    """Give a pool another `sizing`, `admission` or `overload`: how many workers to start, and how many may run."""
    for name, rule in rules.items():
        setattr(pool._crew, f"_{name}", rule)


def no_loops() -> AbstractContextManager[object]:
    """Have pools know of no loops that were there before."""
    return mock.patch.object(late, "_mailboxes", {})


def load_of(pool: Any) -> Any:
    """Return what the looks at a pool have seen of the process."""
    return pool._crew._load


def processors() -> int:
    """Return how many processors there are for a pool now."""
    return _interpreter.available_cpus()


def crew_of(pool: Any) -> Any:
    """Return what starts and keeps the threads of a pool."""
    return pool._crew


def begin_looks(pool: Any, now: float, cpu: float = 0.0) -> None:
    """Begin a spell of looks at a pool, at a time and with so much processor time used by the process."""
    pool._crew.begin(Tick(now, cpu, 0.0))


def look_at(pool: Any, now: float, cpu: float = 0.0) -> float | None:
    """Look at a pool that has workers once; return after how many seconds the timekeeper would look again."""
    again: float | None = pool._crew.tick(Tick(now, cpu, 0.0))
    return again


def look_ahead(pool: Any, seconds: float = 0.0) -> None:
    """Have the timekeeper look at a pool as if so many seconds had passed, go on to look at it, and wait for that."""
    looked = Event()

    # Elsewhere, a look of the timekeeper's that has read the time before would turn the pool's clock back.
    def look() -> None:
        pool._pool.look(monotonic() + seconds)
        pool._crew.watch()
        looked.set()

    in_timekeeper(look)
    assert looked.wait(10.0), "the timekeeper does not come"


def in_timekeeper(call: Callable[[], Any]) -> None:
    """Have `call()` called in the timekeeper's thread, where a finaliser may run and nobody may wait."""
    keeper: Timekeeper = vars(crew)["timekeeper"]
    # In this order: the thread may be about to end.
    keeper.call_soon(call)
    keeper.start()


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
