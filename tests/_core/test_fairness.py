"""What the pool's threads owe to others: their turn."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import operator
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support import seams
from support.common import LONG, TIMEOUT, Boom, eventually

from ebbpool import COMPILED, AdaptiveExecutor

MOST = 16
"""Tasks after which compiled code has passed the eval breaker."""
MANY = 1_000

interpreted = pytest.mark.skipif(not COMPILED, reason="an interpreter passes its eval breaker by itself")


@pytest.fixture(autouse=True)
def collector_off() -> Iterator[None]:
    """Have no garbage collection: `Boom` would be raised in its callbacks (Hypothesis has one), which swallow it."""
    enabled = gc.isenabled()
    gc.disable()
    yield
    if enabled:
        gc.enable()


def thrower(thread: threading.Thread) -> functools.partial[int]:
    """Return what has `Boom` raised in `thread` the next time that this passes the eval breaker; no bytecode runs."""
    throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
    return functools.partial(throw, ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Boom))


def occupied(pool: AdaptiveExecutor) -> tuple[threading.Thread, threading.Lock]:
    """Have the pool's one worker wait in a built-in function; return it, and the lock that it waits for."""
    worker = pool.submit(threading.current_thread).result(TIMEOUT)
    begun, lock = threading.Lock(), threading.Lock()
    begun.acquire()
    lock.acquire()
    pool.submit(list, map(operator.call, [begun.release, lock.acquire]))
    assert begun.acquire(timeout=TIMEOUT)
    return worker, lock


def check(outcomes: list[Any]) -> None:
    failed = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, Boom)]
    assert len(failed) == 1, f"raised in {len(failed)} of the tasks"
    assert failed[0] < MOST, f"{failed[0]} tasks ran before the worker passed the eval breaker"
    assert [outcome for outcome in outcomes if outcome != 1] == [outcomes[failed[0]]]


@interpreted
@pytest.mark.parametrize("kind", ["pool", "lane", "context", "loop"])
def test_a_worker_that_runs_built_in_functions_passes_the_eval_breaker(kind: str) -> None:
    def begin() -> None:
        assert thrower(worker)() == 1
        lock.release()

    async def awaits() -> list[Any]:
        calls = [pool.run(abs, -1) for _ in range(MANY)]
        begin()
        return await asyncio.gather(*calls, return_exceptions=True)

    with AdaptiveExecutor(1, keep_alive=LONG, propagate_context=kind == "context") as pool:
        worker, lock = occupied(pool)
        if kind == "loop":
            check(asyncio.run(asyncio.wait_for(awaits(), TIMEOUT)))
        else:
            executor: Any = pool.lane("one", limit=MANY) if kind == "lane" else pool
            futures = [executor.submit(abs, -1) for _ in range(MANY)]
            begin()
            check([future.exception(TIMEOUT) or future.result(TIMEOUT) for future in futures])
            assert pool.submit(threading.current_thread).result(TIMEOUT) is worker, "it was struck off"


@interpreted
@pytest.mark.parametrize("way", ["submit", "submit_first"])
def test_a_submitter_passes_the_eval_breaker(way: str) -> None:
    with AdaptiveExecutor(1, keep_alive=LONG) as pool:
        _, lock = occupied(pool)
        submit = functools.partial(getattr(pool, way), abs, -1)
        # From here on the timekeeper watches: to call it would pass the eval breaker.
        futures: list[Any] = [submit()]
        # CPython 3.11 has a thread that is being started go by the number of this one, and would raise `Boom` there.
        eventually(lambda: "ebbpool-timekeeper" in {thread.name for thread in threading.enumerate() if thread.ident})
        before = pool.stats().submitted
        # Run by C functions from one end to the other.
        calls = map(operator.call, [thrower(threading.current_thread()), *[submit] * MANY])
        try:
            with pytest.raises(Boom):
                futures.extend(calls)
        finally:
            lock.release()
        accepted = len(futures) - 2
        assert accepted < MOST, f"{accepted} tasks were submitted before that"
        assert pool.stats().submitted == before + accepted, "a task was queued, and its future lost"
        assert {future.result(TIMEOUT) for future in futures if future != 1} == {1}


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("which", ["plain", "compiled"])
def test_a_loop_that_is_given_results_without_end_leaves_the_gil_to_others(
    which: str, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that had to wait itself, and used no processor time, has let others run."""
    core = seams.core(which, "loop_calls")
    if core is None:
        pytest.skip("the extension is not built")
    naps: list[float] = []
    line: list[Callable[[], None]] = []
    monkeypatch.setattr(core, "sleep", naps.append)
    # Otherwise those that bring results would leave the GIL, too.
    monkeypatch.setattr(core, "KEPT_WAITING", 1e9)
    # As much as a busy machine gives one thread at a time.
    monkeypatch.setattr(core, "STINT", 5e-4)
    if not busy:
        monkeypatch.setattr(core, "thread_time", lambda: 0.0)
    mailbox = core.Mailbox(*[lambda *call: line.append(partial(*call))] * 2, object)

    def turn() -> int:
        for _ in range(2):
            call = core.LoopCall()
            if which == "plain":
                call._ticket = call._context = call._rings = None
            mailbox.post(call)
        for callback in line[:]:
            line.remove(callback)
            callback()
        return len(naps)

    assert [turn(), turn()] == [0, 0], "a burst is delivered without a break"
    if busy and seams.gil_enabled():
        eventually(lambda: any(turn() for _ in range(10 * MANY)), "a break")
    else:
        assert not any(turn() for _ in range(10 * MANY))
