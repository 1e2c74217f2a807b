"""What is known of a rival: how to build its pool, how it offloads, how it serves, and its version."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks import _ways
from benchmarks._pools import Pool, package


class Unavailable(Exception):
    """The peer cannot run here; the text says why."""


def core_is(compiled: bool) -> None:
    """Raises Unavailable unless ebbpool runs the core that is meant."""
    if package("ebbpool").COMPILED is not compiled:
        raise Unavailable(f"ebbpool runs its {'plain' if compiled else 'compiled'} core here")


def _anything() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Peer:
    """A rival, or a floor, or ebbpool itself.

    Attributes:
        modules: what has to be importable.
        distribution: whose version is reported; "" for the interpreter's own.
        open: builds a pool from a ceiling and a keep-alive in seconds (heeded where the peer has one); None
            where it has no pool to open.
        loops: the event loops it offloads from, by `offload`; `new_loop` makes them (trio apart) from a name
            and a ceiling.
        semaphore: makes a semaphore (or a floor of one) with so many permits.
        serves: the arguments of `_web` with which it serves FastAPI, or None.
        listens: by question, the module of its server program and the arguments that follow `python -m`.
        env: variables its process gets.
        check: raises Unavailable if what was imported is not what is meant.
        against: by question (or "*"), why it is not asked.
    """

    name: str
    label: str
    modules: tuple[str, ...] = ()
    distribution: str = ""
    open: Callable[[int, float], Pool] | None = None
    loops: tuple[str, ...] = ()
    offload: _ways.Offload | None = None
    new_loop: _ways.NewLoop = _ways.stock_loop
    semaphore: Callable[[int], Any] | None = None
    serves: tuple[str, ...] | None = None
    listens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[], None] = _anything
    against: Mapping[str, str] = field(default_factory=dict)

    def not_for(self, question: str) -> str:
        """Returns why `question` is not asked of this peer, or "" if it is."""
        return self.against.get(question) or self.against.get("*", "")

    def load(self) -> str:
        """Imports the peer and returns its version.

        Raises:
            Unavailable: it is not installed, or not in the form that is meant.
        """
        try:
            for module in self.modules:
                package(module)
        except ImportError as error:
            raise Unavailable(f"not installed: {error}") from error
        self.check()
        if self.distribution == "ebbpool":
            # A checkout that is not installed has no metadata.
            return str(package("ebbpool").__version__)
        return importlib.metadata.version(self.distribution) if self.distribution else platform.python_version()
