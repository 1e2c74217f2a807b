"""What tests have a Dask cluster run. The workers import it, so it needs nothing of pytest."""

from __future__ import annotations

import os
import signal
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from distributed import Event, get_worker

TIMEOUT = 30.0
REQUEST: ContextVar[str] = ContextVar("REQUEST", default="none")


def add(left: int, right: int = 1) -> int:
    return left + right


def given(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def request() -> str:
    return REQUEST.get()


def wait_at(name: str) -> str:
    """Say that the call has begun, and wait until it may go on."""
    Event(f"{name}-begun").set()
    assert Event(f"{name}-open").wait(TIMEOUT)
    return name


def note(path: str, line: str = "run") -> int:
    with Path(path).open("a") as file:
        file.write(f"{line}\n")
    return os.getpid()


def kill_own_worker(path: str) -> None:
    note(path)
    os.kill(os.getpid(), signal.SIGKILL)


def where() -> str:
    address: str = get_worker().address
    return address


def a_lock() -> Any:
    return threading.Lock()


class Strange(Exception):
    """An error that can be pickled, but not unpickled."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")


def raise_strange() -> None:
    raise Strange(1, 2)


def divide(by: int) -> float:
    return 10 / by


def leave() -> None:
    raise SystemExit(3)


def or_lock(number: int) -> Any:
    return threading.Lock() if number == 3 else number
