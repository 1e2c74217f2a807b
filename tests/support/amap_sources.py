"""Iterables of both kinds for the tests of `amap`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from support.common import Boom

both_orders = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
both_kinds = pytest.mark.parametrize("kind", ["plain", "async"])


def double(item: int) -> int:
    return 2 * item


class Source:
    """A plain or async iterable of `items` that tells what has been read of it."""

    def __init__(self, kind: str, items: Any, fault: str | None = None) -> None:
        self.kind = kind
        self.items = items
        self.fault = fault
        self.read = 0
        self.closed = False

    def open(self) -> Any:
        return self._plain() if self.kind == "plain" else self._async()

    def _plain(self) -> Iterator[Any]:
        for item in self.items:
            self.read += 1
            yield item
        if self.fault is not None:
            raise Boom(self.fault)

    async def _async(self) -> AsyncIterator[Any]:
        task = id(asyncio.current_task())
        try:
            for item in self.items:
                await asyncio.sleep(0)
                self.read += 1
                yield item
            if self.fault is not None:
                raise Boom(self.fault)
        finally:
            await asyncio.sleep(0)
            assert id(asyncio.current_task()) == task
            self.closed = True


class Waiting:
    """An async iterable that hands on what is put into it, and waits for more."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[Any] = asyncio.Queue()
        self.waits = False
        self.closed = False

    async def open(self) -> AsyncIterator[Any]:
        try:
            while True:
                self.waits = self.items.empty()
                yield await self.items.get()
        finally:
            self.closed = True
