"""Executors on one pool: the default ones of event loops, and each `ThreadPoolExecutor` that any code makes."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from ebbpool.session import Line, Session

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


class Leasing(Session):
    """In place of a `ThreadPoolExecutor`: as many threads as it may have, of the pool's, while it has work for them.

    That they are the pool's shows in nothing but thread-local data. One thread stays: its users may count on that.
    """

    def begin(self, limit: int, prefix: str, line: Line) -> None:
        """Do what `__init__` does elsewhere."""
        self._max_workers, self._thread_name_prefix = limit, prefix
        self._lend(line)


def leasing(executor: AdaptiveExecutor) -> Callable[..., None]:
    """Return a replacement for `ThreadPoolExecutor.__init__`, after which what is made leases threads of the pool."""
    make: Callable[..., None] = ThreadPoolExecutor.__init__

    def __init__(
        self: Any, max_workers: Any = None, prefix: Any = "", initializer: Any = None, initargs: Any = (), **others: Any
    ) -> None:
        prefix = others.pop("thread_name_prefix", prefix)
        make(self, max_workers, prefix, initializer, initargs, **others)
        # Subclasses are left as they are, and so is what is made with arguments that are not known here.
        made: object = type(self)
        if made is ThreadPoolExecutor and not others and not executor._pool.closed:
            limit, prefix = self._max_workers, self._thread_name_prefix
            vars(self).clear()
            self.__class__ = Leasing
            self.begin(limit, prefix, Line(executor, limit, limit == 1, None, initializer, initargs, prefix))

    return __init__
