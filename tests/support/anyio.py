"""What the tests of ebbpool.anyio share: the event loops, and the three ways to have a call run."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

import ebbpool.anyio
from ebbpool import AdaptiveExecutor
from ebbpool._anyio import on_asyncio as asyncio_side  # noqa: F401  (for tests of what is inside)
from ebbpool._anyio import trial as trial
from support.common import TIMEOUT, Gate
from support.loops import FACTORIES, why_lacking


def missing(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def asyncio_backend(kind: str) -> Any:
    why = why_lacking(kind)
    backend = ("asyncio", {"loop_factory": FACTORIES[kind]})
    return pytest.param(backend, id=kind, marks=pytest.mark.skipif(bool(why), reason=why))


ASYNCIO = [asyncio_backend(kind) for kind in FACTORIES]
TRIO = [pytest.param(("trio", {}), id="trio", marks=missing("trio"))]


def on_asyncio(test: Callable[..., Any]) -> Any:
    """Have anyio's plugin run a test on asyncio's kinds of loops alone."""
    return pytest.mark.anyio(pytest.mark.parametrize("anyio_backend", ASYNCIO)(test))


def on_trio(test: Callable[..., Any]) -> Any:
    """Have anyio's plugin run a test on trio alone."""
    return pytest.mark.anyio(pytest.mark.parametrize("anyio_backend", TRIO)(test))


Backend = tuple[str, dict[str, Any]]
"""What the fixture `anyio_backend` gives: the name and the options."""


def run_on(backend: Backend, main: Callable[..., Any], *args: Any) -> Any:
    """Run a coroutine function on a loop of its own: for tests of several loops, and of what a loop leaves behind."""
    name, options = backend
    return anyio.run(main, *args, backend=name, backend_options=options)


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(TIMEOUT):
        while not condition():  # noqa: ASYNC110  (there is nobody who could set an event)
            await anyio.sleep(0.001)


class Way:
    """A way to have calls run by `pool`; "stock" is anyio's own, which shows that a test says what anyio does."""

    def __init__(self, name: str, pool: AdaptiveExecutor) -> None:
        self.pool = pool
        self.run_sync: Callable[..., Any] = anyio.to_thread.run_sync
        if name == "direct":
            self.run_sync = partial(ebbpool.anyio.run_sync, executor=pool)

    @asynccontextmanager
    async def busy(
        self, call: Callable[..., Any] = Gate.__call__, calls: int = 1, begin: int | None = None, **options: Any
    ) -> AsyncIterator[tuple[Gate, Any]]:
        """Give a gate and a task group with `calls` of `call(gate)`, once so many have begun; open it at the end."""
        with Gate() as gate:
            async with anyio.create_task_group() as group:
                for _ in range(calls):
                    group.start_soon(partial(self.run_sync, call, gate, **options))
                await begun(gate, calls if begin is None else begin)
                try:
                    yield gate, group
                finally:
                    gate.open()


async def begun(gate: Gate, count: int = 1) -> None:
    """Wait until the tasks of the loop have called, and `count` calls have come to the gate."""
    await anyio.wait_all_tasks_blocked()
    gate.await_begun(count)


async def leave_behind(way: Way, gate: Gate, call: Callable[..., Any], **options: Any) -> None:
    """Abandon `call`, which enters `gate`, as soon as it is there."""
    async with anyio.create_task_group() as group:
        group.start_soon(partial(way.run_sync, call, abandon_on_cancel=True, **options))
        await begun(gate)
        group.cancel_scope.cancel()


@contextmanager
def way(name: str, **settings: Any) -> Iterator[Way]:
    """Gives the named way, on a pool of its own."""
    with AdaptiveExecutor(**settings) as pool:
        installed: AbstractContextManager[object] = nullcontext()
        if name == "installed":
            installed = ebbpool.anyio.install(pool)
        with installed:
            yield Way(name, pool)


def leave_soon() -> None:
    """Has trio's own threads leave when they are idle; they would stay for ten seconds, and look like a leak."""
    if importlib.util.find_spec("trio") is not None:
        from trio.lowlevel import start_thread_soon

        start_thread_soon.__globals__["IDLE_TIMEOUT"] = 0.01
