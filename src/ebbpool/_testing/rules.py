"""The rules of growth, admission, waking up and maps, as numbers and what follows them: what their tests ask."""

from __future__ import annotations

from ebbpool._core.accel import Alarms
from ebbpool._core.timers import FOLD, VOID
from ebbpool._maps import ledger
from ebbpool._maps.items import ITERATORS, QUICK, Batch, Unclaimed
from ebbpool._maps.ledger import STALE, Ledger
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
    "ITERATORS",
    "KEPT",
    "LOOKS",
    "MEMORY",
    "NAME",
    "PAUSE",
    "PUNCTUAL",
    "QUEUE",
    "QUICK",
    "QUICK_TICK",
    "RETRY",
    "STALE",
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
    "Batch",
    "Decisions",
    "Ledger",
    "Look",
    "Sample",
    "Sizing",
    "Tick",
    "Timekeeper",
    "Unclaimed",
    "WorkerBounds",
    "Workers",
    "ceiling",
    "ledger",
]
