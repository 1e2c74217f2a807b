"""Asynchronous maps over an executor: bounded, ordered or as results come, over plain and async iterables.

All of it runs in the thread of the event loop; only the calls themselves run in workers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from ebbpool._checks import whole_or_none

T = TypeVar("T")
R = TypeVar("R")


def amap(
    executor: Any, fn: Callable[[T], R], items: Iterable[T] | AsyncIterable[T], ordered: bool, buffersize: int | None
) -> AsyncGenerator[R, None]:
    """Do what `AdaptiveExecutor.amap` does.

    A plain iterable is read whenever a result is asked for, an async one by a task of its own from the first result on.
    A call runs in the context that reads its item. Errors that are no longer handed out are dropped, except that of a
    call which a cancelled task was awaiting: the loop's exception handler is told of it, as with `run`.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {fn!r}")
    size = whole_or_none("buffersize", buffersize) or executor._max_workers
    calls = _Calls(partial(executor.run, fn), size, ordered)
    if hasattr(type(items), "__aiter__"):
        return _results(calls, None, aiter(items))  # type: ignore[arg-type]  # checked
    try:
        return _results(calls, map(calls.add, items), None)  # type: ignore[arg-type]  # if not, TypeError
    except TypeError as error:
        raise TypeError(f"items must be an iterable or an async iterable, not {items!r}") from error


class _Calls:
    """The calls that are submitted and not yet handed out: the link between who reads the items and the consumer.

    The task that reads an async iterable has no reference to the iterator of results, so that this can be collected.
    """

    def __init__(self, submit: Callable[[Any], asyncio.Future[Any]], size: int, ordered: bool) -> None:
        self._submit = submit
        self._size = size
        self._ordered = ordered
        self.space = asyncio.Event()
        self.news = asyncio.Event()  # set when it is a call's turn, or the reading task is over
        self.held: dict[asyncio.Future[Any], None] = {}  # all calls, in the order of the items
        # Those to be handed out next, one after the other: all, or those that are done if any order will do.
        self.turn: deque[asyncio.Future[Any]] = deque()
        self.closed = False  # whether the consumer has left

    def room(self) -> int:
        """Return how many calls may be added."""
        return self._size - len(self.held)

    def add(self, item: Any) -> None:
        call = self._submit(item)
        self.held[call] = None
        if self._ordered:
            self._next(call)
        else:
            call.add_done_callback(self._next)

    def _next(self, call: asyncio.Future[Any]) -> None:
        # Calls that `drop` has forgotten come here, too; their results are not taken.
        if call in self.held:
            self.turn.append(call)
            self.news.set()

    async def read(self, source: AsyncIterator[Any]) -> None:
        """Add a call for each item, as there is room; raise what the iterable or the executor raises.

        It is one task from the first item to the end, because an async generator may hold timeouts or task groups open
        across its items.
        """
        try:
            while True:
                try:
                    item = await anext(source)
                except StopAsyncIteration:
                    return
                # Some iterables go on after they have been cancelled.
                if self.closed:
                    return
                self.add(item)
                item = None
                while self.room() <= 0:
                    self.space.clear()
                    await self.space.wait()
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()

    def drop(self) -> None:
        """Cancel and forget all calls, the last one first, so that none moves up in the queue while others go."""
        self.closed = True
        self.turn.clear()
        while self.held:
            _abandon(self.held.popitem()[0])


def _abandon(call: Any) -> None:
    """Take a call off the queue, or let one that runs finish and ignore its outcome.

    Cancelling its future instead would report an error that the call may still raise.
    """
    if call.done():
        _ignore(call)
    elif call._call.withdraw():
        call.cancel()
    else:
        call._call.abandon()
        call.add_done_callback(_ignore)


def _ignore(call: asyncio.Future[Any]) -> None:
    if not call.cancelled():
        call.exception()


async def _results(
    calls: _Calls, added: Iterator[None] | None, source: AsyncIterator[Any] | None
) -> AsyncGenerator[Any, None]:
    """Yield the results; each step of `added` reads a plain iterable, and a task of its own an async `source`."""
    loop = asyncio.get_running_loop()
    # Done when all has been read, or with the error that ended it.
    reader: asyncio.Future[None] = loop.create_future() if source is None else loop.create_task(calls.read(source))
    reader.add_done_callback(lambda _: calls.news.set())
    try:
        while True:
            if added is not None:
                try:
                    deque(islice(added, calls.room()), 0)
                    if calls.room():
                        reader.set_result(None)
                except Exception as error:
                    reader.set_exception(error)
                if reader.done():
                    # The iterable may be freed before its last results are handed out.
                    added = None
            while not calls.turn:
                if not calls.held and reader.done():
                    reader.result()
                    return
                calls.news.clear()
                await calls.news.wait()
            await calls.turn[0]
            # Removed only now: a call that is awaited can still be dropped, and one handed out is not kept alive.
            del calls.held[calls.turn[0]]
            # A task that reads uses the room in a later turn of the loop.
            calls.space.set()
            yield calls.turn.popleft().result()
    finally:
        calls.drop()
        try:
            await _stop(reader)
        finally:
            # Breaks a cycle: the traceback of an error that was raised holds this frame.
            del reader


async def _stop(reader: asyncio.Future[None]) -> None:
    """End the reading; raise what the clean-up of its task raises."""
    reader.cancel()
    if reader.done():
        _ignore(reader)
        return
    try:
        # Unlike an await of the task itself, this does not cancel its clean-up if the consumer is cancelled once more.
        await asyncio.wait([reader])
        if not reader.cancelled():
            reader.result()
    finally:
        del reader
