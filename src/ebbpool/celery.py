"""Celery: a pool of threads that come and go, with ``--autoscale`` and soft time limits.

Set it in the app, with ``app.conf.worker_pool = "ebbpool.celery:TaskPool"``, or for one worker, with
``CELERY_CUSTOM_WORKER_POOL=ebbpool.celery:TaskPool celery -A tasks worker --pool custom``.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from celery.concurrency import thread
from celery.concurrency.base import BasePool, apply_target
from celery.exceptions import SoftTimeLimitExceeded

from ebbpool._pool.cancelling import Shot
from ebbpool.executor import AdaptiveExecutor

__all__ = ["TaskPool"]

if TYPE_CHECKING:

    class _ThreadTaskPool:
        """The type of Celery's class, which has none."""

        def on_stop(self) -> None: ...
else:
    _ThreadTaskPool = thread.TaskPool


class TaskPool(_ThreadTaskPool):
    """Celery's pool of threads on an `AdaptiveExecutor`; ``--concurrency`` is its ceiling.

    A soft time limit raises `SoftTimeLimitExceeded` in the task, at the next step of its Python code: a call that
    blocks in C is not interrupted before it returns. Hard limits have no effect, as with ``--pool threads``. Soft ones
    have none on PyPy.

    Attributes:
        settings: Further arguments for the `AdaptiveExecutor`; a subclass may have others. None that has tasks refused:
            Celery would never hear of those.

    Raises:
        ValueError: `settings` has a `max_wait`, or a `when_full` of "reject".
    """

    settings: ClassVar[dict[str, Any]] = {}
    limit: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Not the parent's, which makes a pool of its own.
        BasePool.__init__(self, *args, **kwargs)
        for name, value in self.settings.items():
            if (name == "max_wait" and value not in (None, math.inf)) or (name, value) == ("when_full", "reject"):
                raise ValueError(f"settings: {name}={value!r} would lose tasks, of which Celery has none run again")
        given: dict[str, Any] = {"max_workers": self.limit, "thread_name_prefix": "celery"} | self.settings
        self.executor: AdaptiveExecutor = AdaptiveExecutor(**given)
        # A pool of its own for time limits: they must end tasks even when these have all threads of the other pool.
        self._limits = AdaptiveExecutor(1, "celery-limits")

    def on_stop(self) -> None:
        """Wait for the tasks that run, and cancel the others."""
        super().on_stop()
        self._limits.shutdown()

    def grow(self, n: int = 1) -> None:
        """Let the pool have `n` more threads; for ``--autoscale`` and ``celery control pool_grow``."""
        limit = max(1, self.limit + n)
        self.executor.resize(max_workers=limit)
        self.limit = limit

    def shrink(self, n: int = 1) -> None:
        """Let the pool have `n` fewer threads, but at least one; none is stopped in its task."""
        self.grow(-n)

    def on_apply(
        self,
        target: Any,
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        soft_timeout: float | None = None,
        timeout_callback: Any = None,
        **_: Any,
    ) -> thread.ApplyResult:
        """Have a task run; called by Celery."""
        call = (target, args, kwargs, callback, accept_callback)
        if soft_timeout:
            return thread.ApplyResult(self.executor.submit(self._limited, soft_timeout, timeout_callback, call))
        return thread.ApplyResult(self.executor.submit(apply_target, *call))

    def _limited(self, seconds: float, told: Any, call: tuple[Any, ...]) -> None:
        shot = Shot(SoftTimeLimitExceeded)

        def strike() -> None:
            # Where nothing can be raised in a thread, an error ends this, and nothing else.
            if shot.fire() and told is not None:
                told(True, seconds)

        timer = self._limits.submit_later(seconds, strike)
        try:
            apply_target(*call)
        finally:
            # What comes only now is too late for the task.
            with suppress(SoftTimeLimitExceeded):
                shot.end()
            timer.cancel()
