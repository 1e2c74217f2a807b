"""Starts of workers that fail, or that the system refuses: no task and no place is lost, or the future says why."""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, as_completed
from concurrent.futures import wait as futures_wait
from concurrent.futures.thread import BrokenThreadPool
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import pytest
from support import seams
from support.common import (
    COUNTS_REFERENCES,
    LONG,
    TIMEOUT,
    Background,
    Gate,
    Thing,
    collected,
    eventually,
    no_thread,
    output_of,
    starting,
    wait_for_idle,
)
from support.loops import given_up
from support.rules import NAME
from support.seams import crew, threads, timekeeper

import ebbpool
from ebbpool import AdaptiveExecutor

STEPS: dict[str, Callable[[AdaptiveExecutor], tuple[Any, str]]] = {
    "timekeeper": lambda pool: (timekeeper, "start"),
    "strike_off": lambda pool: (seams.crew_of(pool), "_strike_off"),
    "worker": lambda pool: (crew, "Worker"),
    "name": lambda pool: (crew, "next"),
    "thread": lambda pool: (crew, "WorkerThread"),
    "thread_init": lambda pool: (threading.Thread, "__init__"),
    "stack": lambda pool: (threads.WorkerThread, "start"),
    "thread_start": lambda pool: (threading.Thread, "start"),
}
"""The steps of the start of a worker, and where each is."""
SETTINGS: list[dict[str, Any]] = [{}, {"initializer": int}, {"max_queue": 0}, {"max_queue": 1}]


def break_step(
    patch: pytest.MonkeyPatch, pool: AdaptiveExecutor, step: str, error: BaseException
) -> threading.Semaphore:
    """Have one step of the start of a worker raise `error`, and count how often it does."""
    attempts = threading.Semaphore(0)

    def fail(*_: Any, **__: Any) -> Any:
        attempts.release()
        raise error

    patch.setattr(*STEPS[step](pool), fail, raising=False)
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
        stats, staff = pool.stats(), seams.engine_of(pool).staff
        assert (stats.workers, stats.queued, stats.started, staff.headcount, staff.unborn) == (0, 0, 0, 0, 0)
        assert pool.submit(ran.append, "accepted").result(TIMEOUT) is None
        wait_for_idle(pool)
        assert ran == ["accepted"]


@pytest.mark.parametrize(
    ("step", "error"), [*zip([*STEPS][1:], cycle([MemoryError, RecursionError, RuntimeError]), strict=False)]
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


def interrupt_after(patch: pytest.MonkeyPatch, call: Callable[[threading.Thread], object]) -> None:
    """Have the start of a worker interrupted when `call` has been called in its place."""
    start = threads.WorkerThread.start

    def interrupted(thread: threads.WorkerThread) -> None:
        if thread.name == NAME:
            start(thread)
        else:
            call(thread)
            raise KeyboardInterrupt

    patch.setattr(threads.WorkerThread, "start", interrupted)


def test_a_start_that_is_interrupted_when_the_thread_works_leaves_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with AdaptiveExecutor(1, keep_alive=LONG) as pool:
        began: Callable[..., None] = threads.WorkerThread.start
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

            def start(thread: threading.Thread) -> None:
                began(thread)
                eventually(lambda: seams.engine_of(pool).staff.on_their_way() == 0, "the worker has come to the queue")

            interrupt_after(patch, start)
            pool.submit(int)
        assert pool.submit(threading.current_thread).result(TIMEOUT) in pool._threads
        stats = pool.stats()
        assert (stats.workers, stats.started, stats.submitted) == (1, 1, 2)


def test_a_thread_whose_start_was_taken_back_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[threading.Thread] = []
    ran: list[str] = []
    with AdaptiveExecutor(1, initializer=ran.append, initargs=("initialized",)) as pool:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interrupt_after(patch, made.append)
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
            assert seams.engine_of(pool).staff.headcount == pool.stats().workers, depth
    assert taken and refused


def test_a_refused_start_lets_submitters_in_that_wait_for_room() -> None:
    waits: list[Background] = []

    def refuse_once() -> None:
        if not waits:
            # The only worker is on its way, so that nobody else is let in.
            waits.append(Background(lambda: pool.submit(pow, 2, 3).result(TIMEOUT)))
            waits[0].waits_for(pool)
            no_thread()

    with AdaptiveExecutor(1, max_queue=0) as pool, starting(WORKERS, refuse_once):
        with pytest.raises(RuntimeError, match="can't start"):
            pool.submit(int)
        assert waits[0].join() == 8


REFUSAL = "can't start new thread"
BROKEN = f"no worker can run this task: {REFUSAL}"
WORKERS = r"ebbpool-\d+_\d+"


@contextmanager
def few_threads(count: int) -> Iterator[None]:
    """Have the system refuse workers inside, but for `count` of them, and pools give up at once."""
    places = threading.Semaphore(count)

    def refuse() -> None:
        if not places.acquire(blocking=False):
            no_thread()

    with seams.setting(give_up=0.0), starting(WORKERS, refuse):
        yield


@contextmanager
def stranded(pool: AdaptiveExecutor, submit: Callable[[], object], give_up: float = 0.0) -> Iterator[None]:
    """Have the system refuse threads inside, and `submit` called while the first of them is being refused.

    What it submits waits for that thread, and is left without any, until the pool gives up after so many seconds.
    """
    calls = [submit]

    def refuse() -> None:
        if calls:
            calls.pop()()
        no_thread()

    with seams.setting(give_up=give_up), starting(WORKERS, refuse):
        with pytest.raises(RuntimeError, match=REFUSAL):
            pool.submit(int)
        assert not calls
        yield


def says_why(future: Future[Any]) -> bool:
    error = future.exception(TIMEOUT)
    assert isinstance(error, BrokenThreadPool) and str(error) == BROKEN, error
    return type(error.__cause__) is RuntimeError and str(error.__cause__) == REFUSAL


WAITS: dict[str, Callable[[list[Future[int]]], object]] = {
    "result": lambda futures: None,
    "timed result": lambda futures: futures[0].result(LONG),
    "wait": futures_wait,
    "as_completed": lambda futures: list(as_completed(futures)),
}


@pytest.mark.parametrize(("await_all", "threads"), [*zip(WAITS.values(), (1, 3, 1, 3), strict=True)], ids=WAITS)
def test_a_tree_of_tasks_deeper_than_there_are_threads_ends(
    await_all: Callable[[list[Future[int]]], object], threads: int
) -> None:
    futures: dict[int, Future[int]] = {}
    ran: set[int] = set()

    def tree(number: int) -> int:
        ran.add(number)
        if number >= 1 << 7:
            return 1
        children = [futures.setdefault(child, pool.submit(tree, child)) for child in (2 * number, 2 * number + 1)]
        await_all(children)
        return sum(child.result() for child in children)

    with AdaptiveExecutor(4) as pool:
        with few_threads(threads):
            futures[1] = pool.submit(tree, 1)
            assert says_why(futures[1])
            assert pool.wait_idle(TIMEOUT)
        for number, future in futures.items():
            assert number in ran or says_why(future)
        futures.clear()
        assert pool.submit(tree, 1).result(TIMEOUT) == 1 << 7


@pytest.mark.parametrize(
    "settings", [{}, {"initializer": int, "thread_stack_size": 1 << 22}, {"max_queue": 3}], ids=str
)
def test_tasks_without_a_worker_fail_and_the_pool_goes_on(settings: dict[str, Any]) -> None:
    told: list[Future[Any]] = []
    futures: list[Future[Any]] = []

    def submit() -> None:
        futures.extend(pool.submit(pow, number, 2) for number in range(3))
        for future in futures:
            future.add_done_callback(told.append)
        futures[2].cancel()

    with AdaptiveExecutor(4, **settings) as pool:
        with stranded(pool, submit, 0.05):
            assert all(map(says_why, futures[:2]))
            assert futures[2].cancelled()
        eventually(lambda: len(told) == 3)
        assert pool.submit(pow, 2, 3).result(TIMEOUT) == 8
        assert pool.wait_idle(TIMEOUT)
        stats = pool.stats()
        assert (stats.submitted, stats.completed, stats.failed, stats.cancelled, stats.queued) == (4, 1, 2, 1, 0)


@pytest.mark.parametrize(
    ("ends", "give_up"),
    [
        (None, 0.0),
        ({"wait": True, "cancel_futures": False}, 0.0),
        ({"wait": False, "cancel_futures": True}, LONG),
    ],
    ids=["it goes on", "shutdown", "shutdown that cancels"],
)
def test_no_task_of_a_lane_or_in_line_is_left_undone(ends: dict[str, bool] | None, give_up: float) -> None:
    pool = AdaptiveExecutor(1, max_queue=1)
    lane = pool.lane("narrow", limit=1)
    futures: list[Future[Any]] = []
    cancels = ends is not None and ends["cancel_futures"]

    def submit() -> None:
        futures.extend(lane.submit(pow, number, 2) for number in range(5))
        for _ in range(5):
            # It waits for room without holding up this thread, as a call from a loop does.
            futures.append(pool.hold_back(int, (), None))
            seams.engine_of(pool).push(futures[-1], False, True)

    with stranded(pool, submit, give_up):
        if ends is not None:
            Background(lambda: pool.shutdown(**ends)).join()
        assert all(future.cancelled() if cancels else says_why(future) for future in futures)
        pool.shutdown(timeout=TIMEOUT)
    stats = lane.stats()
    assert (stats.cancelled if cancels else stats.failed, stats.running, len(futures)) == (5, 0, 10)


def test_what_waits_behind_abandoned_calls_is_not_given_up() -> None:
    """They may end, unlike calls that wait for their own pool."""
    with AdaptiveExecutor(2) as pool, Gate() as gate:
        given_up(gate.hold(pool))
        refused = threading.Semaphore(0)
        with seams.setting(give_up=0.0), starting(WORKERS, lambda: (refused.release(), no_thread())):
            waiting = pool.submit(int)
            for _ in range(3):
                assert refused.acquire(timeout=TIMEOUT), "the pool gave up"
            assert not waiting.done()
            gate.open()
            assert waiting.result(TIMEOUT) == 0


def test_a_shutdown_waits_for_threads_to_come_again_or_reports_what_has_no_worker() -> None:
    pool = AdaptiveExecutor(4)
    futures: list[Future[Any]] = []
    with stranded(pool, lambda: futures.append(pool.submit(threading.current_thread)), LONG):

        def reported() -> bool:
            # While the timekeeper tries to start a thread, the report counts on that thread.
            with pytest.raises(TimeoutError, match="after 0 s ") as caught:
                pool.shutdown(timeout=0)
            return str(caught.value).endswith("after 0 s 1 tasks are waiting, and no thread could be started for them")

        eventually(reported)
        closing = Background(pool.shutdown)
        closing.waits_for(pool)
        assert not futures[0].done()
    closing.join()
    assert futures[0].result(TIMEOUT) is not closing.thread


def test_a_task_behind_one_that_runs_waits_for_its_worker() -> None:
    with AdaptiveExecutor(4) as pool, Gate() as gate:
        gate.hold(pool)
        with few_threads(0):
            future = pool.submit(pow, 2, 3)
            eventually(lambda: "refused" in str(pool.stats().last_decision))
            assert not future.done()
            gate.open()
            assert future.result(TIMEOUT) == 8


def test_what_failed_keeps_neither_the_pool_nor_its_call_alive() -> None:
    futures: list[Future[Any]] = []

    def references() -> list[weakref.ref[Any]]:
        pool = AdaptiveExecutor(4)
        thing = Thing()
        with stranded(pool, lambda: futures.append(pool.submit(thing.method))):
            assert says_why(futures[0])
        pool.shutdown()
        return [weakref.ref(pool), weakref.ref(thing)]

    collected(*references())


REFUSE = f"""
import logging, re, sys, threading
from ebbpool import AdaptiveExecutor
from support import seams
seams.setting(give_up=600)
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
start = threading.Thread.start
def have_started_by(start_thread, names):
    threading.Thread.start = lambda thread: (start_thread if re.match(names, thread.name) else start)(thread)
refused = threading.Event()
def refuse(*_):
    refused.set()
    raise RuntimeError({REFUSAL!r})
def strand(pool, submit, names=r"ebbpool-\\d"):
    # The system refuses threads of these names; `submit()` is called while the first of them is being refused.
    def submit_and_refuse(*_):
        have_started_by(refuse, names)
        submit()
        refuse()
    have_started_by(submit_and_refuse, names)
    try:
        pool.submit(int)
    except RuntimeError as error:
        print(error, flush=True)
def show(future):
    print(repr(future.exception()), repr(future.exception().__cause__), flush=True)
"""
SHOWN = f"BrokenThreadPool({BROKEN!r}) RuntimeError({REFUSAL!r})"
TOLD = f"CRITICAL 1 tasks have failed: {BROKEN}"
EXITS = {
    "exit fails what no worker takes": (
        """
        pool = AdaptiveExecutor(4)
        strand(pool, lambda: pool.submit(int).add_done_callback(show))
        pool.shutdown(wait=False)
        print("main is over", flush=True)
        seams.setting(give_up=0.1)
        """,
        [REFUSAL, "main is over", TOLD, SHOWN],
    ),
    "exit ends a wait for another pool": (
        """
        first, second = AdaptiveExecutor(4), AdaptiveExecutor(4)
        waits, stuck = threading.Event(), []
        def await_other():
            waits.set()
            stuck[0].result()
        first.submit(int).result()
        strand(second, lambda: stuck.append(second.submit(int)))
        first.submit(await_other).add_done_callback(show)
        waits.wait(10)
        def go_on():
            # Exit has begun, and has closed no pool yet.
            refused.clear()
            print(refused.wait(10), flush=True)
            seams.setting(give_up=0.1)
        seams.lifecycle.before_exit(go_on)
        """,
        [REFUSAL, "True", TOLD, SHOWN],
    ),
    "without a timekeeper tasks fail at once": (
        """
        pool = AdaptiveExecutor(4)
        strand(pool, lambda: pool.submit(int).add_done_callback(show), "ebbpool-")
        """,
        [TOLD, SHOWN, REFUSAL],
    ),
}


@pytest.mark.parametrize(("script", "printed"), EXITS.values(), ids=EXITS)
def test_exit(script: str, printed: list[str]) -> None:
    assert output_of(script, REFUSE) == printed


@pytest.mark.parametrize("when_full", seams.POLICIES)
def test_a_call_whose_submit_has_raised_does_not_run(when_full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that its lane holds back needs no thread yet."""
    ran: list[int] = []
    with AdaptiveExecutor(4, max_queue=0, when_full=when_full) as pool, Gate() as gate:
        lane = pool.lane("lane", limit=1)
        gate.hold(lane)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            held = lane.submit(ran.append, 1)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                pool.submit(ran.append, 2)
        gate.open()
        held.result(TIMEOUT)
        wait_for_idle(pool)
    assert ran == [1]


@pytest.mark.skipif(ebbpool.COMPILED, reason="no handler runs in the middle of the compiled core's submit")
@pytest.mark.parametrize("running", [0, 1])
def test_a_submit_that_is_interrupted_after_its_visit_leaves_nothing_undone(running: int) -> None:
    lines = inspect.getsource(AdaptiveExecutor.submit).splitlines()
    first = inspect.getsourcelines(AdaptiveExecutor.submit)[1]
    place = first + next(number for number, line in enumerate(lines) if line.strip() == "if actions:")
    left = [None]

    def trace(frame: Any, event: str, _: object) -> Any:
        if event == "line" and frame.f_lineno == place and left:
            left.clear()
            raise KeyboardInterrupt
        return trace if frame.f_code is AdaptiveExecutor.submit.__code__ else None

    with AdaptiveExecutor(2) as pool, Gate() as gate:
        for _ in range(running):
            gate.hold(pool)
        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                pool.submit(int)
        finally:
            sys.settrace(None)
        assert pool.submit(int).result(TIMEOUT) == 0
