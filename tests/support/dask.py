"""What the tests of the executor over a cluster share, and what they see of its inside."""

from __future__ import annotations

import os
import signal
import threading
from time import monotonic
from typing import Any, Self

from distributed import Client, Event

from ebbpool._dask import link, packing
from ebbpool._dask import remote as making
from support.common import TIMEOUT

__all__ = ["LIMIT", "Held", "await_two", "kill", "link", "making", "packing"]

LIMIT = 60.0
"""Seconds in which everything has come that is waited for where workers are lost."""


class Held:
    """Holds calls of `support.cluster.wait_at` with its name until it is opened, on the way out at the latest."""

    def __init__(self, client: Client) -> None:
        self.name = f"held-{os.urandom(8).hex()}"
        self._begun, self._open = (Event(f"{self.name}-{what}", client=client) for what in ("begun", "open"))

    def await_begun(self) -> None:
        assert self._begun.wait(2 * TIMEOUT)

    def open(self) -> None:
        self._open.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.open()


def kill(client: Client, address: str) -> None:
    """Kill a worker, and wait until there is another one in its place."""
    os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)
    await_two(client, address)


def await_two(client: Client, gone: str = "") -> None:
    """Wait until there are two workers, without the one that is `gone`."""
    cluster: Any = client.cluster
    deadline = monotonic() + LIMIT
    again = monotonic() + 10.0
    while True:
        running = [name for name, nanny in dict(cluster.workers).items() if nanny.status.name == "running"]
        present = client.nthreads()
        if gone not in present and len(present) == 2 and len(running) == 2:
            return
        if len(running) < 2 and monotonic() > again:
            # A nanny may give up when its worker dies again and again: have another one.
            for name in set(cluster.worker_spec) - set(running):
                cluster.worker_spec.pop(name)
            cluster.scale(2)
            again = deadline
        assert monotonic() < deadline, f"no worker has come in the place of {gone}: {cluster.workers}"
        threading.Event().wait(0.05)
