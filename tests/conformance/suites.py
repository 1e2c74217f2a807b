"""Which of CPython's own suites are run, and what is put into each of them.

A suite is one test module of CPython with one combination of "our executor" and "our future". The suites on
`wait` and `as_completed` are run three times, so that futures of both kinds meet executors of both kinds.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from dataclasses import dataclass

THREADING, PLAIN, HTTP = "threading", "plain", "http"
"""Kinds of servers; `put_in` says which of our classes take the place of which."""

CONCURRENT = "test.test_concurrent_futures"
ASYNCIO = "test.test_asyncio"
SOCKETSERVER = "test.test_socketserver"
HTTPSERVERS = "test.test_httpservers"


@dataclass(frozen=True)
class Suite:
    """One run of one test module.

    Attributes:
        module: The dotted name of CPython's test module.
        executor: Whether our executor takes the place of ThreadPoolExecutor.
        future: Whether our Future takes the place of the standard library's where tests make one themselves.
        select: `fnmatch` patterns for ``Class.method``; the module's other tests use no executor.
        seeded: Whether every test runs in a loop that has already used our executor as its default one.
        servers: Which server classes ours take the place of, one of the kinds of `put_in`; empty for none.
    """

    module: str
    executor: bool = True
    future: bool = False
    select: tuple[str, ...] = ("*",)
    seeded: bool = False
    servers: str = ""

    @property
    def name(self) -> str:
        """The short name with what is put in, such as ``test_wait[executor+future]``."""
        put_in = ["executor"] * self.executor + ["future"] * self.future
        put_in += [f"{self.servers} servers"] * bool(self.servers)
        return f"{self.module.rpartition('.')[2]}[{'+'.join(put_in)}]"


ASYNCIO_SUITES = (
    Suite(f"{ASYNCIO}.test_threads"),
    Suite(f"{ASYNCIO}.test_futures2", seeded=True),
    Suite(
        f"{ASYNCIO}.test_futures",
        future=True,
        select=(
            "*FutureTests.test_wrap_future",
            "*FutureTests.test_wrap_future_without_loop",
            "*FutureTests.test_wrap_future_use_*_loop",
            "*FutureTests.test_wrap_future_cancel*",
        ),
    ),
    Suite(f"{ASYNCIO}.test_tasks", future=True, select=("RunCoroutineThreadsafeTests.*",)),
    Suite(
        f"{ASYNCIO}.test_base_events",
        select=(
            "*.test_set_default_executor",
            "*.test_shutdown_default_executor_timeout",
            "*.test_getnameinfo",
            "*.test_create_connection_service_name",
            "*.test_create_connection_no_inet_pton",
            "*.test_create_connection_ipv6_scope",
            "*.test_create_datagram_endpoint_no_addrinfo",
            "*.test_asyncgen_finalization_by_gc_in_other_thread",
            "BaseLoopSockSendfileTests.test__sock_sendfile_native_failure",
            "BaseLoopSockSendfileTests.test_sock_sendfile_*fallback*",
        ),
    ),
    Suite(
        f"{ASYNCIO}.test_events",
        select=(
            "*EventLoopTests.test_run_in_executor*",
            "*EventLoopTests.test_create_connection_local_addr_*_family",
            "*EventLoopTests.test_create_datagram_endpoint_sock",
            "*EventLoopTests.test_create_server_dual_stack",
        ),
    ),
    Suite(f"{ASYNCIO}.test_sock_lowlevel", select=("*.test_create_connection_sock",)),
    Suite(
        f"{ASYNCIO}.test_sendfile",
        select=("*.test_sendfile_force_fallback", "*.test_sendfile_fallback_*", "*.test_sendfile_ssl*"),
    ),
)

SERVER_SUITES = (
    Suite(
        SOCKETSERVER,
        executor=False,
        select=(
            "SocketServerTest.test_Threading*",
            "SocketServerTest.test_close_immediately",
            "ErrorHandlerTest.test_threading_*",
            "MiscTestCase.test_threads_reaped",
        ),
        servers=THREADING,
    ),
    Suite(
        SOCKETSERVER,
        executor=False,
        select=(
            "SocketServerTest.test_TCPServer",
            "SocketServerTest.test_UDPServer",
            "SocketServerTest.test_Unix*Server",
            "SocketServerTest.test_shutdown",
            "SocketServerTest.test_tcpserver_bind_leak",
            "SocketServerTest.test_context_manager",
            "ErrorHandlerTest.test_sync_*",
            "SocketWriterTest.*",
            "MiscTestCase.test_shutdown_request_called_if_verify_request_false",
        ),
        servers=PLAIN,
    ),
    Suite(
        HTTPSERVERS,
        executor=False,
        select=(
            "BaseHTTPServerTestCase.*",
            "RequestHandlerLoggingTestCase.*",
            "SimpleHTTPServerTestCase.*",
        ),
        servers=HTTP,
    ),
)


def suites(cluster: bool = False) -> list[Suite]:
    """Return the suites that this interpreter ships; for a `cluster` those that say something about its executors."""
    if not _ships("test.support"):
        return []
    found = _concurrent_suites() + [suite for suite in ASYNCIO_SUITES + SERVER_SUITES if _ships(suite.module)]
    about = (CONCURRENT, f"{ASYNCIO}.test_threads")
    return [suite for suite in found if not cluster or (suite.executor and suite.module.startswith(about))]


def missing() -> list[str]:
    """Return which of CPython's packages of tests this interpreter does not ship."""
    return [name for name in (CONCURRENT, ASYNCIO, SOCKETSERVER, HTTPSERVERS) if not _ships(name)]


def _ships(module: str) -> bool:
    package = module.rpartition(".")[0]
    return (not package or _ships(package)) and importlib.util.find_spec(module) is not None


def _concurrent_suites() -> list[Suite]:
    spec = importlib.util.find_spec(CONCURRENT)
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return _combinations(CONCURRENT)
    found: list[Suite] = []
    for module in sorted(info.name for info in pkgutil.iter_modules(spec.submodule_search_locations)):
        if module in {"test_wait", "test_as_completed"}:
            found += _combinations(f"{CONCURRENT}.{module}")
        elif module.startswith("test_"):
            future = module == "test_future"
            found.append(Suite(f"{CONCURRENT}.{module}", executor=not future, future=future))
    return found


def _combinations(module: str) -> list[Suite]:
    return [Suite(module), Suite(module, future=True), Suite(module, executor=False, future=True)]
