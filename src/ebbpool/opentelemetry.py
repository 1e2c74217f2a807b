"""The metrics of pools for OpenTelemetry, as observable instruments.

For all pools, on the global meter provider::

    import ebbpool.opentelemetry

    ebbpool.opentelemetry.instrument()

It needs OpenTelemetry's API: ``pip install ebbpool[opentelemetry]``; what collects and exports is the SDK that the
application sets up, before or after. The names are in the documentation, on the page about metrics. Attributes are
named as OpenTelemetry's semantic conventions ask: ``ebbpool.pool.name``, ``ebbpool.lane.name``,
``ebbpool.thread.state`` and ``ebbpool.task.outcome``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import ebbpool
from ebbpool._metrics import durations
from ebbpool._metrics.source import Shared, Source, pools_of
from ebbpool._metrics.table import METRICS, RUN, WAIT, Metric

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, Observation
except ImportError as _error:
    raise ImportError(
        f"ebbpool.opentelemetry needs opentelemetry-api: pip install ebbpool[opentelemetry] ({_error})",
        name=_error.name,
    ) from _error

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from opentelemetry.metrics import Meter, MeterProvider

    from ebbpool.executor import AdaptiveExecutor

__all__ = ["Instrumentation", "instrument"]

POOL: Final = "ebbpool.pool.name"
LANE: Final = "ebbpool.lane.name"
ATTRIBUTES: Final = {"state": "ebbpool.thread.state", "outcome": "ebbpool.task.outcome", "loop": "ebbpool.loop.name"}


class _Instruments:
    """The instruments of one meter provider, which cannot be removed from it: they are silent while nobody uses them.

    Attributes:
        source: Where the metrics come from; None while nobody uses the instruments.
        shared: The same, read once for each collection.
    """

    def __init__(self, provider: MeterProvider) -> None:
        self.source: Source[durations.Thinned] | None = None
        self.shared: Shared | None = None
        self._meter: Meter = provider.get_meter("ebbpool", ebbpool.__version__)
        self._bounds: tuple[float, ...] | None = None
        self._times: list[Any] = []
        makers = {
            "counter": self._meter.create_observable_counter,
            "level": self._meter.create_observable_up_down_counter,
            "longest": self._meter.create_observable_gauge,
        }
        for metric in METRICS:
            makers[metric.kind](
                metric.name, [functools.partial(self._observe, metric)], unit=metric.unit, description=metric.help
            )

    def measure(self, bounds: tuple[float, ...]) -> None:
        """Make the histograms.

        Raises:
            ValueError: They were made before, with other buckets.
        """
        if self._bounds not in (None, bounds):
            raise ValueError(
                f"buckets of a meter provider cannot be changed: they are {self._bounds}, not {bounds}; use another "
                f"provider, or one of its views"
            )
        if self._bounds is None:
            self._bounds = bounds
            self._times = [
                self._meter.create_histogram(
                    metric.name,
                    unit=metric.unit,
                    description=metric.help,
                    explicit_bucket_boundaries_advisory=list(bounds),
                )
                for metric in (WAIT, RUN)
            ]

    def _observe(self, metric: Metric, options: CallbackOptions) -> Iterator[Observation]:
        source, shared = self.source, self.shared
        if source is None or shared is None:
            return
        if metric is METRICS[0]:
            # Recorded here and not in the workers: what the SDK does for one number takes longer than a small task.
            self._record(source)
        for pool, amounts in shared.read_for(metric.name).items():
            for (name, lane, value), number in amounts.items():
                if name == metric.name:
                    attributes = {POOL: pool}
                    if metric.of_lane:
                        attributes[LANE] = lane
                    if metric.label:
                        attributes[ATTRIBUTES[metric.label]] = value
                    yield Observation(number, attributes)

    def _record(self, source: Source[durations.Thinned]) -> None:
        for pool, recorder in source.recorders():
            for sample in recorder.take():
                for histogram, seconds in zip(self._times, sample, strict=True):
                    histogram.record(seconds, {POOL: pool})


class Instrumentation:
    """What `instrument` returns. As a context manager it ends the instrumentation at the end of the block."""

    def __init__(self, instruments: _Instruments, source: Source[durations.Thinned]) -> None:
        self._instruments = instruments
        self._source = source

    def uninstrument(self) -> None:
        """Report nothing more. OpenTelemetry cannot remove instruments: they stay, without a number."""
        with _lock:
            if self._instruments.source is self._source:
                self._instruments.source = self._instruments.shared = None
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstrument()


_lock: Final = threading.Lock()
_known: Final[WeakKeyDictionary[MeterProvider, _Instruments]] = WeakKeyDictionary()
_global: _Instruments | None = None


def instrument(
    meter_provider: MeterProvider | None = None,
    *,
    pools: Iterable[AdaptiveExecutor] | None = None,
    sample: float | None = None,
    buckets: Iterable[float] | None = None,
) -> Instrumentation:
    """Have what `AdaptiveExecutor.stats` and `Lane.stats` tell reported, read once for each pool and collection.

    Pools may come and go between collections; none is kept alive. When a pool is gone, nothing is reported of it any
    more. A pool whose name cannot be encoded (lone surrogates) is reported with these escaped.

    With `sample`, histograms of how long tasks waited and ran are recorded, at each collection: of one task in 64, for
    ``1/64``, and of each pool at most of 4,096 tasks, evenly spread over the time since the last collection.

    Args:
        meter_provider: Where to report; None for the global one, also if that is set later.
        pools: The pools to report; None for all of this process, at each collection.
        sample: The share of tasks whose times are recorded, above 0 and at most 1; None for no histograms.
        buckets: The upper bounds of the histograms' buckets, in seconds, ascending; None for 18 from 0.0001 to 60.
            A view of the provider goes before them.

    Raises:
        TypeError: An argument is of the wrong type; the message names it and its value.
        ValueError: An argument is out of range, or `buckets` are not those of an earlier call for this provider.
        RuntimeError: The provider is instrumented already.
    """
    global _global
    if meter_provider is not None and not isinstance(meter_provider, metrics.MeterProvider):
        raise TypeError(f"meter_provider must be a MeterProvider of OpenTelemetry, not {meter_provider!r}")
    chosen = pools_of(pools)
    if sample is None and buckets is not None:
        raise ValueError(f"buckets={buckets!r} needs a sample, such as sample=1/64")
    every = 0 if sample is None else durations.one_in(sample)
    bounds = durations.bounds_of(buckets)
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
        if every:
            instruments.measure(bounds)
        source = Source(chosen, every, durations.Thinned)
        instruments.source, instruments.shared = source, Shared(source.read)
    return Instrumentation(instruments, source)
