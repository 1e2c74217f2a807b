"""Marked tasks that wait too long go to another executor; what it loses runs here, once."""

from __future__ import annotations

import asyncio
import functools
import gc
import io
import math
import pickle
import random
import re
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.thread import BrokenThreadPool
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import pytest
from support import seams
from support.common import (
    A_MOMENT,
    LONG,
    TIMEOUT,
    Background,
    Boom,
    Gate,
    Thing,
    all_end,
    collected,
    eventually,
    fail,
    forked,
    gone,
    no_thread,
    output_of,
    starting,
    wait_for_idle,
)
from support.spill import Elsewhere, spilling

from ebbpool import AdaptiveExecutor, monitor, spillable
from ebbpool.aio import new_event_loop

REQUEST: ContextVar[str] = ContextVar("REQUEST", default="none")


@spillable
def decorated(number: int) -> int:
    return number + 1


class Worker:
    @spillable
    def method(self, number: int) -> int:
        return number * 2


def request() -> str:
    return REQUEST.get()


def measured(pool: AdaptiveExecutor, *call: Any, still: bool = True) -> Any:
    seams.engine_of(pool).observe(1, lambda waited, ran: None)
    if not still:
        seams.engine_of(pool).observe(0, None)
    return pool.submit(*call)


def in_lane(pool: AdaptiveExecutor, *call: Any, first: bool = False) -> Any:
    # The lane of the call before may not be collected yet, and its name in use.
    return pool.lane(f"aside {call}", limit=1, first=first).submit(*call)


def run_in_context(*call: Any) -> Any:
    return partial(copy_context().run, *call)


def no_spiller() -> bool:
    return not any(thread.name.endswith("_spill") for thread in threading.enumerate())


WAYS: dict[str, Callable[..., Any]] = {
    "submit": lambda pool, *call: pool.submit(*call),
    "submit_first": lambda pool, *call: pool.submit_first(*call),
    "submit_later": lambda pool, *call: pool.submit_later(0.0, *call),
    "lane": in_lane,
    "first lane": partial(in_lane, first=True),
    "measured": measured,
    "no longer measured": partial(measured, still=False),
    "partial": lambda pool, fn, arg: pool.submit(partial(partial(fn), arg)),
    "context": lambda pool, *call: pool.submit(run_in_context(*call)),
    "partial of a context": lambda pool, fn, arg: pool.submit(partial(run_in_context(fn), arg)),
    "context of a partial": lambda pool, *call: pool.submit(run_in_context(partial(*call))),
    "context in a context": lambda pool, *call: pool.submit(run_in_context(copy_context().run, *call)),
}

FROM_A_LOOP: dict[str, Callable[..., Any]] = {
    "run": lambda pool, *call: pool.run(*call),
    "run_in_executor": lambda pool, *call: asyncio.get_running_loop().run_in_executor(None, *call),
    "partial": lambda pool, *call: asyncio.get_running_loop().run_in_executor(pool, partial(*call)),
    "lane": lambda pool, *call: pool.lane("aside", limit=1).run(*call),
    "to_thread": lambda pool, *call: asyncio.ensure_future(asyncio.to_thread(*call)),
}


# The mark.


def test_a_marked_function_is_called_as_ever() -> None:
    assert decorated(1) == 2
    assert spillable(pow)(2, 3) == 8
    assert spillable(decorated) is decorated
    assert (decorated.__name__, decorated.__doc__) == ("decorated", None)
    assert Worker().method(3) == 6
    with AdaptiveExecutor(1) as pool:
        assert pool.submit(decorated, 1).result(TIMEOUT) == 2
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert pickle.loads(pickle.dumps(spillable(math.sqrt)))(4) == 2
    with pytest.raises(TypeError, match="fn must be callable, not 3"):
        spillable(3)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(functools, "Placeholder"), reason="partials have placeholders from 3.14 on")
def test_a_mark_behind_placeholders_runs_all_the_same() -> None:
    hole: Any = functools.Placeholder  # type: ignore[attr-defined]
    with spilling() as (pool, _, gate):
        future = pool.submit(partial(spillable(pow), hole, 3), 2)
        gate.open()
        assert future.result(TIMEOUT) == 8


# What goes.


def test_marked_tasks_go_and_the_others_stay() -> None:
    order: list[int] = []
    with spilling() as (pool, there, gate):
        goes = []
        for number in range(500):
            pool.submit(order.append, number)
            if number % 50 == 0:
                goes.append(pool.submit(spillable(pow), number, 3))
        there.await_sent(10)
        # Slots that were left behind do not count as waiting.
        assert pool.stats().queued == 500
        items = pool.map(decorated, range(3))
        assert goes[1].running()
        assert there.calls[1][1:] == (pow, (50, 3), {})
        there.make(1)
        assert goes[1].result(TIMEOUT) == 125_000
        assert not order
        gate.open()
        assert list(items) == [1, 2, 3]
    assert there.sent == 10
    assert order == list(range(500))


def test_a_task_goes_only_once_it_has_waited_for_so_long() -> None:
    with spilling(spill_after=LONG) as (pool, there, gate):
        future = pool.submit(decorated, 1)
        eventually(lambda: pool.stats().oldest_wait > A_MOMENT)
        gate.open()
        assert future.result(TIMEOUT) == 2
    assert there.sent == 0


def test_the_oldest_goes_first_and_no_more_than_there_is_room_for() -> None:
    with spilling(2) as (pool, there, gate):
        futures = [pool.submit(decorated, number) for number in range(6)]
        there.await_sent(2)
        assert [call[2] for call in there.calls] == [(0,), (1,)]
        assert pool.stats().away == 2
        for number in range(4):
            there.make(0)
            there.await_sent()
            assert there.calls[-1][2] == (number + 2,)
            assert len(there.calls) == 2
        there.make()
        there.make()
        assert [future.result(TIMEOUT) for future in futures] == [1, 2, 3, 4, 5, 6]
        gate.open()


def test_what_others_have_waiting_there_comes_first() -> None:
    with ThreadPoolExecutor(1) as there, Gate() as busy:
        busy.hold(there)
        other = there.submit(int)
        with AdaptiveExecutor(1, spill=there, spill_after=0) as pool, Gate() as gate:
            gate.hold(pool)
            future = pool.submit(decorated, 1)
            eventually(lambda: pool.stats().oldest_wait > A_MOMENT)
            assert pool.stats().spilled == 0
            busy.open()
            assert future.result(TIMEOUT) == 2
            assert other.done()
            assert pool.stats().spilled == 1


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in(way: str) -> None:
    with spilling() as (pool, there, gate):
        made = WAYS[way](pool, decorated, 1)
        there.await_sent()
        assert there.calls[0][1:] == (decorated, (1,), {})
        there.make()
        assert made.result(TIMEOUT) == 2
        lost = WAYS[way](pool, decorated, 2)
        there.await_sent()
        there.lose()
        gate.open()
        assert lost.result(TIMEOUT) == 3
    assert there.sent == 2


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("factory", [asyncio.new_event_loop, new_event_loop])
@pytest.mark.parametrize("way", FROM_A_LOOP)
def test_every_way_in_from_a_loop(way: str, factory: Callable[[], asyncio.AbstractEventLoop], lost: bool) -> None:
    async def main(pool: AdaptiveExecutor, there: Elsewhere, gate: Gate) -> Any:
        asyncio.get_running_loop().set_default_executor(pool)
        future = FROM_A_LOOP[way](pool, decorated, 1)
        await asyncio.sleep(0)
        # Meanwhile the loop goes on.
        await pool_of_ours.run(there.await_sent)
        there.end(lost)
        gate.open()
        return await future

    with AdaptiveExecutor(2) as pool_of_ours, spilling() as (pool, there, gate):
        with asyncio.Runner(loop_factory=factory) as runner:
            assert runner.run(main(pool, there, gate)) == 2
        assert pool.stats().spill_returned == lost


def test_a_call_of_a_loop_that_comes_back_has_its_context_and_is_not_made_if_the_loop_has_given_it_up() -> None:
    ran: list[int] = []

    async def main(pool: AdaptiveExecutor, there: Elsewhere, gate: Gate) -> None:
        REQUEST.set("mine")
        given_up, wanted = pool.run(spillable(ran.append), 1), pool.run(spillable(request))
        await pool_of_ours.run(there.await_sent, 2)
        given_up.cancel()
        there.lose()
        there.lose()
        gate.open()
        assert await wanted == "mine"

    with AdaptiveExecutor(2) as pool_of_ours, spilling() as (pool, there, gate):
        asyncio.run(main(pool, there, gate))
        wait_for_idle(pool)
        assert (ran, pool.stats().cancelled) == ([], 1)


@pytest.mark.parametrize("carries", [False, True])
def test_the_context_is_the_one_that_the_task_would_have_here(carries: bool) -> None:
    with spilling(propagate_context=carries) as (pool, there, gate):
        token = REQUEST.set("mine")
        try:
            first, second = pool.submit(spillable(request)), pool.submit(spillable(request))
            there.await_sent(2)
        finally:
            REQUEST.reset(token)
        there.make()
        there.lose()
        gate.open()
        expected = "mine" if carries else "none"
        assert [context.get(REQUEST, "none") for context in there.contexts] == [expected] * 2
        assert (first.result(TIMEOUT), second.result(TIMEOUT)) == ("none", expected)


@pytest.mark.parametrize("seed", range(20))
def test_no_marked_task_is_passed_over(seed: int) -> None:
    """Whatever is submitted, taken, cancelled, sent and lost meanwhile; of what a lane holds back some may stay."""
    chance, permits = random.Random(seed), threading.Semaphore(0)
    with spilling(1000) as (pool, there, gate):
        lane, first = pool.lane("lane", limit=3), pool.lane("first", limit=3, first=True)
        ways = (pool.submit, pool.submit, pool.submit_first, lane.submit, first.submit)
        plain: list[Any] = []
        marked: list[Any] = []
        queued: set[Any] = set()
        gate.open()
        for _ in range(chance.randrange(40, 160)):
            act = chance.random()
            if act < 0.4:
                plain.append(chance.choice(ways)(permits.acquire))
            elif act < 0.6:
                way = chance.choice(ways)
                marked.append(way(decorated, len(marked)))
                if way in ways[:3]:
                    queued.add(marked[-1])
            elif act < 0.7:
                permits.release()
            elif act < 0.84 and plain:
                chance.choice(chance.choice([plain, marked or plain])).cancel()
            elif act < 0.86:
                for future in plain:
                    if chance.random() < 0.7:
                        future.cancel()
            elif act > 0.95 and there.calls:
                # It comes back, and is sent no more.
                queued.discard(marked[there.calls[0][2][0]])
                there.lose()
        try:
            eventually(lambda: all(future.done() or future.running() for future in queued), "every marked task is sent")
        finally:
            permits.release(len(plain))
        eventually(lambda: there.make() if there.calls else pool.wait_idle(0))
        stats = pool.stats()
        assert stats.submitted == stats.completed + stats.cancelled
        assert stats.queued == stats.away == 0


# What comes back.


@pytest.mark.usefixtures("no_turns")
def test_what_comes_back_goes_before_the_others_in_its_turn() -> None:
    order: list[str] = []
    with spilling() as (pool, there, gate):
        first = pool.lane("first", limit=5, first=True)
        put = spillable(order.append)
        for submit, name in ((pool.submit, "ordinary"), (first.submit, "first")):
            submit(put, name)
            there.await_sent()
        pool.submit(order.append, "second ordinary")
        first.submit(order.append, "second first")
        there.lose()
        there.cancel()
        gate.open()
        wait_for_idle(pool)
        assert pool.stats().spill_returned == 2
    assert order == ["first", "second first", "ordinary", "second ordinary"]


def test_what_is_lost_runs_here_next_and_is_not_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []
    note = spillable(ran.append)
    with spilling() as (pool, there, gate), Gate() as second:
        lost = there.take(pool.submit, note, "lost")
        pool.submit(second)
        gate.open()
        # The worker has passed the place that it had in the queue.
        second.await_begun()
        plain = pool.submit(ran.append, "plain")
        there.lose()
        assert not lost.running()
        assert not lost.done()
        assert pool.stats().oldest_wait > 0
        assert (pool.stats().queued, pool.stats().away) == (2, 0)
        second.open()
        wait([lost, plain], TIMEOUT)
        wait_for_idle(pool)
        assert ran == ["lost", "plain"]
        stats = pool.stats()
        assert (stats.spilled, stats.spill_returned, stats.completed, stats.submitted) == (1, 1, 4, 4)
    assert there.sent == 1
    assert "came back to pool" in caplog.text
    assert "the worker is gone" in caplog.text


class RemoteTraceback(Exception):
    """What a task's own error has as its cause, if it comes from a cluster."""


def of_its_own(cause: BaseException | None = None) -> None:
    raise BrokenExecutor("a pool that the task itself uses") from cause


@pytest.mark.parametrize(
    ("kind", "fn", "error"),
    [
        (Elsewhere, fail, Boom),
        (Elsewhere, partial(of_its_own, RemoteTraceback()), BrokenExecutor),
        (ThreadPoolExecutor, fail, Boom),
        (ThreadPoolExecutor, of_its_own, BrokenExecutor),
    ],
)
def test_an_error_of_the_task_is_its_outcome(
    kind: type[Executor], fn: Callable[[], None], error: type[Exception]
) -> None:
    with kind(1) as there, AdaptiveExecutor(1, spill=there, spill_after=0) as pool, Gate() as gate:  # type: ignore[call-arg]  # both take a number
        gate.hold(pool)
        future = pool.submit(spillable(fn))
        if isinstance(there, Elsewhere):
            there.await_sent()
            there.make()
        assert type(future.exception(TIMEOUT)) is error
        # The pool counts it just after it has told the waiters.
        eventually(lambda: pool.stats().failed == 1)
        assert pool.stats().spill_returned == 0


def test_a_refusal_is_told_once_and_then_less_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    with spilling() as (pool, there, gate):
        there.refuses = RuntimeError("cannot schedule new futures after shutdown")
        futures = [pool.submit(decorated, number) for number in range(50)]
        eventually(lambda: pool.stats().spill_returned)
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == list(range(1, 51))
        assert pool.stats().spill_returned < 10
    assert caplog.text.count("came back to pool") == 1
    assert "after shutdown" in caplog.text


def test_processes_take_what_can_be_pickled_and_why_the_rest_stays_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lock = threading.Lock()
    with (
        ProcessPoolExecutor(1) as there,
        AdaptiveExecutor(1, spill=there, spill_after=0, thread_name_prefix="web") as pool,
        Gate() as gate,
    ):
        gate.hold(pool)
        taken = [pool.submit(decorated, 1), pool.submit(spillable(math.sqrt), 4)]
        assert [future.result(TIMEOUT) for future in taken] == [2, 2]
        assert (pool.stats().spilled, pool.stats().spill_returned) == (2, 0)
        futures = [pool.submit(spillable(lambda: 3)) for _ in range(3)]
        argument = pool.submit(spillable(id), lock)
        eventually(lambda: pool.stats().spill_returned == 4)
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == [3, 3, 3]
        assert argument.result(TIMEOUT) == id(lock)
    assert caplog.text.count("<lambda> stays in pool 'web'") == 1
    assert caplog.text.count("id stays in pool 'web'") == 1
    assert "pickle" in caplog.text


def test_an_executor_that_fails_in_other_ways_is_left_alone_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Elsewhere):
        @property
        def _work_queue(self) -> Any:
            raise Boom("no idea")

    with spilling(spill=Odd()) as (pool, _, gate):
        future = pool.submit(decorated, 1)
        eventually(lambda: "no idea" in caplog.text)
        gate.open()
        assert future.result(TIMEOUT) == 2
    assert caplog.text.count("Exception in the thread that spills") == 1


# Cancelling, waiting, callbacks.


def test_cancel_works_in_either_place() -> None:
    with spilling(1) as (pool, there, _):
        away, waits = pool.submit(decorated, 1), pool.submit(decorated, 2)
        there.await_sent()
        assert not away.cancel()
        assert waits.cancel()
        there.lose()
        assert away.cancel()
        assert away.cancelled()
        assert (pool.stats().cancelled, pool.stats().queued) == (2, 0)


def test_a_task_may_wait_for_one_that_is_away_or_comes_back() -> None:
    there = Elsewhere()
    with AdaptiveExecutor(1, spill=there, spill_after=0) as pool:

        def parent() -> int:
            inner = pool.submit(decorated, 1)
            sent.set()
            opened.wait(TIMEOUT)
            return inner.result(TIMEOUT)

        for lost in (False, True):
            sent, opened = threading.Event(), threading.Event()
            outer = pool.submit(parent)
            there.await_sent()
            opened.set()
            eventually(lambda: pool.stats().blocked == 1)
            there.end(lost)
            assert outer.result(TIMEOUT) == 2


def test_a_pool_is_idle_only_when_nothing_is_away_callbacks_included() -> None:
    with spilling() as (pool, there, gate):
        future = pool.submit(decorated, 1)
        slow = Gate()
        future.add_done_callback(slow)
        there.await_sent()
        gate.open()
        assert not pool.wait_idle(0)
        making = Background(there.make)
        slow.await_begun()
        assert future.done()
        assert not pool.wait_idle(0)
        slow.open()
        making.join()
        assert pool.wait_idle(TIMEOUT)


def test_callbacks_of_a_task_that_was_away_raise_nothing_there_and_must_not_wait_for_the_pool() -> None:
    errors: list[str] = []

    def wait_for_own(wait_for_it: Callable[[], object], _: object) -> None:
        with pytest.raises(RuntimeError, match="own pool"):
            wait_for_it()
        errors.append(wait_for_it.__name__)

    def leave(_: object) -> None:
        raise SystemExit(3)

    with spilling() as (pool, there, _):
        future = there.take(pool.submit, decorated, 1)
        for callback in (partial(wait_for_own, pool.wait_idle), leave, partial(wait_for_own, pool.shutdown)):
            future.add_done_callback(callback)
        there.make()
        assert errors == ["wait_idle", "shutdown"]
        assert future.result(TIMEOUT) == 2
        assert (pool.stats().away, pool.stats().spill_returned) == (0, 0)


# Lanes.


def test_the_limit_of_a_lane_holds_wherever_its_tasks_run() -> None:
    with spilling() as (pool, there, gate):
        lane = pool.lane("aside", limit=2)
        futures = [lane.submit(decorated, number) for number in range(5)]
        there.await_sent(2)
        stats = lane.stats()
        assert (stats.running, stats.queued, stats.submitted) == (2, 3, 5)
        assert [task.lane for task in pool.running()].count("aside") == 2
        there.make()
        there.await_sent()
        assert len(there.calls) == 2
        there.lose()
        assert (lane.stats().running, lane.stats().queued) == (1, 3)
        gate.open()
        eventually(lambda: there.make() if there.calls else all(future.done() for future in futures))
        assert [future.result(TIMEOUT) for future in futures] == [1, 2, 3, 4, 5]
        lane.shutdown(timeout=TIMEOUT)
        assert lane.stats().completed == 5


def test_room_in_a_bounded_queue_is_given_to_those_who_wait_for_it() -> None:
    with spilling(1, max_queue=1) as (pool, there, gate):
        first = there.take(pool.submit, decorated, 1)
        second = pool.submit(decorated, 2)
        third = Background(lambda: pool.submit(decorated, 3))
        there.make()
        there.await_sent()
        there.make()
        assert first.result(TIMEOUT) == 2
        assert second.result(TIMEOUT) == 3
        gate.open()
        future = third.join()
        eventually(lambda: future.done() or (there.calls and there.make()))
        assert future.result(TIMEOUT) == 4


# What is shown.


def test_what_is_away_is_shown() -> None:
    with spilling(thread_name_prefix="web") as (pool, there, _):
        lane = pool.lane("aside", limit=1)
        there.take(lane.submit, partial(copy_context().run, decorated), 1)
        (task,) = [task for task in pool.running(stacks=True) if task.away]
        assert (task.name.split(".")[-1], task.lane, task.thread) == ("decorated", "aside", "Elsewhere")
        assert (task.native_id, task.blocked, task.stack) == (None, False, None)
        stats = pool.stats()
        assert (stats.spilled, stats.spill_returned, stats.away) == (1, 0, 1)
        assert stats.submitted == stats.queued + stats.running + stats.away
        assert stats.longest_running >= task.seconds
        out = io.StringIO()
        monitor.dump(out)
        assert "1 away, 0 of 1 came back" in out.getvalue()
        shown_as = r"away at Elsewhere: \S*test_spill\.decorated, lane 'aside', sent \d+\.\d s ago"
        assert re.search(shown_as, out.getvalue())
        (shown,) = [found for found in monitor.snapshot()["pools"] if found["name"] == "web"]
        assert shown["away"] == shown["spilled"] == 1
        assert [found["away"] for found in shown["tasks"]].count(True) == 1


# The end.


@pytest.mark.parametrize("keep_alive", [LONG, 0])
def test_shutdown_waits_for_what_is_away_and_runs_what_comes_back_without_another_thread(
    monkeypatch: pytest.MonkeyPatch, keep_alive: float
) -> None:
    """Some Pythons start none while they exit."""
    with spilling(keep_alive=keep_alive) as (pool, there, gate):
        futures = [pool.submit(decorated, number) for number in range(2)]
        there.await_sent(2)
        # Before its task ends: without a keep-alive the worker leaves an open pool at once.
        pool.shutdown(wait=False)
        gate.open()
        with pytest.raises(TimeoutError, match=r"away at Elsewhere: .*decorated, sent \d+\.\d s ago"):
            pool.shutdown(timeout=A_MOMENT)
        ending = Background(pool.shutdown)
        assert ending.still_waits()
        eventually(lambda: pool.stats().idle)
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        there.lose()
        assert futures[0].result(TIMEOUT) == 1
        assert ending.still_waits()
        there.make()
        assert futures[1].result(TIMEOUT) == 2
        ending.join()
        assert pool.stats().workers == 0


def test_what_comes_back_after_cancel_futures_is_cancelled() -> None:
    with spilling(1) as (pool, there, gate):
        lane = pool.lane("one", limit=1)
        away, held = lane.submit(decorated, 1), lane.submit(decorated, 2)
        there.await_sent()
        pool.shutdown(wait=False, cancel_futures=True)
        gate.open()
        there.lose()
        assert away.cancelled()
        assert held.cancelled()
        stats = lane.stats()
        assert (stats.submitted, stats.cancelled, stats.completed, stats.running, stats.queued) == (2, 2, 0, 0, 0)
        of_pool = pool.stats()
        assert (of_pool.submitted, of_pool.cancelled, of_pool.spilled, of_pool.spill_returned) == (3, 2, 1, 1)


def test_a_broken_pool_fails_what_comes_back() -> None:
    there = Elsewhere()
    starts: list[int] = []

    def initialize() -> None:
        starts.append(1)
        if len(starts) > 1:
            raise Boom

    with AdaptiveExecutor(1, initializer=initialize, spill=there, spill_after=0) as pool, Gate() as gate:
        gate.hold(pool)
        stays, lost = pool.submit(decorated, 1), pool.submit(decorated, 2)
        there.await_sent()
        # Now the second thread comes, whose initializer breaks the pool.
        pool.resize(max_workers=2)
        pool.submit(int)
        eventually(lambda: pool._broken)

        def both_back() -> bool:
            # The second one may be sent only after the first has been lost.
            while there.calls:
                there.lose()
            return stays.done() and lost.done()

        eventually(both_back)
        for future in (stays, lost):
            with pytest.raises(BrokenThreadPool):
                future.result(TIMEOUT)
        gate.open()


@pytest.mark.parametrize("lost", [False, True])
def test_an_executor_may_be_collected_while_tasks_are_away(lost: bool) -> None:
    there = Elsewhere()
    pool = AdaptiveExecutor(1, min_workers=1, spill=there, spill_after=0)
    with seams.setting(spill_linger=0.01), Gate() as gate:
        gate.hold(pool)
        future = there.take(pool.submit, decorated, 1)
        reference = weakref.ref(pool)
        del pool
        collected(reference)
        gate.open()
        there.end(lost)
        assert future.result(TIMEOUT) == 2
        assert all_end(gate.threads)
        eventually(no_spiller)


def test_an_idle_pool_holds_nothing_of_what_was_away() -> None:
    with spilling() as (pool, there, gate):
        references = []
        futures: list[Any] = []
        for lost in (False, True):
            thing = Thing()
            references.append(weakref.ref(thing))
            futures.append(pool.submit(spillable(thing.method), thing))
            del thing
            there.await_sent()
            there.end(lost)
        # What was cancelled before its lane let it in.
        lane, thing = pool.lane("aside", limit=1), Thing()
        references.append(weakref.ref(thing))
        futures += lane.submit(int), lane.submit(spillable(thing.method), thing)
        futures[-1].cancel()
        del thing
        gone(references[-1])
        gate.open()
        wait(futures, TIMEOUT)
        gc.collect()
        gone(*references, pool=pool)


def test_what_submit_refuses_does_not_go() -> None:
    there = Elsewhere()
    with AdaptiveExecutor(1, spill=there, spill_after=0) as pool, Gate() as gate:
        with starting(r"ebbpool-\d+_\d+", no_thread), pytest.raises(RuntimeError, match="can't start"):
            pool.submit(decorated, 7)
        gate.hold(pool)
        future = there.take(pool.submit, decorated, 1)
        there.make()
        assert (future.result(TIMEOUT), there.sent) == (2, 1)


def test_its_thread_leaves_by_itself_and_comes_again_though_the_system_refuses_it() -> None:
    refused: list[bool] = []

    def refuse() -> None:
        if len(refused) < 2:
            refused.append(True)
            no_thread()

    with seams.setting(spill_linger=0.01), starting(".*_spill", refuse), spilling() as (pool, there, _):
        for _ in range(3):
            there.take(pool.submit, decorated, 1)
            there.make()
            eventually(no_spiller)
    assert len(refused) == 2


def test_the_interpreter_ends_once_all_has_come_back() -> None:
    script = """
        import sys, threading
        from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
        from ebbpool import AdaptiveExecutor, spillable

        gate, both_away = threading.Event(), threading.Barrier(3)

        def work(number):
            if threading.current_thread().name.startswith("there"):
                both_away.wait(20)
            gate.wait(20)
            if number == 1 and threading.current_thread().name.startswith("there"):
                there._broken = "lost"
                raise BrokenExecutor("lost")
            sys.stdout.write(f"{number} {threading.current_thread().name.split('_')[0]}\\n")

        there = ThreadPoolExecutor(2, thread_name_prefix="there")
        pool = AdaptiveExecutor(1, thread_name_prefix="here", spill=there, spill_after=0)
        pool.submit(gate.wait, 20)
        for number in range(2):
            pool.submit(spillable(work), number)
        both_away.wait(20)
        threading.Timer(0.2, gate.set).start()
    """
    assert sorted(output_of(script, "import logging; logging.disable()\n")) == ["0 there", "1 here"]


def test_what_is_away_stays_with_the_parent_of_a_fork() -> None:
    script = """
        import logging
        from concurrent.futures import ThreadPoolExecutor
        from ebbpool import spillable

        class There(ThreadPoolExecutor):
            def submit(self, *call):
                self.last = super().submit(*call)
                return self.last

        gate = threading.Event()
        there = There(2)
        there.submit(gate.wait, 20)
        before = there.submit(gate.wait, 20)
        pool = AdaptiveExecutor(1, spill=there, spill_after=0)
        pool.submit(gate.wait, 20)
        future = pool.submit(spillable(lambda: gate.wait(20)))
        while there.last is before or not there.last._done_callbacks:
            gate.wait(0.001)
        with there.last._condition:
            pass  # who has added the callback holds it no more, or the child would find it held for good

        def check():
            try:
                future.result(5)
            except BrokenThreadPool as error:
                print(error)
            assert pool.stats().away == 0
            logging.disable()
            assert there.last.cancel()
            print(pool.submit(pow, 2, 3).result(5))
            # The other executor has no threads here: all of its tasks stay.
            before, held = pool.stats().spilled, threading.Event()
            pool.submit(held.wait)
            stays = pool.submit(spillable(os.getpid))
            # Longer than a pool sends nothing after something came back.
            threading.Timer(0.7, held.set).start()
            print(stays.result(20) == os.getpid(), pool.stats().spilled - before)
            pool.shutdown()

        status = in_child(check)
        gate.set()
        print(status, future.result(5))
        pool.shutdown()
        there.shutdown()
    """
    assert forked(script) == [
        "the process was forked; this call was left with the parent",
        "8",
        "True 0",
        "0 True",
    ]


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"spill_after": -1}, ValueError, "spill_after must be at least 0 seconds, not -1"),
        ({"spill_after": math.inf}, ValueError, "spill_after must be a finite number of seconds, not inf"),
        ({"spill": "tcp://scheduler:8786"}, TypeError, "spill must be an executor, .* not 'tcp://scheduler:8786'"),
        ({"spill": ThreadPoolExecutor}, TypeError, "spill must be an executor, .* not <class"),
        ({"spill": Executor()}, TypeError, "spill must say in _max_workers how many calls it takes"),
        ({"spill": None, "spill_after": 0.5}, ValueError, r"spill_after=0\.5 needs a spill"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with ThreadPoolExecutor(1) as there, pytest.raises(error, match=message):
        AdaptiveExecutor(**({"spill": there} | arguments))


def test_a_pool_must_not_spill_to_itself_or_to_what_is_shut_down() -> None:
    with (
        ThreadPoolExecutor(1) as there,
        AdaptiveExecutor(1, spill=there) as first,
        AdaptiveExecutor(1, spill=first) as second,
    ):
        for place in (second, second.lane("aside", limit=1), first.lane("aside", limit=1), first):
            with pytest.raises(ValueError, match="lead back to the pool itself"):
                first.__init__(1, spill=place)  # type: ignore[misc]  # what a subclass might do
    with pytest.raises(ValueError, match="spill must not be shut down"):
        AdaptiveExecutor(1, spill=there)
