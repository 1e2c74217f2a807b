"""Bounded queues under many submitters, initializers that fail at random, threads that cannot be started."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from stress_harness import (
    LONG_ENOUGH,
    PATIENCE,
    SECONDS,
    SEED,
    Crew,
    Ledger,
    Ticket,
    bounded,
    bring,
    close,
    each_round,
    named,
    rounds,
    stuck,
)

from ebbpool import AdaptiveExecutor


@pytest.mark.parametrize("when_full", ["block", "reject", "caller_runs"])
@pytest.mark.parametrize("max_queue", [0, 1, 7])
def test_a_bounded_queue_keeps_its_bound(max_queue: int, when_full: Any) -> None:
    """Many submitters and cancellers on a small queue: the bound holds, nothing is lost, nobody hangs."""

    @each_round
    def play(number: int) -> None:
        pool = AdaptiveExecutor(3, "bounded", max_queue=max_queue, when_full=when_full)
        ledger = Ledger()
        crew = Crew()

        def submitter(rng: random.Random) -> bool:
            try:
                ticket = ledger.submit(pool, rng.choice(("quick", "boom", "sleepy")))
            except RuntimeError:
                return False
            if ticket is not None:
                ticket.add_callback()
                if rng.random() < 0.3:
                    ticket.cancel()
            return True

        def canceller(rng: random.Random) -> None:
            for ticket in ledger.recent(rng, 2, window=10):
                ticket.cancel()

        def reader(rng: random.Random) -> None:
            # A task may be on its way to a worker that was promised to it: one for each worker.
            bound = max_queue + 3
            stats = pool.stats()
            assert stats.queued <= bound, stats
            time.sleep(rng.random() * 0.0005)

        crew.repeat("submitter", submitter, copies=6)
        crew.repeat("canceller", canceller)
        crew.repeat("reader", reader)
        crew.stop.wait(0.3)
        if number % 2:
            bounded("shutdown under submitters", pool.shutdown)
            crew.join()
        else:
            crew.join()
            close(pool, ledger, "bounded")
        if when_full != "reject":
            assert not ledger.full
        if when_full == "caller_runs":
            submitters = {run for ticket in ledger.accepted for run in ticket.runs}
            assert submitters or not LONG_ENOUGH, "nothing ran"


@pytest.mark.parametrize("when_full", ["block", "reject"])
@pytest.mark.parametrize("keep_alive", [0.0, 5.0])
def test_a_worker_roused_by_a_resize_still_counts(keep_alive: float, when_full: Any) -> None:
    """With no places at all, a task is taken although the only worker was just told to read its settings."""
    for _ in rounds(min(SECONDS, 1.0)):
        pool = AdaptiveExecutor(1, "roused", max_queue=0, when_full=when_full)
        ledger = Ledger()
        for _ in range(3):
            assert ledger.submit(pool) is not None
            ledger.settle()
            assert pool.wait_idle(PATIENCE)
            pool.resize(keep_alive=keep_alive)
            assert bounded("submit after a resize", ledger.submit, pool) is not None, "an idle worker was overlooked"
            ledger.settle()
            assert pool.wait_idle(PATIENCE)
        close(pool, ledger, "roused")


def test_blocked_submitters_each_get_a_place() -> None:
    """Submitters that all wait for room get it as tasks are taken, and as queued ones are cancelled."""

    @each_round
    def play(number: int) -> None:
        pool = AdaptiveExecutor(1, "room", max_queue=1)
        ledger = Ledger()
        gate = threading.Event()
        first = pool.submit(gate.wait, PATIENCE)
        crew = Crew()

        def submitter(rng: random.Random) -> bool:
            ledger.submit(pool)
            return False

        crew.repeat("submitter", submitter, copies=8)
        while not ledger.accepted:
            time.sleep(0.0005)
        if number % 2:
            end = time.monotonic() + PATIENCE
            while sum(map(Ticket.cancel, list(ledger.accepted))) < 8:
                if time.monotonic() > end:
                    stuck(f"a cancelled task's place was not given on; {pool.stats()}")
                time.sleep(0.0002)
        gate.set()
        crew.wait()
        assert len(ledger.accepted) == 8
        ledger.settle()
        assert first.result(timeout=PATIENCE)
        bounded("shutdown", pool.shutdown)
        stats = pool.stats()
        assert (stats.submitted, stats.completed + stats.cancelled, stats.queued) == (9, 9, 0)
        if number % 2:
            assert stats.cancelled == 8


@pytest.mark.parametrize("queue", [{}, {"max_queue": 2}], ids=["unbounded", "blocking"])
def test_initializers_that_fail_at_random(queue: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """A pool that breaks under its submitters fails what did not run and refuses what comes later."""
    caplog.set_level("CRITICAL", logger="concurrent.futures")
    for number in rounds():
        dice = random.Random(f"{SEED} {number}")
        chance = dice.choice((0.05, 0.3, 1.0)) if number else 1.0

        def initializer(dice: random.Random = dice, chance: float = chance) -> None:
            if dice.random() < chance:
                raise ValueError("no")

        pool = AdaptiveExecutor(6, "broken", initializer, keep_alive=0.0005, **queue)
        ledger = Ledger()
        crew = Crew()

        def submitter(rng: random.Random, pool: AdaptiveExecutor = pool, ledger: Ledger = ledger) -> bool:
            ticket = ledger.submit(pool, rng.choice(("quick", "sleepy")))
            if ticket is not None:
                ticket.add_callback()
            return ticket is not None

        crew.repeat("submitter", submitter, copies=4)
        crew.stop.wait(0.1)
        crew.join()
        for ticket in ledger.accepted:
            assert ticket.future is not None
            try:
                ticket.future.exception(timeout=PATIENCE)
            except TimeoutError:
                stuck(f"a future of a broken pool; {pool.stats()}")
        bounded("shutdown of a broken pool", pool.shutdown)
        if ledger.broken or chance == 1.0:
            assert pool._broken
        if pool._broken:
            assert ledger.submit(pool) is None, "a broken pool took a task"
        ledger.audit(pool.stats(), broken=True)


@contextmanager
def starting_fails(monkeypatch: pytest.MonkeyPatch, refuse: Callable[[threading.Thread], bool]) -> Iterator[None]:
    """Let `threading.Thread.start` fail as the operating system does, for the threads that `refuse` picks."""
    start = threading.Thread.start

    def maybe_start(thread: threading.Thread) -> None:
        if refuse(thread):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", maybe_start)
        yield


@pytest.mark.parametrize("keep_alive", [0.0, 0.001, 5.0])
@pytest.mark.parametrize("chance", [0.3, 0.5])
def test_threads_refused_at_random(monkeypatch: pytest.MonkeyPatch, chance: float, keep_alive: float) -> None:
    """ "can't start new thread" loses no task: submit() raises only for a task that will not run."""
    dice = random.Random(SEED)
    refused = [0]

    def refuse(thread: threading.Thread) -> bool:
        if thread.name.startswith("refused_") and dice.random() < chance:
            refused[0] += 1
            return True
        return False

    for _ in rounds():
        pool = AdaptiveExecutor(6, "refused", keep_alive=keep_alive)
        ledger = Ledger()
        crew = Crew()

        def submitter(rng: random.Random, pool: AdaptiveExecutor = pool, ledger: Ledger = ledger) -> None:
            tickets = []
            for _ in range(rng.randint(1, 8)):
                try:
                    tickets.append(ledger.submit(pool, rng.choice(("quick", "sleepy", "boom"))))
                except RuntimeError as error:
                    assert str(error) == "can't start new thread"
            for ticket in tickets:
                assert ticket is not None
                ticket.add_callback()
                bring(ticket, "a task without a thread", pool)

        with starting_fails(monkeypatch, refuse):
            crew.repeat("submitter", submitter, copies=3)
            crew.stop.wait(0.3)
            crew.join()
        close(pool, ledger, "refused")
    assert refused[0] > 0 or not LONG_ENOUGH, "no start was refused"


def test_no_thread_beyond_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """When only one thread can be had, it does all the work, and the pool grows once more can be had."""
    for _ in rounds():
        pool = AdaptiveExecutor(4, "alone")
        ledger = Ledger()
        gate = threading.Event()
        barrier = threading.Barrier(4)
        with starting_fails(monkeypatch, lambda thread: thread.name.startswith("alone_") and bool(named("alone_"))):
            first = pool.submit(gate.wait, PATIENCE)
            for _ in range(20):
                ledger.submit(pool)
            gate.set()
            assert first.result(timeout=PATIENCE)
            ledger.settle()
            assert len({run for ticket in ledger.accepted for run in ticket.runs}) == 1
        futures = [pool.submit(barrier.wait, PATIENCE) for _ in range(4)]
        try:
            assert sorted(future.result(timeout=PATIENCE) for future in futures) == [0, 1, 2, 3]
        except (threading.BrokenBarrierError, TimeoutError):
            stuck(f"the pool did not grow again; {pool.stats()}")
        bounded("shutdown", pool.shutdown)
