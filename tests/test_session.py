"""Sessions, and what others make under `install(executors=True)`: threads of the pool for as long as it takes."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, ThreadPoolExecutor, wait
from typing import Any

import pytest
from support.common import (
    TIMEOUT,
    Background,
    Boom,
    Gate,
    Thing,
    eventually,
    fail,
    forked,
    gone,
    output_of,
    together,
    wait_for_idle,
)

import ebbpool
from ebbpool import AdaptiveExecutor, Session

KINDS: dict[str, Callable[[AdaptiveExecutor], ThreadPoolExecutor]] = {
    "session": lambda pool: pool.session(),
    "one": lambda pool: ThreadPoolExecutor(1, "mine"),
    "several": lambda pool: ThreadPoolExecutor(3, "mine"),
}


@pytest.fixture
def pool() -> Iterator[AdaptiveExecutor]:
    with AdaptiveExecutor(4, "pool") as pool, ebbpool.install(pool, executors=True):
        yield pool


@pytest.fixture(params=KINDS)
def make(pool: AdaptiveExecutor, request: pytest.FixtureRequest) -> Callable[[], Any]:
    return lambda: KINDS[request.param](pool)


@pytest.fixture
def executor(make: Callable[[], Any]) -> Any:
    return make()


def on(pool: AdaptiveExecutor) -> bool:
    """Tell whether a thread of the pool's runs this."""
    return threading.current_thread().name in {task.thread for task in pool.running()}


def name() -> str:
    return threading.current_thread().name


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


@pytest.mark.parametrize("limit", [1, 3])
def test_one_that_is_made_has_threads_of_the_pool_and_names_of_its_own(pool: AdaptiveExecutor, limit: int) -> None:
    meeting = threading.Barrier(limit)

    def met(_: int) -> str:
        meeting.wait(TIMEOUT)
        return name()

    with ThreadPoolExecutor(limit, "mine") as executor:
        assert isinstance(executor, ThreadPoolExecutor)
        assert executor.submit(on, pool).result(TIMEOUT)
        assert set(executor.map(met, range(limit * 4))) == {f"mine_{number}" for number in range(limit)}
    assert pool.submit(name).result(TIMEOUT).startswith("pool_")
    with ThreadPoolExecutor() as executor:
        assert executor.submit(name).result(TIMEOUT).startswith("ThreadPoolExecutor")


def test_those_made_elsewhere_are_left_alone() -> None:
    class Own(ThreadPoolExecutor):
        pass

    with ThreadPoolExecutor(2) as before, AdaptiveExecutor() as pool:
        with ebbpool.install(pool):
            assert not type(ThreadPoolExecutor(2)).__module__.startswith("ebbpool")
        with ebbpool.install(pool, executors=True), Own(2) as own, AdaptiveExecutor() as other:
            for executor in (own, before, other):
                assert not executor.submit(on, pool).result(TIMEOUT)
            with pytest.raises(ValueError, match="max_workers"):
                ThreadPoolExecutor(0)
        with ThreadPoolExecutor(2) as after:
            assert type(after) is ThreadPoolExecutor
            assert not after.submit(on, pool).result(TIMEOUT)


@pytest.mark.parametrize("limit", [1, 3])
def test_the_initializer_has_run_in_each_thread(pool: AdaptiveExecutor, limit: int) -> None:
    here = threading.local()
    with ThreadPoolExecutor(limit, initializer=setattr, initargs=(here, "mark", "here")) as executor:
        assert set(executor.map(lambda _: here.mark, range(20))) == {"here"}
    with ThreadPoolExecutor(limit, "", setattr, (here, "mark", "again")) as executor:
        assert set(executor.map(lambda _: here.mark, range(20))) == {"again"}
    with ThreadPoolExecutor(limit, initializer=fail) as executor:
        with pytest.raises(BrokenExecutor):
            executor.submit(int).result(TIMEOUT)
        with pytest.raises(BrokenExecutor):
            executor.submit(int)
    assert pool.submit(int).result(TIMEOUT) == 0


def test_the_limit_holds_and_what_runs_has_its_name_and_what_libraries_read(
    pool: AdaptiveExecutor, executor: Any
) -> None:
    limit = executor._max_workers
    with Gate() as gate:
        futures = [executor.submit(gate) for _ in range(3 * limit)]
        gate.await_begun(limit)
        assert gate.nobody_begins()
        assert {task.name for task in pool.running()} == {"support.common.Gate"}
        assert (len(executor._threads), executor._work_queue.qsize()) == (limit, 2 * limit)
        assert (executor._shutdown, executor._broken) == (False, False)
        gate.open()
        assert not wait(futures, TIMEOUT).not_done
    assert gate.peak == limit
    if "_max_workers" in vars(executor):
        assert executor._thread_name_prefix == "mine"


def test_many_threads_use_one(executor: Any) -> None:
    futures = [future for made in together(lambda _: [executor.submit(int) for _ in range(200)], 8) for future in made]
    assert [future.result(TIMEOUT) for future in futures] == [0] * 1600


def test_they_do_not_count_towards_the_ceiling() -> None:
    with AdaptiveExecutor(1) as pool, ebbpool.install(pool, executors=True), Gate() as gate:
        one, two, other = (KINDS[kind](pool) for kind in ("session", "session", "one"))
        gate.hold(pool)
        # Behind a task that nobody has room for.
        waits = pool.submit(int)
        nested = one.submit(lambda: two.submit(lambda: other.submit(int).result(TIMEOUT)).result(TIMEOUT))
        assert nested.result(TIMEOUT) == 0
        assert not waits.done()
        gate.open()


def test_tasks_of_the_pool_make_executors_and_wait_for_them(pool: AdaptiveExecutor) -> None:
    def tree(depth: int) -> int:
        with ThreadPoolExecutor(2) as executor:
            return sum(executor.map(tree if depth > 1 else abs, [depth - 1 if depth > 1 else 1] * 2))

    assert [future.result(TIMEOUT) for future in [pool.submit(tree, 3) for _ in range(20)]] == [8] * 20


def test_more_may_meet_than_the_pool_has_threads(pool: AdaptiveExecutor) -> None:
    meeting = threading.Barrier(30)
    with ThreadPoolExecutor(20) as one, ThreadPoolExecutor(10) as other:
        waiting = [executor.submit(meeting.wait, TIMEOUT) for executor in [one] * 20 + [other] * 10]
        assert sorted(future.result(TIMEOUT) for future in waiting) == [*range(30)]
        assert one.submit(lambda: one.submit(int).result(TIMEOUT)).result(TIMEOUT) == 0


def test_all_of_the_pool_may_wait_for_one_in_ways_that_the_pool_does_not_see(
    pool: AdaptiveExecutor, executor: Any
) -> None:
    def waits() -> bool:
        done = threading.Event()
        executor.submit(done.set)
        return done.wait(TIMEOUT)

    assert all(future.result(TIMEOUT) for future in [pool.submit(waits) for _ in range(30)])


def test_a_flood_does_not_shut_out_the_pools_own_tasks(pool: AdaptiveExecutor) -> None:
    stop = threading.Event()
    executor = ThreadPoolExecutor(2)

    def again() -> None:
        time.thread_time()
        if not stop.is_set():
            executor.submit(again)

    for _ in range(50):
        executor.submit(again)
    try:
        assert [pool.submit(int).result(TIMEOUT) for _ in range(20)] == [0] * 20
    finally:
        stop.set()
        executor.shutdown()


def test_errors(executor: Any) -> None:
    with pytest.raises(Boom):
        executor.submit(fail).result(TIMEOUT)
    with pytest.raises(TypeError, match="fn must be callable, not 3"):
        executor.submit(3)
    with pytest.raises(RuntimeError, match="a call cannot wait for its own executor to shut down"):
        executor.submit(executor.shutdown).result(TIMEOUT)


def test_shutdown_waits_for_what_is_queued(pool: AdaptiveExecutor, executor: Any) -> None:
    with Gate() as gate:
        held = gate.hold(executor, executor._max_workers)
        queued, last = executor.submit(int), executor.submit(int)
        assert queued.cancel()
        shutting = Background(executor.shutdown)
        eventually(lambda: executor._shutdown)
        assert shutting.still_waits()
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            executor.submit(int)
        gate.open()
        shutting.join()
    assert held.done()
    assert last.result(0) == 0
    executor.shutdown()
    assert pool.submit(int).result(TIMEOUT) == 0


def test_shutdown_may_cancel_what_is_queued(executor: Any) -> None:
    with Gate() as gate:
        held = gate.hold(executor, executor._max_workers)
        last = executor.submit(int)
        executor.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(CancelledError):
            last.result(TIMEOUT)
        gate.open()
        assert held.result(TIMEOUT) is None


def test_a_pool_that_is_shut_down_ends_them(pool: AdaptiveExecutor, make: Callable[[], Any]) -> None:
    executor, never_used = make(), make()
    with AdaptiveExecutor() as other:
        safe = other.session()
        safe.submit(int).result(TIMEOUT)
        futures = [executor.submit(int) for _ in range(100)]
        pool.shutdown()
        assert [future.result(TIMEOUT) for future in futures] == [0] * 100
        for ended in (executor, never_used, pool.session()):
            with pytest.raises(RuntimeError, match="shutdown"):
                ended.submit(int)
        assert safe.submit(int).result(TIMEOUT) == 0
    with ThreadPoolExecutor(2) as own:
        assert own.submit(int).result(TIMEOUT) == 0, "what is made now has threads of its own"


def test_a_lease_that_never_begins_fails_its_calls() -> None:
    with AdaptiveExecutor(initializer=fail) as pool:
        error = pool.session().submit(int).exception(TIMEOUT)
        assert "initializer" in str(error)


def test_one_that_nobody_holds_finishes_its_work(pool: AdaptiveExecutor, make: Callable[[], Any]) -> None:
    with Gate() as gate:
        executor = make()
        futures = [executor.submit(gate) for _ in range(5)]
        gate.await_begun()
        reference = weakref.ref(executor)
        del executor
        gone(reference, pool=pool)
    assert not wait(futures, TIMEOUT).not_done
    wait_for_idle(pool)  # the threads are given back


def test_one_that_is_idle_holds_nothing_of_its_last_call(executor: Any) -> None:
    def fails(_: Thing) -> None:
        raise Boom

    for call in (Thing.method, fails):
        thing = Thing()
        reference = weakref.ref(thing)
        wait([executor.submit(call, thing)], TIMEOUT)
        del thing
        gone(reference, pool=executor)


def test_what_is_queued_when_the_process_ends_still_runs() -> None:
    script = """
        import atexit
        from concurrent.futures import ThreadPoolExecutor
        import ebbpool
        pool = ebbpool.install(executors=True).executor
        done = []
        atexit.register(lambda: print(len(done)))
        session = pool.session(finalizer=lambda: print("end"))
        for executor in (session, ThreadPoolExecutor(1), ThreadPoolExecutor(2)):
            for _ in range(500):
                executor.submit(done.append, None)
    """
    assert output_of(script) == ["end", "1500"]


def test_a_forked_child_uses_them_anew() -> None:
    script = """
        import ebbpool
        from concurrent.futures import ThreadPoolExecutor

        pool = ebbpool.install(executors=True).executor
        all_of_them = [pool.session(), ThreadPoolExecutor(1), ThreadPoolExecutor(2)]
        ends = False

        def again(executor):
            if not ends:
                executor.submit(again, executor)

        def check():
            assert {executor.submit(os.getpid).result(10) for executor in all_of_them} == {os.getpid()}

        for executor in all_of_them:
            executor.submit(again, executor)
        for _ in range(5):
            assert in_child(check) == 0
        check()
        ends = True
        print("done")
    """
    assert forked(script)[-1] == "done"
