"""What the tests of the executor over a cluster share, and what they see of its inside."""

from __future__ import annotations

import os
from typing import Self

from distributed import Client, Event

from ebbpool._dask import link, pace, packing
from ebbpool._dask import remote as making
from support.common import TIMEOUT

__all__ = ["Held", "link", "making", "pace", "packing"]


class Held:
    """Holds the calls of `support.cluster.wait_at` with its name, wherever they are made, until it is opened.

    As a context manager it opens on the way out.
    """

    def __init__(self, client: Client) -> None:
        self.name = f"held-{os.urandom(8).hex()}"
        self._begun, self._open = (Event(f"{self.name}-{what}", client=client) for what in ("begun", "open"))

    def await_begun(self) -> None:
        """Wait until a call has begun."""
        assert self._begun.wait(2 * TIMEOUT)

    def open(self) -> None:
        self._open.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.open()
