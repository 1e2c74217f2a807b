"""What runs right now: each task of a pool, with its name, its age and its place."""

from __future__ import annotations

import functools
import sys
from collections.abc import Container
from contextlib import _GeneratorContextManager
from contextvars import Context
from dataclasses import dataclass
from types import CodeType, GeneratorType, ModuleType
from typing import Any, Final

from ebbpool._clock import monotonic
from ebbpool._core.accel import Pool
from ebbpool._frames import stacks as stacks_of

OVER: Final = "a call that is over"  # the name of a task whose function has been let go of; its callbacks may run
CALLERS: Final = ("ebbpool.", "starlette.concurrency", "fastapi.telemetry")
"""How the names of modules begin whose functions call what they are given."""
GIVEN: Final = ("fn", "func", "function", "iterator")  # how their parameter for that is called


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


def called_name(fn: Any, args: tuple[Any, ...] | None = None) -> str:
    """Return the module and name of what a call is for, seen through what wraps it."""
    try:
        return _name(fn, args or ())
    except Exception:
        # Its attributes are computed, and need something that is not there.
        return type(fn).__qualname__


def _name(fn: Any, args: tuple[Any, ...]) -> str:
    keywords: dict[str, Any] = {}
    while True:
        owner: Any = getattr(fn, "__self__", None)
        if isinstance(fn, functools.partial):
            fn, args, keywords = fn.func, (*fn.args, *args), fn.keywords | keywords
        elif _is_ours(fn):
            fn = fn.fn
        elif isinstance(owner, Context) and args:
            fn, args = args[0], args[1:]
        elif isinstance(owner, _GeneratorContextManager):
            fn = owner.gen
        elif _is_ours(owner):
            fn = getattr(owner, "fn", None)
        elif type(owner).__module__ == "asgiref.sync":
            fn = getattr(owner, "func", None)
        elif (given := _given(fn, args, keywords)) is not None:
            fn, args = given
            keywords = {}
        else:
            break
    if fn is None:
        return OVER
    name = getattr(fn, "__qualname__", None)
    module = _module_of(fn) if isinstance(fn, GeneratorType) else getattr(fn, "__module__", None)
    if not isinstance(name, str):
        name, module = type(fn).__qualname__, type(fn).__module__
    if isinstance(owner, ModuleType) and not isinstance(module, str):
        module = owner.__name__
    return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name


def _is_ours(thing: Any) -> bool:
    """Return whether ebbpool itself runs this on behalf of a user's function: a wrapper, the turn of a map."""
    return str(type(thing).__module__).startswith("ebbpool.") and hasattr(thing, "fn")


def _given(fn: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, tuple[Any, ...]] | None:
    """Return what one of the `CALLERS` was given to call, and with which arguments; None where `fn` is none of them."""
    code = getattr(fn, "__code__", None)
    if code is None or not str(fn.__module__).startswith(CALLERS):
        return None
    names = code.co_varnames[: code.co_argcount]
    values = (fn.__self__, *args) if hasattr(fn, "__self__") else args
    for place, (name, value) in enumerate(zip(names, values, strict=False), 1):
        if name in GIVEN:
            return value, values[place] if names[place : place + 1] == ("args",) else values[place:]
    return next(((keywords[name], ()) for name in GIVEN if name in keywords), None)


def _module_of(generator: Any) -> str | None:
    """Return the module in whose file the function of a generator is; its frame, which says so, may run."""
    path = generator.gi_code.co_filename
    for name, module in list(sys.modules.items()):
        # A module of another type may be imported only now, by a look at its attributes.
        if type(module) is ModuleType and vars(module).get("__file__") == path:
            return name
    return None
