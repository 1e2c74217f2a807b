"""What runs has the name of the user's function, on whatever way it came from an event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from support.common import Gate
from support.loops import on_every_loop, until

from ebbpool import AdaptiveExecutor
from ebbpool._testing.seams import called_name

HERE = __name__


def wait_at(gate: Gate) -> None:
    gate()


async def by_run(pool: AdaptiveExecutor, gate: Gate) -> None:
    await pool.run(wait_at, gate)


async def by_run_in_executor(pool: AdaptiveExecutor, gate: Gate) -> None:
    await asyncio.get_running_loop().run_in_executor(pool, wait_at, gate)


async def by_to_thread(pool: AdaptiveExecutor, gate: Gate) -> None:
    await asyncio.to_thread(wait_at, gate)


async def by_asgiref(pool: AdaptiveExecutor, gate: Gate) -> None:
    await import_module("asgiref.sync").SyncToAsync(wait_at, thread_sensitive=False)(gate)


@on_every_loop
@pytest.mark.parametrize("propagate_context", [False, True])
@pytest.mark.parametrize(
    "way",
    [
        by_run,
        by_run_in_executor,
        by_to_thread,
        pytest.param(
            by_asgiref, marks=pytest.mark.skipif(find_spec("asgiref") is None, reason="asgiref is not installed")
        ),
    ],
)
async def test_what_runs_has_the_name_of_the_users_function(
    way: Callable[[AdaptiveExecutor, Gate], Awaitable[None]], propagate_context: bool
) -> None:
    with AdaptiveExecutor(propagate_context=propagate_context) as pool, Gate() as gate:
        asyncio.get_running_loop().set_default_executor(pool)
        going = asyncio.ensure_future(way(pool, gate))
        await until(lambda: bool(gate.threads), "the call has begun")
        names = [task.name for task in pool.running()]
        gate.open()
        await going
    assert names == [f"{HERE}.wait_at"]


class SyncToAsync:
    """Its namesake of asgiref, as far as it goes here."""

    __module__ = "asgiref.sync"

    def __init__(self, func: Any) -> None:
        self.func = func

    def thread_handler(self, loop: Any, func: Any, *args: Any) -> Any:
        return func(*args)


def test_what_asgiref_calls_has_its_name() -> None:
    handler = SyncToAsync(wait_at).thread_handler
    assert called_name(functools.partial(handler, None, abs, 1)) == f"{HERE}.wait_at"
