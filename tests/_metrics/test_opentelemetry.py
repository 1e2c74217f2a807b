"""`ebbpool.opentelemetry`, read by the SDK's in-memory reader."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("opentelemetry.sdk.metrics")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, Histogram, InMemoryMetricReader, Sum
from support.common import TIMEOUT, output_of
from support.metrics import BUCKETS, NAMES, busy_pool, expected, sampled, without_times

import ebbpool.opentelemetry
from ebbpool import AdaptiveExecutor


class Meters:
    """A provider of the SDK with two readers, and what the first one finds."""

    def __init__(self) -> None:
        self.reader, self.other = InMemoryMetricReader(), InMemoryMetricReader()
        self.provider = MeterProvider([self.reader, self.other])

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        assert (scope.scope.name, scope.scope.version) == ("ebbpool", ebbpool.__version__)
        return {metric.name: metric for metric in scope.metrics}

    def by_pool(self) -> dict[str, dict[tuple[str, str, str], float]]:
        """The metrics of each pool, as `expected` writes them."""
        found: dict[str, Any] = {}
        for name, metric in self.metrics().items():
            for point in metric.data.data_points:
                labels = dict(point.attributes)
                pool = found.setdefault(labels.pop("ebbpool.pool.name"), {})
                lane = labels.pop("ebbpool.lane.name", "")
                pool[name, lane, labels.popitem()[1] if labels else ""] = point.value
                assert not labels
        return found


@pytest.fixture
def meters() -> Iterator[Meters]:
    meters = Meters()
    yield meters
    meters.provider.shutdown()


def test_a_collection_shows_what_stats_shows(meters: Meters) -> None:
    with busy_pool() as pool, ebbpool.opentelemetry.instrument(meters.provider):
        assert without_times(meters.by_pool()["web"]) == expected(pool)


def test_names_units_and_kinds(meters: Meters) -> None:
    with AdaptiveExecutor(max_queue=1) as pool, ebbpool.opentelemetry.instrument(meters.provider):
        lane = pool.lane("slow", limit=1)
        found = meters.metrics()
        kinds = {"counter": (Sum, True), "level": (Sum, False), "longest": (Gauge, None)}
        assert {
            name: (metric.unit, type(metric.data), getattr(metric.data, "is_monotonic", None))
            for name, metric in found.items()
        } == {
            f"ebbpool.{name}": (
                "s" if kind == "longest" else "{thread}" if name.startswith("thread") else "{task}",
                *kinds[kind],
            )
            for kind, names in NAMES.items()
            for name in names
            if "loop" not in name
        }
        assert all(metric.description for metric in found.values())
        keys = {key for metric in found.values() for point in metric.data.data_points for key in point.attributes}
        assert keys == {"ebbpool.pool.name", "ebbpool.lane.name", "ebbpool.thread.state", "ebbpool.task.outcome"}
        assert lane.stats().limit == 1


def test_one_reading_for_each_collection(meters: Meters) -> None:
    counting = mock.patch.object(AdaptiveExecutor, "stats", autospec=True, side_effect=AdaptiveExecutor.stats)
    with (
        AdaptiveExecutor(thread_name_prefix="once") as pool,
        ebbpool.opentelemetry.instrument(meters.provider),
        counting as stats,
    ):
        for collections in range(1, 4):
            assert "once" in meters.by_pool()
            assert stats.mock_calls.count(mock.call(pool)) == 2 * collections - 1
            assert meters.other.get_metrics_data() is not None
            assert stats.mock_calls.count(mock.call(pool)) == 2 * collections


def test_a_provider_is_instrumented_once_at_a_time_beside_others(
    meters: Meters, caplog: pytest.LogCaptureFixture
) -> None:
    before: list[Any] = []
    other = Meters()
    with AdaptiveExecutor(thread_name_prefix="again") as pool, ebbpool.opentelemetry.instrument(other.provider):
        for sample in (None, 1 / 8, 1):
            instrumentation = ebbpool.opentelemetry.instrument(meters.provider, sample=sample)
            with pytest.raises(RuntimeError, match=r"instrumented already: call uninstrument\(\)"):
                ebbpool.opentelemetry.instrument(meters.provider)
            for old in before:
                old.uninstrument()
            assert "again" in meters.by_pool(), "an old one leaves a new one alone"
            instrumentation.uninstrument()
            assert meters.metrics() == {}
            assert sampled(pool) == []
            before.append(instrumentation)
        assert "again" in other.by_pool()
    other.provider.shutdown()
    assert not caplog.records


def test_histograms(meters: Meters) -> None:
    begun = monotonic()
    with (
        AdaptiveExecutor(1, "timed") as pool,
        ebbpool.opentelemetry.instrument(meters.provider, sample=1),
    ):
        for future in [pool.submit(int) for _ in range(10)]:
            future.result(TIMEOUT)
        for _ in range(2):
            found = meters.metrics()
            for kind in ("wait", "run"):
                metric = found[f"ebbpool.task.{kind}.duration"]
                assert (metric.unit, type(metric.data)) == ("s", Histogram)
                points = {point.attributes["ebbpool.pool.name"]: point for point in metric.data.data_points}
                point = points["timed"]
                assert point.explicit_bounds == BUCKETS
                assert point.count == sum(point.bucket_counts) == 10
                assert 0 <= point.sum < 10 * (monotonic() - begun)


def test_bad_arguments(meters: Meters) -> None:
    refused: Any = ebbpool.opentelemetry.instrument
    with pytest.raises(TypeError, match=r"^meter_provider must be a MeterProvider of OpenTelemetry, not 5"):
        refused(5)
    with pytest.raises(ValueError, match=r"^sample must be above 0 .*, not 2"):
        refused(meters.provider, sample=2)
    refused(meters.provider).uninstrument()


def test_the_global_provider_may_be_set_later() -> None:
    script = """
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        import ebbpool.opentelemetry

        def shown():
            data = reader.get_metrics_data()
            return 0 if data is None else len(data.resource_metrics[0].scope_metrics[0].metrics)

        first = ebbpool.opentelemetry.instrument()
        reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([reader]))
        with ebbpool.AdaptiveExecutor() as pool:
            print(shown())
            first.uninstrument()
            print(shown())
            for provider in (None, metrics.get_meter_provider()):
                with ebbpool.opentelemetry.instrument(provider):
                    print(shown())
        metrics.get_meter_provider().shutdown()
    """
    early, *others = output_of(script)
    assert int(early) > 0
    assert others == ["0", early, early]
