"""Who sees what when: done() against result(), cancel() against the start, callbacks against completion."""

from __future__ import annotations

import concurrent.futures
import random
import threading
import time

import pytest
from stress_harness import PATIENCE, Crew, Ledger, Ticket, bounded, rounds, stuck

from ebbpool import AdaptiveExecutor


@pytest.mark.parametrize("kind", ["quick", "boom"])
def test_a_result_is_there_for_whoever_sees_done(kind: str) -> None:
    """Readers spin on done(); the first True means that every way to read the outcome has it at once."""
    readers = 4
    pool = AdaptiveExecutor(1, "seen")
    ledger = Ledger()
    batch: list[Ticket] = []
    turn = threading.Barrier(readers + 1)

    def read(ticket: Ticket, way: int) -> None:
        future = ticket.future
        assert future is not None
        done, result = future.done, future.result
        end = time.monotonic() + PATIENCE
        spins = 0
        while not done():
            spins += 1
            if spins % 100_000 == 0 and time.monotonic() > end:
                stuck(f"a reader never saw {future!r} done")
        if way < 3 and kind == "quick":
            assert result(0) is ticket.token
        elif way < 3:
            assert ticket.read(0)
        elif way == 3:
            assert future.exception(timeout=0) is ticket.error
        elif way == 4:
            assert concurrent.futures.wait([future], timeout=0).done == {future}
        else:
            assert list(concurrent.futures.as_completed([future], timeout=0)) == [future]
            assert (future.running(), future.cancelled(), future.cancel()) == (False, False, False)

    def reader(rng: random.Random) -> bool:
        turn.wait(PATIENCE)
        tickets = list(batch)
        for ticket in tickets:
            read(ticket, rng.randrange(6))
        turn.wait(PATIENCE)
        return bool(tickets)

    crew = Crew()
    crew.repeat("reader", reader, copies=readers)
    try:
        for _ in rounds():
            gate = threading.Event()
            first = pool.submit(gate.wait, PATIENCE)
            batch[:] = [ticket for _ in range(40) if (ticket := ledger.submit(pool, kind)) is not None]
            turn.wait(PATIENCE)
            gate.set()
            turn.wait(PATIENCE)
            assert first.result(timeout=PATIENCE)
        batch.clear()
        turn.wait(PATIENCE)
        turn.wait(PATIENCE)
    except threading.BrokenBarrierError:
        crew.join()
        stuck("readers and submitter lost each other")
    crew.join()
    bounded("shutdown", pool.shutdown)
    ledger.settle()
