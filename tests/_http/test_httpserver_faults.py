"""What goes wrong beside and below the HTTP server: hooks, pollers, systems without poll."""

from __future__ import annotations

import errno
import logging
import math
import select
import socket
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Boom
from support.httpserver import Client, Echo, porter, serving

from ebbpool._http import poller
from ebbpool._http.connection import Connection, wait_for
from ebbpool._http.reader import RequestReader
from ebbpool._http.server import AdaptivePoolHTTPServer


def failing(*_: object) -> Any:
    raise OSError(errno.ENOMEM, "no room")


def test_a_poller_that_takes_no_more(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    made = poller.make_poller()
    with porter(Echo, made) as keeper:
        monkeypatch.setattr(made, "arm", failing)
        with Client(keeper.server) as waiting, caplog.at_level(logging.WARNING):
            assert keeper.end(waiting)
        assert "cannot wait for the connection of" in caplog.text
        with Client(keeper.server) as client:
            # Its request is there when it is accepted; only then its connection cannot be kept.
            assert keeper.answer(client.get()).body == b"/"
            assert keeper.end(client)
        monkeypatch.undo()
        with Client(keeper.server) as client:
            assert keeper.answer(client.get()).body == b"/"


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


def test_a_bell_that_was_rung_often() -> None:
    made = poller.SelectorPoller()
    for _ in range(100_000):
        made.wake()
    assert made.wait(0) == []
    made.wake()
    assert made.wait(TIMEOUT) == []
    made.close()
    made.wake()


def test_watching_twice_and_forgetting_twice() -> None:
    for made in (poller.make_poller(), poller.SelectorPoller()):
        one, other = socket.socketpair()
        with one, other:
            one.send(b"x")
            for _ in range(2):
                made.watch(other.fileno())
            assert made.wait(0) == made.wait(0) == [other.fileno()]
            for _ in range(2):
                made.forget(other.fileno())
            assert made.wait(0) == []
        made.close()


def test_a_system_without_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        monkeypatch.delattr(select, "poll", raising=False)
        assert not wait_for(one, False, 0)
        assert wait_for(one, True, math.inf)
        waiting = Background(lambda: wait_for(one, False, None))
        other.send(b"x")
        assert waiting.join()


def test_a_wait_that_is_longer_than_the_system_can() -> None:
    one, other = socket.socketpair()
    with one, other:
        other.send(b"x")
        assert wait_for(one, False, 1e300)


def test_the_end_of_the_connection_ends_the_body() -> None:
    lent, other = socket.socketpair()
    with Connection.adopt(lent) as connection, RequestReader(connection.request, connection) as file:
        other.sendall(b"one\ntwo")
        other.close()
        assert file.readline(None) == b"one\n"
        assert file.readline() == b"two"
        assert file.readline() == file.read() == b""
        assert connection.request.ended
