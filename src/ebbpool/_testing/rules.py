"""Re-exports for the tests of ebbpool: the rules of growth, admission, timers and maps, and their constants."""

from __future__ import annotations

from ebbpool._core.accel import Alarms as Alarms
from ebbpool._core.timers import FOLD as FOLD
from ebbpool._core.timers import VOID as VOID
from ebbpool._maps import map_run as map_run
from ebbpool._maps.items import ITERATORS as ITERATORS
from ebbpool._maps.items import QUICK as QUICK
from ebbpool._maps.items import Batch as Batch
from ebbpool._maps.items import Unclaimed as Unclaimed
from ebbpool._maps.map_run import STALE as STALE
from ebbpool._maps.map_run import MapRun as MapRun
from ebbpool._pool.admission import HOLD as HOLD
from ebbpool._pool.admission import LOOKS as LOOKS
from ebbpool._pool.admission import PUNCTUAL as PUNCTUAL
from ebbpool._pool.admission import QUEUE as QUEUE
from ebbpool._pool.admission import RETRY as RETRY
from ebbpool._pool.admission import TURN as TURN
from ebbpool._pool.admission import WATCH as WATCH
from ebbpool._pool.admission import Admission as Admission
from ebbpool._pool.admission import Restraint as Restraint
from ebbpool._pool.census import Workers as Workers
from ebbpool._pool.crew import CEILING_TICK as CEILING_TICK
from ebbpool._pool.crew import HELD_TICK as HELD_TICK
from ebbpool._pool.sizing import ARRIVAL as ARRIVAL
from ebbpool._pool.sizing import CREW as CREW
from ebbpool._pool.sizing import MEMORY as MEMORY
from ebbpool._pool.sizing import PAUSE as PAUSE
from ebbpool._pool.sizing import QUICK_TICK as QUICK_TICK
from ebbpool._pool.sizing import STALL as STALL
from ebbpool._pool.sizing import STALL_PAUSE as STALL_PAUSE
from ebbpool._pool.sizing import START_COST as START_COST
from ebbpool._pool.sizing import TICK as TICK
from ebbpool._pool.sizing import WINDOW as WINDOW
from ebbpool._pool.sizing import Asleep as Asleep
from ebbpool._pool.sizing import Sample as Sample
from ebbpool._pool.sizing import Sizing as Sizing
from ebbpool._pool.stats import KEPT as KEPT
from ebbpool._pool.stats import Decisions as Decisions
from ebbpool._pool.timekeeper import FIRE as FIRE
from ebbpool._pool.timekeeper import NAME as NAME
from ebbpool._pool.timekeeper import Tick as Tick
from ebbpool._pool.timekeeper import Timekeeper as Timekeeper
