"""`ebbpool.prometheus`, read by the parsers of Prometheus' own client."""

from __future__ import annotations

import gc
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from support.common import TIMEOUT, Gate, needs_fork, output_of
from support.metrics import BUCKETS, NAMES, busy_pool, expected, sampled, without_times

from ebbpool import AdaptiveExecutor
from ebbpool.prometheus import PoolCollector


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def scraped(registry: CollectorRegistry) -> dict[str, Family]:
    return {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}


def metrics(registry: CollectorRegistry) -> dict[str, dict[tuple[str, str, str], float]]:
    """The metrics of each pool, as `expected` writes them."""
    found: dict[str, dict[tuple[str, str, str], float]] = {}
    names = {
        f"ebbpool_{name.replace('.', '_')}" + "_seconds" * (kind == "longest"): f"ebbpool.{name}"
        for kind, all_names in NAMES.items()
        for name in all_names
    }
    for name, family in scraped(registry).items():
        for sample in family.samples:
            labels = dict(sample.labels)
            pool = found.setdefault(labels.pop("pool"), {})
            pool[names[name], labels.pop("lane", ""), labels.popitem()[1] if labels else ""] = sample.value
            assert not labels
    return found


def shown_by_stats(registry: CollectorRegistry, pool: AdaptiveExecutor) -> bool:
    return without_times(metrics(registry)["web"]) == expected(pool)


def samples(registry: CollectorRegistry) -> list[Sample]:
    return [sample for family in scraped(registry).values() for sample in family.samples]


def test_a_scrape_shows_what_stats_shows(registry: CollectorRegistry) -> None:
    with busy_pool() as pool:
        registry.register(PoolCollector())
        with pytest.raises(ValueError, match="ebbpool_threads"):
            registry.register(PoolCollector())
        assert shown_by_stats(registry, pool)
        found = metrics(registry)["web"]
        stats = pool.stats()
        threads = [found["ebbpool.threads", "", state] for state in ("idle", "busy", "blocked")]
        assert sum(threads) == stats.workers
        assert (stats.blocked, stats.failed, stats.cancelled, stats.delayed) == (1, 1, 1, 1)
        assert found["ebbpool.lane.queue.length", "db", ""] == 1
        timed = CollectorRegistry()
        timed.register(PoolCollector(sample=1))
        written = exposition.generate_latest(timed).decode()
        names = {family.name for family in parser.text_string_to_metric_families(written)}
        assert names == {name for name in scraped(timed) if not name.endswith("_created")}


def test_pools_come_and_go_and_are_shown_until_their_last_thread_has_left(registry: CollectorRegistry) -> None:
    registry.register(PoolCollector())
    before = set(metrics(registry))
    with AdaptiveExecutor(thread_name_prefix="first"):
        with Gate() as gate:
            second = AdaptiveExecutor(thread_name_prefix="second")
            gate.hold(second)
            assert metrics(registry).keys() - before == {"first", "second"}
            second.shutdown(wait=False)
            assert metrics(registry)["second"]["ebbpool.threads", "", "busy"] == 1
        second.shutdown()
        assert metrics(registry).keys() - before == {"first"}
    assert metrics(registry).keys() <= before


def test_a_collector_keeps_no_pool_alive(registry: CollectorRegistry) -> None:
    pool = AdaptiveExecutor(thread_name_prefix="kept")
    registry.register(PoolCollector(sample=1))
    CollectorRegistry().register(PoolCollector(sample=1))
    assert any(sample.labels["pool"] == "kept" for sample in samples(registry))
    pool.submit(int).result(TIMEOUT)
    pool.shutdown()
    del pool
    gc.collect()
    assert not any(sample.labels["pool"] == "kept" for sample in samples(registry))


def test_a_name_that_cannot_be_encoded_is_escaped(registry: CollectorRegistry) -> None:
    with AdaptiveExecutor(thread_name_prefix="web\udc80") as pool, AdaptiveExecutor(thread_name_prefix="web\\udc80"):
        lane = pool.lane("\ud800", limit=2)
        registry.register(PoolCollector())
        found = metrics(registry)["web\\udc80"]
        assert found["ebbpool.lane.limit", "\\ud800", ""] == lane.stats().limit
        assert found["ebbpool.thread.limit", "", ""] == 512, "pools of one label are added up"


def test_bad_arguments() -> None:
    def refuses(error: type[Exception], message: str, *values: Any) -> None:
        for value in values:
            with pytest.raises(error, match=rf"^{message}.*{re.escape(repr(value))}"):
                PoolCollector(sample=value)

    refuses(ValueError, "sample must be above 0 ", 0, -1, 1.5, 1e-10, float("nan"))
    refuses(TypeError, "sample must ", True, "1/64", b"1", object())


def test_several_collectors_of_one_pool_measure_what_they_are_to_until_they_are_closed() -> None:
    shares = {CollectorRegistry(): 1 / 4, CollectorRegistry(): 1}

    def ours(registry: CollectorRegistry) -> list[Sample]:
        return [each for each in samples(registry) if each.labels["pool"] == "several"]

    def measured(registry: CollectorRegistry) -> float:
        (count,) = (each.value for each in ours(registry) if each.name == "ebbpool_task_run_duration_seconds_count")
        return count

    begun = monotonic()
    with AdaptiveExecutor(1, "several") as pool:
        collectors = [PoolCollector(sample=share) for share in shares.values()]
        for registry, collector in zip(shares, collectors, strict=True):
            registry.register(collector)
        assert sampled(pool) == [4, 1]
        for tasks in (4, 40):
            for future in [pool.submit(int) for _ in range(tasks)]:
                future.result(TIMEOUT)
        assert [measured(registry) for registry in shares] == [11, 44]
        for name in ("ebbpool_task_wait_duration_seconds", "ebbpool_task_run_duration_seconds"):
            family = scraped(list(shares)[1])[name]
            own = [sample for sample in family.samples if sample.labels["pool"] == "several"]
            values = {(sample.name, sample.labels.get("le")): sample.value for sample in own}
            assert family.type == "histogram" and {le for _, le in values} == {*map(str, BUCKETS), "+Inf", None}
            assert values[name + "_bucket", "+Inf"] == 44
            assert values[name + "_count", None] == 44
            assert 0 <= values[name + "_sum", None] < 44 * (monotonic() - begun)
        for collector in (*collectors, *collectors):
            collector.close()
        assert pool.submit(int).result(TIMEOUT) == 0
        assert [measured(registry) for registry in shares] == [11, 44]
        assert sampled(pool) == []


def test_a_counter_stays_where_it_was_when_a_count_is_taken_back(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To Prometheus a counter that is one lower is that of a new process, and all of it is new."""
    with AdaptiveExecutor(thread_name_prefix="refused") as pool:
        pool.submit(int).result(TIMEOUT)
        registry.register(PoolCollector())
        before = pool.stats()
        assert metrics(registry)["refused"]["ebbpool.thread.starts", "", ""] == 1
        monkeypatch.setattr(pool, "stats", lambda: replace(before, started=0, submitted=0, workers=0))
        found = metrics(registry)["refused"]
        assert found["ebbpool.thread.starts", "", ""] == found["ebbpool.task.submissions", "", ""] == 1


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """What all the scripts of a test show that run in the client's multiprocess mode."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, Path(__file__).parents[:2])))
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))
    return registry


def test_in_multiprocess_mode_a_process_shows_what_stats_shows(together: CollectorRegistry) -> None:
    script = """
        import logging
        import pytest
        from prometheus_client import CollectorRegistry
        from prometheus_client.multiprocess import MultiProcessCollector
        from support.common import eventually
        from support.metrics import busy_pool
        from _metrics.test_prometheus import PoolCollector, metrics, shown_by_stats

        told = []
        logger = logging.getLogger("ebbpool.prometheus")
        logger.addFilter(lambda record: told.append(record.getMessage()))
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        with busy_pool() as pool:
            # Both in one registry: nothing is there twice.
            collector = PoolCollector()
            registry.register(collector)
            assert shown_by_stats(registry, pool)
            pool.submit(int)
            eventually(lambda: shown_by_stats(registry, pool))
        with pytest.raises(RuntimeError, match="PROMETHEUS_MULTIPROC_DIR is set, a process makes one"):
            PoolCollector()
        collector.close()
        assert metrics(registry)["web"]["ebbpool.thread.limit", "", ""] == 0
        collector.close()
        (line,) = told
        assert line.endswith(": serve the registry of a MultiProcessCollector")
        print(pool.stats().submitted)
    """
    (submitted,) = output_of(script)
    assert metrics(together)["web"]["ebbpool.task.submissions", "", ""] == int(submitted) > 10


TASKS = """
    import os, sys
    from ebbpool import AdaptiveExecutor
    from ebbpool.prometheus import PoolCollector

    pool = AdaptiveExecutor(1, "web")
    PoolCollector(sample=1)

    def work(tasks):
        for _ in range(tasks):
            pool.submit(int).result(10)
"""


FORKING = """
    work(3)
    if os.fork() == 0:
        work(3)
        sys.exit()
    os.wait()
    work(1)
"""
pypy = pytest.mark.skipif(sys.implementation.name == "pypy", reason="no thread is started in a fork there")


@pytest.mark.parametrize("scripts", [["work(3)", "work(4)"], pytest.param([FORKING], marks=[needs_fork, pypy])])
def test_what_processes_have_counted_is_added_up_once_and_stays(
    together: CollectorRegistry, scripts: list[str]
) -> None:
    for script in scripts:
        assert output_of(script, TASKS) == []
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples(together)}
    assert found["ebbpool_task_submissions_total", "web"] == 7
    assert found["ebbpool_thread_starts_total", "web"] == found["ebbpool_thread_exits_total", "web"] == 2
    assert found["ebbpool_threads", "web", "idle"] == found["ebbpool_thread_limit", "web"] == 0
    for kind in ("wait", "run"):
        assert found[f"ebbpool_task_{kind}_duration_seconds_count", "web"] == 7
