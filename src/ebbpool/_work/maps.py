"""Maps over an executor: in order or as results come, with bounded memory if the caller asks for it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, ItemsView, Iterable, Iterator, KeysView, ValuesView
from concurrent.futures import Executor
from itertools import chain, repeat, starmap
from time import perf_counter
from typing import Any, Final, NoReturn, TypeVar

from ebbpool._checks import no_copy, time_limit, whole_or_none
from ebbpool._work.map_ledger import ANY
from ebbpool._work.map_turns import MapRun

T = TypeVar("T")

AT_HAND: Final = (
    list,
    tuple,
    range,
    dict,
    set,
    frozenset,
    str,
    bytes,
    bytearray,
    deque,
    KeysView,
    ValuesView,
    ItemsView,
)
"""Iterables whose items are in memory: they are read in one step."""
PORTION: Final = 256
"""How many results are handed out in one portion at most."""
BRISK: Final = 200e-6
"""Seconds in which a brisk consumer takes a portion."""


ENDS: Final = sys.version_info < (3, 16)
"""Whether the error of a call ends the iterator of `map`, as it does in the standard library of this Python."""


class Results(chain[Any]):
    """The iterator that a map returns.

    It hands out the results of one piece at the speed of C, and drops each result as it does.
    """

    _pieces: Generator[Iterable[Any]]

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled."""
        no_copy(self)

    @classmethod
    def of(cls, pieces: Generator[Iterable[Any]]) -> Results:
        """Return the results in `pieces`, one after the other."""
        results = cls.from_iterable(pieces)
        assert isinstance(results, cls)
        results._pieces = pieces
        return results

    def close(self) -> None:
        """End the map: no further call begins. As with any generator, this does nothing before the first `next`.

        Raises:
            ValueError: Another thread waits for a result right now.
        """
        self._pieces.close()


def _hand_out(
    run: MapRun,
    source: Iterator[Any],
    executor: Executor | None,
    buffersize: int | None,
    limit: float | None,
    ends: bool,
) -> Generator[Iterable[Any]]:
    """Yield results in pieces; `ends` says whether an error of a call ends them. An error of the map always does."""
    handed = 0
    pace = Pace()
    piece: Any = None
    pieces: deque[Any] = deque()
    try:
        while True:
            if executor is not None and buffersize is not None:
                run.read(executor, source, buffersize - (run.taken - handed))
            if handed == run.taken:
                run.insist()
                return
            # No local variable may keep an error that has been raised: its traceback may hold the iterator, a cycle.
            pieces.extend(run.wait_for_pieces(handed if run.ordered else ANY, limit))
            while pieces:
                piece = pieces.popleft()
                if not isinstance(piece, BaseException):
                    handed += len(piece)
                    yield from pace.portions(piece)
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
        del run, piece, pieces


class Pace:
    """How fast a consumer takes results, and so how many it is given at a time."""

    def __init__(self) -> None:
        self._brisk = False

    def portions(self, piece: list[Any]) -> Generator[Iterable[Any]]:
        """Yield iterables over the results in `piece`, which becomes empty.

        A brisk consumer is given a whole portion at a time; any other takes the results out of `piece` one by one.
        """
        piece.reverse()
        while piece:
            count = min(len(piece), PORTION)
            began = perf_counter()
            if self._brisk:
                portion = piece[-count:]
                del piece[-count:]
                portion.reverse()
                try:
                    yield portion
                except GeneratorExit:
                    # The consumer has left, and gets no more results.
                    portion.clear()
                    raise
            else:
                turns = repeat((), count)
                try:
                    yield starmap(piece.pop, turns)
                except GeneratorExit:
                    deque(turns, 0)
                    piece.clear()
                    raise
            self._brisk = (self._brisk or count == PORTION) and perf_counter() - began < BRISK


def _raising(error: BaseException) -> Generator[Any]:
    """Raise an error in place of a result; the iterator that chains this one can go on after it."""
    try:
        raise error
    finally:
        del error
    yield


class Maps(Executor):
    """The maps of an executor and of a lane."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled."""
        no_copy(self)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Call `fn` with the items of the iterables, in workers; return an iterator over the results, in order.

        Args:
            fn: Called once per item, with one argument per iterable.
            iterables: Consumed at once, or lazily with `buffersize`; the shortest one ends the map.
            timeout: Seconds, counted from this call, after which waiting for a result raises.
            chunksize: Items per task; None sizes the chunks by the time that items take: one at a time while they
                block, many while they are tiny.
            buffersize: How many items may be taken and not yet handed out; None for all at once.

        Raises:
            TimeoutError: From the iterator: a result was not there `timeout` seconds after the call.
            TypeError: `fn` is not callable, `timeout` is no number, or a size is no integer.
            ValueError: `timeout` is not a number, or `chunksize` or `buffersize` is below 1.

        What `fn` raises is raised by the iterator at that item's place. Up to Python 3.15 that ends the iterator; from
        3.16 on it can be read further, as that of the standard library, and `close` ends it. A time-out always ends it,
        and so does a pool that breaks or cancels. When the iterator ends early, calls that have not started are
        cancelled.

        Once the pool is shut down, no more items are read. Results of those read before are handed out; then, if there
        are more items, `RuntimeError` is raised.

        A lane's map runs in the lane. `stats` counts tasks, each of which may run many items.
        """
        return self._map(fn, iterables, timeout, chunksize, buffersize, True)

    def map_unordered(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Do what `map` does, but hand out results as they come.

        An error is raised when its turn comes, and the iterator can be read further after it. A time-out ends it, and
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
    ) -> Iterator[Any]:
        """Start a map: its tasks are submitted before this returns."""
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        chunksize = whole_or_none("chunksize", chunksize)
        buffersize = whole_or_none("buffersize", buffersize)
        if chunksize is not None and buffersize is not None:
            chunksize = min(chunksize, buffersize)
        limit = None if timeout is None else perf_counter() + time_limit("timeout", timeout)
        # With one iterable, `fn` is called with the items as they are, without tuples around them.
        spread = len(iterables) != 1
        items: Iterable[Any] = zip(*iterables, strict=False) if spread else iterables[0]
        run = MapRun(self, fn, spread, chunksize, buffersize, in_order)
        try:
            if (
                buffersize is None
                and chunksize is None
                and all(isinstance(iterable, AT_HAND) for iterable in iterables)
            ):
                run.read_all(self, items)
                source: Iterator[Any] = iter(())
            else:
                # An iterator may take long for its next item: the items before it run meanwhile.
                source = iter(items)
                run.read(self, source, buffersize)
                run.insist()
        except BaseException:
            run.abandon()
            raise
        # Without a buffer size all items have been read by now, and the executor may be collected.
        keeper = None if buffersize is None else self
        return Results.of(_hand_out(run, source, keeper, buffersize, limit, in_order and ENDS))
