"""Interpreter exit and fork: what is left of a pool, and what runs on. Each script has an interpreter of its own."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from support.common import COUNTS_REFERENCES, forked, output_of

HOOKS = """
    import os, signal, sys, threading
    hooks = {}
    def call(name):
        if name in hooks:
            hooks.pop(name)()
    # Before the import of ebbpool: so they run after its own hook before a fork, and before its own hooks after it.
    import random, threading, logging
    os.register_at_fork(
        before=lambda: call("before"),
        after_in_parent=lambda: call("parent"),
        after_in_child=lambda: call("child"),
    )
    def in_thread(call):
        outcome = []
        thread = threading.Thread(target=lambda: outcome.append(call()))
        thread.start()
        thread.join(10)
        return outcome[0]
    class Dying:
        def __del__(self):
            use()
"""
WAYS = {
    "the hook itself": "use()",
    "a signal handler": "(signal.signal(signal.SIGUSR1, lambda *_: use()), signal.raise_signal(signal.SIGUSR1))",
    "a finaliser": "Dying()",
    "another thread": "in_thread(use)",
}
PLAIN = """
    import os
    os.environ["EBBPOOL_PURE"] = "1"
"""
EXIT = """
    import atexit, sys, threading
    from ebbpool import AdaptiveExecutor
"""
EXITS = {
    "exit joins what runs and what is queued": (
        """
            from support.seams import crew
            begun, go = threading.Event(), threading.Event()
            def work(number):
                begun.set()
                assert go.wait(10)
                print(number, flush=True)
            join = crew.Crew.join
            crew.Crew.join = lambda each, timeout: (go.set(), join(each, timeout))
            pool = AdaptiveExecutor(1)
            for number in range(3):
                pool.submit(work, number)
            begun.wait(10)
            print("main is over", flush=True)
        """,
        ["main is over", "0", "1", "2"],
    ),
    "exit does not wait for who waits for a daemon pool": (
        """
            import asyncio
            begun = threading.Semaphore(0)
            def stay():
                begun.release()
                threading.Event().wait()
            pool, shared = AdaptiveExecutor(daemon=True), AdaptiveExecutor(daemon=True)
            loop, lane = asyncio.new_event_loop(), shared.lane("lane", limit=1)
            for executor in pool, shared, lane:
                executor.submit(stay)
                begun.acquire()
            # As a loop does at its end, in a thread that is no daemon.
            loop.set_default_executor(pool)
            ends = [pool.shutdown, lambda: loop._do_shutdown(loop.create_future()), lane.shutdown]
            ends.append(lambda: print(shared.wait_idle(), flush=True))
            threads = [threading.Thread(target=end) for end in ends]
            for thread in threads:
                thread.start()
            def all_ended():
                for thread in threads:
                    thread.join(10)
                print([thread.is_alive() for thread in threads], flush=True)
            threading.Thread(target=all_ended).start()
            print("main is over", flush=True)
        """,
        ["main is over", "False", "[False, False, False, False]"],
    ),
    "a loop leaves an abandoned call of a daemon pool behind": (
        """
            import asyncio, logging
            logging.disable()
            begun = threading.Event()
            def stay():
                begun.set()
                threading.Event().wait()
            async def main():
                loop = asyncio.get_running_loop()
                loop.set_default_executor(AdaptiveExecutor(daemon=True, leave_after=0.1))
                call = loop.run_in_executor(None, stay)
                begun.wait(10)
                call.cancel()
            asyncio.run(main())
            print("over")
        """,
        ["over"],
    ),
    "exit grows for what is queued": (
        """
            barrier = threading.Barrier(3)
            def meet():
                if barrier.wait(10) == 0:
                    print("the pool grows", flush=True)
            pool = AdaptiveExecutor(3)
            for _ in range(3):
                pool.submit(meet)
        """,
        ["the pool grows"],
    ),
    "exit does not wait for idle workers, and runs finalizers": (
        """
            def finalize():
                print("finalized", flush=True)
            for daemon in (False, True):
                hook = None if daemon else finalize
                pool = AdaptiveExecutor(1, keep_alive=600, min_workers=1, daemon=daemon, finalizer=hook)
                print(pool.submit(pow, 2, 3).result(10))
                globals()[f"kept_{daemon}"] = pool
        """,
        ["8", "8", "finalized"],
    ),
    "daemon leaves what computes": (
        # A thread in the middle of bytecode is where an interpreter that ends can go wrong.
        """
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
        """,
        ["over"],
    ),
    "submit in a task, and in an atexit handler": (
        """
            begun = threading.Event()
            def keep_submitting():
                while True:
                    try:
                        future = pool.submit(int)
                    except RuntimeError as error:
                        print(error, flush=True)
                        return
                    future.result(10)
                    begun.set()  # with two threads: CPython 3.12 starts none while it exits
            pool, unused = AdaptiveExecutor(2), AdaptiveExecutor()
            pool.submit(keep_submitting)
            begun.wait(10)
            def late():
                for each in (pool, unused, AdaptiveExecutor()):
                    try:
                        each.submit(print, "never")
                    except RuntimeError as error:
                        print(error)
            atexit.register(late)
        """,
        ["cannot schedule new futures after interpreter shutdown"] * 4,
    ),
    "a pool that a module forgets at exit": (
        # The executor is freed while the interpreter takes its modules apart: no noise.
        """
            class Holder:
                def __init__(self):
                    self.pool = AdaptiveExecutor(keep_alive=600)
                    self.me = self
                def __del__(self):
                    self.pool.shutdown(wait=False)
            holder = Holder()
            print(holder.pool.submit(pow, 2, 3).result(10))
            sys.modules["keep"] = holder
        """,
        ["8"],
    ),
}
FORKS: dict[str, tuple[Any, ...]] = {
    "fork with an idle pool, and one that was shut down": (
        """
            pool, closed = AdaptiveExecutor(4, keep_alive=600), AdaptiveExecutor(2)
            print(pool.submit(pow, 2, 3).result(10), closed.submit(int).result(10))
            assert pool.wait_idle(10)
            closed.shutdown()
            def check():
                stats = pool.stats()
                assert (stats.workers, stats.idle, stats.queued, len(pool._threads)) == (0, 0, 0, 0), stats
                assert stats.started == stats.retired == 1, stats
                barrier = threading.Barrier(4)
                print(sorted(future.result(10) for future in [pool.submit(barrier.wait, 10) for _ in range(4)]))
                assert pool.wait_idle(10)
                pool.shutdown()
                try:
                    closed.submit(int)
                except RuntimeError as error:
                    print(error)
                closed.shutdown()
            print(in_child(check))
            print(pool.submit(pow, 2, 4).result(10))
        """,
        ["8 0", "[0, 1, 2, 3]", "cannot schedule new futures after shutdown", "0", "16"],
    ),
    "fork while the switch interval is short": (
        # The child has no thread that would put back what was there before.
        """
            from support.seams import interval
            before = sys.getswitchinterval()
            interval.want(interval, True)
            print(sys.getswitchinterval() < before)
            def check():
                print(sys.getswitchinterval() == before)
            print(in_child(check), sys.getswitchinterval() < before)
            interval.want(interval, False)
            print(sys.getswitchinterval() == before)
        """,
        ["True", "True", "0 True", "True"],
    ),
    "fork while others submit": (
        # The child must not inherit a lock that another thread held.
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
        ["{0}"],
    ),
    "fork while the ceiling is lifted": (
        """
            from support import seams
            pool = AdaptiveExecutor(1)
            gate, begun = threading.Event(), threading.Event()
            def wait(timeout):
                begun.set()
                return gate.wait(timeout)
            lifting = seams.lift(pool, wait, 20)
            assert begun.wait(10)
            def check():
                begun.clear()
                futures = [pool.submit(wait, 20), pool.submit(int)]
                assert begun.wait(10)
                print(seams.engine_of(pool).staff.off, futures[1].done())
                gate.set()
                print(futures[1].result(10))
            print(in_child(check))
            gate.set()
            print(lifting.result(10))
        """,
        ["0 False", "0", "0", "True"],
    ),
    "a child that ends like any interpreter": (
        # The parent's workers are not there to be joined, the child's are.
        """
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
        """,
        ["from the child", "7"],
    ),
    "a task submitted, and a pool made by another thread, in a hook": (
        # The task runs in the parent, and fails in the child.
        """
            pool = AdaptiveExecutor(1)
            gate = threading.Event()
            pool.submit(gate.wait, 20)
            futures, pools = [], []
            def make():
                pools.append(AdaptiveExecutor(1, keep_alive=600))
                return pools[0].submit(pow, 2, 3).result(10)
            def before():
                futures.append(pool.submit(print, "ran", flush=True))
                print(in_thread(make), flush=True)
            hooks["before"] = before
            def check():
                try:
                    futures[0].result(10)
                except BrokenThreadPool as error:
                    print(error)
                print(pools[0].submit(pow, 2, 4).result(10))
            print(in_child(check), flush=True)
            gate.set()
            futures[0].result(10)
        """,
        ["8", "the process was forked; this call was left with the parent", "16", "0", "ran"],
        HOOKS,
    ),
    "a fork does not wait for a thread in the middle of a step": (
        # Plain, a thread may be anywhere in a step. Here one is stopped with a task in its hands that is on no queue,
        # and another one holds what futures that are made by hand need.
        """
            from ebbpool import Future
            from support import seams
            pool = AdaptiveExecutor(2, max_queue=100)
            lane = pool.lane("some", limit=1)
            assert lane.submit(pow, 2, 3).result(10) == 8
            assert pool.wait_idle(10)
            inside, go = threading.Event(), threading.Event()
            engine = seams.engine_of(pool)
            queue = engine.backlog.queue
            popleft = queue.popleft
            def slow():
                taken = popleft()
                inside.set()
                assert go.wait(20)
                return taken
            queue.popleft = slow
            future = lane.submit(pow, 2, 4)
            assert inside.wait(10)
            assert engine.mutex.acquire(False) is False
            def hold():
                with seams.orphans.mutex:
                    held.set()
                    assert go.wait(20)
            held = threading.Event()
            threading.Thread(target=hold).start()
            assert held.wait(10)
            def check():
                future_by_hand = Future()
                future_by_hand.set_result(8)
                print(future_by_hand.result(10))
                try:
                    future.result(10)
                except BrokenThreadPool as error:
                    print(error)
                stats = lane.stats()
                assert (stats.running, stats.queued) == (0, 0), stats
                print(lane.submit(pow, 2, 5).result(10))
                barrier = threading.Barrier(2)
                print(sorted(call.result(10) for call in [pool.submit(barrier.wait, 10) for _ in range(2)]))
                pool.shutdown(timeout=10)
            print(in_child(check))
            queue.popleft = popleft
            go.set()
            print(future.result(10))
        """,
        ["8", "the process was forked; this call was left with the parent", "32", "[0, 1]", "0", "16"],
        PLAIN,
    ),
    "a process that has shut down its pools forks without a warning": (
        """
            import warnings
            warnings.simplefilter("error")
            def threads():
                # The system may take a moment to strike off a thread that has been joined, and a fork counts there.
                while sys.platform == "linux" and len(os.listdir("/proc/self/task")) > 1:
                    os.sched_yield()
                return threading.active_count()
            def check():
                with AdaptiveExecutor() as pool:
                    print(pool.submit(pow, 2, 4).result(10))
                print(threads())
            for _ in range(3):
                with AdaptiveExecutor(4) as pool:
                    print(sum(pool.map(abs, range(10))))
                print(threads())
                print(in_child(check))
        """,
        ["45", "1", "16", "1", "0"] * 3,
    ),
    "a fork in the thread itself": (
        # In the child that thread is not the timekeeper any more.
        """
            from support import seams
            threading.excepthook = lambda given: print(given.exc_type, flush=True)
            pool = AdaptiveExecutor(2, keep_alive=600)
            pool.submit(int).result(10)
            forked = threading.Event()
            def fork():
                global pid
                pid = os.fork()
                if pid == 0:
                    def child():
                        barrier = threading.Barrier(2)
                        calls = [pool.submit(barrier.wait, 10) for _ in range(2)]
                        print(sorted(call.result(10) for call in calls), flush=True)
                        os._exit(0)
                    threading.Thread(target=child).start()
                forked.set()
            seams.in_timekeeper(fork)
            assert forked.wait(10)
            print(os.waitpid(pid, 0)[1], flush=True)
        """,
        ["[0, 1]", "0"],
    ),
}
"""A script, what it prints, and what it begins with before the rest."""


@pytest.mark.parametrize(("script", "printed"), EXITS.values(), ids=EXITS)
def test_exit(script: str, printed: list[str]) -> None:
    if "grows" in script and sys.version_info[:2] == (3, 12):
        pytest.skip("CPython 3.12 starts no thread once it has begun to exit")
    assert output_of(script, EXIT) == printed


@pytest.mark.parametrize("of_fork", FORKS.values(), ids=FORKS)
def test_fork(of_fork: tuple[Any, ...]) -> None:
    script, printed, *prelude = of_fork
    assert forked(script, *prelude) == printed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hook", ["before", "parent", "child"])
def test_a_pool_may_be_used_and_waited_for_in_the_hooks(hook: str, way: str) -> None:
    """Even in those that were registered before ebbpool's own: in the child a pool is as new there already."""
    if not COUNTS_REFERENCES and way in ("a finaliser", "another thread"):
        pytest.skip("PyPy finalises later, and may run no other thread within its hooks")
    lines = forked(
        f"""
    from ebbpool import sync
    pool = AdaptiveExecutor(2, thread_stack_size=1 << 19)
    lane = pool.lane("some", limit=1)
    warm = AdaptiveExecutor(2, min_workers=2, keep_alive=600)
    assert warm.submit(pow, 2, 3).result(10) == 8 and warm.wait_idle(10)
    semaphore = sync.Semaphore(1)
    used = []
    def use():
        with semaphore:
            assert pool.submit(pow, 2, 3).result(10) == warm.submit(pow, 2, 3).result(10) == 8
        assert lane.submit(pow, 2, 3).result(10) == 8
        assert pool.submit_later(0.001, pow, 2, 3).result(10) == 8
        with AdaptiveExecutor(1) as other:
            used.append(other.submit(pow, 2, 3).result(10))
    hooks["{hook}"] = lambda: {WAYS[way]}
    def check():
        hooks.clear()
        print(pool.submit(pow, 2, 4).result(10), semaphore.acquire(timeout=10))
        print(lane.submit(pow, 2, 5).result(10), used)
        print(in_child(lambda: print(pool.submit(pow, 2, 6).result(10))))
        pool.shutdown(timeout=10)
    print(in_child(check))
    pool.shutdown(timeout=10)
    print(used)
    """,
        HOOKS,
    )
    in_child, in_parent = ["[]" if hook == other else "[8]" for other in ("parent", "child")]
    assert lines == ["16 True", f"32 {in_child}", "64", "0", "0", in_parent]
