"""Bad input: the error names the argument and the value, and nothing is lost."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
from support import seams
from support.common import LONG, TIMEOUT, Gate

from ebbpool import AdaptiveExecutor, PoolStats, sync

NAN, INF = float("nan"), float("inf")
COUNTS = [(value, TypeError) for value in (True, 2.5, NAN, INF, "4", [1])]
"""What is no number of things."""
TOO_LARGE = [(value, ValueError) for value in (sys.maxsize + 1, 10**30)]
NO_SECONDS = [(value, ValueError) for value in (-1, 0, INF)] + [(value, TypeError) for value in ("1", True)]
Row = tuple[str, Any, type[Exception]]


def rows(names: tuple[str, ...], *cases: tuple[Any, type[Exception]]) -> list[Row]:
    return [(name, value, error) for name in names for value, error in cases]


BAD_SETTINGS: list[Row] = [
    ("max_workers", 0, ValueError),
    ("min_workers", -1, ValueError),
    ("min_workers", None, TypeError),
    ("min_spare_workers", -1, ValueError),
    ("min_spare_workers", None, TypeError),
    ("max_queue", -1, ValueError),
    *rows(("max_workers", "min_workers", "min_spare_workers", "max_queue"), *COUNTS, *TOO_LARGE),
    *rows(("min_workers", "min_spare_workers", "max_queue"), (2.0, TypeError)),
    ("keep_alive", -0.001, ValueError),
    ("keep_alive", NAN, ValueError),
    ("keep_alive", -INF, ValueError),
    ("keep_alive", "10", TypeError),
    ("keep_alive", bytearray(b"10"), TypeError),
    ("keep_alive", Decimal("sNaN"), ValueError),
    ("keep_alive", 1j, TypeError),
]
BAD_OTHERS: list[Row] = [
    ("initializer", 3, TypeError),
    ("initargs", 3, TypeError),
    ("finalizer", "close", TypeError),
    ("thread_name_prefix", b"worker", TypeError),
    ("thread_name_prefix", 3, TypeError),
    ("when_full", "", ValueError),
    *rows(("warn_after", "warn_lag"), *NO_SECONDS),
    *(("thread_stack_size", value, ValueError) for value in (0, 1, 4096, -65536, 2**62, 2**80)),
    *rows(("thread_stack_size",), *COUNTS),
]


def check_names(error: BaseException, name: str, value: object) -> None:
    assert name in str(error), f"{name!r} is not named in: {error}"
    assert repr(value) in str(error) or str(value) in str(error).replace(name, ""), f"{value!r} is not in: {error}"


@pytest.mark.parametrize(("name", "value", "error"), BAD_SETTINGS + BAD_OTHERS)
def test_a_bad_argument_is_named(name: str, value: Any, error: type[Exception]) -> None:
    before = set(threading.enumerate())
    with pytest.raises(error) as caught:
        AdaptiveExecutor(**{name: value})
    check_names(caught.value, name, value)
    assert set(threading.enumerate()) <= before


def test_the_edges_are_accepted_and_a_minimum_above_the_maximum_is_not() -> None:
    AdaptiveExecutor(max_workers=1, min_workers=1, min_spare_workers=1, keep_alive=0, max_queue=0)
    AdaptiveExecutor(max_workers=1, min_workers=0, keep_alive=0.0, max_queue=None)
    AdaptiveExecutor(None, "", None, ())
    for name in "min_workers", "min_spare_workers":
        with pytest.raises(ValueError, match=f"{name}=5, max_workers=2"):
            AdaptiveExecutor(max_workers=2, **{name: 5})  # type: ignore[arg-type]


def test_an_unknown_argument() -> None:
    with AdaptiveExecutor(1) as pool, pytest.raises(TypeError):
        pool.shutdown(True, True)  # type: ignore[misc]
    with pytest.raises(TypeError, match="workers_max"):
        AdaptiveExecutor(workers_max=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        AdaptiveExecutor(2, "", None, (), 1)  # type: ignore[misc]


def figures(pool: AdaptiveExecutor) -> PoolStats:
    return dataclasses.replace(pool.stats(), oldest_wait=0.0, longest_running=0.0, last_decision="")


@contextmanager
def nothing_is_lost(pool: AdaptiveExecutor) -> Iterator[None]:
    """Check that the block leaves a busy pool, its queue and its figures alone, and that all runs on."""
    with Gate() as gate:
        gate.hold(pool)
        queued = pool.submit(int, 5)
        before = figures(pool)
        yield
        assert figures(pool) == before
        assert not queued.done()
    assert queued.result(TIMEOUT) == 5


@pytest.mark.parametrize(("name", "value", "error"), [case for case in BAD_SETTINGS if case[1] is not None])
def test_a_bad_resize_is_named_and_changes_nothing(name: str, value: Any, error: type[Exception]) -> None:
    with AdaptiveExecutor(1) as pool:
        before = pool.stats()
        with pytest.raises(error) as caught:
            pool.resize(**{name: value})
        check_names(caught.value, name, value)
        assert pool.stats() == before


def test_a_resize_with_one_bad_value_applies_none() -> None:
    with AdaptiveExecutor(1, keep_alive=LONG) as pool, nothing_is_lost(pool):
        with pytest.raises(ValueError, match="keep_alive"):
            pool.resize(max_workers=50, keep_alive=-1)
        with pytest.raises(ValueError, match="min_workers"):
            pool.resize(min_workers=7, max_workers=5)
        with pytest.raises(ValueError, match="min_workers"):
            pool.resize(min_workers=2)
        with pytest.raises(TypeError, match=r"when_full|unexpected"):
            pool.resize(when_full_of_what="reject")  # type: ignore[call-arg]


def test_the_largest_numbers_are_accepted() -> None:
    with AdaptiveExecutor(sys.maxsize, max_queue=sys.maxsize) as pool:
        assert list(pool.map(int, "12", chunksize=sys.maxsize, buffersize=sys.maxsize)) == [1, 2]
        assert pool.lane("wide", limit=sys.maxsize).submit(int, 3).result(TIMEOUT) == 3
        # A call that lifts the ceiling adds to it.
        with Gate() as gate:
            lifting = seams.lift(pool, gate, "lifted")
            gate.await_begun()
            assert pool.submit(int, 4).result(TIMEOUT) == 4
            pool.resize(max_workers=sys.maxsize)
            assert pool.submit(int, 5).result(TIMEOUT) == 5
        assert lifting.result(TIMEOUT) == "lifted"
        assert pool.stats().max_workers == sys.maxsize


def schedule(pool: AdaptiveExecutor, **given: Any) -> object:
    return pool.schedule(given.pop("interval", 1), given.pop("fn", print), **given)


async def async_source(_: int) -> AsyncIterator[int]:
    yield 1


NO_DELAY = [*((value, TypeError) for value in (True, "1", 1j)), *((value, ValueError) for value in (-1, INF, NAN))]
NO_BUFFER = [(1.5, TypeError), ("2", TypeError), (True, TypeError), (0, ValueError), (-1, ValueError)]
BAD_SCHEDULES = [
    *rows(("interval", "first"), *NO_DELAY),
    *rows(("interval",), (0, ValueError), (-0.0, ValueError), (None, TypeError), (10**400, TypeError)),
    *rows(("on_error",), ("raise", ValueError), (None, ValueError)),
    ("fn", 3, TypeError),
]
TIMED: dict[str, tuple[Any, ...]] = {"map": (str, [1]), "map_unordered": (str, [1]), "wait_idle": (), "shutdown": ()}
BAD_CALLS: list[tuple[Callable[[AdaptiveExecutor, Any], object], str, Any, type[Exception]]] = [
    *((lambda pool, fn: pool.submit(fn, 1), "fn", value, TypeError) for value in (17, None, "print", object())),
    *(
        (lambda pool, timeout, way=way: getattr(pool, way)(*TIMED[way], timeout=timeout), "timeout", value, error)
        for way in TIMED
        for value, error in [("soon", TypeError), (b"1", TypeError), (True, TypeError), (NAN, ValueError)]
    ),
    *((lambda pool, value, name=name: schedule(pool, **{name: value}), name, *bad) for name, *bad in BAD_SCHEDULES),
    *(
        (lambda pool, delay: pool.submit_later(delay, print), "delay", *bad)
        for bad in [*NO_DELAY, (10**400, TypeError)]
    ),
    (lambda pool, fn: pool.submit_later(1, fn), "fn", 3, TypeError),
    *(
        (lambda pool, size, way=way: getattr(pool, way)(int, [1], buffersize=size), "buffersize", *bad)
        for way in ("map", "map_unordered", "stream")
        for bad in [*NO_BUFFER, (2**63, ValueError)]
    ),
    *((lambda pool, fn, way=way: getattr(pool, way)(fn, [1]), "fn", 17, TypeError) for way in ("map", "map_unordered")),
    *(
        (lambda pool, genfn: pool.stream(genfn, 3), "genfn", bad, TypeError)
        for bad in (17, asyncio.sleep, async_source)
    ),
    (lambda pool, size: pool.stream(range, 3, buffersize=size), "buffersize", None, TypeError),
    (lambda pool, fn: pool.amap(fn, []), "fn", None, TypeError),
    (lambda pool, items: pool.amap(int, items), "items", 17, TypeError),
    *(
        (lambda pool, size: pool.amap(int, [], buffersize=size), "buffersize", *bad)
        for bad in [*COUNTS, (0, ValueError)]
    ),
    (lambda pool, timeout: pool.shutdown(timeout=timeout), "timeout", -1, ValueError),
    (lambda pool, name: pool.lane(name, limit=1), "name", 3, TypeError),
    *(
        (lambda pool, limit: pool.lane("a", limit=limit), "limit", value, error)
        for value, error in [*COUNTS, (0, ValueError), (2**63, ValueError)]
    ),
]


@pytest.mark.parametrize(("call", "name", "value", "error"), BAD_CALLS)
def test_a_bad_call_is_named_and_changes_nothing(call: Any, name: str, value: Any, error: type[Exception]) -> None:
    with AdaptiveExecutor(1) as pool, nothing_is_lost(pool):
        with pytest.raises(error) as caught:
            call(pool, value)
        check_names(caught.value, name, value)
        assert not pool._shutdown


def test_a_callback_that_cannot_be_called() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        future = pool.submit(gate)
        for _ in ("pending or running", "done"):
            for value in None, 17:
                with pytest.raises(TypeError) as caught:
                    future.add_done_callback(value)  # type: ignore[arg-type]
                check_names(caught.value, "fn", value)
            gate.open()
            future.result(TIMEOUT)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_cannot_be_copied(duplicate: Callable[[object], object]) -> None:
    with AdaptiveExecutor(2) as pool, pool.stream(range, 3) as stream:
        executors, futures = (pool, pool.lane("aside", limit=1)), (pool.submit(int), pool.submit_later(LONG, int))
        others = (stream, pool.map(int, "1"), pool.map_unordered(int, "1"), pool.schedule(LONG, int), sync.Semaphore())
        for original in (*executors, *futures, *others):
            with pytest.raises(TypeError, match=f"^cannot pickle '{type(original).__name__}' object$"):
                duplicate(original)
        assert list(stream) == [0, 1, 2]


def test_submit_from_a_finalizer_while_the_pool_shuts_down() -> None:
    told: list[str] = []

    def finalize() -> None:
        with pytest.raises(RuntimeError) as caught:
            pool.submit(int)
        told.append(str(caught.value))

    pool = AdaptiveExecutor(2, finalizer=finalize)
    with Gate() as gate:
        futures = [pool.submit(gate), pool.submit(gate)]
        gate.await_begun(2)
    pool.shutdown()
    assert told == ["cannot schedule new futures after shutdown"] * 2
    assert all(future.result(timeout=0) is None for future in futures)


def test_waiting_in_a_finalizer_for_the_own_pool_ends() -> None:
    results: list[int] = []
    begun, done = threading.Event(), threading.Event()

    def finalize() -> None:
        if not begun.is_set():
            begun.set()
            results.append(pool.submit(pow, 2, 3).result(TIMEOUT))
            done.set()

    with AdaptiveExecutor(1, keep_alive=0.01, finalizer=finalize) as pool:
        pool.submit(int).result(TIMEOUT)
        assert done.wait(TIMEOUT)
    assert results == [8]
