"""What ebbpool takes for granted about the interpreter, GIL or not, by name.

Everything else is under a lock. If one of these fails, the interpreter has changed, and ebbpool must follow.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator

import pytest
from support.common import COUNTS_REFERENCES, TIMEOUT, Background, Thing, eventually, tight_switching, together
from support.seams import LockType, allocate_lock


@pytest.fixture(autouse=True)
def every_window() -> Iterator[None]:
    with tight_switching():
        yield


def test_deque_append_and_popleft_lose_and_repeat_nothing() -> None:
    """Producers append, consumers pop: each item comes out once, those of one producer in their order.

    Of two that pop the last item one gets it, and the other an IndexError.
    """
    queue: deque[tuple[int, int]] = deque()
    count = 2000
    remaining = threading.Semaphore(2 * count)

    def turn(number: int) -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        if number < 2:
            for item in range(count):
                queue.append((number, item))
            return taken
        while True:
            try:
                item_of = queue.popleft()
            except IndexError:
                if remaining._value == 0:
                    return taken
                continue
            remaining.acquire()
            taken.append(item_of)

    outcomes = together(turn)
    taken = [item for outcome in outcomes for item in outcome]
    assert sorted(taken) == [(producer, item) for producer in range(2) for item in range(count)]
    for outcome in outcomes:
        for producer in range(2):
            own = [item for who, item in outcome if who == producer]
            assert own == sorted(own)


def test_a_release_that_races_with_a_time_out_is_seen_by_one_side_or_the_other() -> None:
    """This is what makes a lock a mailbox: another thread may release it, and the message is never lost."""
    for round_number in range(200):
        lock = allocate_lock()
        lock.acquire()

        def turn(number: int, lock: LockType = lock, round_number: int = round_number) -> bool | None:
            if number == 0:
                return lock.acquire(timeout=0.00001 * (round_number % 10))
            lock.release()
            return None

        taken = together(turn, 2)[0]
        assert lock.acquire(False) is not taken


def test_a_lock_lets_one_through_for_each_release() -> None:
    lock = allocate_lock()
    assert lock.acquire() and not lock.acquire(False) and not lock.acquire(True, 0.001)
    waiting = [Background(lambda: lock.acquire(True, TIMEOUT)) for _ in range(2)]
    for number in (1, 2):
        lock.release()
        eventually(lambda number=number: sum(each.over.is_set() for each in waiting) == number)
    assert [each.join() for each in waiting] == [True, True]
    lock.release()
    with pytest.raises(RuntimeError, match="release un"):
        lock.release()
    assert lock.acquire(False)


def test_a_dict_and_a_set_may_be_listed_while_other_threads_change_both() -> None:
    """So are the registry of pools, and the threads of a pool."""
    shared, members = dict.fromkeys(range(-50, 0), 0), set(range(-50, 0))

    def turn(number: int) -> int:
        if number == 0:
            listings = (kept for _ in range(500) for kept in (list(shared), list(members)))
            return min(len([key for key in listed if key < 0]) for listed in listings)
        for key in range(number * 1000, number * 1000 + 1000):
            shared[key] = number
            members.add(key)
            assert shared.pop(key) == number
            members.discard(key)
        return 50

    assert together(turn) == [50] * 4
    assert len(shared) == len(members) == 50


def test_a_key_of_a_dict_is_popped_by_one_thread_alone() -> None:
    """A thread that begins and whoever takes its start back both pop its worker; one of them gets it."""
    shared: dict[object, int] = {}
    keys = [object() for _ in range(2000)]
    shared.update(dict.fromkeys(keys, 1))
    got = together(lambda number: sum(shared.pop(key, 0) for key in keys))
    assert sum(got) == len(keys)
    assert not shared


def test_of_a_server_that_waits_and_a_handler_that_leaves_one_sees_the_other() -> None:
    """A server appends itself and lists its handlers; a handler leaves and looks who waits: not both miss the other."""
    for _ in range(300):
        waits: list[int] = []
        live = {"handler": None}

        def turn(number: int, waits: list[int] = waits, live: dict[str, None] = live) -> bool:
            if number == 0:
                waits.append(number)
                return "handler" in list(live)
            live.pop("handler")
            return bool(waits)

        found, seen = together(turn, 2)
        assert seen or not found


def test_a_weak_reference_gives_the_object_or_none() -> None:
    """A worker that asks for its executor gets it whole, and keeps it, or learns that it is gone."""
    for _ in range(200):
        holder = [Thing()]
        reference = weakref.ref(holder[0])

        def turn(number: int, holder: list[Thing] = holder, reference: weakref.ref[Thing] = reference) -> object:
            if number == 0:
                holder.clear()
                return None
            thing = reference()
            return thing is None or thing.method() == 0

        assert together(turn)[1:] == [True] * 3
        assert reference() is None or not COUNTS_REFERENCES
