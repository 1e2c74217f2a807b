"""The loop of a server: what it accepts, and what it lacks for that; how it ends, at whatever moment."""

from __future__ import annotations

import errno
import os
import socket
import socketserver
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import pytest
from support.common import TIMEOUT, Background, Gate, eventually, needs_stacks, output_of
from support.httpserver import Clock
from support.server import (
    LOOPBACK,
    Echo,
    Server,
    ask,
    connect,
    doors,
    failing_to_accept,
    loop_state,
    looping,
    made,
    noting,
    read_all,
    reset,
    serving,
)

from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolMixIn, AdaptivePoolTCPServer, AdaptivePoolUDPServer

LOGGER = "ebbpool.socketserver"


def test_each_connection_is_handed_over_before_a_get_request_of_the_users_own_is_called_again() -> None:
    kind, calls = noting(Server, "get_request", "process_request")
    with kind(LOOPBACK, Echo) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(connect(server))) for _ in range(3)]
        for client in clients:
            client.shutdown(socket.SHUT_WR)
        with looping(server):
            assert [read_all(client) for client in clients] == [b""] * 3
    assert calls == ["get_request", "process_request"] * 3


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


def test_the_loop_naps_after_a_burst_and_rarely_while_one_client_connects_again_and_again() -> None:
    door = doors.Door(None, mock.Mock())
    assert [door.naps_after(doors.BURST) for _ in range(3)] == [True] * 3
    assert [door.naps_after(doors.BURST - 1) for _ in range(3 * doors.LOOKS)].count(True) == 3


def test_a_client_that_resets_before_it_is_accepted_holds_nobody() -> None:
    with made() as server:
        reset(connect(server))
        with looping(server):
            assert ask(server, b"hello") == b"hello"


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_system_that_has_run_out_is_left_alone_for_a_while(
    error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doors, "BACK_OFF", 0.0001)
    clock = Clock()
    server = failing_to_accept(Server)(LOOPBACK, Echo)
    door = doors.Door(server)
    door._shortages._clock = clock
    server._entrance = lambda: door
    with serving(server):
        for _ in range(2):
            server.error, server.failures = error, 5
            # The loop may still have been accepting when it was told to fail, and have taken the first one.
            while server.failures:
                assert ask(server, b"hello") == b"hello"
            clock.now += 1
    # Once a second at most.
    told = f"cannot accept connections for now; new ones have to wait: [Errno {error}] out of something"
    assert caplog.messages == [told, f"{told} (5 times since this was last logged)"]
    assert not server.errors


def test_shutdown_does_not_wait_for_the_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "BACK_OFF", 3600.0)
    with failing_to_accept(Server)(LOOPBACK, Echo) as server:
        server.failures = 1
        turns: list[int] = []
        server.service_actions = lambda: turns.append(server.attempts)
        with looping(server, poll_interval=0.001), closing(connect(server)):
            eventually(lambda: turns.count(1) > 5)
        assert server.attempts == 1


def test_other_errors_of_accept_are_no_reason_to_wait(caplog: pytest.LogCaptureFixture) -> None:
    with serving(failing_to_accept(Server)(LOOPBACK, Echo), poll_interval=3600) as server:
        server.error, server.failures = errno.ECONNABORTED, 2
        assert ask(server, b"hello") == b"hello"
    assert not caplog.records


# How it ends.


class Answering(socketserver.BaseRequestHandler):
    """Answers whoever has a connection."""

    def handle(self) -> None:
        if isinstance(self.request, socket.socket):
            self.request.recv(1000)
            self.request.sendall(b"served")


@pytest.mark.parametrize("base", [AdaptivePoolTCPServer, AdaptivePoolUDPServer, AdaptivePoolHTTPServer])
@pytest.mark.parametrize("own", [True, False])
def test_a_server_may_be_shut_down_in_the_midst_of_a_submission(base: Any, own: bool) -> None:
    """A signal handler may do that, in the loop's thread."""
    with ThreadPoolExecutor(1) as pool:
        attributes = {"shutdown_timeout": TIMEOUT, "executor": None if own else pool}
        server = type("Closing", (base,), attributes)(LOOPBACK, Answering)
        executor: Any = server.pool_handlers.executor
        submit = executor.submit

        def meddling(*args: Any) -> Any:
            server.shutdown()
            with pytest.raises(RuntimeError, match=r"server_close\(\) cannot be called within serve_forever"):
                server.server_close()
            return submit(*args)

        executor.submit = meddling
        datagrams = base is AdaptivePoolUDPServer
        client = socket.socket(type=socket.SOCK_DGRAM) if datagrams else connect(server)
        with closing(client):
            if datagrams:
                client.connect(server.server_address)
            client.send(b"GET / HTTP/1.0\r\n\r\n")
            Background(server.serve_forever).join()
            if not datagrams:
                assert client.recv(100) == b"served"
        server.server_close()
        assert server.socket.fileno() == -1 and executor._shutdown == own


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

    with made(service_actions=lambda self: self.shutdown()) as server:
        Background(serve).join()
    return len(moments) > moment


def test_the_loops_own_thread_may_shut_it_down_at_any_moment() -> None:
    for code in loop_state.Loop.begin.__code__, loop_state.Loop.end.__code__:
        # Before the first line there is no loop yet, and after the last one there is none any more.
        moment = 1
        while shut_down_at(code, moment):
            moment += 1
        assert moment > 5


def interrupted_at(moment: int) -> bool:
    """Interrupt a loop at a line before it waits, and close its server at once; tell whether it came to that line."""
    moments: list[int] = []

    def watch(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is AdaptivePoolMixIn._entrance.__code__:
            sys.settrace(None)
        if os.path.basename(frame.f_code.co_filename) not in ("loop_state.py", "contextlib.py"):
            return None
        if event in ("line", "return"):
            moments.append(frame.f_lineno)
            if len(moments) == moment + 1:
                raise KeyboardInterrupt
        return watch

    with made(service_actions=lambda self: self.shutdown()) as server:
        server._loop  # noqa: B018 (what makes it is not what is tried here)
        sys.settrace(watch)
        try:
            server.serve_forever(0.001)
        except KeyboardInterrupt:
            sys.settrace(None)
            server.server_close()
            assert server.socket.fileno() < 0
        finally:
            sys.settrace(None)
    return len(moments) > moment


def test_a_server_whose_loop_was_interrupted_as_it_began_can_be_closed_before_the_interrupt_is_over() -> None:
    moment = 0
    while interrupted_at(moment):
        moment += 1
    assert moment > 5


@pytest.mark.parametrize("interval", [3600, None])
def test_shutdown_does_not_wait_for_the_poll_interval(interval: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "LONGEST", 2 * TIMEOUT)
    with serving(made(), poll_interval=interval) as server:
        assert ask(server, b"hello") == b"hello"
        Background(server.shutdown).join()


def test_shutdown_waits_for_the_end_of_the_loop_which_may_be_run_again() -> None:
    with made() as server:
        for message in (b"once", b"twice"):
            with Gate() as held:
                loop = Background(lambda: server.serve_forever(0.001))
                assert ask(server, message) == message
                server.service_actions = held  # type: ignore[method-assign]
                held.await_begun()
                stopping = Background(lambda: (server.shutdown(), server._loop.over.is_set())[1])
                eventually(lambda: server._loop.stopping)
                held.open()
                assert stopping.join()
                loop.join()
            assert server.socket.getblocking()


def test_a_shutdown_that_comes_first_ends_the_loop_that_comes_next() -> None:
    with made() as server:
        stopping = Background(server.shutdown)
        eventually(lambda: server._loop.stopping)
        server.serve_forever(3600)
        stopping.join()
        assert not server._loop.stopping


@pytest.mark.parametrize("base", [AdaptivePoolTCPServer, AdaptivePoolHTTPServer])
def test_a_loop_whose_listener_is_closed_ends(base: Any) -> None:
    server = base(LOOPBACK, Echo)
    loop = Background(lambda: server.serve_forever(0.001))
    asked = b"GET / HTTP/1.0\r\n\r\n"
    assert ask(server, asked) == asked
    server.server_close()
    loop.join()


STARTS_NO_THREAD = sys.version_info[:2] == (3, 12)
"""CPython 3.12 starts no thread once it has begun to exit."""
EXIT = f"""
    import socket, socketserver, sys, threading
    from concurrent.futures import ThreadPoolExecutor
    from ebbpool import AdaptiveExecutor
    from {loop_state.__package__} import loop_state
    from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolTCPServer

    # A thread may take longer than a second to begin the loop.
    loop_state.START_UP = 10.0

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            line = self.rfile.readline()
            if b"stop" in line:
                self.server.shutdown()
            self.wfile.write(b"served")

    def asked(server, line=b"GET / HTTP/1.0"):
        with socket.create_connection(server.server_address) as client:
            client.sendall(line + b"\\r\\n\\r\\n")
            return client.recv(100).decode()

    exiting = threading.Event()
    # Called before the package's own hook, which was registered earlier.
    threading._register_atexit(exiting.set)

    def after_main():
        exiting.wait(10)
        for _ in range(3):
            print(asked(server), flush=True)
"""


@pytest.mark.skipif(STARTS_NO_THREAD, reason="the server could start no worker")
@pytest.mark.parametrize(
    ("base", "executor", "end"),
    [
        ("AdaptivePoolTCPServer", "None", "server.shutdown()"),
        ("AdaptivePoolTCPServer", "None", "asked(server, b'stop')"),
        ("AdaptivePoolHTTPServer", "AdaptiveExecutor()", "server.shutdown()"),
        ("AdaptivePoolHTTPServer", "ThreadPoolExecutor()", "server.shutdown()"),
    ],
)
def test_a_loop_that_is_no_daemon_serves_on_after_the_main_thread(base: str, executor: str, end: str) -> None:
    lines = output_of(
        f"""
        class Server({base}):
            executor = {executor}
        server = Server(("127.0.0.1", 0), Handler)
        def end():
            after_main()
            {end}
        def serve():
            server.serve_forever()
            server.server_close()
            print("closed", flush=True)
        threading.Thread(target=end, daemon=True).start()
        threading.Thread(target=serve).start()
        """,
        EXIT,
    )
    assert lines == ["served"] * 3 + ["closed"]


ENDS = {
    "a thread that waits for the main thread may end a loop": (
        """
        server = AdaptivePoolTCPServer(("127.0.0.1", 0), Handler)
        def end():
            threading.main_thread().join()
            server.shutdown()
            print("shut down")
        threading.Thread(target=end).start()
        threading.Thread(target=server.serve_forever).start()
        """,
        ["shut down"],
    ),
    "a loop in a daemon thread ends before its pool": (
        """
        ended, begun = threading.Event(), threading.Event()
        class Waiting(socketserver.BaseRequestHandler):
            def handle(self):
                begun.set()
                print(ended.wait(10), flush=True)
        server = AdaptivePoolTCPServer(("127.0.0.1", 0), Waiting)
        def serve():
            server.serve_forever(3600)
            ended.set()
        threading.Thread(target=serve, daemon=True).start()
        client = socket.create_connection(server.server_address)
        begun.wait(10)
        """,
        ["True"],
    ),
    "a loop may yet begin while the server listens and a thread is alive that is no worker": (
        f"""
        from {loop_state.__name__} import _may_begin
        gate, begun = threading.Event(), threading.Semaphore(0)
        def hold():
            begun.release()
            gate.wait(10)
        pool, server = AdaptiveExecutor(), AdaptivePoolTCPServer(("127.0.0.1", 0), Handler)
        for start in (lambda: pool.submit(hold), threading.Thread(target=hold).start):
            start()
            begun.acquire(timeout=10)
            print(server._loop.expected, _may_begin())
        server.server_close()
        print(server._loop.expected, _may_begin())
        gate.set()
        """,
        ["True False", "True True", "False False"],
    ),
}


@pytest.mark.parametrize("what", [pytest.param(what, marks=needs_stacks if "waits" in what else ()) for what in ENDS])
def test_the_exit(what: str) -> None:
    script, expected = ENDS[what]
    assert output_of(script, EXIT) == expected
