"""The timekeeper's thread ends and comes back all the while: nothing it is given is ever lost."""

from __future__ import annotations

import random
import sys
import threading
import time
import weakref
from typing import Any

import pytest
from stress_harness import PATIENCE, TIMEKEEPER, Crew, bounded, named, stuck

from ebbpool import AdaptiveExecutor
from ebbpool._pool.timekeeper import Tick, Timekeeper


class Errand:
    """Something to look at once, and the book of a single entry."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def begin(self, tick: Tick) -> None:
        pass

    def tick(self, tick: Tick) -> float | None:
        self.done.set()
        return None

    def wants(self, thing: Any) -> bool:
        return not self.done.is_set()

    def fire(self, thing: Any) -> None:
        self.done.set()


@pytest.mark.parametrize("interval", [1e-6, 1e-4, 5e-3])
@pytest.mark.parametrize("threads", [1, 3])
def test_errands_as_the_thread_ends(threads: int, interval: float) -> None:
    """Nobody needs the thread between two errands, so that it ends, or is about to, whenever one comes."""
    keeper = Timekeeper()
    made: list[threading.Thread] = []

    class Counted(threading.Thread):
        def start(self) -> None:
            made.append(self)
            super().start()

    keeper.kind = Counted

    def run(rng: random.Random) -> None:
        errand = Errand()
        way = rng.randrange(3)
        if way == 0:
            keeper.watch(errand)
        elif way == 1:
            keeper.call_at(keeper.clock() + rng.choice((0.0, 0.0, 0.0005)), errand, None)
        else:
            keeper.call_soon(errand.done.set)
            keeper.start()
        if rng.random() < 0.3:
            keeper.dismiss(PATIENCE)
        if not errand.done.wait(PATIENCE):
            stuck(f"errand {way}: {keeper.__dict__}")

    sys.setswitchinterval(interval)
    crew = Crew()
    crew.repeat("errands", run, copies=threads)
    crew.press()
    keeper.dismiss(PATIENCE)
    assert len(made) > 1
    for thread in made:
        thread.join(PATIENCE)
        assert not thread.is_alive()


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
        crew, reference = pool._crew, weakref.ref(pool)
        del pool
        end = time.monotonic() + PATIENCE
        while reference() is not None or crew.pool.headcount > 0:
            if time.monotonic() > end:
                stuck(f"a forgotten executor: {reference()}, {crew.pool.headcount} workers")
            time.sleep(0.0002)

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
