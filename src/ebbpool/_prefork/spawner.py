"""How `ebbpool.prefork` starts children where no process can be forked: each in a new interpreter."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ebbpool._prefork.child import Child, main
from ebbpool._prefork.template import News, blocked
from ebbpool._stdio import flush_or_discard

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess


class Spawner:
    """Starts children as a `Template` does, and tells of them in the same way; it never ends.

    Args:
        serve: What every child calls; picklable.
    """

    def __init__(self, serve: Callable[[Child], object]) -> None:
        self.alive = True
        self._serve = serve
        self._context = multiprocessing.get_context("spawn")
        self._children: dict[int, SpawnProcess] = {}
        self._new: list[News] = []

    def start(self, serial: int, name: str, args: tuple[Any, ...]) -> None:
        """Start a child.

        Raises:
            OSError: The system refuses the process.
        """
        process = self._context.Process(target=main, args=(self._serve, *args), name=name, daemon=False)
        flush_or_discard(sys.stdout, sys.stderr)
        with blocked():
            process.start()
        self._children[serial] = process
        self._new.append((serial, process.pid, None, None))

    def sources(self) -> list[Any]:
        """Return what can be waited for: it can be read when there are news."""
        return [process.sentinel for process in self._children.values()]

    def news(self) -> Iterator[News]:
        """Yield what has happened, without waiting."""
        yield from self._new
        self._new.clear()
        for serial, process in list(self._children.items()):
            if process.exitcode is not None:
                yield serial, None, process.exitcode, None
                del self._children[serial]
                process.close()

    def resume(self) -> None:
        """Do nothing: there is no process between this one and the children."""

    def kill(self) -> None:
        """Do nothing."""

    def forsake(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Wait for the end of the children, which have been killed if there are any."""
        for process in self._children.values():
            process.join()
