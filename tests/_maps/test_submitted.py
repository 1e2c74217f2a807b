"""Whose `submit` it is: what another `submit` than the engine's own sees of a map, and what it may do there."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from support.common import Background, Boom, Gate, Thing, eventually, forked, gone, no_collector, wait_for_idle

from ebbpool import AdaptiveExecutor

either = pytest.mark.parametrize("method", ["map", "map_unordered"])

Step = Callable[[Callable[[], Any]], Any]
"""Stands for a `submit`; what it is given submits the call."""


@contextmanager
def passing(step: Step, workers: int = 1, way: str = "overridden") -> Iterator[Any]:
    """A pool, or a view of one, whose calls pass through `step`, by a `submit` put where `way` says."""

    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return step(partial(own, self, fn, *args, **kwargs))

    own: Any = AdaptiveExecutor.submit
    kind = type("Mine", (AdaptiveExecutor,), {"submit": submit} if way == "overridden" else {})
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        if way in ("standard", "ours"):
            replaced = ThreadPoolExecutor if way == "standard" else AdaptiveExecutor
            own = replaced.submit
            patch.setattr(replaced, "submit", submit)
        executor: Any = stack.enter_context(kind(workers))
        if way == "lane":
            executor = executor.lane("lane", limit=workers)
        elif way == "session":
            executor = stack.enter_context(executor.session())
        if way in ("instance", "lane", "session"):
            own = type(executor).submit
            vars(executor)["submit"] = partial(submit, executor)
        yield executor
        vars(executor).pop("submit", None)


WAYS = ["overridden", "instance", "standard", "ours", "lane"]


@pytest.mark.parametrize(("way", "method"), [*itertools.product(WAYS, ["map", "map_unordered"]), ("session", "map")])
@pytest.mark.parametrize("wide", [False, True])
def test_each_item_passes_in_the_callers_thread_before_the_map_returns(way: str, method: str, wide: bool) -> None:
    threads: list[threading.Thread] = []

    def step(go_on: Callable[[], Any]) -> Any:
        threads.append(threading.current_thread())
        return go_on()

    with passing(step, 2, way) as pool:
        columns = [range(100), range(1, 101)] if wide else [range(100)]
        results = getattr(pool, method)(max if wide else abs, *columns)
        assert threads == [threading.current_thread()] * 100
        assert sorted(results) == list(range(wide, 100 + wide))
        assert len(threads) == 100


@either
def test_the_input_is_read_and_submitted_as_results_are_taken(method: str) -> None:
    numbers = itertools.count()
    submitted: list[int] = []

    def step(go_on: Callable[[], Any]) -> Any:
        submitted.append(len(submitted))
        return go_on()

    with passing(step, 2) as pool:
        results = getattr(pool, method)(abs, numbers, buffersize=3)
        for taken in range(50):
            assert len(submitted) <= taken + 3
            next(results)
        results.close()
        assert next(numbers) == len(submitted)


@either
def test_a_submit_that_waits_for_a_permit_keeps_only_the_caller_waiting(method: str) -> None:
    """Its futures give the permits back, so a worker that submitted would wait for its own."""
    permits = threading.BoundedSemaphore(2)

    def step(go_on: Callable[[], Any]) -> Any:
        permits.acquire()
        future = go_on()
        future.add_done_callback(lambda _: permits.release())
        return future

    with passing(step, 2) as pool:
        mapping = Background(lambda: sum(getattr(pool, method)(abs, range(300))))
        assert mapping.join() == sum(range(300))


@either
@pytest.mark.parametrize("error", [LookupError, RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("buffersize", [None, 3])
def test_what_submit_raises_ends_the_map_and_cancels_what_has_not_begun(
    method: str, error: type[BaseException], buffersize: int | None
) -> None:
    futures: list[Future[Any]] = []

    def step(go_on: Callable[[], Any]) -> Any:
        if len(futures) == 5:
            gate.await_begun()
            raise error("enough")
        futures.append(go_on())
        return futures[-1]

    with passing(step) as pool, Gate() as gate:
        results: list[Any] = []
        if buffersize is None:
            with pytest.raises(error, match="enough"):
                getattr(pool, method)(gate, range(10))
            assert [future.cancelled() for future in futures] == [False, True, True, True, True]
        else:
            gate.open()
            iterator = getattr(pool, method)(gate, range(10), buffersize=buffersize)
            with pytest.raises(error, match="enough"):
                results.extend(iterator)
            assert list(iterator) == []
            assert all(future.done() for future in futures[: len(results)])
        gate.open()


@either
def test_a_call_that_somebody_cancels_ends_the_map(method: str) -> None:
    futures: list[Future[Any]] = []

    def step(go_on: Callable[[], Any]) -> Any:
        futures.append(go_on())
        return futures[-1]

    with passing(step) as pool, Gate() as gate:
        results = getattr(pool, method)(gate, range(3))
        gate.await_begun()
        futures[1].cancel()
        gate.open()
        with pytest.raises(CancelledError):
            list(results)


@either
def test_the_pools_submit_is_not_that_of_its_lanes_and_sessions(method: str) -> None:
    def step(_: Any) -> Any:
        raise Boom

    with passing(step) as pool:
        assert sum(getattr(pool.lane("lane", limit=1), method)(abs, range(9))) == 36
        with pool.session() as session:
            assert sum(session.map(abs, range(9))) == 36
        with pytest.raises(Boom):
            getattr(pool, method)(abs, range(9))


class Plain(AdaptiveExecutor):
    """An executor with a `submit` of its own."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return super().submit(fn, *args, **kwargs)


@pytest.mark.counts_references
@either
@pytest.mark.parametrize("kind", [AdaptiveExecutor, Plain])
@pytest.mark.parametrize("buffersize", [None, 2])
def test_an_error_that_is_kept_keeps_nothing_else(method: str, kind: Any, buffersize: int | None) -> None:
    def work(thing: Thing) -> None:
        del thing
        raise Boom

    def kept(executor: Any, source: Iterator[Thing]) -> BaseException:
        try:
            list(getattr(executor, method)(work, source, buffersize=buffersize))
        except Boom as error:
            return error
        finally:
            del executor, source
        raise AssertionError("it has to fail")

    with no_collector():
        things = [Thing() for _ in range(6)]
        references: list[weakref.ref[Any]] = [weakref.ref(thing) for thing in things]
        pool: Any = kind(1)
        error = kept(pool, iter(things))
        wait_for_idle(pool)
        things.clear()
        gone(*references, pool=pool)
        pool.shutdown()
        executor = weakref.ref(pool)
        del pool
        eventually(lambda: executor() is None)
        assert isinstance(error, Boom)


@pytest.mark.counts_references
def test_what_ends_after_the_consumer_has_left_is_no_garbage() -> None:
    """Futures of the standard library keep their callbacks."""
    futures: list[Future[Any]] = []

    def step(_: Any) -> Future[Any]:
        futures.append(Future())
        futures[-1].set_running_or_notify_cancel()
        return futures[-1]

    with no_collector(), passing(step) as pool:
        results = pool.map_unordered(abs, range(2))
        futures[0].set_result(0)
        assert next(results) == 0
        results.close()
        thing = Thing()
        reference = weakref.ref(thing)
        futures[1].set_result(thing)
        futures.clear()
        del thing
        gone(reference)


@either
def test_a_forked_child_does_not_wait_for_what_its_parent_does(method: str) -> None:
    script = f"""
        class Mine(AdaptiveExecutor):
            def submit(self, fn, /, *args, **kwargs):
                return super().submit(fn, *args, **kwargs)

        gate = threading.Event()
        pool = Mine(1)
        results = pool.{method}(lambda number: number and gate.wait(20), range(3))
        next(results)

        def check():
            try:
                next(results)
            except BrokenThreadPool as error:
                print(error)

        in_child(check)
        gate.set()
        pool.shutdown()
        print(len(list(results)))
    """
    assert forked(script)[-2:] == ["the process was forked while the map was under way", "2"]
