"""Interpreter exit, forgotten executors and fork. What ends an interpreter runs in one of its own."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest
from support.common import FORK, LONG, TIMEOUT, Gate, all_end, collected, needs_fork, output_of

from ebbpool import AdaptiveExecutor


def test_exit_joins_what_runs_and_what_is_queued() -> None:
    lines = output_of("""
        import threading, time
        from ebbpool import AdaptiveExecutor
        begun, go = threading.Event(), threading.Event()
        def work(number):
            begun.set()
            go.wait(10)
            time.sleep(0.1)  # the work
            print(number, flush=True)
        pool = AdaptiveExecutor(1)
        for number in range(3):
            pool.submit(work, number)
        begun.wait(10)
        print("main is over", flush=True)
        go.set()
    """)
    assert lines == ["main is over", "0", "1", "2"]


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="CPython 3.12 starts no thread once it has begun to exit")
def test_exit_grows_for_what_is_queued() -> None:
    lines = output_of("""
        import threading
        from ebbpool import AdaptiveExecutor
        barrier = threading.Barrier(3)
        def meet():
            if barrier.wait(10) == 0:
                print("met", flush=True)
        pool = AdaptiveExecutor(3)
        for _ in range(3):
            pool.submit(meet)
    """)
    assert lines == ["met"]


def test_exit_finishes_nested_tasks() -> None:
    lines = output_of("""
        import threading
        from ebbpool import AdaptiveExecutor
        pool = AdaptiveExecutor(1)
        begun, go = threading.Event(), threading.Event()
        def parent():
            child = pool.submit(pow, 2, 3)
            begun.set()
            print(child.result(10), flush=True)
        pool.submit(parent)
        begun.wait(10)
    """)
    assert lines == ["8"]


def test_exit_does_not_wait_for_idle_workers() -> None:
    lines = output_of("""
        from ebbpool import AdaptiveExecutor
        for daemon in (False, True):
            pool = AdaptiveExecutor(2, keep_alive=600, min_workers=2, daemon=daemon)
            print(pool.submit(pow, 2, 3).result(10))
            globals()[f"kept_{daemon}"] = pool
    """)
    assert lines == ["8", "8"]


def test_exit_with_a_pool_that_was_never_used() -> None:
    lines = output_of("""
        from ebbpool import AdaptiveExecutor
        pool = AdaptiveExecutor()
    """)
    assert lines == []


def test_exit_runs_finalizers() -> None:
    lines = output_of("""
        from ebbpool import AdaptiveExecutor
        pool = AdaptiveExecutor(2, keep_alive=600, finalizer=lambda: print("finalized", flush=True))
        pool.submit(int).result(10)
    """)
    assert lines == ["finalized"]


def test_daemon_leaves_what_runs() -> None:
    lines = output_of("""
        import threading
        from ebbpool import AdaptiveExecutor
        begun = threading.Event()
        def forever():
            begun.set()
            threading.Event().wait()
        pool = AdaptiveExecutor(2, daemon=True)
        pool.submit(forever)
        begun.wait(10)
        print(all(thread.daemon for thread in pool._threads))
    """)
    assert lines == ["True"]


def test_daemon_leaves_what_computes() -> None:
    """A thread in the middle of bytecode is where an interpreter that ends can go wrong."""
    lines = output_of("""
        import threading
        from ebbpool import AdaptiveExecutor
        begun = threading.Semaphore(0)
        def forever():
            begun.release()
            while True:
                pass
        pool = AdaptiveExecutor(2, daemon=True)
        for _ in range(4):
            pool.submit(forever)
        begun.acquire(timeout=10)
        begun.acquire(timeout=10)
        print("over")
    """)
    assert lines == ["over"]


def test_submit_in_an_atexit_handler() -> None:
    lines = output_of("""
        import atexit
        from ebbpool import AdaptiveExecutor
        pool, unused = AdaptiveExecutor(), AdaptiveExecutor()
        pool.submit(int).result(10)
        def late():
            for each in (pool, unused, AdaptiveExecutor()):
                try:
                    each.submit(print, "never")
                except RuntimeError as error:
                    print(error)
        atexit.register(late)
    """)
    assert lines == ["cannot schedule new futures after interpreter shutdown"] * 3


def test_a_task_that_keeps_submitting_is_stopped_at_exit() -> None:
    lines = output_of("""
        import threading
        from ebbpool import AdaptiveExecutor
        begun = threading.Event()
        def keep_submitting():
            while True:
                try:
                    future = pool.submit(int)
                except RuntimeError as error:
                    print(error, flush=True)
                    return
                begun.set()
                future.result(10)
        pool = AdaptiveExecutor(2)
        pool.submit(keep_submitting)
        begun.wait(10)
    """)
    assert lines == ["cannot schedule new futures after interpreter shutdown"]


def test_exit_by_exception_joins_too() -> None:
    lines = output_of("""
        import sys, threading
        from ebbpool import AdaptiveExecutor
        main_left = threading.Event()
        def work():
            main_left.wait(10)
            print("worked", flush=True)
        pool = AdaptiveExecutor()
        pool.submit(work)
        main_left.set()
        sys.exit(0)
    """)
    assert lines == ["worked"]


def test_a_pool_that_a_module_forgets_at_exit() -> None:
    """The executor is freed while the interpreter takes its modules apart: no noise."""
    lines = output_of("""
        import sys
        from ebbpool import AdaptiveExecutor
        class Holder:
            def __init__(self):
                self.pool = AdaptiveExecutor(keep_alive=600)
                self.me = self
            def __del__(self):
                self.pool.shutdown(wait=False)
        holder = Holder()
        print(holder.pool.submit(pow, 2, 3).result(10))
        sys.modules["keep"] = holder
    """)
    assert lines == ["8"]


def test_a_forgotten_executor_ends_by_itself() -> None:
    pool = AdaptiveExecutor(3, min_workers=3, keep_alive=LONG)
    with Gate() as gate:
        gate.hold(pool, 3)
    reference = weakref.ref(pool)
    assert pool.wait_idle(TIMEOUT)
    del pool
    collected(reference)
    assert all_end(gate.threads)


def test_a_forgotten_executor_finishes_what_it_has_taken() -> None:
    pool = AdaptiveExecutor(2, keep_alive=LONG)
    with Gate() as gate:
        futures = [pool.submit(gate, number) for number in range(6)]
        gate.await_begun(2)
        reference = weakref.ref(pool)
        del pool
        collected(reference)
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == list(range(6))
    assert all_end(gate.threads)


def test_a_forgotten_executor_still_grows_for_what_it_has_taken() -> None:
    pool = AdaptiveExecutor(3, keep_alive=LONG)
    barrier = threading.Barrier(3)
    futures = [pool.submit(barrier.wait, TIMEOUT) for _ in range(3)]
    del pool
    gc.collect()
    assert sorted(future.result(TIMEOUT) for future in futures) == [0, 1, 2]


def test_an_executor_that_is_in_use_by_its_task_alone_is_not_forgotten() -> None:
    with Gate() as gate:
        pool = AdaptiveExecutor(1, keep_alive=LONG)

        def task(pool: AdaptiveExecutor) -> object:
            gate()
            return pool.submit(pow, 2, 3)

        future = pool.submit(task, pool)
        gate.await_begun()
        reference = weakref.ref(pool)
        del pool
        gc.collect()
        assert reference() is not None
        gate.open()
        inner = future.result(TIMEOUT)
        assert inner.result(TIMEOUT) == 8  # type: ignore[attr-defined]
    collected(reference)
    assert all_end(gate.threads)


@needs_fork
def test_fork_with_an_idle_pool() -> None:
    lines = output_of(
        """
    pool = AdaptiveExecutor(4, keep_alive=600)
    print(pool.submit(pow, 2, 3).result(10))
    assert pool.wait_idle(10)
    def check():
        stats = pool.stats()
        assert (stats.workers, stats.idle, stats.queued, len(pool._threads)) == (0, 0, 0, 0), stats
        assert stats.started == stats.retired == 1, stats
        barrier = threading.Barrier(4)
        print(sorted(future.result(10) for future in [pool.submit(barrier.wait, 10) for _ in range(4)]))
        assert pool.wait_idle(10)
        pool.shutdown()
    print(in_child(check))
    print(pool.submit(pow, 2, 4).result(10))
    """,
        FORK,
    )
    assert lines == ["8", "[0, 1, 2, 3]", "0", "16"]


@needs_fork
def test_fork_with_a_busy_pool() -> None:
    lines = output_of(
        """
    pool = AdaptiveExecutor(1)
    gate, begun = threading.Event(), threading.Event()
    def work():
        begun.set()
        assert gate.wait(10)
        return "ran on"
    done = pool.submit(pow, 2, 3)
    done.result(10)
    running = pool.submit(work)
    queued = pool.submit(pow, 3, 2)
    called = []
    queued.add_done_callback(called.append)
    begun.wait(10)
    def check():
        for future in (running, queued):
            try:
                future.result(10)
            except BrokenThreadPool as error:
                print(type(error).__name__, "fork" in str(error))
        print(done.result(0), running.done(), queued.done(), running.cancel(), pool._work_queue.qsize())
        print(pool.submit(pow, 2, 5).result(10))
        pool.shutdown(timeout=10)
    print(in_child(check))
    gate.set()
    print(running.result(10), queued.result(10))
    """,
        FORK,
    )
    assert lines == [
        "BrokenThreadPool True", "BrokenThreadPool True", "8 True True False 0", "32", "0", "ran on 9",
    ]  # fmt: skip


@needs_fork
def test_fork_inside_a_task() -> None:
    lines = output_of(
        """
    pool = AdaptiveExecutor(2)
    def check():
        print(pool.submit(pow, 2, 3).result(10))
    print(pool.submit(in_child, check).result(10))
    print(pool.submit(pow, 2, 4).result(10))
    """,
        FORK,
    )
    assert lines == ["8", "0", "16"]


@needs_fork
def test_fork_while_others_submit() -> None:
    """The child must not inherit a lock that another thread held."""
    lines = output_of(
        """
    pool = AdaptiveExecutor(4, max_queue=10)
    over = threading.Event()
    def submit():
        while not over.is_set():
            pool.submit(int).result(10)
    threads = [threading.Thread(target=submit) for _ in range(3)]
    for thread in threads:
        thread.start()
    def check():
        assert pool.submit(pow, 2, 3).result(10) == 8
        AdaptiveExecutor(2).submit(int).result(10)
    print({in_child(check) for _ in range(20)})
    over.set()
    for thread in threads:
        thread.join(10)
    """,
        FORK,
    )
    assert lines == ["{0}"]


@needs_fork
def test_fork_of_a_pool_that_was_shut_down() -> None:
    lines = output_of(
        """
    pool = AdaptiveExecutor(2)
    pool.submit(int).result(10)
    pool.shutdown()
    def check():
        try:
            pool.submit(int)
        except RuntimeError as error:
            print(error)
        pool.shutdown()
    print(in_child(check))
    """,
        FORK,
    )
    assert lines == ["cannot schedule new futures after shutdown", "0"]


@needs_fork
def test_a_child_that_ends_like_any_interpreter() -> None:
    """The parent's workers are not there to be joined, the child's are."""
    lines = output_of("""
    import os, sys, threading
    from ebbpool import AdaptiveExecutor
    pool = AdaptiveExecutor(2)
    gate, begun = threading.Event(), threading.Event()
    pool.submit(lambda: (begun.set(), gate.wait(20)))
    begun.wait(10)
    pid = os.fork()
    if pid == 0:
        pool.submit(print, "from the child", flush=True)
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    gate.set()
    """)
    assert lines == ["from the child", "7"]
