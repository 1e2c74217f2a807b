"""Stacks of threads, for reports: without the frames that every thread of a kind has below its task."""

from __future__ import annotations

import traceback
from collections.abc import Container
from types import CodeType, FrameType


def above(frame: FrameType | None, below: Container[CodeType]) -> traceback.StackSummary:
    """Return the stack whose innermost frame is `frame`, without the lowest frames, which run `below`.

    Args:
        frame: As `sys._current_frames` gives it; None for a thread that has none.
        below: The code of the lowest frames. The outermost frames are left out, up to and with the first ones that run
            this code. Frames further up belong to the task and are kept, whatever they run.
    """
    frames = [entry for entry, _ in traceback.walk_stack(frame)] if frame is not None else []
    frames.reverse()
    start = next((place for place, entry in enumerate(frames) if entry.f_code in below), 0)
    while start < len(frames) and frames[start].f_code in below:
        start += 1
    return traceback.StackSummary.extract((entry, entry.f_lineno) for entry in frames[start:])
