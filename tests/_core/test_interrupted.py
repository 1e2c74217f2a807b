"""A signal handler or a finaliser may run at each call of the plain engine, and use the pool that it interrupts."""

from __future__ import annotations

import ast
import asyncio
import dis
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import monotonic
from types import CodeType, FrameType
from typing import Any

import pytest
from support import seams
from support.common import LONG, TIMEOUT, Background, Gate, eventually

import ebbpool
from ebbpool import COMPILED, AdaptiveExecutor

plain = pytest.mark.skipif(COMPILED, reason="compiled code makes no calls at which another may run")


@contextmanager
def at_call(number: int, do: Callable[[], object]) -> Iterator[list[str]]:
    """Have `do()` called as the engine begins that call of a function of its own; yield where that was."""
    places: list[str] = []
    left = count(number, -1)

    def trace(frame: FrameType, event: str, arg: object) -> None:
        if "_core" in frame.f_code.co_filename and not places and next(left) == 0:
            places.append(frame.f_code.co_qualname)
            do()

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield places
    finally:
        sys.settrace(before)


def at_each_call(play: Callable[[int], list[str]]) -> None:
    """Play a program again and again, each time with another place where it is interrupted."""
    number = 0
    while play(number):
        number += 1
    assert number > 10


OPERATIONS: dict[str, Callable[[Any, list[Any]], object]] = {
    "cancel": lambda pool, queued: queued[0].cancel(),
    "resize": lambda pool, queued: pool.resize(max_queue=3),
    "stats": lambda pool, queued: pool.stats(),
}
HANDLERS: dict[str, Callable[[Any, list[Any]], object]] = {
    "cancel the same": lambda pool, queued: queued[0].cancel(),
    "cancel": lambda pool, queued: queued[1].cancel(),
    "resize": lambda pool, queued: pool.resize(max_queue=4),
}


@plain
@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_with_a_full_queue_each_task_still_has_one_fate(operation: str, handler: str) -> None:
    def play(number: int) -> list[str]:
        runs: Counter[str] = Counter()
        with AdaptiveExecutor(1, max_queue=2) as pool, Gate() as gate:
            gate.hold(pool)
            queued = [pool.submit(runs.update, [name]) for name in ("one", "two")]
            waiting = []
            for name in ("three", "four", "five"):
                waiting.append(Background(lambda name=name: pool.submit(runs.update, [name])))  # type: ignore[misc]
                eventually(lambda: len(seams.engine_of(pool).room.tasks) == len(waiting))
            with at_call(number, lambda: HANDLERS[handler](pool, queued)) as places:
                OPERATIONS[operation](pool, queued)
            gate.open()
            futures = [*queued, *(each.join() for each in waiting)]
            assert pool.wait_idle(TIMEOUT)
            assert all(future.done() for future in futures)
            ran = sum(not future.cancelled() for future in futures)
            assert (sum(runs.values()), max(runs.values())) == (ran, 1), places
            stats = pool.stats()
            assert (stats.queued, stats.submitted, stats.completed + stats.cancelled) == (0, 6, 6), places
        return places

    at_each_call(play)


@plain
@pytest.mark.parametrize("way", ["submit", "resize", "shutdown"])
def test_a_pool_that_shrinks_counts_each_worker_once(way: str) -> None:
    handlers: dict[str, Callable[[Any], object]] = {
        "submit": lambda pool: pool.submit(int),
        "resize": lambda pool: pool.resize(max_workers=2),
        "shutdown": lambda pool: pool.shutdown(wait=False),
    }

    def play(number: int) -> list[str]:
        with AdaptiveExecutor(4, keep_alive=LONG) as pool, Gate() as gate:
            gate.hold(pool, 4)
            gate.open()
            assert pool.wait_idle(TIMEOUT)
            with at_call(number, lambda: handlers[way](pool)) as places:
                pool.resize(max_workers=1)
            assert pool.wait_idle(TIMEOUT), places
            left = 0 if way == "shutdown" and places else 1
            eventually(lambda: pool.stats().workers <= max(left, pool._max_workers))
            with seams.engine_of(pool).mutex:
                seams.check(seams.engine_of(pool))
            assert left == 0 or pool.submit(int).result(TIMEOUT) == 0
        return places

    at_each_call(play)


@plain
@pytest.mark.parametrize("max_queue", [None, 2])
@pytest.mark.parametrize("handler", ["submit", "cancel"])
def test_calls_that_turn_out_short_are_sorted_beside_what_a_finaliser_does(max_queue: int | None, handler: str) -> None:
    def short() -> int:
        return 7

    async def calls(number: int) -> list[str]:
        with AdaptiveExecutor(2, max_queue=max_queue) as pool, Gate() as gate:
            gate.hold(pool, 2)
            awaited = [asyncio.ensure_future(pool.run(short)) for _ in range(5)]
            await asyncio.sleep(0)
            seams.know(pool, short, 1e-6, 3)
            submitted: list[Any] = []
            act = awaited[-1].cancel if handler == "cancel" else lambda: submitted.append(pool.submit(short))
            with at_call(number, act) as places:
                seams.engine_of(pool).look(monotonic() + 1.0)
            gate.open()
            outcomes = await asyncio.wait_for(asyncio.gather(*awaited, return_exceptions=True), TIMEOUT)
            assert outcomes[:4] == [7] * 4 and (outcomes[4] == 7) != awaited[4].cancelled(), places
            assert [future.result(TIMEOUT) for future in submitted] == [7] * len(submitted), places
            assert pool.stats().queued == 0, places
        return places

    at_each_call(lambda number: asyncio.run(calls(number)))


def turns_outside(code: CodeType) -> Iterator[tuple[str, int]]:
    """Yield where a function that holds a lock goes back in a loop, and leaves it locked if it is interrupted there."""
    instructions = list(dis.get_instructions(code))
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    held = [each.offset for each in instructions if each.opname in ("BEFORE_WITH", "LOAD_SPECIAL")]
    ends = [each.offset for each in instructions if each.opname == "WITH_EXCEPT_START"]
    for each in instructions:
        if each.opname == "JUMP_BACKWARD" and held and held[0] < each.offset < ends[-1]:
            if not any(entry.start <= each.offset < entry.end for entry in table):
                yield code.co_qualname, each.positions.lineno if each.positions and each.positions.lineno else 0
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from turns_outside(constant)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="other interpreters have no such tables")
def test_no_loop_leaves_a_lock_locked_if_it_is_interrupted() -> None:
    found = {}
    for path in Path(ebbpool.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        locked = [
            range(block.body[0].lineno, (block.body[-1].end_lineno or 0) + 1)
            for block in ast.walk(ast.parse(text))
            if isinstance(block, ast.With)
            and any(re.search(r"(mutex|lock|turn|naming)$", ast.unparse(item.context_expr)) for item in block.items)
        ]
        for name, line in turns_outside(compile(text, path.name, "exec")):
            if any(line in lines for lines in locked):
                found[path.name, name] = line
    assert not found
