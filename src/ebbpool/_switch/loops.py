"""Event loops that have a share of one pool as their default executor from the first."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbpool._switch.replacing import Replacements
    from ebbpool.executor import AdaptiveExecutor
    from ebbpool.lane import Lane

UNLIMITED: Final = 1_000_000
"""The limit of a lane that is to have none but the pool's."""


class Loops:
    """The loops that have been given a lane of the pool. A loop that ends shuts its executor down: its own lane."""

    def __init__(self, executor: AdaptiveExecutor) -> None:
        self.executor = executor
        self.lanes: weakref.WeakKeyDictionary[Any, Lane] = weakref.WeakKeyDictionary()

    def give(self, loop: Any) -> None:
        """Make a lane of the pool the loop's default executor; this is what every user of a loop can do, too."""
        if not self.executor._pool.closed:
            lane = self.lanes[loop] = free_lane(self.executor)
            loop.set_default_executor(lane)

    def watch(self, replacements: Replacements, loop_class: Any) -> None:
        """Have each loop of a class given a lane when it is made."""
        make: Callable[..., None] = loop_class.__init__

        def __init__(loop: Any, *args: Any, **kwargs: Any) -> None:
            make(loop, *args, **kwargs)
            self.give(loop)

        replacements.replace(loop_class, "__init__", __init__)

    def take_back(self) -> None:
        """Have asyncio's loops make executors of their own again. uvloop's do not tell which one they have."""
        for loop, lane in list(self.lanes.items()):
            if getattr(loop, "_default_executor", None) is lane:
                loop._default_executor = None


def free_lane(executor: AdaptiveExecutor) -> Lane:
    """Return a lane without a limit, under the first name that is free."""
    for number in itertools.count(1):
        with contextlib.suppress(ValueError):
            return executor.lane("asyncio" if number == 1 else f"asyncio-{number}", limit=UNLIMITED)
    raise AssertionError
