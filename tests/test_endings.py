"""How a pool ends: every way to hand in a call, by every way in which its pool may end before it begins; shutdown()."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures.thread import BrokenThreadPool
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Background, Boom, Gate, all_end, collected, eventually, forked, needs_stacks
from support.loops import given_up

from ebbpool import AdaptiveExecutor, aio

NUMBERS = itertools.count()
CLOSED = "cannot schedule new futures after shutdown"


def on_a_loop(pool: AdaptiveExecutor) -> Background:
    """Run a call from a loop in a thread of its own; it has been made when this returns."""
    made = threading.Event()

    async def main() -> int:
        try:
            future = pool.run(pow, 2, 3)
        finally:
            made.set()
        return int(await future)

    calling = Background(lambda: asyncio.run(main()))
    assert made.wait(TIMEOUT)
    return calling


FEATURES: dict[str, Callable[[AdaptiveExecutor], Callable[[], Any]]] = {
    "submit": lambda pool: pool.submit(pow, 2, 3).result,
    "submit_first": lambda pool: pool.submit_first(pow, 2, 3).result,
    "lane": lambda pool: pool.lane(f"lane {next(NUMBERS)}", limit=1).submit(pow, 2, 3).result,
    "behind its lane": lambda pool: in_a_full_lane(pool).submit(pow, 2, 3).result,
    "map": lambda pool: pool.map(pow, [2], [3]).__next__,
    "map_unordered": lambda pool: pool.map_unordered(pow, [2], [3]).__next__,
    "stream": lambda pool: pool.stream(lambda: iter([8])).__next__,
    "run": lambda pool: on_a_loop(pool).join,
}
"""How a call is handed in; each returns what waits for its outcome, which is 8."""


def in_a_full_lane(pool: AdaptiveExecutor) -> Any:
    lane = pool.lane(f"lane {next(NUMBERS)}", limit=1)
    lane.submit(int)
    return lane


def outcome_of(wait: Callable[[], Any]) -> str:
    try:
        return str(wait())
    except BrokenThreadPool:
        return "broken"
    except (CancelledError, asyncio.CancelledError):
        return "cancelled"
    except RuntimeError as error:
        return str(error)


ENDINGS = {"shut down": "8", "cancelled": "cancelled", "broken": "broken", "forgotten": "8"}
"""How a pool may end, and what becomes of a call that has not begun."""


def initialize(gate: Gate, ending: str) -> None:
    gate()
    if ending == "broken":
        raise Boom


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("feature", FEATURES)
def test_what_was_accepted_and_has_not_begun(feature: str, ending: str, caplog: pytest.LogCaptureFixture) -> None:
    with Gate() as gate:
        pool = AdaptiveExecutor(1, initializer=initialize, initargs=(gate, ending), keep_alive=LONG)
        pool.submit(int)
        gate.await_begun()
        wait = FEATURES[feature](pool)
        if ending == "forgotten":
            del pool
            gc.collect()
        elif ending != "broken":
            pool.shutdown(wait=False, cancel_futures=ending == "cancelled")
            with pytest.raises(RuntimeError, match=CLOSED):
                FEATURES[feature](pool)()
        gate.open()
        assert outcome_of(wait) == ENDINGS[ending]
    told = [(record.levelname, record.exc_info and record.exc_info[0]) for record in caplog.records]
    assert told == ([("CRITICAL", Boom)] if ending == "broken" else [])
    if ending == "broken":
        with pytest.raises(BrokenThreadPool, match="initializer failed"):
            FEATURES[feature](pool)()
    del wait
    gc.collect()
    assert all_end(gate.threads)


@pytest.mark.parametrize("ending", ["runs", "cancelled", "broken"])
def test_calls_that_wait_for_room_as_their_pool_ends(ending: str, caplog: pytest.LogCaptureFixture) -> None:
    """A call from a loop has been accepted, one of a thread has not."""

    with Gate() as gate, AdaptiveExecutor(1, "", initialize, (gate, ending), max_queue=1) as pool:
        pool.submit(int)
        gate.await_begun()
        pool.submit(int)
        submitting = Background(lambda: pool.submit(pow, 2, 3).result(TIMEOUT))
        calling = on_a_loop(pool)
        submitting.waits_for(pool)
        if ending == "broken":
            gate.open()
        else:
            pool.shutdown(wait=False, cancel_futures=ending == "cancelled")
        assert outcome_of(submitting.join) == ("broken" if ending == "broken" else CLOSED)
        gate.open()
        assert outcome_of(calling.join) == ("8" if ending == "runs" else ending)


def test_what_has_not_begun_stays_with_the_parent_of_a_fork() -> None:
    script = """
    pool = AdaptiveExecutor(1, max_queue=None)
    lane, full = pool.lane("one", limit=1), pool.lane("full", limit=1)
    gate, begun = threading.Event(), threading.Event()
    running = pool.submit(lambda: (begun.set(), gate.wait(20)))
    begun.wait(20)
    full.submit(int)
    futures = [pool.submit(int), pool.submit_first(int), pool.submit_later(600, int), lane.submit(int)]
    futures.append(full.submit(int))
    results, unordered = pool.map(int, range(3)), pool.map_unordered(int, range(3))
    stream = pool.stream(range, 3)
    def check():
        iterators = results, unordered, stream
        for wait in (running.result, *(future.result for future in futures), *(each.__next__ for each in iterators)):
            try:
                wait()
            except BrokenThreadPool as error:
                print(error)
        print(pool.submit(pow, 2, 3).result(10), lane.submit(pow, 2, 4).result(10), list(pool.map(int, "12")))
        pool.shutdown(timeout=10)
    print(in_child(check))
    gate.set()
    futures.pop(2).cancel()
    print([future.result(10) for future in futures], list(results), sorted(unordered), list(stream))
    """
    left = "the process was forked; this call was left with the parent"
    of_map = "the process was forked while the map was under way"
    of_stream = "the process was forked; this stream was left with the parent"
    told = "[0, 0, 0, 0] [0, 1, 2] [0, 1, 2] [0, 1, 2]"
    assert forked(script) == [left] * 6 + [of_map] * 2 + [of_stream, "8 16 [1, 2]", "0", told]


@pytest.mark.parametrize("ending", ["shut down", "without waiting", "forgotten"])
def test_a_pool_still_grows_for_what_it_has_taken(ending: str) -> None:
    pool: Any = AdaptiveExecutor(4, keep_alive=LONG)
    barrier = threading.Barrier(4)
    futures = [pool.submit(barrier.wait, TIMEOUT) for _ in range(4)]
    if ending != "forgotten":
        pool.shutdown(wait=ending == "shut down")
    pool = None
    gc.collect()
    assert sorted(future.result(TIMEOUT) for future in futures) == [0, 1, 2, 3]


def test_an_executor_that_is_in_use_by_its_task_alone_is_not_forgotten() -> None:
    with Gate() as gate:
        pool = AdaptiveExecutor(1, keep_alive=LONG)

        def task(pool: AdaptiveExecutor) -> object:
            gate()
            return pool.submit(pow, 2, 3)

        future = pool.submit(task, pool)
        gate.await_begun()
        reference = weakref.ref(pool)
        del pool
        gc.collect()
        assert reference() is not None
        gate.open()
        inner = future.result(TIMEOUT)
        assert inner.result(TIMEOUT) == 8  # type: ignore[attr-defined]
    collected(reference)
    assert all_end(gate.threads)


# shutdown(wait, cancel_futures, timeout): what still runs, what is told, and what is left.


@pytest.mark.counts_references
def test_shutdown_waits_for_the_very_end_of_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thread-local variables die after the last line that a thread runs: that, too, is waited for."""
    local = threading.local()
    ending, let_end, join = threading.Event(), threading.Event(), threading.Thread.join

    class Last:
        def __del__(self) -> None:
            ending.set()
            let_end.wait(TIMEOUT)

    def keep() -> threading.Thread:
        local.last = Last()
        return threading.current_thread()

    pool = AdaptiveExecutor(1, keep_alive=LONG)
    worker = pool.submit(keep).result(TIMEOUT)
    pool.shutdown(wait=False)
    try:
        assert ending.wait(TIMEOUT)
        monkeypatch.setattr(threading.Thread, "join", lambda thread, limit: (let_end.set(), join(thread, limit)))
        pool.shutdown()
        assert not worker.is_alive()
    finally:
        let_end.set()


def test_shutdown_at_any_time_again_and_from_many_threads() -> None:
    for wait in (True, False):
        pool = AdaptiveExecutor(4, min_workers=2)
        pool.shutdown(wait=wait)
        pool.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(int)
    for timeout in (float("inf"), 1e10):
        pool = AdaptiveExecutor(2)
        with Gate() as gate:
            future = pool.submit(gate, 1)
            gate.await_begun()
            closing = [Background(lambda pool=pool, timeout=timeout: pool.shutdown(timeout=timeout)) for _ in range(4)]
            closing[0].waits_for(pool, threads=4)
            gate.open()
            assert [each.join() for each in closing] == [None] * 4
        assert not pool._threads
        pool.shutdown()
        pool.shutdown(wait=False, cancel_futures=True)
        assert future.result(timeout=0) == 1


@needs_stacks
def test_the_report_shows_where_in_threading_a_task_hangs() -> None:
    def wait_for_it(event: threading.Event) -> None:
        event.wait()

    event = threading.Event()
    with AdaptiveExecutor(2, "report") as pool:
        hanging = [pool.submit(event.wait), pool.submit(wait_for_it, event)]
        eventually(lambda: all(future.running() for future in hanging))
        eventually(
            lambda: [(task.stack or "").count("waiter.acquire()") for task in pool.running(stacks=True)] == [1, 1]
        )
        with pytest.raises(TimeoutError) as caught:
            pool.shutdown(timeout=0)
        event.set()
    first, *rest = str(caught.value).split("\nreport_")
    assert first.startswith("after 0 s these tasks are still running:")
    assert len(rest) == 2
    for text, name, lines in zip(sorted(rest), ("threading.Event.wait", "wait_for_it"), (2, 3), strict=True):
        heading, *stack = text.splitlines()
        assert f"{name}, running for " in heading
        places = [line for line in stack if line.startswith('  File "')]
        assert len(places) == lines and "crew.py" not in text and "_core" not in text and "_bootstrap" not in text
        assert [threading.__file__ in place for place in places[-2:]] == [True, True]


def test_the_report_tells_of_lanes_and_of_what_nobody_waits_for() -> None:
    async def give_up(pool: AdaptiveExecutor, gate: Gate) -> None:
        call = pool.run(gate)
        await asyncio.to_thread(gate.await_begun)
        call.cancel()

    with AdaptiveExecutor(2, "report") as pool, Gate() as gate:
        asyncio.run(give_up(pool, gate))
        lane = pool.lane("db", limit=1)
        gate.hold(lane)
        with pytest.raises(TimeoutError, match=r"Gate, .* s, abandoned: its await was cancelled\n") as caught:
            pool.shutdown(timeout=0)
        assert str(caught.value).count("Gate, lane 'db', running for") == 1


def with_block(pool: AdaptiveExecutor) -> None:
    with pool:
        pass


async def async_with_block(pool: AdaptiveExecutor) -> None:
    async with pool:
        pass


def loop_of(factory: Callable[[], asyncio.AbstractEventLoop]) -> Callable[[AdaptiveExecutor], None]:
    async def main(pool: AdaptiveExecutor) -> None:
        asyncio.get_running_loop().set_default_executor(pool)

    def run(pool: AdaptiveExecutor) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main(pool))

    return run


LEAVING: dict[str, Callable[[AdaptiveExecutor], object]] = {
    "shutdown": AdaptiveExecutor.shutdown,
    "shutdown with a time-out": lambda pool: pool.shutdown(timeout=TIMEOUT),
    "with": with_block,
    "async with": lambda pool: asyncio.run(async_with_block(pool)),
    "asyncio.run": loop_of(asyncio.new_event_loop),
    "asyncio.run with our loop": loop_of(aio.new_loop_factory()),
}
"""What waits for the threads of a pool."""


@pytest.mark.parametrize("end", LEAVING.values(), ids=LEAVING)
def test_an_end_leaves_abandoned_calls_behind_and_waits_for_others(
    end: Callable[[AdaptiveExecutor], object], caplog: pytest.LogCaptureFixture
) -> None:
    pool = AdaptiveExecutor(3, "web", daemon=True, leave_after=0.0)
    with Gate() as gate, Gate() as wanted:
        given_up(gate.hold(pool))
        futures = [pool.submit(wanted) for _ in range(4)]
        wanted.await_begun(3)
        ending = Background(lambda: end(pool))
        ending.waits_for(pool)
        wanted.open()
        ending.join()
        assert [future.result(0) for future in futures] == [None] * 4
        [text] = [record.getMessage() for record in caplog.records]
        first, told, *_ = text.splitlines()
        assert first == "pool 'web' no longer waits for abandoned calls:"
        assert re.fullmatch(r"web_\d+: .*Gate, running for \d+\.\d s, abandoned: its await was cancelled", told)
    assert all_end(gate.threads)


def test_an_end_cancels_what_waits_behind_abandoned_calls_alone(caplog: pytest.LogCaptureFixture) -> None:
    pool = AdaptiveExecutor(1, daemon=True, leave_after=0.0)
    with Gate() as gate:
        given_up(gate.hold(pool))
        waiting = pool.submit(int)
        pool.shutdown()
        assert waiting.cancelled() and "no longer waits for abandoned calls" in caplog.text
    assert all_end(gate.threads)


def test_an_end_waits_for_abandoned_calls_until_it_may_leave_them(caplog: pytest.LogCaptureFixture) -> None:
    with Gate() as gate:
        pool = AdaptiveExecutor(2, daemon=True, leave_after=LONG)
        given_up(gate.hold(pool))
        with pytest.raises(TimeoutError, match="abandoned: its await was cancelled"):
            pool.shutdown(timeout=0)
        ending = Background(pool.shutdown)
        ending.waits_for(pool)
        gate.open()
        ending.join()
    assert not caplog.records


def test_an_end_that_waits_learns_that_a_call_is_abandoned() -> None:
    pool = AdaptiveExecutor(2, daemon=True, leave_after=0.0)
    with Gate() as gate:
        future = gate.hold(pool)
        ending = Background(pool.shutdown)
        ending.waits_for(pool)
        given_up(future)
        ending.join()
    assert all_end(gate.threads)


def test_only_daemons_can_be_left_behind() -> None:
    with pytest.raises(ValueError, match=r"leave_after=5\.0 needs daemon=True"):
        AdaptiveExecutor(leave_after=5.0)
    with pytest.raises(ValueError, match="leave_after must be at least 0 seconds, not -1"):
        AdaptiveExecutor(leave_after=-1, daemon=True)


def test_a_task_may_shut_its_own_pool_down_and_cannot_wait_for_that() -> None:
    pool = AdaptiveExecutor(2)
    with pytest.raises(RuntimeError, match="a task cannot wait for its own pool to shut down"):
        pool.submit(pool.shutdown).result(TIMEOUT)
    assert pool._shutdown is True
    pool.shutdown(timeout=TIMEOUT)
    pool = AdaptiveExecutor(2)
    assert pool.submit(pool.shutdown, wait=False).result(TIMEOUT) is None
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(int)
    pool.shutdown()
