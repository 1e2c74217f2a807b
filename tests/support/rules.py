"""Re-exports for the tests of ebbpool: the rules of growth, admission, timers and maps, and their constants."""
# ruff: noqa: F401

from __future__ import annotations

from ebbpool._clock import AGAIN, HORIZON, TICK
from ebbpool._core.accel import Alarms, Snapshot
from ebbpool._core.timers import FOLD, VOID
from ebbpool._maps import map_run
from ebbpool._maps.items import ITERATORS, QUICK, Batch, Unclaimed
from ebbpool._maps.map_run import STALE, MapRun
from ebbpool._pool.admission import LENGTHY, RETRY, Admission, Overload
from ebbpool._pool.census import Workers
from ebbpool._pool.load import ONE, PUNCTUAL, QUEUE, TURN, WINDOW, Load
from ebbpool._pool.sizing import ARRIVAL, CREW, MEMORY, STALL, Asleep, Sizing
from ebbpool._pool.stats import KEPT, Decisions
from ebbpool._pool.timekeeper import AFTER_ERROR, FIRE, NAME, Tick, Timekeeper
