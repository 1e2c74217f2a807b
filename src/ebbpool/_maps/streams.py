"""Streams: what a generator yields while it runs in a worker, handed over through a bounded buffer."""

from __future__ import annotations

import inspect
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures._base import LOGGER
from concurrent.futures.thread import BrokenThreadPool
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar

from ebbpool._checks import NoCopy, whole
from ebbpool._core.accel import wait_counted
from ebbpool._core.latch import LockType, allocate_lock
from ebbpool._errors import QueueFull, trimmed
from ebbpool._pool import lifecycle

T = TypeVar("T")

DEFAULT_BUFFERSIZE: Final = 16
"""By how many values a worker may be ahead of the consumer, unless told otherwise."""
TURN: Final = 64
"""After so many values an asynchronous consumer lets its loop do other things, even if there are more."""

_WAIT: Final = object()
_END: Final = object()

_open: dict[int, Channel] = {}
"""The streams whose generators have not ended."""


class Channel:
    """What the two ends of a stream share.

    The mutex is re-entrant, because a thread that holds it may collect the consumer's end as garbage, which calls
    `leave`. So the worker sets `stalled` before it looks for the last time whether it has to wait.
    """

    def __init__(self, pool: Any, call: Callable[[], Iterable[Any]], size: int) -> None:
        self.pool = pool
        self.call: Callable[[], Iterable[Any]] | None = call
        self.size = size
        self.mutex: threading.RLock = threading.RLock()
        self.buffer: deque[Any] = deque()
        self.bell: LockType = allocate_lock()
        self.bell.acquire()
        self.stalled: bool = False  # whether the worker waits for room, at `bell`
        self.wake: Callable[..., object] | None = None  # wakes the consumer that waits for a value
        self.owner: tuple[int, int] = _reader_here()  # the thread, and the asyncio task or 0, that read last
        self.left: bool = False  # whether the consumer has left
        self.over: bool = False  # whether the generator has ended, with `error` if that is not None
        self.error: BaseException | None = None
        self.submitter: int | None = threading.get_ident()

    # The worker's end.

    def work(self) -> None:
        """Run the generator to its end, or until the consumer leaves; the task of the pool."""
        call, self.call = self.call, None
        if call is None or self.left:
            return
        if self.submitter == threading.get_ident():
            # It would wait here for room that only this very thread can make.
            raise QueueFull("the queue is full, and a stream cannot run in the thread that is to read it")
        error: BaseException | None = None
        values: Any = None
        try:
            values = iter(call())
            try:
                while not self.left:
                    self._put(next(values))
            except StopIteration:
                pass
            finally:
                _close(values)
        except BaseException as caught:
            # Without this frame, which holds the channel that holds the error.
            error = trimmed(caught)
            if isinstance(error, StopIteration | StopAsyncIteration):
                # For a consumer it would be the end.
                caught = RuntimeError(f"genfn raised {type(error).__name__}")
                caught.__cause__, error = error, caught
            if self.left:
                LOGGER.exception("exception in a generator whose consumer has left")
        finally:
            self.end(error)
            # Breaks a cycle: the error's traceback holds this frame.
            del call, values, error

    def _put(self, value: Any) -> None:
        """Add a value, and wait while the buffer is full."""
        with self.mutex:
            if not self.left:
                self.buffer.append(value)
            wake, self.wake = self.wake, None
            self.stalled = True
            full = not self.left and len(self.buffer) >= self.size
            if not full:
                self.stalled = False
        _ring(wake)
        if full:
            # The worker counts as blocked: the consumer may be a task that waits for a worker.
            wait_counted(self.pool, self.bell.acquire)

    def end(self, error: BaseException | None) -> None:
        """End the stream after the values that are in the buffer."""
        with self.mutex:
            if self.over:
                return
            self.over = True
            self.error = None if self.left else error
            wake, self.wake = self.wake, None
        _ring(wake)

    def ended(self, future: Future[Any]) -> None:
        """End the stream if its task never ran; a callback, in the thread that ends `future`."""
        _open.pop(id(self), None)
        if future.cancelled():
            self.end(CancelledError())
        elif future.exception() is not None:
            self.end(future.exception())

    # The consumer's end.

    def next_value(self, wake: Callable[..., object], owner: tuple[int, int]) -> Any:
        """Return the next value, `_END`, or `_WAIT` if `wake` will be called; `owner` is who reads."""
        with self.mutex:
            if self.wake is not None:
                raise RuntimeError("this stream is being read already")
            self.owner = owner
            if self.buffer:
                value = self.buffer.popleft()
                if len(self.buffer) <= self.size // 2:
                    self._make_room()
                return value
            if not (self.over or self.left):
                self.wake = wake
                return _WAIT
            error, self.error = self.error, None
        if error is None:
            return _END
        try:
            raise error
        finally:
            # Breaks a cycle: the traceback holds this frame.
            error = None

    def _make_room(self) -> None:
        if self.stalled:
            self.stalled = False
            self.bell.release()

    def leave(self) -> None:
        """Leave the stream, for the consumer: the worker closes the generator at its next yield."""
        if self.left:
            return
        with self.mutex:
            self.left = True
            self._make_room()
            self.error = None
            trash, self.buffer = self.buffer, deque()
            wake, self.wake = self.wake, None
        self.call = None
        trash.clear()
        _ring(wake)

    def cut(self, error: Exception) -> None:
        """End the stream early, for both ends; the values in the buffer can still be taken."""
        with self.mutex:
            self.end(error)
            self.left = True
            self._make_room()


class Stream(NoCopy, Generic[T]):
    """The values that a generator yields in a worker, for one consumer at a time, in ``for`` or in ``async for``.

    The generator runs ahead of the consumer by at most `buffersize` values. Then its worker waits until half of them
    are taken. The consumer leaves by `close`, at the end of a ``with`` or ``async with`` block, when it is cancelled
    while it waits in ``async for``, or when the stream is collected as garbage. The generator is then closed in the
    worker at its next yield: its ``finally`` blocks run there. What they raise is logged.

    What the generator raises is raised after the values before it, and ends the stream. For the pool a stream is one
    task, which runs until it has been read to the end or closed: `shutdown` waits for that. If the thread or asyncio
    task that read last shuts the pool down and waits, the stream is ended early: it raises RuntimeError after the
    values in the buffer.
    """

    def __init__(
        self, executor: Executor, genfn: Callable[..., Iterable[T]], args: Any, kwargs: Any, buffersize: int
    ) -> None:
        if not callable(genfn):
            raise TypeError(f"genfn must be callable, not {genfn!r}")
        if inspect.isasyncgenfunction(genfn) or inspect.iscoroutinefunction(genfn):
            raise TypeError(f"genfn must be a plain generator function, not {genfn!r}")
        pool = getattr(getattr(executor, "executor", executor), "_pool", None)
        channel = Channel(pool, lambda: genfn(*args, **kwargs), whole("buffersize", buffersize, 1))
        try:
            future = executor.submit(channel.work)
        finally:
            channel.submitter = None
        _open[id(channel)] = channel
        future.add_done_callback(channel.ended)
        self._channel = channel
        self._taken = 0

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """Wait for the next value, and return it.

        Raises:
            StopIteration: The generator has ended, or the stream is closed.
            CancelledError: The pool was shut down before the generator began, and its queued tasks were cancelled.
            RuntimeError: Another thread or task waits for a value of this stream.
        """
        channel = self._channel
        while True:
            waiter = allocate_lock()
            waiter.acquire()
            value = channel.next_value(waiter.release, (threading.get_ident(), 0))
            if value is _WAIT:
                try:
                    wait_counted(channel.pool, waiter.acquire)
                except BaseException:
                    channel.wake = None
                    raise
            elif value is _END:
                raise StopIteration
            else:
                taken: T = value
                return taken

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        """Return the next value without blocking the event loop. For asyncio and uvloop.

        Raises:
            StopAsyncIteration: The generator has ended, or the stream is closed.
            CancelledError: The consumer was cancelled, which closes the stream; or as for ``for``.
            RuntimeError: Another thread or task waits for a value of this stream.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        channel = self._channel
        try:
            self._taken += 1
            if self._taken % TURN == 0:
                await asyncio.sleep(0)
            while True:
                waiter = loop.create_future()
                value = channel.next_value(partial(loop.call_soon_threadsafe, _tell, waiter), _reader_here())
                if value is _END:
                    raise StopAsyncIteration
                if value is not _WAIT:
                    taken: T = value
                    return taken
                await waiter
        except asyncio.CancelledError:
            channel.leave()
            raise

    def close(self) -> None:
        """Leave the stream; do not wait for the generator. May be called again, and from any thread."""
        self._channel.leave()

    async def aclose(self) -> None:
        """Do what `close` does."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        channel = getattr(self, "_channel", None)
        # While the interpreter is finalizing, names of this module may be gone, and all streams have been ended.
        if channel is not None and not finalizing():
            channel.leave()


def end_own(pool: Any, blocking: bool) -> None:
    """End those streams of a pool that only its caller would read, who now waits: a thread, or one asyncio task."""
    here = _reader_here()
    for channel in list(_open.values()):
        if channel.pool is pool and channel.owner[0] == here[0] and (blocking or channel.owner == here):
            channel.cut(RuntimeError("the pool was shut down before this stream had been read to its end"))


def _reader_here() -> tuple[int, int]:
    asyncio = sys.modules.get("asyncio")
    task = None
    if asyncio is not None and asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
    return threading.get_ident(), 0 if task is None else id(task)


def _ring(wake: Callable[..., object] | None) -> None:
    if wake is not None:
        # The loop may be closed; then its task waits no longer.
        with suppress(RuntimeError):
            wake()


def _tell(waiter: Any) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _close(values: Any) -> None:
    close = getattr(values, "close", None)
    if close is not None:
        close()


def _cut_all() -> None:
    for channel in list(_open.values()):
        channel.cut(RuntimeError("the interpreter shuts down"))


def _leave_to_parent() -> None:
    while _open:
        channel = _open.popitem()[1]
        # A thread that is not here may have held it.
        channel.mutex = threading.RLock()
        channel.wake = None
        channel.cut(BrokenThreadPool("the process was forked; this stream was left with the parent"))


# A worker that waits for room in a buffer would keep the interpreter from exiting.
lifecycle.before_exit(_cut_all)
lifecycle.after_fork(_leave_to_parent)
