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


def model(jumps: int = 0) -> Callable[[Model], Model]:
    """Register a program, in which nobody goes on only because time has passed, but so often."""

    def register(call: Model) -> Model:
        call.jumps = jumps
        MODELS[call.__name__] = call
        return call

    return register


class Calls:
    """The calls of one run, and what became of each: it runs once, or its future says why not."""

    def __init__(self, ebbpool: Any, **settings: Any) -> None:
        self.ebbpool = ebbpool
        self.pool = ebbpool.AdaptiveExecutor(**{"max_workers": 1, "keep_alive": inf} | settings)
        self.mutex = self.pool._pool.mutex = seams.CheckedMutex(self.pool._pool)
        self.numbers = count()
        self.futures: dict[int, Any] = {}
        self.ran: Counter[int] = Counter()
        self.taken_back: set[Any] = set()

    def make(self, take: Any = None, fn: Callable[[], object] = int) -> Any:
        """Hand a call in; return its future, or None if it is refused."""
        number = next(self.numbers)
        self.futures[number] = None

        def call() -> object:
            self.ran[number] += 1
            return fn()

        try:
            future = self.futures[number] = (take or self.pool.submit)(call)
        except (RuntimeError, self.ebbpool.QueueTimeout):
            return None
        return future

    def cancel(self, future: Any) -> None:
        if future.cancel():
            self.taken_back.add(future)

    def end(self, **how: Any) -> None:
        """Shut the pool down, and see what became of all."""
        self.pool.shutdown(**how)
        self.check()

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
        assert stats.workers == stats.queued == stats.blocked == 0, stats
        seams.check(self.pool._pool)
        assert not self.mutex.wrong, self.mutex.wrong[0]


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


def spawn(call: Callable[[], object]) -> Strand:
    """Start a thread of the model's own, which begins once another thread waits."""
    return run_now().begin(f"the model's {getattr(call, '__name__', 'own')}", call)


def sleep(seconds: float) -> None:
    run_now().wait(never, seconds)


def let_others() -> None:
    """Let all others go on until each of them waits."""
    sleep(1e-6)


@contextmanager
def any_order() -> Iterator[None]:
    """Have threads take turns in any order in this block; outside of it they go on for as long as they can."""
    run_now().open = True
    yield
    run_now().open = False


@model()
def submit_against_park(ebbpool: Any) -> None:
    calls = Calls(ebbpool)
    calls.make().result()
    with any_order():
        other = spawn(calls.make)
        calls.make()
        other.join()
        for future in calls.futures.values():
            assert future.result() == 0
    calls.end()


@model()
def wake_against_keep_alive(ebbpool: Any) -> None:
    calls = Calls(ebbpool, max_workers=2, keep_alive=0.01)
    calls.make().result()
    with any_order():
        other = spawn(calls.make)
        assert calls.make().result() == 0
        other.join()
        assert calls.futures[1].result() == calls.futures[2].result() == 0
    calls.end()


@model()
def leave_against_submit(ebbpool: Any) -> None:
    """A worker leaves at once where nothing waits."""
    calls = Calls(ebbpool, keep_alive=0)
    calls.make().result()
    with any_order():
        assert calls.make().result() == 0
    calls.end()


@model(jumps=9)
def timekeepers_end_against_watch(ebbpool: Any) -> None:
    """The second task is what the first one waits for: the timekeeper has to start a worker for it."""
    old, new = Calls(ebbpool, keep_alive=0), Calls(ebbpool, max_workers=2)
    old.make().result()
    gate = closed()
    with any_order():
        other = spawn(old.pool.shutdown)
        first = new.make(fn=gate.acquire)
        new.make(fn=gate.release)
        assert first.result()
        other.join()
    new.end()
    old.check()


@model(jumps=3)
def timekeepers_end_against_delay(ebbpool: Any) -> None:
    old, new = Calls(ebbpool, keep_alive=0), Calls(ebbpool)
    old.make().result()
    with any_order():
        other = spawn(lambda: new.make(lambda call: new.pool.submit_later(0.01, call)).result())
        old.pool.shutdown()
        other.join()
    new.end()
    old.check()


@model()
def wake_in_turn(ebbpool: Any) -> None:
    """The first task waits for the second: whoever is woken for one of them has another woken for the other."""
    calls, gates = Calls(ebbpool, max_workers=2), [closed(), closed()]
    first = calls.make(fn=gates[0].acquire)
    calls.make(fn=gates[0].release)
    first.result()
    with any_order():
        first = calls.make(fn=gates[1].acquire)
        calls.make(fn=gates[1].release)
        assert first.result()
    calls.end()


@model()
def cancel_against_take(ebbpool: Any) -> None:
    calls = Calls(ebbpool)
    calls.make().result()
    with any_order():
        futures = [calls.make(), calls.make(calls.pool.submit_first)]
        other = spawn(lambda: calls.cancel(futures[0]))
        calls.cancel(futures[1])
        other.join()
        calls.pool.wait_idle()
    calls.end()


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

    def abandoned(self, error: BaseException) -> None: ...


class Loop:
    """The thread that makes this is an event loop's, of which there is nothing but what a mailbox asks for."""

    def __init__(self) -> None:
        from threading import Semaphore

        from ebbpool._core.loop_calls import Mailbox

        self.due: list[Callable[[], object]] = []
        self.told: list[object] = []
        self.bell = Semaphore(0)
        self.mailbox = Mailbox(self.wake, self.wake, lambda: None)

    def wake(self, call: Callable[..., object], *args: object) -> None:
        self.due.append(lambda: call(*args))
        self.bell.release()

    def taken_by(self, pool: Any) -> Callable[[Callable[[], object]], Any]:
        return lambda call: pool.offload(self.mailbox, Ticket(self.told), None, call, (), None)

    def turn_until(self, results: int) -> None:
        while len(self.told) < results:
            self.bell.acquire()
            self.due.pop(0)()


@model()
def post_against_open(ebbpool: Any) -> None:
    calls, loop = Calls(ebbpool, max_workers=2), Loop()
    calls.make(loop.taken_by(calls.pool))
    loop.turn_until(1)
    with any_order():
        for _ in range(3):
            calls.make(loop.taken_by(calls.pool))
        loop.turn_until(4)
    calls.pool.shutdown()
    while loop.due:
        loop.due.pop(0)()
    assert loop.told == [0] * 4


@model()
def shutdown_against_lane(ebbpool: Any) -> None:
    calls = Calls(ebbpool, max_workers=2)
    lane = calls.pool.lane("narrow", limit=1)
    calls.make().result()
    with any_order():
        futures = [calls.make(lane.submit) for _ in range(3)]
        other = spawn(lambda: calls.pool.shutdown(cancel_futures=True))
        calls.cancel(futures[1])
        other.join()
    assert lane.stats().queued == lane.stats().running == 0, lane.stats()
    calls.check()


@model()
def lane_against_its_close(ebbpool: Any) -> None:
    calls = Calls(ebbpool, max_workers=2)
    lane = calls.pool.lane("narrow", limit=1)
    inside: list[int] = []

    def alone() -> None:
        inside.append(1)
        assert len(inside) == 1, "two tasks at once in a lane for one"
        inside.pop()

    calls.make().result()
    with any_order():
        calls.make(lane.submit, alone)
        other = spawn(lambda: calls.make(lane.submit, alone))
        lane.shutdown()
        assert calls.futures[1].done()
        other.join()
    calls.end()


@model()
def lane_against_cancel(ebbpool: Any) -> None:
    """One that the lane has let into the queue is cancelled: the next one is let in."""
    calls, gate = Calls(ebbpool), closed()
    lane = calls.pool.lane("narrow", limit=1)
    calls.make(fn=gate.acquire)
    with any_order():
        first = calls.make(lane.submit)
        other = spawn(lambda: calls.cancel(first))
        second = calls.make(lane.submit)
        gate.release()
        assert second.result() == 0
        other.join()
    calls.end()


@model()
def lease_against_release(ebbpool: Any) -> None:
    calls = Calls(ebbpool)
    calls.make().result()
    session = calls.pool.session()
    ran: list[int] = []
    with any_order():
        first = session.submit(ran.append, 0)
        other = spawn(lambda: session.shutdown(wait=False))
        try:
            session.submit(ran.append, 1).result()
        except RuntimeError:
            ran.append(1)
        assert first.result() is None
        assert calls.make().result() == 0
        other.join()
    calls.pool.shutdown()
    assert ran == [0, 1] or ran == [1, 0], ran


@model()
def abandon_against_end(ebbpool: Any) -> None:
    """One of two workers is given up as its call ends; the other one is kept. The third task needs a worker."""
    calls, loop, begun, gate, kept = Calls(ebbpool, max_workers=2), Loop(), closed(), closed(), closed()
    given_up = calls.make(loop.taken_by(calls.pool), lambda: begun.release() or gate.acquire())
    begun.acquire()
    calls.make(fn=lambda: begun.release() or kept.acquire())
    begun.acquire()
    with any_order():
        other = spawn(gate.release)
        third = calls.make()
        given_up.abandon()
        assert third.result() == 0
        kept.release()
        other.join()
    calls.end()


@model(jumps=3)
def abandon_against_submit(ebbpool: Any) -> None:
    """Both workers are kept, one by a call that is given up; what comes then ends that."""
    calls, loop, begun, gate, kept = Calls(ebbpool, max_workers=2), Loop(), closed(), closed(), closed()
    given_up = calls.make(loop.taken_by(calls.pool), lambda: begun.release() or gate.acquire())
    begun.acquire()
    calls.make(fn=lambda: begun.release() or kept.acquire())
    begun.acquire()
    with any_order():
        other = spawn(given_up.abandon)
        assert calls.make(fn=gate.release).exception() is None
        kept.release()
        other.join()
    calls.end()


@model(jumps=9)
def resize_against_nested(ebbpool: Any) -> None:
    calls = Calls(ebbpool, max_workers=2)
    calls.make().result()
    with any_order():
        parent = calls.make(fn=lambda: calls.make().result())
        other = spawn(lambda: calls.pool.resize(max_workers=1))
        assert calls.make(calls.pool.submit_first).result() == parent.result() == 0
        other.join()
        calls.pool.resize(max_workers=2)
    calls.end()


@model()
def nested_against_submit(ebbpool: Any) -> None:
    calls = Calls(ebbpool)
    calls.make().result()
    with any_order():
        parent = calls.make(fn=lambda: calls.make().result())
        assert calls.make().result() == parent.result() == 0
    calls.end()


@model(jumps=9)
def refused_thread_against_submit(ebbpool: Any) -> None:
    calls = Calls(ebbpool, max_workers=2, keep_alive=0)

    def refused() -> None:
        run_now().refusals = 1
        calls.make()

    calls.make().result()
    with any_order():
        other = spawn(refused)
        calls.make()
        other.join()
        run_now().refusals = 0
        for future in filter(None, calls.futures.values()):
            assert future.result() == 0
    calls.end()


@model()
def room_against_cancel(ebbpool: Any) -> None:
    calls = Calls(ebbpool, max_queue=1)
    calls.make().result()
    with any_order():
        other = spawn(lambda: [calls.make(), calls.make()])
        calls.cancel(calls.make())
        calls.make()
        other.join()
        for future in calls.futures.values():
            assert future.cancelled() or future.result() == 0
    calls.end()


@model(jumps=3)
def room_given_up(ebbpool: Any) -> None:
    """One gives up waiting for room as it is let in: then the place in the queue is free for others."""
    calls, gate = Calls(ebbpool, max_queue=1), closed()
    calls.make(fn=lambda: sleep(0.002))
    calls.make()
    let_others()
    with any_order():
        calls.make(calls.pool.within(max_wait=0.001).submit)
        for future in filter(None, calls.futures.values()):
            outcome(future)
    calls.make(fn=gate.acquire)
    calls.make()
    gate.release()
    calls.end()


@model()
def hand_to_hand(ebbpool: Any) -> None:
    """In a pool where nothing waits a submitter waits for a worker."""
    calls = Calls(ebbpool, max_queue=0)
    calls.make().result()
    with any_order():
        other = spawn(calls.make)
        calls.make()
        other.join()
        assert calls.futures[1].result() == calls.futures[2].result() == 0
    calls.end()


@model()
def loop_against_full_queue(ebbpool: Any) -> None:
    """A loop's calls wait for room without a thread; what makes room is the end of a call, or that one is given up."""
    calls, loop = Calls(ebbpool, max_queue=1), Loop()
    calls.make(loop.taken_by(calls.pool))
    loop.turn_until(1)
    with any_order():
        made = [calls.make(loop.taken_by(calls.pool)) for _ in range(3)]
        other = spawn(made[1].withdraw)
        calls.make().result()
        other.join()
        loop.turn_until(3 + (not made[1].cancelled()))
    calls.pool.shutdown()


@model()
def max_wait_against_take(ebbpool: Any) -> None:
    calls = Calls(ebbpool, max_wait=0.05)
    lane = calls.pool.lane("narrow", limit=1)
    calls.make().result()
    with any_order():
        futures = [calls.make(take) for take in (calls.pool.submit, lane.submit, lane.submit)]
        other = spawn(lambda: calls.cancel(futures[1]))
        for future in futures:
            outcome(future)
        other.join()
    calls.end()


@model(jumps=30)
def max_wait_behind_another(ebbpool: Any) -> None:
    """What waits in a lane for too long is told so, although nothing else happens in the pool."""
    calls, gate = Calls(ebbpool), closed()
    lane = calls.pool.lane("narrow", limit=1, max_wait=0.05)
    calls.make().result()
    with any_order():
        calls.make(lane.within(max_wait=3600).submit, gate.acquire)
        late = calls.make(lane.submit)
        assert isinstance(outcome(late), ebbpool.QueueTimeout), outcome(late)
        gate.release()
    calls.end()


@model()
def wait_against_end(ebbpool: Any) -> None:
    calls = Calls(ebbpool)
    calls.make().result()
    told: list[bool] = []
    with any_order():
        future = calls.make()
        other = spawn(lambda: outcome(future, 0.001))
        future.add_done_callback(lambda future: told.append(future.done()))
        assert future.result() == 0
        other.join()
    calls.end()
    assert told == [True]


@model()
def idle_against_cancel(ebbpool: Any) -> None:
    calls = Calls(ebbpool, max_workers=2)
    calls.make().result()
    with any_order():
        other = spawn(calls.pool.wait_idle)
        calls.make()
        calls.cancel(calls.make())
        calls.pool.wait_idle()
        assert all(future.done() for future in calls.futures.values())
        other.join()
    calls.end()


@model()
def delay_against_shutdown(ebbpool: Any) -> None:
    calls = Calls(ebbpool)
    calls.make().result()
    with any_order():
        first = calls.make(lambda call: calls.pool.submit_later(0.01, call))
        others = [spawn(lambda: calls.cancel(first)), spawn(calls.pool.shutdown)]
        calls.make(lambda call: calls.pool.submit_later(0.01, call))
        for other in others:
            other.join()
    calls.check()


@model()
def forgotten_against_its_tasks(ebbpool: Any) -> None:
    calls = Calls(ebbpool)
    calls.make().result()
    with any_order():
        future = calls.make()
        del calls.pool
        assert future.result() == 0
