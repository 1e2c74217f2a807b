"""Maps over a cluster: `ClusterRun`, whose chunks are as large as workers do in a twentieth of a second."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from math import ceil
from sys import maxsize
from typing import Any, Final

from ebbpool._called import called_name
from ebbpool._checks import whole
from ebbpool._clock import perf_counter
from ebbpool._dask.link import Link
from ebbpool._dask.packing import LARGE, Packed, Part, culprit
from ebbpool._dask.remote import RAISED, Failed, Ready, Slot, apply, brief, dumps
from ebbpool._maps.items import Batch, Failure, Unclaimed
from ebbpool._maps.map_run import MapRun

TARGET: Final = 0.05
"""Seconds that a chunk should take: so long that what a task of the cluster costs does not matter."""
GROWTH: Final = 16
"""How many times larger than the largest so far a chunk may be."""


class Chunks(Unclaimed):
    """Items of which a batch is what a worker does in `TARGET` seconds, but at least as large as the first."""

    def __init__(self, size: int, largest: int) -> None:
        super().__init__(size, largest)
        self._least = size

    def adapt(self, count: int, seconds: float) -> None:
        size = int(TARGET * count / max(seconds, 1e-9))
        self.size = max(self._least, min(size, GROWTH * max(count, self.size), self.largest))


class ClusterRun(MapRun):
    """One map of a cluster's executor or of its lane: a batch is a call to the cluster, for which a task here waits.

    There are as many tasks as calls may be with the cluster, and one that waits behind the executor's other calls.
    """

    divides = False

    def __init__(
        self,
        place: Any,
        fn: Callable[..., Any],
        spread: bool,
        chunksize: int | None,
        buffersize: int | None,
        ordered: bool,
    ) -> None:
        size = 0 if chunksize is None else max(0, whole("chunksize", chunksize, -maxsize))
        # The map goes on in a lane that nobody refers to any more.
        executor = getattr(place, "executor", place)
        super().__init__(executor, fn, spread, chunksize, buffersize, ordered)
        self.lane = getattr(place, "core", None)
        # With a given chunk size, only whole chunks are read while there are any.
        self.step = max(1, size if buffersize is None else min(size, buffersize))
        self.unclaimed = Chunks(self.step, self.step if size else self.unclaimed.largest)
        self._spread = spread
        self._place: Callable[[], Any] = weakref.ref(place)
        self._link: Link = executor._link
        self._link.check(fn)
        self._name = called_name(fn)
        try:
            packed = dumps(fn)
        except Exception as error:
            raise TypeError(f"fn cannot be pickled: {brief(fn)}: {error}") from error
        large = len(packed) > LARGE
        self._parts = (Part.of(packed),) if large else ()
        self._packed: Slot | Ready = Slot(0) if large else Ready(packed)

    def read(self, source: Iterator[Any], room: int | None) -> None:
        """Read on, or without a limit all at once, so that chunks are large."""
        if room is None:
            self.read_all(source)
        else:
            super().read(source, room)

    def _width(self, executor: Any) -> int:
        width = self._link.width
        return width if self.lane is None else min(width, self.lane.limit)

    def _wants_tasks(self, executor: Any) -> bool:
        return bool(self.unclaimed) and len(self.under_way) <= self._width(executor)

    def _lay(self, now: float) -> Batch | None:
        unclaimed = self.unclaimed
        size = unclaimed.size
        # The last items are shared by all.
        unclaimed.size = max(self.step, min(size, ceil(len(unclaimed) / (2 * self._width(None)))))
        batch = super()._lay(now)
        unclaimed.size = size
        return batch

    def _call_with(self, items: list[tuple[Any, ...]]) -> Packed:
        try:
            return Packed(dumps((apply, (self._packed, items), {})), self._parts)
        except Exception as error:
            named = [(f"an item for {brief(self.fn)}", item[0] if len(item) == 1 else item) for item in items]
            raise culprit(named, f"a chunk of items for {brief(self.fn)}", error) from error

    def _run(self, batch: Batch) -> None:
        if getattr(self._place(), "_discarding", False):
            # It was shut down with `cancel_futures`. That cancels tasks that wait; this one runs.
            self.fail(CancelledError())
            return
        items = batch.drain()[::-1]
        if not self._spread:
            items = [(item,) for item in items]
        try:
            outcome = self._link.send(self._name, self._call_with(items))
            results = self._link.result_of(self._name, outcome)
        except BaseException as error:
            self.fail(Failure(error).error)
            return
        # What counts is the time on the worker.
        batch.since = perf_counter() - outcome[2]
        for result in results:
            if type(result) is Failed:
                try:
                    self._link.result_of(self._name, (RAISED, result.packed, 0.0))
                except BaseException as error:
                    batch.fail(error)
            else:
                batch.out.append(result)
