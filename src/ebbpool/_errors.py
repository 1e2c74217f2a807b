"""Why a pool does not run a task: its queue is full, or the task has waited for too long."""

from __future__ import annotations


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
