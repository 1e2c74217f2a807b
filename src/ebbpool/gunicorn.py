"""gunicorn: a worker with threads that come and go.

Start it with ``gunicorn --worker-class ebbpool.gunicorn.AdaptiveThreadWorker --threads 100 app:app``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gunicorn.workers.gthread import ThreadWorker

from ebbpool.executor import AdaptiveExecutor

__all__ = ["AdaptiveThreadWorker"]


class AdaptiveThreadWorker(ThreadWorker):
    """gunicorn's gthread worker on a pool; ``--threads`` is its ceiling.

    Attributes:
        settings: Further arguments for the `AdaptiveExecutor`; a subclass may have others.
    """

    settings: ClassVar[dict[str, Any]] = {}

    def get_thread_pool(self) -> AdaptiveExecutor:
        """Return the pool; called by gunicorn in each worker process."""
        return AdaptiveExecutor(**{"max_workers": self.cfg.threads, "thread_name_prefix": "gunicorn"} | self.settings)
