"""Calls of loops whose functions are short, long or not known, on a pool whose counts are checked at every step."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ebbpool import AdaptiveExecutor, QueueFull
from support import seams
from support.common import TIMEOUT, eventually
from support.loops import turns

KINDS = ("short", "long", "unsure", "new")
WHERE = st.sampled_from(["pool", "pool", "lane", "first"])


def another(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that does the same and is another: it has code of its own."""
    assert isinstance(fn, FunctionType)
    return FunctionType(fn.__code__.replace(co_name=name), fn.__globals__, name)


@dataclass(eq=False)
class Call:
    """One call, and its gate.

    Attributes:
        line: What keeps its order: the calls of one asyncio task, or nothing.
        child: What it submits and waits for, if anything.
    """

    line: object = None
    child: Call | None = None
    future: Any = None
    gate: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    runs: list[int] = field(default_factory=list)


def perform(pool: AdaptiveExecutor, call: Call) -> None:
    call.runs.append(threading.get_ident())
    call.begun.set()
    if not call.gate.wait(3 * TIMEOUT):
        raise TimeoutError("nobody opened the gate")
    if call.child is not None:
        with suppress(RuntimeError, CancelledError):
            call.child.future = pool.submit(perform, pool, call.child)
            call.child.future.result(3 * TIMEOUT)


class TurnsModel(RuleBasedStateMachine):
    """Whatever is called, given up and resized: nothing is lost, and nobody has a thread that is not for it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.loop = asyncio.Runner()
        self.tasks: list[asyncio.Task[None]] = []
        self.settings = seams.setting()
        self.mutex: seams.CheckedMutex | None = None

    @initialize(
        max_workers=st.sampled_from([2, 3, 4, 33, 1]),
        max_queue=st.sampled_from([None, None, None, 2]),
        when_full=st.sampled_from(["block", "reject"]),
        short_first=st.sampled_from([True] * 7 + [False]),
        turn=st.sampled_from([0.0, 1e9]),
    )
    def make(self, max_workers: int, max_queue: int | None, when_full: Any, short_first: bool, turn: float) -> None:
        self.settings = seams.setting(overtaken=turn)
        self.max_queue, self.when_full = max_queue, when_full
        self.pool = AdaptiveExecutor(
            max_workers, max_queue=max_queue, when_full=when_full, short_first=short_first, keep_alive=0.01
        )
        self.mutex = seams.checked(self.pool)
        self.engine = seams.engine_of(self.pool)
        self.ones = not short_first or max_workers == 1
        self.functions = {kind: another(perform, kind) for kind in KINDS}
        self.targets: dict[str, Any] = {"pool": self.pool, "lane": self.pool.lane("narrow", limit=2)}
        self.targets["first"] = self.pool.lane("first", limit=2, first=True)
        # No other calls fade it, however many of them there are.
        self.tell("long", 1e6)
        self.tell("short", 1e-6)

    def tell(self, kind: str, seconds: float) -> None:
        with self.mutex or nullcontext():
            seams.know(self.pool, self.functions[kind], seconds, 50)

    def new(self, **more: Any) -> Call:
        self.calls.append(Call(**more))
        return self.calls[-1]

    def turn(self) -> None:
        """Let the loop turn, and wait until all workers have come to the queue that tasks wait for."""
        self.loop.run(turns())
        eventually(self.quiet)
        self.loop.run(turns())

    def quiet(self) -> bool:
        """Whether nothing waits for which there is a worker, or might be."""
        engine = self.engine
        if self.mutex is None:
            return True
        with self.mutex:
            waiting, staff = engine.backlog.waiting(), engine.staff
            return not (waiting and (staff.parked or engine._needs_worker()) and engine._has_room(1))

    @rule(tasks=st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), min_size=1, max_size=5), where=WHERE)
    def call(self, tasks: list[list[str]], where: str) -> None:
        """Make some calls, in tasks of their own; of the function "new" nothing is known before."""
        self.functions["new"] = another(perform, "new")
        self.tasks += [self.loop.get_loop().create_task(self.task(kinds, where)) for kinds in tasks]
        self.turn()

    async def task(self, kinds: list[str], where: str) -> None:
        # A call that has no place in a full queue may be overtaken.
        line = object()
        futures = []
        for kind in kinds:
            call = self.new(line=line)
            try:
                call.future = self.targets[where].run(self.functions[kind], self.pool, call)
                futures.append(call.future)
            except QueueFull:
                self.calls.remove(call)
        await asyncio.gather(*futures, return_exceptions=True)

    @precondition(lambda self: self.max_queue is None)
    @rule(way=st.sampled_from(["submit", "submit_first", "lent", "nested"]), kind=st.sampled_from(KINDS))
    def submit(self, way: str, kind: str) -> None:
        call = self.new(child=self.new() if way == "nested" else None)
        if way == "lent":
            call.future = seams.lift(self.pool, self.functions[kind], self.pool, call)
        else:
            take = self.pool.submit_first if way == "submit_first" else self.pool.submit
            call.future = take(self.functions[kind], self.pool, call)
        self.turn()

    # Which calls run at a moment is the threads' doing: what is drawn must not depend on it.

    @rule(place=st.integers(0, 99))
    def open_gate(self, place: int) -> None:
        running = [call for call in self.calls if call.begun.is_set() and not call.gate.is_set()]
        if running:
            running[place % len(running)].gate.set()
            self.turn()

    @rule(place=st.integers(0, 99))
    def cancel(self, place: int) -> None:
        futures = [call.future for call in self.calls if call.future is not None and not call.future.done()]

        async def cancel() -> None:
            # One that runs is abandoned.
            futures[place % len(futures)].cancel()

        if futures:
            self.loop.run(cancel())
            self.turn()

    @rule(max_workers=st.sampled_from([1, 2, 3, 5, 33]), allowed=st.sampled_from([1, 2, seams.ALL, seams.ALL]))
    def resize(self, max_workers: int, allowed: int) -> None:
        self.ones = self.ones and (max_workers == 1 or not self.engine.staff.short_first)
        self.pool.resize(max_workers=max_workers)
        self.engine.admit(allowed)
        self.turn()

    @rule(seconds=st.sampled_from([1e-9, 1e6]), ahead=st.sampled_from([0.0, 1.0]))
    def learn(self, seconds: float, ahead: float) -> None:
        """A function becomes short, or long; the timekeeper may see so at once, with all that runs taken for long."""
        self.tell("unsure", seconds)
        if ahead:
            seams.look_ahead(self.pool, ahead)
        self.turn()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "pool"):
            return
        stats = self.pool.stats()
        assert stats.went_first <= (0 if self.ones else stats.submitted), stats
        assert all(len(call.runs) <= 1 for call in self.calls)
        if self.mutex is None:
            return
        assert not self.mutex.wrong, self.mutex.wrong[0]
        places = {id(call): place for place, call in enumerate(self.calls)}
        last: dict[object, int] = {}
        for _, args in self.mutex.taken:
            call = args[-1]
            if call.line is not None:
                assert last.get(call.line, -1) < places[id(call)], "a call has overtaken one of its own task"
                last[call.line] = places[id(call)]

    def teardown(self) -> None:
        try:
            if hasattr(self, "pool") and sys.exc_info()[0] is None:
                self.end()
        finally:
            self.settings.close()
            for call in self.calls:
                call.gate.set()
            self.loop.close()
            if hasattr(self, "pool"):
                self.pool.shutdown(wait=False, cancel_futures=True)

    async def over(self) -> None:
        await asyncio.wait_for(asyncio.gather(*self.tasks), TIMEOUT)

    def end(self) -> None:
        for call in self.calls:
            call.gate.set()
        self.engine.admit(seams.ALL)
        self.loop.run(self.over())
        assert self.pool.wait_idle(TIMEOUT), self.pool.stats()
        self.pool.shutdown(timeout=TIMEOUT)
        self.holds()
        for call in self.calls:
            future = call.future
            assert future is None or (future.done() and (future.cancelled() or len(call.runs) == 1)), call
        stats = self.pool.stats()
        assert stats.submitted == stats.completed + stats.failed + stats.cancelled, stats
        assert (stats.failed, stats.workers) == (0, 0), stats
        if self.mutex is not None:
            assert not (self.engine.backlog.measured or self.engine.backlog.not_short)
