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
from support import seams
from support.common import LONG, TIMEOUT, Background, Boom, eventually, tight_switching
from support.manual_time import timed_pool
from support.rules import ITERATORS, QUICK, STALE, Batch, MapRun, Unclaimed, map_run

from ebbpool import AdaptiveExecutor


class Script:
    """A `MapRun` whose tasks the test runs by hand."""

    def __init__(self, items: Any, *, ordered: bool = True) -> None:
        self.tasks: deque[Callable[[], None]] = deque()
        self._max_workers = 1000
        self._shutdown = False
        self.run = MapRun(self, lambda item: item, False, None, None, ordered)  # type: ignore[arg-type]
        self.run._hand_in = self.hand_in  # type: ignore[method-assign]
        self.run.read_all(items)

    def hand_in(self, _: Any, task: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        self.tasks.append(task)
        return concurrent.futures.Future()

    def lay(self, now: float, size: int) -> Batch:
        with self.run.lock:
            self.run.unclaimed.size = size
            batch = self.run._lay(now)
        assert batch is not None
        return batch


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("begun", [0, 5])
def test_a_claim_that_was_recalled_leaves_its_place_to_the_next(ordered: bool, begun: int) -> None:
    """Its worker hears of it only as it settles: it had begun none of its items, or all."""
    script = Script(range(10), ordered=ordered)
    run = script.run
    first = script.lay(0.0, 5)
    first.out.extend(itertools.islice(first.source, begun))
    with run.lock:
        run._recall(STALE)
    ready = dict(run.ready)
    assert ready == ({0: list(range(begun))} if begun else {})
    second = script.lay(STALE, 5)
    assert second.start == begun
    with run.lock:
        run._settle(first, STALE)
    assert run.under_way == run.divided == {begun: second}, "or nothing would be recalled of it any more"
    assert run.ready == ready


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("recalled", [True, False])
def test_a_map_that_fails_before_a_claim_has_begun_ends(ordered: bool, recalled: bool) -> None:
    script = Script(range(10), ordered=ordered)
    run = script.run
    batch = script.lay(0.0, 5)
    if recalled:
        with run.lock:
            run._recall(STALE)
    run.fail(Boom("the rest"))
    with run.lock:
        run._settle(batch, 0.0)
    with pytest.raises(Boom, match="the rest"):
        run.next_piece(0, time.perf_counter() + TIMEOUT)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("size", [1, 5])
def test_whatever_goes_wrong_in_a_task_ends_the_map(ordered: bool, size: int) -> None:
    script = Script(range(10), ordered=ordered)
    run = script.run

    def fails(*_: Any) -> Any:
        raise Boom("no memory")

    run._hand_in = fails  # type: ignore[method-assign]
    run.unclaimed.size, run.queued = size, 1
    script.tasks.popleft()()
    with pytest.raises(Boom, match="no memory"):
        run.next_piece(0, time.perf_counter() + TIMEOUT)
    assert run.under_way == run.divided == {}


def test_a_consumer_that_is_interrupted_as_the_bell_rings_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(range(2))
    run = script.run

    def interrupted(pool: Any, acquire: Any, *args: Any) -> None:
        acquire(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(map_run, "wait_counted", interrupted)
    waiting = Background(lambda: run.next_piece(0, inf))
    eventually(lambda: run.bell is not None)
    script.tasks.popleft()()
    with pytest.raises(KeyboardInterrupt):
        waiting.join()
    assert run.next_piece(0, inf) == [0]


def test_a_claim_grows_while_items_are_tiny_and_shrinks_at_once() -> None:
    claims = Unclaimed(1, 10**6)
    sizes = []
    for _ in range(8):
        sizes.append(claims.size)
        claims.adapt(claims.size, QUICK * 0.9)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128]
    # A batch smaller than the last says nothing about larger ones.
    for count, seconds, size in [(256, 1.0, 1), (1, QUICK / 100, 4), (1, QUICK / 2, 4), (4, 10.0, 1)]:
        claims.adapt(count, seconds)
        assert claims.size == size


def test_what_was_recalled_is_claimed_first_and_in_order() -> None:
    claims = Unclaimed(5, 5)
    assert claims.fill(range(20)) == 20
    for start, items in [claims.take(), claims.take()]:
        claims.put_back(start, list(items)[::-1])
    assert [(start, list(items)) for start, items in iter(claims.take, (0, []))] == [
        (start, list(range(start, start + 5))) for start in range(0, 20, 5)
    ]


def test_no_task_is_asked_for_where_all_items_have_been_claimed_and_the_pool_is_shut_down() -> None:
    script = Script(range(10))
    script.lay(0.0, 10)
    script.run.queued = 0
    script.tasks.clear()
    script._shutdown = True
    script.run._recruit()
    assert not script.tasks


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
    monkeypatch.setattr(map_run, "STALE", 0.0)
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


def test_due_in_the_moment_of_the_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is closed between the timekeeper's look at it and the queue: the call is cancelled."""
    core = seams.running_part("pool")
    scope = core.Scope

    def closing(*args: Any) -> Any:
        seams.engine_of(pool).close()
        return scope(*args)

    with timed_pool(max_wait=LONG) as (pool, keeper):
        future = pool.submit_later(1, int)
        told_in: list[threading.Thread] = []
        future.add_done_callback(lambda _: told_in.append(threading.current_thread()))
        monkeypatch.setattr(core, "Scope", closing)
        keeper.advance(1.0)
        assert pool._shutdown and told_in == []
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
