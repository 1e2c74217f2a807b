"""What can be seen of a process that does not answer: from 3.14 on, CPython reads the stacks of another process."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import dropwhile
from typing import Any


def stacks(pid: int | None) -> list[str]:
    """Return the stacks of the threads of a process, in lines, as they are read without its help; none where it fails.

    Threads of ours that have no task are left out, and so is what is beneath a task.
    """
    try:
        told = importlib.import_module("_remote_debugging").RemoteUnwinder(pid, all_threads=True).get_stack_trace()
        threads = [(_name(pid, thread.thread_id), _frames(thread.frame_info)) for thread in _threads(told)]
    except Exception:
        # The module is CPython's own, and private. What it reads may change meanwhile: the next look tells more.
        return []
    lines = []
    for name, frames in threads:
        if frames:
            lines += ["", f"{name}:", *frames]
    return ["", "Its threads, seen from outside (innermost call last):", *lines] if lines else []


def _threads(told: Iterable[Any]) -> Iterator[Any]:
    for each in told:
        # CPython 3.14 tells threads; later ones tell interpreters, which have them.
        yield from getattr(each, "threads", [each])


def _name(pid: int | None, thread: int) -> str:
    """Return what the system calls a thread: the first 15 letters of its name."""
    with suppress(OSError), open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().rstrip("\n")
    return f"thread {thread}"


def _frames(told: Iterable[Any]) -> list[str]:
    """Return the lines of a stack, from the task on if there is one."""
    frames = []
    for frame in dropwhile(_beneath, reversed(list(told))):
        line = frame.lineno if hasattr(frame, "lineno") else frame.location and frame.location.lineno
        frames.append(f"  {frame.filename}:{line} in {frame.funcname}")
    return frames


def _beneath(frame: Any) -> bool:
    """Return whether a frame at the bottom of a stack is one that makes a thread, or one of ours."""
    path = frame.filename.replace("\\", "/")
    return path.endswith("/threading.py") or "/ebbpool/_pool/" in path or "/ebbpool/_core/" in path
