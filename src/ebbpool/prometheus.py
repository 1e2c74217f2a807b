"""The metrics of pools for Prometheus, through its own client.

For all pools, in the registry that most programs use::

    from prometheus_client import REGISTRY

    from ebbpool.prometheus import PoolCollector

    PoolCollector(registry=REGISTRY)

It needs ``prometheus_client``: ``pip install ebbpool[prometheus]``. The names are in
the documentation, on the page about metrics.

**With several processes** a collector shows the pools of its own process, that is, of whichever process a scrape
reaches. ``prometheus_client``'s multiprocess mode does not help: it shares only metrics of its own kinds through files
in ``PROMETHEUS_MULTIPROC_DIR``; its `MultiProcessCollector` knows nothing of other collectors. Registered beside it,
this one would show a different process with each scrape; so a `RuntimeWarning` is given where that variable is set.
Under `ebbpool.prefork` the parent adds up its children, on one address: ``prefork.run(metrics="127.0.0.1:9464")``.
Elsewhere, export with `ebbpool.opentelemetry`, whose resource tells processes apart, or let each process have a port of
its own.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ebbpool._metrics.source import Source, checked
from ebbpool._metrics.table import HISTOGRAMS, METRICS, Amounts, families

try:
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise ImportError(
        f"ebbpool.prometheus needs prometheus_client: pip install ebbpool[prometheus] ({_error})", name=_error.name
    ) from _error

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

    from ebbpool.executor import AdaptiveExecutor

__all__ = ["PoolCollector"]

MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"


class PoolCollector(Collector):
    """Shows what `AdaptiveExecutor.stats` and `Lane.stats` return, read once per pool and scrape.

    Pools may come and go between scrapes; the collector keeps none alive. When a pool is gone, its series end, its
    counters among them. A pool whose name cannot be encoded (lone surrogates) is shown with these escaped.

    With `sample`, histograms of how long tasks waited and ran are kept: of one task in 64, for ``1/64``, of all pools
    found so far, from the scrape on that finds the pool. Their counts are those of the tasks in the sample.

    Args:
        pools: The pools to show; None for all of this process, whenever a scrape comes.
        sample: The share of tasks whose times are kept, above 0 and at most 1; None for no histograms.
        buckets: The upper bounds of the histograms' buckets, in seconds, ascending; None for 18 from 0.0001 to 60.
        registry: Where to register it at once; None for nowhere. ``REGISTRY.register(collector)`` is the other way.

    Raises:
        TypeError: An argument is of the wrong type; the message names it and its value.
        ValueError: An argument is out of range, or `registry` has such a collector already.
    """

    def __init__(
        self,
        pools: Iterable[AdaptiveExecutor] | None = None,
        *,
        sample: float | None = None,
        buckets: Iterable[float] | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        if os.environ.get(MULTIPROCESS) or os.environ.get(MULTIPROCESS.lower()):
            warnings.warn(
                f"{MULTIPROCESS} is set, but PoolCollector shows the pools of its own process only: use "
                f"ebbpool.prefork.run(metrics=...) for one endpoint of several processes, or ebbpool.opentelemetry",
                RuntimeWarning,
                stacklevel=2,
            )
        if registry is not None and not callable(getattr(registry, "register", None)):
            raise TypeError(f"registry must be a CollectorRegistry of prometheus_client or None, not {registry!r}")
        chosen, every, bounds = checked(pools, sample, buckets)
        self._source = Source(chosen, every, bounds if every else None)
        self._shown = (*METRICS, *HISTOGRAMS) if every else METRICS
        if registry is not None:
            self._register(registry)

    def _register(self, registry: CollectorRegistry) -> None:
        try:
            registry.register(self)
        except ValueError as error:
            self.close()
            raise ValueError(
                "registry has a collector of ebbpool's metrics already: one shows all pools, or those of pools=[...]; "
                "register one only, or call registry.unregister(it) first"
            ) from error

    def describe(self) -> list[Family]:
        """Return the names and the kinds of all metrics, without a sample."""
        return self._families({})

    def collect(self) -> list[Family]:
        """Return all metrics, as they are now."""
        return self._families(self._source.read())

    def _families(self, found: Mapping[str, Amounts]) -> list[Family]:
        shown = []
        for name, text, kind, samples in families(self._shown, found):
            family = Family(name, text, kind)
            for suffix, labels, number in samples:
                family.add_sample(name + suffix, labels, number)
            shown.append(family)
        return shown

    def close(self) -> None:
        """Measure tasks no more. Call it after ``registry.unregister(collector)``; other metrics can still be read."""
        self._source.close()
