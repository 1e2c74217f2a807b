"""What the faces of the metrics share: names, samples of how long tasks take, and the sums of a service.

The sums are without processes: what children report, and what is left of them when they end.
"""

from __future__ import annotations

import gc
import json
import re

import pytest
from support.common import (
    FORK,
    LONG,
    TIMEOUT,
    Background,
    Boom,
    Gate,
    eventually,
    fail,
    needs_fork,
    output_of,
    run_script,
    tight_switching,
)
from support.metrics import busy_pool, expected
from support.seams import engine_of

from ebbpool import AdaptiveExecutor
from ebbpool._metrics import service, source, table
from ebbpool._metrics.source import AT_ONCE, BUCKETS, MOST, Samples, Source, checked
from ebbpool._metrics.table import HISTOGRAMS, METRICS, text


def test_shares_and_bounds() -> None:
    for share, every in {1: 1, 0.5: 2, 1 / 64: 64, 0.03: 33, None: 0}.items():
        assert checked(None, share, None) == (None, every, BUCKETS)
    assert checked(None, 1, [1, 2.5, float("inf")]) == (None, 1, (1.0, 2.5))


def test_a_bound_belongs_to_its_bucket() -> None:
    buckets = Samples((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 2.0, 2.5):
        buckets.record(seconds, 0.0)
    found = {value: number for (name, _, value), number in buckets.amounts().items() if "wait" in name}
    assert found == {"1.0": 2, "2.0": 2, "+Inf": 1, "sum": 7.5}


def test_nothing_is_lost_between_many_workers_and_readers() -> None:
    buckets = Samples((1.0,))
    rounds = 5 * AT_ONCE

    def work() -> None:
        for _ in range(rounds):
            buckets.record(0.5, 2.0)

    with tight_switching():
        calls = [Background(work) for _ in range(4)]
        while not all(call.over.is_set() for call in calls):
            buckets.amounts()
    found = buckets.amounts()
    assert found["ebbpool.task.wait.duration", "", "1.0"] == 4 * rounds
    assert found["ebbpool.task.run.duration", "", "+Inf"] == 4 * rounds


def test_a_worker_never_waits_for_a_reader() -> None:
    buckets, thinned = Samples((1.0,)), Samples()

    def record() -> None:
        for _ in range(AT_ONCE + 10):
            buckets.record(0.5, 0.5)
        for _ in range(MOST + 10):
            thinned.record(0.5, 0.5)

    with source._turn:
        Background(record).join()
    assert buckets.amounts()["ebbpool.task.wait.duration", "", "1.0"] == AT_ONCE + 10


def test_a_flood_is_thinned_evenly() -> None:
    thinned = Samples()
    flood = 10 * MOST
    for number in range(flood):
        thinned.record(number, 0.0)
    kept = [waited for waited, _ in thinned.take()]
    assert MOST / 2 <= len(kept) <= MOST
    assert abs(sum(kept) / len(kept) - flood / 2) < flood / 20
    assert thinned.take() == []
    thinned.record(1.0, 2.0)
    assert thinned.take() == [(1.0, 2.0)]


def test_names_keep_the_rules_of_promtool() -> None:
    names = set()
    for metric in (*METRICS, *HISTOGRAMS):
        name, told = re.findall("# HELP (.*?) (.+)\n", text([metric], {}))[0]
        assert told and name not in names
        names.add(name)
        assert re.fullmatch("ebbpool(_[a-z]+)+", name), "lower case, and no colon"
        assert name.endswith("_total") == (metric.kind == "counter")
        assert not name.endswith(("_count", "_sum", "_bucket")), "that is what the parts of a histogram are called"
        assert name.removesuffix("_total").endswith("_seconds") == (metric.unit == "s")


def test_our_own_text_is_that_of_the_client() -> None:
    client = pytest.importorskip("prometheus_client")
    from ebbpool.prometheus import PoolCollector

    registry = client.CollectorRegistry()
    with AdaptiveExecutor(thread_name_prefix='a "b"\n\\c', keep_alive=LONG) as pool:
        pool.submit(int).result(TIMEOUT)
        pool.wait_idle()
        lane = pool.lane("é\x00", limit=3)
        # Of this pool alone: what other tests left may change from one reading to the next.
        PoolCollector([pool], registry=registry)
        assert text(METRICS, Source([pool]).read()) == client.generate_latest(registry).decode()
        assert Source([pool]).read()['a "b"\n\\c']["ebbpool.lane.limit", lane.name, ""] == 3


@pytest.mark.parametrize(
    ("face", "library", "package"),
    [("prometheus", "prometheus_client", "prometheus_client"), ("opentelemetry", "opentelemetry", "opentelemetry-api")],
)
def test_without_its_library_a_face_names_the_extra(face: str, library: str, package: str) -> None:
    done = run_script(f"import sys; sys.modules[{library!r}] = None; import ebbpool.{face}")
    assert f"ImportError: ebbpool.{face} needs {package}: pip install ebbpool[{face}]" in done.stderr


@needs_fork
def test_it_works_in_a_forked_child() -> None:
    pytest.importorskip("prometheus_client")
    script = """
        from prometheus_client import CollectorRegistry, generate_latest
        from ebbpool._metrics import source
        from ebbpool.prometheus import PoolCollector
        registry = CollectorRegistry()
        PoolCollector(sample=1, registry=registry)
        held, forked = threading.Event(), threading.Event()
        def hold():
            with source._turn:
                held.set()
                forked.wait()
        threading.Thread(target=hold).start()
        held.wait()
        def check():
            with AdaptiveExecutor(thread_name_prefix="child") as pool:
                assert b'ebbpool_threads{pool="child"' in generate_latest(registry)
                for _ in range(2000):
                    pool.submit(int).result()
                assert b'ebbpool_task_run_duration_seconds_count{pool="child"} 2000.0' in generate_latest(registry)
        print(in_child(check))
        forked.set()
    """
    assert output_of(script, FORK) == ["0"]


DONE = ("ebbpool.task.submissions", "", "")
WAITING = ("ebbpool.queue.length", "", "")
OLDEST = ("ebbpool.queue.oldest_wait", "", "")


class World:
    """The sums of a service, a clock in a test's hand, and what children say."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sums = source.Sums(service.MEMORY, lambda: self.now)

    def hear(self, serial: int, report: bytes | None) -> dict[str, table.Amounts]:
        service.hear(self.sums, serial, report)
        return self.sums.read()

    def tell(self, serial: int, **pools: table.Amounts) -> dict[str, table.Amounts]:
        rows = {label: [[*key, amount] for key, amount in amounts.items()] for label, amounts in pools.items()}
        return self.hear(serial, json.dumps(rows).encode())

    def done(self) -> float:
        return self.sums.read()["web"][DONE]


@pytest.fixture
def world() -> World:
    return World()


def test_children_are_added_up(world: World) -> None:
    for serial in (1, 2):
        world.tell(serial, web={DONE: 10 * serial, WAITING: serial, OLDEST: float(serial)})
    # A reload may bring a newer ebbpool in, which knows more metrics than its parent.
    web = {DONE: 11, WAITING: 0, OLDEST: 0.5, ("ebbpool.task.dreams", "", ""): 7}
    assert world.tell(1, web=web, other={DONE: 5}) == {
        "web": {DONE: 31, WAITING: 2, OLDEST: 2.0},
        "other": {DONE: 5},
    }


def test_counters_do_not_go_back_when_a_pool_or_a_child_ends(world: World) -> None:
    world.tell(1, web={DONE: 100, WAITING: 7})
    assert world.tell(1) == {"web": {DONE: 100}}, "what has waited in a pool that has ended waits no more"
    assert world.tell(1, web={DONE: 2, WAITING: 1}) == {"web": {DONE: 102, WAITING: 1}}
    assert world.hear(1, None) == {"web": {DONE: 102}}
    world.now += service.MEMORY
    assert world.done() == 102
    assert world.tell(2, web={DONE: 1, WAITING: 1}) == {"web": {DONE: 103, WAITING: 1}}
    world.now += 2 * service.MEMORY
    assert world.done() == 103
    world.hear(2, None)
    world.now += service.MEMORY + 1
    assert world.sums.read() == {}


def test_names_without_end_are_forgotten(world: World) -> None:
    for number in range(source.MOST_NAMES + 100):
        found = world.tell(1, **{f"pool-{number}": {DONE: 1}})
    assert len(found) <= source.MOST_NAMES + 1
    assert f"pool-{source.MOST_NAMES + 99}" in found and "pool-0" not in found


def test_what_cannot_be_read_harms_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for serial in (1, 2):
        world.tell(serial, web={DONE: 5})
    rows = b'["ebbpool.task.submissions", "", "", "many"]', b"[1]", b"1"
    for line in [b"nonsense", b"5", b"[[0]]", b"\xff", b"[" * 100_000, *(b'{"web": [%s]}' % row for row in rows)]:
        caplog.clear()
        world.hear(1, line)
        assert "event=metrics_unreadable" in caplog.text
    world.tell(2, web={DONE: 6})
    assert world.done() == 11
    for serial in (1, 2):
        world.hear(serial, None)
    assert world.done() == 11


def test_a_report_shows_what_stats_shows(world: World) -> None:
    with busy_pool() as pool:
        found = world.hear(1, source.reporter(0)())["web"]
        assert {key: found[key] for key in expected(pool)} == expected(pool)


def test_the_last_tasks_of_a_pool_are_counted(world: World) -> None:
    report = source.reporter(1)
    pool = AdaptiveExecutor(thread_name_prefix="brief")
    assert world.hear(1, report())["brief"][DONE] == 0
    for _ in range(10):
        pool.submit(int)
    pool.shutdown()
    report()  # The parent may not read it.
    for found in (world.hear(1, report()), world.hear(1, report()), world.hear(1, None)):
        assert found["brief"][DONE] == 10
        assert found["brief"]["ebbpool.thread.exits", "", ""] == found["brief"]["ebbpool.thread.starts", "", ""]
        runs = [number for key, number in found["brief"].items() if "run.duration" in key[0] and key[2] != "sum"]
        assert sum(runs) == 10


def test_a_child_forgets_the_labels_of_pools_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "SHOWN", 0.0)
    report = source.reporter(0)
    with AdaptiveExecutor(thread_name_prefix="brief"):
        assert b'"brief"' in report()
    eventually(lambda: b'"brief"' not in report())


def test_a_forgotten_executor_is_not_kept_and_its_tasks_are_counted(world: World) -> None:
    report = source.reporter(0)
    pool = AdaptiveExecutor(thread_name_prefix="forgotten")
    with Gate() as gate:
        gate.hold(pool)
        report()
        engine = engine_of(pool)
        del pool

        def is_closed() -> bool:
            gc.collect()
            return bool(engine.closed)

        eventually(is_closed, "the executor is collected")
        assert world.hear(1, report())["forgotten"]["ebbpool.task.completions", "", "completed"] == 0
    eventually(lambda: engine.headcount == 0)
    assert world.hear(1, report())["forgotten"]["ebbpool.task.completions", "", "completed"] == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_read_that_fails_loses_nothing_of_a_pool_that_ends_meanwhile(known: bool) -> None:
    with AdaptiveExecutor(1, "odd") as odd:
        source = Source(None, memory=LONG)
        pool = AdaptiveExecutor(1, "ends")
        pool.submit(int).result(TIMEOUT)
        if known:
            source.read()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(odd, "stats", fail)
            with pytest.raises(Boom):
                source.read()
            pool.submit(int).result(TIMEOUT)
            pool.shutdown()
            with pytest.raises(Boom):
                source.read()
        for _ in range(2):
            ended = source.read()["ends"]
            assert sum(ended[key] for key in ended if key[0] == "ebbpool.task.completions") == 2
