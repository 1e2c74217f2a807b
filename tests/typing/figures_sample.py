"""What a type checker has to make of `ebbpool.prometheus` and `ebbpool.opentelemetry`. Checked, never run."""

from __future__ import annotations

from typing import assert_type

from opentelemetry.metrics import get_meter_provider
from prometheus_client import REGISTRY

import ebbpool.opentelemetry
from ebbpool import AdaptiveExecutor
from ebbpool.prometheus import PoolCollector

pool = AdaptiveExecutor()
collector = PoolCollector([pool], sample=1 / 64, buckets=(0.1, 1, 10), registry=REGISTRY)
REGISTRY.register(PoolCollector())
collector.close()
PoolCollector(pool)  # type: ignore[arg-type]
PoolCollector(sample="1/64")  # type: ignore[arg-type]

with ebbpool.opentelemetry.instrument(get_meter_provider(), pools=[pool], sample=1) as instrumentation:
    assert_type(instrumentation, ebbpool.opentelemetry.Instrumentation)
assert_type(ebbpool.opentelemetry.instrument().uninstrument(), None)
ebbpool.opentelemetry.instrument(REGISTRY)  # type: ignore[arg-type]
