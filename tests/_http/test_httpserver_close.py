"""How the HTTP server ends: at once where nothing is under way, in order where something is."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from support.common import STACKS, TIMEOUT, Background, Gate, eventually
from support.httpserver import Client, Clock, Echo, porter, serving

from ebbpool._http.frontdoor import GRACE
from ebbpool._stdio import wait_for
from ebbpool.socketserver import AdaptivePoolHTTPServer


def gated(gate: Gate) -> type[Echo]:
    """Return a handler whose GET of /wait waits."""

    class Gated(Echo):
        def do_GET(self) -> None:
            if self.path == "/wait":
                gate()
            super().do_GET()

    return Gated


class Running:
    """A server whose end the test decides."""

    def __init__(self, handler: Any, **attributes: Any) -> None:
        made: Any = type("Server", (AdaptivePoolHTTPServer,), attributes)
        self.server = made(("127.0.0.1", 0), handler)
        self.loop = Background(self.server.serve_forever)

    def stop(self) -> None:
        self.server.shutdown()
        self.loop.join()


def test_shutdown_returns_though_handlers_run() -> None:
    with Gate() as gate:
        running = Running(gated(gate))
        with Client(running.server) as client, Client(running.server) as idle:
            assert idle.get().body() == b"/"
            client.get("/wait")
            gate.await_begun()
            running.stop()
            gate.open()
            # It is answered, and not kept.
            assert client.body() == b"/wait"
            assert client.ended()
            running.server.server_close()
            assert idle.ended()


def test_server_close_ends_what_is_idle_and_finishes_what_is_not() -> None:
    with Gate() as gate:
        running = Running(gated(gate), max_workers=1)
        with Client(running.server) as busy, Client(running.server) as queued, Client(running.server) as idle:
            assert idle.get().body() == b"/"
            busy.get("/wait")
            gate.await_begun()
            queued.send(b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n")
            eventually(lambda: running.server.pool_handlers.executor.stats().queued == 1)
            running.stop()
            closing = Background(running.server.server_close)
            assert idle.ended()
            assert closing.still_waits()
            with pytest.raises(OSError):
                Client(running.server)
            gate.open()
            assert busy.body() == b"/wait"
            assert [queued.body(), queued.body()] == [b"/1", b"/2"]
            assert busy.ended() and queued.ended()
            closing.join()


def test_server_close_reads_a_request_to_its_end() -> None:
    running = Running(Echo)
    with Client(running.server) as half, Client(running.server) as idle:
        half.send(b"GET /half HT")
        assert idle.get().body() == b"/"
        eventually(lambda: any(connection.request.data for connection in running.server._door.reading.held.values()))
        running.stop()
        closing = Background(running.server.server_close)
        assert idle.ended()
        assert closing.still_waits()
        half.send(b"TP/1.1\r\n\r\n")
        assert half.body() == b"/half"
        assert half.ended()
        closing.join()


def test_server_close_serves_a_request_that_came_to_an_idle_connection() -> None:
    running = Running(Echo)
    with Client(running.server) as client:
        assert client.get().body() == b"/"
        assert running.server.join(TIMEOUT)
        running.stop()
        [connection] = running.server._door.idle.held.values()
        client.get("/late")
        eventually(lambda: wait_for(connection, False, 0))
        running.server.server_close()
        assert client.body() == b"/late"
        assert client.ended()


def test_server_close_does_not_wait_long_for_requests_that_may_come() -> None:
    with porter() as keeper, Client(keeper.server) as silent:
        keeper.hold(keeper.door.reading, 1)
        keeper.door.shut()
        closing = Background(keeper.server.server_close)
        assert closing.still_waits()
        keeper.clock.now += GRACE
        assert silent.ended()
        closing.join()


def test_server_close_gives_up_on_slow_clients_at_its_deadline() -> None:
    with porter(shutdown_timeout=5) as keeper, Client(keeper.server) as slow:
        slow.send(b"GET ")
        keeper.until(lambda: any(connection.request.data for connection in keeper.door.reading.held.values()))
        keeper.door.shut()
        closing = Background(keeper.server.server_close)
        eventually(lambda: keeper.door._closed)
        keeper.clock.now += 4.9
        assert closing.still_waits()
        keeper.clock.now += 0.2
        assert slow.ended()
        closing.join()


def test_slow_clients_and_handlers_share_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    granted = []
    monkeypatch.setattr("ebbpool._http.server.monotonic", clock)
    with porter(shutdown_timeout=5) as keeper:

        def close(patience: float | None) -> None:
            granted.append(patience)
            clock.now += 4

        monkeypatch.setattr(keeper.door, "close", close)
        monkeypatch.setattr(keeper.server.pool_handlers, "close", granted.append)
        keeper.server.server_close()
        assert granted == [5, 1]
        monkeypatch.undo()


def test_server_close_names_the_handlers_that_block() -> None:
    with Gate() as gate:
        running = Running(gated(gate), shutdown_timeout=0.05)
        with Client(running.server) as client:
            client.get("/wait")
            gate.await_begun()
            running.stop()
            with pytest.raises(TimeoutError, match="do_GET" if STACKS else "no stack") as caught:
                running.server.server_close()
            assert str(client.socket.getsockname()) in str(caught.value)
            gate.open()
            assert client.body() == b"/wait"


def test_server_close_without_waiting() -> None:
    with Gate() as gate:
        running = Running(gated(gate), block_on_close=False)
        with Client(running.server) as client, Client(running.server) as half:
            client.get("/wait")
            half.send(b"GET")
            gate.await_begun()
            running.stop()
            running.server.server_close()
            assert half.ended()
            gate.open()
            assert client.body() == b"/wait"


def test_server_close_twice_and_without_a_loop() -> None:
    server = AdaptivePoolHTTPServer(("127.0.0.1", 0), Echo)
    server.server_close()
    server.server_close()
    running = Running(Echo)
    running.stop()
    running.server.server_close()
    running.server.server_close()


def test_server_close_ends_a_loop_that_runs() -> None:
    running = Running(Echo)
    with Client(running.server) as client:
        assert client.get().body() == b"/"
        running.server.server_close()
        running.loop.join()
        assert client.ended()


def test_server_close_from_within_the_loop() -> None:
    class Closing(AdaptivePoolHTTPServer):
        closing = False

        def service_actions(self) -> None:
            if self.closing:
                self.server_close()

    server = Closing(("127.0.0.1", 0), Echo)
    loop = Background(lambda: server.serve_forever(0.01))
    with Client(server) as client, Client(server) as half:
        half.send(b"GET")
        assert client.get().body() == b"/"
        server.closing = True
        loop.join()
        assert client.ended()
        assert half.ended()


def test_the_port_is_free_at_once() -> None:
    with serving(Echo) as server, Client(server) as client:
        assert client.get("/", "Connection: close").body() == b"/"
        address = server.server_address
    with AdaptivePoolHTTPServer(address, Echo):
        pass


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match=str(other.getsockname()[1])):
        AdaptivePoolHTTPServer(other.getsockname(), Echo)


def test_no_descriptor_is_left() -> None:
    def descriptors() -> int:
        with socket.socket() as probe:
            return probe.fileno()

    before, threads = descriptors(), set(threading.enumerate())
    for _ in range(3):
        with serving(Echo) as server, Client(server) as client, Client(server):
            assert client.get().body() == b"/"
        del server, client
    # What tests before this one have left may still come free.
    assert descriptors() <= before
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.name.startswith("Server")]
