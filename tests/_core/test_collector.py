"""The garbage collector may come by at any call. It runs any code there, which may need the pool's mutex."""

from __future__ import annotations

import gc

import pytest
from support.common import needs_fork, output_of

pytestmark = pytest.mark.skipif(
    not hasattr(gc, "set_threshold"), reason="the collector cannot be told how often to come by here"
)

# Small tuples, lists and dicts are kept to be used again, and taking one of those does not call the collector.
HOARD = """
import gc
import os
from concurrent.futures import wait
from io import StringIO
from threading import Event
from ebbpool import AdaptiveExecutor, monitor

def hoard():
    small = [tuple([None] * size) for size in range(1, 21) for _ in range(2100)]
    return small + [[] for _ in range(200)] + [{} for _ in range(200)]
"""
CALLS = """
def visited(call):
    kept = hoard()
    usual = gc.get_threshold()
    gc.callbacks.append(lambda phase, facts: pool.stats())
    gc.set_threshold(1)
    try:
        call()
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.clear()

gate = Event()
with AdaptiveExecutor(1) as pool:
    pool.submit(gate.wait)
    lane = pool.lane("narrow", limit=1)
    in_lane = [lane.submit(int) for _ in range(300)]
    queued = [pool.submit(int) for _ in range(300)]
    delayed = [pool.submit_later(3600.0, int) for _ in range(300)]

    def expire(future):
        try:
            future.result(0.001)
        except TimeoutError:
            pass

    try:
        for call in (
            lambda: pool.submit(int, 1, 2), lambda: pool.submit_first(int), lambda: pool.submit_later(3600.0, int),
            lambda: lane.submit(int), lambda: pool.map(int, range(10)), lambda: expire(queued[0]),
            lambda: wait(queued, 0),
            lambda: [future.add_done_callback(id) for future in queued], lambda: queued[1]._condition,
            lambda: repr(pool),
            lambda: [future.add_done_callback(id) for future in delayed], lambda: pool.running(stacks=True),
            pool.stats, lane.stats, pool.decisions, lambda: pool.wait_idle(0.0), lambda: monitor.dump(StringIO()),
            lambda: [future.cancel() for future in queued[2:]], lambda: [future.cancel() for future in in_lane],
            lambda: [future.cancel() for future in delayed], lambda: lane.shutdown(wait=False, cancel_futures=True),
            lambda: pool.resize(max_workers=2), lambda: pool.shutdown(wait=False, cancel_futures=True),
        ):
            visited(call)
    finally:
        gate.set()
print("through")
"""


def test_no_call_is_stuck_where_the_collector_comes_by() -> None:
    """In an interpreter of its own, because one that is stuck cannot be saved."""
    assert output_of(CALLS, HOARD) == ["through"]


@needs_fork
def test_a_forked_child_is_not_stuck_either() -> None:
    script = """
    pool, gate = AdaptiveExecutor(2), Event()
    lane = pool.lane("narrow", limit=1)
    for executor in (pool, lane):
        for _ in range(20):
            executor.submit(gate.wait)
    delayed = [pool.submit_later(3600.0, int) for _ in range(50)]
    kept = hoard()
    gc.callbacks.append(lambda phase, facts: pool.stats())
    usual = gc.get_threshold()
    gc.set_threshold(1)
    child = os.fork()
    gc.set_threshold(*usual)
    gc.callbacks.clear()
    if child == 0:
        print("through", flush=True)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    gate.set()
    pool.shutdown(cancel_futures=True)
    """
    assert output_of(script, HOARD) == ["through", "0"]
