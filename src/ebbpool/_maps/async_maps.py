"""Asynchronous maps over an executor: bounded, ordered or as results come, over plain and async iterables.

All of it runs in the thread of the event loop; only the calls themselves run in workers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from itertools import islice, repeat
from typing import Any, Protocol, TypeVar

from ebbpool._checks import whole_or_none

T = TypeVar("T")
R = TypeVar("R")

Submit = Callable[[Any], "asyncio.Future[Any]"]


def amap(
    executor: Any,
    fn: Callable[[T], R],
    items: Iterable[T] | AsyncIterable[T],
    *,
    ordered: bool = True,
    buffersize: int | None = None,
) -> AsyncGenerator[R, None]:
    """Call `fn` with each item, in workers; return an async iterator over the results.

    Nothing is read or submitted before the first result is asked for. From then on as many calls are under way as
    `buffersize` allows. A plain iterable is read in the loop's thread whenever a result is asked for; an async one by
    a task of its own, which also closes it at the end if it is an async generator.

    Args:
        executor: Its `run` takes the calls, each in the context that reads the items: the consumer's for a plain
            iterable; for an async one a copy made at the first result, with what the iterable itself sets there.
        fn: Called with one item.
        items: A plain or an async iterable; taken as async if it is both.
        ordered: Whether results come in the order of the items, or as soon as they are there.
        buffersize: How many calls may be submitted and not yet handed out; None for as many as the executor has
            workers at most.

    Raises:
        TypeError: `fn` is not callable, `items` cannot be iterated, or `buffersize` is no integer.
        ValueError: `buffersize` is below 1.

    What `fn` raises is raised by the iterator, which ends it: at that item's place, or with ``ordered=False`` as soon
    as it is known. What `items` raises, or `run` when it refuses a call, is raised once the results of all calls
    submitted before have been handed out.

    When the iterator ends early (closed, cancelled, collected, or by an error), calls that have not started are
    cancelled, those that run are left to finish, and a task that reads an async iterable is cancelled and waited for.
    Errors that are no longer handed out are dropped, except that of a call which a cancelled task was awaiting: it is
    reported to the loop's exception handler, as with `run`.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {fn!r}")
    size = whole_or_none("buffersize", buffersize) or executor._max_workers
    calls: _Calls = _InOrder() if ordered else _AsTheyCome()
    if hasattr(type(items), "__aiter__"):
        run = executor.run
        return _from_async(calls, lambda item: run(fn, item), aiter(items), size)  # type: ignore[arg-type]  # checked
    try:
        submitted = map(executor.run, repeat(fn), items)  # type: ignore[arg-type]  # if not, TypeError
    except TypeError as error:
        raise TypeError(f"items must be an iterable or an async iterable, not {items!r}") from error
    return _from_plain(calls, submitted, size)


class _Calls(Protocol):
    """The calls that are submitted and not yet handed out."""

    def __len__(self) -> int: ...

    def add(self, call: asyncio.Future[Any], /) -> None:
        """Add a call that has just been submitted."""

    def ready(self) -> asyncio.Future[Any]:
        """Return what to await before `next_result`; there must be a call."""
        ...

    def next_result(self) -> Any:
        """Return or raise the outcome of the next call, and forget the call."""

    def drop(self) -> None:
        """Cancel and forget all calls, the last one first, so that none moves up in the queue while others go."""


class _InOrder:
    """Calls handed out in the order in which they were submitted: it is enough to await the oldest."""

    __slots__ = ("_calls", "add")

    def __init__(self) -> None:
        self._calls: deque[asyncio.Future[Any]] = deque()
        self.add = self._calls.append

    def __len__(self) -> int:
        return len(self._calls)

    def ready(self) -> asyncio.Future[Any]:
        return self._calls[0]

    def next_result(self) -> Any:
        return self._calls.popleft().result()

    def drop(self) -> None:
        while self._calls:
            _abandon(self._calls.pop())


class _AsTheyCome:
    """Calls handed out in the order in which they finish, which a callback of each call records."""

    __slots__ = ("_done", "_running", "_waiter")

    def __init__(self) -> None:
        self._running: dict[asyncio.Future[Any], None] = {}
        self._done: deque[asyncio.Future[Any]] = deque()
        self._waiter: asyncio.Future[Any] | None = None

    def __len__(self) -> int:
        return len(self._running) + len(self._done)

    def add(self, call: asyncio.Future[Any]) -> None:
        self._running[call] = None
        call.add_done_callback(self._finished)

    def _finished(self, call: asyncio.Future[Any]) -> None:
        # Calls that `drop` has forgotten come here, too; their results are not taken.
        self._running.pop(call, None)
        self._done.append(call)
        _wake(self._waiter)

    def ready(self) -> asyncio.Future[Any]:
        if self._done:
            return self._done[0]
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def next_result(self) -> Any:
        return self._done.popleft().result()

    def drop(self) -> None:
        while self._running:
            _abandon(self._running.popitem()[0])
        while self._done:
            _abandon(self._done.pop())


def _abandon(call: Any) -> None:
    """Take a call off the queue, or let one that runs finish and ignore its outcome.

    Cancelling its future instead would report an error that the call may still raise.
    """
    if call.done():
        _ignore(call)
    elif call._call.withdraw():
        call.cancel()
    else:
        call.add_done_callback(_ignore)


def _ignore(call: asyncio.Future[Any]) -> None:
    if not call.cancelled():
        call.exception()


def _wake(waiter: asyncio.Future[Any] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


async def _from_plain(
    calls: _Calls, submitted: Iterator[asyncio.Future[Any]] | None, size: int
) -> AsyncGenerator[Any, None]:
    """Yield results over a plain iterable; each step of `submitted` reads an item and submits its call."""
    failure: Exception | None = None
    try:
        while True:
            if submitted is not None:
                try:
                    for call in islice(submitted, size - len(calls)):
                        calls.add(call)
                    if len(calls) < size:
                        submitted = None
                except Exception as error:
                    failure = error
                    submitted = None
                call = None  # type: ignore[assignment]  # drops the reference
            if not calls:
                break
            await calls.ready()
            # Removed only now: a call that is awaited can still be dropped, and one handed out is not kept alive.
            yield calls.next_result()
        if failure is not None:
            raise failure
    finally:
        # Breaks a cycle: the traceback of an error that was raised holds this frame.
        failure = None
        calls.drop()


class _Feed:
    """The link between the task that reads an async iterable and submits calls, and the task that consumes results.

    The reading task has no reference to the iterator of results, so that this can be collected. It is one task from
    the first item to the end, because an async generator may hold timeouts or task groups open across its items.
    """

    __slots__ = ("_calls", "_news", "_room", "_size", "_source", "_submit", "closed")

    def __init__(self, calls: _Calls, submit: Submit, source: AsyncIterator[Any], size: int) -> None:
        self._calls = calls
        self._submit = submit
        self._source = source
        self._size = size
        self._news: asyncio.Future[Any] | None = None
        self._room: asyncio.Future[Any] | None = None
        self.closed = False

    async def read(self) -> None:
        """Read until the end; raise what the iterable or the executor raises."""
        try:
            while True:
                try:
                    item = await anext(self._source)
                except StopAsyncIteration:
                    return
                # Some iterables go on after they have been cancelled.
                if self.closed:
                    return
                self._calls.add(self._submit(item))
                item = None
                _wake(self._news)
                while len(self._calls) >= self._size:
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
        finally:
            if isinstance(self._source, AsyncGenerator):
                await self._source.aclose()

    def news(self) -> asyncio.Future[Any]:
        """Return what to await while there is no call: done when one is submitted, or when `ended` is called."""
        self._news = asyncio.get_running_loop().create_future()
        return self._news

    def ended(self, reader: asyncio.Future[Any]) -> None:
        """Wake the consumer, because the reading task is over; a callback of that task."""
        _wake(self._news)

    def next_result(self) -> Any:
        """Return or raise the next call's outcome; the reader uses the room in a later turn of the loop."""
        _wake(self._room)
        return self._calls.next_result()


async def _from_async(
    calls: _Calls, submit: Submit, source: AsyncIterator[Any], size: int
) -> AsyncGenerator[Any, None]:
    """Yield results over an async iterable, which another task reads meanwhile."""
    feed = _Feed(calls, submit, source, size)
    reader = asyncio.get_running_loop().create_task(feed.read())
    reader.add_done_callback(feed.ended)
    try:
        while True:
            while not calls:
                if reader.done():
                    reader.result()
                    return
                await feed.news()
            await calls.ready()
            yield feed.next_result()
    finally:
        feed.closed = True
        calls.drop()
        try:
            await _stop(reader)
        finally:
            # Breaks a cycle: the traceback of an error that was raised holds this frame.
            del reader


async def _stop(reader: asyncio.Future[None]) -> None:
    """End the reading task; raise what its clean-up raises."""
    if reader.done():
        if not reader.cancelled():
            reader.exception()
        return
    reader.cancel()
    try:
        # Unlike an await of the task itself, this does not cancel its clean-up if the consumer is cancelled once more.
        await asyncio.wait([reader])
        if not reader.cancelled():
            reader.result()
    finally:
        del reader
