"""What runs in a pool right now: the name of each task, how long it has run, and where it is."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Container, Iterator
from contextvars import Context
from dataclasses import dataclass
from time import monotonic
from types import CodeType, FrameType
from typing import Any

from ebbpool._core.accel import Pool, Probe
from ebbpool._pool.frames import above
from ebbpool._pool.marks import Spillable, marked_call

UNNAMED = "a call without a Python frame"


@dataclass(frozen=True)
class RunningTask:
    """A task that runs.

    Attributes:
        name: The module and the name of what is called. A task that was submitted with its context is named after its
            first Python function.
        lane: The name of its lane, or None.
        thread: The name of its thread.
        native_id: The number that the operating system gave the thread; None if it gives none.
        seconds: How long it has run, to about 0.05 s.
        blocked: Whether it waits for a future of this same pool.
        stack: The task's own part of the thread's stack, as `traceback` writes it; None if it was not asked for, and
            for a task that is away.
        away: Whether it was sent to the executor that `AdaptiveExecutor(spill=)` names. Its `thread` is the name of
            that, and `seconds` counts from the sending.
    """

    __module__ = "ebbpool"

    name: str
    lane: str | None
    thread: str
    native_id: int | None
    seconds: float
    blocked: bool
    stack: str | None
    away: bool = False


def running(pool: Pool, below: Container[CodeType], stacks: bool) -> list[RunningTask]:
    """Return the running tasks of `pool`, the one that has run longest first; see `frames.above` for `below`."""
    tasks = [(called_name(fn), thread, since, lane, blocked) for thread, since, fn, lane, blocked in pool.in_hand()]
    frames = sys._current_frames() if stacks or any(name is None for name, *_ in tasks) else {}
    try:
        return sorted(_described(tasks, frames, below, stacks), key=lambda task: -task.seconds)
    finally:
        # One of the frames is that of this call, which refers to them all: a cycle of all locals of all threads.
        frames.clear()


def _described(
    tasks: list[Any], frames: dict[int, FrameType], below: Container[CodeType], stacks: bool
) -> Iterator[RunningTask]:
    now = monotonic()
    for name, thread, since, lane, blocked in tasks:
        # Source lines are read for a stack, so only where one is asked for, or gives the task its name.
        stack = above(frames.get(thread.ident or 0), below) if stacks or name is None else []
        text = "".join(traceback.format_list(stack)) if stacks else None
        yield RunningTask(
            name or (stack[0].name if stack else UNNAMED),
            None if lane is None else lane.name,
            thread.name,
            getattr(thread, "native_id", None),
            max(0.0, now - since),
            blocked,
            text,
        )


def away(pool: Pool, target: Any) -> Iterator[RunningTask]:
    """Yield the tasks of `pool` that `target` runs."""
    now = monotonic()
    for since, fn, args, lane in pool.abroad():
        # What is called is in the partials and contexts that marks are found in.
        call = marked_call(fn, args, None)
        name = called_name(fn if call is None else call.fn) or UNNAMED
        yield RunningTask(
            name, None if lane is None else lane.name, name_of(target), None, now - since, False, None, True
        )


def name_of(target: Any) -> str:
    """Return the name of an executor, or that of its class."""
    name = getattr(target, "name", None) or getattr(target, "_thread_name_prefix", None)
    return name if isinstance(name, str) else type(target).__qualname__


def called_name(fn: Any) -> str | None:
    """Return the module and name of a callable, seen through what wraps it; None where that cannot be seen through."""
    try:
        return _name(fn)
    except Exception:
        # Its attributes are computed, and need something that is not there.
        return type(fn).__qualname__


def _name(fn: Any) -> str | None:
    while True:
        owner: Any = getattr(fn, "__self__", None)
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, (Probe, Spillable)):
            fn = fn.fn
        elif isinstance(owner, Context):
            return None
        elif type(owner).__module__.startswith("ebbpool.") and hasattr(owner, "fn"):
            # What ebbpool itself runs on behalf of a user's function, such as the turn of a map.
            fn = owner.fn
        else:
            break
    if fn is None:
        return None
    name = getattr(fn, "__qualname__", None)
    module = getattr(fn, "__module__", None)
    if not isinstance(name, str):
        name, module = type(fn).__qualname__, type(fn).__module__
    if isinstance(owner, type(sys)) and not isinstance(module, str):
        module = owner.__name__
    return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name
