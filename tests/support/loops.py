"""The event loops on which tests of the asyncio side run, each as a parameter of one fixture."""

from __future__ import annotations

import asyncio
import gc
import importlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ebbpool import AdaptiveExecutor
from support.common import TIMEOUT, collect_at

KINDS = ("asyncio", "uvloop", "eager", "debug")
"""The standard loop, uvloop, the standard loop with eager tasks (Python 3.12 and later), and in debug mode."""

Report = dict[str, Any]


class Loops:
    """Makes loops of one kind, and runs coroutine functions on them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def new(self) -> asyncio.AbstractEventLoop:
        """Make a loop of this kind."""
        if self.kind == "uvloop":
            loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
        else:
            loop = asyncio.new_event_loop()
        if self.kind == "eager":
            loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  (not on Python 3.11)
        loop.set_debug(self.kind == "debug")
        return loop

    def __call__(self, main: Callable[[], Awaitable[Any]], reports: list[Report] | None = None) -> Any:
        """Run `main` on a fresh loop, within bounds; it must leave no task behind.

        What is reported to the loop's exception handler goes to `reports`, and fails the test where there is none.
        """
        unexpected: list[Report] = []

        async def bounded() -> Any:
            loop = asyncio.get_running_loop()
            heard = unexpected if reports is None else reports
            loop.set_exception_handler(lambda loop, report: heard.append(report))
            result = await asyncio.wait_for(main(), 3 * TIMEOUT)
            await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, "no task is left")
            # An error that nobody retrieved is reported when its future is freed.
            gc.collect()
            await asyncio.sleep(0)
            return result

        with asyncio.Runner(loop_factory=self.new) as runner:
            result = runner.run(bounded())
        assert not unexpected, unexpected
        return result


@pytest.fixture(name="loops", params=KINDS)
def each_loop(request: pytest.FixtureRequest) -> Loops:
    """Loops of each kind in turn."""
    kind = request.param
    if kind == "eager" and not hasattr(asyncio, "eager_task_factory"):
        pytest.skip("this Python has no eager tasks")
    if kind == "uvloop":
        try:
            importlib.import_module("uvloop")
        except ImportError as error:
            pytest.skip(f"uvloop cannot be imported here: {error}")
    return Loops(kind)


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


async def turns(count: int = 10) -> None:
    """Let the loop turn a few times."""
    for _ in range(count):
        await asyncio.sleep(0)


def behind(pool: AdaptiveExecutor) -> None:
    """Keep the loop from turning until the one worker of `pool` is done with all that was queued before."""
    assert pool.submit(int).result(TIMEOUT) == 0


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Run each call in a thread of its own; return their results, or raise the first error."""
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            results[place] = calls[place]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * TIMEOUT)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results
