"""The rules of growth, admission and waking up, as numbers and pure functions: what their tests and simulation ask."""

from __future__ import annotations

from ebbpool._core.accel import Alarms
from ebbpool._core.timers import FOLD, VOID
from ebbpool._pool.admission import LOOKS, PUNCTUAL, QUEUE, RETRY, TURN, Admission, Look
from ebbpool._pool.census import Workers
from ebbpool._pool.crew import CEILING_TICK, HELD_TICK
from ebbpool._pool.decisions import KEPT, Decisions
from ebbpool._pool.sizing import (
    ARRIVAL,
    CREW,
    MEMORY,
    PAUSE,
    QUICK_TICK,
    STALL,
    STALL_PAUSE,
    START_COST,
    TICK,
    WINDOW,
    Asleep,
    Sample,
    Sizing,
    WorkerBounds,
    ceiling,
)
from ebbpool._pool.timekeeper import FIRE, NAME, Tick, Timekeeper

__all__ = [
    "ARRIVAL",
    "CEILING_TICK",
    "CREW",
    "FIRE",
    "FOLD",
    "HELD_TICK",
    "KEPT",
    "LOOKS",
    "MEMORY",
    "NAME",
    "PAUSE",
    "PUNCTUAL",
    "QUEUE",
    "QUICK_TICK",
    "RETRY",
    "STALL",
    "STALL_PAUSE",
    "START_COST",
    "TICK",
    "TURN",
    "VOID",
    "WINDOW",
    "Admission",
    "Alarms",
    "Asleep",
    "Decisions",
    "Look",
    "Sample",
    "Sizing",
    "Tick",
    "Timekeeper",
    "WorkerBounds",
    "Workers",
    "ceiling",
]
