"""Celery: a pool of threads that come and go, with ``--autoscale``.

Set it in the app, with ``app.conf.worker_pool = "ebbpool.celery:TaskPool"``, or for one worker, with
``CELERY_CUSTOM_WORKER_POOL=ebbpool.celery:TaskPool celery -A tasks worker --pool custom``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from celery.concurrency import thread

from ebbpool.executor import AdaptiveExecutor

__all__ = ["TaskPool"]

if TYPE_CHECKING:

    class _ThreadTaskPool:
        """The type of Celery's class, which has none."""

else:
    _ThreadTaskPool = thread.TaskPool


class TaskPool(_ThreadTaskPool):
    """Celery's pool of threads on an `AdaptiveExecutor`; ``--concurrency`` is its ceiling.

    Soft and hard time limits have no effect, as with ``--pool threads``.

    Attributes:
        settings: Further arguments for the `AdaptiveExecutor`; a subclass may have others. Those that have tasks
            refused are not allowed: Celery would never learn of it.

    Raises:
        ValueError: `settings` has a `max_wait`, or a `when_full` of "reject".
    """

    settings: ClassVar[dict[str, Any]] = {}
    limit: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Not the parent's, which makes its own pool.
        super(_ThreadTaskPool, self).__init__(*args, **kwargs)
        for name, value in self.settings.items():
            if (name == "max_wait" and value not in (None, math.inf)) or (name, value) == ("when_full", "reject"):
                raise ValueError(f"settings: {name}={value!r} would drop tasks, which Celery does not retry")
        given: dict[str, Any] = {"max_workers": self.limit, "thread_name_prefix": "celery"} | self.settings
        self.executor: AdaptiveExecutor = AdaptiveExecutor(**given)

    def grow(self, n: int = 1) -> None:
        """Let the pool have `n` more threads; for ``--autoscale`` and ``celery control pool_grow``."""
        limit = max(1, self.limit + n)
        self.executor.resize(max_workers=limit)
        self.limit = limit

    def shrink(self, n: int = 1) -> None:
        """Let the pool have `n` fewer threads, but at least one; none is stopped in its task."""
        self.grow(-n)
