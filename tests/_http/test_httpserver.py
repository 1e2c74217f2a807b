"""The HTTP server: connections that are kept, the hooks of its bases, real clients, and how it ends."""

from __future__ import annotations

import inspect
import socket
import socketserver
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Boom, Gate, eventually
from support.httpserver import Client, Clock, Echo, frontdoor, gated, pollers, porter, served, serving, wait_for
from support.server import LOOPBACK, handling, mixin, noting, over_tls, tls_client

from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolMixIn


@pytest.fixture(params=["best", "portable"])
def poller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with what this system has, and with what every system has."""
    if request.param == "portable":
        monkeypatch.setattr(pollers, "make_poller", pollers.SelectorPoller)
    return str(request.param)


def rooms(server: Any) -> dict[str, int]:
    door = server._door
    return {name: len(getattr(door, name).held) for name in ("reading", "filling", "idle", "lingering")}


@pytest.mark.usefixtures("poller")
def test_an_idle_connection_holds_no_worker() -> None:
    with serving(Echo, max_workers=1) as server:
        clients = [Client(server) for _ in range(20)]
        for client in clients:
            assert client.get().body() == b"/"
        eventually(lambda: rooms(server)["idle"] == 20)
        eventually(lambda: server.pool_handlers.executor.stats().running == 0)
        for client in reversed(clients):
            assert client.get("/again").body() == b"/again"
            client.close()


@pytest.mark.usefixtures("poller")
def test_pipelined_requests_are_answered_in_order() -> None:
    with serving(Echo) as server, Client(server) as client:
        client.send(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(50)))
        assert [client.body() for _ in range(50)] == [b"/%d" % number for number in range(50)]
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nonePOST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nt")
        assert client.body() == b"one"
        client.send(b"wo\r\n\r\nGET /th")
        assert client.body() == b"two"
        assert client.send(b"ree HTTP/1.1\r\n\r\n").body() == b"/three"
        client.send(b"GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: x\r\n\r\n")
        assert client.body() == b"/"
        assert client.response().status == 400, "a bad request behind a good one"
        assert client.ended()


def test_connections_end_when_client_or_handler_says_so() -> None:
    with serving(Echo) as server:
        with Client(server) as client:
            assert client.get("/", "Connection: close").body() == b"/"
            assert client.ended()
        with Client(server) as client:
            assert client.send(b"GET / HTTP/1.0\r\n\r\n").body() == b"/"
            assert client.ended()
        with Client(server) as client:
            client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert client.body() == b"/"
            assert client.get().body() == b"/"

    class Old(Echo):
        protocol_version = "HTTP/1.0"

    with serving(Old) as server, Client(server) as client:
        assert client.get().body() == b"/"
        assert client.ended()


def test_a_client_that_shuts_down_its_side_gets_its_answer() -> None:
    with Gate() as gate, serving(gated(gate)) as server, Client(server) as client:
        client.get("/wait").half_close()
        gate.await_begun()
        gate.open()
        assert client.body() == b"/wait"
        assert client.ended()


def test_a_client_that_leaves_in_the_middle_harms_nobody_and_its_request_is_not_run() -> None:
    with serving(Echo, max_workers=1) as server:
        for part in (b"", b"GET", b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"):
            with Client(server) as client:
                client.send(part)
            with Client(server) as client:
                client.send(part)
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            with Client(server) as client:
                client.send(part).half_close()
                assert not part or client.response().status == 400
                assert client.ended()
        assert server.pool_handlers.executor.stats().submitted == 0
        with Client(server) as client:
            assert client.get().body() == b"/"
            eventually(lambda: rooms(server) == {"reading": 0, "filling": 0, "idle": 1, "lingering": 0})


def test_hooks_are_called() -> None:
    once = ["process_request", "finish_request"]
    each = ["get_request", "verify_request", *once, "shutdown_request"]
    kind, calls = noting(AdaptivePoolHTTPServer, *each)
    with serving(Echo, kind) as server:
        with Client(server) as client:
            client.get().body()
            client.get().body()
        eventually(lambda: calls == [*each[:2], *once, *once, "shutdown_request"], str(calls))
        calls.clear()
        server.verify_request = lambda *_: False
        with Client(server) as client:
            assert client.ended()
        eventually(lambda: calls == ["get_request", "shutdown_request"])


@pytest.mark.parametrize("hook", ["get_request", "verify_request"])
def test_a_hook_may_read_what_comes_before_the_request(hook: str) -> None:
    lines: list[bytes] = []

    def read(request: Any) -> None:
        with request.makefile("rb", 0) as file:
            lines.append(file.readline())

    class Proxied(AdaptivePoolHTTPServer):
        def get_request(self) -> Any:
            request, address = super().get_request()
            if hook == "get_request":
                request.setblocking(True)
                read(request)
            return request, address

        def verify_request(self, request: Any, client_address: Any) -> bool:
            if hook == "verify_request":
                read(request)
            return True

    with serving(Echo, Proxied) as server, Client(server) as client:
        client.send(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n")
        assert client.get().body() == b"/"
        assert lines == [b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"]


def test_a_plain_get_request_and_one_that_waits_for_nobody() -> None:
    class Plain(AdaptivePoolHTTPServer):
        def get_request(self) -> Any:
            return self.socket.accept()

        # No pool, no keeping.
        process_request = socketserver.BaseServer.process_request

    with serving(Echo, Plain) as server, Client(server) as client:
        assert client.get().body() == b"/"
        assert client.ended()


def test_handle_request_serves_a_connection_the_plain_way() -> None:
    class Telling(Echo):
        def do_PUT(self) -> None:
            self.reply(str(self.connection.gettimeout()).encode())

    with AdaptivePoolHTTPServer(("127.0.0.1", 0), Telling) as server:
        # After a loop, too.
        server.service_actions = server.shutdown
        server.serve_forever(0.001)
        with Client(server) as client:
            server.handle_request()
            for number in range(3):
                assert client.get(f"/{number}").body() == f"/{number}".encode()
            assert client.post(b"body").body() == b"body"
            assert client.send(b"PUT / HTTP/1.1\r\n\r\n").body() == b"30.0"
            client.send(b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert [client.body(), client.body()] == [b"/1", b"/2"]
            assert client.ended()


def test_a_connection_outlives_the_pause_between_two_loops() -> None:
    with AdaptivePoolHTTPServer(("127.0.0.1", 0), Echo) as server, Client(server) as client:
        server.socket.settimeout(3)
        for number in range(2):
            loop = Background(lambda: server.serve_forever(0.01))
            assert client.get(f"/{number}").body() == f"/{number}".encode()
            eventually(lambda: rooms(server)["idle"] == 1)
            server.shutdown()
            loop.join()
            assert server.socket.gettimeout() == 3


def test_a_tls_listener_is_served_the_plain_way() -> None:
    with (
        served(over_tls(AdaptivePoolHTTPServer(LOOPBACK, Echo))) as server,
        closing(tls_client(server)) as client,
        client.makefile("rb") as file,
    ):
        client.sendall(b"GET /tls HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert b"/tls" in file.read()


@pytest.mark.parametrize("name", ["process_request", "process_request_thread", "refuse_request"])
def test_an_override_may_pass_its_arguments_on_by_name(name: str) -> None:
    ours, base = (inspect.signature(getattr(kind, name)) for kind in (AdaptivePoolHTTPServer, AdaptivePoolMixIn))
    assert list(ours.parameters) == list(base.parameters)


def url(server: Any, path: str = "/") -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def test_httpx_from_many_threads_with_bodies_of_all_sizes() -> None:
    httpx = pytest.importorskip("httpx")
    with serving(Echo) as server:

        def ask(first: int) -> bool:
            # A client each: httpx's own pool of connections is not safe to share without a GIL.
            with httpx.Client(base_url=url(server), timeout=TIMEOUT, trust_env=False) as client:
                for number in range(first, 200, 8):
                    body = str(number).encode() * number
                    if client.get(f"/{number}").text != f"/{number}" or client.post("/", content=body).content != body:
                        return False
                large = bytes((0, 1, 65_536, 1_000_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000)[first])
                return client.post("/", content=large).content == large

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(ask, range(8)))


# How it ends: at once where nothing is under way, in order where something is.


def test_shutdown_and_server_close_end_what_is_idle_and_finish_what_is_not() -> None:
    with (
        Gate() as gate,
        serving(gated(gate), max_workers=1) as server,
        Client(server) as busy,
        Client(server) as queued,
        Client(server) as idle,
        Client(server) as half,
    ):
        half.send(b"GET /half HT")
        assert idle.get().body() == b"/"
        eventually(lambda: any(connection.data for connection in server._door.reading.held))
        busy.get("/wait")
        gate.await_begun()
        queued.send(b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n")
        eventually(lambda: server.pool_handlers.executor.stats().queued == 1)
        server.shutdown()
        closing = Background(server.server_close)
        assert idle.ended()
        with pytest.raises(OSError):
            Client(server)
        gate.open()
        assert busy.body() == b"/wait"
        assert [queued.body(), queued.body()] == [b"/1", b"/2"]
        half.send(b"TP/1.1\r\n\r\n")
        assert half.body() == b"/half"
        # They are answered, and not kept.
        assert busy.ended() and queued.ended() and half.ended()
        closing.join()


def test_server_close_serves_a_request_that_came_to_an_idle_connection() -> None:
    with serving(Echo) as server, Client(server) as client:
        assert client.get().body() == b"/"
        assert server.join(TIMEOUT)
        server.shutdown()
        [connection] = server._door.idle.held
        client.get("/late")
        eventually(lambda: wait_for(connection, False, 0))
        server.server_close()
        assert client.body() == b"/late"
        assert client.ended()


def test_server_close_does_not_wait_long_for_requests_that_may_come_and_gives_up_on_slow_clients() -> None:
    with porter(shutdown_timeout=5) as keeper, Client(keeper.server) as slow, Client(keeper.server) as silent:
        keeper.hold(keeper.door.reading, 2)
        slow.send(b"GET ")
        keeper.until(lambda: any(connection.data for connection in keeper.door.reading.held))
        keeper.door.shut()
        turned, turn = list[None](), keeper.door.turn
        vars(keeper.door)["turn"] = lambda seconds: turned.append(turn(seconds))
        closing = Background(keeper.server.server_close)

        def waits() -> bool:
            # The second turn to end from now on has begun after now, and the third shows that it was not the last.
            count = len(turned) + 3
            eventually(lambda: len(turned) >= count)
            return not closing.over.is_set()

        assert waits() and len(keeper.door.reading.held) == 2
        keeper.clock.now += frontdoor.GRACE
        assert silent.ended()
        keeper.clock.now += 4.9 - frontdoor.GRACE
        assert waits()
        keeper.clock.now += 0.2
        assert slow.ended()
        closing.join()


def test_clients_are_told_of_the_end_and_one_that_was_not_may_send_another_request() -> None:
    with Gate() as gate:

        class Slow(Echo):
            def do_PUT(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                gate()
                self.wfile.write(b"ok")

        with porter(Slow) as keeper, Client(keeper.server) as idle, Client(keeper.server) as begun:
            assert "connection" not in keeper.answer(idle.get()).headers
            keeper.hold(keeper.door.idle, 1)
            begun.send(b"PUT / HTTP/1.1\r\n\r\n")
            keeper.during(gate.await_begun)
            keeper.door.shut()
            closing = Background(keeper.server.server_close)
            eventually(lambda: keeper.door._closed)
            for client in (idle, begun):
                if client is begun:
                    gate.open()
                    untold = client.response()
                    assert untold.body == b"ok" and "connection" not in untold.headers
                last = client.get("/last").response()
                assert (last.body, last.headers["connection"]) == (b"/last", "close")
                assert client.ended()
            closing.join()


def test_a_client_whose_request_is_the_last_for_a_reason_of_the_server_s_is_told() -> None:
    with serving(Echo) as server, Client(server) as client:
        client.send(b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert client.response().headers["connection"] == "close"
        assert client.ended()


def test_slow_clients_and_handlers_share_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    granted = []
    for module in (mixin, handling):
        monkeypatch.setattr(module, "monotonic", clock)
    with porter(shutdown_timeout=5) as keeper:

        def close(timeout: float | None) -> None:
            granted.append(timeout)
            clock.now += 4

        monkeypatch.setattr(keeper.door, "close", close)
        monkeypatch.setattr(keeper.server.pool_handlers, "join", granted.append)
        with pytest.raises(TimeoutError, match="after 5 s these handlers are still running"):
            keeper.server.server_close()
        assert granted == [5, 1]
        monkeypatch.undo()


def test_server_close_without_waiting() -> None:
    with (
        Gate() as gate,
        serving(gated(gate), block_on_close=False) as server,
        Client(server) as client,
        Client(server) as half,
    ):
        client.get("/wait")
        half.send(b"GET")
        gate.await_begun()
        server.shutdown()
        server.server_close()
        assert half.ended()
        assert not server.join(0) and not server.pool_handlers.submit("nobody", print)
        gate.open()
        assert client.body() == b"/wait"
        assert server.join(TIMEOUT)


def test_a_request_that_came_before_the_end_is_answered() -> None:
    for _ in range(10):
        with serving(Echo) as server:
            client = Client(server).get()
        with client:
            assert client.body() == b"/"


def test_without_a_listener_connections_go_on() -> None:
    with serving(Echo) as server, Client(server) as client:
        assert client.get().body() == b"/"
        server.socket.close()
        # The loop notices at the first one, and has to be there for the second.
        assert client.get("/more").body() == b"/more"
        assert client.get("/again").body() == b"/again"


def test_no_descriptor_is_left_and_the_port_is_free_at_once() -> None:
    def descriptors() -> int:
        with socket.socket() as probe:
            return probe.fileno()

    before, threads = descriptors(), set(threading.enumerate())
    for _ in range(3):
        with serving(Echo) as server, Client(server) as client, Client(server) as idle, Client(server):
            assert client.get("/", "Connection: close").body() == idle.get().body() == b"/"
            address = server.server_address
        with AdaptivePoolHTTPServer(address, Echo) as unused:
            pass
        unused.server_close()
        assert unused.join(0)
        del server, client, idle, unused
    # What tests before this one have left may still come free.
    assert descriptors() <= before
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.name.startswith("Server")]


def test_a_connection_that_cannot_be_shut_down(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(AdaptivePoolHTTPServer):
        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            raise Boom

    with serving(Echo, Failing) as server:
        with Client(server) as client:
            assert client.get("/", "Connection: close").body() == b"/", "shut down by a worker"
            assert client.ended()
        with Client(server) as client:
            assert client.send(b"GET /").half_close().response().status == 400, "shut down by the loop"
            assert client.ended()
    assert caplog.text.count("could not be shut down") == 2


@pytest.mark.parametrize("hook", ["verify_request", "process_request"])
def test_an_interrupt_closes_the_connection_it_came_upon(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    with porter() as keeper, Client(keeper.server) as client:
        monkeypatch.setattr(keeper.server, hook, interrupted)
        client.get()
        with pytest.raises(KeyboardInterrupt):
            keeper.until(lambda: False)
        assert client.ended()


def test_connections_of_another_kind_are_served_the_plain_way() -> None:
    class Wrapped(socket.socket):
        pass

    class Other(AdaptivePoolHTTPServer):
        def get_request(self) -> Any:
            accepted, address = self.socket.accept()
            return Wrapped(accepted.family, accepted.type, accepted.proto, accepted.detach()), address

    with serving(Echo, Other, request_timeout=5) as server, Client(server) as client:
        for _ in range(2):
            assert client.get().body() == b"/"
        assert client.get("/", "Connection: close").body() == b"/"
        assert client.ended()


def test_a_default_time_out_does_not_make_the_loop_wait(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: socket.setdefaulttimeout(None))
    socket.setdefaulttimeout(TIMEOUT)
    with porter() as keeper, Client(keeper.server) as silent, Client(keeper.server) as client:
        keeper.hold(keeper.door.reading, 2)
        for connection in keeper.door.reading.held:
            assert connection.gettimeout() == TIMEOUT
        with pytest.raises(BlockingIOError):
            connection.receive()
        assert keeper.answer(client.get()).body == b"/"
        assert keeper.answer(silent.get()).body == b"/"
