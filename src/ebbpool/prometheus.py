"""The metrics of pools for Prometheus, through its own client.

For all pools, in the registry that most programs use::

    from prometheus_client import REGISTRY

    from ebbpool.prometheus import PoolCollector

    REGISTRY.register(PoolCollector())

It needs ``prometheus_client``. The names are in the documentation, on the page about metrics.

**In several processes**, those of gunicorn for instance, ``prometheus_client`` has a multiprocess mode: where
``PROMETHEUS_MULTIPROC_DIR`` names a directory, each process keeps its metrics in files there, and the
`MultiProcessCollector` of any of them adds all up. `PoolCollector` then does the same, once a second.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any, ClassVar, Final

from ebbpool._errors import lacking
from ebbpool._metrics.source import Source, one_in
from ebbpool._metrics.table import BUCKETS, BY_NAME, GROWING, HISTOGRAMS, METRICS, Amounts, Kind, in_prometheus
from ebbpool._pool import lifecycle
from ebbpool._pool.threads import WorkerThread

try:
    from prometheus_client import Counter, Gauge, Histogram
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise lacking("prometheus", "prometheus_client", _error) from _error

__all__ = ["PoolCollector"]

LOGGER: Final = logging.getLogger("ebbpool.prometheus")
MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"
KINDS: Final[dict[Kind, str]] = {"counter": "counter", "level": "gauge", "longest": "gauge"}
"""What Prometheus calls them."""
INTERVAL: Final = 1.0
"""Seconds between two times that a process writes its metrics for the others."""


class PoolCollector(Collector):
    """Shows what `AdaptiveExecutor.stats` and `Lane.stats` return, read once per pool and scrape.

    Pools may come and go between scrapes; the collector keeps none alive. When a pool is gone, its series end, its
    counters among them. A pool whose name cannot be encoded (lone surrogates) is shown with these escaped.

    With `sample`, histograms of how long tasks waited and ran are kept: of one task in 64, for ``1/64``, of all pools
    found so far, from the scrape on that finds the pool. Their counts are those of the tasks in the sample: the last
    4,096 of each pool and scrape (or second, in multiprocess mode).

    In the client's multiprocess mode it collects nothing by itself. A thread writes the metrics for all processes, once
    a second and when the process exits, until `close` is called; pools that are gone are remembered.

    Args:
        sample: The share of tasks whose times are kept, above 0 and at most 1; None for no histograms. Their 18
            buckets go from 0.0001 to 60 seconds.

    Raises:
        TypeError: An argument is of the wrong type; the message names it and its value.
        ValueError: An argument is out of range.
        RuntimeError: It is the second one of its process in multiprocess mode.
    """

    def __init__(self, *, sample: float | None = None) -> None:
        every = one_in(sample)
        self._histograms = [
            Histogram(in_prometheus(name, "s"), says, ["pool"], registry=None, buckets=BUCKETS)
            for name, says in HISTOGRAMS.items()
            if every
        ]
        self._source: Source | None = None
        self._pools: set[str] = set()
        """What the last scrape has shown."""
        if MULTIPROCESS in os.environ or MULTIPROCESS.lower() in os.environ:
            self._end = _Files(every, self._histograms).close
        else:
            self._source = Source(every)
            self._end = self._source.close

    def describe(self) -> list[Family]:
        """Return the names and the kinds of all metrics."""
        return self._families({})

    def collect(self) -> list[Family]:
        """Return all metrics, as they are now; in multiprocess mode none, which is logged once."""
        source = self._source
        if source is None:
            _say_what_to_serve()
            return []
        found = source.read()
        for histogram, pool in itertools.product(self._histograms, self._pools.difference(found)):
            # Another scrape may have removed it at the same time.
            with suppress(KeyError):
                histogram.remove(pool)
        for histogram, pool in itertools.product(self._histograms, found):
            histogram.labels(pool)
        self._pools = set(found)
        _observe(self._histograms, [(pool, sample) for pool, sample in source.take() if pool in found])
        return self._families(found)

    def _families(self, found: Mapping[str, Amounts]) -> list[Family]:
        families = {each.name: Family(each.prometheus_name, each.help, KINDS[each.kind]) for each in METRICS}
        for pool, amounts in found.items():
            for (name, lane, value), number in amounts.items():
                metric, family = BY_NAME[name], families[name]
                suffix = "_total" if metric.kind == "counter" else ""
                family.add_sample(family.name + suffix, metric.labels(pool, lane, value), number)
        return [*families.values(), *(family for histogram in self._histograms for family in histogram.collect())]

    def close(self) -> None:
        """Measure tasks no more. Call it after ``registry.unregister(collector)``; other metrics can still be read.

        In multiprocess mode nothing is written any more; what was counted stays.
        """
        self._end()


@cache
def _say_what_to_serve() -> None:
    what = "a PoolCollector in a registry shows nothing: serve the registry of a MultiProcessCollector"
    LOGGER.warning("where %s is set, %s", MULTIPROCESS, what)


def _observe(histograms: list[Histogram], samples: Iterable[tuple[str, tuple[float, float]]]) -> None:
    for pool, sample in samples if histograms else ():
        for histogram, seconds in zip(histograms, sample, strict=True):
            histogram.labels(pool).observe(seconds)


class _Files:
    """The metrics of this process in the files that the client's multiprocess mode shares, written once a second.

    The client adds them up as `table.add` does, and can remove none, so a level that is gone is 0. A second one in a
    process would count again what the first has counted.
    """

    _there: ClassVar[bool] = False

    def __init__(self, every: int, histograms: list[Histogram]) -> None:
        if _Files._there:
            raise RuntimeError(f"where {MULTIPROCESS} is set, a process makes one PoolCollector, once")
        makers: dict[str, Callable[..., Any]] = {
            "counter": Counter,
            "level": partial(Gauge, multiprocess_mode="livesum"),
            "longest": partial(Gauge, multiprocess_mode="livemax"),
        }
        self._made = {
            metric.name: makers[metric.kind](
                metric.prometheus_name, metric.help, list(metric.labels("", "", "")), registry=None
            )
            for metric in METRICS
        }
        self._histograms = histograms
        self._new_source = partial(Source, every, last=True)
        self._source = self._new_source()
        self._told: dict[tuple[str, str, str, str], float] = {}
        """What has been written, by the label of the pool and what `Amounts` has."""
        self._publish()
        self._start()
        _Files._there = True
        lifecycle.after_exit(self.close)
        lifecycle.after_fork(self._renew)

    def _start(self) -> None:
        self._over = threading.Event()
        # The start must not wait: it may be made in a fork hook.
        self._thread = WorkerThread(target=self._run, name="ebbpool-metrics")
        self._thread.start()

    def _renew(self) -> None:
        """In a forked child: begin anew, without what the parent has counted."""
        if self._over.is_set():
            return
        if sys.implementation.name == "pypy":
            # A thread that is started in a fork hook may crash it.
            self._over = threading.Event()
            self._over.set()
            return
        self._source = self._new_source()
        self._told = {key: number for key, number in self._read().items() if key[1] in GROWING}
        self._start()

    def _run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(INTERVAL)
            try:
                self._publish(last=over)
            except Exception:
                LOGGER.exception("the metrics of this process cannot be written")

    def _read(self) -> dict[tuple[str, str, str, str], float]:
        return {(pool, *key): n for pool, found in self._source.read().items() for key, n in found.items()}

    def _publish(self, *, last: bool = False) -> None:
        """Write what has changed; levels are 0 the last time."""
        now = {key: number for key, number in self._read().items() if not last or key[1] in GROWING}
        for key, number in (dict.fromkeys(self._told, 0.0) | now).items():
            before = self._told.get(key)
            # The client has one lock, which a child would find held for ever if this thread had it during the fork. A
            # parent that does nothing else than to fork has nothing new to write, and so does not take it.
            if number == before:
                continue
            pool, name, lane, value = key
            child = self._made[name].labels(**BY_NAME[name].labels(pool, lane, value))
            if name in GROWING:
                child.inc(max(0.0, number - (before or 0.0)))
            else:
                child.set(number)
            self._told[key] = number
        _observe(self._histograms, self._source.take())

    def close(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._source.close()
