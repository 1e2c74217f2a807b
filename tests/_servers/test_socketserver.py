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
from ebbpool._testing.seams import crew_of
from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolTCPServer, AdaptivePoolUDPServer

LOGGER = "ebbpool.socketserver"
UNIX = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")


def test_more_connections_than_are_accepted_at_once_are_all_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixin, "ACCEPTS", 3)
    served: list[Any] = []
    with (
        closing_server(made(handler(lambda request: served.append(request.client_address)), max_workers=1)) as server,
        ExitStack() as stack,
    ):
        # They are there before the loop looks for the first time.
        clients = [stack.enter_context(closing(connect(server))) for _ in range(10)]
        with looping(server):
            for client in clients:
                assert read_all(client) == b""
        assert served == [client.getsockname() for client in clients]


def test_handlers_run_in_workers_that_are_named_after_the_server() -> None:
    names: list[str] = []
    with serving(made(handler(lambda _: names.append(threading.current_thread().name)))) as server:
        ask(server)
    assert [name.rpartition("_")[0] for name in names] == ["Server"]


def test_the_knobs_are_class_attributes_or_are_set_before_the_server_is_activated() -> None:
    knobs = {"min_workers": 2, "max_workers": 200, "min_spare_workers": 20, "keep_alive": 3.0, "max_queue": 7}
    with closing_server(made(**knobs, daemon_threads=True, thread_stack_size=512 * 1024)) as server:
        pool: Any = server.pool_handlers.executor
        settings = pool._settings
        assert {name: getattr(settings, name) for name in knobs} == knobs
        crew = crew_of(pool)
        assert crew.daemon and pool._when_full == "reject" and crew.stack_size == 512 * 1024
    with closing_server(Server(LOOPBACK, Echo, bind_and_activate=False)) as server:
        server.max_workers = 3
        server.server_bind()
        server.server_activate()
        assert server.pool_handlers.executor._max_workers == 3


@pytest.mark.parametrize("executor_type", [AdaptiveExecutor, ThreadPoolExecutor])
def test_servers_share_an_executor_and_leave_it_alone(executor_type: type[ThreadPoolExecutor]) -> None:
    with executor_type(max_workers=4, thread_name_prefix="shared") as pool:
        names: list[str] = []
        note = handler(lambda _: names.append(threading.current_thread().name))
        with serving(made(note, executor=pool)) as one, serving(made(note, executor=pool)) as other:
            ask(one)
            ask(other)
            assert one.pool_handlers.executor is other.pool_handlers.executor is pool
        assert len(names) == 2 and all(name.startswith("shared_") for name in names)
        assert pool.submit(abs, -1).result(TIMEOUT) == 1


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


def test_a_lane_is_an_executor_too() -> None:
    with AdaptiveExecutor() as pool, serving(made(executor=pool.lane("web", limit=1))) as server:
        assert ask(server, b"hello") == b"hello"


def test_what_was_accepted_is_finished_after_the_listener_is_closed() -> None:
    with Gate() as gate:

        def answer(request: socketserver.BaseRequestHandler) -> None:
            gate()
            request.request.sendall(b"done")

        server = made(handler(answer), max_workers=1)
        with looping(server), ExitStack() as stack:
            clients = [stack.enter_context(closing(connect(server))) for _ in range(3)]
            gate.await_begun()
            eventually(lambda: len(server.pool_handlers) == 3)
            server.shutdown()
            closed = Background(server.server_close)
            eventually(lambda: server.socket.fileno() == -1)
            assert closed.still_waits()
            with pytest.raises(OSError):
                connect(server)
            gate.open()
            closed.join()
            assert [read_all(client) for client in clients] == [b"done"] * 3


def test_a_server_that_is_not_to_block_on_close_does_not() -> None:
    with Gate() as gate:
        server = made(handler(lambda _: gate()), block_on_close=False)
        with looping(server), closing(connect(server)) as client:
            gate.await_begun()
            server.shutdown()
            server.server_close()
            assert not server.join(0) and not server.pool_handlers.submit("nobody", print)
            gate.open()
            assert read_all(client) == b""
        assert server.join(TIMEOUT)


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
            assert joining.still_waits()
            gate.open()
            assert joining.join() is True
        assert ask(server) == b""


def test_the_hooks_of_a_subclass_keep_their_meaning() -> None:
    hooks = [*(f"{verb}_request" for verb in ("get", "verify", "process")), "process_request_thread"]
    hooks += [f"{verb}_request" for verb in ("finish", "shutdown", "close")]
    kind, calls = noting(Server, *hooks)
    with serving(kind(LOOPBACK, Echo)) as server:
        ask(server)
    assert calls == hooks


def test_handle_request_handles_one_request() -> None:
    with closing_server(made()) as server, closing(connect(server)) as first, closing(connect(server)) as second:
        first.sendall(b"first")
        first.shutdown(socket.SHUT_WR)
        server.handle_request()
        assert read_all(first) == b"first"
        assert server.join(TIMEOUT)
        second.sendall(b"second")
        second.shutdown(socket.SHUT_WR)
        server.handle_request()
        assert read_all(second) == b"second"


def test_join_takes_any_number_of_seconds_and_names_a_bad_one() -> None:
    with closing_server(made()) as server:
        assert server.join(-1) and server.join(float("inf")) and server.join(None)
        with pytest.raises(TypeError, match="timeout must be a number of seconds, not 'soon'"):
            server.join("soon")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout must be a number of seconds, not nan"):
            server.join(float("nan"))


def test_the_log_of_a_server_is_quiet_when_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, LOGGER), serving(made()) as server:
        assert ask(server, b"hello") == b"hello"
    assert not caplog.records


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


def test_from_socket_takes_the_listeners_family() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with serving(Server.from_socket(listener, Echo)) as server:
        assert server.address_family == socket.AF_INET6
        with closing(socket.create_connection(server.server_address[:2], TIMEOUT)) as client:
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == b""


def test_a_udp_server_answers_each_datagram() -> None:
    class Upper(socketserver.DatagramRequestHandler):
        def handle(self) -> None:
            self.wfile.write(self.rfile.read().upper())

    with serving(AdaptivePoolUDPServer(LOOPBACK, Upper)) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        client.settimeout(TIMEOUT)
        for message in (b"one", b"two", b""):
            client.sendto(message, server.server_address)
            assert client.recv(100) == message.upper()
        assert server.join(TIMEOUT)


def test_a_udp_server_drops_what_it_has_no_room_for() -> None:
    class Narrow(AdaptivePoolUDPServer):
        max_workers = 1
        max_queue = 0

    handled: list[bytes] = []
    with Gate() as gate:

        def handle(request: socketserver.BaseRequestHandler) -> None:
            handled.append(gate(request.request[0]))

        dropped = threading.Semaphore(0)
        server = Narrow(LOOPBACK, handler(handle))
        server.close_request = lambda _: dropped.release()  # type: ignore[method-assign]
        with serving(server), socket.socket(type=socket.SOCK_DGRAM) as client:
            client.sendto(b"first", server.server_address)
            gate.await_begun()
            client.sendto(b"second", server.server_address)
            assert dropped.acquire(timeout=TIMEOUT)
            gate.open()
    assert handled == [b"first"]


@UNIX
def test_a_unix_server_serves_at_its_path(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(ebbpool.socketserver.AdaptivePoolUnixStreamServer("listener", Echo)) as server:
        assert ask(server, b"hello") == b"hello"
        with pytest.raises(OSError, match="listener"):
            ebbpool.socketserver.AdaptivePoolUnixStreamServer("listener", Echo)


@UNIX
def test_a_unix_datagram_server_serves_at_its_path(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def answer(request: socketserver.BaseRequestHandler) -> None:
        data, server_socket = request.request
        server_socket.sendto(data, request.client_address)

    with (
        serving(ebbpool.socketserver.AdaptivePoolUnixDatagramServer("listener", handler(answer))),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client,
    ):
        client.settimeout(TIMEOUT)
        client.bind("client")
        client.sendto(b"hello", "listener")
        assert client.recv(100) == b"hello"


def line_by_line(request: socketserver.BaseRequestHandler) -> None:
    """Send back one line."""
    request.request.sendall(request.request.recv(100))


def test_a_client_that_does_not_shake_hands_or_fails_holds_up_nobody_else() -> None:
    with serving(over_tls(made(handler(line_by_line)))) as server, closing(connect(server)) as silent:
        eventually(lambda: len(server.pool_handlers) == 1)
        with closing(connect(server)) as garbled:
            garbled.sendall(b"GET / HTTP/1.0\r\n\r\n")
            eventually(lambda: not garbled.recv(1000))
        with closing(tls_client(server)) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
        silent.close()
    assert not server.errors


def test_a_client_that_never_shakes_hands_is_dropped_by_the_clock() -> None:
    told: list[float | None] = []
    work = handler(lambda request: (told.append(request.request.gettimeout()), line_by_line(request)))
    with serving(over_tls(made(work, max_workers=1, handshake_timeout=0.05))) as server:
        with closing(connect(server)) as silent:
            assert silent.recv(1000) == b""
        server.handshake_timeout = None
        with closing(tls_client(server)) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
    assert told == [None]
    assert not server.errors


def test_handle_request_serves_a_tls_listener_too() -> None:
    with closing_server(over_tls(made(handler(line_by_line)))) as server:
        asking = Background(lambda: tls_client(server))
        server.handle_request()
        with closing(asking.join()) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"


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


def test_a_request_that_is_not_verified_is_shut_down() -> None:
    with serving(made(verify_request=lambda *_: False)) as server:
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
