"""Races of maps and of delayed calls that only who reaches inside can bring about, one step at a time."""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.common import (
    LONG,
    TIMEOUT,
    Background,
    Boom,
    Gate,
    eventually,
    tight_switching,
)
from support.manual_time import timed_pool

from ebbpool import AdaptiveExecutor
from ebbpool._testing import seams
from ebbpool._testing.rules import ITERATORS, STALE, Batch, Ledger, ledger


class Script:
    """A `Ledger` whose tasks the test runs by hand."""

    def __init__(self, items: Any, *, ordered: bool = True, buffersize: int | None = None) -> None:
        self.tasks: deque[Callable[[], None]] = deque()
        self._max_workers = 1000
        self._shutdown = False
        self.run = Ledger(self, lambda item: item, False, None, buffersize, ordered)  # type: ignore[arg-type]
        self.run.read_all(items)

    def submit(self, task: Callable[[], None]) -> concurrent.futures.Future[None]:
        self.tasks.append(task)
        return concurrent.futures.Future()

    def lay(self, now: float) -> Batch:
        with self.run.lock:
            batch = self.run._lay(now)
        assert batch is not None
        return batch


@settings(max_examples=100)
@given(
    count=st.integers(1, 200),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40), st.integers(0, 8)), max_size=40),
    as_range=st.booleans(),
)
def test_whatever_is_claimed_and_recalled_every_item_is_had_once_and_in_its_place(
    count: int, steps: list[tuple[int, int, int]], as_range: bool
) -> None:
    script = Script(range(count) if as_range else list(range(count)))
    run = script.run
    under_way: list[Batch] = []
    now = 0.0
    begun: Counter[int] = Counter()

    def begin(batch: Batch, most: int) -> None:
        for item in itertools.islice(batch.source, most):
            assert item == batch.start + len(batch.out)
            begun[item] += 1
            batch.out.append(item)

    for which, size, progress in steps:
        now += STALE * which / 6
        run.size = size
        if which < 5 and run.segments:
            under_way.append(script.lay(now))
        elif under_way:
            with run.lock:
                run._recall(now)
        if under_way:
            begin(under_way[which % len(under_way)], progress)
        positions = [start for start, _ in run.segments]
        assert positions == sorted(positions, reverse=True)
    run.size = 7
    while run.segments:
        under_way.append(script.lay(now))
    for batch in under_way:
        begin(batch, count)
        assert len(batch.out) == batch.size
        with run.lock:
            run._settle(batch, now)
    assert begun == Counter(range(count))
    assert not run.under_way
    got: list[Any] = []
    while len(got) < count:
        got += run.next_piece(len(got), time.perf_counter())  # type: ignore[operator]  # no item fails
    assert got == list(range(count))


@pytest.mark.parametrize("ordered", [True, False])
def test_a_claim_that_is_recalled_as_it_ends_does_not_stand_in_the_place_of_the_next(ordered: bool) -> None:
    script = Script(range(10), ordered=ordered)
    run = script.run
    run.size = 5
    first, second = script.lay(0.0), script.lay(STALE / 2)
    first.out.extend(range(5))
    first.drain()
    with run.lock:
        run._recall(STALE)
        assert run.ready == {0: list(range(5))}
        assert run.under_way == {5: second}
        run._settle(first, STALE)
    assert run.under_way == {5: second}
    assert run.ready == {0: list(range(5))}


@pytest.mark.parametrize("shut_down", [True, False])
def test_recruiting_ends_where_all_items_have_been_claimed(shut_down: bool) -> None:
    script = Script(range(10))
    run = script.run
    run.size = 10
    script.lay(0.0)
    run.queued = 0
    script.tasks.clear()
    script._shutdown = shut_down
    recruiting = Background(run._recruit)
    try:
        assert recruiting.join()
    finally:
        # It would go round and round else.
        run.divided.clear()
    assert len(script.tasks) == (0 if shut_down else 1), "one waits for items to recall if the pool takes tasks"


@pytest.mark.parametrize("ordered", [True, False])
def test_a_claim_that_was_recalled_before_it_began_leaves_its_place_to_the_next(ordered: bool) -> None:
    script = Script(range(10), ordered=ordered)
    run = script.run
    run.size = 5
    first = script.lay(0.0)
    with run.lock:
        run._recall(STALE)
    run.size = 5
    second = script.lay(STALE)
    assert first.start == second.start
    with run.lock:
        run._settle(first, STALE)
    assert run.under_way == {0: second}
    assert run.divided == {0: second}, "nothing would be recalled of it any more"
    assert not run.ready


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("recalled", [True, False])
def test_a_map_that_fails_before_a_claim_has_begun_ends(ordered: bool, recalled: bool) -> None:
    script = Script(range(10), ordered=ordered)
    run = script.run
    run.size = 5
    batch = script.lay(0.0)
    if recalled:
        with run.lock:
            run._recall(STALE)
    run.fail(Boom("the rest"))
    with run.lock:
        run._settle(batch, 0.0)
    with pytest.raises(Boom, match="the rest"):
        run.next_piece(0, time.perf_counter() + TIMEOUT)


def test_a_consumer_that_is_interrupted_as_the_bell_rings_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(range(2))
    run = script.run

    def interrupted(pool: Any, acquire: Any, *args: Any) -> None:
        acquire(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger, "wait_counted", interrupted)
    waiting = Background(lambda: run.next_piece(0, inf))
    eventually(lambda: run.bell is not None)
    script.tasks.popleft()()
    with pytest.raises(KeyboardInterrupt):
        waiting.join()
    assert run.next_piece(0, inf) == [0]


def test_a_claim_grows_while_items_are_tiny_and_shrinks_at_once() -> None:
    script = Script(range(10**6))
    run = script.run
    sizes = []
    for _ in range(8):
        sizes.append(run.size)
        run._adapt(run.size, ledger.QUICK * 0.9)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128]
    run._adapt(256, 1.0)
    assert run.size == 1
    run._adapt(1, ledger.QUICK / 100)
    assert run.size == 4
    run._adapt(1, ledger.QUICK / 2)
    assert run.size == 4, "a smaller batch says nothing about larger ones"
    run._adapt(4, 10.0)
    assert run.size == 1


@pytest.mark.skipif(not ITERATORS, reason="a deque serves instead")
def test_a_list_iterator_is_emptied_in_one_step() -> None:
    """The promise of the interpreter that batches rest on: nothing is lost, nothing comes twice."""
    with tight_switching():
        for _ in range(50):
            source = iter(range(20_000) if _ % 2 else list(range(20_000)))
            front: list[int] = []
            worker = Background(lambda s=source, f=front: f.extend(map(int, s)))  # type: ignore[misc]
            rest = list(source)
            worker.join()
            assert front + rest == list(range(20_000))


def test_recalls_under_contention_lose_and_repeat_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look recalls everything: workers and the consumer take items from each other all the time."""
    monkeypatch.setattr(ledger, "STALE", 0.0)
    with tight_switching(1e-5), AdaptiveExecutor(4, min_workers=4) as pool:
        for size in (1, 50, 3_000):
            ran: Counter[int] = Counter()
            begun: list[int] = []

            def work(number: int, begun: list[int] = begun) -> int:
                begun.append(number)
                return number

            assert list(pool.map(work, range(size))) == list(range(size))
            ran.update(begun)
            assert ran == Counter(range(size))
            assert sorted(pool.map_unordered(work, range(size))) == list(range(size))


def test_a_run_that_ends_as_the_pool_closes_is_the_last(caplog: pytest.LogCaptureFixture) -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        task = pool.schedule(1, gate)
        keeper.advance(1.0)
        gate.await_begun()
        seams.close(pool)
        gate.open()
        eventually(lambda: not task.active)
        assert (task.runs, task.missed) == (1, 0)
        assert caplog.records == []


def test_due_in_the_moment_of_the_shutdown() -> None:
    """The pool is closed between the timekeeper's look at it and the queue: the call is cancelled."""
    with timed_pool() as (pool, keeper):
        release = pool.release
        future = pool.submit_later(1, int)
        told_in: list[threading.Thread] = []
        future.add_done_callback(lambda _: told_in.append(threading.current_thread()))

        def closing(held: Any) -> bool:
            seams.close(pool)
            queued = release(held)
            assert told_in == []
            return queued

        pool.release = closing
        keeper.advance(1.0)
        pool.shutdown()
        assert future.cancelled() and pool.stats().delayed == 0
        assert told_in == [threading.current_thread()]


class Noting(AdaptiveExecutor):
    """Notes when it hears of a delayed call that is done, and may be interrupted there."""

    def __init__(self, notes: list[str], interrupt: type[BaseException] | None = None) -> None:
        super().__init__(1)
        self.notes = notes
        self.interrupt = interrupt

    def _forget_delayed(self, future: Any) -> None:
        self.notes.append("heard")
        super()._forget_delayed(future)
        if self.interrupt is not None:
            raise self.interrupt


def test_only_the_end_of_a_call_tells_its_executor() -> None:
    """Not who adds a callback while another thread is still ending it: without a GIL both would drop the executor."""
    notes: list[str] = []

    class Waiter:
        def add_cancelled(self, future: Any) -> None:
            future.add_done_callback(lambda _: notes.append("told"))
            notes.append("added")

    with Noting(notes) as pool:
        future = pool.submit_later(LONG, int)
        with future._condition:
            future._waiters.append(Waiter())
        assert future.cancel()
    assert notes == ["told", "added", "heard"]


def test_all_are_told_of_a_cancelled_call_whatever_interrupts() -> None:
    notes: list[str] = []
    with Noting(notes, KeyboardInterrupt) as pool:
        future = pool.submit_later(LONG, int)
        future.add_done_callback(lambda _: notes.append("told"))
        with pytest.raises(KeyboardInterrupt):
            future.cancel()
        assert notes == ["heard", "told"]
        assert pool.stats().delayed == 0
