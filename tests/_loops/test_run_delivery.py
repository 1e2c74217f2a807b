"""How results of `AdaptiveExecutor.run` reach a loop and leave no trace, and what becomes of cancelled calls."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import itertools
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.common import TIMEOUT, Boom, Gate, Thing, eventually, gone, no_collector, wait_for_idle
from support.loops import Loops, Reports, behind, fail, on_every_loop, turns, until
from support.seams import core, gil_enabled, running_part

from ebbpool import AdaptiveExecutor
from ebbpool.aio import mailbox_of

LOOP_CALLS = running_part("loop_calls")
DELIVERED_AT_ONCE, FEWEST, GIL, NAP, SLICE = (
    getattr(core("plain", "loop_calls"), name)
    for name in ("DELIVERED_AT_ONCE", "FEWEST", "GIL_ENABLED", "NAP", "SLICE")
)
variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default=None)


class Ticket:
    """What `offload` asks of a ticket; `on_result` is called in the midst of the delivery."""

    def __init__(self, on_result: Callable[[], Any] = int) -> None:
        self.on_result = on_result
        self.outcome: list[Any] = []

    def done(self) -> bool:
        return bool(self.outcome)

    def set_result(self, value: Any) -> None:
        self.outcome.append(value)
        self.on_result()


@on_every_loop
async def test_what_a_call_gave_to_the_loop_runs_before_its_future_is_done() -> None:
    """Whoever looks at the future in the meantime finds it pending."""

    loop = asyncio.get_running_loop()
    count = 3 * DELIVERED_AT_ONCE
    futures: list[asyncio.Future[int]] = []
    seen: list[tuple[int, bool]] = []

    def look(number: int) -> None:
        seen.append((number, futures[number].done()))

    def call(number: int) -> int:
        loop.call_soon_threadsafe(look, number)
        loop.call_soon_threadsafe(look, number)
        return number

    async with AdaptiveExecutor(1) as pool:
        for burst in ("while the loop is busy", "while the loop turns", "one by one"):
            futures.clear()
            seen.clear()
            for number in range(count):
                futures.append(pool.run(call, number))
                if burst == "one by one":
                    await futures[-1]
                elif burst == "while the loop turns" and number % 10 == 0:
                    await asyncio.sleep(0)
            if burst == "while the loop is busy":
                behind(pool)
            assert await asyncio.gather(*futures) == list(range(count))
            assert seen == [(number, False) for number in range(count) for _ in range(2)], burst


@on_every_loop
@pytest.mark.parametrize("cost", [SLICE, SLICE / 40, SLICE / 10_000], ids=["dear", "usual", "cheap"])
async def test_other_callbacks_get_their_turn_after_a_slice_of_time(
    monkeypatch: pytest.MonkeyPatch, cost: float
) -> None:
    """Each result takes so much of the loop's own processor time, half of it in what it leads to."""
    spent = [5.0]
    monkeypatch.setattr(LOOP_CALLS, "thread_time", lambda: spent[0])
    loop = asyncio.get_running_loop()
    mailbox = mailbox_of(loop)

    def spend() -> None:
        spent[0] += cost / 2

    def lead_on() -> None:
        spend()
        loop.call_soon(spend)

    async with AdaptiveExecutor(1) as pool:
        tickets = [Ticket(lead_on) for _ in range(8 * DELIVERED_AT_ONCE)]
        for ticket in tickets:
            pool.offload(mailbox, ticket, None, int, (), None)
        behind(pool)
        done = [0]
        while done[-1] < len(tickets):
            await asyncio.sleep(0)
            done.append(sum(ticket.done() for ticket in tickets))
    steps = [after - before for before, after in itertools.pairwise(done) if after > before]
    usual = min(max(round(SLICE / cost), FEWEST), DELIVERED_AT_ONCE)
    assert max(steps) <= usual + 1
    # No less than a slice at a time, either, but for the first ones and for what is left.
    assert sum(step >= usual - 1 for step in steps) >= len(steps) - 4


@pytest.mark.skipif(not gil_enabled(), reason="there is no GIL to leave to a loop")
def test_a_worker_naps_where_its_results_find_the_loop_late_or_more_than_two_slices_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    naps: list[float] = []
    callbacks: list[Callable[[], None]] = []
    monkeypatch.setattr(LOOP_CALLS, "sleep", naps.append)
    mailbox = LOOP_CALLS.Mailbox(*[lambda *call: callbacks.append(partial(*call))] * 2, object)

    def naps_of(count: int) -> int:
        """Return how often the worker naps while so many results come."""
        naps.clear()
        with AdaptiveExecutor(1) as pool:
            for _ in range(count):
                pool.offload(mailbox, Ticket(), None, int, (), None)
        assert set(naps) <= {NAP}
        return len(naps)

    def turn() -> None:
        while callbacks:
            callbacks.pop(0)()

    monkeypatch.setattr(LOOP_CALLS, "KEPT_WAITING", 1e9)
    assert naps_of(4) == 0
    monkeypatch.setattr(LOOP_CALLS, "KEPT_WAITING", 1e-9)
    turn()
    assert naps_of(4) == 3, "the first one has woken the loop"
    turn()
    assert naps_of(1) == 0
    turn()
    monkeypatch.setattr(LOOP_CALLS, "KEPT_WAITING", 1e9)
    assert [naps_of(count) for count in (2 * FEWEST - 1, 1, DELIVERED_AT_ONCE - 1, 1)] == [0, 1, 0, 1]
    turn()
    assert naps_of(2 * FEWEST - 1) == 0
    assert naps_of(2 * DELIVERED_AT_ONCE) > 0, "as many wait as two slices may have at most, and more"


@on_every_loop
async def test_a_call_that_ends_in_the_midst_of_a_delivery_is_delivered() -> None:
    mailbox = mailbox_of(asyncio.get_running_loop())
    async with AdaptiveExecutor(1) as pool:
        for ahead in range(3):
            with Gate() as gate:

                def let_through(gate: Gate = gate) -> None:
                    gate.open()
                    behind(pool)

                tickets = [Ticket() for _ in range(ahead)] + [Ticket(let_through), Ticket()]
                for ticket in tickets[:-1]:
                    pool.offload(mailbox, ticket, None, int, (), None)
                behind(pool)
                pool.offload(mailbox, tickets[-1], None, gate, (7,), None)
                await until(lambda tickets=tickets: tickets[-1].done())
                assert [ticket.outcome for ticket in tickets] == [[0]] * (ahead + 1) + [[7]]


@on_every_loop
async def test_an_error_in_a_delivery_does_not_stop_the_others(reports: Reports) -> None:
    mailbox = mailbox_of(asyncio.get_running_loop())
    async with AdaptiveExecutor(1) as pool:
        tickets = [Ticket(lambda: fail(Boom())) for _ in range(5)]
        for ticket in tickets:
            pool.offload(mailbox, ticket, None, int, (), None)
        futures = [pool.run(int, number) for number in range(5)]
        behind(pool)
        assert await asyncio.gather(*futures) == list(range(5))
        assert [ticket.outcome for ticket in tickets] == [[0]] * 5
    assert [type(report["exception"]) for report in await reports.all()] == [Boom] * 5


@pytest.mark.parametrize("when", ["running", "finished"])
def test_a_loop_that_is_closed_meanwhile(loops: Loops, caplog: pytest.LogCaptureFixture, when: str) -> None:
    """The loop that is closed cannot be the one that runs the test."""
    results: list[weakref.ref[Any]] = []

    def call() -> Thing:
        gate()
        thing = Thing()
        results.append(weakref.ref(thing))
        return thing

    with Gate() as gate, AdaptiveExecutor(1) as pool:

        async def begin() -> None:
            futures.extend(pool.run(call) for _ in range(3))
            futures.append(pool.run(fail, Boom()))
            gate.await_begun()

        futures: list[asyncio.Future[Any]] = []
        loop = loops.new()
        loop.run_until_complete(begin())
        if when == "finished":
            gate.open()
            behind(pool)
        loop.close()
        gate.open()
        behind(pool)
        assert not any(future.done() for future in futures)
        assert len(results) == 3
        futures.clear()
        wait_for_idle(pool)
        gc.collect()
        if when == "running":
            # Delivered to nobody, though the loop is still there.
            gone(*results, pool=pool)
        reference = weakref.ref(loop)
        del loop
        gc.collect()
        gone(reference, *results, pool=pool)

        async def again() -> None:
            assert await pool.run(int, "3") == 3

        loops(again)
        assert pool.stats().workers == 1
    assert [record for record in caplog.records if record.levelname != "WARNING"] == []


@on_every_loop
@pytest.mark.parametrize("how", ["returns", "raises"])
async def test_nothing_is_kept_once_the_result_is_delivered(how: str) -> None:
    async with AdaptiveExecutor(1) as pool:

        async def use() -> list[weakref.ref[Any]]:
            owner, argument, keyword, result = Thing(), Thing(), Thing(), Thing()
            error = Boom()

            def call(*args: Any, **kwargs: Any) -> Any:
                assert owner is not None
                if how == "raises":
                    raise error
                return result

            references = [weakref.ref(thing) for thing in (owner, argument, keyword, result, error, call)]
            future = pool.run(call, argument, keyword=keyword)
            references.append(weakref.ref(future))
            try:
                await future
            except Boom:
                error.__traceback__ = None
            return references

        with no_collector():
            references = await use()
            await turns()
            gone(*references, pool=pool)


@on_every_loop
async def test_cancelling_the_future_itself() -> None:
    ran: list[int] = []

    async with AdaptiveExecutor(1) as pool:
        with Gate() as gate:
            running = pool.run(gate)
            gate.await_begun()
            queued = pool.run(ran.append, 1)
            told: list[bool] = []
            queued.add_done_callback(lambda future: told.append(future.cancelled()))
            assert queued.cancel("not needed")
            assert queued.cancelled()
            assert (pool.stats().queued, pool.stats().cancelled) == (0, 1)
            assert not queued.cancel()
            assert running.cancel()
            assert not running.cancel()
            assert pool.stats().running == 1
            with pytest.raises(asyncio.CancelledError, match="not needed"):
                await queued
            await turns()
            assert told == [True]
        done = pool.run(int)
        await done
        assert not done.cancel()
        assert (pool.stats().submitted, pool.stats().cancelled) == (3, 1)
    assert ran == []


@on_every_loop
@pytest.mark.parametrize("how", ["returned", "raised", "waited too long"])
async def test_cancelled_between_the_end_of_the_call_and_its_delivery(reports: Reports, how: str) -> None:
    error = Boom("late")
    async with AdaptiveExecutor(1) as pool:
        with Gate() as gate:
            if how == "waited too long":
                gate.hold(pool)
                future = pool.within(0.001).run(int)
                eventually(lambda: pool.stats().expired == 1)
            else:
                future = pool.run(fail, error) if how == "raised" else pool.run(int)
                behind(pool)
            assert future.cancel()
            with pytest.raises(asyncio.CancelledError):
                await future
        await pool.run(int)
        assert future.cancelled()
        assert pool.stats().cancelled == 0
    assert [report["exception"] for report in await reports.all()] == ([error] if how == "raised" else [])


@on_every_loop
async def test_a_cancelled_call_lets_go_of_all_it_held_at_once() -> None:
    async with AdaptiveExecutor(1) as pool:
        with Gate() as gate:
            gate.hold(pool)
            # One that is ahead of it: the head of the queue is looked at by others, too.
            ahead = pool.run(int)
            thing, in_context = Thing(), Thing()
            references = [weakref.ref(thing), weakref.ref(in_context)]
            token = variable.set(in_context)
            future = pool.run(thing.method, thing, keyword=thing)
            variable.reset(token)
            del thing, in_context, token
            future.cancel()
            await turns()
            with no_collector():
                # The worker is busy: nobody else could have let go of it.
                gone(*references)
            references.append(weakref.ref(future))
            del future
            gone(*references)
            gate.open()
            await ahead


@on_every_loop
async def test_cancelled_calls_do_not_fill_the_queue() -> None:
    async with AdaptiveExecutor(1) as pool:
        with Gate() as gate:
            gate.hold(pool)
            kept = [pool.run(int, number) for number in range(3)]
            references = []
            for _ in range(1000):
                future = pool.run(int)
                references.append(weakref.ref(future))
                future.cancel()
            del future
            await turns()
            gone(*references)
            assert sum(type(thing) is LOOP_CALLS.LoopCall for thing in gc.get_objects()) < 500
            assert (pool.stats().queued, pool.stats().cancelled) == (3, 1000)
            gate.open()
            assert await asyncio.gather(*kept) == [0, 1, 2]


class Struck(asyncio.SelectorEventLoop):
    """A loop in which an error of a signal handler comes in the place of the next callback of another thread."""

    error: type[BaseException] | None = None

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        error, self.error = self.error, None
        if error is not None:
            callback, args = fail, (error(),)
        return super().call_soon_threadsafe(callback, *args, context=context)


@pytest.mark.parametrize("count", [1, 4])
def test_a_callback_lost_with_a_run_of_the_loop_does_not_silence_the_next(count: int) -> None:
    async def calls(pool: AdaptiveExecutor, count: int) -> list[int]:
        return await asyncio.gather(*[pool.run(int) for _ in range(count)])

    async def end() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    kept = []
    with contextlib.closing(Struck()) as loop, AdaptiveExecutor(4) as pool:
        for _ in range(3):
            loop.error = KeyboardInterrupt
            with pytest.raises(KeyboardInterrupt) as caught:
                loop.run_until_complete(calls(pool, count))
            # As a notebook keeps it: the callback is not freed.
            kept.append(caught)
            assert loop.run_until_complete(calls(pool, 1)) == [0]
        loop.run_until_complete(end())


def test_a_callback_lost_within_a_run_loses_its_call_at_most() -> None:
    async def main(loop: Struck) -> None:
        with AdaptiveExecutor(1) as pool:
            loop.error = Boom
            struck = pool.run(int)
            await until(lambda: loop.error is None)
            await turns()
            assert await pool.run(int, "3") == 3
            assert await struck == 0, "it was late, and not lost"

    with contextlib.closing(Struck()) as loop:
        loop.set_exception_handler(lambda *_: None)
        loop.run_until_complete(asyncio.wait_for(main(loop), TIMEOUT))


def test_the_loop_is_told_nothing_of_a_call_that_failed_without_running() -> None:
    told: list[object] = []
    fails = threading.Event()

    def initializer() -> None:
        fails.wait(TIMEOUT)
        raise Boom

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        with AdaptiveExecutor(1, initializer=initializer) as pool:
            future = pool.run(int)
            fails.set()
            # Without a turn of the loop, which has not heard of it.
            eventually(lambda: pool.stats().failed == 1)
            future.cancel()
            await turns()

    asyncio.run(main())
    assert told == []
