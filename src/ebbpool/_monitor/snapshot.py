"""What all pools of the process are doing, as plain values for JSON."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import asdict
from typing import Any, Final

from ebbpool._interpreter import interpreter
from ebbpool._pool import lifecycle
from ebbpool._version import __version__

LOGGER: Final = logging.getLogger("ebbpool.monitor")


def snapshot(stacks: bool = False) -> dict[str, Any]:
    """Return what all pools of this process are doing, for JSON; docs/monitor.md explains each field.

    A pool that has been shut down is among them for as long as it has threads: what they do may be what its shutdown
    waits for.

    Args:
        stacks: Whether each running task comes with its stack.
    """
    pools = []
    for crew, owner in lifecycle.in_view():
        if owner is not None:
            # A subclass may do what it likes; it must not keep the others from being seen.
            try:
                pools.append(_pool(owner, bool(crew.pool.closed), stacks))
            except Exception:
                LOGGER.exception("the figures of pool %r cannot be read", crew.name)
    return {
        "ebbpool": __version__,
        "pid": os.getpid(),
        "python": interpreter(),
        "time": time.time(),
        "pools": pools,
        "others": lifecycle.others(),
    }


def _pool(pool: Any, closed: bool, stacks: bool) -> dict[str, Any]:
    # An `AdaptiveExecutor`, whose module is on a floor above.
    return {
        **asdict(pool.stats()),
        "closed": closed,
        "lanes": [asdict(lane.stats()) for lane in pool.lanes()],
        "tasks": [asdict(task) for task in pool.running(stacks=stacks)],
        "decisions": [asdict(decision) for decision in pool.decisions()],
    }
