"""Why a pool does not run a task: its queue is full, or the task has waited for too long. Tracebacks of all errors."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any

_traceback: Any = vars(BaseException)["__traceback__"]


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error, whatever its class has in the place of `__traceback__`."""
    found: TracebackType | None = _traceback.__get__(error)
    return found


def with_traceback(error: BaseException, trace: TracebackType | None) -> Any:
    """Give an error another traceback, whatever its class has in the place of `with_traceback`; return the error."""
    return BaseException.with_traceback(error, trace)


def trimmed(error: BaseException) -> Any:
    """Take the outermost frame, of who caught an error, off its traceback: it would be kept alive. Return the error."""
    trace = traceback_of(error)
    return error if trace is None else with_traceback(error, trace.tb_next)


def written(error: BaseException) -> str:
    """Return an error and its traceback as text. It never raises."""
    try:
        return "".join(traceback.format_exception(type(error), error, traceback_of(error)))
    except BaseException as reason:
        return f"{type(error).__qualname__}, whose traceback cannot be written: {type(reason).__qualname__}\n"


def lacking(module: str, package: str, error: ImportError) -> ImportError:
    """Return the error of a public module that needs another package, which cannot be imported."""
    text = f"ebbpool.{module} needs {package}: python -m pip install {package} ({error})"
    return ImportError(text, name=error.name)


class QueueFull(RuntimeError):
    """The queue holds `max_queue` tasks, the pool cannot grow, and `when_full` is "reject".

    Attributes:
        retry_after: Seconds after which to try again: as long as the oldest task has waited by now.
    """

    __module__ = "ebbpool"

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueTimeout(QueueFull):
    """A task waited longer than `max_wait`, or past its deadline, and will not run.

    Attributes:
        waited: For how many seconds it has waited.
    """

    __module__ = "ebbpool"

    def __init__(self, message: str, waited: float = 0.0) -> None:
        super().__init__(message, waited)
        self.waited = waited
