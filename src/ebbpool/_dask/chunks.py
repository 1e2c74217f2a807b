"""Maps over a cluster: how many items go into one call, so that each call takes about `TARGET` seconds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from math import ceil
from time import perf_counter
from typing import Any, Final

from ebbpool._dask.packing import Mapped
from ebbpool._dask.remote import RAISED, Failed, apply
from ebbpool._maps.items import Batch, Failure, Unclaimed
from ebbpool._maps.map_run import MapRun
from ebbpool._pool.running import called_name

TARGET: Final = 0.05
"""Seconds that a chunk should take on a worker: so long that what a call costs by itself does not matter."""
GROWTH: Final = 16
"""How many times larger than the largest so far a chunk may be."""


class Chunks(Unclaimed):
    """Items of which a batch is what one call to the cluster takes."""

    def adapt(self, count: int, seconds: float) -> None:
        """Let a batch be what takes a worker `TARGET` seconds: `count` items took it `seconds`."""
        size = int(TARGET * count / max(seconds, 1e-9))
        self.size = max(1, min(size, GROWTH * max(count, self.size), self.largest))


class ClusterRun(MapRun):
    """One map of a cluster's executor or of its lane: a batch is a call to the cluster.

    A task here waits for that call. There are no more of them than there may be calls with the cluster, and one that
    waits for its turn behind the executor's other calls.
    """

    def __init__(self, place: Any, fn: Callable[..., Any], spread: bool, *options: Any) -> None:
        # The map goes on in a lane that nobody refers to any more.
        executor = getattr(place, "executor", place)
        super().__init__(executor, fn, spread, *options)
        self.single = self.divides = False
        self.unclaimed = Chunks(self.unclaimed.size, self.unclaimed.largest)
        self._spread = spread
        self._place: Callable[[], Any] = weakref.ref(place)
        self._lane: Any = getattr(place, "core", None)
        self._link: Any = executor._link
        self._link.check(fn)
        # An unpicklable function is refused here, as by `submit`.
        self._mapped = Mapped(fn, self._link.values())
        self._name = called_name(fn)

    def read(self, source: Iterator[Any], room: int | None) -> None:
        """Read up to `room` items; without a limit all of them first, so that chunks are as large as they may be.

        If the input fails later on, `insist` raises why, once the results of what was read before have been handed out.
        """
        if room is None:
            self.read_all(source)
            return
        try:
            super().read(source, room)
        except Exception as error:
            if self.unclaimed and not self._recruit() and self.refusal is not None:
                self.fail(self.refusal)
            # Without our two frames, which hold the map that holds the error.
            ours = error.__traceback__ and error.__traceback__.tb_next
            self.refusal = error.with_traceback(ours and ours.tb_next)

    def _hand_in(self, executor: Any) -> Future[None]:
        return executor._start_turn(self._lane, self.work)  # type: ignore[no-any-return]  # its module imports this

    def _width(self, executor: Any) -> int:
        width: int = self._link.width
        return width if self._lane is None else min(width, self._lane.limit)

    def _wants_tasks(self, executor: Any) -> bool:
        return bool(self.unclaimed) and len(self.under_way) <= self._width(executor)

    def _lay(self, now: float) -> Batch | None:
        unclaimed = self.unclaimed
        size = unclaimed.size
        if not self.fixed:
            # The last items are shared by all.
            unclaimed.size = max(1, min(size, ceil(len(unclaimed) / (2 * self._width(None)))))
        batch = super()._lay(now)
        unclaimed.size = size
        return batch

    def _run(self, batch: Batch) -> None:
        if getattr(self._place(), "_discarding", False):
            # It was shut down with `cancel_futures`. That cancels tasks that wait; this one runs.
            self.fail(CancelledError())
            return
        items = batch.drain()[::-1]
        if not self._spread:
            items = [(item,) for item in items]
        try:
            outcome = self._link.send(self._name, self._mapped.call(apply, items), alone=True)
            results = self._link.result_of(self._name, outcome)
        except BaseException as error:
            self.fail(Failure(error).error)
            return
        # What counts is the time on the worker.
        batch.since = perf_counter() - outcome[2]
        for result in results:
            if isinstance(result, Failed):
                try:
                    self._link.result_of(self._name, (RAISED, result.packed, 0.0))
                except BaseException as error:
                    batch.fail(error)
            else:
                batch.out.append(result)
