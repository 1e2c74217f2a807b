"""The timekeeper's thread ends and comes back all the while: nothing it is given is ever lost."""

from __future__ import annotations

import random
import threading
import time

from stress_harness import PATIENCE, TIMEKEEPER, Crew, bounded, named, stuck

from ebbpool import AdaptiveExecutor


def test_pools_of_all_kinds_come_and_go() -> None:
    """Barriers as wide as their pools, forgotten executors, delayed calls, shutdowns that do not wait."""

    def meets(rng: random.Random) -> None:
        width = rng.randint(2, 4)
        barrier = threading.Barrier(width)
        with AdaptiveExecutor(width, "comes") as pool:
            calls = [pool.submit(barrier.wait, PATIENCE) for _ in range(width)]
            assert sorted(call.result(PATIENCE) for call in calls) == list(range(width))

    def forgotten(rng: random.Random) -> None:
        pool = AdaptiveExecutor(2, "comes", keep_alive=600)
        calls = [pool.submit(pow, 2, 3) for _ in range(rng.randint(1, 3))]
        assert [call.result(PATIENCE) for call in calls] == [8] * len(calls)
        threads = list(pool._threads)
        del pool
        for thread in threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                stuck(f"a worker of a forgotten executor: {thread}")

    def delayed(rng: random.Random) -> None:
        pool = AdaptiveExecutor(1, "comes", keep_alive=rng.choice((0.0, 0.001)))
        if rng.random() < 0.3:
            pool.submit_later(600, int).cancel()
        assert pool.submit_later(rng.random() * 0.002, pow, 2, 3).result(PATIENCE) == 8
        pool.shutdown(wait=rng.random() < 0.5)

    crew = Crew()
    for step in (meets, forgotten, delayed):
        crew.repeat(step.__name__, step)
    crew.press()

    def all_gone() -> None:
        while named("comes") or named(TIMEKEEPER):
            time.sleep(0.001)

    bounded("the end of all threads", all_gone)
