"""How long functions take, by what is known: calls of those that are short go first."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ebbpool._called import called_key, called_name
from ebbpool._core import uncompiled as cython

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code known_c.pxd declares these.
    from ebbpool._core.uncompiled import code_identity

SHORT = 1e-3
"""Seconds: a function that takes less is short in any case,"""
SHARE = 0.25
"""and one that takes less than this share of what all calls take."""
FADING = 64
"""Once so many calls have ended, all of them count for half as much."""
REMEMBERED = 512
"""So many functions are remembered, and those, as many, that were not called for longer."""


class Known:
    """What is known of how long the calls of one function take, or all; guarded by the pool's mutex."""

    def __init__(self, key: Any, name: str) -> None:
        self.key = key  # kept, so that no other function gets its identity
        self.name = name
        self.spent: float = 0.0  # seconds, by the calls that have ended
        self.ended: float = 0.0
        self.running: int = 0
        self.starts: float = 0.0  # the sum of when those that run began (monotonic seconds)
        self.tried: bool = False  # whether a call was taken for short though nothing is known
        self.waiting: int = 0
        self.short: bool = False  # whether those that wait go first

    def begin(self, now: float) -> None:
        """Count a call that begins."""
        self.running += 1
        self.starts += now

    def drop(self, began: float) -> None:
        """Count off a call that had begun."""
        self.running -= 1
        self.starts = self.starts - began if self.running > 0 else 0.0

    def end(self, began: float, now: float) -> None:
        """Count a call that ends."""
        self.drop(began)
        self.spent += now - began
        self.ended += 1.0
        if self.ended >= FADING:
            self.spent *= 0.5
            self.ended *= 0.5

    def seconds(self, now: float) -> float:
        """Return how long a call takes: all the time spent, by how many have ended; -1 if none has."""
        return (self.spent + self.running * now - self.starts) / self.ended if self.ended > 0.0 else -1.0


class Functions:
    """What a pool knows of the functions that it was to call while tasks waited."""

    def __init__(self) -> None:
        self.all: Known = Known(None, "all calls")
        # By identity of the key, or by a key that is a tuple. Not replaced: another loop's thread may look there.
        self._young: dict[Any, Known] = {}
        self._old: dict[Any, Known] = {}

    @cython.locals(known=Known)
    def of(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Known:
        """Return what is known of what a call is for; not under a mutex, for this looks at a user's objects."""
        if type(fn) is FunctionType:
            plain = self._young.get(code_identity(fn))
            if plain is not None:
                return plain
        key = called_key(fn, args)
        place = key if type(key) is tuple else id(key)
        found = self._young.get(place)
        if found is None:
            found = self._old.get(place)
            if found is None:
                found = Known(key, called_name(fn, args))
            if len(self._young) >= REMEMBERED:
                self._old.clear()
                self._old.update(self._young)
                self._young.clear()
            self._young[place] = found
        known: Known = found
        return known

    def is_short(self, known: Known, now: float) -> bool:
        """Under the pool's mutex: return whether calls of a function are known to be short."""
        seconds = known.seconds(now)
        return 0.0 <= seconds < SHORT or 0.0 <= seconds < SHARE * self.all.seconds(now)

    def begin(self, known: Known, now: float) -> None:
        """Under the pool's mutex: count a call that begins."""
        known.begin(now)
        self.all.begin(now)

    def end(self, known: Known, began: float, now: float) -> None:
        """Under the pool's mutex: count a call that ends."""
        known.end(began, now)
        self.all.end(began, now)

    def drop(self, known: Known, began: float) -> None:
        """Under the pool's mutex: forget of a call that it had begun, for it is not made."""
        known.drop(began)
        self.all.drop(began)
