"""Pools that come and go: shutdowns amid submits, forgotten executors, forks of a busy process, exits."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from stress_harness import (
    LONG_ENOUGH,
    PATIENCE,
    SECONDS,
    SEED,
    named,
    rounds,
    stuck,
)

from ebbpool import AdaptiveExecutor


def run_script(script: str, *arguments: str, patience: float = PATIENCE) -> str:
    """Run a script in a fresh interpreter; if it hangs, every stack of it and of its children is shown."""
    head = "import sys\nsys.setswitchinterval(1e-6)\n"
    options = ["-X", "faulthandler", "-W", "ignore::DeprecationWarning", "-c", head + script]
    process = subprocess.Popen(
        [sys.executable, *options, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"the script hung:\n{out}\n{err}")
    assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{err}"
    return out


@pytest.mark.parametrize("keep_alive", [0.0, 3600.0])
def test_forgotten_executors_end_by_themselves(keep_alive: float) -> None:
    """Executors made, used and dropped in thousands leave no thread, however long their keep-alive."""
    made = 0
    for _ in rounds():
        for _ in range(20):
            pool = AdaptiveExecutor(2, "forgotten", keep_alive=keep_alive)
            futures = [pool.submit(pow, made, 2) for _ in range(3)]
            if made % 3:
                del pool
            for future in futures:
                try:
                    assert future.result(timeout=PATIENCE) == made**2
                except TimeoutError:
                    stuck(f"a forgotten executor forgot {future!r}")
            made += 1
        pool = None
        end = time.monotonic() + PATIENCE
        while (left := len(named("forgotten_"))) >= 200:
            if time.monotonic() > end:
                stuck(f"workers of forgotten executors pile up: {left} of {made}")
            time.sleep(0.001)
    gc.collect()
    end = time.monotonic() + PATIENCE
    while named("forgotten_"):
        if time.monotonic() > end:
            stuck(f"{len(named('forgotten_'))} workers of {made} forgotten executors are left")
        time.sleep(0.005)


FORK = """
import os, random, threading, time
from concurrent.futures import CancelledError, wait
from ebbpool import AdaptiveExecutor, BrokenThreadPool

rng = random.Random(int(sys.argv[1]))
settings = eval(sys.argv[2])
seconds = float(sys.argv[3])
patience = float(sys.argv[4])
pool = AdaptiveExecutor(4, **settings)
stop = threading.Event()
recent = []

def child_of_the_pool():
    return pool.submit(pow, 2, 5).result(timeout=patience)

def press():
    works = (time.time, lambda: time.sleep(0.001), child_of_the_pool)
    while not stop.is_set():
        batch = [pool.submit(rng.choice(works)) for _ in range(8)]
        batch[rng.randrange(8)].cancel()
        recent[:] = batch
        batch[0].add_done_callback(id)
        assert not wait(batch[::2], timeout=patience).not_done
        for future in batch:
            if not future.cancelled():
                try:
                    future.result(timeout=patience)
                except CancelledError:
                    pass
        pool.stats()

def in_child():
    broken = 0
    for future in list(recent):
        try:
            future.result(timeout=patience)
        except CancelledError:
            pass
        except BrokenThreadPool as error:
            assert "fork" in str(error), error
            broken += 1
    assert pool.stats().workers == 0, pool.stats()
    results = [future.result(timeout=patience) for future in [pool.submit(pow, n, 2) for n in range(50)]]
    assert results == [n * n for n in range(50)]
    barrier = threading.Barrier(4)
    met = [pool.submit(barrier.wait, patience) for _ in range(4)]
    assert sorted(future.result(timeout=patience) for future in met) == [0, 1, 2, 3]
    assert pool.submit(child_of_the_pool).result(timeout=patience) == 32
    with AdaptiveExecutor(2) as other:
        assert other.submit(pow, 3, 2).result(timeout=patience) == 9
    assert pool.wait_idle(patience)
    pool.shutdown()
    return broken

pressing = [threading.Thread(target=press, daemon=True) for _ in range(3)]
for thread in pressing:
    thread.start()
end = time.monotonic() + seconds
children = broken = 0
while time.monotonic() < end or children == 0:
    time.sleep(rng.random() * 0.01)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(write, str(in_child()).encode())
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    told = os.read(read, 20)
    os.close(read)
    assert status == 0, f"child {children} ended with status {status}"
    children += 1
    broken += int(told)
stop.set()
for thread in pressing:
    thread.join(patience)
    assert not thread.is_alive()
pool.shutdown()
assert all(future.done() for future in recent)
print(children, broken)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.parametrize(
    "settings",
    [{}, {"keep_alive": 0.0}, {"max_queue": 2}, {"max_queue": 2, "when_full": "caller_runs"}],
    ids=str,
)
def test_fork_while_busy(settings: dict[str, Any]) -> None:
    """A child forked at any moment of a busy pool has a working pool, and its inherited futures end."""
    patience = SECONDS + 3 * PATIENCE
    out = run_script(FORK, str(SEED), repr(settings), str(SECONDS), str(PATIENCE), patience=patience)
    children, broken = map(int, out.split())
    assert children > 0
    if children >= 20:
        assert broken > 0 or not LONG_ENOUGH, "no child ever inherited an unfinished future: the parent was not busy"


EXIT = """
import atexit, os, time
from ebbpool import AdaptiveExecutor

done = []
pools = [AdaptiveExecutor(4, daemon={daemon}, keep_alive=0.001), AdaptiveExecutor(2, daemon={daemon})]

def work(depth):
    time.sleep(0.001)
    if depth:
        try:
            for pool in pools:
                accepted.append(pool.submit(work, depth - 1))
        except RuntimeError as error:
            assert "shutdown" in str(error), error
    done.append(depth)

accepted = []
for number in range(60):
    accepted.append(pools[number % 2].submit(work, 3))

@atexit.register
def late():
    if not {daemon}:
        assert all(future.done() for future in accepted), "work was lost at exit"
        assert len(done) == len(accepted), (len(done), len(accepted))
    os.write(1, b"late")
"""


@pytest.mark.parametrize("daemon", [False, True])
def test_exit_while_busy(daemon: bool) -> None:
    """An interpreter that exits under load joins what was accepted (or leaves it) and does not hang."""
    for _ in rounds():
        assert run_script(EXIT.format(daemon=daemon)) == "late"


REFUSED = """
import os, random, threading, time
from ebbpool import AdaptiveExecutor

dice = random.Random(int(sys.argv[1]))
start = threading.Thread.start

def maybe_start(thread):
    if thread.name.startswith(("sick_", "ebbpool-timekeeper")) and dice.random() < 0.6:
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = maybe_start
for number in range(2):
    pool = AdaptiveExecutor(4, "sick", keep_alive=0.001)
    futures = []
    problems = []
    begin = threading.Barrier(3)

    def submitter():
        begin.wait({patience})
        for n in range(4):
            try:
                futures.append(pool.submit(time.sleep, 0.001))
            except RuntimeError as error:
                if str(error) != "can't start new thread":
                    problems.append(error)

    submitters = [threading.Thread(target=submitter) for _ in range(3)]
    for thread in submitters:
        thread.start()
    for thread in submitters:
        thread.join()
    assert not problems, problems
    stranded = 0
    for future in futures:
        try:
            future.result(timeout={patience})
        except TimeoutError:
            print(f"no thread for {{future}}: {{pool.stats()}} {{threading.enumerate()}}", flush=True)
            os._exit(1)
        except RuntimeError as error:
            assert "can't start new thread" in str(error), error
            stranded += 1
    pool.shutdown()
    stats = pool.stats()
    assert (stats.submitted, stats.completed) == (len(futures), len(futures) - stranded), (stranded, stats)
print("well")
"""


def test_even_the_timekeeper_is_refused() -> None:
    """Where threads, the timekeeper's among them, often cannot be started, no task hangs."""
    for number in rounds():
        out = run_script(REFUSED.format(patience=PATIENCE), str(SEED + number), patience=2 * PATIENCE)
        assert out.strip() == "well"


LOOKED_AT = """
import threading, time
from ebbpool import AdaptiveExecutor

def build(size):
    return {{number: [str(part) for part in range(size)] for number in range(size)}}

over = threading.Event()
pools = [AdaptiveExecutor(1, keep_alive=0, propagate_context=bool(number % 2)) for number in range(6)]

def feed(pool):
    while not over.is_set():
        for future in [pool.submit(build, 5) for _ in range(3)]:
            future.result(timeout={patience})

feeders = [threading.Thread(target=feed, args=[pool]) for pool in pools]
for feeder in feeders:
    feeder.start()
seen = set()
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    for stacks in (False, True):
        for pool in pools:
            seen.update(task.name for task in pool.running(stacks=stacks))
over.set()
for feeder in feeders:
    feeder.join()
for pool in pools:
    pool.shutdown()
print(*sorted(seen))
"""


def test_short_tasks_are_looked_at_while_their_threads_come_and_go() -> None:
    """Looking at what runs, with stacks and without, harms neither the tasks nor the interpreter."""
    out = run_script(LOOKED_AT.format(seconds=SECONDS, patience=PATIENCE))
    assert set(out.strip().split(" ", 1)) >= {"__main__.build"} or not LONG_ENOUGH, out
