"""Event loops with the pool as executor, and our own loops, whose `run_in_executor` takes the short way."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.common import TIMEOUT, Boom, Gate, all_end, thread_name
from support.loops import OURS, factory_of, fail, on_every_loop, on_our_loops, until

from ebbpool import AdaptiveExecutor, aio

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture(params=OURS, name="factory")
def each_factory(request: pytest.FixtureRequest) -> Callable[..., asyncio.AbstractEventLoop]:
    """What makes our loops, for tests that make their own."""
    return factory_of(request)


@on_every_loop
async def test_each_loop_is_what_its_name_says(request: pytest.FixtureRequest) -> None:
    """Tests on a loop of another kind would pass, too."""
    kind = request.node.callspec.id
    loop = asyncio.get_running_loop()
    assert loop.get_debug() is (kind == "debug")
    assert (loop.get_task_factory() is not None) is (kind == "eager")
    assert type(loop).__module__.partition(".")[0] == (
        kind.partition("-")[0] if kind in (*OURS, "uvloop") else "asyncio"
    )


@pytest.mark.parametrize("early", [False, True])
def test_the_default_executor_is_made_on_first_use_and_ends_with_the_loop(
    factory: Callable[..., asyncio.AbstractEventLoop], early: bool
) -> None:
    """What ends with the loop is looked at after its end; a loop whose executor was shut down makes no other."""

    async def main() -> tuple[str, list[threading.Thread]]:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(None, threading.current_thread)
        assert type(future) is aio.LoopFuture
        threads = [await future, await loop.run_in_executor(None, threading.current_thread)]
        if early:
            await loop.shutdown_default_executor()
            with pytest.raises(RuntimeError, match="shutdown"):
                loop.run_in_executor(None, thread_name)
        return "asyncio" if isinstance(loop, asyncio.BaseEventLoop) else "uvloop", threads

    with asyncio.Runner(loop_factory=factory) as runner:
        name, threads = runner.run(main())
    assert {thread.name.partition("_")[0] for thread in threads} == {name}
    assert not any(thread.is_alive() for thread in threads)


@on_our_loops
async def test_the_end_of_the_default_executor_waits_no_longer_than_it_may() -> None:
    loop = asyncio.get_running_loop()
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        loop.set_default_executor(pool)
        future = loop.run_in_executor(None, gate, "late")
        gate.await_begun()
        with pytest.warns(RuntimeWarning, match=r"still runs calls after 0\.01 seconds"):
            await loop.shutdown_default_executor(0.01)
        assert not future.done()
        gate.open()
        assert await future == "late"


@on_our_loops
async def test_a_lane_is_reached_by_the_short_way_and_keeps_its_limit() -> None:
    loop = asyncio.get_running_loop()
    with AdaptiveExecutor() as pool, Gate() as gate:
        lane = pool.lane("two", limit=2)
        futures = [loop.run_in_executor(lane, gate, number) for number in range(5)]
        assert {type(future) for future in futures} == {aio.LoopFuture}
        await asyncio.to_thread(gate.await_begun, 2)
        assert gate.nobody_begins(pool)
        gate.open()
        assert await asyncio.gather(*futures) == list(range(5))
        assert gate.peak == 2


@on_our_loops
async def test_what_has_no_short_way_is_reached_by_the_ordinary_one() -> None:
    class Counting(AdaptiveExecutor):
        count = 0

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return super().submit(fn, *args, **kwargs)

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "other") as other, Counting() as counting:
        future = loop.run_in_executor(other, thread_name)
        assert type(future) is not aio.LoopFuture
        assert await future == "other_0"
        assert await loop.run_in_executor(counting, abs, -3) == 3
        assert counting.count == 1


@on_our_loops
@pytest.mark.parametrize("where", ["the pool", "its lane", "the class"])
async def test_a_submit_that_was_put_there_is_called(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def submit(fn: Any, /, *args: Any) -> Any:
        calls.append((fn, *args))
        return own(*args) if where != "the class" else own(fn, *args)

    with AdaptiveExecutor() as pool:
        executor: Any = pool.lane("lane", limit=1) if where == "its lane" else pool
        place: Any = AdaptiveExecutor if where == "the class" else executor
        own = (
            AdaptiveExecutor.submit
            if where == "the class"
            else lambda *args: type(executor).submit(executor, abs, *args)
        )
        monkeypatch.setattr(place, "submit", submit)
        assert await asyncio.get_running_loop().run_in_executor(executor, abs, -3) == 3
        assert calls == [((pool, abs, -3) if where == "the class" else (abs, -3))]
        monkeypatch.undo()


@pytest.mark.parametrize("no_class", [int, asyncio.new_event_loop, "uvloop"])
def test_what_is_no_class_of_loops_is_refused(no_class: Any) -> None:
    with pytest.raises(TypeError, match=f"loop_class must be a class of event loops, not {re.escape(repr(no_class))}"):
        aio.new_loop_factory(no_class)


def test_the_executor_may_be_given_to_the_factory(loop_class: Any) -> None:
    pool = AdaptiveExecutor(thread_name_prefix="given")

    async def main() -> str:
        return await asyncio.to_thread(thread_name)

    new_loop = aio.new_loop_factory(loop_class, pool)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()).startswith("given")
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(abs, 1)
    with ThreadPoolExecutor(1) as other:
        for no_pool in (3, other):
            with pytest.raises(
                TypeError, match=f"executor must be an AdaptiveExecutor, not {re.escape(repr(no_pool))}"
            ):
                aio.new_loop_factory(executor=no_pool)  # type: ignore[arg-type]


def test_a_closed_loop_refuses(factory: Callable[..., asyncio.AbstractEventLoop]) -> None:
    """The loop that is closed cannot be the one that runs the test."""
    loop = factory()
    loop.close()
    with AdaptiveExecutor() as pool:
        with pytest.raises(RuntimeError, match="closed"):
            loop.run_in_executor(pool, abs, 1)
        assert pool.stats().submitted == 0


@on_our_loops
async def test_coroutine_functions_are_refused_in_debug_mode() -> None:
    async def call() -> None:
        raise AssertionError("called")

    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    with AdaptiveExecutor() as pool:
        with pytest.raises(TypeError, match="coroutines cannot be used with run_in_executor"):
            loop.run_in_executor(pool, call)
        assert pool.stats().submitted == 0


@on_our_loops
async def test_context_is_carried_by_to_thread_alone_unless_the_pool_does() -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(AdaptiveExecutor())
    variable.set("set")
    assert await loop.run_in_executor(None, variable.get) == "unset"
    assert await asyncio.to_thread(variable.get) == "set"
    with AdaptiveExecutor(propagate_context=True) as carrying:
        assert await loop.run_in_executor(carrying, variable.get) == "set"


def test_any_loop_class_runs_calls_in_each_way(loop_class: Any) -> None:
    """Called by name, as default executor of a stock loop, and by the short way of a loop that is made of the class."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with AdaptiveExecutor(4, "default") as pool:
            meeting = threading.Barrier(4)
            await asyncio.gather(*[pool.run(meeting.wait, TIMEOUT) for _ in range(4)])
            with pytest.raises(Boom):
                await pool.run(fail, Boom())
            loop.set_default_executor(pool)
            await asyncio.gather(*[asyncio.to_thread(meeting.wait, TIMEOUT) for _ in range(4)])
            assert {await asyncio.to_thread(thread_name), await loop.run_in_executor(None, thread_name)} <= {
                thread.name for thread in pool._threads
            }

    for new_loop in (loop_class, aio.new_loop_factory(loop_class)):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())


@on_every_loop
async def test_async_with_never_blocks_the_loop() -> None:
    """Only the loop opens the gate that the last task waits for."""

    loop = asyncio.get_running_loop()
    gate = Gate()
    async with AdaptiveExecutor(2) as pool:
        assert isinstance(pool, AdaptiveExecutor)
        future = pool.submit(gate, "let through by the loop")
        gate.await_begun()
        loop.call_later(0.01, gate.open)
    assert future.result(timeout=0) == "let through by the loop"
    assert pool._shutdown is True
    assert not any(thread.is_alive() for thread in gate.threads)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.submit(int)


@on_every_loop
async def test_cancelling_the_end_of_async_with_leaves_the_pool_shut_down() -> None:
    pools: list[AdaptiveExecutor] = []
    futures: list[Any] = []

    async def use() -> None:
        async with AdaptiveExecutor(2) as pool:
            pools.append(pool)
            futures.append(pool.submit(gate, "ran on"))
            gate.await_begun()

    with Gate() as gate:
        task = asyncio.create_task(use())
        await until(lambda: pools and pools[0]._shutdown)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not futures[0].done()
        gate.open()
    assert futures[0].result(TIMEOUT) == "ran on"
    assert all_end(gate.threads)


def test_calls_are_taken_where_the_loop_does_not_run(factory: Callable[..., asyncio.AbstractEventLoop]) -> None:
    """Before its first run, between two, and in a worker, as with any loop."""

    async def from_a_worker() -> int:
        loop: Any = asyncio.get_running_loop()
        inner = await loop.run_in_executor(None, loop.run_in_executor, None, pow, 2, 10)
        return int(await inner)

    with contextlib.closing(factory()) as loop, AdaptiveExecutor(2) as pool:
        loop.set_default_executor(pool)
        for _ in range(2):
            assert loop.run_until_complete(loop.run_in_executor(None, pow, 2, 10)) == 1024
            assert loop.run_until_complete(from_a_worker()) == 1024


def test_nobody_hears_of_an_error_that_comes_after_the_await_was_given_up(
    factory: Callable[..., asyncio.AbstractEventLoop],
) -> None:
    told: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        with AdaptiveExecutor(1) as pool, Gate() as gate:

            def call() -> None:
                gate()
                raise Boom

            future = loop.run_in_executor(pool, call)
            await asyncio.to_thread(gate.await_begun)
            future.cancel()
            gate.open()
            assert await loop.run_in_executor(pool, int) == 0

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert told == []


@pytest.mark.parametrize("most", [1, 4])
def test_a_loop_in_a_worker_has_threads_of_its_own_for_its_calls(most: int) -> None:
    """All workers run such a loop at a time, two deep; no ordinary task gets a thread beyond the ceiling."""
    with AdaptiveExecutor(most) as pool:
        meeting = threading.Barrier(most)

        def outer(depth: int) -> int:
            if depth < 0:
                return 1

            async def main() -> list[int]:
                return await asyncio.gather(*[pool.run(outer, depth - 1) for _ in range(3)])

            if depth == 2:
                meeting.wait(TIMEOUT)
            return sum(asyncio.run(main()))

        futures = [pool.submit(outer, 2) for _ in range(most)]
        assert [future.result(TIMEOUT) for future in futures] == [27] * most


def test_a_loop_in_a_worker_has_as_many_threads_for_its_calls_as_its_pool_may_have_by_then() -> None:
    with AdaptiveExecutor(1) as pool:

        async def main() -> None:
            await pool.run(int)
            pool.resize(max_workers=4)
            meeting = threading.Barrier(4)
            assert sorted(await asyncio.gather(*[pool.run(meeting.wait, TIMEOUT) for _ in range(4)])) == [0, 1, 2, 3]

        pool.submit(asyncio.run, main()).result(2 * TIMEOUT)
