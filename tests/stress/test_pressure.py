"""Initializers that fail at random, and threads that cannot be started."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from stress_harness import (
    LONG_ENOUGH,
    PATIENCE,
    SEED,
    Crew,
    Ledger,
    bounded,
    bring,
    close,
    rounds,
    stuck,
)

from ebbpool import AdaptiveExecutor


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


@pytest.mark.parametrize(("chance", "keep_alive"), [(0.3, 0.0), (0.5, 0.001), (0.5, 5.0)])
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
