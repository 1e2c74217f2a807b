"""The stacks of other threads, as text: the one place that reads other threads' frames.

Without a GIL not even this reads them: a running thread frees its frames meanwhile, and CPython crashes.
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections.abc import Container, Iterable
from types import CodeType, FrameType
from typing import Final

from ebbpool._interpreter import gil_enabled

UNREADABLE: Final = "  (no stack: without a GIL, frames of running threads cannot be read safely)\n"
FRAMELESS: Final = "  (no Python frame)\n"


def stacks(idents: Iterable[int | None], below: Container[CodeType] = ()) -> list[str]:
    """Return the stack of each thread, as `traceback` writes it, or a line that says why there is none.

    The outermost frames are left out, up to and with the first ones that run the code `below`. Frames further up belong
    to the task and are kept, whatever they run.
    """
    if not gil_enabled():
        return [UNREADABLE for _ in idents]
    frames = _current_frames()
    try:
        return [_text(frames.get(ident or 0), below) for ident in idents]
    finally:
        # One of the frames is that of this call, which refers to them all: a cycle of all locals of all threads.
        frames.clear()


def _current_frames() -> dict[int, FrameType]:
    # CPython 3.11 holds a lock meanwhile, and a collection could run code that waits for it for good.
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


def _text(frame: FrameType | None, below: Container[CodeType]) -> str:
    frames = [entry for entry, _ in traceback.walk_stack(frame)] if frame is not None else []
    frames.reverse()
    start = next((place for place, entry in enumerate(frames) if entry.f_code in below), 0)
    while start < len(frames) and frames[start].f_code in below:
        start += 1
    shown = traceback.StackSummary.extract((entry, entry.f_lineno) for entry in frames[start:])
    return "".join(shown.format()) or FRAMELESS


def is_joined(thread: threading.Thread) -> bool:
    """Return whether another thread waits for the end of `thread`; False where frames cannot be read."""
    frame: FrameType | None
    for frame in _current_frames().values() if gil_enabled() else ():
        while frame is not None:
            if frame.f_code is threading.Thread.join.__code__ and frame.f_locals.get("self") is thread:
                return True
            frame = frame.f_back
    return False
