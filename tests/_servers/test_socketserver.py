"""The socketserver mix-in: who handles what, what the knobs do, how a server ends, what goes wrong; each kind."""

from __future__ import annotations

import logging
import os
import socket
import socketserver
import ssl
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Boom, Gate, eventually
from support.httpserver import Clock
from support.seams import crew_of
from support.server import (
    LOOPBACK,
    Echo,
    Server,
    ask,
    connect,
    handler,
    looping,
    made,
    mixin,
    noting,
    over_tls,
    read_all,
    reserved_port,
    serving,
    tls_client,
)

import ebbpool.socketserver
from ebbpool import AdaptiveExecutor
from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolTCPServer

LOGGER = "ebbpool.socketserver"
UNIX = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")


def test_more_connections_than_are_accepted_at_once_are_all_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixin, "ACCEPTS", 3)
    served: list[Any] = []
    with (
        made(handler(lambda request: served.append(request.client_address)), max_workers=1) as server,
        ExitStack() as stack,
    ):
        # They are there before the loop looks for the first time.
        clients = [stack.enter_context(closing(connect(server))) for _ in range(10)]
        with looping(server):
            for client in clients:
                assert read_all(client) == b""
        assert served == [client.getsockname() for client in clients]


def test_the_knobs_are_class_attributes_or_are_set_before_the_server_is_activated() -> None:
    knobs = {"min_workers": 2, "max_workers": 200, "min_spare_workers": 20, "keep_alive": 3.0, "max_queue": 7}
    with made(**knobs, daemon_threads=True, thread_stack_size=512 * 1024) as server:
        pool: Any = server.pool_handlers.executor
        settings = pool._settings
        assert {name: getattr(settings, name) for name in knobs} == knobs
        crew = crew_of(pool)
        assert crew.daemon and pool._when_full == "reject" and crew.stack_size == 512 * 1024
    with Server(LOOPBACK, Echo, bind_and_activate=False) as server:
        server.max_workers = 3
        server.server_bind()
        server.server_activate()
        assert server.pool_handlers.executor._max_workers == 3


@pytest.mark.parametrize("kind", ["pool", "lane", "of the standard library"])
def test_servers_share_an_executor_and_leave_it_alone(kind: str) -> None:
    executor_type: Any = ThreadPoolExecutor if "library" in kind else AdaptiveExecutor
    with executor_type(max_workers=4, thread_name_prefix="shared") as pool:
        shared = pool.lane("web", limit=1) if kind == "lane" else pool
        names: list[str] = []
        note = handler(lambda _: names.append(threading.current_thread().name))
        with serving(made(note, executor=shared)) as one, serving(made(note, executor=shared)) as other:
            ask(one)
            ask(other)
            assert one.pool_handlers.executor is other.pool_handlers.executor is shared
        assert len(names) == 2 and all(name.startswith("shared_") for name in names)
        assert shared.submit(abs, -1).result(TIMEOUT) == 1


def test_a_server_waits_for_its_own_handlers_and_not_for_those_of_others() -> None:
    with (
        AdaptiveExecutor() as pool,
        Gate() as gate,
        serving(made(handler(lambda _: gate()), executor=pool)) as busy,
        closing(connect(busy)),
    ):
        gate.await_begun()
        with serving(made(executor=pool)) as other:
            assert ask(other, b"still there") == b"still there"
        assert not busy.join(0)
        gate.open()


def test_a_handler_may_shut_its_server_down_and_close_it() -> None:
    def end(request: socketserver.BaseRequestHandler) -> None:
        request.server.shutdown()
        request.server.server_close()
        request.request.sendall(b"ended")

    server = made(handler(end))
    loop = Background(server.serve_forever)
    assert ask(server) == b"ended"
    loop.join()
    server.server_close()


def test_join_waits_for_all_busy_workers_and_the_server_goes_on() -> None:
    with Gate() as gate, serving(made(handler(lambda _: gate()))) as server:
        with closing(connect(server)):
            gate.await_begun()
            assert not server.join(0)
            joining = Background(server.join)
            eventually(lambda: server.pool_handlers._joining)
            gate.open()
            assert joining.join() is True
        assert ask(server) == b""


def test_the_hooks_of_a_subclass_keep_their_meaning_and_the_log_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    hooks = [*(f"{verb}_request" for verb in ("get", "verify", "process")), "process_request_thread"]
    hooks += [f"{verb}_request" for verb in ("finish", "shutdown", "close")]
    kind, calls = noting(Server, *hooks)
    with caplog.at_level(logging.DEBUG, LOGGER), serving(kind(LOOPBACK, Echo)) as server:
        assert ask(server, b"hello") == b"hello"
    assert calls == hooks
    assert not caplog.records


def test_join_takes_any_number_of_seconds_and_names_a_bad_one() -> None:
    with made() as server:
        assert server.join(-1) and server.join(float("inf")) and server.join(None)
        with pytest.raises(TypeError, match="timeout must be a number of seconds, not 'soon'"):
            server.join("soon")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout must be a number of seconds, not nan"):
            server.join(float("nan"))


# On a socket that listens already, UDP, Unix, TLS.


@pytest.mark.parametrize("base", [AdaptivePoolTCPServer, AdaptivePoolHTTPServer])
def test_a_listener_that_is_there_already_is_left_as_it_is(base: Any) -> None:
    class Listener(socket.socket):
        def listen(self, *args: Any) -> None:
            changes.append(args)
            super().listen(*args)

        def setblocking(self, flag: bool) -> None:
            changes.append(flag)
            super().setblocking(flag)

        def settimeout(self, value: float | None) -> None:
            changes.append(value)
            super().settimeout(value)

    changes: list[Any] = []
    listener = Listener()
    listener.bind(LOOPBACK)
    listener.listen(3)
    answering = handler(lambda asked: asked.request.sendall(asked.request.recv(1000)[:3]))
    with base.from_socket(listener, answering) as server, looping(server):
        assert server.server_address == listener.getsockname() and server.socket is listener
        assert ask(server, b"GET / HTTP/1.0\r\n\r\n") == b"GET"
    assert changes == [(3,), False]
    assert listener.fileno() == -1


def test_servers_that_share_a_listener_lose_no_connection_to_each_other() -> None:
    listener = socket.create_server(LOOPBACK)
    other = listener.dup()
    with serving(Server.from_socket(listener, Echo)) as one, serving(Server.from_socket(other, Echo)):
        for number in range(50):
            assert ask(one, b"%d" % number) == b"%d" % number
        # The flag belongs to the listener that both have: a loop that ends must not take it from the other.
        one.shutdown()
        assert not os.get_blocking(other.fileno())
        looping_again = looping(one)
        with looping_again:
            assert ask(one, b"again") == b"again"


@pytest.mark.parametrize("kind", ["UDP", pytest.param("UnixDatagram", marks=UNIX)])
def test_a_datagram_server_answers_each_and_drops_what_it_has_no_room_for(
    kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base: Any = getattr(ebbpool.socketserver, f"AdaptivePool{kind}Server")
    dropped = threading.Semaphore(0)
    address, own = (LOOPBACK, LOOPBACK) if kind == "UDP" else ("listener", "client")
    with Gate() as gate:

        class Upper(socketserver.DatagramRequestHandler):
            def handle(self) -> None:
                message = self.rfile.read()
                self.wfile.write((gate(message) if message == b"slow" else message).upper())

        class Narrow(base):  # type: ignore[misc]
            max_workers = 1
            max_queue = 0

            def refuse_request(self, request: Any, client_address: Any) -> None:
                super().refuse_request(request, client_address)
                dropped.release()

        with serving(Narrow(address, Upper)) as server, socket.socket(base.address_family, socket.SOCK_DGRAM) as client:
            client.settimeout(TIMEOUT)
            client.bind(own)
            for message in (b"one", b"two", b""):
                client.sendto(message, server.server_address)
                assert client.recv(100) == message.upper()
                assert server.pool_handlers.executor.wait_idle(TIMEOUT)
            client.sendto(b"slow", server.server_address)
            gate.await_begun()
            client.sendto(b"dropped", server.server_address)
            assert dropped.acquire(timeout=TIMEOUT)
            gate.open()
            assert client.recv(100) == b"SLOW"


@UNIX
def test_a_unix_server_serves_at_its_path_and_any_on_a_unix_listener(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(ebbpool.socketserver.AdaptivePoolUnixStreamServer("listener", Echo)) as server:
        assert ask(server, b"hello") == b"hello"
        with pytest.raises(OSError, match="listener"):
            ebbpool.socketserver.AdaptivePoolUnixStreamServer("listener", Echo)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("other")
    listener.listen()
    with serving(Server.from_socket(listener, Echo)) as server:
        assert server.address_family == socket.AF_UNIX
        assert ask(server, b"hello") == b"hello"


def line_by_line(request: socketserver.BaseRequestHandler) -> None:
    """Send back one line, if the time-out of the handshake is over."""
    assert request.request.gettimeout() is None
    request.request.sendall(request.request.recv(100))


def greet(server: Any, connected: Any = tls_client) -> None:
    """See that a client is served."""
    with closing(connected(server)) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"


def test_a_client_that_does_not_shake_hands_or_fails_holds_up_nobody_else() -> None:
    with serving(over_tls(made(handler(line_by_line), max_workers=2))) as server:
        with closing(connect(server)):
            eventually(lambda: len(server.pool_handlers) == 1)
            with closing(connect(server)) as garbled:
                garbled.sendall(b"GET / HTTP/1.0\r\n\r\n")
                eventually(lambda: not garbled.recv(1000))
            greet(server)
        server.handshake_timeout = 0.05
        with closing(connect(server)) as silent:
            assert silent.recv(1000) == b"", "dropped by the clock"
        server.handshake_timeout = None
        greet(server)
    assert not server.errors


@pytest.mark.parametrize("connected", [connect, tls_client])
def test_handle_request_handles_one_request(connected: Any) -> None:
    handled: list[Any] = []

    def noted(request: socketserver.BaseRequestHandler) -> None:
        handled.append(request)
        line_by_line(request)

    server = made(handler(noted))
    with over_tls(server) if connected is tls_client else server:
        for number in (1, 2):
            greeting = Background(lambda: greet(server, connected))
            server.handle_request()
            greeting.join()
            assert len(handled) == number


def test_a_full_queue_refuses_a_tls_client_before_its_handshake() -> None:
    with Gate() as gate, serving(over_tls(made(handler(lambda _: gate()), max_workers=1, max_queue=0))) as server:
        with closing(tls_client(server)):
            gate.await_begun()
            with pytest.raises((ssl.SSLError, ConnectionError)):
                tls_client(server)
            gate.open()
        assert server.join(TIMEOUT)


# What a server refuses, and what goes wrong in its handlers, its hooks and its executor.


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
    with reserved_port() as port:
        message = f"{name} must be .*{value!r}" if name != "executor" else "executor must be"
        cannot_be_made(base, ("127.0.0.1", port), kind, message, **{name: value})
        with base(("127.0.0.1", port), Echo) as server:
            assert server.server_address[1] == port


def cannot_be_made(base: Any, address: Any, kind: type[Exception], message: str, **attributes: Any) -> Any:
    """See that a server cannot be made and that its socket is closed; return the error."""
    sockets: list[socket.socket] = []

    class Noting(base):  # type: ignore[misc]
        def server_bind(self) -> None:
            sockets.append(self.socket)
            super().server_bind()

    with pytest.raises(kind, match=message) as caught:
        type("Bad", (Noting,), attributes)(address, Echo)
    assert [each.fileno() for each in sockets] == [-1]
    return caught.value


def test_a_port_that_is_taken_is_named_and_nothing_is_left_behind() -> None:
    with socket.create_server(LOOPBACK) as taken:
        address = taken.getsockname()
        assert cannot_be_made(Server, address, OSError, f"in use.*{address[1]}").errno is not None


def test_a_full_queue_refuses_the_connection_with_an_end_of_file(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Semaphore(0)

    def close_request(server: Server, request: socket.socket) -> None:
        Server.close_request(server, request)
        ended.release()

    with (
        Gate() as gate,
        serving(made(handler(lambda _: gate()), max_workers=1, max_queue=1, close_request=close_request)) as server,
        closing(connect(server)),
        Gate() as held,
    ):
        gate.await_begun()
        with closing(connect(server)):
            eventually(lambda: len(server.pool_handlers) == 2)
            server.service_actions = held
            held.await_begun()
            with closing(connect(server)) as refused:
                refused.sendall(b"a request that nobody will read")
                held.open()
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
def test_an_executor_that_was_shut_down_refuses_and_says_so_once_a_second(
    executor_type: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pool = executor_type()
    pool.shutdown()
    with serving(made(executor=pool)) as server:
        server.pool_handlers._refusals._clock = Clock()
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
    assert threads[0] is threads[1] and threads[0].name.startswith("Server_")


@pytest.mark.parametrize(
    ("hook", "error", "told"),
    [
        ("handle_error", Boom(), "handle_error failed"),
        ("handle_error", SystemExit(4), "handle_error failed"),
        ("shutdown_request", Boom(), "could not be shut down"),
    ],
)
def test_a_hook_that_raises_in_a_worker_costs_nothing(
    hook: str, error: BaseException, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    def worse(self: Server, request: Any, client_address: Any = None) -> None:
        if hook == "shutdown_request":
            Server.shutdown_request(self, request)
        raise error

    with serving(made(handler(lambda _: 1 / 0), max_workers=1, **{hook: worse})) as server:
        assert [ask(server), ask(server)] == [b"", b""]
        assert server.join(TIMEOUT)
    assert [record.name for record in caplog.records] == [LOGGER] * 2
    assert caplog.text.count(told) == 2


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
def test_connections_whose_handlers_are_cancelled_are_refused_and_an_error_of_that_is_handled(
    executor_type: Any,
) -> None:
    class Noting(Server):
        executor = executor_type(1)

        def refuse_request(self, request: Any, client_address: Any) -> None:
            super().refuse_request(request, client_address)
            raise Boom

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
        eventually(lambda: len(server.errors) == 3)
        assert len(server.pool_handlers) == 1
        gate.open()
        assert read_all(busy) == b""
    assert {type(error) for error in server.errors} == {Boom}
