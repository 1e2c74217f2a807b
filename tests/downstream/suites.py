"""The tables on the test suites of real users: which release of whom, which of its tests, how ebbpool gets in, and what
fails with it and rightly so.

Run as a script it prints the releases as requirements, one per line.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

Way = Literal["anyio", "anyio-limited", "pytest-asyncio", "uvloop"]
"""How ebbpool gets in.

* anyio: ``ebbpool.anyio.install(pool)`` for the whole session.
* anyio-limited: ``ebbpool.anyio.install(pool, keep_default_limiter=True)``.
* pytest-asyncio: every test runs in a loop of asyncio's and in one of uvloop's; with ebbpool in those of `ebbpool.aio`.
* uvloop: the loops that uvloop's own test cases make are those of `ebbpool.aio`.
"""

PINS: dict[str, str] = {
    "aiofiles": "25.1.0",
    "anyio": "4.16.0",
    "fastapi": "0.165.0",
    "starlette": "1.10.0",
    "uvloop": "0.23.0",
}
"""Each project and its release: what is installed, and whose sdist the tests come from."""


@dataclass(frozen=True)
class Suite:
    """Tests of one project, and one way to run them.

    Attributes:
        project: Its name on the package index, which is also the name of its package.
        tests: Files and folders in the sdist; `left_out` are those that say nothing about threads, with the reasons.
        plugins: The pytest plugins it needs, by the names of their entry points; no others are loaded.
        variants: Parts of the ids of parametrised tests. Of each that there is, some calls must have reached ebbpool.
        optional: Whether there are machines on which the project cannot be installed.
    """

    name: str
    project: str
    way: Way
    tests: tuple[str, ...]
    plugins: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class Expected:
    """One kind of test that passes stock and fails with ebbpool, and what it asserts that ebbpool does not promise.

    Every test that matches, and that stock passes, has to fail with ebbpool. Both patterns are those of `fnmatch`, for
    the names of suites and for the test's id, in which ``[`` stands for itself.
    """

    suites: str
    pattern: str
    reason: str


STRICT_THREADS = (
    "-Werror::pytest.PytestUnhandledThreadExceptionWarning",
    "-Werror::pytest.PytestUnraisableExceptionWarning",
)
"""For suites whose own settings do not make errors of all warnings."""

TELEMETRY = "runs the clients of vendors of telemetry"

SHARED_DECLARATION = (
    "tests/test_dependency_concurrency.py::test_shared_declaration_limits_both_routes_before_worker_entry"
)
"""Where it fails it may hang, with anyio's own threads, too: anyio.from_thread.run is not cancelled by a scope that was
cancelled before it began."""

FASTAPI_PLUGINS = ("anyio", "inline_snapshot", "timeout", "xdist")
ANYIO_PLUGINS = ("anyio", "pytest_mock", "timeout")
ANYIO_VARIANTS = ("asyncio", "asyncio+uvloop", "asyncio+eager", "trio")
BACKENDS = ("asyncio", "trio")

SUITES: tuple[Suite, ...] = (
    Suite(
        name="fastapi",
        project="fastapi",
        way="anyio",
        tests=("tests",),
        plugins=FASTAPI_PLUGINS,
        left_out=(
            ("tests/benchmarks", "measures"),
            ("tests/memory_benchmarks", "measures"),
            ("tests/test_telemetry", TELEMETRY),
            ("tests/test_tutorial/test_opentelemetry", TELEMETRY),
            ("tests/test_fastapi_cli.py", "runs programs of their own, in which ebbpool is not installed"),
            (SHARED_DECLARATION, "counts the tokens of anyio's default limiter; it is run in fastapi-limited"),
        ),
        variants=BACKENDS,
    ),
    Suite(
        name="fastapi-limited",
        project="fastapi",
        way="anyio-limited",
        tests=("tests/test_concurrency.py", "tests/test_dependency_concurrency.py"),
        plugins=FASTAPI_PLUGINS,
        variants=BACKENDS,
    ),
    Suite("starlette", "starlette", "anyio", ("tests",), ("anyio", "timeout"), variants=BACKENDS),
    Suite(
        name="anyio",
        project="anyio",
        way="anyio",
        tests=tuple(f"tests/test_{name}.py" for name in ("to_thread", "from_thread", "fileio", "tempfile")),
        plugins=ANYIO_PLUGINS,
        variants=ANYIO_VARIANTS,
    ),
    Suite(
        name="anyio-limited",
        project="anyio",
        way="anyio-limited",
        tests=("tests/test_to_thread.py", "tests/test_from_thread.py"),
        plugins=ANYIO_PLUGINS,
        variants=ANYIO_VARIANTS,
    ),
    Suite(
        name="uvloop",
        project="uvloop",
        way="uvloop",
        tests=("tests/test_base.py", "tests/test_dns.py", "tests/test_executors.py"),
        plugins=("timeout",),
        options=(*STRICT_THREADS, "-k", "executor or dns or DNS"),
        optional=True,
    ),
    Suite(
        name="aiofiles",
        project="aiofiles",
        way="pytest-asyncio",
        tests=("tests",),
        plugins=("asyncio", "timeout"),
        options=STRICT_THREADS,
        variants=("asyncio", "uvloop"),
    ),
)
"""The longest first, so that two at a time end together."""

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

if __name__ == "__main__":
    left = {"uvloop"} if "--without-uvloop" in sys.argv else set()
    print("\n".join(f"{project}=={release}" for project, release in PINS.items() if project not in left))
