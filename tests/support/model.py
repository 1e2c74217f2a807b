"""A model of the executor, run side by side with the real one by hypothesis.

Tasks wait at gates that only the model opens, so the model can say after every step which tasks run, which
wait, and what every figure of ``stats()`` is. Nothing here sleeps: a step ends when the events that it must
cause have come.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import CancelledError, wait
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ebbpool import AdaptiveExecutor, Future, QueueFull
from support import seams
from support.common import Background, Boom
from support.loops import given_up

PATIENCE = 10.0
PREFIX = "modelled"
CLOSED = "cannot schedule new futures after shutdown"


@dataclass(eq=False)
class Task:
    """One task and its gate, with what the model expects of it."""

    number: int
    fails: bool = False
    nested: bool = False
    child: Task | None = None
    parent: Task | None = None
    state: str = "queued"
    future: Future[Any] | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)
    handed: threading.Event = field(default_factory=threading.Event)
    abandoned: bool = False
    runs: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def body(self, pool: AdaptiveExecutor) -> int:
        self.runs.append(threading.get_ident())
        self.started.set()
        if not self.gate.wait(PATIENCE):
            self.wrong.append("nobody opened the gate")
        if self.child is not None:
            self.child.future = pool.submit(self.child.body, pool)
            self.child.handed.set()
            assert self.child.future.result(timeout=PATIENCE) == self.child.number
        if self.fails:
            raise Boom(self.number)
        return self.number


class ExecutorModel(RuleBasedStateMachine):
    """What an executor does, in the plainest words; the invariants compare the real one with it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool: AdaptiveExecutor
        self.tasks: list[Task] = []
        self.queue: list[Task] = []
        self.running: list[Task] = []
        self.submitter: tuple[Task, Background] | None = None
        self.closed = False
        self.rejected = 0
        self.highest = 0
        self.most_blocked = 0
        self.most_abandoned = 0
        self.mutex: seams.CheckedMutex | None = None

    @initialize(
        max_workers=st.integers(1, 4),
        max_queue=st.sampled_from([None, None, 0, 1, 2, 3]),
        when_full=st.sampled_from(seams.POLICIES),
        others=st.fixed_dictionaries(
            {
                "min_workers": st.integers(0, 1),
                "min_spare_workers": st.integers(0, 1),
                "keep_alive": st.sampled_from([0.0, 0.001, 30.0]),
            }
        ),
    )
    def make(self, max_workers: int, max_queue: int | None, when_full: Any, others: dict[str, Any]) -> None:
        self.max_workers = self.highest = max_workers
        self.max_queue = max_queue
        self.when_full = when_full
        self.pool = AdaptiveExecutor(max_workers, PREFIX, max_queue=max_queue, when_full=when_full, **others)
        self.mutex = seams.checked(self.pool)

    # What the model knows.

    def blocked(self) -> int:
        return sum(task.state == "blocked" for task in self.running)

    def active(self) -> int:
        return len(self.running) - self.blocked() - self.written_off()

    def written_off(self) -> int:
        """How many calls do not count because nobody waits for them; a pool of one counts them."""
        return min(sum(task.abandoned for task in self.running), self.max_workers) if self.max_workers > 1 else 0

    def has_room(self) -> bool:
        """Whether submit() takes a task at once: by a free worker, a new worker, or a place in the queue."""
        return self.active() < self.max_workers or self.max_queue is None or len(self.queue) < self.max_queue

    def surely_free(self) -> bool:
        """Whether `has_room` is certain; without places it rests on a worker that may not have parked yet."""
        return self.max_queue != 0 or not self.running or self.active() >= self.max_workers

    def new_task(self, **kinds: Any) -> Task:
        task = Task(len(self.tasks), **kinds)
        self.tasks.append(task)
        return task

    def accept(self, task: Task) -> None:
        task.state = "queued"
        self.queue.append(task)
        self.settle()

    def settle(self) -> None:
        """Let the model's free workers take the oldest tasks, and wait until the real ones have done so."""
        while True:
            if self.queue and self.active() < self.max_workers:
                task = self.queue.pop(0)
                task.state = "running"
                self.running.append(task)
                assert task.started.wait(PATIENCE), f"task {task.number} never started: {self.pool.stats()}"
            elif self.submitter is not None and not self.closed and self.has_room():
                (task, submitting), self.submitter = self.submitter, None
                assert submitting.over.wait(PATIENCE), f"submit() still waits: {self.pool.stats()}"
                task.future = submitting.join()
                task.state = "queued"
                self.queue.append(task)
            else:
                return

    def finish(self, task: Task) -> None:
        """The task's gate is open: see it end as the model says, with its parent."""
        assert task.future is not None
        if task.fails:
            with pytest.raises(Boom) as caught:
                task.future.result(timeout=PATIENCE)
            assert caught.value.args == (task.number,)
        else:
            assert task.future.result(timeout=PATIENCE) == task.number
        task.state = "failed" if task.fails else "completed"
        self.running.remove(task)
        if task.parent is not None:
            self.finish(task.parent)

    def count(self, *states: str) -> int:
        return sum(task.state in states for task in self.tasks)

    # Submitting.

    @precondition(lambda self: not self.closed and self.submitter is None and self.surely_free())
    @rule(count=st.sampled_from([1, 1, 2, 5, 8]), fails=st.booleans())
    def submit(self, count: int, fails: bool) -> None:
        """Submit, often until something is full, so that the bounds are met often."""
        for _ in range(count):
            if self.submitter is None and self.surely_free():
                self.submit_one(fails)

    def submit_one(self, fails: bool) -> None:
        room = self.has_room()
        task = self.new_task(fails=fails)
        if room:
            task.future = self.pool.submit(task.body, self.pool)
            self.accept(task)
        elif self.when_full == "reject":
            with pytest.raises(QueueFull):
                self.pool.submit(task.body, self.pool)
            task.state = "rejected"
            self.rejected += 1
        elif self.when_full == "caller_runs":
            task.gate.set()
            task.future = self.pool.submit(task.body, self.pool)
            assert task.future.done()
            assert task.runs == [threading.get_ident()]
            self.running.append(task)
            self.finish(task)
        else:
            self.submitter = task, Background(lambda: self.pool.submit(task.body, self.pool))
            task.state = "outside"

    @precondition(lambda self: not self.closed and self.max_queue is None)
    @rule(fails=st.booleans())
    def submit_parent(self, fails: bool) -> None:
        task = self.new_task(fails=fails, nested=True)
        task.future = self.pool.submit(task.body, self.pool)
        self.accept(task)

    @precondition(lambda self: self.closed)
    @rule()
    def submit_after_shutdown(self) -> None:
        task = self.new_task()
        with pytest.raises(RuntimeError, match=CLOSED):
            self.pool.submit(task.body, self.pool)
        task.state = "late"

    # What tasks do.

    @precondition(lambda self: any(task.state == "running" for task in self.running))
    @rule(data=st.data())
    def open_gate(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from([task for task in self.running if task.state == "running"]))
        if not task.nested or self.closed:
            self.let_go(task)
            return
        task.child = self.new_task(parent=task)
        task.state = "blocked"
        self.most_blocked = max(self.most_blocked, self.blocked())
        task.gate.set()
        assert task.child.handed.wait(PATIENCE), f"the child was not taken: {self.pool.stats()}"
        self.accept(task.child)

    def let_go(self, task: Task) -> None:
        task.gate.set()
        self.finish(task)
        self.settle()

    @precondition(lambda self: self.running)
    @rule()
    def open_all_gates(self) -> None:
        """Everything that was accepted ends, in whatever order the workers like."""
        while self.queue or self.running:
            self.settle()
            self.let_go(next(task for task in self.running if task.state == "running"))

    # Futures.

    @precondition(lambda self: self.count("queued", "running", "blocked", "completed", "cancelled"))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        known = [task for task in self.tasks if task.future is not None and task.parent is None]
        if not known:
            return
        task = data.draw(st.sampled_from(known))
        assert task.future is not None
        expected = task.state in ("queued", "cancelled")
        assert task.future.cancel() is expected
        if task.state == "queued":
            self.queue.remove(task)
            task.state = "cancelled"
            with pytest.raises(CancelledError):
                task.future.result(timeout=0)
            assert wait([task.future], timeout=0).done == {task.future}
            self.settle()

    @precondition(lambda self: any(task.state == "running" and not task.nested for task in self.running))
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        known = [task for task in self.running if task.state == "running" and not task.nested and not task.parent]
        if known:
            task = data.draw(st.sampled_from(known))
            given_up(task.future)
            task.abandoned = True
            self.most_abandoned = max(self.most_abandoned, self.written_off())
            self.settle()

    # The pool.

    @precondition(lambda self: not self.closed)
    @rule(max_workers=st.integers(1, 5), keep_alive=st.sampled_from([0.0, 0.001, 30.0]))
    def resize(self, max_workers: int, keep_alive: float) -> None:
        self.max_workers = max_workers
        self.highest = max(self.highest, max_workers)
        self.most_abandoned = max(self.most_abandoned, self.written_off())
        self.pool.resize(max_workers=max_workers, min_workers=0, keep_alive=keep_alive)
        assert self.pool._max_workers == max_workers
        self.settle()

    @precondition(lambda self: not self.closed and self.max_queue is not None)
    @rule(max_queue=st.sampled_from([1, 2, 4, None]))
    def resize_queue(self, max_queue: int | None) -> None:
        self.max_queue = max_queue
        self.pool.resize(max_queue=max_queue)
        self.settle()

    @precondition(lambda self: len(self.tasks) > 8)
    @rule(cancel_futures=st.booleans())
    def shutdown(self, cancel_futures: bool) -> None:
        self.pool.shutdown(wait=False, cancel_futures=cancel_futures)
        self.close(cancel_futures)

    @precondition(lambda self: self.closed and self.running)
    @rule()
    def shutdown_that_times_out(self) -> None:
        with pytest.raises(TimeoutError) as caught:
            self.pool.shutdown(timeout=0.001)
        text = str(caught.value)
        assert text.count("body") >= len(self.running), text
        assert f"{PREFIX}_" in text

    def close(self, cancel_futures: bool) -> None:
        self.closed = True
        if self.submitter is not None:
            (task, submitting), self.submitter = self.submitter, None
            assert submitting.over.wait(PATIENCE), f"submit() outlived shutdown: {self.pool.stats()}"
            with pytest.raises(RuntimeError, match=CLOSED):
                submitting.join()
            task.state = "late"
        if cancel_futures:
            for task in self.queue:
                assert task.future is not None and task.future.cancelled()
                task.state = "cancelled"
            self.queue.clear()
            for parent in [task for task in self.running if task.child and task.child.state == "cancelled"]:
                self.fail_parent(parent)
        self.settle()

    def fail_parent(self, parent: Task) -> None:
        assert parent.future is not None
        with pytest.raises(CancelledError):
            parent.future.result(timeout=PATIENCE)
        parent.state = "failed"
        self.running.remove(parent)

    # What always holds.

    @invariant()
    def counts_add_up(self) -> None:
        assert not (self.mutex and self.mutex.wrong), self.mutex.wrong[0]

    @invariant()
    def futures_agree(self) -> None:
        for task in self.tasks:
            assert not task.wrong, task.wrong
            assert len(task.runs) == (task.state in ("running", "blocked", "completed", "failed")), task
            future = task.future
            if future is None:
                assert task.state in ("outside", "late", "rejected"), task
                continue
            assert future.cancelled() == (task.state == "cancelled"), task
            assert future.done() == (task.state in ("completed", "failed", "cancelled")), task
            assert future.running() == (task.state in ("running", "blocked")), task

    @invariant()
    def figures_agree(self) -> None:
        if not self.tasks:
            return
        stats = self.pool.stats()
        assert stats.queued == self.pool._work_queue.qsize() == len(self.queue)
        assert stats.submitted == self.count("queued", "running", "blocked", "completed", "failed", "cancelled")
        assert stats.cancelled == self.count("cancelled")
        assert stats.rejected == self.rejected
        assert stats.running >= self.active()
        most = self.highest + self.most_blocked + self.most_abandoned
        assert max(stats.workers, len(self.pool._threads)) <= most, stats
        assert stats.abandoned == sum(task.abandoned for task in self.running), stats
        assert self.pool._shutdown == self.closed
        if self.submitter is not None:
            assert not self.submitter[1].over.is_set(), "submit() found room in a full queue"
        if not self.queue:
            assert not stats.oldest_wait
        if not self.queue and not self.running:
            assert self.pool.wait_idle(PATIENCE) is True, stats
            stats = self.pool.stats()
            assert (stats.running, stats.blocked) == (0, 0), stats
            assert (stats.completed, stats.failed) == (self.count("completed"), self.count("failed"))

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        try:
            # After a failure model and pool disagree, and there is nothing to wait for.
            if sys.exc_info()[0] is None:
                self.end()
        finally:
            for task in self.tasks:
                task.gate.set()
            self.pool.shutdown(wait=False)

    def end(self) -> None:
        while self.queue or self.running or self.submitter:
            self.settle()
            self.let_go(next(task for task in self.running if task.state == "running"))
        self.pool.shutdown(timeout=PATIENCE)
        stats = self.pool.stats()
        assert (stats.completed, stats.failed) == (self.count("completed"), self.count("failed"))
        assert (stats.workers, stats.queued, stats.running, stats.blocked) == (0, 0, 0, 0), stats
        assert stats.started == stats.retired


def profile(examples: int, **more: Any) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        # A shorter example is seldom a failure too when threads take part, and each try may wait in vain.
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        **more,
    )
