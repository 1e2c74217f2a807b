"""What the tests of streams share: a generator that tells what has become of it, and loops to read it on."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.common import TIMEOUT

Run = Callable[[Any], Any]
LOOPS: list[Any] = [pytest.param(asyncio.new_event_loop, id="asyncio")]
if importlib.util.find_spec("uvloop"):
    LOOPS.append(pytest.param(importlib.import_module("uvloop").new_event_loop, id="uvloop"))


@pytest.fixture(name="run", params=LOOPS)
def each_run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a loop of each kind, within a time limit."""

    def runs(main: Any) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(main, TIMEOUT))

    return runs


class Source:
    """A generator function that tells what has become of its generator."""

    def __init__(self, count: int | None = None, error: BaseException | None = None) -> None:
        self.count = count
        self.error = error
        self.yielded = 0
        self.threads: set[threading.Thread] = set()
        self.closed = threading.Event()

    def __call__(self) -> Iterator[int]:
        try:
            for number in itertools.count() if self.count is None else range(self.count):
                self.threads.add(threading.current_thread())
                self.yielded += 1
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.threads.add(threading.current_thread())
            self.closed.set()
