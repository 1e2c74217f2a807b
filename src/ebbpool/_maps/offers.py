"""The methods `stream`, `schedule` and `amap` of `AdaptiveExecutor`, as a mix-in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from ebbpool._maps import delayed, streams
from ebbpool._maps.delayed import OnError, ScheduledTask
from ebbpool._maps.maps import Maps
from ebbpool._maps.streams import DEFAULT_BUFFERSIZE, Stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable

S = TypeVar("S")
T = TypeVar("T")


class Offers(Maps):
    """A mix-in for `AdaptiveExecutor`."""

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

        What the generator raises is raised at its place. When the consumer leaves, the generator is closed in its
        worker at its next ``yield``. ``async for`` blocks no thread; it is for asyncio and uvloop.
        """
        return streams.stream(self, genfn, args, kwargs, buffersize)

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
        executor: Any = self
        return delayed.schedule(executor, interval, fn, args, kwargs, first, on_error)

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

        return amap(self, fn, items, ordered=ordered, buffersize=buffersize)
