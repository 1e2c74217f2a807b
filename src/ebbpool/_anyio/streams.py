"""For `ebbpool.install`: Starlette's `iterate_in_threadpool` with a hand-over for a batch of chunks, not for each."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread

MOST: Final = 64
"""Chunks that one turn of a worker makes at most; the first makes one, and each makes twice as many as that before."""
MOST_BYTES: Final = 256 * 1024
"""A turn ends when its chunks are so large together."""


def iterate_in_batches(stock: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """Return what stands in for `stock`, Starlette's function, which goes on where no asyncio loop runs."""

    def iterate_in_threadpool(iterator: Iterable[Any]) -> AsyncIterator[Any]:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return stock(iterator)
        return _iterate(Pump(iter(iterator), loop))

    return iterate_in_threadpool


class Pump:
    """The chunks that a worker has made and the consumer has not taken.

    A turn ends with its batch whether these are taken or not, so no thread waits for a client. The consumer waits at
    `bell`; the mutex makes sure that it does not wait for a chunk that is there. `fn` gives a turn its name.
    """

    def __init__(self, iterator: Iterator[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.fn = iterator
        self.loop = loop
        self.mutex = threading.Lock()
        self.chunks: deque[Any] = deque()
        self.bell: asyncio.Future[None] | None = None
        self.left = False
        self.over = False
        self.error: BaseException | None = None

    def turn(self, most: int) -> None:
        """Make a batch, in a worker. The first chunk that the consumer waits for is given to it at once."""
        size = 0
        while most > 0 and size < MOST_BYTES and not self.left:
            try:
                chunk = next(self.fn)
            except BaseException as error:
                self.error = None if isinstance(error, StopIteration) else error
                self.over = True
                return
            most -= 1
            if isinstance(chunk, (bytes, str, memoryview)):
                size += len(chunk)
            with self.mutex:
                self.chunks.append(chunk)
                bell, self.bell = self.bell, None
            # For the last chunk the end of the turn wakes the consumer.
            if bell is not None and most > 0:
                self.loop.call_soon_threadsafe(_ring, bell)

    async def wait(self, turn: asyncio.Task[None]) -> None:
        """Wait until there is a chunk, or the turn has ended."""
        bell = self.loop.create_future()
        with self.mutex:
            if self.chunks:
                return
            self.bell = bell
        # At most one for each chunk of the turn.
        turn.add_done_callback(partial(_ring, bell))
        await bell


def _ring(bell: asyncio.Future[None], _: object = None) -> None:
    if not bell.done():
        bell.set_result(None)


async def _iterate(pump: Pump) -> AsyncIterator[Any]:
    turn: asyncio.Task[None] | None = None
    most = 2
    chunks = pump.chunks
    await anyio.to_thread.run_sync(pump.turn, 1)
    try:
        while True:
            while chunks:
                yield chunks.popleft()
            if turn is None or turn.done():
                if turn is not None:
                    turn.result()
                # Looked at last: the turn may have made these just before its end.
                if chunks:
                    continue
                if pump.over:
                    break
                turn = pump.loop.create_task(anyio.to_thread.run_sync(pump.turn, most))
                most = min(2 * most, MOST)
            await pump.wait(turn)
    finally:
        pump.left = True
        if turn is not None and not turn.done():
            # As Starlette's function does: what comes after may close what the iterator still uses.
            with anyio.CancelScope(shield=True):
                await asyncio.wait([turn])
    if pump.error is not None:
        try:
            raise pump.error
        finally:
            del pump
