"""Hours in minutes: a pool under changing load for a long time keeps its memory and its threads flat.

Opt-in: ``EBBPOOL_SOAK_SECONDS=600 pytest tests/stress/test_soak.py``.
"""

from __future__ import annotations

import concurrent.futures
import gc
import os
import random
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from stress_harness import PATIENCE, TIMEKEEPER, Crew, bounded, named, stuck

from ebbpool import AdaptiveExecutor, QueueFull

SOAK = float(os.environ.get("EBBPOOL_SOAK_SECONDS", "0"))
STATM = Path("/proc/self/statm")


def resident() -> int:
    """Return this process's resident memory in bytes (its peak, where Linux cannot be asked)."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    resource = pytest.importorskip("resource")
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


class Mark:
    """What the process holds while the pools are idle."""

    def __init__(self, pools: list[AdaptiveExecutor]) -> None:
        for pool in pools:
            if not pool.wait_idle(PATIENCE):
                stuck(f"a pool did not become idle: {pool.stats()}")
        end = time.monotonic() + PATIENCE
        while named("soak_"):
            if time.monotonic() > end:
                stuck(f"idle workers stayed: {[pool.stats() for pool in pools]}")
            time.sleep(0.01)
        gc.collect()
        own = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, "*/linecache.py")]
        )
        self.blocks = sum(line.count for line in own.statistics("filename"))
        self.lines = own.statistics("lineno")
        self.objects = len(gc.get_objects())
        self.resident = resident()
        self.threads = sorted(thread.name for thread in named("") if thread.name != TIMEKEEPER)
        self.tasks = sum(pool.stats().submitted for pool in pools)


@pytest.mark.skipif(not SOAK, reason="set EBBPOOL_SOAK_SECONDS, for instance to 600")
@pytest.mark.hard_limit(SOAK + 8 * PATIENCE + 60.0)
def test_memory_and_threads_stay_flat() -> None:
    """Between a mark at a fifth of the time and one at its end, nothing has grown."""
    sys.setswitchinterval(0.005)
    pools = [
        AdaptiveExecutor(16, "soak", keep_alive=0.05),
        AdaptiveExecutor(4, "soak", keep_alive=0.0, max_queue=10),
        AdaptiveExecutor(4, "soak", keep_alive=0.05, max_queue=10, when_full="reject"),
    ]

    def load(rng: random.Random) -> None:
        pool = rng.choice(pools)
        futures = []
        for number in range(rng.choice((1, 10, 100))):
            try:
                if rng.random() < 0.05:
                    futures.append(pool.submit(time.sleep, 0.002))
                elif rng.random() < 0.05:
                    futures.append(pool.submit(divmod, number, 0))
                elif rng.random() < 0.05:
                    futures.append(pool.submit(lambda pool=pool: pool.submit(bytes, 1000).exception(timeout=PATIENCE)))
                else:
                    futures.append(pool.submit(bytes, number))
            except QueueFull:
                break
        if rng.random() < 0.3:
            for future in futures[::2]:
                future.cancel()
        for future in futures[::3]:
            future.add_done_callback(id)
        if futures and concurrent.futures.wait(futures, timeout=PATIENCE).not_done:
            stuck(f"{pool.stats()}")
        with AdaptiveExecutor(2, "soak") as brief:
            brief.submit(id, futures)
        if rng.random() < 0.02:
            time.sleep(0.2)

    def press(seconds: float) -> Mark:
        crew = Crew()
        crew.repeat("load", load, copies=4)
        crew.stop.wait(seconds)
        crew.join()
        return Mark(pools)

    tracemalloc.start()
    try:
        press(SOAK * 0.1)
        early = press(SOAK * 0.1)
        late = press(SOAK * 0.8)
    finally:
        tracemalloc.stop()
        for pool in pools:
            bounded("shutdown", pool.shutdown)
    tasks = late.tasks - early.tasks
    grown = sorted(set(late.lines) - set(early.lines), key=lambda line: -line.count)[:10]
    report = "\n".join(
        [f"{tasks} tasks between the marks"]
        + [f"{name}: {getattr(early, name)} -> {getattr(late, name)}" for name in ("blocks", "objects", "resident")]
        + [str(line) for line in grown]
    )
    print(report)
    assert tasks > 100 * SOAK, report
    assert late.threads == early.threads, report
    allowance = 2000 + tasks // 1000
    assert late.blocks - early.blocks < allowance, report
    assert late.objects - early.objects < allowance, report
    assert late.resident - early.resident < 8 * 2**20, report
