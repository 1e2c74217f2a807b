"""What runs in the scheduler: it keeps calls from being made twice when a worker is lost."""

from __future__ import annotations

from typing import Any, Final

from dask._task_spec import Task
from distributed import SchedulerPlugin

from ebbpool._dask.remote import lost

ONCE: Final = "ebbpool_once"
"""What the keys of calls that must not be made again begin with; then comes the topic, then a number."""


def topic_of(key: str) -> str:
    """Return the topic under which the loss of a call is told."""
    return key.rsplit("-", 1)[0]


class AtMostOnce(SchedulerPlugin):
    """Has calls of ours end, and not begin again, when the worker that had them, or their results, is lost.

    By itself the scheduler gives them to another worker. Whether they had begun cannot be known: what a worker
    sent last may be lost with it.
    """

    name = "ebbpool"
    idempotent = True

    def __init__(self) -> None:
        self._scheduler: Any = None
        self._places: dict[str, str] = {}

    async def start(self, scheduler: Any) -> None:
        """Remember the scheduler."""
        self._scheduler = scheduler

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        """Note which worker has a call; when it is lost, put what tells so in the place of the call."""
        if not (isinstance(key, str) and key.startswith(ONCE)):
            return
        if finish == "processing":
            self._places[key] = self._scheduler.tasks[key].processing_on.address
        elif finish == "forgotten":
            self._places.pop(key, None)
        elif finish == "released" and start in ("processing", "memory"):
            task = self._scheduler.tasks[key]
            if task.who_wants:
                worker = self._places.get(key, "")
                if worker in self._scheduler.workers:
                    # Another worker had taken the call from this one, which is not told.
                    worker = "that had taken it over"
                task.run_spec = Task(key, lost, worker)
                # Told at once, because there may be no worker left that could run what stands in.
                self._scheduler.log_event(topic_of(key), {"key": key, "worker": worker})
