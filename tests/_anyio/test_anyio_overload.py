"""Under `install`: limited waits, cancellation that reaches the thread, names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from importlib import import_module
from typing import Any

import anyio
import pytest
from anyio import from_thread, to_thread
from support.anyio import begun, leave_behind, missing, until, way
from support.common import TIMEOUT, Gate

import ebbpool
import ebbpool.anyio
from ebbpool import AdaptiveExecutor, QueueTimeout

pytestmark = pytest.mark.anyio
SOON = 0.02


async def test_a_wait_is_limited() -> None:
    with AdaptiveExecutor(1, max_wait=SOON) as pool, ebbpool.anyio.install(pool), Gate() as gate:
        running = gate.hold(pool.within(TIMEOUT))
        with pytest.raises(QueueTimeout):
            await to_thread.run_sync(int)
        gate.open()
        assert running.exception(TIMEOUT) is None


@pytest.mark.parametrize("abandon", [True, False])
async def test_a_scope_that_is_cancelled_reaches_the_thread(abandon: bool) -> None:
    """What it leaves running counts as abandoned, waited for or not: nobody wants what it returns."""
    told = threading.Event()
    outcome: list[object] = []
    cancellation = anyio.get_cancelled_exc_class()

    def work(gate: Gate) -> None:
        with ebbpool.on_cancel(told.set):
            gate()
            outcome.append(told.wait(TIMEOUT))
        outcome.append(ebbpool.cancelled())
        try:
            from_thread.check_cancelled()
        except cancellation:
            outcome.append("as anyio has it")

    with way("installed") as installed:
        pool = installed.pool
        async with installed.busy(work, abandon_on_cancel=abandon) as (_, group):
            assert pool.stats().abandoned == 0
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await until(lambda: pool.stats().abandoned == 1)
        await until(lambda: pool.stats().running == 0)
        assert pool.stats().abandoned == 0
    assert outcome == [True, True, "as anyio has it"]


async def test_a_call_with_a_limiter_of_its_own_is_beyond_the_ceiling_anyway() -> None:
    with way("installed", max_workers=2) as installed, Gate() as gate, Gate() as others:
        pool = installed.pool
        await leave_behind(installed, gate, gate, limiter=anyio.CapacityLimiter(1))
        others.hold(pool, 2)
        pool.submit(others)
        assert others.nobody_begins(pool)
        gate.open()
        await until(lambda: pool.stats().abandoned == 0)
        assert others.nobody_begins(pool)
        others.open()
        await until(lambda: pool.stats().running == 0)
        with Gate() as later:
            later.hold(pool, 2)


async def test_a_call_whose_end_a_task_waits_for_keeps_its_place() -> None:
    with way("installed", max_workers=2) as installed, Gate() as others:
        pool = installed.pool
        async with installed.busy(calls=2) as (_, group):
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await until(lambda: pool.stats().abandoned == 2)
                waiting = pool.submit(others)
                assert others.nobody_begins(pool)
        others.open()
        assert waiting.result(TIMEOUT) is None


def wait_at(gate: Gate, value: Any = None) -> None:
    gate()


@contextmanager
def resource(gate: Gate) -> Iterator[None]:
    gate()
    yield


def lines(gate: Gate) -> Iterator[str]:
    gate()
    yield "line"


async def in_starlette(gate: Gate) -> None:
    concurrency = import_module("starlette.concurrency")
    assert [line async for line in concurrency.iterate_in_threadpool(lines(gate))] == ["line"]


async def in_fastapi(gate: Gate) -> None:
    app = import_module("fastapi").FastAPI()
    got: list[dict[str, Any]] = []

    @app.get("/")
    def endpoint() -> None:
        gate()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        got.append(message)

    await app({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}, receive, send)
    assert got[0]["status"] == 200


@pytest.mark.parametrize(
    ("way", "name"),
    [
        (lambda gate: to_thread.run_sync(wait_at, gate), "wait_at"),
        (lambda gate: to_thread.run_sync(partial(partial(wait_at, gate), value=1)), "wait_at"),
        (lambda gate: to_thread.run_sync(copy_context().run, wait_at, gate), "wait_at"),
        (lambda gate: to_thread.run_sync(resource(gate).__enter__), "resource"),
        pytest.param(in_starlette, "lines", marks=missing("starlette")),
        pytest.param(in_fastapi, "in_fastapi.<locals>.endpoint", marks=missing("fastapi")),
    ],
)
async def test_what_runs_has_the_name_of_the_users_function(way: Callable[[Gate], Any], name: str) -> None:
    with AdaptiveExecutor() as pool, Gate() as gate, ebbpool.anyio.install(pool):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(way, gate)
            await begun(gate)
            names = [task.name for task in pool.running()]
            # Or a task group that fails would wait for it.
            gate.open()
    assert names == [f"{__name__}.{name}"]
