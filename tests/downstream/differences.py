"""The one table of tests that pass stock and fail with ebbpool, and rightly so.

A pattern is matched (`fnmatch`, case-sensitive) against pytest's id of a test. Each entry must be met in full: every
test that it matches, and that stock passes, has to fail with ebbpool. One that passes makes the entry stale.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Expected:
    """One kind of test that ebbpool fails, and why.

    Attributes:
        suites: An `fnmatch` pattern for the names of the suites it is in.
        pattern: An `fnmatch` pattern for the test's id; ``[`` stands for itself.
        reason: What the test asserts that ebbpool does not promise.
    """

    suites: str
    pattern: str
    reason: str


NO_TOKENS = (
    "asserts that calls borrow from anyio's default limiter; with ebbpool the pool's own ceiling is the limit unless"
    " install(keep_default_limiter=True) is asked for, and so this passes in fastapi-limited"
)

EXPECTED: tuple[Expected, ...] = (
    Expected(
        "fastapi", "tests/test_concurrency.py::test_cancelled_wait_for_worker_does_not_enter_or_exit[*", NO_TOKENS
    ),
    Expected(
        "fastapi",
        "tests/test_dependency_concurrency.py::test_cancellation_waiting_for_entry_worker_releases_ownership[*",
        NO_TOKENS,
    ),
    Expected(
        "anyio*",
        "tests/test_to_thread.py::test_asyncio_worker_thread_loop_closed_during_result_report",
        "asserts, at its end, that the worker thread ends with its event loop; ebbpool's threads belong to the pool and"
        " outlive loops. What the test is about, a result for a closed loop, did no harm by then",
    ),
    Expected(
        "anyio*",
        "tests/test_to_thread.py::test_asyncio_worker_reused_after_cancelled_call[*",
        "reaches into anyio's WorkerThread.queue; a worker of ebbpool's has none",
    ),
    Expected(
        "anyio*",
        "tests/test_from_thread.py::TestRunAsyncFromThread::test_run_sync_from_thread_pooling",
        "counts the threads of the process: one more than before the loop, none after it; ebbpool's threads were there"
        " before it and outlive it",
    ),
)
