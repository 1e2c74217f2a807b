"""The loop of a server: how it ends, and what may end it at an awkward moment."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from types import CodeType, FrameType
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Gate, eventually
from support.server import LOOPBACK, Held, ask, closing_server, connect, handler, looping, made, read_all, serving

from ebbpool._servers import serve_loop
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
        with (
            closing(connect(server)),
            pytest.raises(TimeoutError, match="these handlers are still running"),
        ):
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


def test_service_actions_are_called_while_nothing_happens() -> None:
    called = threading.Semaphore(0)
    with serving(made(service_actions=lambda _: called.release()), poll_interval=0.001):
        assert all(called.acquire(timeout=TIMEOUT) for _ in range(3))


def test_shutdown_does_not_wait_for_the_poll_interval() -> None:
    with serving(made(), poll_interval=3600) as server:
        assert ask(server, b"hello") == b"hello"


@pytest.mark.parametrize("runs", [1, 2])
def test_shutdown_waits_for_the_end_of_the_loop(runs: int) -> None:
    with closing_server(made()) as server:
        for _ in range(runs):
            with Held(server) as held:
                loop = Background(lambda: server.serve_forever(0.001))
                held.await_held()
                stopping = Background(server.shutdown)
                assert stopping.still_waits()
                held.let_go()
                stopping.join()
                loop.join()


def test_a_loop_that_was_shut_down_may_be_run_again() -> None:
    with closing_server(made()) as server:
        for message in (b"once", b"twice"):
            with looping(server):
                assert ask(server, message) == message
            assert server.socket.getblocking()


def test_a_shutdown_that_comes_first_ends_the_loop_that_comes_next() -> None:
    with closing_server(made()) as server:
        stopping = Background(server.shutdown)
        assert stopping.still_waits()
        server.serve_forever(3600)
        stopping.join()


def test_the_loop_may_shut_itself_down() -> None:
    with closing_server(made(service_actions=lambda self: self.shutdown())) as server:
        server.serve_forever(0.001)


def test_a_loop_whose_listener_is_closed_ends() -> None:
    server = made()
    loop = Background(lambda: server.serve_forever(0.001))
    assert ask(server, b"hello") == b"hello"
    server.server_close()
    loop.join()
