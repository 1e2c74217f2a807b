"""What runs has the name of the user's function, on whatever way it came through anyio."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import anyio
import pytest
from anyio import to_thread
from support.common import Gate

from ebbpool import AdaptiveExecutor
from ebbpool.anyio import install, run_sync

HERE = __name__


def wait_at(gate: Gate, value: Any = None) -> None:
    gate()


@contextmanager
def resource(gate: Gate) -> Iterator[None]:
    gate()
    yield


def lines(gate: Gate) -> Iterator[str]:
    gate()
    yield "line"


async def directly(gate: Gate) -> None:
    await to_thread.run_sync(wait_at, gate)


async def in_partials(gate: Gate) -> None:
    await to_thread.run_sync(functools.partial(functools.partial(wait_at, gate), value=1))


async def in_a_context(gate: Gate) -> None:
    await to_thread.run_sync(copy_context().run, wait_at, gate)


async def to_enter(gate: Gate) -> None:
    await to_thread.run_sync(resource(gate).__enter__)


async def in_a_response_of_starlette(gate: Gate) -> None:
    concurrency = import_module("starlette.concurrency")
    assert [line async for line in concurrency.iterate_in_threadpool(lines(gate))] == ["line"]


async def at_an_endpoint_of_fastapi(gate: Gate) -> None:
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


def using(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("way", "name"),
    [
        (directly, "wait_at"),
        (in_partials, "wait_at"),
        (in_a_context, "wait_at"),
        (to_enter, "resource"),
        pytest.param(in_a_response_of_starlette, "lines", marks=using("starlette")),
        pytest.param(at_an_endpoint_of_fastapi, "at_an_endpoint_of_fastapi.<locals>.endpoint", marks=using("fastapi")),
    ],
)
async def test_what_runs_has_the_name_of_the_users_function(way: Callable[[Gate], Any], name: str) -> None:
    with AdaptiveExecutor() as pool, AdaptiveExecutor() as other, Gate() as gate, install(pool):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(way, gate)
            await run_sync(gate.await_begun, executor=other)
            names = [task.name for task in pool.running()]
            # Or a task group that fails would wait for it.
            gate.open()
    assert names == [f"{HERE}.{name}"]
