"""What loads servers and pools, and counts every answer; here is what all clients share."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self


class Connections:
    """A context manager that closes all sockets of its selector."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            connection: Any = key.fileobj
            connection.close()
        self._selector.close()


@dataclass(slots=True)
class Spent:
    """The seconds that passed, and what the clients and a watched process needed of a processor meanwhile."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    watched_seconds: float = 0.0

    def counting(self, watch: Callable[[], float] = time.process_time) -> Callable[[], None]:
        """Begin to count; the call returned ends it. `watch` tells the processor seconds of the watched process."""
        start, cpu, watched = time.perf_counter(), time.process_time(), watch()

        def end() -> None:
            self.seconds = time.perf_counter() - start
            self.cpu_seconds, self.watched_seconds = time.process_time() - cpu, watch() - watched

        return end

    def samples(self, count: int) -> dict[str, list[float]]:
        """Return how busy the clients were (%), and the server's µs for each of `count` replies, unless it is 0."""
        found = {"client": [self.cpu_seconds / self.seconds * 100]}
        return found | ({"cpu": [self.watched_seconds / count * 1e6]} if self.watched_seconds else {})
