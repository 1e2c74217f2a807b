"""What is known of a rival: how to build its pool, how it offloads, how it serves, and its version."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.peers import Unavailable, blocking, package, ways
from benchmarks.peers.pools import Pool

AT = "@"
"""Stands between the name of a peer and that of the checkout that it is of."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Peer:
    """A rival, or a floor, or ebbpool itself.

    Attributes:
        modules: what has to be importable.
        core: of ours, whether it is meant to run the compiled core (True) or the plain one (False).
        needs: raises Unavailable if something else than a module is missing.
        version: tells the version of what is no Python.
        measured: whose version is reported, where it is not ebbpool's, the first module's or the interpreter's own.
        open: builds a pool from a ceiling and a keep-alive in seconds (heeded where the peer has one); None
            where it has no pool to open.
        loops: the event loops it offloads from, by `offload`; `new_loop` makes them (trio apart) from a name
            and a ceiling.
        blocked: hands so many tasks that wait so many seconds to a pool as it comes; a program of its own tells what
            it took.
        semaphore: makes a semaphore (or a floor of one) with so many permits.
        listens: by question, the module of its server program and the arguments that follow `python -m`.
        against: by question, why it is not asked though it has a pool.
        source: of ours, the `src` of another checkout, where that is measured; its extensions are built in place. It
            goes before what is on PYTHONPATH already.
    """

    name: str
    label: str
    modules: tuple[str, ...] = ()
    core: bool | None = None
    needs: Callable[[], object] = _nothing
    version: Callable[[], str] | None = None
    measured: str = ""
    open: Callable[[int, float], Pool] | None = None
    loops: tuple[str, ...] = ()
    offload: ways.Offload | None = None
    new_loop: ways.NewLoop = ways.stock_loop
    blocked: blocking.Blocked | None = None
    semaphore: Callable[[int], Any] | None = None
    listens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    against: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    def of_checkout(self, folder: Path) -> Peer:
        """Return the same of ours as another checkout has it, named after its folder."""
        folder = folder.resolve()
        name, label = f"{self.name}{AT}{folder.name}", f"{self.label}, {folder.name}"
        return replace(self, name=name, label=label, source=str(folder / "src"))

    @property
    def env(self) -> dict[str, str]:
        """The variables its process gets."""
        pure = {"EBBPOOL_PURE": "1"} if self.core is False else {}
        if not self.source:
            return pure
        before = os.environ.get("PYTHONPATH")
        return pure | {"PYTHONPATH": f"{self.source}{os.pathsep}{before}" if before else self.source}

    @property
    def distribution(self) -> str:
        """Whose version is reported; "" for the interpreter's own."""
        own = "ebbpool" if self.core is not None else "".join(self.modules[:1]).partition(".")[0]
        return self.measured or own

    @property
    def side(self) -> str:
        """Return "ours", "floor" (a ceiling is one too), "rival", or "checkout" for ours of another one."""
        if AT in self.name:
            return "checkout"
        if self.core is not None:
            return "ours"
        return "floor" if self.label.endswith(("(floor)", "(ceiling)")) else "rival"

    def not_for(self, question: str) -> str:
        """Return why a `question` about pools is not asked of this peer, or "" if it is."""
        if self.open is not None:
            return self.against.get(question, "")
        if self.offload is not None:
            return "a way into another's pool: see offload"
        if self.listens:
            fast = "fastapi_rate" in self.listens
            return f"a server: see {'fastapi_burst, fastapi_rate' if fast else 'the questions about servers'}"
        other = "semaphore" if self.semaphore else "blocked_tasks" if self.blocked else "timers"
        return "no pool: it is a model of one" if self.name == "simulation" else f"no pool: see {other}"

    def load(self) -> str:
        """Import the peer and return its version.

        Raises:
            Unavailable: It is not installed, or not in the form that is meant.
        """
        for module in self.modules:
            package(module)
        self.needs()
        if self.version is not None:
            return self.version()
        if self.core is not None and package("ebbpool").COMPILED is not self.core:
            raise Unavailable(f"ebbpool runs its {'plain' if self.core else 'compiled'} core here")
        if self.distribution == "ebbpool":
            # A checkout that is not installed has no metadata.
            return str(package("ebbpool").__version__)
        return importlib.metadata.version(self.distribution) if self.distribution else platform.python_version()
