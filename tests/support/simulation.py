"""A discrete-event simulation of a pool on a machine: no thread, no clock, the same figures on every run.

It drives the rule of growth as the timekeeper does. Modelled are: processors that are shared in slices, a GIL
(one processor for all, handed over a switch interval after somebody asks for it), the time that starting a
thread takes, a timekeeper that needs a processor like everybody else and so looks late, and workers parked on a stack.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ebbpool._testing.rules import Asleep, Sample, Sizing, WorkerBounds

FOREVER: Final = float("inf")

REST: Final = 0.0002
"""Seconds for which the timekeeper rests at least, between starting workers and the next look."""


@dataclass(frozen=True)
class Machine:
    """Where the pool runs. Times are in seconds.

    Attributes:
        cpus: Processors.
        gil: Whether one thread of the process computes at a time.
        quantum: How long a thread keeps a processor, or the GIL, that others want.
        start_cost: Processor time of the timekeeper to start a thread.
        arrive_cost: Processor time of a thread from its start, or from its wake-up, to its first task.
        look_cost: Processor time of one look.
        slack: How late timers are on an idle machine.
    """

    cpus: int = 2
    gil: bool = False
    quantum: float = 0.003
    start_cost: float = 60e-6
    arrive_cost: float = 30e-6
    look_cost: float = 20e-6
    slack: float = 80e-6


GIL: Final = Machine(gil=True, quantum=0.005)
FREE: Final = Machine()


@dataclass(eq=False)
class Task:
    """One call.

    Attributes:
        steps: What it does: positive seconds of computing, negative ones of blocking.
        submitted: When it was.
        wait: How long it was in the queue.
        done: Whether it has finished.
    """

    steps: tuple[float, ...]
    submitted: float = 0.0
    wait: float = -1.0
    done: bool = False


def compute(seconds: float) -> Task:
    return Task((seconds,))


def sleep(seconds: float) -> Task:
    return Task((-seconds,))


def _nothing() -> None:
    """Do nothing."""


class _Thread:
    """Something that needs processor time, now and then."""

    def __init__(self, urgent: bool = False) -> None:
        self.urgent = urgent
        self.rest = 0.0
        self.then: Callable[[], None] = _nothing
        self.since = 0.0
        self.turn = 0
        self.slice = 0.0
        self.limited = FOREVER


class Processors:
    """Processors, or a GIL, shared in slices by the threads that want to compute; and the simulated time."""

    def __init__(self, machine: Machine) -> None:
        self.now = 0.0
        self._count = 1 if machine.gil else machine.cpus
        self._quantum = machine.quantum
        self._running: list[_Thread] = []
        self._ready: deque[_Thread] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._used = 0.0
        self._going: _Thread | None = None

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, event = heapq.heappop(self._events)
        event()

    def used(self) -> float:
        """Return the processor time of the process so far."""
        return self._used + sum(self.now - thread.since for thread in self._running)

    def run(self, thread: _Thread, seconds: float, then: Callable[[], None]) -> None:
        """Have `thread` compute for `seconds` of processor time, then call `then`."""
        thread.rest, thread.then = seconds, then
        if thread is self._going:
            self._ready.appendleft(thread)
            return
        thread.slice = self._quantum
        if thread.urgent and len(self._running) >= self._count:
            longest = min(self._running, key=lambda other: other.since)
            self._take_off(longest)
            self._ready.extendleft((longest, thread))
        else:
            self._ready.append(thread)
        self._share()

    def _share(self) -> None:
        while self._ready and len(self._running) < self._count:
            thread = self._ready.popleft()
            thread.since = self.now
            self._running.append(thread)
            self.at(self.now + thread.rest, partial(self._finish, thread, thread.turn))
        if self._ready:
            for thread in self._running:
                if thread.limited == FOREVER:
                    thread.limited = self.now
                    self.at(self.now + thread.slice, partial(self._expire, thread, thread.turn))

    def _take_off(self, thread: _Thread) -> None:
        self._running.remove(thread)
        thread.turn += 1
        spent = self.now - thread.since
        thread.rest = max(0.0, thread.rest - spent)
        thread.slice = max(0.0, thread.slice - max(0.0, self.now - thread.limited))
        thread.limited = FOREVER
        self._used += spent

    def _expire(self, thread: _Thread, turn: int) -> None:
        if thread.turn == turn:
            if self._ready:
                self._take_off(thread)
                self._ready.append(thread)
            thread.slice, thread.limited = self._quantum, FOREVER
            self._share()

    def _finish(self, thread: _Thread, turn: int) -> None:
        if thread.turn == turn:
            self._take_off(thread)
            # What goes on at once keeps the processor.
            self._going = thread
            thread.then()
            self._going = None
            self._share()


@dataclass
class Result:
    """What came of it.

    Attributes:
        seconds: When the last task finished.
        peak: The most workers there were.
        waits: How long each task was in the queue, in the order of their submission.
        timeline: When the number of workers changed, and to what.
        looks: How often the timekeeper looked.
    """

    seconds: float = 0.0
    peak: int = 0
    waits: list[float] = field(default_factory=list)
    timeline: list[tuple[float, int]] = field(default_factory=list)
    looks: int = 0


class Simulation:
    """One pool, one timekeeper, one machine."""

    def __init__(self, machine: Machine, max_workers: int = 200) -> None:
        self.machine = machine
        self.limits = WorkerBounds(0, max_workers, 0)
        self.result = Result()
        self._processors = Processors(machine)
        self._sizing = Sizing()
        self._timekeeper = _Thread(urgent=not machine.gil)
        self._main = _Thread()
        self._queue: deque[Task] = deque()
        self._parked: list[_Thread] = []
        self._tasks: list[Task] = []
        self._workers = self._starting = self._searching = self._sleeping = self._taken = 0
        self._pending = 0
        self._watching = False
        self._ended = -FOREVER
        self._seen = (0.0, 0.0, 0)
        self._counted = -FOREVER
        self._asleep: Asleep | None = None

    def submit(self, *tasks: Task, at: float = 0.0, every: float = 0.0) -> None:
        """Have `tasks` submitted from `at` on, one `every` so many seconds."""
        for number, task in enumerate(tasks):
            self._pending += 1
            self._processors.at(at + number * every, partial(self._arrived, task))

    def compute(self, seconds: float, at: float = 0.0) -> None:
        """Have the main thread compute for `seconds` of processor time from `at` on."""
        self._processors.at(at, partial(self._processors.run, self._main, seconds, _nothing))

    def run(self) -> Result:
        """Run until all tasks are done.

        Raises:
            AssertionError: The tasks were not done within a simulated hour.
        """
        self._watch()
        while self._pending:
            self._processors.step()
            assert self._processors.now < 3600, "tasks are left waiting"
        self.result.seconds = self._processors.now
        self.result.waits = [task.wait for task in self._tasks]
        return self.result

    def _arrived(self, task: Task) -> None:
        task.submitted = self._processors.now
        self._tasks.append(task)
        self._queue.append(task)
        if not self._workers:
            self._start()
        self._wake()
        self._watch()

    def _wake(self) -> None:
        if self._queue and self._parked and not self._searching:
            worker = self._parked.pop()
            self._searching += 1
            self._processors.run(worker, self.machine.arrive_cost, partial(self._woken, worker))

    def _woken(self, worker: _Thread) -> None:
        self._searching -= 1
        self._next(worker)

    def _start(self) -> None:
        self._workers += 1
        self._starting += 1
        self._count()
        worker = _Thread()
        self._processors.run(worker, self.machine.arrive_cost, partial(self._come, worker))

    def _come(self, worker: _Thread) -> None:
        self._starting -= 1
        self._next(worker)

    def _count(self) -> None:
        self.result.peak = max(self.result.peak, self._workers)
        self.result.timeline.append((self._processors.now, self._workers))

    def _next(self, worker: _Thread) -> None:
        if self._queue:
            task = self._queue.popleft()
            self._taken += 1
            task.wait = self._processors.now - task.submitted
            self._wake()
            self._go_on(worker, task, 0)
        else:
            self._parked.append(worker)

    def _go_on(self, worker: _Thread, task: Task, number: int) -> None:
        if number == len(task.steps):
            task.done = True
            self._pending -= 1
            self._next(worker)
            return
        step = task.steps[number]
        then = partial(self._go_on, worker, task, number + 1)
        if step > 0:
            self._processors.run(worker, step, then)
        else:
            self._sleeping += 1
            self._processors.at(self._processors.now - step, partial(self._resume, worker, then))

    def _resume(self, worker: _Thread, then: Callable[[], None]) -> None:
        self._sleeping -= 1
        self._processors.run(worker, 5e-6, then)

    def _idle(self) -> int:
        return len(self._parked) + self._searching

    def _watch(self) -> None:
        if not self._watching and self._queue:
            self._watching = True
            self._sizing.begin(self._processors.now - self._ended)
            self._seen = (self._processors.now, self._processors.used(), self._taken)
            self._sleep()

    def _sleep(self) -> None:
        asked = max(self._seen[0] + self._sizing.tick, self._processors.now + REST)
        look = partial(self._look, asked)
        wake = partial(self._processors.run, self._timekeeper, self.machine.look_cost, look)
        self._processors.at(asked + self.machine.slack, wake)

    def _look(self, asked: float) -> None:
        if not self._queue:
            self._watching = False
            self._ended = self._processors.now
            return
        self.result.looks += 1
        now, used = self._processors.now, self._processors.used()
        before, used_before, taken_before = self._seen
        self._seen = (now, used, self._taken)
        sample = Sample(
            queued=len(self._queue),
            taken=self._taken - taken_before,
            workers=self._workers,
            starting=self._starting,
            idle=self._idle(),
            blocked=0,
            elapsed=now - before,
            late=now - asked,
            cpu=used - used_before,
            cpus=self.machine.cpus,
            asleep=self._census() if self._sizing.asks else None,
        )
        count = self._sizing.decide(sample, self.limits)
        self._start_many(count)

    def _census(self) -> Asleep | None:
        now = self._processors.now
        if now - self._counted >= 300e-6 * self._workers:
            self._counted = now
            self._asleep = Asleep(self._workers - self._starting, self._sleeping, len(self._parked))
        return self._asleep

    def _start_many(self, count: int) -> None:
        if count:
            self._processors.run(self._timekeeper, self.machine.start_cost, partial(self._started, count - 1))
        else:
            self._sleep()

    def _started(self, rest: int) -> None:
        if self._workers < self.limits.max_workers:
            self._start()
        self._start_many(rest)


def simulate(
    machine: Machine,
    tasks: Iterable[Task],
    *,
    max_workers: int = 200,
    every: float = 0.0,
) -> Result:
    """Submit `tasks` to a cold pool, one `every` so many seconds, and run until all are done."""
    simulation = Simulation(machine, max_workers)
    simulation.submit(*tasks, every=every)
    return simulation.run()
