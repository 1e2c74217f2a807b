"""`AdaptiveExecutor.run`: from an event loop to a worker and back, in order, with context, with nothing left over."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import traceback

import pytest
from support.common import TIMEOUT, Boom, wait_for_idle
from support.loops import Loops, in_threads, on_every_loop

from ebbpool import AdaptiveExecutor

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def fail(error: BaseException) -> None:
    raise error


@on_every_loop
async def test_it_returns_a_future_of_the_loop() -> None:
    async with AdaptiveExecutor(1, "mine") as pool:
        future = pool.run(threading.current_thread)
        assert isinstance(future, asyncio.Future)
        assert future.get_loop() is asyncio.get_running_loop()
        assert not future.done()
        assert (await future).name == "mine_0"
        assert future.result().name == "mine_0"
        assert await asyncio.wait_for(pool.run(int, "7"), TIMEOUT) == 7


@on_every_loop
async def test_arguments() -> None:
    async with AdaptiveExecutor(1) as pool:
        assert await pool.run(pow, 2, exp=5) == 32
        assert await pool.run(lambda *args, **kwargs: (args, kwargs), 1, 2, a=3) == ((1, 2), {"a": 3})
        names = {"self": 1, "fn": 2, "args": 3, "kwargs": 4, "lane": 5, "loop": 6, "callable": 7}
        assert await pool.run(dict, **names) == names
        with pytest.raises(TypeError):
            pool.run(fn=int)


@on_every_loop
@pytest.mark.parametrize("kind", [Boom, GeneratorExit, SystemExit, KeyboardInterrupt])
async def test_whatever_a_call_raises_goes_to_its_future(kind: type[BaseException]) -> None:
    error = kind()
    async with AdaptiveExecutor(1) as pool:
        future = pool.run(fail, error)
        await asyncio.wait([future])
        assert future.exception() is error
        assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["fail"]
        wait_for_idle(pool)
        assert (pool.stats().failed, pool.stats().completed) == (1, 0)
        assert await pool.run(int) == 0


@on_every_loop
@pytest.mark.parametrize("kind", [asyncio.CancelledError, concurrent.futures.CancelledError])
async def test_a_call_that_raises_cancelled_error(kind: type[BaseException]) -> None:
    async with AdaptiveExecutor(1) as pool:
        with pytest.raises(asyncio.CancelledError):
            await pool.run(fail, kind())


@on_every_loop
async def test_stop_iteration_becomes_runtime_error() -> None:
    async with AdaptiveExecutor(1) as pool:
        with pytest.raises(RuntimeError, match="StopIteration") as caught:
            await pool.run(next, iter(()))
        assert isinstance(caught.value.__cause__, StopIteration)


@on_every_loop
async def test_bad_calls_are_refused_at_once() -> None:
    pool = AdaptiveExecutor(1)
    with pytest.raises(TypeError, match="fn must be callable, not 17"):
        pool.run(17)
    with pytest.raises(TypeError):
        pool.run()
    assert pool.stats().submitted == 0
    pool.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.run(int)
    assert pool.stats().submitted == 0


def test_outside_of_a_loop(loops: Loops) -> None:
    """Before a loop runs, beside it, and after its end."""
    with AdaptiveExecutor(1) as pool:
        with pytest.raises(RuntimeError, match="no asyncio event loop"):
            pool.run(int)

        async def main() -> None:
            # A worker has no loop either.
            with pytest.raises(RuntimeError, match="no asyncio event loop"):
                await pool.run(pool.run, int)

        loops(main)
        with pytest.raises(RuntimeError, match="no asyncio event loop"):
            pool.run(int)
        wait_for_idle(pool)
        assert pool.stats().submitted == 1


def test_in_a_trio_loop() -> None:
    trio = pytest.importorskip("trio")
    with AdaptiveExecutor(1) as pool:

        async def main() -> None:
            pool.run(int)

        with pytest.raises(RuntimeError, match="no asyncio event loop"):
            trio.run(main)
        assert pool.stats().submitted == 0


@on_every_loop
async def test_many_gathered_calls_each_get_their_own_result() -> None:
    async with AdaptiveExecutor(4) as pool:
        assert await asyncio.gather(*[pool.run(int, n) for n in range(3000)]) == list(range(3000))
        wait_for_idle(pool)
        stats = pool.stats()
        assert (stats.submitted, stats.completed) == (3000, 3000)


@on_every_loop
async def test_context_variables_are_carried_in_and_do_not_leak() -> None:
    def call(value: str, error: BaseException | None = None) -> str:
        seen = variable.get()
        variable.set(value)
        if error is not None:
            raise error
        return seen

    for propagate in (False, True):
        async with AdaptiveExecutor(1, propagate_context=propagate) as pool:
            token = variable.set("mine")
            future = pool.run(call, "theirs")
            variable.set("changed later")
            assert await future == "mine"
            assert variable.get() == "changed later"
            with pytest.raises(Boom):
                await pool.run(call, "theirs", Boom())
            await asyncio.gather(pool.run(call, "theirs", GeneratorExit()), return_exceptions=True)
            assert await pool.run(call, "theirs") == "changed later"
            variable.reset(token)
            # Nothing stays with the worker, either.
            assert await pool.run(variable.get) == "unset"
            assert contextvars.Context().run(pool.submit, variable.get).result(TIMEOUT) == "unset"


def test_loops_in_several_threads_share_a_pool(loops: Loops) -> None:
    """Each loop runs in a thread of its own."""
    with AdaptiveExecutor(4) as pool:

        async def main() -> list[str]:
            loop = asyncio.get_running_loop()
            here: list[threading.Thread] = []
            for _ in range(10):
                futures = [pool.run(int, n) for n in range(50)]
                for future in futures:
                    future.add_done_callback(lambda _: here.append(threading.current_thread()))
                assert await asyncio.gather(*futures) == list(range(50))
                assert all(future.get_loop() is loop for future in futures)
            assert set(here) == {threading.current_thread()}
            return ["well"]

        assert in_threads(*[lambda: loops(main)] * 3) == [["well"]] * 3
        wait_for_idle(pool)
        assert pool.stats().completed == 1500
