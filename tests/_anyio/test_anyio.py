"""`ebbpool.anyio.run_sync`, and `anyio.to_thread.run_sync` with it installed, keep anyio's promises on every loop.

Tests that take `any_way` run on stock anyio too: what they ask for is what anyio does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Iterator

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio import wait_all_tasks_blocked
from support.anyio import ASYNCIO, TRIO, Way, leave_behind, run_on, until, way
from support.common import Boom, Gate, wait_for_idle

import ebbpool.anyio
from ebbpool import AdaptiveExecutor

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

on_asyncio = pytest.mark.parametrize("loop", ASYNCIO)
on_trio = pytest.mark.parametrize("loop", TRIO)


@pytest.fixture(params=[*ASYNCIO, *TRIO])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["direct", "installed", "stock"])
def any_way(request: pytest.FixtureRequest) -> Iterator[Way]:
    with way(request.param) as given:
        yield given


@pytest.fixture(params=["direct", "installed"])
def our_way(request: pytest.FixtureRequest) -> Iterator[Way]:
    with way(request.param) as given:
        yield given


@pytest.fixture(params=["direct", "installed"])
def narrow_way(request: pytest.FixtureRequest) -> Iterator[Way]:
    """One worker, so that a second call is queued."""
    with way(request.param, max_workers=1) as given:
        yield given


def stopping() -> None:
    raise StopIteration("no more")


def failing() -> None:
    raise Boom("on purpose")


class Base(BaseException):
    pass


def test_it_returns_what_the_function_returns(loop: str, any_way: Way) -> None:
    assert run_on(loop, any_way.run_sync, divmod, 17, 5) == (3, 2)


def test_it_runs_in_the_pool(loop: str, our_way: Way) -> None:
    thread = run_on(loop, our_way.run_sync, threading.current_thread)
    assert thread is not threading.current_thread()
    assert our_way.pool.stats().completed == 1


@pytest.mark.parametrize("kind", [Boom, Base, concurrent.futures.CancelledError])
def test_it_raises_what_the_function_raises(loop: str, any_way: Way, kind: type[BaseException]) -> None:
    error = kind("on purpose")

    def fail() -> None:
        raise error

    async def main() -> None:
        with pytest.raises(kind) as caught:
            await any_way.run_sync(fail)
        assert caught.value is error
        assert "fail" in [entry.name for entry in caught.traceback]

    run_on(loop, main)


def test_a_stop_iteration_becomes_a_runtime_error(loop: str, any_way: Way) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="coroutine raised StopIteration") as caught:
            await any_way.run_sync(stopping)
        assert isinstance(caught.value.__cause__, StopIteration)

    run_on(loop, main)


def test_what_cannot_be_called_is_a_type_error(loop: str, any_way: Way) -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="not callable"):
            await any_way.run_sync(17)

    run_on(loop, main)


async def coroutine_function() -> str:
    return "awaited"


@on_asyncio
def test_a_coroutine_is_handed_out(loop: str, any_way: Way) -> None:
    async def main() -> str:
        coroutine = await any_way.run_sync(coroutine_function)
        return str(await coroutine)

    assert run_on(loop, main) == "awaited"


@on_trio
def test_trio_wants_no_coroutine(loop: str, any_way: Way) -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="appears to be asynchronous"):
            await any_way.run_sync(coroutine_function)

    run_on(loop, main)


def test_context_variables_are_carried_in_but_not_out(loop: str, any_way: Way) -> None:
    def look_and_change() -> str:
        seen = variable.get()
        variable.set("changed")
        return seen

    async def main() -> tuple[str, str]:
        variable.set("the task's")
        return await any_way.run_sync(look_and_change), variable.get()

    assert run_on(loop, main) == ("the task's", "the task's")


def test_the_function_is_outside_of_the_loop(loop: str, any_way: Way) -> None:
    async def inner() -> str:
        await anyio.lowlevel.checkpoint()
        return "inner"

    async def main() -> str:
        return str(await any_way.run_sync(anyio.run, inner))

    assert run_on(loop, main) == "inner"


def test_a_cancelled_task_does_not_begin_a_call(loop: str, any_way: Way) -> None:
    calls: list[int] = []

    async def main() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await any_way.run_sync(calls.append, 1)
        assert scope.cancelled_caught

    run_on(loop, main)
    assert any_way.pool.stats().submitted == 0
    assert calls == []


def test_a_task_cancelled_at_the_first_checkpoint_does_not_begin_a_call(loop: str, any_way: Way) -> None:
    calls: list[int] = []

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(any_way.run_sync, calls.append, 1)
            group.cancel_scope.cancel()

    run_on(loop, main)
    wait_for_idle(any_way.pool)
    assert calls == []


def test_other_tasks_get_a_turn(loop: str, any_way: Way) -> None:
    turns: list[str] = []

    async def other() -> None:
        turns.append("other")

    async def main() -> None:
        # In its first turn trio runs this task and the one that takes the workers' messages in any order: a result may
        # be there before the other task has its turn.
        await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as group:
            group.start_soon(other)
            await any_way.run_sync(turns.append, "call")
            turns.append("after")

    run_on(loop, main)
    assert turns.index("other") < turns.index("after")


@on_asyncio
def test_other_tasks_get_a_turn_before_the_call(loop: str, any_way: Way) -> None:
    turns: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().call_soon(turns.append, "other")
        await any_way.run_sync(turns.append, "call")

    run_on(loop, main)
    assert turns == ["other", "call"]


def test_what_the_function_put_on_the_loop_runs_before_the_await_returns(loop: str, any_way: Way) -> None:
    turns: list[int] = []

    async def main() -> None:
        def soon() -> None:
            anyio.from_thread.run_sync(turns.append, 1)

        await any_way.run_sync(soon)
        turns.append(2)

    run_on(loop, main)
    assert turns == [1, 2]


def test_a_limiter_limits(loop: str, any_way: Way) -> None:
    gate = Gate()

    async def main() -> None:
        limiter = anyio.CapacityLimiter(2)

        async def call() -> None:
            await any_way.run_sync(gate, limiter=limiter)

        with gate:
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(call)
                await wait_all_tasks_blocked()
                gate.await_begun(2)
                assert gate.nobody_begins()
                assert limiter.borrowed_tokens == 2
                assert limiter.statistics().tasks_waiting == 3
                gate.open()
        assert limiter.borrowed_tokens == 0

    run_on(loop, main)
    assert gate.peak == 2


def test_a_failing_call_gives_the_token_back(loop: str, any_way: Way) -> None:
    async def main() -> None:
        limiter = anyio.CapacityLimiter(1)
        for _ in range(2):
            with pytest.raises(Boom):
                await any_way.run_sync(failing, limiter=limiter)
        assert limiter.borrowed_tokens == 0

    run_on(loop, main)


def test_a_task_that_waits_for_a_token_can_be_cancelled(loop: str, any_way: Way) -> None:
    calls: list[int] = []

    async def main() -> None:
        limiter = anyio.CapacityLimiter(1)
        somebody = object()
        await limiter.acquire_on_behalf_of(somebody)
        with anyio.move_on_after(0.01) as scope:
            await any_way.run_sync(calls.append, 1, limiter=limiter)
        assert scope.cancelled_caught
        limiter.release_on_behalf_of(somebody)
        assert limiter.borrowed_tokens == 0

    run_on(loop, main)
    assert calls == []


def test_without_a_limiter_the_ceiling_is_the_limit(loop: str, our_way: Way) -> None:
    gate = Gate()

    async def main() -> None:
        our_way.pool.resize(max_workers=45)
        with gate:
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(our_way.run_sync, gate)
                await wait_all_tasks_blocked()
                gate.await_begun(45)
                assert gate.nobody_begins()
                assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
                gate.open()

    run_on(loop, main)
    assert gate.peak == 45


@on_asyncio
def test_gathered_calls_all_come_back(loop: str, any_way: Way) -> None:
    async def main() -> list[int]:
        return list(await asyncio.gather(*(any_way.run_sync(abs, -number) for number in range(200))))

    assert run_on(loop, main) == list(range(200))


@on_asyncio
def test_an_abandoned_call_gives_its_token_back_at_once(loop: str, any_way: Way) -> None:
    async def main() -> None:
        limiter = anyio.CapacityLimiter(1)
        with Gate() as gate:
            await leave_behind(any_way, gate, gate, limiter=limiter)
            assert limiter.borrowed_tokens == 0

    run_on(loop, main)


@on_trio
def test_with_trio_an_abandoned_call_keeps_its_token_until_it_ends(loop: str, any_way: Way) -> None:
    async def main() -> None:
        limiter = anyio.CapacityLimiter(1)
        for fail in (False, True):
            with Gate() as gate:

                def work(gate: Gate = gate, fail: bool = fail) -> None:
                    gate()
                    if fail:
                        failing()

                await leave_behind(any_way, gate, work, limiter=limiter)
                assert limiter.borrowed_tokens == 1
                gate.open()
                await until(lambda: not limiter.borrowed_tokens)
        assert await any_way.run_sync(abs, -1, limiter=limiter) == 1

    run_on(loop, main)


@on_trio
def test_with_trio_a_call_taken_off_the_queue_gives_its_token_back(loop: str) -> None:
    async def main() -> None:
        limiter = anyio.to_thread.current_default_thread_limiter()
        with Gate() as gate:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, gate)
                await wait_all_tasks_blocked()
                with anyio.move_on_after(0.01) as scope:
                    await anyio.to_thread.run_sync(abs, -1)
                assert scope.cancelled_caught
                assert limiter.borrowed_tokens == 1
                gate.open()

    with AdaptiveExecutor(1) as pool, ebbpool.anyio.install(pool, keep_default_limiter=True):
        run_on(loop, main)


@on_trio
def test_with_trio_an_error_of_the_limiter_takes_the_place_of_the_outcome(loop: str, any_way: Way) -> None:
    class Limiter:
        async def acquire_on_behalf_of(self, borrower: object) -> None:
            await anyio.lowlevel.checkpoint()

        def release_on_behalf_of(self, borrower: object) -> None:
            raise Boom("limiter")

    async def main() -> None:
        with pytest.raises(Boom, match="limiter"):
            await any_way.run_sync(abs, -1, limiter=Limiter())
        with pytest.raises(Boom, match="limiter") as caught:
            await any_way.run_sync(divmod, 1, 0, limiter=Limiter())
        assert isinstance(caught.value.__context__, ZeroDivisionError)

    run_on(loop, main)


@on_trio
def test_trio_counts_the_threads(loop: str, any_way: Way) -> None:
    trio_testing = pytest.importorskip("trio.testing")

    async def main() -> None:
        assert trio_testing.active_thread_count() == 0
        with Gate() as gate:
            async with anyio.create_task_group() as group:
                group.start_soon(any_way.run_sync, gate)
                await wait_all_tasks_blocked()
                assert trio_testing.active_thread_count() == 1
                waiter: list[str] = []

                async def wait() -> None:
                    await trio_testing.wait_all_threads_completed()
                    waiter.append("over")

                group.start_soon(wait)
                await wait_all_tasks_blocked()
                assert waiter == []
                gate.open()
        assert waiter == ["over"]
        assert trio_testing.active_thread_count() == 0

    run_on(loop, main)
