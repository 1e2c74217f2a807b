"""`anyio.from_thread` inside of calls that a pool runs; all of it holds for stock anyio too."""

from __future__ import annotations

import contextlib
import contextvars
import threading

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from anyio import wait_all_tasks_blocked
from anyio._core._eventloop import threadlocals
from support.anyio import Backend, Way, leave_behind, on_asyncio, on_trio, run_on, until
from support.common import TIMEOUT, Boom, Gate, eventually, wait_for_idle

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


abandoning = pytest.mark.parametrize(("abandon", "scoped"), [(False, False), (True, True)])


async def add(left: int, right: int) -> int:
    await anyio.lowlevel.checkpoint()
    return left + right


async def fail() -> None:
    await anyio.lowlevel.checkpoint()
    raise Boom("in the loop")


@pytest.mark.anyio
@abandoning
async def test_run(any_way: Way, abandon: bool, scoped: bool) -> None:
    def work() -> int:
        first = anyio.from_thread.run(add, 1, 2)
        return anyio.from_thread.run(add, first, 3)

    with anyio.CancelScope() if scoped else contextlib.nullcontext():
        assert await any_way.run_sync(work, abandon_on_cancel=abandon) == 6


@pytest.mark.anyio
@abandoning
async def test_run_sync(any_way: Way, abandon: bool, scoped: bool) -> None:
    def work() -> list[threading.Thread]:
        return [anyio.from_thread.run_sync(threading.current_thread) for _ in range(3)]

    with anyio.CancelScope() if scoped else contextlib.nullcontext():
        assert await any_way.run_sync(work, abandon_on_cancel=abandon) == [threading.current_thread()] * 3


@pytest.mark.anyio
async def test_errors_come_back_to_the_worker(any_way: Way) -> None:
    def work() -> str:
        with pytest.raises(Boom, match="in the loop"):
            anyio.from_thread.run(fail)
        with pytest.raises(ZeroDivisionError):
            anyio.from_thread.run_sync(divmod, 1, 0)
        return "caught"

    assert await any_way.run_sync(work) == "caught"


@pytest.mark.anyio
async def test_check_cancelled_raises_in_a_shielded_call(anyio_backend_name: str, any_way: Way) -> None:
    outcome: list[str] = []

    with Gate() as gate:

        def work() -> None:
            gate()
            try:
                anyio.from_thread.check_cancelled()
            except BaseException as error:
                outcome.append(type(error).__name__)
                raise

        async with anyio.create_task_group() as group:
            group.start_soon(any_way.run_sync, work)
            await wait_all_tasks_blocked()
            gate.await_begun()
            group.cancel_scope.cancel()
            gate.open()
        assert group.cancel_scope.cancelled_caught or anyio_backend_name == "trio"
    assert outcome in (["CancelledError"], ["Cancelled"])


@pytest.mark.anyio
async def test_check_cancelled_raises_in_an_abandoned_call(any_way: Way) -> None:
    outcome: list[BaseException] = []

    with Gate() as gate:

        def work() -> None:
            gate()
            try:
                anyio.from_thread.check_cancelled()
            except BaseException as error:
                outcome.append(error)
                raise

        await leave_behind(any_way, gate, work)
        gate.open()
        await until(lambda: outcome)


@on_asyncio
async def test_check_cancelled_stops_at_a_shield(any_way: Way) -> None:
    with Gate() as gate:

        def work() -> None:
            gate()
            anyio.from_thread.check_cancelled()

        async def call() -> None:
            with anyio.CancelScope(shield=True):
                await any_way.run_sync(work)
            passed.append(True)

        passed: list[bool] = []
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await wait_all_tasks_blocked()
            gate.await_begun()
            group.cancel_scope.cancel()
            gate.open()
        assert passed == [True]


@pytest.mark.anyio
async def test_a_coroutine_run_for_a_cancelled_task_is_cancelled(any_way: Way) -> None:
    begun: list[bool] = []
    outcome: list[str] = []

    async def wait() -> None:
        begun.append(True)
        try:
            await anyio.sleep(TIMEOUT)
        except anyio.get_cancelled_exc_class():
            outcome.append("cancelled")
            raise

    async with anyio.create_task_group() as group:
        group.start_soon(any_way.run_sync, anyio.from_thread.run, wait)
        await until(lambda: begun)
        group.cancel_scope.cancel()
    assert outcome == ["cancelled"]


def test_a_portal(any_way: Way, anyio_backend: Backend) -> None:
    """The portal runs a loop of its own, in a thread of its own."""
    with anyio.from_thread.start_blocking_portal(*anyio_backend) as portal:
        assert portal.call(any_way.run_sync, anyio.from_thread.run, add, 1, 2) == 3


@pytest.mark.anyio
async def test_outside_of_a_call_there_is_no_way_back(our_way: Way) -> None:
    pool = our_way.pool
    pool.resize(max_workers=1)
    await our_way.run_sync(anyio.from_thread.run, add, 1, 2)
    for call in (anyio.from_thread.check_cancelled, lambda: anyio.from_thread.run_sync(abs, -1)):
        with pytest.raises(RuntimeError):
            pool.submit(call).result(TIMEOUT)
    assert pool.submit(lambda: dict(vars(threadlocals))).result(TIMEOUT) == {}
    assert pool.stats().started == 1


@on_trio
async def test_with_trio_its_own_ways_work(any_way: Way) -> None:
    trio = pytest.importorskip("trio")

    def work() -> tuple[int, int]:
        trio.from_thread.check_cancelled()
        return trio.from_thread.run(add, 1, 2), trio.from_thread.run_sync(abs, -4)

    assert await any_way.run_sync(work) == (3, 4)


@on_trio
async def test_with_trio_its_own_ways_end_with_the_call(our_way: Way) -> None:
    trio = pytest.importorskip("trio")
    our_way.pool.resize(max_workers=1)
    await our_way.run_sync(abs, -1)
    with pytest.raises(RuntimeError):
        our_way.pool.submit(trio.from_thread.check_cancelled).result(TIMEOUT)
    with pytest.raises(RuntimeError):
        our_way.pool.submit(trio.from_thread.run_sync, abs, -1).result(TIMEOUT)


def test_the_loop_ends_before_an_abandoned_call_asks(anyio_backend: Backend, our_way: Way) -> None:
    """The loop that ends cannot be the one that runs the test."""
    outcome: list[BaseException] = []

    def work() -> None:
        gate()
        try:
            anyio.from_thread.run_sync(abs, -1)
        except BaseException as error:
            outcome.append(error)

    async def main() -> None:
        await leave_behind(our_way, gate, work)

    with Gate() as gate:
        run_on(anyio_backend, main)
        gate.open()
        eventually(lambda: outcome)
        wait_for_idle(our_way.pool)
