"""What a `ThreadPoolExecutor` becomes that any code of the process makes: its threads are leased from the pool."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ebbpool.session import Line, Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbpool.executor import AdaptiveExecutor


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
        # Subclasses have their reasons, and arguments that are not the standard library's theirs.
        made: object = type(self)
        if made is ThreadPoolExecutor and not others and not executor._pool.closed:
            limit, prefix = self._max_workers, self._thread_name_prefix
            vars(self).clear()
            self.__class__ = Leasing
            self.begin(limit, prefix, Line(executor, limit, limit == 1, None, initializer, initargs, prefix))

    return __init__
