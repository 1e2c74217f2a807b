"""Tasks left in the queue of a closed pool while the system refuses threads: they run, or their futures say why not."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, as_completed
from concurrent.futures import wait as futures_wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from support.common import A_MOMENT, TIMEOUT, Background, Boom, Gate, eventually, fail, output_of

from ebbpool import AdaptiveExecutor
from ebbpool._core import accel
from ebbpool._pool import stack_size

REFUSAL = "can't start new thread"


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a thread that stands in, and waits, look for stranded tasks again and again."""
    monkeypatch.setattr(importlib.import_module(accel.Pool.__module__), "STOOD_BY", 0.01)


@contextmanager
def stranded(pool: AdaptiveExecutor, submit: Callable[[], object]) -> Iterator[None]:
    """Have the system refuse threads inside, and `submit` called while the first of them is being refused.

    What it submits waits for that thread, and is left without any.
    """
    calls = [submit]

    def refuse(*_: object) -> None:
        if calls:
            calls.pop()()
        raise RuntimeError(REFUSAL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_size, "start", refuse)
        with pytest.raises(RuntimeError, match=REFUSAL):
            pool.submit(int)
        assert not calls
        yield


def test_the_closing_thread_runs_what_no_worker_takes() -> None:
    pool = AdaptiveExecutor(4)
    futures: list[Future[Any]] = []
    told: list[Future[Any]] = []

    def submit() -> None:
        futures.extend([pool.submit(threading.current_thread), pool.submit(fail), pool.submit(int)])
        futures[2].cancel()
        futures.extend(pool.submit(pow, number, 2) for number in range(100))
        for future in futures:
            future.add_done_callback(told.append)

    with stranded(pool, submit):
        pool.shutdown()
        assert all(future.done() for future in futures)
    assert futures[0].result() is threading.main_thread()
    assert isinstance(futures[1].exception(), Boom)
    assert futures[2].cancelled()
    assert [future.result() for future in futures[3:]] == [number**2 for number in range(100)]
    assert sorted(map(id, told)) == sorted(map(id, futures))
    stats = pool.stats()
    assert (stats.workers, stats.queued, stats.submitted, stats.completed) == (0, 0, 103, 101)
    assert (stats.failed, stats.cancelled, stats.started, stats.retired) == (1, 1, 102, 102)


@pytest.mark.parametrize("await_all", [futures_wait, lambda futures: list(as_completed(futures))])
def test_a_task_that_stands_in_and_waits_for_others_has_them_run(await_all: Callable[[Any], object]) -> None:
    pool = AdaptiveExecutor(4)
    futures: list[Future[Any]] = []

    def submit() -> None:
        futures.append(pool.submit(lambda: await_all([futures[1]])))
        futures.append(pool.submit(pow, 2, 3))

    with stranded(pool, submit):
        pool.shutdown()
        assert [future.done() for future in futures] == [True, True]
    assert futures[1].result() == 8


def test_a_task_that_stands_in_sees_and_leaves_nothing_of_the_context_of_the_closing_thread() -> None:
    pool = AdaptiveExecutor(4)
    request: ContextVar[str] = ContextVar("request", default="none")
    futures: list[Future[Any]] = []

    def task() -> str:
        seen = request.get()
        request.set("left behind")
        return seen

    def close() -> str:
        request.set("closing")
        with stranded(pool, lambda: futures.append(pool.submit(task))):
            pool.shutdown()
        return request.get()

    assert copy_context().run(close) == "closing"
    assert futures[0].result() == "none"


def test_the_tasks_of_lanes_and_those_that_wait_for_room_are_run_too() -> None:
    pool = AdaptiveExecutor(1, max_queue=1)
    lane = pool.lane("narrow", limit=1)
    futures: list[Future[Any]] = []

    def submit() -> None:
        futures.extend(lane.submit(pow, number, 2) for number in range(5))
        for number in range(5):
            held = pool.hold_back(pow, (number, 3), None)
            assert pool.release(held)
            futures.append(held)

    with stranded(pool, submit):
        assert pool.stats().queued < 10
        pool.shutdown()
        assert all(future.done() for future in futures)
    assert [future.result() for future in futures] == [0, 1, 4, 9, 16, 0, 1, 8, 27, 64]
    assert (lane.stats().completed, lane.core.admitted) == (5, 0)


def test_a_timeout_is_kept_and_the_report_names_what_has_no_worker() -> None:
    pool = AdaptiveExecutor(4)
    futures: list[Future[Any]] = []
    with stranded(pool, lambda: futures.append(pool.submit(threading.current_thread))):

        def reported() -> bool:
            # While the timekeeper tries to start a thread, the report counts on that thread.
            with pytest.raises(TimeoutError, match="after 0 s ") as caught:
                pool.shutdown(timeout=0)
            return str(caught.value).endswith("after 0 s 1 tasks wait, and no thread could be started for them")

        eventually(reported)
        assert not futures[0].done()
    # The timekeeper goes on trying.
    assert futures[0].result(TIMEOUT) is not threading.main_thread()
    pool.shutdown()


def test_shutdown_without_waiting_leaves_it_to_the_timekeeper() -> None:
    pool = AdaptiveExecutor(4)
    futures: list[Future[Any]] = []
    with stranded(pool, lambda: futures.append(pool.submit(threading.current_thread))):
        pool.shutdown(wait=False)
        assert not futures[0].done()
    assert futures[0].result(TIMEOUT) is not threading.main_thread()
    pool.shutdown()


@pytest.mark.parametrize("settings", [{"initializer": int}, {"finalizer": int}, {"thread_stack_size": 1 << 22}])
def test_a_task_that_relies_on_its_thread_waits_for_one(settings: dict[str, Any]) -> None:
    pool = AdaptiveExecutor(4, **settings)
    futures: list[Future[Any]] = []
    with stranded(pool, lambda: futures.append(pool.submit(threading.current_thread))):
        shutdown = Background(pool.shutdown)
        assert shutdown.still_waits()
    shutdown.join()
    assert futures[0].result(TIMEOUT) is not shutdown.thread


def test_blocked_workers_are_stood_in_for() -> None:
    """The only worker waits for a task for which the system refuses another thread."""
    pool = AdaptiveExecutor(1)
    with Gate() as gate, pytest.MonkeyPatch.context() as patch:

        def parent() -> Any:
            child = pool.submit(threading.current_thread)
            gate()
            return child.result()

        future = pool.submit(parent)
        gate.await_begun()

        def refuse(*_: object) -> None:
            raise RuntimeError(REFUSAL)

        patch.setattr(stack_size, "start", refuse)
        shutdown = Background(pool.shutdown)
        assert shutdown.still_waits()
        gate.open()
        shutdown.join()
        assert future.result(TIMEOUT) is shutdown.thread


def test_who_stands_in_runs_what_its_task_waits_for() -> None:
    pool = AdaptiveExecutor(4)
    futures: list[Future[Any]] = []

    def wait_for(number: int) -> Any:
        return futures[number].result() + 1

    def submit() -> None:
        futures.extend([pool.submit(wait_for, 1), pool.submit(wait_for, 2), pool.submit(int), pool.submit(wait_for, 0)])

    with stranded(pool, submit):
        pool.shutdown()
    assert [future.result(TIMEOUT) for future in futures] == [2, 1, 0, 3]


@pytest.mark.parametrize("await_one", [lambda future: future.result(), lambda future: futures_wait([future])])
@pytest.mark.usefixtures("looks_often")
def test_who_stands_in_does_not_rely_on_a_thread_that_is_refused_later(await_one: Callable[[Any], object]) -> None:
    pool = AdaptiveExecutor(4)
    futures: list[Future[Any]] = []
    tried = threading.Event()

    def refuse_later(*_: object) -> None:
        tried.set()
        eventually(lambda: pool.stats().blocked == 1)
        raise RuntimeError(REFUSAL)

    def parent() -> int:
        patch.setattr(stack_size, "start", refuse_later)
        assert tried.wait(TIMEOUT)
        await_one(futures[1])
        return 1

    def submit() -> None:
        futures.extend([pool.submit(parent), pool.submit(int)])

    with stranded(pool, submit), pytest.MonkeyPatch.context() as patch:
        closing = Background(pool.shutdown)
        assert [future.result(TIMEOUT) for future in futures] == [1, 0]
        closing.join()


@pytest.mark.usefixtures("looks_often")
def test_who_stands_in_helps_a_worker_that_waits_later() -> None:
    pool = AdaptiveExecutor(1)
    futures: list[Future[Any]] = []
    past = threading.Event()

    def work() -> Any:
        gate()
        # The closing thread stands in for this worker now.
        futures[1].result()
        past.set()
        eventually(lambda: pool.stats().blocked == 1)
        return futures[2].result()

    def stand_in() -> Any:
        futures[1].result()
        assert past.wait(TIMEOUT)
        return futures[3].result()

    def refuse(*_: object) -> None:
        raise RuntimeError(REFUSAL)

    with Gate() as gate, pytest.MonkeyPatch.context() as patch:
        working = pool.submit(work)
        gate.await_begun()
        futures.extend([pool.submit(stand_in), *[pool.submit(pow, 2, number) for number in range(3)]])
        patch.setattr(stack_size, "start", refuse)
        closing = Background(pool.shutdown)
        gate.open()
        closing.join()
    assert working.result(TIMEOUT) == 2
    assert futures[0].result(TIMEOUT) == 4


def test_a_wait_with_a_time_limit_ends_in_a_thread_that_stands_in() -> None:
    pool = AdaptiveExecutor(4)
    futures: list[Future[Any]] = []

    def wait_for_itself() -> list[int]:
        return [len(futures_wait(futures, limit).not_done) for limit in (-1, 0, 0.01)]

    with stranded(pool, lambda: futures.append(pool.submit(wait_for_itself))):
        pool.shutdown()
    assert futures[0].result(TIMEOUT) == [1, 1, 1]


def test_no_more_tasks_run_at_a_time_than_may_when_threads_come_back() -> None:
    pool = AdaptiveExecutor(1)
    children: list[Future[Any]] = []
    counting, both = threading.Lock(), threading.Event()
    running: set[int] = set()

    def child() -> None:
        with counting:
            running.add(threading.get_ident())
            if len(running) > 1:
                both.set()
        both.wait(A_MOMENT)
        with counting:
            running.discard(threading.get_ident())

    def parent() -> None:
        patch.undo()
        for future in children:
            future.result()

    def refuse(*_: object) -> None:
        if not children:
            children.append(pool.submit(parent))
            children[:] = [pool.submit(child) for _ in range(4)]
        raise RuntimeError(REFUSAL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_size, "start", refuse)
        with pytest.raises(RuntimeError, match=REFUSAL):
            pool.submit(int)
        pool.shutdown()
    assert all(future.done() for future in children)
    assert not both.is_set()


def test_a_task_is_not_put_on_top_of_one_that_it_waits_for_when_threads_come_back() -> None:
    pool = AdaptiveExecutor(4)
    futures: list[Future[Any]] = []

    def parent() -> Any:
        patch.undo()
        return futures[2].result()

    def refuse(*_: object) -> None:
        if not futures:
            futures.extend([pool.submit(parent), pool.submit(lambda: futures[0].result()), pool.submit(int)])
        raise RuntimeError(REFUSAL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_size, "start", refuse)
        with pytest.raises(RuntimeError, match=REFUSAL):
            pool.submit(int)
        Background(pool.shutdown).join()
    assert [future.result(TIMEOUT) for future in futures] == [0, 0, 0]


def test_a_worker_takes_over_once_there_is_one() -> None:
    pool = AdaptiveExecutor(4)
    futures: list[Future[Any]] = []
    with Gate() as gate:
        with stranded(pool, lambda: futures.extend([pool.submit(gate), pool.submit(threading.current_thread)])):
            shutdown = Background(pool.shutdown)
            gate.await_begun()
        gate.open()
        shutdown.join()
    assert gate.threads == {shutdown.thread}
    assert futures[1].result(TIMEOUT) is not shutdown.thread


def test_an_interrupt_ends_the_shutdown_and_loses_nothing() -> None:
    pool = AdaptiveExecutor(4)
    futures: list[Future[Any]] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    with stranded(pool, lambda: futures.extend([pool.submit(interrupt), pool.submit(int)])):
        with pytest.raises(KeyboardInterrupt):
            pool.shutdown()
        assert isinstance(futures[0].exception(TIMEOUT), KeyboardInterrupt)
        pool.shutdown()
        assert futures[1].result(TIMEOUT) == 0


REFUSE = f"""
import threading, time
from ebbpool import AdaptiveExecutor
from ebbpool._pool import stack_size
start = stack_size.start
def refuse(*_):
    raise RuntimeError({REFUSAL!r})
def show(what):
    print(what, threading.current_thread().name, flush=True)
"""


def test_exit_runs_what_no_worker_takes() -> None:
    lines = output_of(
        """
        pool = AdaptiveExecutor(4)
        def submit_and_refuse(*_):
            stack_size.start = refuse
            pool.submit(show, "first")
            pool.submit(show, "second")
            refuse()
        stack_size.start = submit_and_refuse
        try:
            pool.submit(int)
        except RuntimeError as error:
            print(error)
        pool.shutdown(wait=False)
        print("main is over", flush=True)
    """,
        REFUSE,
    )
    assert lines == [REFUSAL, "main is over", "first MainThread", "second MainThread"]


def test_exit_stands_in_for_blocked_workers() -> None:
    lines = output_of(
        """
        pool = AdaptiveExecutor(1)
        begun = threading.Event()
        def parent():
            grandchild = pool.submit(pow, 2, 3)
            child = pool.submit_first(lambda: grandchild.result() + 1)
            stack_size.start = refuse
            begun.set()
            while not pool._shutdown:
                time.sleep(0.001)
            print(child.result(), flush=True)
        pool.submit(parent)
        begun.wait(10)
    """,
        REFUSE,
    )
    assert lines == ["9"]


def test_exit_fails_what_relies_on_its_thread_and_says_so() -> None:
    lines = output_of(
        """
        import logging, sys
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
        pool = AdaptiveExecutor(4, "framed", initializer=int)
        def submit_and_refuse(*_):
            stack_size.start = refuse
            for _ in range(2):
                pool.submit(show, "never").add_done_callback(lambda future: show(future.exception()))
            refuse()
        stack_size.start = submit_and_refuse
        try:
            pool.submit(int)
        except RuntimeError:
            pass
    """,
        REFUSE,
    )
    assert lines == 2 * [f"{REFUSAL} MainThread"] + [f"CRITICAL 2 tasks of framed have failed: {REFUSAL}"]


def test_every_pool_is_relieved_before_one_is_waited_for() -> None:
    lines = output_of(
        """
        first, second = AdaptiveExecutor(4), AdaptiveExecutor(4)
        waits, stuck = threading.Event(), []
        def submit_and_refuse(*_):
            stack_size.start = start
            stuck.append(second.submit(pow, 2, 3))
            refuse()
        def await_other():
            waits.set()
            print(stuck[0].result(), flush=True)
        first.submit(int).result()
        stack_size.start = submit_and_refuse
        try:
            second.submit(int)
        except RuntimeError:
            stack_size.start = refuse
        first.submit(await_other)
        waits.wait(10)
    """,
        REFUSE,
    )
    assert lines == ["8"]
