"""Sessions: a thread of the pool for as long as it takes."""

from __future__ import annotations

import concurrent.futures
import math
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from concurrent.futures.thread import BrokenThreadPool
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
from support import seams
from support.common import (
    TIMEOUT,
    Background,
    Boom,
    Gate,
    Thing,
    call_of,
    eventually,
    fail,
    forked,
    gone,
    no_collector,
    no_thread,
    output_of,
    together,
    wait_for_idle,
)

from ebbpool import COMPILED, AdaptiveExecutor, QueueTimeout, Session


@pytest.fixture
def pool() -> Iterator[AdaptiveExecutor]:
    with AdaptiveExecutor(4) as pool:
        yield pool


@pytest.fixture
def session(pool: AdaptiveExecutor) -> Session:
    return pool.session()


def test_all_calls_of_a_session_run_in_one_warm_thread_in_order() -> None:
    with AdaptiveExecutor() as pool:
        warm = pool.submit(threading.current_thread).result(TIMEOUT)
        order: list[int] = []
        for _ in range(3):
            wait_for_idle(pool)  # a worker that is not back yet is no warm one
            with pool.session() as session:
                assert isinstance(session, Session)
                assert isinstance(session, ThreadPoolExecutor)
                threads = list(session.map(lambda number: (order.append(number), threading.current_thread()), range(9)))
            assert {thread for _, thread in threads} == {warm}
        assert order == [*range(9)] * 3
        assert pool.stats().started == 1


def test_the_finalizer_runs_in_the_thread_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with AdaptiveExecutor() as pool:
        ended: list[threading.Thread] = []
        with pool.session(finalizer=lambda: ended.append(threading.current_thread())) as session:
            thread = session.submit(threading.current_thread).result(TIMEOUT)
            assert not ended
        assert ended == [thread]
        with pool.session(finalizer=lambda: ended.append(threading.current_thread())):
            pass
        assert ended == [thread], "a session that was never used has no thread"
        with pool.session(finalizer=fail) as session:
            session.submit(int)
    assert "exception in the finalizer of a session" in caplog.text
    with pytest.raises(TypeError, match="finalizer must be callable or None, not 3"):
        pool.session(finalizer=3)  # type: ignore[arg-type]


def test_what_runs_has_its_name_and_what_libraries_read(pool: AdaptiveExecutor, session: Any) -> None:
    with Gate() as gate:
        futures = [session.submit(gate) for _ in range(3)]
        gate.await_begun()
        assert gate.nobody_begins(pool)
        assert {task.name for task in pool.running()} == {"support.common.Gate"}
        assert (session._max_workers, len(session._threads), session._work_queue.qsize()) == (1, 1, 2)
        assert (session._shutdown, session._broken) == (False, False)
        gate.open()
        assert not wait(futures, TIMEOUT).not_done
    assert gate.peak == 1


def test_many_threads_use_one(session: Any) -> None:
    futures = [future for made in together(lambda _: [session.submit(int) for _ in range(200)], 8) for future in made]
    assert [future.result(TIMEOUT) for future in futures] == [0] * 1600


def test_sessions_do_not_count_towards_the_ceiling() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        one, two = pool.session(), pool.session()
        gate.hold(pool)
        # Behind a task that nobody has room for.
        waits = pool.submit(int)
        nested = one.submit(lambda: two.submit(int).result(TIMEOUT))
        assert nested.result(TIMEOUT) == 0
        assert not waits.done()
        gate.open()


def test_all_of_the_pool_may_wait_for_one_in_ways_that_the_pool_does_not_see(
    pool: AdaptiveExecutor, session: Session
) -> None:
    def waits() -> bool:
        done = threading.Event()
        session.submit(done.set)
        return done.wait(TIMEOUT)

    assert all(future.result(TIMEOUT) for future in [pool.submit(waits) for _ in range(30)])


@pytest.mark.parametrize("way", ["result", "exception", "wait"])
def test_a_task_of_the_pool_that_waits_for_one_counts_as_blocked(way: str) -> None:
    with AdaptiveExecutor(1) as pool, pool.session() as session:

        def waits() -> int:
            future = session.submit(lambda: pool.submit(int).result(TIMEOUT))
            wait([future], TIMEOUT) if way == "wait" else getattr(future, way)(TIMEOUT)
            return future.result(0)

        assert pool.submit(waits).result(TIMEOUT) == 0


def test_callbacks_run_while_others_may_use_it(pool: AdaptiveExecutor, session: Session) -> None:
    with Gate() as gate:
        gate.hold(session)
        queued = session.submit(int)
        used: list[Any] = []

        def use() -> None:
            with pytest.raises(RuntimeError, match="after shutdown"):
                session.submit(int)

        queued.add_done_callback(lambda _: used.append(Background(use).join()))
        session.shutdown(wait=False, cancel_futures=True)
        assert used == [None]


def test_calls_that_an_interrupted_shutdown_has_left_are_cancelled_by_the_next(session: Session) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with Gate() as gate:
        gate.hold(session)
        first, second = session.submit(int), session.submit(int)
        first.add_done_callback(interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.shutdown(wait=False, cancel_futures=True)
        assert first.cancelled() and not second.cancelled()
        session.shutdown(wait=False, cancel_futures=True)
        assert second.cancelled()


@pytest.mark.skipif(seams.FREE_THREADED, reason="there the collector frees what threads have shared")
def test_a_failed_call_whose_result_was_asked_for_is_part_of_no_cycle(session: Session) -> None:
    thing = Thing()

    def raises(argument: Thing) -> None:
        raise Boom

    with no_collector():
        future = session.submit(raises, thing)
        with pytest.raises(Boom):
            future.result(TIMEOUT)
        reference = weakref.ref(thing)
        del thing, future
        gone(reference)


def test_an_idle_one_runs_no_task_for_which_no_thread_can_be_started(session: Session, pool: AdaptiveExecutor) -> None:
    session.submit(int).result(TIMEOUT)
    eventually(lambda: pool.stats().blocked == 1)
    with seams.setting(give_up=0.0), mock.patch.object(threading.Thread, "start", no_thread):
        assert isinstance(pool.submit(int).exception(TIMEOUT), BrokenThreadPool)
    assert session.submit(int).result(TIMEOUT) == pool.submit(int).result(TIMEOUT) == 0


@pytest.mark.skipif(COMPILED, reason="the mutex of the compiled core lets no thread in twice")
def test_a_look_starts_no_thread_while_a_warm_one_comes() -> None:
    with AdaptiveExecutor() as pool:
        pool.submit(int).result(TIMEOUT)
        wait_for_idle(pool)
        engine = seams.engine_of(pool)
        with pool.session() as session:
            with engine.mutex:
                future = session.submit(int)
                engine.look(time.monotonic())
            assert future.result(TIMEOUT) == 0
        assert pool.stats().started == 1


def test_errors_of_calls_and_of_wrong_use_are_raised(session: Any) -> None:
    with pytest.raises(Boom):
        session.submit(fail).result(TIMEOUT)
    with pytest.raises(TypeError, match="fn must be callable, not 3"):
        session.submit(3)
    with pytest.raises(RuntimeError, match="a call cannot wait for its own executor to shut down"):
        session.submit(session.shutdown).result(TIMEOUT)


def test_shutdown_waits_for_what_is_queued(
    pool: AdaptiveExecutor, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = call_of(monkeypatch, concurrent.futures, "wait")
    with Gate() as gate:
        held = gate.hold(session)
        queued, last = session.submit(int), session.submit(int)
        assert queued.cancel()
        shutting = Background(session.shutdown)
        assert waits.wait(TIMEOUT)
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            session.submit(int)
        gate.open()
        shutting.join()
    assert held.done()
    assert last.result(0) == 0
    session.shutdown()
    assert pool.submit(int).result(TIMEOUT) == 0


def test_shutdown_may_cancel_what_is_queued(session: Any) -> None:
    with Gate() as gate:
        held = gate.hold(session)
        last = session.submit(int)
        session.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(CancelledError):
            last.result(TIMEOUT)
        gate.open()
        assert held.result(TIMEOUT) is None


def test_a_pool_that_is_shut_down_ends_its_sessions(pool: AdaptiveExecutor) -> None:
    session, never_used = pool.session(), pool.session()
    with AdaptiveExecutor() as other:
        safe = other.session()
        safe.submit(int).result(TIMEOUT)
        futures = [session.submit(int) for _ in range(100)]
        pool.shutdown()
        assert [future.result(TIMEOUT) for future in futures] == [0] * 100
        for ended in (session, never_used, pool.session()):
            with pytest.raises(RuntimeError, match="shutdown"):
                ended.submit(int)
        assert safe.submit(int).result(TIMEOUT) == 0


def test_a_lease_that_never_begins_fails_its_calls() -> None:
    with AdaptiveExecutor(initializer=fail) as pool:
        error = pool.session().submit(int).exception(TIMEOUT)
        assert "initializer" in str(error)


def test_a_session_that_nobody_holds_finishes_its_work(pool: AdaptiveExecutor) -> None:
    with Gate() as gate:
        session = pool.session()
        futures = [session.submit(gate) for _ in range(5)]
        gate.await_begun()
        reference = weakref.ref(session)
        del session
        gone(reference, pool=pool)
    assert not wait(futures, TIMEOUT).not_done
    wait_for_idle(pool)  # the threads are given back


def test_an_idle_session_holds_nothing_of_its_last_call(session: Any) -> None:
    def fails(_: Thing) -> None:
        raise Boom

    for call in (Thing.method, fails):
        thing = Thing()
        reference = weakref.ref(thing)
        wait([session.submit(call, thing)], TIMEOUT)
        del thing
        gone(reference, pool=session)


def test_what_is_queued_when_the_process_ends_still_runs() -> None:
    script = """
        import atexit
        import ebbpool
        pool = ebbpool.AdaptiveExecutor()
        done = []
        atexit.register(lambda: print(len(done)))
        session = pool.session(finalizer=lambda: print("end"))
        for _ in range(500):
            session.submit(done.append, None)
    """
    assert output_of(script) == ["end", "500"]


def test_in_a_forked_child_the_calls_of_the_parent_have_failed() -> None:
    script = """
        import ebbpool

        pool = ebbpool.AdaptiveExecutor()
        session = pool.session()
        begun, gate = threading.Event(), threading.Event()
        running = session.submit(lambda: (begun.set(), gate.wait(60)))
        queued = session.submit(int)
        begun.wait(60)

        def check():
            for future in (running, queued):
                assert "forked" in str(future.exception(10)), future

        def forks():
            assert in_child(lambda: None) == 0
            return os.getpid()

        assert in_child(check) == 0
        other = pool.session()
        assert other.submit(forks).result(60) == os.getpid()
        gate.set()
        assert queued.result(60) == 0
        print("done")
    """
    assert forked(script)[-1] == "done"


def test_a_forked_child_uses_it_anew() -> None:
    script = """
        import ebbpool

        pool = ebbpool.AdaptiveExecutor()
        session = pool.session()
        ends = False

        def again():
            if not ends:
                session.submit(again)

        def check():
            assert session.submit(os.getpid).result(10) == os.getpid()

        session.submit(again)
        for _ in range(5):
            assert in_child(check) == 0
        check()
        ends = True
        print("done")
    """
    assert forked(script)[-1] == "done"


@pytest.mark.parametrize("way", ["first", "lane", "too many threads"])
def test_sessions_get_their_thread_whatever_waits_before_them(way: str) -> None:
    with AdaptiveExecutor(2, max_wait=0.02) as pool, Gate() as gate:
        patient = pool.lane("patient", limit=9, max_wait=math.inf)
        gate.hold(patient, 2)
        if way == "too many threads":
            pool.resize(max_workers=1)
        waiting = (pool.lane("first", limit=9, first=True, max_wait=math.inf) if way == "lane" else patient).submit(
            gate
        )
        first = pool.submit_first(gate) if way == "first" else None
        with pool.session() as one, pool.session() as two:
            assert [each.submit(int).result(TIMEOUT) for each in (one, two)] == [0, 0]
            assert gate.nobody_begins(pool)
            gate.open()
        assert waiting.result(TIMEOUT) is None
        assert first is None or first.exception(TIMEOUT) is None or type(first.exception(TIMEOUT)) is QueueTimeout


def test_a_session_that_waits_for_its_pool_takes_no_other_place() -> None:
    with AdaptiveExecutor(2) as pool, Gate() as gate, ExitStack() as sessions:
        waiting = []
        for _ in range(3):
            session = sessions.enter_context(pool.session())
            waiting.append(session.submit(lambda: pool.submit(gate).result(TIMEOUT)))
        gate.await_begun(2)
        eventually(lambda: pool.stats().blocked == 3)
        others = [pool.submit(gate) for _ in range(3)]
        assert gate.nobody_begins(pool)
        gate.open()
        assert [each.result(TIMEOUT) for each in (*waiting, *others)] == [None] * 6
    assert gate.peak == 2
