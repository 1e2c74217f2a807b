"""Re-exports for the tests of ebbpool: the rules of growth, admission, timers and maps, and their constants."""
# ruff: noqa: F401

from __future__ import annotations

from ebbpool._core.accel import Alarms
from ebbpool._core.timers import FOLD, VOID
from ebbpool._maps import map_run
from ebbpool._maps.items import ITERATORS, QUICK, Batch, Unclaimed
from ebbpool._maps.map_run import STALE, MapRun
from ebbpool._pool.admission import LENGTHY, LOOKS, PUNCTUAL, QUEUE, RETRY, TURN, Admission, Overload
from ebbpool._pool.census import Workers
from ebbpool._pool.crew import CEILING_TICK, HELD_TICK
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
)
from ebbpool._pool.stats import KEPT, Decisions
from ebbpool._pool.timekeeper import AFTER_ERROR, FIRE, NAME, Tick, Timekeeper
