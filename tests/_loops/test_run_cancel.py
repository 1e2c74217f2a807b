"""`AdaptiveExecutor.run`, cancelled: what is queued never runs, what runs finishes, errors are told once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import strategies
from support.common import Boom, Gate
from support.loops import Loops, Report, until

from ebbpool import AdaptiveExecutor


@dataclass(eq=False)
class Call:
    """A call, and the task that awaits it. `outcome` is what becomes of the task; nothing while it lives."""

    fails: bool
    gate: Gate = field(default_factory=Gate)
    runs: bool = True
    outcome: str = ""
    task: asyncio.Task[Any] | None = None

    def __call__(self) -> None:
        self.gate()
        if self.fails:
            raise Boom


@dataclass
class Model:
    """What the pool ought to do: a queue, so many workers, and what became of each call."""

    workers: int
    calls: list[Call] = field(default_factory=list)
    queue: list[Call] = field(default_factory=list)
    running: list[Call] = field(default_factory=list)
    ended: int = 0
    cancelled: int = 0
    reported: int = 0

    def take(self) -> None:
        while self.queue and len(self.running) < self.workers:
            self.running.append(self.queue.pop(0))

    def start(self, call: Call) -> None:
        self.calls.append(call)
        self.queue.append(call)
        self.take()

    def cancel(self, call: Call) -> None:
        call.outcome = "cancelled"
        if call in self.queue:
            self.queue.remove(call)
            call.runs = False
            self.cancelled += 1

    def finish(self, call: Call) -> None:
        self.running.remove(call)
        self.ended += 1
        self.take()
        if call.outcome:
            self.reported += call.fails
        else:
            call.outcome = "failed" if call.fails else "returned"


@hypothesis.settings(max_examples=30, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    data=strategies.data(), workers=strategies.integers(1, 2), max_queue=strategies.sampled_from([None, 1, 2])
)
def test_tasks_cancelled_at_any_time(
    loops: Loops, data: strategies.DataObject, workers: int, max_queue: int | None
) -> None:
    """Start tasks, cancel them, let calls end, in any order: a model knows what runs, and what is reported.

    Each example has a loop of its own: pytest-asyncio would run all on one, where one may be in the way of the next.
    """
    reports: list[Report] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, report: reports.append(report))
        model = Model(workers)
        submitted: list[Call] = []
        pool = AdaptiveExecutor(workers, max_queue=max_queue)

        async def work(call: Call) -> None:
            future = pool.run(call)
            submitted.append(call)
            await future

        async def settle() -> None:
            def settled() -> bool:
                stats = pool.stats()
                return (
                    submitted == model.calls
                    and all(call.gate.peak == 1 for call in model.running)
                    and stats.running == len(model.running)
                    and stats.cancelled == model.cancelled
                    and stats.submitted - stats.cancelled - stats.queued == len(model.running) + model.ended
                    and (stats.queued == len(model.queue) or max_queue is not None)
                    and len(reports) == model.reported
                    and all(bool(call.outcome) == call.task.done() for call in model.calls if call.task)
                )

            await until(settled, f"{model}, {pool.stats()}")
            assert not any(call.gate.peak for call in model.queue)

        async def finish(call: Call) -> None:
            model.finish(call)
            call.gate.open()
            await settle()

        try:
            for _ in range(data.draw(strategies.integers(1, 16), "steps")):
                living = [call for call in model.calls if not call.outcome]
                steps = [("start", -1)]
                steps += [("cancel", place) for place in range(len(living))]
                steps += [("finish", place) for place in range(len(model.running))]
                match data.draw(strategies.sampled_from(steps), "step"):
                    case ("finish", place):
                        await finish(model.running[place])
                    case ("cancel", place):
                        assert living[place].task.cancel()  # type: ignore[union-attr]  # it has been started
                        model.cancel(living[place])
                    case _:
                        call = Call(data.draw(strategies.booleans(), "fails"))
                        call.task = asyncio.ensure_future(work(call))
                        model.start(call)
                await settle()
            while model.running:
                await finish(model.running[0])
        finally:
            for call in model.calls:
                call.gate.open()
            await asyncio.gather(*[call.task for call in model.calls if call.task], return_exceptions=True)
            pool.shutdown(wait=False)
            await until(lambda: pool.stats().workers == 0)
        for call in model.calls:
            task: Any = call.task
            outcome = "cancelled" if task.cancelled() else "failed" if task.exception() is not None else "returned"
            assert (outcome, call.gate.peak) == (call.outcome, call.runs)

    loops(main)
    assert all(type(report["exception"]) is Boom for report in reports)
