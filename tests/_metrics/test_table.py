"""Names of metrics; samples of how long tasks take: several observers of one pool, buckets, and floods."""

from __future__ import annotations

import re
import threading

import pytest
from support.common import LONG, TIMEOUT, all_end, needs_fork, output_of, tight_switching

from ebbpool import AdaptiveExecutor
from ebbpool._metrics import durations
from ebbpool._metrics.durations import AT_ONCE, BUCKETS, MOST, Samples, bounds_of, one_in
from ebbpool._metrics.source import Source
from ebbpool._metrics.table import HISTOGRAMS, METRICS, Metric, text


def test_shares() -> None:
    assert [one_in(share) for share in (1, 1.0, 0.5, 1 / 64, 0.03)] == [1, 1, 2, 64, 33]


def test_bounds() -> None:
    assert bounds_of(None) == BUCKETS
    assert list(BUCKETS) == sorted(set(BUCKETS))
    assert bounds_of([1, 2.5, float("inf")]) == (1.0, 2.5)


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
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            buckets.amounts()
        assert all_end(threads)
    found = buckets.amounts()
    assert found["ebbpool.task.wait.duration", "", "1.0"] == 4 * rounds
    assert found["ebbpool.task.run.duration", "", "+Inf"] == 4 * rounds


def test_a_worker_never_waits_for_a_reader() -> None:
    buckets, thinned = Samples((1.0,)), Samples()
    with durations.turn.lock:
        for _ in range(AT_ONCE + 10):
            buckets.record(0.5, 0.5)
        for _ in range(MOST + 10):
            thinned.record(0.5, 0.5)
    assert buckets.amounts()["ebbpool.task.wait.duration", "", "1.0"] == AT_ONCE + 10


def test_a_flood_is_thinned_evenly() -> None:
    thinned = Samples()
    flood = 10 * MOST
    for number in range(flood):
        thinned.record(number, 0.0)
    kept = [waited for waited, _ in thinned.take()]
    assert MOST / 2 <= len(kept) <= MOST
    assert abs(sum(kept) / len(kept) - flood / 2) < flood / 20
    assert list(thinned.take()) == []
    thinned.record(1.0, 2.0)
    assert list(thinned.take()) == [(1.0, 2.0)]


ALL = (*METRICS, *HISTOGRAMS)
RESERVED = ("_count", "_sum", "_bucket", "_info")
KINDS = {"counter", "gauge", "histogram", "summary", "untyped", "metric"}
NO_BASE_UNITS = {
    "s", "ms", "us", "ns", "sec", "min", "milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "days",
    "weeks", "kb", "mb", "gb", "kilobytes", "megabytes", "gigabytes", "bits", "percent",
}  # fmt: skip


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_a_name_keeps_the_rules_of_promtool(metric: Metric) -> None:
    about, kind = text([metric], {}).splitlines()
    _, _, name, told = about.split(" ", 3)
    assert told.strip()
    assert kind.split(" ")[2] == name
    assert re.fullmatch("ebbpool(_[a-z]+)+", name), "lower case, and no colon"
    assert name.endswith("_total") == (metric.kind == "counter")
    assert not name.endswith(RESERVED), "that is what the parts of a histogram are called"
    words = set(name.split("_"))
    assert not words & (KINDS | NO_BASE_UNITS)
    assert name.removesuffix("_total").endswith("_seconds") == (metric.unit == "s")
    assert metric.label not in ("le", "quantile")


def test_no_two_have_one_name() -> None:
    assert len({metric.prometheus_name for metric in ALL}) == len(ALL)


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


@needs_fork
def test_it_works_in_a_forked_child() -> None:
    pytest.importorskip("prometheus_client")
    script = """
        import os
        from prometheus_client import CollectorRegistry, generate_latest
        from ebbpool import AdaptiveExecutor
        from ebbpool._metrics import durations
        from ebbpool.prometheus import PoolCollector
        registry = CollectorRegistry()
        PoolCollector(sample=1, registry=registry)
        with durations.turn.lock:
            pid = os.fork()
        if pid == 0:
            with AdaptiveExecutor(thread_name_prefix="child") as pool:
                assert b'ebbpool_threads{pool="child"' in generate_latest(registry)
                for _ in range(2000):
                    pool.submit(int).result()
                assert b'ebbpool_task_run_duration_seconds_count{pool="child"} 2000.0' in generate_latest(registry)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    assert output_of(script) == ["0"]
