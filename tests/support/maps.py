"""What the tests of maps share: inputs and outcomes that are watched."""

from __future__ import annotations

import weakref

from support.common import Thing

FAR = 2_000
"""Trivial items after which claims are large."""


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
