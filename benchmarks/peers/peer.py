"""What is known of a rival: how to build its pool, how it offloads, and its version."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers import Unavailable, package, ways
from benchmarks.peers.pools import Pool

AT = "@"
"""Stands between the name of a peer and that of the checkout that it is of."""


def no_way(*args: Any) -> Any:
    """Stand for what a peer does not have."""
    raise TypeError("the table of peers has no such way for this one")


@dataclass(frozen=True, slots=True)
class Peer:
    """A rival, or a floor, or ebbpool itself.

    Attributes:
        modules: What has to be importable.
        core: Of ours, whether it is meant to run the compiled core (True) or the plain one (False).
        open: Builds a pool from a ceiling and a keep-alive in seconds (heeded where the peer has one).
        offload: The way from an event loop to its threads; `new_loop` makes the loop from a name and a ceiling.
        program: The server program, for `load.serving`, of a question that does not say it itself.
        source: Of ours, the `src` of another checkout, whose extensions are built in place.
    """

    name: str
    label: str
    modules: tuple[str, ...] = ()
    core: bool | None = None
    open: Callable[[int, float], Pool] = no_way
    offload: ways.Offload = no_way
    new_loop: ways.NewLoop = ways.stock_loop
    semaphore: Callable[[int], Any] = no_way
    program: str = ""
    source: str = ""

    def of_checkout(self, folder: Path) -> Peer:
        """Return the same of ours as another checkout has it, named after its folder."""
        folder = folder.resolve()
        name, label = f"{self.name}{AT}{folder.name}", f"{self.label}, {folder.name}"
        return replace(self, name=name, label=label, source=str(folder / "src"))

    @property
    def base(self) -> str:
        """Its name, without that of a checkout."""
        return self.name.partition(AT)[0]

    @property
    def env(self) -> dict[str, str]:
        """The variables its process gets."""
        pure = {"EBBPOOL_PURE": "1"} if self.core is False else {}
        if not self.source:
            return pure
        before = os.environ.get("PYTHONPATH")
        return pure | {"PYTHONPATH": f"{self.source}{os.pathsep}{before}" if before else self.source}

    @property
    def side(self) -> str:
        """Return "ours", "floor", "rival", or "checkout" for ours of another one."""
        if AT in self.name:
            return "checkout"
        if self.label.endswith("(floor)"):
            return "floor"
        return "rival" if self.core is None else "ours"

    def load(self) -> str:
        """Import the peer and return its version; `Unavailable` if it is not installed in the form that is meant."""
        for module in self.modules:
            package(module)
        if self.core is not None:
            if package("ebbpool").COMPILED is not self.core:
                raise Unavailable(f"ebbpool runs its {'plain' if self.core else 'compiled'} core here")
            return str(package("ebbpool").__version__)
        if not self.modules or self.modules[0].startswith("asyncio"):
            return platform.python_version()
        return importlib.metadata.version(self.modules[0].partition(".")[0])
