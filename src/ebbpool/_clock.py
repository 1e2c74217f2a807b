"""The clocks of this process, out of reach of tools that replace those of `time` to freeze or to move it in tests.

Such a tool replaces `time.monotonic` there and wherever it finds the same function. These are functions of another
instance of that module, so it does not find them, nor are they its own if it was there first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

_spec: Any = time.__spec__
_found = dict(vars(time))
_own: Any = _spec.loader.create_module(_spec)
monotonic: Callable[[], float] = _own.monotonic
perf_counter: Callable[[], float] = _own.perf_counter
if _own is time:
    # PyPy has but one instance, and has undone there what a tool had replaced.
    _own.__dict__.update(_found)
    monotonic, perf_counter = partial(monotonic), partial(perf_counter)

TICK = 0.001
"""Seconds between two looks at a pool whose tasks wait, and which may have more workers;"""
HORIZON = 0.01
"""and at one which may not, or in which many workers run: the looks keep its clock right."""
AGAIN = 0.2
"""Seconds until a start that the system has refused is tried again."""
