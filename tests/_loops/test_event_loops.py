"""Event loops whose `run_in_executor` takes the short way to a pool, and the ordinary way to any other executor."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.common import Boom, Gate

from ebbpool import AdaptiveExecutor, aio

Run = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]
FACTORIES = {"asyncio": aio.new_event_loop, "uvloop": aio.new_uvloop}
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture(params=FACTORIES, name="kind")
def each_kind(request: pytest.FixtureRequest) -> str:
    """The name of the library whose loop it is."""
    if request.param == "uvloop":
        try:
            importlib.import_module("uvloop")
        except ImportError as error:
            pytest.skip(f"uvloop cannot be imported here: {error}")
    name: str = request.param
    return name


@pytest.fixture(name="factory")
def each_factory(kind: str) -> Callable[..., asyncio.AbstractEventLoop]:
    return FACTORIES[kind]


@pytest.fixture(name="run")
def runner(factory: Callable[..., asyncio.AbstractEventLoop]) -> Run:
    """Runs a coroutine function on a fresh loop, to its end and that of its default executor."""

    def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        with asyncio.Runner(loop_factory=factory) as one:
            return one.run(main())

    return run


def thread_name() -> str:
    return threading.current_thread().name


def test_they_are_real_subclasses(kind: str, factory: Callable[..., asyncio.AbstractEventLoop]) -> None:
    standard = asyncio.new_event_loop() if kind == "asyncio" else importlib.import_module("uvloop").new_event_loop()
    loop = factory()
    try:
        assert isinstance(loop, type(standard))
    finally:
        loop.close()
        standard.close()


def test_the_default_executor_is_made_on_first_use_and_ends_with_the_loop(kind: str, run: Run) -> None:
    async def main() -> list[threading.Thread]:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(None, threading.current_thread)
        assert type(future) is aio.LoopFuture
        return [await future, await loop.run_in_executor(None, threading.current_thread)]

    threads = run(main)
    assert {thread.name.partition("_")[0] for thread in threads} == {kind}
    assert not any(thread.is_alive() for thread in threads)


def test_a_pool_is_reached_by_the_short_way(run: Run) -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().run_in_executor(pool, pow, 2, 10)
        assert type(future) is aio.LoopFuture
        assert await future == 1024

    with AdaptiveExecutor() as pool:
        run(main)
        assert pool.stats().completed == 1


def test_a_lane_is_reached_by_the_short_way_and_keeps_its_limit(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.run_in_executor(lane, gate, number) for number in range(5)]
        assert {type(future) for future in futures} == {aio.LoopFuture}
        await asyncio.to_thread(gate.await_begun, 2)
        assert gate.nobody_begins()
        gate.open()
        assert await asyncio.gather(*futures) == list(range(5))

    with AdaptiveExecutor() as pool, Gate() as gate:
        lane = pool.lane("two", limit=2)
        run(main)
        assert gate.peak == 2


def test_another_executor_is_reached_by_the_ordinary_way(run: Run) -> None:
    async def main() -> str:
        future = asyncio.get_running_loop().run_in_executor(other, thread_name)
        assert type(future) is not aio.LoopFuture
        return await future

    with ThreadPoolExecutor(1, "other") as other:
        assert run(main) == "other_0"


def test_another_default_executor_is_heeded(run: Run) -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(other)
        return await asyncio.to_thread(thread_name)

    with ThreadPoolExecutor(1, "other") as other:
        assert run(main) == "other_0"


def test_a_submit_of_ones_own_is_not_passed_by(run: Run) -> None:
    class Counting(AdaptiveExecutor):
        count = 0

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return super().submit(fn, *args, **kwargs)

    async def main() -> int:
        return await asyncio.get_running_loop().run_in_executor(pool, abs, -3)

    with Counting() as pool:
        assert run(main) == 3
        assert pool.count == 1


def test_to_thread_and_name_look_ups_run_on_the_pool(
    run: Run, kind: str, factory: Callable[..., asyncio.AbstractEventLoop]
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        pool = AdaptiveExecutor(thread_name_prefix="mine")
        loop.set_default_executor(pool)
        assert (await asyncio.to_thread(thread_name)).startswith("mine")
        found = await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
        assert found[0][4] == ("127.0.0.1", 80)
        assert pool.stats().submitted >= 1

    run(main)


def test_the_executor_may_be_given_to_the_factory(factory: Callable[..., asyncio.AbstractEventLoop]) -> None:
    pool = AdaptiveExecutor(thread_name_prefix="given")

    async def main() -> str:
        return await asyncio.to_thread(thread_name)

    with asyncio.Runner(loop_factory=lambda: factory(pool)) as runner:
        assert runner.run(main()).startswith("given")
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(abs, 1)


def test_what_is_no_pool_is_refused(factory: Callable[..., asyncio.AbstractEventLoop]) -> None:
    with pytest.raises(TypeError, match="executor must be an AdaptiveExecutor, not 3"):
        factory(3)
    with ThreadPoolExecutor(1) as other, pytest.raises(TypeError, match="executor must be an AdaptiveExecutor"):
        factory(other)


def test_a_loop_whose_default_executor_was_shut_down_makes_no_other(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(thread_name)
        await loop.shutdown_default_executor()
        with pytest.raises(RuntimeError, match="shutdown"):
            loop.run_in_executor(None, thread_name)

    run(main)


def test_a_loop_that_never_used_its_default_executor_refuses_it_after_shutdown(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        await loop.shutdown_default_executor()
        with pytest.raises(RuntimeError, match="shutdown"):
            loop.run_in_executor(None, thread_name)

    run(main)


def test_a_closed_loop_refuses(factory: Callable[..., asyncio.AbstractEventLoop]) -> None:
    loop = factory()
    loop.close()
    with AdaptiveExecutor() as pool:
        with pytest.raises(RuntimeError, match="closed"):
            loop.run_in_executor(pool, abs, 1)
        assert pool.stats().submitted == 0


def test_a_call_may_be_made_before_the_loop_runs(factory: Callable[..., asyncio.AbstractEventLoop]) -> None:
    loop = factory()
    try:
        with AdaptiveExecutor() as pool:
            future = loop.run_in_executor(pool, abs, -4)
            assert loop.run_until_complete(future) == 4
    finally:
        loop.close()


def test_coroutine_functions_are_refused_in_debug_mode(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        with pytest.raises(TypeError, match="coroutines cannot be used with run_in_executor"):
            loop.run_in_executor(pool, main)

    with AdaptiveExecutor() as pool:
        run(main)
        assert pool.stats().submitted == 0


def test_context_is_carried_by_to_thread_alone_unless_the_pool_does(run: Run) -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(AdaptiveExecutor())
        variable.set("set")
        seen = [await loop.run_in_executor(None, variable.get), await asyncio.to_thread(variable.get)]
        return [*seen, await loop.run_in_executor(carrying, variable.get)]

    with AdaptiveExecutor(propagate_context=True) as carrying:
        assert run(main) == ["unset", "set", "set"]


def test_cancelling_takes_a_call_off_the_queue(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        first = loop.run_in_executor(pool, gate)
        second = loop.run_in_executor(pool, abs, 1)
        assert second.cancel()
        assert pool.stats().cancelled == 1
        gate.open()
        await first

    with AdaptiveExecutor(max_workers=1) as pool, Gate() as gate:
        run(main)


def test_errors_arrive_with_their_traceback(run: Run) -> None:
    def fail() -> None:
        raise Boom("here")

    async def main() -> None:
        with pytest.raises(Boom, match="here") as caught:
            await asyncio.get_running_loop().run_in_executor(None, fail)
        assert caught.traceback[-1].name == "fail"

    run(main)


def test_a_full_queue_does_not_block_the_loop(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.run_in_executor(pool, gate, number) for number in range(10)]
        await asyncio.to_thread(gate.await_begun)
        assert pool.stats().queued == 1
        gate.open()
        assert await asyncio.gather(*futures) == list(range(10))

    with AdaptiveExecutor(max_workers=1, max_queue=1) as pool, Gate() as gate:
        run(main)


def test_the_lack_of_uvloop_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.setattr(aio, "_uvloop_class", None)
    with pytest.raises(ImportError, match=r"pip install ebbpool\[uvloop\]"):
        aio.new_uvloop()
