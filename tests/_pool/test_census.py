"""Which of a pool's threads are seen to be asleep."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from support.common import TIMEOUT, Background, eventually
from support.rules import WINDOW, Asleep
from support.seams import census

needs_places = pytest.mark.skipif(
    sys.platform != "linux" or not os.path.exists("/proc/self/wchan"), reason="the kernel does not tell who waits where"
)

COST, STILL, Place = census.COST, census.STILL, census.Place
LONG = 10 * WINDOW


class World:
    """Threads by number: the processor time that they have used, and where they are."""

    def __init__(self) -> None:
        self.used: dict[int, float] = {}
        self.places: dict[int, Place] = {}
        self.looked: list[int] = []
        self.census = census.Census()
        self.now = 1000.0
        self.cpu = 50.0
        self.busy = False

    def place_of(self, tid: int) -> Place:
        self.looked.append(tid)
        return self.places[tid]

    def thread(self, *numbers: int, place: Place = Place.RUNNING) -> list[Any]:
        for number in numbers:
            self.used[number] = 1.0
            self.places[number] = place
        return [SimpleNamespace(native_id=number) for number in numbers]

    def compute(self, seconds: float, *numbers: int) -> None:
        """Let each of the threads, or one without Python if there are none, use so much processor time."""
        for number in numbers:
            self.used[number] += seconds
        self.cpu += seconds * max(1, len(numbers))

    def measure(self, workers: list[Any], others: list[Any] | None = None, after: float = LONG) -> Asleep | None:
        self.now += after
        self.looked.clear()
        self.everyone = workers + (others or [])
        return self.census.measure(self.now, self.cpu, workers, self.busy)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(census, "seconds_of", world.used.get)
    monkeypatch.setattr(census, "place_of", world.place_of)
    monkeypatch.setattr(census, "threading", SimpleNamespace(enumerate=lambda: world.everyone))
    return world


def test_counts_workers_that_wait_outside_and_workers_that_wait_for_locks(world: World) -> None:
    workers = world.thread(1, 2) + world.thread(3, place=Place.LOCK) + world.thread(4, 5, 6, place=Place.OUTSIDE)
    assert world.measure(workers) == Asleep(6, outside=3, in_locks=1)
    # One that was asleep outside, and has not run since, is not looked at again.
    world.compute(0.001, 4)
    assert world.measure(workers) == Asleep(6, outside=3, in_locks=1)
    assert world.looked == [1, 2, 3, 4]
    # Nor is one that has not begun, or has ended.
    del world.used[5]
    assert world.measure([*workers, SimpleNamespace(native_id=None)]) == Asleep(5, outside=2, in_locks=1)


@pytest.mark.parametrize(
    ("own", "library", "busy", "in_locks"),
    [(0.3, 0.2, False, 0), (0.0, 1.0, False, 0), (0.09, 0.0, False, 2), (0.09, 0.0, True, 0)],
    ids=["the pool's workers", "a library's threads", "little", "all there is to be had"],
)
def test_what_computes_may_keep_the_locks(world: World, own: float, library: float, busy: bool, in_locks: int) -> None:
    workers = world.thread(1) + world.thread(2, 3, place=Place.LOCK)
    world.measure(workers)
    world.busy = busy
    world.compute(own * LONG, 1)
    world.compute(library * LONG)
    assert world.measure(workers) == Asleep(3, outside=0, in_locks=in_locks, in_doubt=2 - in_locks)
    world.busy = False
    assert world.measure(workers) == Asleep(3, outside=0, in_locks=2)


def test_beside_another_computing_thread_a_wait_for_a_lock_has_to_last(world: World) -> None:
    main = world.thread(9)
    workers = world.thread(1, 2, place=Place.LOCK)
    world.measure(workers, main)
    world.compute(LONG, 9)
    assert world.measure(workers, main) == Asleep(2, outside=0, in_locks=2)
    world.compute(1e-5, 2)
    assert world.measure(workers, main, after=STILL / 2) == Asleep(2, outside=0, in_locks=1, in_doubt=1)
    assert world.measure(workers, main, after=1.1 * STILL) == Asleep(2, outside=0, in_locks=2)


def test_many_threads_that_do_not_sleep_are_counted_less_often(world: World) -> None:
    workers = world.thread(*range(100), place=Place.LOCK) + world.thread(*range(100, 1000), place=Place.OUTSIDE)
    world.measure(workers)
    assert world.measure(workers, after=1.0) == Asleep(1000, outside=900, in_locks=100)
    world.places[5] = Place.OUTSIDE
    assert world.measure(workers, after=90 * COST) == Asleep(1000, outside=900, in_locks=100)
    assert world.measure(workers, after=20 * COST) == Asleep(1000, outside=901, in_locks=99)
    sleepers = workers[100:]
    world.measure(sleepers, after=1.0)
    world.places[500] = Place.RUNNING
    world.compute(0.001, 500)
    assert world.measure(sleepers, after=890 * census.CLOCK_COST) == Asleep(900, outside=900, in_locks=0)
    assert world.measure(sleepers, after=20 * census.CLOCK_COST) == Asleep(900, outside=899, in_locks=0)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="only CPython's ctypes can keep the GIL")
def test_a_system_that_forbids_to_load_a_library_is_read_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(name: object) -> None:
        raise RuntimeError("forbidden")

    monkeypatch.setattr("ctypes.PyDLL", forbidden)
    assert census.reader.__wrapped__() is census._read


def test_a_platform_that_cannot_tell(world: World) -> None:
    assert [world.measure([SimpleNamespace(native_id=1)]) for _ in range(3)] == [None] * 3


@needs_places
@pytest.mark.parametrize("reader", [census.reader, lambda: census._read], ids=["keeping the GIL", "plain"])
def test_where_real_threads_are_and_what_their_clocks_say(reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "reader", reader)
    entrance, way_out = os.pipe()
    lock = threading.Lock()
    lock.acquire()
    stop = threading.Event()

    def compute() -> float:
        while not stop.is_set():
            pass
        return time.thread_time()

    calls: list[Any] = [lambda: os.read(entrance, 1), lock.acquire, compute]
    threads = [Background(call) for call in calls]
    try:
        waits, blocked, computes = (thread.thread.native_id or 0 for thread in threads)
        eventually(lambda: census.place_of(waits) is Place.OUTSIDE)
        eventually(lambda: census.place_of(blocked) is Place.LOCK)
        # With a GIL it may be waiting for that.
        assert census.place_of(computes) is not Place.OUTSIDE
        eventually(lambda: (census.seconds_of(computes) or 0.0) > 0.02)
        used = census.seconds_of(computes)
    finally:
        stop.set()
        os.write(way_out, b"x")
        lock.release()
        outcomes = [thread.join() for thread in threads]
        os.close(entrance)
        os.close(way_out)
    assert used is not None and 0.02 < used <= outcomes[2] < used + TIMEOUT
    eventually(lambda: census.seconds_of(computes) is None)


@needs_places
def test_where_the_kernel_hides_it_a_thread_that_does_not_run_waits_for_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {b"wchan": b"0", b"stat": b"77 (a (strange) name) S 1 2"}
    monkeypatch.setattr(census, "reader", lambda: lambda path: states[path.rpartition(b"/")[2]])
    assert census.place_of(77) is Place.LOCK
    states[b"stat"] = b"77 (a (strange) name) R 1 2"
    assert census.place_of(77) is Place.RUNNING


def test_workers_are_sorted_by_what_their_tasks_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third, unclocked = world.thread(1, 2, place=Place.LOCK) + world.thread(3, 4, place=Place.OUTSIDE)
    del world.used[4]
    tasks = [
        SimpleNamespace(thread=one, since=990.0, blocked=False, written_off=False) for one in (first, second, third)
    ]
    pool: Any = None
    monkeypatch.setattr(census, "survey", lambda _: SimpleNamespace(running=tasks))

    def sort(after: float, *computing: int) -> tuple[int, ...]:
        world.now += after
        world.compute(after, *computing)
        return world.census.sort(world.now, pool)

    assert sort(1.0) == (3, 0, 0), "who waits for a moment is not told apart"
    assert sort(census.LONG, 1) == (0, 1, 2)
    assert sort(1.1 * STILL, 1, 3) == (1, 1, 1), "one that has run again"
    tasks[0].since = world.now
    assert sort(1.1 * STILL, 1) == (1, 0, 2), "its next task is a quick one again"
    tasks[1].blocked = tasks[2].written_off = True
    tasks.append(SimpleNamespace(thread=unclocked, since=world.now, blocked=False, written_off=False))
    assert sort(0.9 * census.LONG, 1) == (2, 0, 0)
    assert sort(census.LONG) == (0, 1, 1), "where threads have no clocks, seconds count"
