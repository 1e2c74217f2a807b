"""What fails between the decision to start a worker and its start: nothing is lost, neither a task nor a place."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
from support.common import COUNTS_REFERENCES, LONG, TIMEOUT, Background, Gate, eventually, wait_for_idle

from ebbpool import AdaptiveExecutor
from ebbpool._testing import seams
from ebbpool._testing.rules import Timekeeper
from ebbpool._testing.seams import crew, stack_size, threads, timekeeper

STEPS = ["timekeeper", "strike_off", "worker", "name", "thread", "thread_init", "stack", "thread_start"]
SETTINGS: list[dict[str, Any]] = [{}, {"initializer": int}, {"max_queue": 0}, {"max_queue": 1}]


def break_step(
    patch: pytest.MonkeyPatch, pool: AdaptiveExecutor, step: str, error: BaseException
) -> threading.Semaphore:
    """Have one step of the start of a worker raise `error`, and count how often it does."""
    attempts = threading.Semaphore(0)

    def fail(*_: Any, **__: Any) -> Any:
        attempts.release()
        raise error

    class Names:
        __next__ = fail

    places: dict[str, tuple[Any, str]] = {
        "timekeeper": (timekeeper, "start"),
        "strike_off": (seams.crew_of(pool), "_strike_off"),
        "worker": (crew, "Worker"),
        "thread": (crew, "WorkerThread"),
        "thread_init": (threading.Thread, "__init__"),
        "stack": (stack_size, "start"),
        "thread_start": (threading.Thread, "start"),
    }
    if step == "name":
        patch.setattr(seams.crew_of(pool), "_names", Names())
    else:
        patch.setattr(*places[step], fail)
    return attempts


@pytest.mark.parametrize(
    ("step", "error", "settings"),
    [
        (step, error, SETTINGS[(row + column) % len(SETTINGS)])
        for row, step in enumerate(STEPS)
        for column, error in enumerate([MemoryError, RecursionError, RuntimeError, KeyboardInterrupt])
    ],
)
def test_a_start_that_fails_gives_back_its_place(
    step: str, error: type[BaseException], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    timekeeper.start()
    with AdaptiveExecutor(1, **settings) as pool:
        ran: list[str] = []
        with monkeypatch.context() as patch, pytest.raises(error):
            break_step(patch, pool, step, error())
            pool.submit(ran.append, "refused")
        stats = pool.stats()
        assert (stats.workers, stats.queued, stats.started, *seams.threads_of(pool)) == (0, 0, 0, 0, 0)
        assert pool.submit(ran.append, "accepted").result(TIMEOUT) is None
        wait_for_idle(pool)
        assert ran == ["accepted"]


@pytest.mark.parametrize(
    ("step", "error"), [*zip(STEPS[1:], cycle([MemoryError, RecursionError, RuntimeError]), strict=False)]
)
def test_the_pool_grows_again_after_starts_that_fail(
    step: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    with AdaptiveExecutor(4) as pool, Gate() as gate:
        gate.hold(pool)
        with monkeypatch.context() as patch:
            attempts = break_step(patch, pool, step, error())
            futures = [pool.submit(gate, number) for number in range(3)]
            for _ in range(2):
                assert attempts.acquire(timeout=TIMEOUT), "the pool gave up"
        gate.await_begun(3)
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == [0, 1, 2]


def interrupt_after(start: Callable[[threads.WorkerThread], object]) -> Callable[..., None]:
    """Return a stand-in for `stack_size.start` that is interrupted when `start` has been called."""

    def interrupted(thread: threads.WorkerThread, size: int | None) -> None:
        start(thread)
        raise KeyboardInterrupt

    return interrupted


def test_a_start_that_is_interrupted_when_the_thread_works_leaves_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with AdaptiveExecutor(1, keep_alive=LONG) as pool:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

            def start(thread: threads.WorkerThread) -> None:
                thread.start()
                eventually(lambda: seams.threads_of(pool)[1] == 0, "the worker has come to the queue")

            patch.setattr(stack_size, "start", interrupt_after(start))
            pool.submit(int)
        assert pool.submit(threading.current_thread).result(TIMEOUT) in pool._threads
        stats = pool.stats()
        assert (stats.workers, stats.started, stats.submitted) == (1, 1, 2)


def test_a_thread_whose_start_was_taken_back_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[threads.WorkerThread] = []
    ran: list[str] = []
    with AdaptiveExecutor(1, initializer=ran.append, initargs=("initialized",)) as pool:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(stack_size, "start", interrupt_after(made.append))
            pool.submit(ran.append, "refused")
        (late,) = made
        late.start()
        late.join(TIMEOUT)
        assert not late.is_alive()
        assert (ran, pool.stats().workers, pool.stats().started) == ([], 0, 0)
        pool.submit(ran.append, "accepted").result(TIMEOUT)
        assert ran == ["initialized", "accepted"]


@pytest.mark.skipif(not COUNTS_REFERENCES, reason="PyPy has stack left where it raises RecursionError")
@pytest.mark.parametrize("settings", [{}, {"initializer": int}, {"max_queue": 3}])
def test_submitting_at_the_end_of_the_stack_loses_nothing(settings: dict[str, Any]) -> None:
    """At every depth at which calls begin to be one too deep, submit works, or raises and leaves nothing behind."""

    def dive(pool: AdaptiveExecutor, depth: int) -> Any:
        return pool.submit(pow, 2, 3) if depth == 0 else dive(pool, depth - 1)

    timekeeper.start()
    limit = sys.getrecursionlimit()
    taken = refused = 0
    for depth in range(limit - 120, limit):
        with AdaptiveExecutor(1, **settings) as pool:
            try:
                future = dive(pool, depth)
            except RecursionError:
                refused += 1
            else:
                taken += 1
                assert future.result(TIMEOUT) == 8
            assert pool.submit(int).result(TIMEOUT) == 0, depth
            assert pool.wait_idle(TIMEOUT), depth
            assert seams.threads_of(pool)[0] == pool.stats().workers, depth
    assert taken and refused


def test_a_refused_start_lets_those_in_that_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    start = stack_size.start
    waits: list[Background] = []

    def refuse_once(*args: Any) -> None:
        if not waits:
            # The only worker is on its way, so that nobody else is let in.
            waits.append(Background(lambda: pool.submit(pow, 2, 3).result(TIMEOUT)))
            assert waits[0].still_waits()
            raise RuntimeError("can't start new thread")
        start(*args)

    with AdaptiveExecutor(1, max_queue=0) as pool:
        monkeypatch.setattr(stack_size, "start", refuse_once)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.submit(int)
        assert waits[0].join() == 8


def stillborn(patch: pytest.MonkeyPatch, prefix: str, times: int) -> list[str]:
    """Have the next threads of that prefix die before they begin; return their names."""
    bootstrap: Any = vars(threading.Thread)["_bootstrap"]
    dead: list[str] = []

    def die_first(thread: threading.Thread) -> None:
        if thread.name.startswith(prefix) and len(dead) < times:
            dead.append(thread.name)
        else:
            bootstrap(thread)

    patch.setattr(threading.Thread, "_bootstrap", die_first)
    return dead


needs_stillborn = pytest.mark.skipif(not threads.STILLBORN, reason="no error hits a thread before it begins")


@needs_stillborn
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("running", [0, 1], ids=["started by submit", "started by the timekeeper"])
def test_a_worker_that_dies_before_it_begins_is_replaced(
    running: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = AdaptiveExecutor(running + 1, "stillborn")
    with Gate() as gate:
        if running:
            gate.hold(pool)
        dead = stillborn(monkeypatch, "stillborn_", times)
        assert pool.submit(pow, 2, 3).result(TIMEOUT) == 8
        assert len(dead) == times
    Background(lambda: pool.shutdown(timeout=TIMEOUT)).join()
    assert pool.stats().workers == 0


@needs_stillborn
def test_a_timekeeper_that_dies_before_it_begins_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Timekeeper()
    keeper.needed = lambda: True
    dead = stillborn(monkeypatch, "ebbpool-timekeeper", 1)
    called = threading.Event()
    keeper.start()
    keeper.call_soon(called.set)
    assert called.wait(TIMEOUT)
    Background(keeper.stop).join()
    assert dead == ["ebbpool-timekeeper"]
