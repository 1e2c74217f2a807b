"""What a server refuses, what goes wrong in its handlers and hooks, and what it runs out of."""

from __future__ import annotations

import errno
import logging
import socket
import socketserver
import sys
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
from support.common import A_MOMENT, TIMEOUT, Boom, Gate, eventually, output_of
from support.server import (
    LOOPBACK,
    Echo,
    Held,
    Server,
    ask,
    closing_server,
    connect,
    handler,
    looping,
    made,
    read_all,
    reset,
    serving,
)

from ebbpool import AdaptiveExecutor
from ebbpool._servers.accepting import Shortage

LOGGER = "ebbpool.socketserver"


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("max_workers", 0, ValueError),
        ("min_workers", -1, ValueError),
        ("min_spare_workers", "2", TypeError),
        ("keep_alive", -1, ValueError),
        ("max_queue", -1, ValueError),
        ("shutdown_timeout", "soon", TypeError),
        ("shutdown_timeout", -1, ValueError),
        ("handshake_timeout", -1, ValueError),
        ("executor", object(), TypeError),
    ],
)
def test_a_bad_knob_is_named_and_nothing_is_left_behind(name: str, value: Any, kind: type[Exception]) -> None:
    bound: list[Any] = []

    class Noting(Server):
        def server_bind(self) -> None:
            super().server_bind()
            bound.append((self.server_address, self.socket))

    with pytest.raises(kind, match=f"{name} must be .*{value!r}" if name != "executor" else "executor must be"):
        type("Bad", (Noting,), {name: value})(LOOPBACK, Echo)
    [(address, listener)] = bound
    assert listener.fileno() == -1
    with closing_server(Server(address, Echo)):
        pass


def test_a_port_that_is_taken_is_named_and_nothing_is_left_behind() -> None:
    class Noting(Server):
        def server_bind(self) -> None:
            listeners.append(self.socket)
            super().server_bind()

    listeners: list[socket.socket] = []
    with socket.socket() as taken:
        taken.bind(LOOPBACK)
        taken.listen()
        address = taken.getsockname()
        with pytest.raises(OSError, match=f"in use.*{address[1]}") as caught:
            Noting(address, Echo)
    assert caught.value.errno is not None
    assert [listener.fileno() for listener in listeners] == [-1]
    with closing_server(Server(address, Echo)):
        pass


def test_a_full_queue_refuses_the_connection_with_an_end_of_file() -> None:
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


def test_how_a_connection_is_refused_may_be_overridden() -> None:
    refused: list[Any] = []

    class Busy(Server):
        def refuse_request(self, request: socket.socket, client_address: Any) -> None:
            refused.append(client_address)
            request.sendall(b"busy\n")
            super().refuse_request(request, client_address)

    pool = AdaptiveExecutor()
    pool.shutdown()
    Busy.executor = pool
    with serving(Busy(LOOPBACK, Echo)) as server, closing(connect(server)) as client:
        assert read_all(client) == b"busy\n"
        assert refused == [client.getsockname()]


def test_an_executor_that_was_shut_down_refuses_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    pool = ThreadPoolExecutor()
    pool.shutdown()
    with serving(made(executor=pool)) as server:
        assert [ask(server) for _ in range(3)] == [b""] * 3
    assert [record.name for record in caplog.records] == [LOGGER]


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


def test_a_handler_class_that_cannot_be_made_goes_to_handle_error() -> None:
    with serving(made(lambda *_: 1 / 0)) as server:
        assert ask(server) == b""
    assert [type(error) for error in server.errors] == [ZeroDivisionError]


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


def test_what_ends_the_loop_closes_the_connections_that_were_accepted_with_it() -> None:
    def leave(self: Server, request: Any, client_address: Any) -> bool:
        raise KeyboardInterrupt

    with closing_server(made(verify_request=leave)) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(connect(server))) for _ in range(3)]
        with pytest.raises(KeyboardInterrupt):
            server.serve_forever()
        assert [read_all(client) for client in clients] == [b""] * 3
        assert server.socket.getblocking()


def test_a_client_that_resets_costs_its_connection_alone() -> None:
    with Gate() as gate:

        def late(request: socketserver.BaseRequestHandler) -> None:
            gate()
            request.request.recv(1)

        with serving(made(handler(late), max_workers=1)) as server:
            client = connect(server)
            gate.await_begun()
            reset(client)
            gate.open()
            eventually(lambda: server.errors)
            assert isinstance(server.errors[0], ConnectionError)
            assert ask(server, b"x") == b""


def test_a_client_that_resets_before_it_is_accepted_holds_nobody() -> None:
    with closing_server(made()) as server:
        reset(connect(server))
        with looping(server):
            assert ask(server, b"hello") == b"hello"


class Exhausted(Server):
    """Fails to accept with the given error, as often as told."""

    error = errno.EMFILE
    failures = 0
    attempts = 0

    def get_request(self) -> Any:
        self.attempts += 1
        if self.failures:
            self.failures -= 1
            raise OSError(self.error, "out of something")
        return super().get_request()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_system_that_has_run_out_is_left_alone_for_a_while(
    error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ebbpool._servers.accepting.FIRST_BACK_OFF", 0.0001)
    now = [1000.0]
    with caplog.at_level(logging.WARNING, LOGGER), serving(Exhausted(LOOPBACK, Echo)) as server:
        server._shortage = Shortage(lambda: now[0])
        for _ in range(4):
            server.error, server.failures = error, 5
            assert ask(server, b"hello") == b"hello"
            assert server.failures == 0
            eventually(lambda: not server._shortage.pause)
            now[0] += 0.4
    # Once per spell, and once a second at most.
    first, second = (record.getMessage() for record in caplog.records)
    assert first == f"cannot accept connections for now, those that come wait: [Errno {error}] out of something"
    assert second == first + " (3 times since this was last logged)"
    assert not server.errors


def test_shutdown_does_not_wait_for_the_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbpool._servers.accepting.FIRST_BACK_OFF", 3600.0)
    with closing_server(Exhausted(LOOPBACK, Echo)) as server:
        server.failures = 1
        with looping(server, poll_interval=0.001), closing(connect(server)):
            eventually(lambda: server.attempts)
            threading.Event().wait(A_MOMENT)
            assert server.attempts == 1


def test_other_errors_of_accept_are_no_reason_to_wait(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Exhausted(LOOPBACK, Echo), poll_interval=3600) as server:
        server.error, server.failures = errno.ECONNABORTED, 2
        assert ask(server, b"hello") == b"hello"
    assert not caplog.records


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on descriptors there")
def test_a_server_without_descriptors_recovers() -> None:
    script = """
        import logging, os, resource, socket, socketserver, threading
        from ebbpool.socketserver import AdaptivePoolTCPServer

        class Told(logging.Handler):
            def emit(self, record):
                print(record.levelname, "Too many open files" in record.getMessage(), flush=True)
                told.set()

        class Echo(socketserver.BaseRequestHandler):
            def handle(self):
                self.request.sendall(self.request.recv(100))

        told = threading.Event()
        logging.getLogger("ebbpool.socketserver").addHandler(Told())
        with AdaptivePoolTCPServer(("127.0.0.1", 0), Echo) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            client, warm = socket.socket(), socket.create_connection(server.server_address)
            warm.sendall(b"warm")
            assert warm.recv(100) == b"warm"
            # Its own descriptor is not to come free later.
            assert server.join(10)
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            taken = []
            try:
                while True:
                    taken.append(os.dup(0))
            except OSError:
                pass
            client.connect(server.server_address)
            client.sendall(b"hello")
            assert told.wait(10)
            for descriptor in taken:
                os.close(descriptor)
            print(client.recv(100).decode())
            server.shutdown()
            thread.join()
        """
    assert output_of(script) == ["WARNING True", "hello"]
