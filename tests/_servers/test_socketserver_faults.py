"""What a server refuses, and what goes wrong in its handlers, its hooks and its executor."""

from __future__ import annotations

import socket
import socketserver
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
from support.common import TIMEOUT, Boom, Gate, eventually
from support.server import (
    LOOPBACK,
    Echo,
    Held,
    Server,
    ask,
    closing_server,
    connect,
    handler,
    made,
    read_all,
    reserved_port,
    serving,
)

from ebbpool import AdaptiveExecutor
from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolTCPServer

LOGGER = "ebbpool.socketserver"


@pytest.mark.parametrize(
    ("base", "name", "value", "kind"),
    [
        (Server, "max_workers", 0, ValueError),
        (Server, "min_workers", -1, ValueError),
        (Server, "min_spare_workers", "2", TypeError),
        (Server, "keep_alive", -1, ValueError),
        (Server, "max_queue", -1, ValueError),
        (Server, "shutdown_timeout", "soon", TypeError),
        (Server, "shutdown_timeout", -1, ValueError),
        (Server, "handshake_timeout", -1, ValueError),
        (Server, "executor", object(), TypeError),
        (AdaptivePoolHTTPServer, "max_workers", 0, ValueError),
        (AdaptivePoolHTTPServer, "header_timeout", -1, ValueError),
        (AdaptivePoolHTTPServer, "header_timeout", None, TypeError),
        (AdaptivePoolHTTPServer, "body_timeout", float("nan"), ValueError),
        (AdaptivePoolHTTPServer, "idle_timeout", "1", TypeError),
        (AdaptivePoolHTTPServer, "request_timeout", True, TypeError),
        (AdaptivePoolHTTPServer, "max_header_size", 0, ValueError),
        (AdaptivePoolHTTPServer, "max_header_size", 1.5, TypeError),
        (AdaptivePoolHTTPServer, "max_buffered_body", -1, ValueError),
        (AdaptivePoolHTTPServer, "retry_after", -1, ValueError),
    ],
)
def test_a_bad_knob_is_named_and_nothing_is_left_behind(
    base: Any, name: str, value: Any, kind: type[Exception]
) -> None:
    bound: list[socket.socket] = []

    class Noting(base):  # type: ignore[misc]
        def server_bind(self) -> None:
            super().server_bind()
            bound.append(self.socket)

    with reserved_port() as port:
        address = ("127.0.0.1", port)
        with pytest.raises(kind, match=f"{name} must be .*{value!r}" if name != "executor" else "executor must be"):
            type("Bad", (Noting,), {name: value})(address, Echo)
        [listener] = bound
        assert listener.fileno() == -1
        with closing_server(base(address, Echo)):
            pass


def test_a_port_that_is_taken_is_named_and_nothing_is_left_behind() -> None:
    class Noting(Server):
        def server_bind(self) -> None:
            listeners.append(self.socket)
            super().server_bind()

    listeners: list[socket.socket] = []
    with reserved_port() as port:
        address = ("127.0.0.1", port)
        with socket.create_server(address), pytest.raises(OSError, match=f"in use.*{port}") as caught:
            Noting(address, Echo)
        assert caught.value.errno is not None
        assert [listener.fileno() for listener in listeners] == [-1]
        with closing_server(Server(address, Echo)):
            pass


def test_a_full_queue_refuses_the_connection_with_an_end_of_file(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Semaphore(0)

    def close_request(server: Server, request: socket.socket) -> None:
        Server.close_request(server, request)
        ended.release()

    with (
        Gate() as gate,
        serving(made(handler(lambda _: gate()), max_workers=1, max_queue=1, close_request=close_request)) as server,
    ):
        with ExitStack() as stack:
            stack.enter_context(closing(connect(server)))
            gate.await_begun()
            stack.enter_context(closing(connect(server)))
            eventually(lambda: len(server.pool_handlers) == 2)
            with Held(server) as held:
                held.await_held()
                with closing(connect(server)) as refused:
                    refused.sendall(b"a request that nobody will read")
                    held.let_go()
                    assert ended.acquire(timeout=TIMEOUT)
                    assert read_all(refused) == b""
                    # No reset either, though it had sent something.
                    assert refused.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            assert len(server.pool_handlers) == 2
            gate.open()
        server.join()
        assert ask(server) == b"" and not server.errors
    assert not caplog.records


@pytest.mark.parametrize("executor_type", [AdaptiveExecutor, ThreadPoolExecutor])
def test_an_executor_that_was_shut_down_refuses_and_says_so_once(
    executor_type: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pool = executor_type()
    pool.shutdown()
    with serving(made(executor=pool)) as server:
        assert [ask(server) for _ in range(3)] == [b""] * 3
        assert len(server.pool_handlers) == 0
    [record] = caplog.records
    assert (record.name, record.levelname) == (LOGGER, "ERROR") and "after shutdown" in record.getMessage()


@pytest.mark.parametrize("error", [Boom(), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration()])
def test_what_a_handler_raises_goes_to_handle_error_and_costs_nothing(error: BaseException) -> None:
    threads: list[threading.Thread] = []

    def fail(request: socketserver.BaseRequestHandler) -> None:
        threads.append(threading.current_thread())
        if request.request.recv(1) == b"!":
            raise error

    with serving(made(handler(fail), max_workers=1)) as server:
        assert ask(server, b"!") == b""
        assert ask(server, b"?") == b""
    assert server.errors == [error]
    assert threads[0] is threads[1]


@pytest.mark.parametrize("second", [Boom(), SystemExit(4)])
def test_a_handle_error_that_raises_itself_costs_nothing(
    second: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Worse(Server):
        def handle_error(self, request: Any, client_address: Any) -> None:
            raise second

    with serving(Worse(LOOPBACK, handler(lambda _: 1 / 0))) as server:
        assert ask(server) == b""
        assert ask(server) == b""
        assert server.join(TIMEOUT)
    assert [record.name for record in caplog.records] == [LOGGER] * 2
    assert "handle_error failed" in caplog.text


def test_a_shutdown_request_that_raises_costs_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    class Worse(Server):
        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            raise Boom

    with serving(Worse(LOOPBACK, Echo)) as server:
        assert ask(server, b"a") == b"a"
        assert ask(server, b"b") == b"b"
        assert server.join(TIMEOUT)
    assert caplog.text.count("could not be shut down") == 2


def test_a_request_that_is_not_verified_is_shut_down() -> None:
    class Picky(Server):
        def verify_request(self, request: Any, client_address: Any) -> bool:
            return False

    with serving(Picky(LOOPBACK, Echo)) as server:
        assert ask(server) == b""
        assert len(server.pool_handlers) == 0


@pytest.mark.parametrize("hook", ["verify_request", "process_request", "refuse_request"])
def test_a_hook_that_raises_in_the_loop_costs_its_connection_alone(hook: str) -> None:
    failed: list[bool] = []

    def fail_once(self: Server, *args: Any) -> Any:
        if not failed:
            failed.append(True)
            raise Boom
        return getattr(super(type(self), self), hook)(*args)

    pool = AdaptiveExecutor(max_workers=1)
    executor: Executor | None = pool if hook == "refuse_request" else None
    with pool, serving(made(**{hook: fail_once, "executor": executor})) as server:
        if executor is not None:
            pool.shutdown()
        assert ask(server) == b""
        assert [type(error) for error in server.errors] == [Boom]
        assert ask(server) == b""
        assert len(server.errors) == 1


@pytest.mark.parametrize("policy", ["block", "caller_runs"])
@pytest.mark.parametrize("base", [AdaptivePoolTCPServer, AdaptivePoolHTTPServer])
def test_an_executor_that_makes_the_loop_wait_is_named(policy: Any, base: Any) -> None:
    with AdaptiveExecutor(1, max_queue=1, when_full=policy) as pool:
        for executor in (pool, pool.lane("web", limit=1)):
            with pytest.raises(ValueError, match=f'executor must have when_full="reject".*{policy!r} and max_queue=1'):
                type("Bad", (base,), {"executor": executor})(LOOPBACK, Echo)


@pytest.mark.parametrize("settings", [{"max_queue": 1, "when_full": "reject"}, {"when_full": "caller_runs"}])
def test_an_executor_that_makes_nobody_wait_will_do(settings: dict[str, Any]) -> None:
    with AdaptiveExecutor(1, **settings) as pool, serving(made(executor=pool)) as server:
        assert ask(server, b"hello") == b"hello"


@pytest.mark.parametrize("executor_type", [AdaptiveExecutor, ThreadPoolExecutor])
def test_connections_whose_handlers_are_cancelled_are_shut_down(executor_type: Any) -> None:
    ended: list[Any] = []

    class Noting(Server):
        executor = executor_type(1)

        def shutdown_request(self, request: Any) -> None:
            ended.append(request)
            super().shutdown_request(request)

    with Gate() as gate, serving(Noting(LOOPBACK, handler(lambda _: gate()))) as server, ExitStack() as stack:
        busy = stack.enter_context(closing(connect(server)))
        gate.await_begun()
        queued = [stack.enter_context(closing(connect(server))) for _ in range(3)]
        for client in queued:
            client.sendall(b"a request")
        eventually(lambda: len(server.pool_handlers) == 4)
        server.executor.shutdown(wait=False, cancel_futures=True)
        assert [read_all(client) for client in queued] == [b""] * 3
        # A client that the loop itself refuses sees the end of its connection before that is shut down.
        eventually(lambda: len(ended) == 3)
        assert len(server.pool_handlers) == 1
        gate.open()
        assert read_all(busy) == b""
    assert not server.errors


def test_what_refuse_request_raises_for_a_cancelled_connection_goes_to_handle_error() -> None:
    def fail(self: Server, request: Any, client_address: Any) -> None:
        self.shutdown_request(request)
        raise Boom

    with (
        AdaptiveExecutor(1) as pool,
        Gate() as gate,
        serving(made(handler(lambda _: gate()), executor=pool, refuse_request=fail)) as server,
    ):
        with closing(connect(server)):
            gate.await_begun()
            with closing(connect(server)) as queued:
                eventually(lambda: len(server.pool_handlers) == 2)
                pool.shutdown(wait=False, cancel_futures=True)
                assert read_all(queued) == b""
            gate.open()
        eventually(lambda: server.errors)
        assert [type(error) for error in server.errors] == [Boom]
