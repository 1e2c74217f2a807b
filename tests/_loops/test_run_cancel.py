"""`AdaptiveExecutor.run`, cancelled: what is queued never runs, what runs finishes, errors are told once."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import strategies
from support.common import LONG, Boom, Gate
from support.loops import Loops, Report, until

from ebbpool import AdaptiveExecutor
from ebbpool._testing import seams

variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default=None)


@dataclass
class Actor:
    """A task of the schedule: it awaits one call after another. `at` is the call it awaits, while it lives."""

    gates: list[Gate]
    fails: list[bool]
    task: asyncio.Task[Any]
    at: int = 0
    over: bool = False
    outcome: str = ""


@dataclass
class Model:
    """What the pool ought to do: a queue, so many workers, and what became of each call.

    Each call may have a context `apart`, so that it begins something.
    """

    workers: int
    apart: bool
    actors: list[Actor] = field(default_factory=list)
    queue: list[tuple[int, int]] = field(default_factory=list)
    running: list[tuple[int, int]] = field(default_factory=list)
    ran: set[tuple[int, int]] = field(default_factory=set)
    submitted: list[tuple[int, int]] = field(default_factory=list)
    cancelled: int = 0
    reported: int = 0

    def submit(self, actor: int, number: int) -> None:
        self.submitted.append((actor, number))
        # A task's later calls go before those that begin.
        going_on = sum(number > 0 for _, number in self.queue)
        self.queue.insert(going_on if number > 0 and not self.apart else len(self.queue), (actor, number))
        self.take()

    def take(self) -> None:
        while self.queue and len(self.running) < self.workers:
            self.running.append(self.queue.pop(0))

    def cancel(self, index: int) -> None:
        actor = self.actors[index]
        if actor.over:
            return
        actor.over, actor.outcome = True, "cancelled"
        if (index, actor.at) in self.queue:
            self.queue.remove((index, actor.at))
            self.cancelled += 1

    def finish(self, index: int, number: int) -> None:
        self.running.remove((index, number))
        self.ran.add((index, number))
        self.take()
        actor = self.actors[index]
        fails = actor.fails[number]
        if actor.over:
            self.reported += fails
        elif fails:
            actor.over, actor.outcome = True, "failed"
        elif number + 1 == len(actor.gates):
            actor.over, actor.outcome = True, "returned"
        else:
            actor.at += 1
            self.submit(index, actor.at)


@hypothesis.settings(max_examples=30, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    data=strategies.data(), workers=strategies.integers(1, 2), max_queue=strategies.sampled_from([None, 1, 2])
)
def test_tasks_cancelled_at_any_of_their_calls(
    loops: Loops, data: strategies.DataObject, workers: int, max_queue: int | None
) -> None:
    """Start tasks, cancel them, let calls end, in any order: a model knows what runs, and what is reported.

    Each example has a loop of its own: pytest-asyncio would run all on one, where one may be in the way of the next.
    """
    reports: list[Report] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, report: reports.append(report))
        # In a bounded queue the order is that of arrival in line.
        model = Model(workers, max_queue is not None)
        ran: set[tuple[int, int]] = set()
        submitted: list[tuple[int, int]] = []
        pool = AdaptiveExecutor(workers, max_queue=max_queue)

        def call(index: int, number: int) -> tuple[int, int]:
            actor = model.actors[index]
            actor.gates[number]()
            ran.add((index, number))
            if actor.fails[number]:
                raise Boom((index, number))
            return index, number

        async def work(index: int, count: int) -> None:
            for number in range(count):
                run = functools.partial(contextvars.Context().run, pool.run) if model.apart else pool.run
                future = run(call, index, number)
                submitted.append((index, number))
                assert await future == (index, number)

        async def settle() -> None:
            def settled() -> bool:
                stats = pool.stats()
                return (
                    submitted == model.submitted
                    and all(model.actors[index].gates[number].peak == 1 for index, number in model.running)
                    and stats.running == len(model.running)
                    and stats.cancelled == model.cancelled
                    and stats.submitted - stats.cancelled - stats.queued == len(model.running) + len(model.ran)
                    and (stats.queued == len(model.queue) or max_queue is not None)
                    and len(reports) == model.reported
                    and all(actor.over == actor.task.done() for actor in model.actors)
                )

            await until(settled, f"{model}, {pool.stats()}")
            for index, number in model.queue:
                assert model.actors[index].gates[number].peak == 0
            assert ran == model.ran

        def start() -> None:
            count = data.draw(strategies.integers(1, 3), "calls")
            index = len(model.actors)
            fails = data.draw(strategies.lists(strategies.booleans(), min_size=count, max_size=count), "fails")
            actor = Actor([Gate() for _ in range(count)], fails, None)  # type: ignore[arg-type]
            model.actors.append(actor)
            actor.task = asyncio.ensure_future(work(index, count))
            model.submit(index, 0)

        try:
            for _ in range(data.draw(strategies.integers(1, 12), "steps")):
                steps: list[Any] = [("start",)]
                steps += [("cancel", index) for index, actor in enumerate(model.actors) if not actor.over]
                steps += [("finish", *place) for place in model.running]
                match data.draw(strategies.sampled_from(steps), "step"):
                    case ("start",):
                        start()
                    case ("cancel", index):
                        model.actors[index].task.cancel()
                        model.cancel(index)
                    case ("finish", index, number):
                        model.finish(index, number)
                        model.actors[index].gates[number].open()
                await settle()
            while model.running:
                index, number = model.running[0]
                model.finish(index, number)
                model.actors[index].gates[number].open()
                await settle()
        finally:
            for actor in model.actors:
                for gate in actor.gates:
                    gate.open()
            await asyncio.gather(*[actor.task for actor in model.actors], return_exceptions=True)
            pool.shutdown(wait=False)
            await until(lambda: pool.stats().workers == 0)
        for actor in model.actors:
            task = actor.task
            outcome = "cancelled" if task.cancelled() else "failed" if task.exception() is not None else "returned"
            assert outcome == actor.outcome
        assert ran == model.ran

    with seams.setting(overtaken=LONG):
        loops(main)
    wanted = [report for report in reports if type(report["exception"]) is Boom]
    assert wanted == reports
