"""The programs that are run in every order of steps: each a meeting of two of the engine's protocols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from math import inf
from typing import Any

from support import seams
from support.interleaved import Model, Strand, never, run_now

MODELS: dict[str, Model] = {}


class Calls:
    """A pool, what is done with it in one run, and what became of each call: it runs once, or its future says why not.

    Attributes:
        strands: The threads of the model's own.
    """

    def __init__(self, ebbpool: Any, **settings: Any) -> None:
        self.ebbpool = ebbpool
        self.pool = ebbpool.AdaptiveExecutor(**{"max_workers": 1, "keep_alive": inf} | settings)
        self.submit = self.pool.submit
        self.mutex = self.pool._pool.mutex = seams.CheckedMutex(self.pool._pool)
        self.numbers = count()
        self.futures: dict[int, Any] = {}
        self.ran: Counter[int] = Counter()
        self.taken_back: set[Any] = set()
        self.strands: list[Strand] = []

    def make(self, take: Any = None, fn: Callable[[], object] = int) -> Any:
        """Hand a call in; return its future, or None if it is refused."""
        number = next(self.numbers)
        self.futures[number] = None

        def call() -> object:
            self.ran[number] += 1
            return fn()

        try:
            future = self.futures[number] = (take or self.submit)(call)
        except (RuntimeError, self.ebbpool.QueueTimeout):
            return None
        return future

    def cancel(self, future: Any) -> None:
        if future.cancel():
            self.taken_back.add(future)

    def spawn(self, call: Callable[[], object]) -> None:
        """Start a thread, which begins once another one waits, or is held."""
        self.strands.append(run_now().begin("the model's", call))

    def settle(self) -> None:
        """Wait for the threads and the calls; those of a loop are its own affair."""
        for strand in self.strands:
            strand.join()
        for future in list(self.futures.values()):
            if future is not None and not hasattr(future, "deliver"):
                outcome(future)

    def check(self) -> None:
        for number, future in self.futures.items():
            runs = self.ran[number]
            if future is None:
                assert runs == 0, f"call {number} ran {runs} times though it was refused"
                continue
            assert future.done(), f"call {number} is not done: {future!r}"
            failed = future.cancelled() or future.exception()
            assert runs == (not failed), f"call {number} ran {runs} times: {future!r}"
            assert future.cancelled() or future not in self.taken_back, f"call {number} was cancelled: {future!r}"
        stats = self.pool.stats()
        assert stats.submitted == stats.completed + stats.failed + stats.cancelled, stats
        assert stats.submitted <= sum(future is not None for future in self.futures.values()), stats
        assert stats.workers == stats.queued == stats.blocked == 0, stats
        seams.check(self.pool._pool)
        assert not self.mutex.wrong, self.mutex.wrong[0]


def model(jumps: int = 0, **settings: Any) -> Callable[[Callable[[Calls], object]], Model]:
    """Register what is done with a pool that has a worker, in which nobody may go on by time alone but so often."""

    def register(steps: Callable[[Calls], object]) -> Model:
        def play(ebbpool: Any) -> None:
            from ebbpool._pool.timekeeper import timekeeper

            # It ends with each run, and may leave its bell rung.
            timekeeper.renew()
            calls = Calls(ebbpool, **settings)
            calls.make().result()
            run_now().open = True
            steps(calls)
            if "pool" in vars(calls):
                calls.settle()
                run_now().open = False
                calls.pool.shutdown()
                calls.check()

        play.jumps = jumps
        MODELS[steps.__name__] = play
        return play

    return register


@contextmanager
def as_they_come() -> Iterator[None]:
    """Have each thread go on for as long as it can, in the part of a model that makes ready."""
    run_now().open = False
    yield
    run_now().open = True


def closed() -> Any:
    """Return a lock that is taken: a gate."""
    from _thread import allocate_lock

    gate = allocate_lock()
    gate.acquire()
    return gate


def outcome(future: Any, timeout: float | None = None) -> BaseException | None:
    """Wait for a future; return why there is no result."""
    from concurrent.futures import CancelledError

    try:
        return future.exception(timeout)
    except (CancelledError, TimeoutError) as error:
        return error


def sleep(seconds: float) -> None:
    run_now().wait(never, seconds)


@model()
def submit_against_park(calls: Calls) -> None:
    calls.spawn(calls.make)
    calls.make()


@model(max_workers=2, keep_alive=0.01)
def wake_against_keep_alive(calls: Calls) -> None:
    calls.spawn(calls.make)
    calls.make().result()


@model(keep_alive=0)
def leave_against_submit(calls: Calls) -> None:
    calls.make().result()


@model(max_workers=2)
def wake_in_turn(calls: Calls) -> None:
    """The first task waits for the second: whoever is woken for one of them has another woken for the other."""
    with as_they_come():
        gate = closed()
        calls.make(fn=gate.acquire)
        calls.make(fn=gate.release).result()
        calls.settle()
    calls.make(fn=gate.acquire)
    calls.make(fn=gate.release)


@model(jumps=9, keep_alive=0)
def timekeepers_end_against_watch(calls: Calls) -> None:
    """The second task is what the first one waits for: the timekeeper has to start a worker for it."""
    new, gate = Calls(calls.ebbpool, max_workers=2), closed()
    calls.spawn(calls.pool.shutdown)
    new.make(fn=gate.acquire)
    new.make(fn=gate.release)
    new.settle()
    new.pool.shutdown()
    new.check()


@model(jumps=3, keep_alive=0)
def timekeepers_end_against_delay(calls: Calls) -> None:
    new = Calls(calls.ebbpool)
    new.spawn(lambda: new.make(lambda call: new.pool.submit_later(0.01, call)))
    calls.pool.shutdown()
    new.settle()
    new.pool.shutdown()
    new.check()


@model()
def cancel_against_take(calls: Calls) -> None:
    futures = [calls.make(), calls.make(calls.pool.submit_first)]
    calls.spawn(lambda: calls.cancel(futures[0]))
    calls.cancel(futures[1])
    calls.pool.wait_idle()


class Loop:
    """An event loop, of which there is nothing but what a mailbox asks for; its thread is the one that turns it."""

    def __init__(self, pool: Any) -> None:
        from threading import Semaphore

        from ebbpool._core.loop_calls import Mailbox

        self.pool = pool
        self.due: list[Callable[[], object]] = []
        self.told: list[object] = []
        self.bell = Semaphore(0)
        self.mailbox = Mailbox(self.wake, self.wake, lambda: None)

    def wake(self, call: Callable[..., object], *args: object) -> None:
        self.due.append(lambda: call(*args))
        self.bell.release()

    def take(self, call: Callable[[], object]) -> Any:
        return self.pool.offload(self.mailbox, Ticket(self.told), None, call, (), None)

    def turn_until(self, results: int) -> None:
        while len(self.told) < results:
            self.bell.acquire()
            self.due.pop(0)()


class Ticket:
    """What a call of a loop leads to."""

    def __init__(self, told: list[object]) -> None:
        self.told = told
        self.over = False

    def done(self) -> bool:
        return self.over

    def set_result(self, value: object) -> None:
        assert not self.over
        self.over = True
        self.told.append(value)


@model(max_workers=2)
def post_against_open(calls: Calls) -> None:
    loop = Loop(calls.pool)
    with as_they_come():
        calls.make(loop.take)
        loop.turn_until(1)
    for _ in range(3):
        calls.make(loop.take)
    loop.turn_until(4)


@model(max_workers=2)
def shutdown_against_lane(calls: Calls) -> None:
    lane = calls.pool.lane("narrow", limit=1)
    futures = [calls.make(lane.submit) for _ in range(3)]
    calls.spawn(lambda: calls.pool.shutdown(cancel_futures=True))
    calls.cancel(futures[1])
    calls.settle()
    assert lane.stats().queued == lane.stats().running == 0, lane.stats()


@model(max_workers=2)
def lane_against_its_close(calls: Calls) -> None:
    lane = calls.pool.lane("narrow", limit=1)
    inside: list[int] = []

    def alone() -> None:
        inside.append(1)
        assert len(inside) == 1, "two tasks at once in a lane for one"
        inside.pop()

    calls.make(lane.submit, alone)
    calls.spawn(lambda: calls.make(lane.submit, alone))
    lane.shutdown()
    assert calls.futures[1].done()


@model()
def lane_against_cancel(calls: Calls) -> None:
    """One that the lane has let into the queue is cancelled: the next one is let in."""
    lane, gate = calls.pool.lane("narrow", limit=1), closed()
    calls.make(fn=gate.acquire)
    first = calls.make(lane.submit)
    calls.spawn(lambda: calls.cancel(first))
    calls.make(lane.submit)
    gate.release()


@model()
def lease_against_release(calls: Calls) -> None:
    session = calls.pool.session()
    calls.make(session.submit)
    calls.spawn(lambda: session.shutdown(wait=False))
    calls.make(session.submit)
    calls.make()
    # The lease is a task, too.
    calls.settle()


def both_kept(calls: Calls) -> tuple[Any, Any, Any]:
    """Keep two workers; return the call of one, which a loop has made, and the gates of that and of the other."""
    gates, begun = (closed(), closed()), closed()
    with as_they_come():
        call = calls.make(Loop(calls.pool).take, lambda: begun.release() or gates[0].acquire())
        begun.acquire()
        calls.make(fn=lambda: begun.release() or gates[1].acquire())
        begun.acquire()
    return call, *gates


@model(max_workers=2)
def abandon_against_end(calls: Calls) -> None:
    """One of two workers is given up as its call ends; the third task needs a worker."""
    given_up, gate, kept = both_kept(calls)
    calls.spawn(gate.release)
    third = calls.make()
    given_up.abandon()
    third.result()
    kept.release()


@model(jumps=3, max_workers=2)
def abandon_against_submit(calls: Calls) -> None:
    """What comes as one of two workers is given up has to run: it ends the call of that."""
    given_up, gate, kept = both_kept(calls)
    calls.spawn(given_up.abandon)
    calls.make(fn=gate.release).result()
    kept.release()


@model(jumps=9, max_workers=2)
def resize_against_nested(calls: Calls) -> None:
    parent = calls.make(fn=lambda: calls.make().result())
    calls.spawn(lambda: calls.pool.resize(max_workers=1))
    calls.make(calls.pool.submit_first).result()
    parent.result()
    calls.pool.resize(max_workers=2)


@model()
def nested_against_submit(calls: Calls) -> None:
    calls.make(fn=lambda: calls.make().result())
    calls.make()


@model(jumps=9, max_workers=2, keep_alive=0)
def refused_thread_against_submit(calls: Calls) -> None:
    def refused() -> None:
        run_now().refusals = 1
        calls.make()

    calls.spawn(refused)
    calls.make()
    calls.strands[0].join()
    run_now().refusals = 0


@model(jumps=9, max_workers=2, keep_alive=0)
def refused_thread_against_shutdown(calls: Calls) -> None:
    lane = calls.pool.lane("narrow", limit=1)

    def refused() -> None:
        run_now().refusals = 1
        calls.make(lane.submit)
        run_now().refusals = 0

    calls.spawn(refused)
    calls.pool.shutdown(cancel_futures=True)
    calls.settle()
    assert lane.stats().queued == 0, lane.stats()


@model(max_queue=1)
def room_against_cancel(calls: Calls) -> None:
    calls.spawn(lambda: [calls.make(), calls.make()])
    calls.cancel(calls.make())
    calls.make()


@model(jumps=3, max_queue=1)
def room_given_up(calls: Calls) -> None:
    """One gives up waiting for room as it is let in: then the place in the queue is free for others."""
    gate = closed()
    with as_they_come():
        calls.make(fn=lambda: sleep(0.002))
        calls.make()
        sleep(1e-6)
    calls.make(calls.pool.within(max_wait=0.001).submit)
    calls.settle()
    with as_they_come():
        calls.make(fn=gate.acquire)
        calls.make()
        gate.release()


@model(max_queue=0)
def hand_to_hand(calls: Calls) -> None:
    """In a pool where nothing waits a submitter waits for a worker."""
    calls.spawn(calls.make)
    calls.make()


@model(max_queue=1)
def loop_against_full_queue(calls: Calls) -> None:
    """A loop's calls wait for room without a thread; what makes room is the end of a call, or that one is given up."""
    loop = Loop(calls.pool)
    with as_they_come():
        calls.make(loop.take)
        loop.turn_until(1)
    made = [calls.make(loop.take) for _ in range(3)]
    calls.spawn(made[1].withdraw)
    calls.make()
    calls.settle()
    loop.turn_until(3 + (not made[1].cancelled()))


@model(max_wait=0.05)
def max_wait_against_take(calls: Calls) -> None:
    lane = calls.pool.lane("narrow", limit=1)
    futures = [calls.make(take) for take in (calls.submit, lane.submit, lane.submit)]
    calls.spawn(lambda: calls.cancel(futures[1]))


@model(jumps=30)
def max_wait_behind_another(calls: Calls) -> None:
    """What waits in a lane for too long is told so, although nothing else happens in the pool."""
    lane, gate = calls.pool.lane("narrow", limit=1, max_wait=0.05), closed()
    calls.make(lane.within(max_wait=3600).submit, gate.acquire)
    assert isinstance(outcome(calls.make(lane.submit)), calls.ebbpool.QueueTimeout)
    gate.release()


@model()
def wait_against_end(calls: Calls) -> None:
    told: list[bool] = []
    future = calls.make()
    calls.spawn(lambda: outcome(future, 0.001))
    future.add_done_callback(lambda future: told.append(future.done()))
    calls.settle()
    calls.pool.shutdown()
    assert told == [True]


@model(max_workers=2)
def idle_against_cancel(calls: Calls) -> None:
    calls.spawn(calls.pool.wait_idle)
    calls.make()
    calls.cancel(calls.make())
    calls.pool.wait_idle()
    assert all(future.done() for future in calls.futures.values())


@model()
def delay_against_shutdown(calls: Calls) -> None:
    first = calls.make(lambda call: calls.pool.submit_later(0.01, call))
    calls.spawn(lambda: calls.cancel(first))
    calls.spawn(calls.pool.shutdown)
    calls.make(lambda call: calls.pool.submit_later(0.01, call))
    for strand in calls.strands:
        strand.join()
    assert all(future is None or future.done() for future in calls.futures.values())


@model()
def forgotten_against_its_tasks(calls: Calls) -> None:
    future = calls.make()
    del calls.pool, calls.submit
    assert future.result() == 0
