"""The one table of CPython tests that say nothing about a thread pool that ebbs and flows.

A pattern is matched (`fnmatch`, case-sensitive) against ``Class.method``, so that one entry serves the
interpreters that keep these tests in one module as well as those that keep them in a package. Everything that
is not listed here has to pass. `run.py` names the entries that no longer match any test.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase

Version = tuple[int, ...]


@dataclass(frozen=True)
class NotApplicable:
    """One kind of test that is left out, and why; `since` and `until` name the CPythons that the entry is meant for."""

    pattern: str
    reason: str
    since: Version = (3, 11)
    until: Version | None = None

    def covers(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)


PARENT = "asserts what a server does that handles requests in the thread of its own loop; ours does so in workers"
PROCESSES = "a pool of processes: no thread pool takes part"
THREAD_COUNT = "asserts one thread per task right after submit, the policy that ours replaces"

NOT_APPLICABLE: tuple[NotApplicable, ...] = (
    NotApplicable("ProcessPool*", PROCESSES),
    NotApplicable("FailingInitializerResourcesTest.*", PROCESSES),
    NotApplicable("InterpreterPool*", "a pool of interpreters: no pool of ours takes part", since=(3, 14)),
    NotApplicable("AsyncioTest.*", "a pool of interpreters under asyncio", since=(3, 14)),
    NotApplicable(
        "ThreadPoolExecutorTest.test_default_workers",
        "asserts that the default is min(32, CPUs + 4) threads; ours is documented as a ceiling of 256",
    ),
    NotApplicable("ThreadPoolExecutorTest.test_saturation", THREAD_COUNT),
    NotApplicable("ThreadPoolShutdownTest.test_threads_terminate", THREAD_COUNT),
    NotApplicable(
        "ThreadPoolShutdownTest.test_cancel_futures",
        "asserts that a worker has taken a task before shutdown cancels the rest; ours does not wait for the thread"
        " it starts, so that all of them may be cancelled",
    ),
    NotApplicable(
        "ThreadPoolShutdownTest.test_thread_names_default",
        "asserts the class name ThreadPoolExecutor in the default thread name; ours says AdaptiveExecutor",
    ),
    NotApplicable(
        "ThreadPoolShutdownTest.test_cancel_futures_wait_false",
        "asserts that a task begins before shutdown cancels it; CPython itself dropped that (gh-116682)",
        until=(3, 12, 2),
    ),
    NotApplicable("ErrorHandlerTest.test_sync_not_handled", PARENT),
    NotApplicable("SocketWriterTest.test_*", PARENT),
    NotApplicable(
        "ErrorHandlerTest.test_threading_not_handled",
        "asserts that SystemExit ends the handler's thread; ours goes to handle_error, and the worker lives on",
    ),
    NotApplicable(
        "MiscTestCase.test_threads_reaped",
        "asserts the length of a private list of threads; a pool has no thread per request",
    ),
)

IN_THIS_PROCESS = (
    "needs threads in the same process: it shares locks, lists, mocks or the executor itself with its tasks"
)
SCRIPT = "runs a script with an executor in a fresh interpreter, which has no cluster; tests/_dask has such scripts"

ON_A_CLUSTER: tuple[NotApplicable, ...] = (
    NotApplicable("ThreadPool*InitializerTest.*", "an initializer for threads: the cluster's workers have theirs"),
    NotApplicable("ThreadPoolShutdownTest.test_cancel_futures_wait_false", SCRIPT),
    NotApplicable("ThreadPoolShutdownTest.test_hang_*", SCRIPT),
    NotApplicable("ThreadPoolShutdownTest.test_*interpreter_shutdown", SCRIPT),
    NotApplicable("ThreadPoolExecutorTest.test_executor_map_current_future_cancel", IN_THIS_PROCESS),
    NotApplicable("ThreadPoolExecutorTest.test_hang_global_shutdown_lock", IN_THIS_PROCESS),
    NotApplicable("ThreadPoolExecutorTest.test_map_submits_without_iteration", IN_THIS_PROCESS),
    NotApplicable("ThreadPoolWaitTests.test_pending_calls_race", IN_THIS_PROCESS),
    NotApplicable("ToThreadTests.test_to_thread_args_kwargs", IN_THIS_PROCESS),
    NotApplicable("ToThreadTests.test_to_thread_concurrent", IN_THIS_PROCESS),
    NotApplicable("ToThreadTests.test_to_thread_contextvars", IN_THIS_PROCESS),
    NotApplicable("ToThreadTests.test_to_thread_once", IN_THIS_PROCESS),
)
"""What says nothing about an executor over a cluster, beside what says nothing about our pools."""


def find(test: str, version: Version = sys.version_info[:3], *, cluster: bool = False) -> NotApplicable | None:
    """Return the first entry that covers `test` (``Class.method``) on this version of CPython, or None."""
    for entry in NOT_APPLICABLE + ON_A_CLUSTER * cluster:
        if entry.covers(version) and fnmatchcase(test, entry.pattern):
            return entry
    return None
