"""A task that has called before goes first: who holds something gets a thread to give it back."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support import seams
from support.common import TIMEOUT, Gate, Thing, eventually, gone
from support.loops import on_every_loop, turns

from ebbpool import AdaptiveExecutor, QueueFull


class Known:
    """A task of the loop that has called a pool before, and calls it again when it is told to."""

    def __init__(self, pool: AdaptiveExecutor) -> None:
        self.pool = pool
        self.ready = asyncio.Event()
        self.told: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> Any:
        await self.pool.run(int)
        self.ready.set()
        calls = []
        while (call := await self.told.get()) != ():
            calls.append(self.pool.run(*call))
        return await asyncio.gather(*calls)

    async def call(self, fn: Callable[..., Any], *args: Any) -> None:
        """Have it call, and let it go so far."""
        self.told.put_nowait((fn, *args))
        await turns()

    async def end(self) -> Any:
        """Let it end, and return what its calls have returned."""
        self.told.put_nowait(())
        return await self.task


async def known(pool: AdaptiveExecutor) -> Known:
    task = Known(pool)
    await task.ready.wait()
    return task


async def begin(pool: AdaptiveExecutor, fn: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
    """Call as a task of its own, which has not called before."""

    async def call() -> Any:
        return await pool.run(fn, *args)

    task = asyncio.ensure_future(call())
    await turns()
    return task


@pytest.mark.usefixtures("no_turns")
@on_every_loop
async def test_they_go_before_those_that_begin_in_order() -> None:
    order: list[str] = []
    async with AdaptiveExecutor(1) as pool:
        tasks = [await known(pool) for _ in range(2)]
        with Gate() as gate:
            held = await begin(pool, gate)
            gate.await_begun()
            calls = [await begin(pool, order.append, name) for name in "ab"]
            plain = pool.submit(order.append, "c")
            for task, name in zip(tasks, "de", strict=True):
                await task.call(order.append, name)
            # It has a call that waits: this one begins something.
            await tasks[0].call(order.append, "f")
            gate.open()
            await asyncio.gather(held, asyncio.wrap_future(plain), *calls, *[task.end() for task in tasks])
    assert "".join(order) == "deabcf"


@on_every_loop
@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("a call", ["own", "first", "second"]),
        ("a call that never began", ["first", "second", "own"]),
        ("a call of another pool", ["first", "second", "own"]),
    ],
)
async def test_only_a_call_of_the_task_itself_to_this_pool_counts(before: str, expected: list[str]) -> None:
    """The tasks that it starts begin."""
    order: list[str] = []
    async with AdaptiveExecutor(1) as pool, AdaptiveExecutor(1) as another:
        if before != "a call that never began":
            await (pool if before == "a call" else another).run(int)
        with Gate() as gate:
            held = await begin(pool, gate)
            gate.await_begun()
            others = [await begin(pool, order.append, name) for name in ("first", "second")]
            if before == "a call that never began":
                pool.run(order.append, "cancelled").cancel()
            own = pool.run(order.append, "own")
            gate.open()
            await asyncio.gather(held, *others, own)
    assert order == expected


@on_every_loop
async def test_turns_leave_the_calls_of_one_task_in_order() -> None:
    order: list[str] = []
    with seams.setting(overtaken=0.02):
        async with AdaptiveExecutor(1) as pool:
            tasks = [await known(pool) for _ in range(3)]
            with Gate() as gate:
                held = await begin(pool, gate)
                gate.await_begun()
                for task, name in zip(tasks, "abc", strict=True):
                    await task.call(order.append, name)
                for name in "de":
                    await tasks[2].call(order.append, name)
                eventually(lambda: pool.stats().oldest_wait > 0.1)
                seams.look_at(pool)
                gate.open()
                await asyncio.gather(held, *[task.end() for task in tasks])
    assert "".join(order) == "abcde"


@pytest.mark.asyncio
@pytest.mark.parametrize("when_full", ["block", "reject"])
async def test_a_full_queue_does_not_refuse_them(when_full: Any) -> None:
    async with AdaptiveExecutor(1, max_queue=1, when_full=when_full) as pool:
        task = await known(pool)
        with Gate() as gate:
            held = await begin(pool, gate)
            gate.await_begun()
            queued = await begin(pool, int)
            beginning = await begin(pool, int)
            await task.call(int, 5)
            gate.open()
            await asyncio.gather(held, queued)
            assert await task.end() == [5]
            if when_full == "reject":
                with pytest.raises(QueueFull):
                    await beginning
            else:
                assert await beginning == 0


@pytest.mark.asyncio
async def test_the_reserve_is_for_them_alone() -> None:
    async with AdaptiveExecutor(16) as pool:
        task = await known(pool)
        with Gate() as gate, Gate() as beginners:
            waiting = [await begin(pool, beginners) for _ in range(17)]
            await asyncio.to_thread(beginners.await_begun, 16)
            first = pool.submit_first(beginners)
            assert await asyncio.to_thread(beginners.nobody_begins)
            assert first.cancel()
            await task.call(gate)
            await asyncio.to_thread(gate.await_begun)
            assert pool.stats().running == 17
            gate.open()
            await task.end()
            # The seventeenth thread is idle, and the others wait.
            assert await asyncio.to_thread(beginners.nobody_begins)
            beginners.open()
            await asyncio.gather(*waiting)


async def look_ahead(pool: AdaptiveExecutor, seconds: float) -> None:
    """Have the timekeeper, which looks alone, look at a pool as if it were later."""
    looked = threading.Event()

    def look() -> None:
        seams.look_at(pool, time.monotonic() + seconds)
        looked.set()

    seams.in_timekeeper(look)
    assert await asyncio.to_thread(looked.wait, TIMEOUT)


@pytest.mark.asyncio
async def test_a_small_pool_has_no_reserve() -> None:
    async with AdaptiveExecutor(1) as pool:
        task = await known(pool)
        with Gate() as gate:
            running = await begin(pool, gate)
            gate.await_begun()
            await task.call(int)
            for seconds in range(4):
                await look_ahead(pool, seconds)
            assert pool.stats().workers == 1
            gate.open()
            assert [await running, await task.end()] == [None, [0]]


async def stuck(
    pool: AdaptiveExecutor, given_back: threading.Event, known_tasks: int
) -> tuple[list[Known], list[asyncio.Task[Any]]]:
    """Have a pool of 16, and the four threads that it may have beyond, wait for something; return who waits."""
    tasks = [await known(pool) for _ in range(known_tasks)]
    beginners = [await begin(pool, given_back.wait, TIMEOUT) for _ in range(16)]
    await asyncio.to_thread(eventually, lambda: pool.stats().running == 16)
    with Gate() as gate:
        # Until all have called: where none of them waits, the reserve becomes small again.
        seams.in_timekeeper(gate)
        await asyncio.to_thread(gate.await_begun)
        for task in tasks:
            await task.call(given_back.wait, TIMEOUT)
    await asyncio.to_thread(eventually, lambda: pool.stats().running == 20)
    return tasks, beginners


@pytest.mark.asyncio
async def test_the_reserve_grows_while_it_is_stuck_up_to_a_bound() -> None:
    """One thread more comes for each 0.05 s in which none takes a task, until there is a quarter more."""
    async with AdaptiveExecutor(16) as pool:
        given_back = threading.Event()
        tasks, beginners = await stuck(pool, given_back, 6)
        assert pool.stats().queued == 2
        for seconds in range(1, 4):
            await look_ahead(pool, seconds)
        assert pool.stats().workers == 20
        given_back.set()
        await asyncio.gather(*beginners, *[task.end() for task in tasks])
        reasons = [each.reason for each in pool.decisions()]
        assert sum("while calls of tasks under way waited" in reason for reason in reasons) == 3
        # Those that came later leave again.
        await asyncio.to_thread(eventually, lambda: pool.stats().workers <= 17)


@pytest.mark.asyncio
async def test_a_reserve_that_is_stuck_takes_no_place_that_was_lent() -> None:
    """A call that lifts the ceiling gets its thread, though more run than there may be for others."""
    async with AdaptiveExecutor(16) as pool:
        given_back = threading.Event()
        tasks, beginners = await stuck(pool, given_back, 4)
        seams.look_at(pool)
        lifted = seams.lift(pool, given_back.set)
        assert all(await asyncio.gather(*beginners)), "it came only as they had given up"
        await asyncio.gather(asyncio.wrap_future(lifted), *[task.end() for task in tasks])


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["blocked", "in a session", "first"])
async def test_the_reserve_is_no_place_for_others(way: str) -> None:
    """Whatever else goes first, has a thread of its own or waits for its own pool."""
    async with AdaptiveExecutor(16) as pool:
        task = await known(pool)
        with Gate() as gate, Gate() as child, pool.session() as session:
            if way == "in a session":
                await asyncio.wrap_future(session.submit(int))
            elif way == "blocked":
                pool.submit_first(lambda: pool.submit(child).result(TIMEOUT))
                await asyncio.to_thread(child.await_begun)
            room = 15 if way == "blocked" else 16
            submit = pool.submit_first if way == "first" else pool.submit
            others = [submit(gate) for _ in range(room + 3)]
            await asyncio.to_thread(gate.await_begun, room)
            await task.call(int, 5)
            assert await task.end() == [5]
            assert await asyncio.to_thread(gate.nobody_begins)
            child.open()
            gate.open()
            await asyncio.gather(*map(asyncio.wrap_future, others))


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["alone", "behind another"])
async def test_one_that_is_cancelled_leaves_no_place_beyond_the_ceiling(way: str) -> None:
    async with AdaptiveExecutor(16, keep_alive=0.0) as pool:
        tasks = [await known(pool) for _ in range(2)]
        with Gate() as gate, Gate() as others:
            futures = [pool.submit(others) for _ in range(16)]
            await asyncio.to_thread(others.await_begun, 16)
            await tasks[0].call(gate)
            await asyncio.to_thread(gate.await_begun)
            if way == "behind another":
                futures.append(pool.submit_first(others))
            await tasks[1].call(int)
            tasks[1].told.put_nowait(())
            await turns()
            tasks[1].task.cancel()
            await asyncio.wait([tasks[1].task])
            if way == "alone":
                pool.stats()
            gate.open()
            await tasks[0].end()
            await asyncio.to_thread(eventually, lambda: pool.stats().workers == 16)
            futures.append(pool.submit_first(others))
            assert await asyncio.to_thread(others.nobody_begins)
            others.open()
            await asyncio.gather(*map(asyncio.wrap_future, futures))


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["this pool", "another", "a lane that is closed"])
async def test_one_that_is_refused_leaves_nothing_behind(where: str) -> None:
    async with (
        AdaptiveExecutor(1, max_queue=1, when_full="reject") as pool,
        AdaptiveExecutor(1, max_queue=0, when_full="reject") as another,
    ):
        await pool.run(int)
        with Gate() as gate, Gate() as held:
            held.hold(another)
            held_here = gate.hold(pool)
            queued = pool.submit(int)
            use = pool.run(int)
            closed = pool.lane("closed", limit=1)
            closed.shutdown()
            thing = Thing()
            reference = weakref.ref(thing)
            refusing: Any = {"this pool": pool, "another": another}.get(where, closed)
            with pytest.raises(RuntimeError):
                # A second at the same time does not go on.
                refusing.run(thing.method)
            del thing
            gone(reference)
            gate.open()
            await asyncio.gather(use, *map(asyncio.wrap_future, (held_here, queued)))
            with Gate() as again:
                again.hold(pool)
                queued = pool.submit(int)
                giving_back = pool.run(int, 5)
                again.open()
                assert await giving_back == 5
                await asyncio.wrap_future(queued)


@pytest.mark.asyncio
async def test_one_that_is_given_up_is_over_for_its_task() -> None:
    async with AdaptiveExecutor(1, max_queue=1, when_full="reject") as pool:
        await pool.run(int)
        with Gate() as gate:
            query = pool.run(gate)
            gate.await_begun()
            query.cancel()
            await turns()
            queued = pool.submit(int)
            giving_back = pool.run(int, 5)
            gate.open()
            assert await giving_back == 5
            await asyncio.wrap_future(queued)


@pytest.mark.asyncio
async def test_who_gives_back_gets_a_thread_whatever_goes_first() -> None:
    async with AdaptiveExecutor(16) as pool:
        task = await known(pool)
        given_back = threading.Event()
        waiting = [pool.submit(given_back.wait, TIMEOUT) for _ in range(16)]
        await asyncio.to_thread(eventually, lambda: pool.stats().running == 16)
        waiting += [pool.submit_first(given_back.wait, TIMEOUT) for _ in range(6)]
        await task.call(given_back.set)
        assert all(await asyncio.gather(*map(asyncio.wrap_future, waiting))), "it came only as they had given up"
        await task.end()
