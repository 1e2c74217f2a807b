"""What goes wrong beside and below the HTTP server: hooks, sockets, and connections of another kind."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.common import TIMEOUT, Boom, Gate, eventually
from support.httpserver import Client, Echo, Quiet, porter, serving

from ebbpool import AdaptiveExecutor
from ebbpool.socketserver import AdaptivePoolHTTPServer


def test_hooks_that_fail_twice(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(AdaptivePoolHTTPServer):
        def verify_request(self, request: Any, client_address: Any) -> bool:
            raise Boom

        def handle_error(self, request: Any, client_address: Any) -> None:
            raise Boom("again")

    with serving(Echo, Failing) as server:
        for _ in range(2):
            with Client(server) as client:
                assert client.ended()
    assert "handle_error failed" in caplog.text


def test_a_connection_that_cannot_be_shut_down(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(AdaptivePoolHTTPServer):
        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            raise Boom

    with serving(Echo, Failing) as server:
        with Client(server) as client:
            assert client.get("/", "Connection: close").body() == b"/"
            assert client.ended()
        with Client(server) as client:
            assert client.send(b"GET /").half_close().response().status == 400
            assert client.ended()
        with Client(server) as client:
            assert client.get().body() == b"/"
    assert caplog.text.count("could not be shut down") >= 2


def test_an_accept_that_fails_is_tried_again() -> None:
    class Failing(AdaptivePoolHTTPServer):
        failures = 3

        def get_request(self) -> Any:
            if self.failures:
                self.failures -= 1
                raise ConnectionAbortedError
            return super().get_request()

    with serving(Echo, Failing) as server, Client(server) as client:
        assert client.get().body() == b"/"
        assert server.failures == 0


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


def test_a_request_whose_handler_is_cancelled_is_answered() -> None:
    class Waiting(Quiet):
        def do_GET(self) -> None:
            self.reply(gate(b"served"))

    with (
        AdaptiveExecutor(1) as pool,
        Gate() as gate,
        serving(Waiting, executor=pool) as server,
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


@pytest.fixture
def default_timeout() -> Iterator[float]:
    socket.setdefaulttimeout(TIMEOUT)
    yield TIMEOUT
    socket.setdefaulttimeout(None)


def test_a_default_time_out_does_not_make_the_loop_wait(default_timeout: float) -> None:
    with porter() as keeper, Client(keeper.server) as silent, Client(keeper.server) as client:
        keeper.hold(keeper.door.reading, 2)
        for connection in keeper.door.reading.held.values():
            assert socket.socket.gettimeout(connection) is None
            assert connection.gettimeout() == default_timeout
            assert os.get_blocking(connection.fileno())
        with pytest.raises(BlockingIOError):
            connection.receive()
        assert keeper.answer(client.get()).body == b"/"
        assert keeper.answer(silent.get()).body == b"/"


@pytest.mark.parametrize("limit", [None, 5.0])
def test_a_connection_that_was_taken_blocks_unless_the_handler_wanted_otherwise(limit: float | None) -> None:
    taken: list[int] = []

    class Taking(Quiet):
        timeout = limit

        def do_GET(self) -> None:
            taken.append(self.connection.detach())
            self.close_connection = True

    with serving(Taking) as server, Client(server) as client:
        client.get()
        eventually(lambda: taken)
        blocks = os.get_blocking(taken[0])
        socket.close(taken[0])
    assert blocks == (limit is None)
