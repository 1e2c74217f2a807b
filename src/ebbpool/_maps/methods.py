"""`map` and `map_unordered` of pools and lanes; `stream`, `schedule` and `amap` of pools; a map's iterator."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, ItemsView, Iterable, Iterator, KeysView, ValuesView
from concurrent.futures import Executor
from itertools import chain, repeat
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ebbpool._checks import NoCopy, time_limit, whole_or_none
from ebbpool._clock import perf_counter
from ebbpool._core.accel import instrumented
from ebbpool._maps.delayed import OnError, ScheduledTask
from ebbpool._maps.map_run import MapRun
from ebbpool._maps.streams import DEFAULT_BUFFERSIZE, Stream
from ebbpool._maps.submitted import Submitted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable

S = TypeVar("S")
T = TypeVar("T")

AT_HAND: Final = list, tuple, range, dict, set, frozenset, str, bytes, bytearray, deque, KeysView, ValuesView, ItemsView
"""Iterables whose items are in memory: they are read in one step."""
ENDS: Final = sys.version_info < (3, 16)
"""Whether the error of a call ends the iterator of `map`, as it does in the standard library of this Python."""


class Results(NoCopy, chain[T]):
    """The iterator that a map returns; `close` ends the map.

    It hands out the results of one piece at the speed of C, and drops each result as it does.
    """

    _pieces: Generator[Iterable[T]]

    def close(self) -> None:
        """End the map: no further call begins. As with any generator, this does nothing before the first `next`.

        Raises:
            ValueError: Another thread waits for a result right now.
        """
        self._pieces.close()


def _hand_out(
    run: MapRun | Submitted,
    source: Iterator[Any],
    keeper: Executor | None,
    buffersize: int | None,
    limit: float,
    ends: bool,
) -> Generator[Iterable[Any]]:
    """Yield results in pieces; `ends` says whether an error of a call ends them. An error of the map always does."""
    handed = 0
    piece: Any = None
    try:
        while True:
            if buffersize is not None:
                run.read(source, buffersize - (run.taken - handed))
            if handed == run.taken:
                run.insist()
                return
            # No local variable may keep an error that has been raised: its traceback may hold the iterator, a cycle.
            piece = run.next_piece(handed, limit)
            if type(piece) is list:
                handed += len(piece)
                piece.reverse()
                turns = repeat(piece, len(piece))
                try:
                    yield map(list.pop, turns)
                except GeneratorExit:
                    # The consumer has left, and gets no more results.
                    deque(turns, 0)
                    piece.clear()
                    raise
            elif ends:
                # An error ends a generator.
                raise piece
            else:
                handed += 1
                turn = _raising(piece)
                piece = None
                yield turn
    finally:
        run.abandon()
        del run, piece, source, keeper


def _raising(error: BaseException) -> Generator[Any]:
    """Raise an error in place of a result; the iterator that chains this one can go on after it."""
    try:
        raise error
    finally:
        del error
    yield


class Maps(NoCopy, Executor):
    """The maps of an executor and of a lane."""

    _run_type: type[MapRun] = MapRun
    _own_submit: Any
    """The engine's `submit` for this class."""

    def submits_otherwise(self) -> bool:
        """Return whether calls must pass through a `submit` that a subclass, the instance or a tool has put here."""
        kind = type(self)
        return kind.submit is not kind._own_submit or "submit" in vars(self) or instrumented()

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Results[T]:
        """Call `fn` with the items of the iterables, in workers; return an iterator over the results, in order.

        Args:
            fn: Called once per item, with one argument per iterable.
            iterables: Consumed at once, or lazily with `buffersize`; the shortest one ends the map.
            timeout: Seconds, counted from this call, after which waiting for a result raises.
            chunksize: Without effect, as in the standard library: one item at a time is given out while items block,
                many while they are tiny.
            buffersize: How many items may be taken and not yet handed out; None for all at once.

        Raises:
            TimeoutError: From the iterator: a result was not there `timeout` seconds after the call.
            TypeError: `fn` is not callable, `timeout` is not a number, or `buffersize` is not an integer.
            ValueError: `timeout` is NaN, or `buffersize` is below 1.

        What `fn` raises is raised by the iterator at that item's place. Up to Python 3.15 that ends the iterator; from
        3.16 on it can be read further, as that of the standard library, and `close` ends it. A timeout always ends it,
        and so does a pool that breaks or cancels. When the iterator ends early, calls that have not started are
        cancelled.

        Once the pool is shut down, no more items are read. Results of those read before are handed out; then, if there
        are more items, `RuntimeError` is raised.

        A lane's map runs in the lane. `stats` counts tasks, each of which may run many items. With `propagate_context`
        each item has a copy of the caller's context to itself.

        Where `submit` is not ebbpool's own (a subclass or the object has another, or a tool has replaced
        `ThreadPoolExecutor.submit`), it is called for each item, in the thread that reads the items, and what it raises
        ends the map.
        """
        return self._map(fn, iterables, timeout, chunksize, buffersize, True)

    def map_unordered(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Results[T]:
        """Do what `map` does, but hand out results as they come.

        An error is raised when its turn comes, and the iterator can be read further after it. A timeout ends it, and
        so does a pool that breaks or cancels.
        """
        return self._map(fn, iterables, timeout, chunksize, buffersize, False)

    def _map(
        self,
        fn: Callable[..., Any],
        iterables: tuple[Iterable[Any], ...],
        timeout: float | None,
        chunksize: int | None,
        buffersize: int | None,
        in_order: bool,
        /,
    ) -> Results[Any]:
        """Start a map: its tasks are submitted before this returns."""
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        buffersize = whole_or_none("buffersize", buffersize)
        limit = inf if timeout is None else perf_counter() + time_limit("timeout", timeout)
        # With one iterable, `fn` is called with the items as they are, without tuples around them.
        spread = len(iterables) != 1
        items: Iterable[Any] = zip(*iterables, strict=False) if spread else iterables[0]
        run: MapRun | Submitted
        if self.submits_otherwise():
            run = Submitted(self, fn, spread, in_order)
        else:
            run = self._run_type(self, fn, spread, chunksize, buffersize, in_order)
        source: Iterator[Any] = iter(())
        try:
            if buffersize is None and all(isinstance(iterable, AT_HAND) for iterable in iterables):
                run.read_all(items)
            else:
                # An iterator may take long for its next item: the items before it run meanwhile.
                source = iter(items)
                run.read(source, buffersize)
            run.insist()
        except BaseException:
            run.abandon()
            raise
        # Without a buffer size all items have been read by now, and the executor may be collected.
        keeper = None if buffersize is None else self
        pieces = _hand_out(run, source, keeper, buffersize, limit, in_order and ENDS)
        results = Results.from_iterable(pieces)
        assert isinstance(results, Results)
        results._pieces = pieces
        return results


class Methods(Maps):
    """What `AdaptiveExecutor` has beside: `stream`, `schedule` and `amap`."""

    def stream(
        self, genfn: Callable[..., Iterable[T]], /, *args: Any, buffersize: int = DEFAULT_BUFFERSIZE, **kwargs: Any
    ) -> Stream[T]:
        """Run a generator in a worker; return an iterator, for ``for`` and ``async for``, over what it yields.

        Args:
            genfn: Called with the other arguments, in the worker; returns a generator or another iterable.
            args: Its arguments.
            buffersize: Values that the worker may be ahead of the consumer; it waits while the buffer is full.
            kwargs: Its keyword arguments.

        Raises:
            TypeError: `genfn` is not callable, or `buffersize` is not an integer.
            ValueError: `buffersize` is below 1.
            RuntimeError: As `submit` does.
            QueueFull: From the iterator: the queue is full, and `submit` would run the generator in this thread.

        What the generator raises is raised at its place. When the consumer leaves, the generator is closed in its
        worker at its next ``yield``. ``async for`` blocks no thread; it is for asyncio and uvloop.
        """
        return Stream(self, genfn, args, kwargs, buffersize)

    def schedule(
        self,
        interval: float,
        fn: Callable[..., object],
        /,
        *args: Any,
        first: float | None = None,
        on_error: OnError = "log",
        **kwargs: Any,
    ) -> ScheduledTask:
        """Run `fn(*args, **kwargs)` every `interval` seconds; see `ScheduledTask`.

        Args:
            interval: Seconds from one run's time to the next, above 0. Times that come while a run is under way are
                dropped.
            fn: Called in a worker. What it raises is logged to the ``concurrent.futures`` logger.
            args: Its arguments.
            first: Seconds until the first run; None for `interval`.
            on_error: Whether the schedule goes on after a failing run is logged ("log"), or stops ("stop").
            kwargs: Its keyword arguments; use `functools.partial` for those with the name of one of the above.

        Raises:
            TypeError: `fn` is not callable, or `interval` or `first` is not a number.
            ValueError: `interval` is not above 0, `first` is negative, one is infinite or NaN, or `on_error`
                is neither "log" nor "stop".
            RuntimeError: As for `submit_later`.
        """
        return ScheduledTask(self, interval, fn, args, kwargs, first, on_error)

    def amap(
        self,
        fn: Callable[[S], T],
        items: Iterable[S] | AsyncIterable[S],
        *,
        ordered: bool = True,
        buffersize: int | None = None,
    ) -> AsyncGenerator[T, None]:
        """Call `fn` with each item, in workers; return an async iterator over the results, for asyncio.

        Args:
            fn: Called with one item.
            items: A plain or an async iterable, read as results are asked for.
            ordered: Whether results come in the order of the items, or as soon as they are there.
            buffersize: How many calls may be submitted and not yet handed out; None for as many as `max_workers`.

        Raises:
            TypeError: `fn` is not callable, `items` cannot be iterated, or `buffersize` is not an integer.
            ValueError: `buffersize` is below 1.

        What `fn` raises is raised by the iterator at that item's place, and ends it. What `items` raises comes after
        the results of all calls made before. When the iterator ends early, calls that have not started are cancelled.
        """
        # Imported here, so that asyncio is imported only where it is used.
        from ebbpool._maps.async_maps import amap

        return amap(self, fn, items, ordered, buffersize)
