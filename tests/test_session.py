"""Sessions: a thread of the pool for as long as something needs one and the same."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from support.common import FORK, TIMEOUT, Background, Boom, Gate, Thing, eventually, fail, gone, needs_fork, output_of

from ebbpool import AdaptiveExecutor, Session


def test_all_calls_run_in_one_warm_thread_in_order() -> None:
    with AdaptiveExecutor(thread_name_prefix="pool") as pool:
        warm = pool.submit(threading.current_thread).result(TIMEOUT)
        order: list[int] = []
        for _ in range(3):
            with pool.session() as session:
                assert isinstance(session, Session)
                assert isinstance(session, ThreadPoolExecutor)
                threads = list(session.map(lambda number: (order.append(number), threading.current_thread()), range(9)))
            assert {thread for _, thread in threads} == {warm}
        assert order == [*range(9)] * 3
        assert pool.stats().started == 1


def test_what_belongs_to_a_thread_can_be_used_in_it() -> None:
    with AdaptiveExecutor() as pool, pool.session() as session:
        database = session.submit(sqlite3.connect, ":memory:").result(TIMEOUT)
        assert session.submit(lambda: database.execute("select 3").fetchone()).result(TIMEOUT) == (3,)
        session.submit(database.close).result(TIMEOUT)


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


def test_a_session_does_not_count_towards_the_ceiling() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate, pool.session() as one, pool.session() as two:
        gate.hold(pool)
        # Behind a task that nobody has room for.
        waits = pool.submit(int)
        assert one.submit(lambda: two.submit(int).result(TIMEOUT)).result(TIMEOUT) == 0
        assert not waits.done()


def test_errors_and_cancelled_calls() -> None:
    with AdaptiveExecutor() as pool, Gate() as gate:
        session = pool.session()
        with pytest.raises(Boom):
            session.submit(fail).result(TIMEOUT)
        with pytest.raises(TypeError, match="fn must be callable, not 3"):
            session.submit(3)  # type: ignore[arg-type]
        held = gate.hold(session)
        first, second = session.submit(int), session.submit(int)
        assert first.cancel()
        session.shutdown(wait=False, cancel_futures=True)
        gate.open()
        assert held.result(TIMEOUT) is None
        with pytest.raises(CancelledError):
            second.result(TIMEOUT)
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            session.submit(int)


def test_a_call_cannot_wait_for_its_own_session() -> None:
    with AdaptiveExecutor() as pool:
        session = pool.session()
        with pytest.raises(RuntimeError, match="its own"):
            session.submit(session.shutdown).result(TIMEOUT)


def test_a_pool_that_is_shut_down_ends_its_sessions() -> None:
    with AdaptiveExecutor() as pool, AdaptiveExecutor() as other:
        session, safe = pool.session(), other.session()
        safe.submit(int).result(TIMEOUT)
        futures = [session.submit(int) for _ in range(100)]
        pool.shutdown()
        assert [future.result(TIMEOUT) for future in futures] == [0] * 100
        with pytest.raises(RuntimeError, match="shutdown"):
            session.submit(int)
        with pytest.raises(RuntimeError, match="shutdown"):
            pool.session().submit(int)
        assert safe.submit(int).result(TIMEOUT) == 0


def test_a_lease_that_never_begins_fails_its_calls() -> None:
    with AdaptiveExecutor(initializer=fail) as pool:
        session = pool.session()
        error = session.submit(int).exception(TIMEOUT)
        assert error is not None
        assert "initializer" in str(error)


def test_a_session_that_nobody_holds_gives_its_thread_back() -> None:
    with AdaptiveExecutor() as pool:
        session = pool.session()
        session.submit(int).result(TIMEOUT)
        assert pool.stats().running == 1
        reference = weakref.ref(session)
        del session
        gone(reference, pool=pool)
        eventually(lambda: pool.stats().running == 0, "the thread is given back")


def test_an_idle_session_holds_nothing_of_its_last_call() -> None:
    with AdaptiveExecutor() as pool, pool.session() as session:
        thing = Thing()
        reference = weakref.ref(thing)
        session.submit(thing.method, thing).result(TIMEOUT)
        del thing
        gone(reference, pool=pool)


def test_what_runs_in_a_session_has_its_name() -> None:
    with AdaptiveExecutor() as pool, pool.session() as session, Gate() as gate:
        gate.hold(session)
        (task,) = pool.running()
        assert task.name.endswith("Gate")


def test_a_process_ends_with_an_open_session() -> None:
    script = """
        import ebbpool
        pool = ebbpool.AdaptiveExecutor()
        session = pool.session(finalizer=lambda: print("end"))
        session.submit(print, "call")
    """
    assert output_of(script) == ["call", "end"]


@needs_fork
def test_a_forked_child_uses_a_session_anew() -> None:
    script = (
        FORK
        + """
    pool = AdaptiveExecutor()
    session = pool.session()
    parent = session.submit(os.getpid).result(10)
    status = in_child(lambda: print(session.submit(os.getpid).result(10) == os.getpid() != parent))
    print(status, session.submit(os.getpid).result(10) == parent)
"""
    )
    assert output_of(script) == ["True", "0 True"]


def test_many_threads_use_one_session() -> None:
    with AdaptiveExecutor() as pool, pool.session() as session:
        counted = 0

        def count() -> None:
            nonlocal counted
            counted += 1

        def use() -> None:
            for _ in range(200):
                session.submit(count)

        for user in [Background(use) for _ in range(8)]:
            user.join()
        session.submit(os.getpid).result(TIMEOUT)
        assert counted == 1600
