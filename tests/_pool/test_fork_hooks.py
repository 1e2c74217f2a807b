"""What runs while the process forks: other hooks, finalisers, signal handlers, other threads."""

from __future__ import annotations

import pytest
from support.common import COUNTS_REFERENCES, FORK, needs_fork, output_of, run_script

pytestmark = needs_fork

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
"""
WAYS = {
    "the hook itself": "use()",
    "a signal handler": "(signal.signal(signal.SIGUSR1, lambda *_: use()), signal.raise_signal(signal.SIGUSR1))",
    "a finaliser": "Dying()",
    "another thread": "in_thread(use)",
}
USES = """
    class Dying:
        def __del__(self):
            use()
"""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hook", ["before", "parent"])
def test_a_pool_may_be_used_and_waited_for_in_the_hooks(hook: str, way: str) -> None:
    if not COUNTS_REFERENCES and way in ("a finaliser", "another thread"):
        pytest.skip("PyPy finalises later, and may run no other thread within its hooks")
    lines = output_of(
        f"""
    from ebbpool import sync
    pool = AdaptiveExecutor(2, thread_stack_size=1 << 19)
    lane = pool.lane("some", limit=1)
    semaphore = sync.Semaphore(1)
    used = []
    def use():
        with semaphore:
            assert pool.submit(pow, 2, 3).result(10) == 8
        assert lane.submit(pow, 2, 3).result(10) == 8
        assert pool.submit_later(0.001, pow, 2, 3).result(10) == 8
        with AdaptiveExecutor(1) as other:
            used.append(other.submit(pow, 2, 3).result(10))
    hooks["{hook}"] = lambda: {WAYS[way]}
    def check():
        print(pool.submit(pow, 2, 4).result(10), semaphore.acquire(timeout=10))
        print(lane.submit(pow, 2, 5).result(10))
        pool.shutdown(timeout=10)
    print(in_child(check))
    pool.shutdown(timeout=10)
    print(used)
    """,
        HOOKS + FORK + USES,
    )
    assert lines == ["16 True", "32", "0", "[8]"]


def test_a_task_submitted_in_a_hook_runs_in_the_parent_and_fails_in_the_child() -> None:
    lines = output_of(
        """
    pool = AdaptiveExecutor(1)
    gate = threading.Event()
    pool.submit(gate.wait, 20)
    futures = []
    hooks["before"] = lambda: futures.append(pool.submit(print, "ran", flush=True))
    def check():
        try:
            futures[0].result(10)
        except BrokenThreadPool as error:
            print(error)
    print(in_child(check), flush=True)
    gate.set()
    futures[0].result(10)
    """,
        HOOKS + FORK,
    )
    assert lines == ["the process was forked; this call was left with the parent", "0", "ran"]


def test_a_pool_is_as_new_in_the_hooks_of_the_child_already() -> None:
    """Even in those that were registered before ebbpool's own."""
    lines = output_of(
        """
    pool = AdaptiveExecutor(2, min_workers=2, keep_alive=600)
    print(pool.submit(pow, 2, 3).result(10))
    assert pool.wait_idle(10)
    futures = []
    def use():
        futures.append(pool.submit(pow, 2, 4))
        futures.append(AdaptiveExecutor(1).submit(pow, 2, 5))
        print([future.result(10) for future in futures])
    hooks["child"] = use
    def check():
        print([future.result(0) for future in futures], pool.submit(pow, 2, 6).result(10))
        print(in_child(lambda: print(pool.submit(pow, 2, 7).result(10))))
    print(in_child(check))
    """,
        HOOKS + FORK,
    )
    assert lines == ["8", "[16, 32]", "[16, 32] 64", "128", "0", "0"]


def test_a_pool_that_another_thread_makes_while_the_process_forks() -> None:
    lines = output_of(
        """
    pools = []
    def make():
        pools.append(AdaptiveExecutor(1, keep_alive=600))
        return pools[0].submit(pow, 2, 3).result(10)
    hooks["before"] = lambda: print(in_thread(make), flush=True)
    def check():
        print(pools[0].submit(pow, 2, 4).result(10))
    print(in_child(check))
    """,
        HOOKS + FORK,
    )
    assert lines == ["8", "16", "0"]


PLAIN = """
    import os
    os.environ["EBBPOOL_PURE"] = "1"
"""


def test_a_fork_does_not_wait_for_a_thread_in_the_middle_of_a_step() -> None:
    """Plain, a thread may be anywhere in a step. Here it is stopped with a task in its hands that is on no queue."""
    lines = output_of(
        """
    pool = AdaptiveExecutor(2, max_queue=100)
    lane = pool.lane("some", limit=1)
    assert lane.submit(pow, 2, 3).result(10) == 8
    assert pool.wait_idle(10)
    inside, go = threading.Event(), threading.Event()
    dequeue = pool._pool.dequeue
    def slow():
        taken = dequeue()
        inside.set()
        assert go.wait(20)
        return taken
    pool._pool.dequeue = slow
    future = lane.submit(pow, 2, 4)
    assert inside.wait(10)
    assert pool._pool.mutex.acquire(False) is False
    def check():
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
    pool._pool.dequeue = dequeue
    go.set()
    print(future.result(10))
    """,
        PLAIN + FORK,
    )
    assert lines == ["the process was forked; this call was left with the parent", "32", "[0, 1]", "0", "16"]


def test_what_is_lent_to_a_lane_is_not_lent_to_the_child() -> None:
    """The thread that takes it back is stopped half way."""
    lines = output_of(
        """
    pool = AdaptiveExecutor(1)
    inside, go = threading.Event(), threading.Event()
    core = type(pool._unlimited)
    leave = core.leave
    def slow(lane):
        lane.admitted -= 1
        inside.set()
        assert go.wait(20)
        lane.admitted += 1
        leave(lane)
    core.leave = slow
    assert pool.hand_in(pool._unlimited, True, pow, (2, 3), {}).result(10) == 8
    assert inside.wait(10)
    core.leave = leave
    assert pool._pool.max_workers == 2
    def check():
        print(pool._pool.max_workers, pool._pool.lent, pool._unlimited.admitted)
        print(pool.submit(pow, 2, 4).result(10))
    print(in_child(check))
    go.set()
    print(pool.submit(pow, 2, 5).result(10), pool._pool.max_workers)
    """,
        PLAIN + FORK,
    )
    assert lines == ["1 0 0", "16", "0", "32 1"]


def test_a_future_made_by_hand_whose_pool_is_held_while_the_process_forks() -> None:
    lines = output_of(
        """
    from ebbpool._core import accel
    held, go = threading.Event(), threading.Event()
    def hold():
        with accel.orphans.mutex:
            held.set()
            assert go.wait(20)
    threading.Thread(target=hold).start()
    assert held.wait(10)
    def check():
        future = accel.Future()
        future.set_result(8)
        print(future.result(10))
    print(in_child(check))
    go.set()
    """,
        PLAIN + FORK,
    )
    assert lines == ["8", "0"]


def test_the_child_of_a_fork_in_the_timekeepers_thread_may_wait() -> None:
    lines = output_of(
        """
    from ebbpool._pool.timekeeper import timekeeper
    pool = AdaptiveExecutor(1)
    pool.submit(int).result(10)
    over = threading.Event()
    def check():
        print(AdaptiveExecutor(1).submit(int, "5").result(10))
    def fork():
        print(in_child(check))
        over.set()
    timekeeper.call_soon(fork)
    over.wait(10)
    pool.shutdown()
    """,
        HOOKS + FORK,
    )
    assert lines == ["5", "0"]


def test_a_hook_that_fails_keeps_no_other_from_running() -> None:
    script = """
    import os
    from ebbpool._pool import lifecycle
    called = []
    def fail():
        raise ArithmeticError
    lifecycle._renew = fail
    lifecycle.after_fork(lambda: called.append("first"))
    lifecycle.after_fork(fail)
    lifecycle.after_fork(lambda: called.append("last"))
    pid = os.fork()
    if pid == 0:
        print(*called, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    """
    assert run_script(script).stdout == "first last\n"
