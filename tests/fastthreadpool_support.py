"""Jobs for the tests of `ebbpool.fastthreadpool`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from support import Boom


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
