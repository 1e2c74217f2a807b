"""`ebbpool.prometheus`, read by the parsers of Prometheus' own client."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.parser import text_string_to_metric_families
from support.common import LONG, TIMEOUT, Gate, run_script
from support.metrics import NAMES, TIMES, busy_pool, expected, sampled

from ebbpool import AdaptiveExecutor
from ebbpool.prometheus import PoolCollector


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def scraped(registry: CollectorRegistry) -> dict[str, Family]:
    """What a scrape of the text format tells."""
    return {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}


def metrics(registry: CollectorRegistry) -> dict[str, dict[tuple[str, str, str], float]]:
    """The metrics of each pool, as `expected` writes them."""
    found: dict[str, dict[tuple[str, str, str], float]] = {}
    names = {
        f"ebbpool_{name.replace('.', '_')}" + "_seconds" * (kind == "longest"): f"ebbpool.{name}"
        for kind, all_names in NAMES.items()
        for name in all_names.split()
    }
    for name, family in scraped(registry).items():
        for sample in family.samples:
            labels = dict(sample.labels)
            pool = found.setdefault(labels.pop("pool"), {})
            pool[names[name], labels.pop("lane", ""), labels.popitem()[1] if labels else ""] = sample.value
            assert not labels
    return found


def test_a_scrape_shows_what_stats_shows(registry: CollectorRegistry) -> None:
    with busy_pool() as pool:
        PoolCollector([pool], registry=registry)
        found = metrics(registry)["web"]
        assert all(found.pop((name, "db" if "lane" in name else "", "")) >= 0 for name in TIMES)
        assert found == expected(pool)
        stats = pool.stats()
        threads = [found["ebbpool.threads", "", state] for state in ("idle", "busy", "blocked")]
        assert sum(threads) == stats.workers
        assert (stats.blocked, stats.failed, stats.cancelled, stats.delayed) == (1, 1, 1, 1)
        assert found["ebbpool.lane.queue.length", "db", ""] == 1


def test_openmetrics_takes_it_too(registry: CollectorRegistry) -> None:
    with busy_pool() as pool:
        PoolCollector([pool], sample=1, registry=registry)
        written = exposition.generate_latest(registry).decode()
        assert {family.name for family in parser.text_string_to_metric_families(written)} == scraped(registry).keys()


def test_pools_come_and_go(registry: CollectorRegistry) -> None:
    PoolCollector(registry=registry)
    before = set(metrics(registry))
    with AdaptiveExecutor(thread_name_prefix="first"):
        with AdaptiveExecutor(thread_name_prefix="second"):
            assert metrics(registry).keys() - before == {"first", "second"}
        assert metrics(registry).keys() - before == {"first"}
    assert metrics(registry).keys() <= before


def test_a_pool_that_is_shut_down_is_shown_until_its_last_thread_has_left(registry: CollectorRegistry) -> None:
    PoolCollector(registry=registry)
    pool = AdaptiveExecutor(thread_name_prefix="closing")
    with Gate() as gate:
        gate.hold(pool)
        metrics(registry)
        pool.shutdown(wait=False)
        assert metrics(registry)["closing"]["ebbpool.threads", "", "busy"] == 1
    pool.shutdown()
    assert "closing" not in metrics(registry)


def test_a_collector_keeps_no_pool_alive(registry: CollectorRegistry) -> None:
    pool = AdaptiveExecutor(thread_name_prefix="kept")
    PoolCollector([pool], sample=1, registry=registry)
    PoolCollector(sample=1, registry=CollectorRegistry())
    assert "kept" in metrics_with_histograms(registry)
    pool.submit(int).result(TIMEOUT)
    pool.shutdown()
    del pool
    gc.collect()
    assert "kept" not in metrics_with_histograms(registry)


def metrics_with_histograms(registry: CollectorRegistry) -> set[str]:
    return {sample.labels["pool"] for family in scraped(registry).values() for sample in family.samples}


def test_a_name_that_cannot_be_encoded_is_escaped(registry: CollectorRegistry) -> None:
    with AdaptiveExecutor(thread_name_prefix="web\udc80") as pool, AdaptiveExecutor(thread_name_prefix="web\\udc80"):
        lane = pool.lane("\ud800", limit=2)
        PoolCollector(registry=registry)
        found = metrics(registry)["web\\udc80"]
        assert found["ebbpool.lane.limit", "\\ud800", ""] == lane.stats().limit
        assert found["ebbpool.thread.limit", "", ""] == 512, "pools of one label are added up"


def test_registered_twice(registry: CollectorRegistry) -> None:
    first = PoolCollector(registry=registry)
    with pytest.raises(ValueError, match=r"has a collector of ebbpool's metrics already.*registry\.unregister"):
        PoolCollector(registry=registry)
    with pytest.raises(ValueError, match="ebbpool_threads"):
        registry.register(first)
    registry.unregister(first)
    PoolCollector(registry=registry)


def test_a_collector_that_is_refused_measures_nothing(registry: CollectorRegistry) -> None:
    with AdaptiveExecutor() as pool:
        PoolCollector(registry=registry)
        with pytest.raises(ValueError):
            PoolCollector(sample=1, registry=registry)
        assert sampled(pool) == []


def test_bad_arguments() -> None:
    refused: Any = PoolCollector
    for sample, kind in [(0, ValueError), (-1, ValueError), (1.5, ValueError), (float("nan"), ValueError)]:
        with pytest.raises(kind, match=rf"^sample must .*{sample}"):
            refused(sample=sample)
    for sample in (True, "1/64", b"1", object()):
        with pytest.raises(TypeError, match=r"^sample must "):
            refused(sample=sample)
    with pytest.raises(ValueError, match=r"^sample must be at least one in .*1e-10"):
        refused(sample=1e-10)
    for buckets in ([], [0.0], [-1], [2, 1], [1, 1], [float("inf")], [float("nan")]):
        with pytest.raises(ValueError, match=r"^buckets must "):
            refused(sample=1, buckets=buckets)
    for buckets in ("12", b"12", 5, ["a"], [None]):
        with pytest.raises(TypeError, match=r"^buckets must "):
            refused(sample=1, buckets=buckets)
    with pytest.raises(ValueError, match=r"^buckets=\[1\] needs a sample"):
        refused(buckets=[1])
    with pytest.raises(TypeError, match=r"^registry must be a CollectorRegistry of prometheus_client or None, not 5"):
        refused(registry=5)
    with AdaptiveExecutor() as pool:
        for pools in (pool, 5, [pool, None]):
            with pytest.raises(TypeError, match=r"^pools must "):
                refused(pools)


def test_histograms(registry: CollectorRegistry) -> None:
    with AdaptiveExecutor(1, "timed") as pool:
        PoolCollector([pool], sample=1, buckets=(value for value in (0.5, LONG)), registry=registry)
        with Gate() as gate:
            gate.hold(pool)
            futures = [pool.submit(int) for _ in range(9)]
        for future in futures:
            future.result(TIMEOUT)
        found = scraped(registry)
        for kind in ("wait", "run"):
            family = found[f"ebbpool_task_{kind}_duration_seconds"]
            assert family.type == "histogram"
            values = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
            name = family.name
            assert {le for _, le in values} == {"0.5", str(LONG), "+Inf", None}
            assert values[name + "_bucket", "+Inf"] == values[name + "_bucket", str(LONG)] == 10
            assert values[name + "_count", None] == 10
            assert 0 <= values[name + "_sum", None] < TIMEOUT


def test_histograms_end_with_the_collector(registry: CollectorRegistry) -> None:
    with AdaptiveExecutor(1) as pool:
        collector = PoolCollector([pool], sample=1 / 64)
        assert sampled(pool) == [64]
        collector.close()
        assert sampled(pool) == []
        assert collector.collect()
        assert sampled(pool) == []


def test_a_counter_stays_where_it_was_when_a_count_is_taken_back(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To Prometheus a counter that is one lower is that of a new process, and all of it is new."""
    with AdaptiveExecutor(thread_name_prefix="refused") as pool:
        pool.submit(int).result(TIMEOUT)
        PoolCollector([pool], registry=registry)
        before = pool.stats()
        assert metrics(registry)["refused"]["ebbpool.thread.starts", "", ""] == 1
        monkeypatch.setattr(pool, "stats", lambda: replace(before, started=0, submitted=0, workers=0))
        found = metrics(registry)["refused"]
        assert found["ebbpool.thread.starts", "", ""] == found["ebbpool.task.submissions", "", ""] == 1


def test_multiprocess_mode_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "somewhere")
    with pytest.warns(RuntimeWarning, match=r"PROMETHEUS_MULTIPROC_DIR is set.*prefork\.run\(metrics="):
        PoolCollector()


def test_without_the_client_the_error_names_the_extra() -> None:
    done = run_script("import sys; sys.modules['prometheus_client'] = None; import ebbpool.prometheus")
    assert "ImportError: ebbpool.prometheus needs prometheus_client: pip install ebbpool[prometheus]" in done.stderr


def test_no_counter_goes_back_where_another_pool_takes_the_name(registry: CollectorRegistry) -> None:
    PoolCollector(registry=registry)

    def submissions() -> float:
        return metrics(registry)["twin"]["ebbpool.task.submissions", "", ""]

    with Gate() as gate, AdaptiveExecutor(thread_name_prefix="twin") as first:
        gate.hold(first, 5)
        assert submissions() == 5
        first.shutdown(wait=False)
        with AdaptiveExecutor(thread_name_prefix="twin") as second:
            second.submit(int).result(TIMEOUT)
            assert submissions() == 6
            gate.open()
            first.shutdown()
            assert submissions() == 6
            second.submit(int).result(TIMEOUT)
            assert submissions() == 7
