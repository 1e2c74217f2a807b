"""Semaphores under pressure: never one too many inside, no permit lost or made, nobody left waiting."""

from __future__ import annotations

import random
import time

import pytest
from stress_harness import PATIENCE, Crew

from ebbpool.sync import BoundedSemaphore, Semaphore

THREADS = 6


class Room:
    """Notes how many are inside, by list operations that are atomic everywhere and order nothing else."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.inside: list[None] = []
        self.visits = 0

    def visit(self, rng: random.Random) -> None:
        self.inside.append(None)
        assert len(self.inside) <= self.most, f"{len(self.inside)} in a room for {self.most}"
        visits = self.visits
        for _ in range(rng.randrange(20)):
            pass
        if not rng.randrange(200):
            time.sleep(0.0002)
        assert len(self.inside) <= self.most, f"{len(self.inside)} in a room for {self.most}"
        self.visits = visits + 1
        self.inside.pop()


def enter(sem: Semaphore, rng: random.Random) -> bool:
    """Ask for a permit in one of the ways there are."""
    match rng.randrange(6):
        case 0:
            return sem.acquire(False)
        case 1:
            return sem.acquire(timeout=rng.uniform(0.0, 0.0003))
        case 2:
            return sem.acquire(timeout=rng.uniform(0.0, 0.003))
        case 3:
            return sem.acquire(timeout=PATIENCE)
        case _:
            return sem.acquire()


@pytest.mark.parametrize("kind", [Semaphore, BoundedSemaphore])
@pytest.mark.parametrize("most", [1, 3])
def test_never_one_too_many_inside(kind: type[Semaphore], most: int) -> None:
    sem, room, crew = kind(most), Room(most), Crew()
    visits: list[None] = []

    def visit(rng: random.Random) -> None:
        if enter(sem, rng):
            room.visit(rng)
            visits.append(None)
            sem.release()

    crew.repeat("visitor", visit, copies=THREADS)
    crew.press()
    assert sem._value == most
    assert not sem._waiters
    assert visits
    if most == 1:
        assert room.visits == len(visits), "two were inside and overwrote each other's count"
