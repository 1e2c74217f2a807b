"""A pool and jobs for the tests of `ebbpool.fastthreadpool`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ebbpool.fastthreadpool import Pool
from support.common import Boom


@pytest.fixture(name="pool")
def each_pool() -> Iterator[Pool]:
    with Pool(4) as made:
        yield made


def same(value: Any = None, **kwargs: Any) -> Any:
    return (value, kwargs) if kwargs else value


def boom(*args: Any, **kwargs: Any) -> None:
    raise Boom(*args)


def three(value: Any) -> Iterator[Any]:
    yield value
    yield value + 1
    yield value + 2


def stop(value: Any) -> Any:
    if value % 3 == 0:
        raise StopIteration
    return value


def stop_the_wall_clock(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    """Have pools take `now` for the time of the wall clock, however long a test takes."""
    stopped = SimpleNamespace(time=lambda: now, mktime=time.mktime, struct_time=time.struct_time)
    monkeypatch.setattr("ebbpool._fastthreadpool.jobs.time", stopped)
