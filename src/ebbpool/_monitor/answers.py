"""What clients ask for and are answered, one line of JSON each way: what all pools of the process are doing."""

from __future__ import annotations

import json
import logging
import os
import reprlib
import time
from dataclasses import asdict
from typing import Any, Final

from ebbpool._interpreter import interpreter
from ebbpool._pool import lifecycle
from ebbpool._version import __version__

LOGGER: Final = logging.getLogger("ebbpool.monitor")
LONGEST: Final = 1 << 16
"""How many bytes a request may have."""


def answer(line: bytes) -> bytes:
    """Return the answer to one request; what cannot be answered is told why. Does not raise."""
    try:
        return _encoded(snapshot(_stacks_wanted(line)))
    except ValueError as error:
        return refusal(str(error))
    except Exception as error:
        return refusal(f"{type(error).__name__}: {error}")


def refusal(reason: str) -> bytes:
    """Return the line for a client that gets no answer."""
    return _encoded({"error": reason})


def _encoded(reply: dict[str, Any]) -> bytes:
    return json.dumps(reply, separators=(",", ":")).encode() + b"\n"


def _stacks_wanted(line: bytes) -> bool:
    """Return whether a request asks for stacks; raise `ValueError` if it is none."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a request must be one JSON object on one line: {error}") from error
    if not isinstance(request, dict):
        raise ValueError(f"a request must be a JSON object, not {reprlib.repr(request)}")
    if strange := request.keys() - {"get", "stacks"}:
        raise ValueError(f"a request may have 'get' and 'stacks', not {reprlib.repr(min(strange))}")
    if request.get("get") != "snapshot":
        raise ValueError(f"'get' must be 'snapshot', not {reprlib.repr(request.get('get'))}")
    stacks = request.get("stacks", False)
    if not isinstance(stacks, bool):
        raise ValueError(f"'stacks' must be true or false, not {reprlib.repr(stacks)}")
    return stacks


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
