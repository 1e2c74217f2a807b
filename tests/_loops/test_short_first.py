"""Calls of functions that are short, by what is known, go first, and have a few threads to themselves."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test
from support import seams
from support.common import TIMEOUT, Gate, Thing, eventually, gone
from support.loops import on_every_loop, turns, until
from support.model import profile
from support.turns import TurnsModel

from ebbpool import AdaptiveExecutor, QueueFull


def slow(order: list[str], name: str) -> None:
    order.append(name)


def quick(order: list[str], name: str) -> None:
    order.append(name)


def other(order: list[str], name: str) -> None:
    order.append(name)


def wait_at(gate: Gate) -> None:
    gate()


async def begin(pool: Any, fn: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
    """Call as a task of its own."""

    async def call() -> Any:
        return await pool.run(fn, *args)

    task = asyncio.ensure_future(call())
    await turns()
    return task


def become_short(pool: Any, fn: Callable[..., Any]) -> None:
    seams.know(pool, fn, 1e-6, 10_000)
    # So that all calls together still take long.
    seams.know(pool, slow, 1e6)


@asynccontextmanager
async def busy(pool: AdaptiveExecutor, beside: int = 0) -> AsyncIterator[Gate]:
    """Have all threads but one, and so many of those for short calls, wait at a gate; the last waits at the one given.

    At least one more task waits, so that what is called is measured. `slow` is known to be slow, and `quick` is short.
    """
    seams.know(pool, slow, 1e6)
    seams.know(pool, quick, 1e-5)
    seams.know(pool, wait_at, 1e-5)
    with Gate() as others, Gate() as last:
        held = [pool.submit(others) for _ in range(pool._max_workers - 1)]
        await asyncio.to_thread(others.await_begun, len(held))
        held.append(pool.submit(last))
        await asyncio.to_thread(last.await_begun)
        waiting = [await begin(pool, wait_at, others) for _ in range(beside)]
        await asyncio.to_thread(others.await_begun, beside)
        yield last
        last.open()
        others.open()
        await asyncio.gather(*waiting, *map(asyncio.wrap_future, held))


@on_every_loop
async def test_short_calls_have_a_thread_where_all_others_are_taken() -> None:
    async with AdaptiveExecutor(2) as pool:
        order: list[str] = []
        async with busy(pool):
            waiting = [await begin(pool, slow, order, name) for name in "ab"]
            await pool.run(quick, order, "c")
            stats = pool.stats()
            assert (order, stats.workers, stats.queued, stats.went_first) == (["c"], 3, 2, 1)
        await asyncio.gather(*waiting)
        assert sorted(order[1:]) == ["a", "b"]


@pytest.mark.usefixtures("no_turns")
@pytest.mark.asyncio
async def test_short_calls_go_before_the_others_in_order() -> None:
    async with AdaptiveExecutor(2) as pool:
        order: list[str] = []
        async with busy(pool, 1) as gate:
            calls = [await begin(pool, slow, order, "a"), await begin(pool, quick, order, "c")]
            calls += [await begin(pool, slow, order, "b"), await begin(pool, quick, order, "d")]
            gate.open()
            await asyncio.gather(*calls)
        # Without a GIL a worker that has taken "d" may come to its call after the other has made two.
        assert order == ["c", "d", "a", "b"] or (seams.FREE_THREADED and order[0] == "c")


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["slow", "submit", "submit_first", "a lane of one", "turned off", "a pool of one"])
async def test_a_thread_beyond_the_limit_is_for_short_calls_alone(way: str) -> None:
    async with AdaptiveExecutor(1 if way == "a pool of one" else 2, short_first=way != "turned off") as pool:
        lane = pool.lane("one", limit=1)
        async with busy(pool):
            with Gate() as gate:
                # The first call finds nothing that waits, and is not measured.
                calls = [await begin(pool, int)]
                if way == "slow":
                    seams.know(pool, wait_at, 1e9)
                if way in ("submit", "submit_first"):
                    call = asyncio.wrap_future(getattr(pool, way)(wait_at, gate))
                else:
                    call = await begin(lane if way == "a lane of one" else pool, wait_at, gate)
                assert await asyncio.to_thread(gate.nobody_begins, pool)
                if way != "slow":
                    await until(lambda: pool.stats().workers == pool._max_workers)
                gate.open()
        await asyncio.gather(call, *calls)


@pytest.mark.asyncio
async def test_of_an_unknown_function_one_call_at_a_time_is_taken_for_short() -> None:
    async with AdaptiveExecutor(32) as pool:
        async with busy(pool):
            with Gate() as gate:
                calls = [await begin(pool, lambda: gate()) for _ in range(4)]
                await asyncio.to_thread(gate.await_begun)
                assert await asyncio.to_thread(gate.nobody_begins, pool)
                assert pool.stats().queued == 3
                gate.open()
        await asyncio.gather(*calls)


@pytest.mark.usefixtures("no_turns")
@pytest.mark.asyncio
async def test_a_short_call_that_is_cancelled_makes_way_for_another() -> None:
    async with AdaptiveExecutor(2) as pool:
        order: list[str] = []
        async with busy(pool, 1) as gate:
            calls = [await begin(pool, slow, order, "a")]
            tried = await begin(pool, other, order, "cancelled")
            tried.cancel()
            await asyncio.wait([tried])
            calls += [await begin(pool, slow, order, "b"), await begin(pool, other, order, "c")]
            gate.open()
            await asyncio.gather(*calls)
        assert order == ["c", "a", "b"]


@pytest.mark.asyncio
async def test_calls_that_become_known_to_be_short_move_up() -> None:
    async with AdaptiveExecutor(2) as pool:
        order: list[str] = []
        async with busy(pool):
            calls = [await begin(pool, slow, order, name) for name in "ab"]
            seams.know(pool, other, 1e6)
            moves = [await begin(pool, other, order, name) for name in "cd"]
            become_short(pool, other)
            await asyncio.gather(*moves)
            assert order == ["c", "d"]
            assert any("test_short_first.other are short" in each.reason for each in pool.decisions())
        await asyncio.gather(*calls)


@pytest.mark.usefixtures("no_turns")
@pytest.mark.asyncio
async def test_calls_that_become_long_move_back_to_their_place() -> None:
    async with AdaptiveExecutor(2) as pool:
        order: list[str] = []
        async with busy(pool, 1) as gate:
            seams.know(pool, other, 1e-6)
            calls = [await begin(pool, fn, order, name) for fn, name in ((slow, "a"), (other, "b"), (slow, "c"))]
            seams.know(pool, other, 1e6)
            seams.look_ahead(pool, 1.0)
            gate.open()
            await asyncio.gather(*calls)
        assert order == ["a", "b", "c"]


@pytest.mark.usefixtures("no_turns")
@on_every_loop
async def test_the_calls_of_one_task_keep_their_order() -> None:
    """Also where their function becomes short while they wait."""
    async with AdaptiveExecutor(2) as pool:
        order: list[str] = []

        async def both(name: str) -> None:
            await asyncio.gather(pool.run(slow, order, name), pool.run(quick, order, name.upper()))

        async with busy(pool, 1) as gate:
            calls = [await begin(pool, slow, order, "x")]
            calls += [asyncio.ensure_future(both(name)) for name in "ab"]
            await turns()
            seams.know(pool, other, 1e6)
            calls.append(await begin(pool, other, order, "y"))
            become_short(pool, other)
            seams.look_ahead(pool, 1.0)
            gate.open()
            await asyncio.gather(*calls)
        assert "".join(order) == "yxaAbB"


@pytest.mark.asyncio
async def test_tasks_that_were_to_go_first_give_turns_to_the_oldest_of_the_others() -> None:
    """Or a call that is not short would overtake a short one of its own task."""
    order: list[str] = []
    with seams.setting(overtaken=0.0):
        async with AdaptiveExecutor(2) as pool, busy(pool, 1) as gate:
            calls = [await begin(pool, slow, order, "x")]
            calls += [pool.run(quick, order, "A"), pool.run(slow, order, "a")]
            for number in "123":
                pool.submit_first(slow, order, number)
            gate.open()
            await asyncio.gather(*calls)
    assert [name for name in order if name in "xAa"] == ["x", "A", "a"]


@pytest.mark.asyncio
async def test_an_idle_worker_that_is_held_back_does_not_keep_one_waiting() -> None:
    order: list[str] = []
    with seams.watched_by(seams.Nobody()), AdaptiveExecutor(4, min_workers=2) as pool:
        seams.know(pool, quick, 1e-5)
        with Gate() as gate, Gate() as idle:
            pool.submit(gate)
            pool.submit(idle)
            await asyncio.to_thread(gate.await_begun)
            await asyncio.to_thread(idle.await_begun)
            idle.open()
            await asyncio.to_thread(eventually, lambda: pool.stats().idle == 1)
            seams.engine_of(pool).admit(1)
            await asyncio.wait_for(pool.run(quick, order, "a"), TIMEOUT)
            assert order == ["a"]


@pytest.mark.asyncio
async def test_the_others_have_a_turn_where_they_have_half_of_the_threads() -> None:
    """Once in a while: those that run may never end."""
    async with AdaptiveExecutor(2) as pool:
        order: list[str] = []
        with seams.setting(overtaken=0.0):
            async with busy(pool, 1) as gate:
                calls = [await begin(pool, slow, order, name) for name in "ab"]
                calls += [await begin(pool, quick, order, name) for name in "cd"]
                gate.open()
                await asyncio.gather(*calls)
    assert order == ["a", "c", "b", "d"]


@pytest.mark.asyncio
async def test_a_flood_of_short_calls_leaves_every_other_turn_to_the_others() -> None:
    order: list[str] = []
    with seams.setting(overtaken=0.0):
        async with AdaptiveExecutor(2) as pool:
            seams.know(pool, slow, 1e6)
            for short in (quick, wait_at):
                seams.know(pool, short, 1e-5)
            with Gate() as one, Gate() as two, Gate() as shorts:
                one.hold(pool)
                two.hold(pool)
                calls = [await begin(pool, wait_at, shorts) for _ in range(2)]
                await asyncio.to_thread(shorts.await_begun)
                one.open()
                await asyncio.to_thread(shorts.await_begun)
                calls += [await begin(pool, slow, order, name) for name in "ab"]
                calls += [await begin(pool, quick, order, name) for name in "cd"]
                two.open()
                await asyncio.to_thread(eventually, lambda: pool.stats().queued == 0)
                shorts.open()
                await asyncio.gather(*calls)
    assert order == ["a", "c", "b", "d"]


@pytest.mark.asyncio
@pytest.mark.parametrize("when_full", ["block", "reject"])
async def test_a_full_queue_does_not_refuse_short_calls(when_full: Any) -> None:
    async with AdaptiveExecutor(2, max_queue=1, when_full=when_full) as pool:
        order: list[str] = []
        async with busy(pool):
            queued = await begin(pool, slow, order, "a")
            beyond = await begin(pool, slow, order, "b")
            await pool.run(quick, order, "c")
            assert order == ["c"]
            if when_full == "reject":
                with pytest.raises(QueueFull):
                    await beyond
        await queued
        if when_full == "block":
            await beyond
    # Both workers may come at once for the others.
    assert sorted(order) == (["a", "b", "c"] if when_full == "block" else ["a", "c"])


@pytest.mark.asyncio
async def test_a_pool_that_becomes_smaller_keeps_as_many_threads_for_short_calls_as_its_size_allows() -> None:
    async with AdaptiveExecutor(64) as pool:
        pool.resize(max_workers=2)
        order: list[str] = []
        async with busy(pool, 1):
            calls = [await begin(pool, slow, order, "a")]
            with Gate() as gate:
                calls.append(await begin(pool, wait_at, gate))
                assert await asyncio.to_thread(gate.nobody_begins, pool)
                assert pool.stats().workers == 3
                gate.open()
        await asyncio.gather(*calls)


@on_every_loop
@pytest.mark.parametrize("first", [True, False], ids=["in its first call", "in its second"])
async def test_a_request_that_holds_a_connection_gets_to_return_it(first: bool) -> None:
    """Ten times as many requests as threads, and nothing is known at first: they must not freeze."""
    connections = threading.Semaphore(3)
    names = ["take", "look", "give"] if first else ["look", "take", "look", "give"]

    def take() -> bool:
        return connections.acquire(timeout=TIMEOUT)

    def look() -> bool:
        return True

    def give() -> bool:
        connections.release()
        return True

    calls = {"take": take, "look": look, "give": give}
    async with AdaptiveExecutor(16) as pool:

        async def request() -> bool:
            return all([await pool.run(calls[name]) for name in names])

        for _ in range(2):
            assert all(await asyncio.gather(*(request() for _ in range(160))))


@pytest.mark.asyncio
async def test_a_full_queue_does_not_keep_a_connection_from_being_returned() -> None:
    """It is full of calls that wait for one, and nothing is known at first."""
    connections = threading.Semaphore(2)
    answered = []

    def take() -> bool:
        return connections.acquire(timeout=TIMEOUT)

    async def request(pool: AdaptiveExecutor) -> None:
        answered.append(await pool.run(take))
        await asyncio.sleep(0)
        await pool.run(lambda: connections.release())

    async with AdaptiveExecutor(4, max_queue=4, when_full="block") as pool:
        await asyncio.gather(*(request(pool) for _ in range(40)))
    assert answered == [True] * 40


@pytest.mark.asyncio
async def test_short_calls_have_as_much_room_in_a_queue_as_the_others() -> None:
    async with AdaptiveExecutor(2, max_queue=3, when_full="reject") as pool:
        async with busy(pool, 1):
            calls = [await begin(pool, fn, [], "") for fn in (slow, quick) for _ in range(5)]
            assert pool.stats().queued == 6
            refused = [call for call in calls if call.done()]
            assert [type(call.exception()) for call in refused] == [QueueFull] * 4
        await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.usefixtures("no_turns")
@pytest.mark.asyncio
async def test_no_short_call_overtakes_a_call_of_its_task_that_a_full_queue_keeps_out() -> None:
    async with AdaptiveExecutor(2, max_queue=1) as pool:
        order: list[str] = []

        async def both() -> None:
            await asyncio.gather(pool.run(slow, order, "a"), pool.run(quick, order, "b"))

        async with busy(pool, 1) as gate:
            calls = [await begin(pool, slow, order, "x"), asyncio.ensure_future(both())]
            await turns()
            assert order == []
            gate.open()
            await asyncio.gather(*calls)
    assert order == ["x", "a", "b"]


@pytest.mark.asyncio
async def test_an_idle_thread_beyond_the_limit_takes_the_next_short_call() -> None:
    async with AdaptiveExecutor(2) as pool:
        order: list[str] = []
        async with busy(pool):
            client = await begin(pool, slow, order, "gives up")
            await pool.run(quick, order, "a")
            client.cancel()
            await asyncio.wait([client])
            await asyncio.to_thread(eventually, lambda: pool.stats().idle == 1)
            await pool.run(quick, order, "b")
    assert order == ["a", "b"]


@pytest.mark.asyncio
async def test_calls_that_are_not_made_say_nothing_of_their_function() -> None:
    async with AdaptiveExecutor(2) as pool:
        order: list[str] = []
        late = pool.lane("late", limit=10, max_wait=0.001)
        async with busy(pool) as gate:
            calls = [await begin(pool, slow, order, "a"), *[await begin(late, other, order, "b") for _ in range(3)]]
            gate.open()
            await asyncio.gather(*calls, return_exceptions=True)
        made = order.count("b")
        assert seams.known_of(pool, other).ended == made


@pytest.mark.asyncio
async def test_the_newest_short_calls_go_first_where_the_queue_stands() -> None:
    with seams.watched_by(seams.Nobody()):
        async with AdaptiveExecutor(2, min_workers=2, max_wait=60.0) as pool:
            order: list[str] = []
            async with busy(pool, 1) as gate:
                calls = [await begin(pool, quick, order, name) for name in "abc"]
                for seconds in (10.0, 20.0):
                    seams.look_at(pool, time.monotonic() + seconds)
                gate.open()
                await asyncio.gather(*calls)
    assert order == ["c", "b", "a"]


def test_a_lane_knows_how_long_its_short_calls_have_waited() -> None:
    async def main() -> float:
        async with AdaptiveExecutor(2) as pool:
            lane = pool.lane("lane", limit=10)
            async with busy(pool, 1):
                calls = [await begin(lane, quick, [], "") for _ in range(3)]
                await asyncio.to_thread(eventually, lambda: lane.stats().oldest_wait > 0)
            await asyncio.gather(*calls)
            return lane.stats().oldest_wait

    assert asyncio.run(main()) == 0.0


class Remote:
    """A proxy: each of its attributes is another, which cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str = "") -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__qualname__":
            raise AttributeError(name)
        return Remote(name)

    def __call__(self) -> None: ...


def test_whatever_is_called_nothing_is_lost_and_every_count_adds_up() -> None:
    run_state_machine_as_test(TurnsModel, settings=profile(50, derandomize=True, database=None))


@contextmanager
def managed() -> Iterator[None]:
    yield


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        return fn(*args)

    return wrapper


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (lambda: slow, lambda: functools.partial(slow, []), True),
        (lambda: slow, lambda: wrapped(slow), True),
        (lambda: wrapped(quick), lambda: wrapped(slow), False),
        (lambda: Thing().method, lambda: Thing().method, True),
        (lambda: [].append, lambda: [1].append, True),
        (lambda: [].append, lambda: [].pop, False),
        (lambda: Thing, lambda: Gate, False),
        (lambda: Gate(), lambda: Gate(), True),
        (lambda: managed().__enter__, lambda: managed().__enter__, True),
        (lambda: managed().__enter__, lambda: managed().__exit__, False),
        (lambda: slow, lambda: quick, False),
        (lambda: len, lambda: sum, False),
        (lambda: Remote().one, lambda: Remote().two, True),
    ],
)
def test_by_what_a_function_is_told(one: Callable[[], Any], two: Callable[[], Any], same: bool) -> None:
    with AdaptiveExecutor() as pool:
        assert (seams.known_of(pool, one()) is seams.known_of(pool, two())) is same
        assert seams.known_of(pool, copy_context().run, one()) is seams.known_of(pool, one())


@pytest.mark.skipif(seams.FREE_THREADED, reason="there code lives for ever")
def test_functions_that_are_not_called_any_more_are_forgotten() -> None:
    scope: dict[str, Any] = {}
    with AdaptiveExecutor() as pool:
        exec("def made(): pass", scope)
        code = weakref.ref(scope["made"].__code__)
        known = seams.known_of(pool, slow)
        seams.known_of(pool, scope.pop("made"))
        for number in range(5000):
            exec(f"def made(): return {number}", scope)
            seams.known_of(pool, scope["made"])
            assert seams.known_of(pool, slow) is known
        gone(code)
