"""A pool's threads: their start, their initializer, how they are waited for, and how many are started at each tick."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures.thread import BrokenThreadPool
from math import inf
from typing import TYPE_CHECKING, Any

from ebbpool._clock import HORIZON, TICK, monotonic
from ebbpool._core.accel import ALL, Pool, Probe, Snapshot, Timers, Worker, make_call, survey, work
from ebbpool._core.waits import here
from ebbpool._interpreter import GIL_ENABLED, available_cpus
from ebbpool._pool import lifecycle
from ebbpool._pool.admission import Admission, Overload
from ebbpool._pool.census import Census, reader
from ebbpool._pool.interval import interval
from ebbpool._pool.late import Alarm, LateLoops, SlowTasks
from ebbpool._pool.load import TURN, Load
from ebbpool._pool.running import described, running
from ebbpool._pool.sizing import CREW, MEMORY, Sizing
from ebbpool._pool.stats import Decisions
from ebbpool._pool.threads import WorkerThread
from ebbpool._pool.timekeeper import JOIN_TIMEOUT, Tick, timekeeper

if TYPE_CHECKING:
    from ebbpool._pool.reports import RunningTask

LOGGER = logging.getLogger("concurrent.futures")
HUNG = 3  # functions whose abandoned calls have most threads are named
GIVE_UP = 1.0  # seconds for which the system may refuse threads until the tasks fail that no worker will take

_numbers = itertools.count(1)


def _forgotten(pool: Pool, call_soon: Callable[[Callable[[], None]], None], _: object) -> None:
    # Runs in the garbage collector, perhaps in a thread that holds the mutex which `close` takes, so the timekeeper's
    # thread closes the pool.
    if pool.staff.headcount > 0 and not pool.closed:
        call_soon(pool.close)


def _look_again(reference: weakref.ref[Crew]) -> None:
    crew = reference()
    if crew is not None:
        timekeeper.consider(crew)


class Crew:
    """The threads of one pool: their start, their initializer and finalizer, their end, and their number."""

    def __init__(
        self,
        prefix: str,
        initializer: Callable[..., object] | None,
        initargs: tuple[Any, ...],
        finalizer: Callable[[], object] | None,
        daemon: bool,
        leave_after: float | None,
        stack_size: int | None,
        warn_after: float | None,
        warn_lag: float | None,
    ) -> None:
        self.name = ""
        self.prefix = prefix or f"ebbpool-{next(_numbers)}"
        self.initializer, self.initargs, self.finalizer = initializer, initargs, finalizer
        self.daemon, self.leave_after, self.stack_size = daemon, leave_after, stack_size
        self.warn_after, self.warn_lag = warn_after, warn_lag
        self.pool = Pool(self)
        self.timers = Timers(timekeeper)
        self.threads: set[WorkerThread] = set()
        self.cause = ""
        self._names = itertools.count()
        self._owner: weakref.ref[Any] | None = None
        reader()
        self.forget()
        # Registered before there is state that another thread's fork could copy half changed.
        lifecycle.register(self)
        if lifecycle.exiting():
            # The interpreter's exit may have closed all pools before it could see this one.
            self.pool.close()

    def forget(self) -> None:
        """Begin anew, as a new pool does, and one in a forked child."""
        # Perhaps in the thread of an event loop, where no file is to be read.
        self.pool.staff.many = available_cpus(reads=False) + CREW
        self.decisions = Decisions()
        self._load = Load(GIL_ENABLED)
        self._sizing = Sizing(self._load)
        self._admission = Admission(self._load)
        self._overload = Overload()
        self._census = Census()
        self._ended = -inf
        self._refusal: BaseException | None = None
        self._stuck = inf
        self.settings_lock = threading.RLock()
        self._expected: dict[Worker, WorkerThread] = {}
        self._ending: set[threading.Thread] = set()
        warnings: list[tuple[type[Alarm], float | None]] = [(SlowTasks, self.warn_after), (LateLoops, self.warn_lag)]
        self._alarms = [kind(self, limit) for kind, limit in warnings if limit is not None]

    def serve(self, owner: object) -> None:
        """Close the pool when nothing refers to `owner` any more; queued tasks still run."""
        self._owner = weakref.ref(owner, functools.partial(_forgotten, self.pool, timekeeper.call_soon))

    def owner(self) -> object:
        """Return the executor, or None if it has been collected."""
        return self._owner() if self._owner is not None else None

    def start(self) -> BaseException | None:
        """Start a worker, in any thread, for which the pool has a place.

        Return the error, if any, that interrupted the start after the thread had begun: the worker lives, and the
        caller raises the error. Where this raises one itself there is no thread, and the caller gives the place back.
        """
        timekeeper.start()
        self._strike_off()
        worker = Worker(self.pool)
        thread = WorkerThread(
            target=self._work,
            args=(worker,),
            name=f"{self.prefix}_{next(self._names)}",
            daemon=self.daemon,
            stack_size=self.stack_size,
        )
        worker.thread = thread
        self._expected[worker] = thread
        try:
            self.pool.enlist(worker)
            self.threads.add(thread)
            thread.start()
            for alarm in self._alarms:
                timekeeper.watch(alarm)
        except BaseException as error:
            # A signal may interrupt the start after the thread has begun. Only one `pop` gets the worker: if the new
            # thread's does, the thread works; if this one does, the thread ends at once.
            if self._expected.pop(worker, None) is None:
                return error
            self.threads.discard(thread)
            self.pool.delist(worker)
            raise
        return None

    def _strike_off(self) -> None:
        for thread in list(self._ending):
            if not thread.is_alive():
                self.threads.discard(thread)
                self._ending.discard(thread)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have `call()` called in the timekeeper's thread; raise RuntimeError if there can be none."""
        timekeeper.start()
        timekeeper.call_soon(call)

    def watch(self) -> None:
        """Have the timekeeper look at the pool every tick until no task waits; raise an error if there can be none."""
        timekeeper.watch(self)

    def _work(self, worker: Worker) -> None:
        if self._expected.pop(worker, None) is None:
            # `start` was interrupted, and has taken this worker back.
            return
        try:
            if self._initialize(worker):
                try:
                    work(worker)
                except BaseException as error:
                    # Another thread raised an error in this one, between two tasks.
                    LOGGER.critical("Exception in worker", exc_info=True)
                    self.pool.dismiss(worker, error)
                self._finalize()
        finally:
            # The thread stays in `threads` until it has ended: it has yet to drop its thread-local objects, and `join`
            # waits for that too.
            self._ending.add(threading.current_thread())
            if self.pool.staff.headcount == 0:
                # Weakly: a thread that has ended keeps what it has not been told.
                timekeeper.call_soon(functools.partial(_look_again, weakref.ref(self)))
                timekeeper.consider(*self._alarms)

    def _initialize(self, worker: Worker) -> bool:
        if self.initializer is None:
            return True
        try:
            self.initializer(*self.initargs)
        except BaseException:
            LOGGER.critical("Exception in initializer:", exc_info=True)
            self.cause = "A thread initializer failed, the thread pool is not usable anymore"
            # As in any worker, callbacks end nothing but themselves.
            here.worker = worker
            self.pool.close(broken=True)
            for future in self.pool.waiting():
                future.reject(BrokenThreadPool(self.cause))
            self.timers.close(BrokenThreadPool(self.cause))
            self.pool.dismiss(worker, None)
            return False
        return True

    def _finalize(self) -> None:
        if self.finalizer is not None:
            try:
                self.finalizer()
            except BaseException:
                LOGGER.critical("Exception in finalizer:", exc_info=True)

    def join(self, timeout: float | None) -> bool:
        """Wait for all threads of the closed pool, but the calling one, to end; return whether they did in time."""
        deadline = None if timeout is None else monotonic() + timeout
        own: set[Any] = {threading.current_thread()}
        workers = len(self.threads & own)
        behind: set[threading.Thread] = set()
        limit = -1.0 if timeout is None else timeout
        leave = self.leave_after
        if leave is not None and timeout is not None and timeout < leave:
            leave = None
        # Wait for the count of workers first: one with a reserved place may have no thread in `threads` yet.
        if not self.pool.await_idle(limit if leave is None else leave, None, workers):
            limit = -1.0 if deadline is None else max(0.0, deadline - monotonic())
            if leave is None or not self.pool.await_idle(limit, None, workers, True):
                return bool(self.pool.excused())
            behind = self._leave()
        left = self.threads - own - behind
        for thread in left:
            thread.join(None if deadline is None else max(0.0, deadline - monotonic()))
        self._strike_off()
        return all(thread.ended() for thread in left)

    def _leave(self) -> set[threading.Thread]:
        """Warn of the calls that nobody waits for, and return their threads; cancel tasks that have no others."""
        for future in self.pool.waiting():
            future.cancel()
        behind = {task.thread for task in survey(self.pool).running if task.left}
        names = {thread.name for thread in behind}
        told = [described(task) for task in self.running(True) if task.abandoned and task.thread in names]
        if told:
            LOGGER.warning("pool %r no longer waits for abandoned calls:\n%s", self.name, "\n".join(told))
        return behind

    def hung(self) -> str:
        """Return which abandoned calls have how many threads; an empty text if none."""
        names = Counter(task.name for task in self.running(False) if task.abandoned)
        told = ", ".join(f"{name} ({count})" for name, count in names.most_common(HUNG))
        return f"; abandoned calls have threads: {told}" if names else ""

    def part(self, timeout: float | None) -> None:
        """Have the timekeeper end if no pool needs it, and wait: `timeout` or `JOIN_TIMEOUT` seconds at most."""
        if here.worker is not None:
            # Not waited for here: the worker's own pool may need the timekeeper.
            timekeeper.consider()
        else:
            timekeeper.dismiss(JOIN_TIMEOUT if timeout is None else min(timeout, JOIN_TIMEOUT))

    def running(self, stacks: bool) -> list[RunningTask]:
        """See `AdaptiveExecutor.running`."""
        return running(self.pool, _BELOW, stacks)

    def report(self) -> str:
        """Return a text on what still runs, and on how many tasks are stranded."""
        lines = [described(task) for task in self.running(True)]
        stranded = self.pool.stranded()
        if not stranded:
            return "these tasks are still running:\n" + "\n".join(lines)
        waiting = f"{stranded} tasks are waiting, and no thread could be started for them"
        return "\n".join([waiting + ("; these tasks are still running:" if lines else ""), *lines])

    def renew(self, error: BaseException) -> None:
        """In a forked child: forget all threads but the calling one, if that belongs to the pool."""
        self.threads = {thread for thread in self.threads if thread is threading.current_thread()}
        self.forget()
        self.pool.renew(error)
        self.timers.renew(error)

    def begin(self, tick: Tick) -> float | None:
        """Note where a spell of waiting begins, in the timekeeper's thread; see `Watched.begin`."""
        rest = tick.now - self._ended
        self._load.begin(tick, self.pool.taken())
        self._sizing.begin(rest)
        if rest > MEMORY:
            self._load.rest()
            self._admission.rest()
            if self.pool.staff.allowed != ALL:
                self.pool.admit(ALL)
        if self.pool.staff.headcount == 0 and self.pool.leave_alone() == inf:
            interval.want(self, False)
            return None
        return TICK

    def tick(self, tick: Tick) -> float | None:
        """Start as many workers as `_sizing` says, in the timekeeper's thread; see `Watched.tick`."""
        again = self._look(tick)
        shorter = again is not None and self._admission.shorter_turns()
        interval.want(self, shorter)
        # Looks are less late then, and would take the GIL more often.
        return HORIZON if shorter else again

    def _look(self, tick: Tick) -> float | None:
        seen = self.pool.look(tick.now)
        if seen is None:
            self._ended = tick.now
            self._refusal = None
            return None
        if seen.late:
            return 0.0
        cpus = available_cpus()
        self.pool.staff.many = cpus + CREW
        self._load.see(tick, cpus, seen.taken)
        helpless = self._refusal is not None and seen.workers <= seen.off and self._load.moved < tick.now
        self._stuck = min(self._stuck, tick.now) if helpless else inf
        if self._refusal is not None and tick.now - self._stuck >= GIVE_UP:
            self._stuck = inf
            self.pool.give_up(self._refusal)
        allowed = self._admit(tick, seen)
        if seen.queued == 0 and not seen.spare:
            # Many run, or a task waits in its lane, and may not do so for ever.
            self._ended = tick.now
            if self._admission.idle or self.pool.max_queue == 0:
                again = self.pool.leave_alone()
                return None if again == inf else max(0.0, again - tick.now)
            return HORIZON
        self._note_moved(seen)
        if not seen.may_grow:
            why = self._why_held if allowed != ALL else lambda: "max_workers reached"
            self.decisions.note(seen.workers, 0, seen.queued, why)
            # The spell of waiting ends here. If the pool may grow later, `begin` or the next look starts a new one.
            self._ended = tick.now
            return HORIZON if allowed == ALL else TURN
        self._grow(tick, seen, allowed)
        return TICK if allowed == ALL else TURN

    def _note_moved(self, seen: Snapshot) -> None:
        if seen.moved is not None:
            why = f"calls of {seen.moved.name} are short, and go first"
            self.decisions.note(seen.workers, 0, seen.queued, lambda: why, new=True)

    def _grow(self, tick: Tick, seen: Snapshot, allowed: int) -> None:
        asleep = None
        if self._sizing.asks and seen.workers - seen.off < allowed:
            asleep = self._census.measure(tick.now, tick.cpu, self.threads, self._load.busy)
        staff = self.pool.staff
        most = min(staff.ceiling, max(allowed, staff.min_workers)) + seen.off - seen.blocked
        bounds = staff.min_workers, most, staff.min_spare_workers
        count = self._sizing.decide(seen, asleep, self._refusal is not None, *bounds)
        if allowed != ALL and seen.idle > 0:
            self.decisions.note(seen.workers, count, seen.queued, self._why_held)
        elif count > 0 or self._sizing.settled:
            self.decisions.note(seen.workers, count, seen.queued, self._sizing.why)
        if count > 0:
            self._refusal = self.pool.start_workers(count)

    def _admit(self, tick: Tick, seen: Snapshot) -> int:
        """Tell the pool how many workers may run at a time; return that."""
        pool = self.pool
        count = functools.partial(self._census.sort, tick.now, pool)
        allowed = ALL if pool.max_queue == 0 else self._admission.decide(count)
        if seen.stands:
            before, used = self._overload.most, seen.workers - seen.off - seen.idle
            ended = seen.taken - seen.expired - used
            most = self._overload.decide(tick.now, ended, used, pool.max_wait)
            allowed = min(allowed, most)
            if most != before:
                self.decisions.note(seen.workers, 0, seen.queued, self._overload.why, new=True)
        else:
            self._overload.rest()
        if allowed != ALL or pool.staff.allowed != ALL:
            pool.admit(allowed)
        return allowed

    def _why_held(self) -> str:
        return (self._admission if self._overload.most == ALL else self._overload).why()


# Compiled functions have neither code objects nor frames.
_BELOW = frozenset(run.__code__ for run in (Crew._work, work, make_call, Probe.__call__) if hasattr(run, "__code__"))
"""The code that runs below a task in the thread of a worker."""
