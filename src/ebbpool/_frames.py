"""The stacks of other threads, as text: the one place that reads other threads' frames.

Without a GIL not even this reads them: a running thread frees its frames meanwhile, and CPython crashes.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Container, Iterable
from contextlib import nullcontext
from types import CodeType, FrameType
from typing import Final, TypeVar

from ebbpool._interpreter import gil_enabled

UNREADABLE: Final = "  (no stack: without a GIL, frames of running threads cannot be read safely)\n"
FRAMELESS: Final = "  (no Python frame)\n"
COLLECTS: Final = sys.implementation.name == "cpython" and sys.version_info < (3, 12)
"""Whether the collector may run where the object of a frame is made, for `f_back` as well.

What it runs lets other threads run: one may leave the very frame, which is then read from freed memory, or wait for a
lock that `sys._current_frames` holds, for good.
"""

T = TypeVar("T")

_reading = threading.RLock()


def stacks(idents: Iterable[int | None], below: Container[CodeType] = ()) -> list[str]:
    """Return the stack of each thread, as `traceback` writes it, or a line that says why there is none.

    The outermost frames are left out, up to and with the first ones that run the code `below`. Frames further up belong
    to the task and are kept, whatever they run.
    """
    if not gil_enabled():
        return [UNREADABLE for _ in idents]
    # Those of this very thread refer to this list: a cycle of all its locals.
    chains = _read(lambda frames: [_lines(frames.get(ident or 0)) for ident in idents])
    try:
        return [_text(chain, below) for chain in chains]
    finally:
        chains.clear()


def _read(look: Callable[[dict[int, FrameType]], T]) -> T:
    if not COLLECTS:
        return _see(look)
    # One reader at a time, or the first to end would let the collector go; but as the interpreter ends, this thread
    # alone runs, and a daemon thread that was reading keeps the lock.
    with nullcontext() if sys.is_finalizing() else _reading:
        collects = gc.isenabled()
        try:
            gc.disable()
            return _see(look)
        finally:
            if collects:
                gc.enable()


def _see(look: Callable[[dict[int, FrameType]], T]) -> T:
    frames = sys._current_frames()
    try:
        return look(frames)
    finally:
        # One of the frames is that of this call, which refers to them all: a cycle of all locals of all threads.
        frames.clear()


def _lines(frame: FrameType | None) -> list[tuple[FrameType, int]]:
    # Of its own accord `walk_stack` begins with the caller.
    return [] if frame is None else list(traceback.walk_stack(frame))


def _text(lines: list[tuple[FrameType, int]], below: Container[CodeType]) -> str:
    lines.reverse()
    start = next((place for place, (entry, _) in enumerate(lines) if entry.f_code in below), 0)
    while start < len(lines) and lines[start][0].f_code in below:
        start += 1
    return "".join(traceback.StackSummary.extract(iter(lines[start:])).format()) or FRAMELESS


def is_joined(thread: threading.Thread) -> bool:
    """Return whether another thread waits for the end of `thread`; False where frames cannot be read."""
    if not gil_enabled():
        return False
    join = threading.Thread.join.__code__
    return _read(
        lambda frames: any(
            frame.f_code is join and frame.f_locals.get("self") is thread
            for top in frames.values()
            for frame, _ in traceback.walk_stack(top)
        )
    )


if COLLECTS and hasattr(os, "register_at_fork"):
    # A child begins without a reader, who would keep the lock and hold the collector there for good.
    os.register_at_fork(before=_reading.acquire, after_in_parent=_reading.release, after_in_child=_reading.release)
