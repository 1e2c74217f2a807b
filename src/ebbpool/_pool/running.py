"""What runs right now: each task of a pool, with its name, its age and its place."""

from __future__ import annotations

from collections.abc import Container
from types import CodeType
from typing import TYPE_CHECKING

from ebbpool._called import called_name
from ebbpool._clock import monotonic
from ebbpool._core.accel import Pool, survey
from ebbpool._frames import stacks as stacks_of

if TYPE_CHECKING:
    from ebbpool._pool.reports import RunningTask


def running(pool: Pool, below: Container[CodeType], stacks: bool) -> list[RunningTask]:
    """Return the running tasks of `pool`, the longest first."""
    from ebbpool._pool.reports import RunningTask

    tasks = survey(pool, True).running
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
    state += ", abandoned: its await was cancelled" if task.abandoned else ""
    return f"{task.thread}: {task.name}{lane}, running for {task.seconds:.1f} s{state}\n{task.stack or ''}"
