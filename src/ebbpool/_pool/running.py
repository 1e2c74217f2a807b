"""What runs right now: each task of a pool, with its name, its age and its place."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from types import CodeType

from ebbpool._called import called_name
from ebbpool._clock import monotonic
from ebbpool._core.accel import Pool
from ebbpool._frames import stacks as stacks_of


@dataclass(frozen=True)
class RunningTask:
    """A task that runs.

    Attributes:
        name: The module and the name of the function that was to be called, seen through what wraps it: partials,
            contexts, and what anyio, asyncio, Starlette, FastAPI and asgiref put around it. A callable without a name
            goes by that of its type.
        lane: The name of its lane, or None.
        thread: The name of its thread.
        native_id: The number that the operating system gave the thread; None if it gives none.
        seconds: How long it has run, to about 0.05 s.
        blocked: Whether it waits for a future of this same pool.
        stack: The task's own part of the thread's stack, as `traceback` writes it, or a line in parentheses that says
            why there is none: without a GIL it cannot be read safely. None if it was not asked for.
        abandoned: Whether its await was cancelled, so that nobody wants what it returns.
        short: Whether it went ahead of others, because calls of its function are known to be short.
    """

    __module__ = "ebbpool"

    name: str
    lane: str | None
    thread: str
    native_id: int | None
    seconds: float
    blocked: bool
    stack: str | None
    abandoned: bool = False
    short: bool = False


def running(pool: Pool, below: Container[CodeType], stacks: bool) -> list[RunningTask]:
    """Return the running tasks of `pool`, the longest first."""
    tasks = pool.survey(True).running
    texts = stacks_of([task.thread.ident for task in tasks], below) if stacks else [None] * len(tasks)
    now = monotonic()
    found = [
        RunningTask(
            called_name(*task.call),
            None if task.lane is None else task.lane.name,
            task.thread.name,
            getattr(task.thread, "native_id", None),
            max(0.0, now - task.since),
            task.blocked,
            text,
            task.abandoned > 0,
            task.short,
        )
        for task, text in zip(tasks, texts, strict=True)
    ]
    return sorted(found, key=lambda task: -task.seconds)


def described(task: RunningTask) -> str:
    """Return what a report says of a task: a line, and below it the stack, if there is one."""
    lane = f", lane {task.lane!r}" if task.lane is not None else ""
    state = ", waits for its own pool" if task.blocked else ""
    state += ", abandoned: nobody waits for it" if task.abandoned else ""
    return f"{task.thread}: {task.name}{lane}, running for {task.seconds:.1f} s{state}\n{task.stack or ''}"
