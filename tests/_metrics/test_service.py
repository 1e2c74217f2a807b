"""The sums of a service, without processes: what children report, and what is left of them when they end."""

from __future__ import annotations

import gc
import json

import pytest
from support.common import Gate, eventually
from support.metrics import busy_pool, expected, service, source, table

from ebbpool import AdaptiveExecutor
from ebbpool._testing.seams import crew_of

DONE = ("ebbpool.task.submissions", "", "")
WAITING = ("ebbpool.queue.length", "", "")
OLDEST = ("ebbpool.queue.oldest_wait", "", "")


class World:
    """A service, a clock in a test's hand, and what children say to it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.service = service.Service(lambda: self.now)

    def tell(self, serial: int, *pools: tuple[int, str, table.Amounts]) -> None:
        rows = [[n, label, [[*key, x] for key, x in amounts.items()]] for n, label, amounts in pools]
        self.service.hear(serial, json.dumps(rows).encode())

    def end(self, serial: int) -> None:
        self.service.hear(serial, None)

    def done(self, label: str = "web") -> float | None:
        return self.service.read().get(label, {}).get(DONE)


@pytest.fixture
def world() -> World:
    return World()


def test_children_are_added_up(world: World) -> None:
    for serial in (1, 2):
        world.tell(serial, (0, "web", {DONE: 10 * serial, WAITING: serial, OLDEST: float(serial)}))
    world.tell(1, (0, "web", {DONE: 11, WAITING: 0, OLDEST: 0.5}), (1, "other", {DONE: 5}))
    assert world.service.read() == {"web": {DONE: 31, WAITING: 2, OLDEST: 2.0}, "other": {DONE: 5}}


def test_counters_do_not_go_back_when_a_child_is_replaced(world: World) -> None:
    world.tell(1, (0, "web", {DONE: 100, WAITING: 7}))
    world.end(1)
    assert world.service.read() == {"web": {DONE: 100}}, "what waits in a dead child waits no more"
    world.now += service.MEMORY
    assert world.done() == 100
    world.tell(2, (0, "web", {DONE: 1, WAITING: 1}))
    assert world.service.read() == {"web": {DONE: 101, WAITING: 1}}
    world.now += 2 * service.MEMORY
    assert world.done() == 101
    world.end(2)


def test_a_pool_that_is_shut_down_leaves_its_counters(world: World) -> None:
    world.tell(1, (0, "web", {DONE: 5, WAITING: 3}))
    world.tell(1)
    assert world.service.read() == {"web": {DONE: 5}}
    world.tell(1, (1, "web", {DONE: 2, WAITING: 1}))
    assert world.service.read() == {"web": {DONE: 7, WAITING: 1}}
    world.tell(1)
    world.now += service.MEMORY + 1
    assert world.service.read() == {}
    world.end(1)


def test_names_without_end_are_forgotten(world: World) -> None:
    for number in range(source.MOST_NAMES + 100):
        world.tell(1, (number, f"pool-{number}", {DONE: 1}))
    found = world.service.read()
    assert len(found) <= source.MOST_NAMES + 1
    assert f"pool-{source.MOST_NAMES + 99}" in found and "pool-0" not in found
    world.end(1)


def test_metrics_that_only_a_newer_child_knows_are_left_out(world: World) -> None:
    """A reload may bring a newer ebbpool in, under the parent of before."""
    world.tell(1, (0, "web", {DONE: 5, ("ebbpool.task.dreams", "", ""): 7}))
    assert world.service.read() == {"web": {DONE: 5}}
    world.end(1)


def test_what_cannot_be_read_harms_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for serial in (1, 2):
        world.tell(serial, (0, "web", {DONE: 5}))
    lines = [b"nonsense", b"5", b"[[0]]", b'[[0, "web", [[1]]]]', b'{"pools": []}', b"\xff", b'[[Infinity, "a", []]]']
    for line in [*lines, b"[" * 100_000]:
        caplog.clear()
        world.service.hear(1, line)
        assert "event=metrics_unreadable" in caplog.text
    world.tell(2, (0, "web", {DONE: 6}))
    assert world.done() == 11
    world.end(1)
    world.end(2)
    assert world.done() == 11


class Child:
    """What a child writes, in this process."""

    def __init__(self, every: int = 0) -> None:
        self.service = service.Service()
        self.write = service.Reports(every)

    def report(self) -> dict[str, table.Amounts]:
        self.service.hear(1, self.write())
        return self.service.read()

    def end(self) -> dict[str, table.Amounts]:
        self.service.hear(1, None)
        return self.service.read()


def test_a_report_shows_what_stats_shows() -> None:
    child = Child()
    with busy_pool() as pool:
        found = child.report()["web"]
        assert {key: found[key] for key in expected(pool)} == expected(pool)
    child.end()


def test_the_last_tasks_of_a_pool_are_counted() -> None:
    child = Child(1)
    pool = AdaptiveExecutor(thread_name_prefix="brief")
    assert child.report()["brief"][DONE] == 0
    for _ in range(10):
        pool.submit(int)
    pool.shutdown()
    for found in (child.report(), child.report(), child.end()):
        assert found["brief"][DONE] == 10
        assert found["brief"]["ebbpool.thread.exits", "", ""] == found["brief"]["ebbpool.thread.starts", "", ""]
        runs = [number for key, number in found["brief"].items() if "run.duration" in key[0] and key[2] != "sum"]
        assert sum(runs) == 10


def test_a_forgotten_executor_is_not_kept_and_its_tasks_are_counted() -> None:
    child = Child()
    pool = AdaptiveExecutor(thread_name_prefix="forgotten")
    with Gate() as gate:
        gate.hold(pool)
        child.report()
        engine = crew_of(pool).pool
        del pool

        def is_closed() -> bool:
            gc.collect()
            return bool(engine.closed)

        eventually(is_closed, "the executor is collected")
        assert child.report()["forgotten"]["ebbpool.task.completions", "", "completed"] == 0
    eventually(lambda: engine.headcount == 0)
    assert child.report()["forgotten"]["ebbpool.task.completions", "", "completed"] == 1
    child.end()
