"""What a careful user writes by hand to get off an event loop: the floors that `offload` is held against."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable

Task = Callable[[], object]


class BareThread:
    """One thread on a SimpleQueue, a wake-up of the loop for each call: no cancellation, no context."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[object], Task] | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work)
        self._worker.start()

    def call(self, fn: Task) -> asyncio.Future[object]:
        future = self._loop.create_future()
        self._calls.put((future, fn))
        return future

    def _work(self) -> None:
        get, wake = self._calls.get, self._loop.call_soon_threadsafe
        while (item := get()) is not None:
            future, fn = item
            try:
                wake(future.set_result, fn())
            except BaseException as error:
                wake(future.set_exception, error)

    def close(self) -> None:
        self._calls.put(None)
        self._worker.join()


class BatchedWorkers:
    """Fixed workers on one SimpleQueue; whatever has finished is delivered by one wake-up of the loop.

    No cancellation (a cancelled call still runs), no context variables, no slices, no growth, no bound.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: int) -> None:
        self._loop = loop
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[object], Task] | None] = queue.SimpleQueue()
        self._done: deque[tuple[asyncio.Future[object], object, BaseException | None]] = deque()
        self._ringing = False
        self._workers = [threading.Thread(target=self._work) for _ in range(workers)]
        for worker in self._workers:
            worker.start()

    def call(self, fn: Task) -> asyncio.Future[object]:
        future = self._loop.create_future()
        self._calls.put((future, fn))
        return future

    def _work(self) -> None:
        get, append, wake = self._calls.get, self._done.append, self._loop.call_soon_threadsafe
        while (item := get()) is not None:
            future, fn = item
            try:
                append((future, fn(), None))
            except BaseException as error:
                append((future, None, error))
            if not self._ringing:
                self._ringing = True
                wake(self._deliver)

    def _deliver(self) -> None:
        # Cleared before the look: what is appended later rings again.
        self._ringing = False
        popleft = self._done.popleft
        while self._done:
            future, value, error = popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    def close(self) -> None:
        for _ in self._workers:
            self._calls.put(None)
        for worker in self._workers:
            worker.join()
