"""What the tests of maps share: both ways to hold the items of a claim, and inputs and outcomes that are watched."""

from __future__ import annotations

import weakref

import pytest

from ebbpool._maps import ledger
from support.common import Thing

FAR = 2_000
"""Trivial items after which claims are large."""


@pytest.fixture(params=[True, False], ids=["iterators", "deques"])
def iterators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways to hold the items of a claim, where the interpreter allows both."""
    if request.param and not ledger.ITERATORS:
        pytest.skip("list iterators do not exclude each other here")
    monkeypatch.setattr(ledger, "ITERATORS", request.param)
    return bool(request.param)


class Source:
    """An iterator over the natural numbers that counts what was taken from it."""

    def __init__(self, stop: int | None = None) -> None:
        self.taken = 0
        self.stop = stop

    def __iter__(self) -> Source:
        return self

    def __next__(self) -> int:
        if self.taken == self.stop:
            raise StopIteration
        self.taken += 1
        return self.taken - 1


class Things:
    """A function that makes things, and knows each by a weak reference."""

    def __init__(self) -> None:
        self.references: list[weakref.ref[Thing]] = []

    def __call__(self, number: int) -> Thing:
        thing = Thing()
        self.references.append(weakref.ref(thing))
        return thing
