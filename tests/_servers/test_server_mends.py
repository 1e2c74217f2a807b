"""Servers whose end, or that of their handlers, comes at an awkward moment; what they accept and share."""

from __future__ import annotations

import errno
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import CodeType, FrameType
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Boom, Gate, eventually
from support.httpserver import Client, Quiet
from support.httpserver import serving as serving_http
from support.server import (
    LOOPBACK,
    Echo,
    Server,
    ask,
    closing_server,
    connect,
    handler,
    looping,
    made,
    read_all,
    serving,
)

from ebbpool import AdaptiveExecutor
from ebbpool._servers import serve_loop
from ebbpool._servers.mixin import AdaptivePoolMixIn
from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolTCPServer, AdaptivePoolUDPServer


class Meddling(Executor):
    """Has something done in the midst of each submission, as a signal handler may."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.call = call

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.call()
        return self.pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.pool.shutdown(wait, cancel_futures=cancel_futures)


class Answering(socketserver.BaseRequestHandler):
    """Answers whoever has a connection."""

    def handle(self) -> None:
        if isinstance(self.request, socket.socket):
            self.request.recv(1000)
            self.request.sendall(b"served")


@pytest.mark.parametrize("base", [AdaptivePoolTCPServer, AdaptivePoolUDPServer, AdaptivePoolHTTPServer])
@pytest.mark.parametrize("looped", [True, False])
def test_a_server_may_be_closed_in_the_midst_of_a_submission(base: Any, looped: bool) -> None:
    class Closing(base):  # type: ignore[misc]
        shutdown_timeout = TIMEOUT

    def close() -> None:
        if looped:
            server.shutdown()
        server.server_close()

    with Meddling(close) as executor:
        Closing.executor = executor
        server = Closing(LOOPBACK, Answering)
        datagrams = base is AdaptivePoolUDPServer
        client = socket.socket(type=socket.SOCK_DGRAM) if datagrams else connect(server)
        client.settimeout(TIMEOUT)
        with closing(client):
            if datagrams:
                client.connect(server.server_address)
            client.send(b"GET / HTTP/1.0\r\n\r\n")
            serving = Background(server.serve_forever if looped else server.handle_request)
            serving.join()
            if not datagrams:
                assert client.recv(100) == b"served"
        assert server.socket.fileno() == -1


def test_a_pool_of_the_servers_own_may_be_closed_in_the_midst_of_a_submission() -> None:
    server = made(handler(lambda request: request.request.sendall(b"served")))
    pool: Any = server.pool_handlers.executor
    submit = pool.submit

    def meddling(*args: Any) -> Any:
        server.server_close()
        return submit(*args)

    pool.submit = meddling
    with closing(connect(server)) as client:
        Background(server.serve_forever).join()
        assert read_all(client) == b"served"
    assert server.socket.fileno() == -1 and pool._shutdown


def test_a_loop_that_was_told_to_close_its_server_says_which_handlers_still_run() -> None:
    with Gate() as gate:
        server = made(
            handler(lambda _: gate()),
            shutdown_timeout=0.01,
            service_actions=lambda self: self.server_close() if len(self.pool_handlers) else None,
        )
        with closing(connect(server)), pytest.raises(TimeoutError, match=r"after 0.01 s these handlers still run"):
            server.serve_forever(0.001)
        gate.open()
    server.shutdown_timeout = TIMEOUT
    server.server_close()


def shut_down_at(code: CodeType, moment: int) -> bool:
    """Have the loop's own thread shut its server down at a line of `code`; tell whether it came to that line."""
    moments: list[int] = []

    def watch(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not code:
            return None
        if event in ("line", "return"):
            moments.append(frame.f_lineno)
            if len(moments) == moment + 1:
                server.shutdown()
        return watch

    def serve() -> None:
        sys.settrace(watch)
        try:
            server.serve_forever(0.001)
        finally:
            sys.settrace(None)

    with closing_server(made(service_actions=lambda self: self.shutdown())) as server:
        Background(serve).join()
    return len(moments) > moment


@pytest.mark.parametrize("name", ["__enter__", "_end"])
def test_the_loops_own_thread_may_shut_it_down_at_any_moment(name: str) -> None:
    code = getattr(serve_loop.Loop, name).__code__
    # Before the first line of one there is no loop yet, and after the last one of the other there is none any more.
    moment = 1 if name == "__enter__" else 0
    while shut_down_at(code, moment):
        moment += 1
    assert moment > 5


@pytest.mark.parametrize("again", [False, True])
def test_a_shutdown_sees_the_end_of_its_loop_though_the_next_one_has_begun(again: bool) -> None:
    loop = serve_loop.Loop()
    loop.__enter__()
    stopping = Background(loop.stop)
    eventually(lambda: loop.stopping)
    with loop._ended:
        loop.__exit__()
        if again:
            loop.__enter__()
    stopping.join()
    loop.__exit__()


def test_a_loop_that_begins_while_the_last_one_goes_is_known_for_one() -> None:
    loop, gate = serve_loop.Loop(), Gate()
    following: list[Background] = []

    def follow() -> bool:
        with loop:
            gate()
            return loop.is_mine

    class Telling(threading.Condition):
        """Whoever waits for the end of the first loop begins another one, before the first one's thread goes on."""

        def __exit__(self, *args: object) -> None:
            super().__exit__(*args)
            if not following:
                following.append(Background(follow))
                gate.await_begun()

    loop._ended = Telling(threading.RLock())
    with gate, loop:
        pass
    assert following[0].join()
    assert not loop.runs


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


def test_a_request_whose_handler_is_cancelled_is_answered() -> None:
    class Waiting(Quiet):
        def do_GET(self) -> None:
            self.reply(gate(b"served"))

    with (
        AdaptiveExecutor(1) as pool,
        Gate() as gate,
        serving_http(Waiting, executor=pool) as server,
        Client(server) as busy,
        Client(server) as queued,
    ):
        busy.get()
        gate.await_begun()
        queued.get()
        eventually(lambda: len(server.pool_handlers) == 2)
        pool.shutdown(wait=False, cancel_futures=True)
        answer = queued.response()
        assert answer.status == 503 and answer.headers["retry-after"] == "1"
        assert queued.ended() and len(server.pool_handlers) == 1
        gate.open()
        assert busy.body() == b"served"


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


def test_each_connection_is_handed_over_before_a_get_request_of_the_users_own_is_called_again() -> None:
    seen: list[str] = []

    class Noting(Server):
        def get_request(self) -> Any:
            seen.append("get")
            return super().get_request()

        def process_request(self, request: Any, client_address: Any) -> None:
            seen.append("process")
            super().process_request(request, client_address)

    with closing_server(Noting(LOOPBACK, Echo)) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(connect(server))) for _ in range(3)]
        for client in clients:
            client.shutdown(socket.SHUT_WR)
        with looping(server):
            assert [read_all(client) for client in clients] == [b""] * 3
    assert seen[:6] == ["get", "process"] * 3


@pytest.mark.parametrize("where", [Server, AdaptivePoolMixIn])
def test_what_accepting_raises_costs_nothing_that_was_accepted(where: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    accepts = AdaptivePoolMixIn.get_request
    taken: list[Any] = []

    def get_request(self: Any) -> Any:
        if len(taken) == 2:
            raise KeyboardInterrupt
        taken.append(accepts(self))
        return taken[-1]

    monkeypatch.setattr(where, "get_request", get_request, raising=False)
    with closing_server(made()) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(connect(server))) for _ in range(3)]
        for client in clients:
            client.sendall(b"hello")
            client.shutdown(socket.SHUT_WR)
        with pytest.raises(KeyboardInterrupt):
            server.serve_forever()
        assert [read_all(client) for client in clients[:2]] == [b"hello"] * 2


def test_what_handing_over_raises_costs_one_connection() -> None:
    seen: list[Any] = []

    def verify(self: Server, request: Any, client_address: Any) -> bool:
        seen.append(client_address)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return True

    with closing_server(made(verify_request=verify)) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(connect(server))) for _ in range(4)]
        for client in clients:
            client.sendall(b"hello")
            client.shutdown(socket.SHUT_WR)
        with pytest.raises(KeyboardInterrupt):
            server.serve_forever()
        assert [read_all(client) for client in clients if client is not clients[1]] == [b"hello"] * 3
        assert seen == [client.getsockname() for client in clients]


def test_a_base_behind_the_mix_in_accepts_in_its_own_way() -> None:
    class Base(socketserver.TCPServer):
        def get_request(self) -> Any:
            calls.append("accepted")
            return super().get_request()

    class Mixed(AdaptivePoolMixIn, Base):
        pass

    calls: list[str] = []
    with serving(Mixed(LOOPBACK, Echo)) as server:
        assert ask(server, b"hello") == b"hello"
    assert "accepted" in calls


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


def test_the_mode_of_a_listener_that_is_shared_is_left_alone() -> None:
    class Listener(socket.socket):
        def setblocking(self, flag: bool) -> None:
            modes.append(flag)
            super().setblocking(flag)

        def settimeout(self, value: float | None) -> None:
            modes.append(value)
            super().settimeout(value)

    for base in (AdaptivePoolTCPServer, AdaptivePoolHTTPServer):
        listener = Listener()
        listener.bind(LOOPBACK)
        listener.listen()
        modes: list[Any] = []
        with base.from_socket(listener, Answering) as server, looping(server):
            assert ask(server, b"GET / HTTP/1.0\r\n\r\n").endswith(b"served")
        assert modes == [False]


def test_an_accept_that_fails_after_others_begins_a_new_spell() -> None:
    class Failing(Server):
        count = 0

        def get_request(self) -> Any:
            self.count += 1
            if self.count == 2:
                raise OSError(errno.EMFILE, "too many")
            return super().get_request()

    with serving(Failing(LOOPBACK, Echo)) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(connect(server))) for _ in range(3)]
        for client in clients:
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == b""
        eventually(lambda: server._shortage.pause == 0)
