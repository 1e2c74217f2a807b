"""A timekeeper that leaves all looks to the test."""

from __future__ import annotations

from typing import Any

from ebbpool._pool.timekeeper import Timekeeper


class Nobody(Timekeeper):
    """A timekeeper that never comes: the test looks itself."""

    def start(self) -> None:
        pass

    def watch(self, watched: object) -> None:
        pass

    def call_soon(self, call: Any) -> None:
        call()

    def consider(self) -> None:
        pass

    def dismiss(self, timeout: float) -> None:
        pass
