"""The sums of a service, without processes: what children report, and what is left of them when they end."""

from __future__ import annotations

import gc
import json
import socket

import pytest
from support.common import LONG, TIMEOUT, Gate, eventually
from support.metrics import busy_pool, expected

from ebbpool import AdaptiveExecutor
from ebbpool._metrics.reporter import Reporter
from ebbpool._metrics.service import MEMORY, Service
from ebbpool._metrics.sums import MOST_NAMES
from ebbpool._metrics.table import Amounts

DONE = ("ebbpool.task.submissions", "", "")
WAITING = ("ebbpool.queue.length", "", "")
OLDEST = ("ebbpool.queue.oldest_wait", "", "")


class World:
    """A service, a clock in a test's hand, and children that are mere sockets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.service = Service(clock=lambda: self.now)
        self.lines: dict[int, socket.socket] = {}

    def start(self, serial: int) -> None:
        self.lines[serial] = self.service.admit(serial)._line

    def write(self, serial: int, *pools: tuple[int, str, Amounts]) -> bytes:
        return json.dumps(
            [[n, label, [[*key, x] for key, x in amounts.items()]] for n, label, amounts in pools]
        ).encode()

    def tell(self, serial: int, *pools: tuple[int, str, Amounts]) -> None:
        self.lines[serial].sendall(self.write(serial, *pools) + b"\n")
        self.service.hear()

    def end(self, serial: int) -> None:
        self.lines.pop(serial).close()
        self.service.gone(serial)

    def done(self, label: str = "web") -> float | None:
        return self.service.read().get(label, {}).get(DONE)


@pytest.fixture
def world() -> World:
    return World()


def test_children_are_added_up(world: World) -> None:
    for serial in (1, 2):
        world.start(serial)
        world.tell(serial, (0, "web", {DONE: 10 * serial, WAITING: serial, OLDEST: float(serial)}))
    world.tell(1, (0, "web", {DONE: 11, WAITING: 0, OLDEST: 0.5}), (1, "other", {DONE: 5}))
    assert world.service.read() == {"web": {DONE: 31, WAITING: 2, OLDEST: 2.0}, "other": {DONE: 5}}
    for serial in (1, 2):
        world.end(serial)


def test_counters_do_not_go_back_when_a_child_is_replaced(world: World) -> None:
    world.start(1)
    world.tell(1, (0, "web", {DONE: 100, WAITING: 7}))
    world.end(1)
    assert world.service.read() == {"web": {DONE: 100}}, "what waits in a dead child waits no more"
    world.now += MEMORY
    world.start(2)
    assert world.done() == 100
    world.tell(2, (0, "web", {DONE: 1, WAITING: 1}))
    assert world.service.read() == {"web": {DONE: 101, WAITING: 1}}
    world.now += 2 * MEMORY
    assert world.done() == 101
    world.end(2)


def test_what_a_child_says_last_counts(world: World) -> None:
    world.start(1)
    world.lines[1].sendall(
        world.write(1, (0, "web", {DONE: 5})) + b"\n" + world.write(1, (0, "web", {DONE: 6})) + b"\n"
    )
    world.lines[1].sendall(world.write(1, (0, "web", {DONE: 7}))[:-3])
    world.end(1)
    assert world.done() == 6, "a line that was cut off is dropped"


def test_a_long_line_comes_in_pieces(world: World) -> None:
    world.start(1)
    line = world.write(1, (0, "web", {DONE: 5})) + b"\n"
    for byte in line:
        assert world.done() is None
        world.lines[1].send(bytes([byte]))
        world.service.hear()
    assert world.done() == 5
    world.end(1)


def test_a_pool_that_is_shut_down_leaves_its_counters(world: World) -> None:
    world.start(1)
    world.tell(1, (0, "web", {DONE: 5, WAITING: 3}))
    world.tell(1)
    assert world.service.read() == {"web": {DONE: 5}}
    world.tell(1, (1, "web", {DONE: 2, WAITING: 1}))
    assert world.service.read() == {"web": {DONE: 7, WAITING: 1}}
    world.tell(1)
    world.now += MEMORY + 1
    assert world.service.read() == {}
    world.end(1)


def test_names_without_end_are_forgotten(world: World) -> None:
    world.start(1)
    for number in range(MOST_NAMES + 100):
        world.tell(1, (number, f"pool-{number}", {DONE: 1}))
    found = world.service.read()
    assert len(found) <= MOST_NAMES + 1
    assert f"pool-{MOST_NAMES + 99}" in found and "pool-0" not in found
    world.end(1)


def test_metrics_that_only_a_newer_child_knows_are_left_out(world: World) -> None:
    """A reload may bring a newer ebbpool in, under the parent of before."""
    world.start(1)
    world.tell(1, (0, "web", {DONE: 5, ("ebbpool.task.dreams", "", ""): 7}))
    assert world.service.read() == {"web": {DONE: 5}}
    world.end(1)


@pytest.mark.parametrize(
    "line",
    [
        *(b"nonsense", b"5", b"[[0]]", b'[[0, "web", [[1]]]]', b'{"pools": []}', b"\xff", b'[[Infinity, "a", []]]'),
        b"[" * 100_000,
    ],
    ids=repr,
)
def test_what_cannot_be_read_harms_nobody(world: World, line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    for serial in (1, 2):
        world.start(serial)
        world.tell(serial, (0, "web", {DONE: 5}))
    world.lines[1].sendall(line + b"\n")
    world.service.hear()
    assert "event=metrics_unreadable" in caplog.text
    world.tell(2, (0, "web", {DONE: 6}))
    assert world.done() == 11
    assert len(world.service.sources()) == 1
    world.end(1)
    world.end(2)
    assert world.done() == 11


def test_a_child_that_was_never_started(world: World) -> None:
    world.start(1)
    world.service.gone(1)
    world.service.handed_over(1)
    assert world.service.sources() == []
    world.service.hear()
    assert world.service.read() == {}


class Child:
    """A reporter in this process, whose thread is not started."""

    def __init__(self, sample: float | None = None) -> None:
        self.service = Service(sample)
        self.reporter = self.service.admit(1)
        self.reporter._prepare()

    def report(self) -> dict[str, Amounts]:
        self.reporter._line.sendall(self.reporter._written())
        self.service.hear()
        return self.service.read()

    def end(self) -> dict[str, Amounts]:
        self.reporter.close()
        self.service.gone(1)
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
        engine = pool._pool
        del pool

        def is_closed() -> bool:
            gc.collect()
            return bool(engine.closed)

        eventually(is_closed, "the executor is collected")
        assert child.report()["forgotten"]["ebbpool.task.completions", "", "completed"] == 0
    eventually(lambda: engine.headcount == 0)
    assert child.report()["forgotten"]["ebbpool.task.completions", "", "completed"] == 1
    child.end()


def test_the_thread_reports_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbpool._metrics.reporter.INTERVAL", LONG)
    monkeypatch.setattr("ebbpool._metrics.reporter.LAST", TIMEOUT)
    service = Service()
    reporter: Reporter = service.admit(1)
    with AdaptiveExecutor(thread_name_prefix="asked") as pool:
        pool.submit(int).result(TIMEOUT)
        thread = reporter.start()
        reporter.report()
        service.hear()
        assert service.read()["asked"][DONE] == 1
    # As if the parent were gone.
    service.forsake()
    reporter.report()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
