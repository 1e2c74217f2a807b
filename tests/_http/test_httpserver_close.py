"""How the HTTP server ends: at once where nothing is under way, in order where something is."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Boom, Gate, eventually
from support.httpserver import Client, Clock, Echo, frontdoor, gated, httpserver, porter, serving, wait_for
from support.server import LOOPBACK

from ebbpool.socketserver import AdaptivePoolHTTPServer


def test_shutdown_and_server_close_end_what_is_idle_and_finish_what_is_not() -> None:
    with (
        Gate() as gate,
        serving(gated(gate), max_workers=1) as server,
        Client(server) as busy,
        Client(server) as queued,
        Client(server) as idle,
    ):
        assert idle.get().body() == b"/"
        busy.get("/wait")
        gate.await_begun()
        queued.send(b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n")
        eventually(lambda: server.pool_handlers.executor.stats().queued == 1)
        server.shutdown()
        closing = Background(server.server_close)
        assert idle.ended()
        assert closing.still_waits()
        with pytest.raises(OSError):
            Client(server)
        gate.open()
        assert busy.body() == b"/wait"
        assert [queued.body(), queued.body()] == [b"/1", b"/2"]
        # They are answered, and not kept.
        assert busy.ended() and queued.ended()
        closing.join()


def test_server_close_reads_a_request_to_its_end() -> None:
    with serving(Echo) as server, Client(server) as half, Client(server) as idle:
        half.send(b"GET /half HT")
        assert idle.get().body() == b"/"
        eventually(lambda: any(connection.data for connection in server._door.reading.held.values()))
        server.shutdown()
        closing = Background(server.server_close)
        assert idle.ended()
        assert closing.still_waits()
        half.send(b"TP/1.1\r\n\r\n")
        assert half.body() == b"/half"
        assert half.ended()
        closing.join()


def test_server_close_serves_a_request_that_came_to_an_idle_connection() -> None:
    with serving(Echo) as server, Client(server) as client:
        assert client.get().body() == b"/"
        assert server.join(TIMEOUT)
        server.shutdown()
        [connection] = server._door.idle.held.values()
        client.get("/late")
        eventually(lambda: wait_for(connection, False, 0))
        server.server_close()
        assert client.body() == b"/late"
        assert client.ended()


def test_server_close_does_not_wait_long_for_requests_that_may_come_and_gives_up_on_slow_clients() -> None:
    with porter(shutdown_timeout=5) as keeper, Client(keeper.server) as slow, Client(keeper.server) as silent:
        keeper.hold(keeper.door.reading, 2)
        slow.send(b"GET ")
        keeper.until(lambda: any(connection.data for connection in keeper.door.reading.held.values()))
        keeper.door.shut()
        closing = Background(keeper.server.server_close)
        eventually(lambda: keeper.door._closed)
        assert closing.still_waits() and len(keeper.door.reading.held) == 2
        keeper.clock.now += frontdoor.GRACE
        assert silent.ended()
        keeper.clock.now += 4.9 - frontdoor.GRACE
        assert closing.still_waits()
        keeper.clock.now += 0.2
        assert slow.ended()
        closing.join()


def test_slow_clients_and_handlers_share_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    granted = []
    monkeypatch.setattr(httpserver, "monotonic", clock)
    with porter(shutdown_timeout=5) as keeper:

        def close(patience: float | None) -> None:
            granted.append(patience)
            clock.now += 4

        monkeypatch.setattr(keeper.door, "close", close)
        monkeypatch.setattr(keeper.server.pool_handlers, "close", granted.append)
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


def test_server_close_without_a_loop_and_twice() -> None:
    server = AdaptivePoolHTTPServer(("127.0.0.1", 0), Echo)
    server.server_close()
    server.server_close()


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


def test_server_close_from_within_the_loop() -> None:
    server = AdaptivePoolHTTPServer(LOOPBACK, Echo)
    loop = Background(lambda: server.serve_forever(0.01))
    with Client(server) as client, Client(server) as half:
        half.send(b"GET")
        assert client.get().body() == b"/"
        server.service_actions = server.server_close  # type: ignore[method-assign]
        loop.join()
        assert client.ended()
        assert half.ended()


def test_no_descriptor_is_left_and_the_port_is_free_at_once() -> None:
    def descriptors() -> int:
        with socket.socket() as probe:
            return probe.fileno()

    before, threads = descriptors(), set(threading.enumerate())
    for _ in range(3):
        with serving(Echo) as server, Client(server) as client, Client(server) as idle, Client(server):
            assert client.get("/", "Connection: close").body() == idle.get().body() == b"/"
            address = server.server_address
        with AdaptivePoolHTTPServer(address, Echo):
            pass
        del server, client, idle
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
        for connection in keeper.door.reading.held.values():
            assert socket.socket.gettimeout(connection) is None
            assert connection.gettimeout() == TIMEOUT
            assert os.get_blocking(connection.fileno())
        with pytest.raises(BlockingIOError):
            connection.receive()
        assert keeper.answer(client.get()).body == b"/"
        assert keeper.answer(silent.get()).body == b"/"
