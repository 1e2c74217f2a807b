"""The metrics of pools for OpenTelemetry, as observable instruments.

For all pools, on the global meter provider::

    import ebbpool.opentelemetry

    ebbpool.opentelemetry.instrument()

It needs OpenTelemetry's API, ``opentelemetry-api``; what collects and exports is the SDK that the
application sets up, before or after. The names are in the documentation, on the page about metrics. Attributes are
named as OpenTelemetry's semantic conventions ask: ``ebbpool.pool.name``, ``ebbpool.lane.name``,
``ebbpool.thread.state`` and ``ebbpool.task.outcome``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Final, Self
from weakref import WeakKeyDictionary

import ebbpool
from ebbpool._errors import lacking
from ebbpool._metrics.source import Source, one_in
from ebbpool._metrics.table import BUCKETS, HISTOGRAMS, METRICS, Amounts, Metric

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
except ImportError as _error:
    raise lacking("opentelemetry", "opentelemetry-api", _error) from _error

__all__ = ["Instrumentation", "instrument"]

POOL: Final = "ebbpool.pool.name"
ATTRIBUTES: Final = {
    "pool": POOL,
    "lane": "ebbpool.lane.name",
    "state": "ebbpool.thread.state",
    "outcome": "ebbpool.task.outcome",
    "loop": "ebbpool.loop.name",
}


class _Instruments:
    """The instruments of one meter provider, which cannot be removed: silent while nobody uses them."""

    source: Source | None = None

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("ebbpool", ebbpool.__version__)
        # A collection asks the instruments one by one, in one thread.
        self._here = threading.local()
        makers = {
            "counter": meter.create_observable_counter,
            "level": meter.create_observable_up_down_counter,
            "longest": meter.create_observable_gauge,
        }
        for metric in METRICS:
            makers[metric.kind](
                metric.name, [functools.partial(self._observe, metric)], unit=metric.unit, description=metric.help
            )

        make = functools.partial(meter.create_histogram, explicit_bucket_boundaries_advisory=BUCKETS)
        self._times = [make(name, unit="s", description=says) for name, says in HISTOGRAMS.items()]

    def _observe(self, metric: Metric, options: CallbackOptions) -> Iterator[Observation]:
        source = self.source
        if source is None:
            return
        for pool, amounts in self._reading(source, metric.name).items():
            for (name, lane, value), number in amounts.items():
                if name == metric.name:
                    labels = metric.labels(pool, lane, value)
                    yield Observation(number, {ATTRIBUTES[label]: text for label, text in labels.items()})

    def _reading(self, source: Source, asker: str) -> dict[str, Amounts]:
        """Return one reading for each collection: a new one has begun when an instrument asks again."""
        last, found, seen = getattr(self._here, "reading", (None, {}, {asker}))
        if last is not source or asker in seen:
            found, seen = source.read(), set()
            # Recorded here and not in the workers: what the SDK does for one number takes longer than a small task.
            for pool, sample in source.take():
                for histogram, seconds in zip(self._times, sample, strict=True):
                    histogram.record(seconds, {POOL: pool})
        seen.add(asker)
        self._here.reading = source, found, seen
        return found


class Instrumentation:
    """What `instrument` returns. As a context manager it ends the instrumentation at the end of the block."""

    def __init__(self, instruments: _Instruments, source: Source) -> None:
        self._instruments = instruments
        self._source = source

    def uninstrument(self) -> None:
        """Report nothing more. OpenTelemetry cannot remove instruments: they stay, and report nothing."""
        with _lock:
            if self._instruments.source is self._source:
                self._instruments.source = None
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstrument()


_lock: Final = threading.Lock()
_known: Final[WeakKeyDictionary[MeterProvider, _Instruments]] = WeakKeyDictionary()
_global: _Instruments | None = None


def instrument(
    meter_provider: MeterProvider | None = None,
    *,
    sample: float | None = None,
) -> Instrumentation:
    """Report what `AdaptiveExecutor.stats` and `Lane.stats` return, read once per pool and collection.

    Pools may come and go between collections; none is kept alive. When a pool is gone, nothing is reported of it any
    more. A pool whose name cannot be encoded (lone surrogates) is reported with these escaped.

    With `sample`, histograms of how long tasks waited and ran are recorded, at each collection: of one task in 64, for
    ``1/64``, and of each pool the last 4,096.

    Args:
        meter_provider: Where to report; None for the global one, also if that is set later.
        sample: The share of tasks whose times are recorded, above 0 and at most 1; None for no histograms.
            Their 18 buckets, from 0.0001 to 60 seconds, can be changed by a view of the provider.

    Raises:
        TypeError: An argument is of the wrong type; the message names it and its value.
        ValueError: `sample` is out of range.
        RuntimeError: The provider is instrumented already.
    """
    global _global
    if meter_provider is not None and not isinstance(meter_provider, metrics.MeterProvider):
        raise TypeError(f"meter_provider must be a MeterProvider of OpenTelemetry, not {meter_provider!r}")
    every = one_in(sample)
    with _lock:
        provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
        instruments = _known.get(provider)
        if instruments is None and provider is metrics.get_meter_provider():
            # The stand-in for a global provider that is set later hands its instruments over to that one.
            instruments = _global
        if instruments is not None and instruments.source is not None:
            raise RuntimeError(
                "this meter provider is instrumented already: call uninstrument() of what instrument() returned first"
            )
        if instruments is None:
            instruments = _known[provider] = _Instruments(provider)
        if meter_provider is None:
            _global = instruments
        source = instruments.source = Source(every)
    return Instrumentation(instruments, source)
