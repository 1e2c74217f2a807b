"""The event loops on which tests of the asyncio side run, and what their tests share.

pytest-asyncio runs an `async def` test that is marked `on_every_loop` on each of them. The fixture `loops` is for what
it has no way for: several loops in one test, a loop in a thread of its own, and what is to be seen only once a loop has
ended or is closed.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ebbpool import AdaptiveExecutor, aio
from ebbpool import _loops as chaining  # noqa: F401  (for tests of what is inside)
from support.common import TIMEOUT, collect_at

Report = dict[str, Any]


def new_uvloop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    return loop


def new_eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  (not on Python 3.11)
    return loop


def new_debug_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    # pytest-asyncio sets the mode of each loop it is given as its own option says.
    vars(loop)["set_debug"] = lambda enabled: None
    return loop


FACTORIES: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": new_uvloop,
    "eager": new_eager_loop,
    "debug": new_debug_loop,
    "ebbpool": aio.new_loop_factory(),
    "ebbpool-uvloop": lambda: aio.new_loop_factory(importlib.import_module("uvloop").Loop)(),
}
OURS = ("ebbpool", "ebbpool-uvloop")
"""The loops with the short way to a pool."""

on_every_loop = pytest.mark.asyncio(loop_factories=list(FACTORIES))
on_our_loops = pytest.mark.asyncio(loop_factories=OURS)


LOOP_CLASSES = {
    "asyncio": lambda: asyncio.SelectorEventLoop,
    "a subclass of asyncio's": lambda: type("Mine", (asyncio.SelectorEventLoop,), {"__slots__": ("mine",)}),
    "uvloop": lambda: pytest.importorskip("uvloop").Loop,
    "a subclass of uvloop's": lambda: type("Mine", (pytest.importorskip("uvloop").Loop,), {}),
    "rloop": lambda: pytest.importorskip("rloop.loop").RLoop,
    "zuvloop": lambda: pytest.importorskip("zuvloop").EventLoop,
}


OF_RLOOP = pytest.mark.filterwarnings("ignore:unclosed <socket", "ignore:'asyncio.iscoroutinefunction'")
"""The warnings that rloop gives cause to itself."""


@pytest.fixture(
    name="loop_class", params=[pytest.param(kind, marks=[OF_RLOOP] * (kind == "rloop")) for kind in LOOP_CLASSES]
)
def each_loop_class(request: pytest.FixtureRequest) -> Any:
    return LOOP_CLASSES[request.param]()


def why_lacking(kind: str) -> str:
    """Return why there are no loops of this kind here; nothing if there are."""
    if kind.endswith("uvloop"):
        try:
            importlib.import_module("uvloop")
        except ImportError as error:
            return f"uvloop cannot be imported here: {error}"
    if kind == "debug" and sys.implementation.name != "cpython":
        return "asyncio's debug mode is the same everywhere, and tested on CPython"
    if kind == "eager" and not hasattr(asyncio, "eager_task_factory"):
        return "this Python has no eager tasks"
    return ""


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Be the hook of a `conftest`: return the loops that there are here; pytest-asyncio skips the others."""
    return {kind: factory for kind, factory in FACTORIES.items() if not why_lacking(kind)}


def factory_of(request: pytest.FixtureRequest) -> Callable[..., asyncio.AbstractEventLoop]:
    """Return what makes loops of the kind that is a fixture's parameter; skip where there are none."""
    if why := why_lacking(request.param):
        pytest.skip(why)
    return FACTORIES[request.param]


class Reports:
    """What a loop's exception handler was told. A test takes what it expects; what is left when it ends fails it."""

    def __init__(self) -> None:
        self._heard: list[Report] = []

    def __call__(self, loop: asyncio.AbstractEventLoop, report: Report) -> None:
        self._heard.append(report)

    async def all(self) -> list[Report]:
        """Wait until no other task is left; take and return all that was reported."""
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, "no task is left")
        return await self.taken()

    async def taken(self) -> list[Report]:
        """Take and return all that was reported."""
        # An error that nobody retrieved is reported when its future is freed.
        gc.collect()
        await asyncio.sleep(0)
        heard, self._heard = self._heard, []
        return heard


class Loops:
    """Makes loops of one kind, and runs coroutine functions on them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.new = FACTORIES[kind]

    def __call__(self, main: Callable[[], Awaitable[Any]]) -> Any:
        """Run `main` on a fresh loop, within bounds; it must leave no task behind, and no report."""

        async def bounded() -> Any:
            reports = Reports()
            asyncio.get_running_loop().set_exception_handler(reports)
            result = await asyncio.wait_for(main(), 3 * TIMEOUT)
            left = await reports.all()
            assert not left, left
            return result

        with asyncio.Runner(loop_factory=self.new) as runner:
            return runner.run(bounded())


@pytest.fixture(name="loops", params=FACTORIES)
def each_loop(request: pytest.FixtureRequest) -> Loops:
    factory_of(request)
    return Loops(request.param)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Let the loop turn until `condition` holds; fail after `TIMEOUT` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT
    tries = 0
    while not condition():
        assert loop.time() < deadline, f"did not come true: {what or condition}"
        await asyncio.sleep(0.001)
        tries += 1
        collect_at(tries)


def given_up(future: Any) -> None:
    """Cancel a future that runs where an event loop runs, as asyncio does for an await that was given up."""

    async def cancel() -> None:
        assert not future.cancel()

    asyncio.run(cancel())


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def behind(pool: AdaptiveExecutor) -> None:
    """Keep the loop from turning until the one worker of `pool` is done with all that was queued before."""
    assert pool.submit(int).result(TIMEOUT) == 0


def fail(error: BaseException) -> None:
    raise error
