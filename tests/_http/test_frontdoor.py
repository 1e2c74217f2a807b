"""The front door: slow and large requests, too many of them, too few descriptors; what waits for connections."""

from __future__ import annotations

import errno
import logging
import math
import os
import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
from support.common import LONG, TIMEOUT, Background, Gate, eventually, no_collector
from support.httpserver import (
    Bell,
    Client,
    Echo,
    connections,
    frontdoor,
    gated,
    pollers,
    porter,
    serving,
    stdio,
    wait_for,
)
from support.server import LOOPBACK

from ebbpool import AdaptiveExecutor
from ebbpool.socketserver import AdaptivePoolHTTPServer


@pytest.fixture(params=["best", "portable", "select"])
def poller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "select":
        monkeypatch.setattr(selectors, "DefaultSelector", selectors.SelectSelector)
    made = pollers.make_poller() if request.param == "best" else pollers.SelectorPoller()
    yield made
    made.close()


def test_a_slow_head_is_answered_408_by_the_clock_and_silence_by_silence(poller: Any) -> None:
    with (
        porter(Echo, poller, header_timeout=10) as keeper,
        Client(keeper.server) as client,
        Client(keeper.server) as silent,
    ):
        keeper.hold(keeper.door.reading, 2)
        for byte in b"GET / HTT":
            client.send(bytes([byte]))
            connection = keeper.oldest(keeper.door.reading)
            keeper.until(lambda: connection.data.endswith(bytes([byte])))  # noqa: B023  (used at once)
            keeper.pass_time(1)
        keeper.pass_time(0.9)
        assert len(keeper.door.reading.held) == 2
        keeper.pass_time(0.5)
        assert not keeper.door.reading.held
        assert keeper.answer(client).status == 408
        assert keeper.end(client) and keeper.end(silent)
        assert keeper.server.pool_handlers.executor.stats().submitted == 0


def test_a_body_may_take_its_time_while_it_comes_steadily_and_is_answered_408_by_the_clock(poller: Any) -> None:
    with porter(Echo, poller, header_timeout=10, body_timeout=20) as keeper, Client(keeper.server) as client:
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n")
        sent = 0
        # The last share is too small.
        for share in (10_000, 10_001, 9_999 - 100):
            client.send(bytes(share))
            sent += share
            keeper.hold(keeper.door.filling, 1)
            keeper.until(lambda: keeper.oldest(keeper.door.filling).data.endswith(bytes(sent)))  # noqa: B023
            keeper.pass_time(19.9)
            assert len(keeper.door.filling.held) == 1
            keeper.pass_time(0.3)
            assert len(keeper.door.filling.held) == (share >= 10_000)
        assert keeper.answer(client).status == 408
        assert keeper.end(client)


def test_without_any_time_for_bodies_one_that_is_not_here_is_answered_408() -> None:
    with porter(body_timeout=0) as keeper, Client(keeper.server) as client:
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nab")
        keeper.hold(keeper.door.filling, 1)
        keeper.pass_time(1)
        assert keeper.answer(client).status == 408


def test_idle_connections_are_closed_by_the_clock_the_longest_there_first(poller: Any) -> None:
    with (
        porter(Echo, poller, header_timeout=10, idle_timeout=60) as keeper,
        Client(keeper.server) as client,
        Client(keeper.server) as other,
    ):
        for idle in (client, other):
            assert keeper.answer(idle.get()).status == 200
        keeper.hold(keeper.door.idle, 2)
        keeper.pass_time(59)
        assert keeper.answer(client.get()).status == 200
        keeper.hold(keeper.door.idle, 2)
        keeper.pass_time(2)
        assert keeper.end(other)
        keeper.pass_time(57)
        client.send(b"GET ")
        keeper.hold(keeper.door.reading, 1)
        # From the first byte on, the head has its own time.
        keeper.pass_time(9.9)
        client.send(b"/ HTTP/1.1\r\n\r\n")
        assert keeper.answer(client).status == 200
        keeper.hold(keeper.door.idle, 1)
        keeper.pass_time(60.1)
        assert keeper.end(client)


@pytest.mark.parametrize(("start", "status"), [(b"GET /", 414), (b"GET / HTTP/1.1\r\nX: ", 431)])
def test_a_megabyte_of_head_is_refused_and_the_client_can_read_that(
    start: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the client takes to send all of it.
    monkeypatch.setattr(frontdoor, "LINGER", LONG)
    with serving(Echo, max_workers=1) as server, Client(server) as client:
        sending = Background(lambda: client.send(start + b"x" * 1_000_000))
        response = client.response()
        assert response.status == status
        assert response.headers["connection"] == "close"
        sending.join()
        client.half_close()
        assert client.ended()
        assert server.pool_handlers.executor.stats().submitted == 0


def test_the_largest_head_is_served_and_the_refusal_of_a_larger_one_to_head_has_no_body() -> None:
    for verb in (b"GET", b"HEAD"):
        with serving(Echo, max_header_size=1000) as server, Client(server) as client:
            head = b"%b /a HTTP/1.1\r\nX: %b\r\n\r\n"
            fits = head % (verb, b"x" * (1000 - len(head % (verb, b""))))
            assert client.send(fits).response(to_head=verb == b"HEAD").status == 200
            assert client.send(fits[:-4] + b"x\r\n\r\n").response(to_head=verb == b"HEAD").status == 431
            assert client.ended()


def test_a_client_that_was_answered_early_may_not_stay(poller: Any) -> None:
    with porter(Echo, poller, max_header_size=10) as keeper, Client(keeper.server) as client:
        assert keeper.answer(client.send(b"x" * 20)).status == 414
        assert len(keeper.door.lingering.held) == 1
        keeper.pass_time(frontdoor.LINGER + 0.1)
        assert keeper.end(client)


def test_a_full_queue_is_answered_503() -> None:
    with (
        Gate() as gate,
        serving(gated(gate), max_workers=1, max_queue=1, retry_after=7) as server,
        Client(server) as kept,
        Client(server) as first,
        Client(server) as second,
        Client(server) as other,
    ):
        assert kept.get().body() == b"/"
        first.get("/wait")
        gate.await_begun()
        second.get("/wait")
        eventually(lambda: server.pool_handlers.executor.stats().queued == 1)
        for client in (kept, other):
            response = client.get().response()
            assert (response.status, response.headers["retry-after"]) == (503, "7")
            assert client.half_close().ended()
        server.refuse_request = lambda request, _: server.shutdown_request(request)
        with Client(server) as refused:
            assert refused.get().ended(), "an override says nothing"
        gate.open()
        assert [first.body(), second.body()] == [b"/wait", b"/wait"]
        assert first.get().body() == b"/"


def test_a_full_queue_is_answered_503_where_workers_read_themselves() -> None:
    limited = type("Server", (AdaptivePoolHTTPServer,), {"max_workers": 1, "max_queue": 0})
    with Gate() as gate, limited(LOOPBACK, gated(gate)) as server, Client(server) as first, Client(server) as second:
        server.handle_request()
        first.get("/wait", "Connection: close")
        gate.await_begun()
        server.handle_request()
        response = second.response()
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        gate.open()
        assert first.body() == b"/wait"


@pytest.mark.parametrize(("way", "least", "told"), [("refused", 1, "42"), ("cancelled", 60, "60")])
def test_a_client_is_told_to_wait_as_long_as_the_queue_is(way: str, least: int, told: str) -> None:
    with (
        AdaptiveExecutor(1, max_queue=1, when_full="reject") as pool,
        Gate() as gate,
        serving(gated(gate), executor=pool, retry_after=least) as server,
        mock.patch.object(type(server.pool_handlers), "retry_after", return_value=41.2),
        Client(server) as first,
        Client(server) as second,
        Client(server) as third,
    ):
        first.get("/wait")
        gate.await_begun()
        second.get("/wait")
        eventually(lambda: pool.stats().queued == 1)
        if way == "cancelled":
            pool.shutdown(wait=False, cancel_futures=True)
        client = second if way == "cancelled" else third.get()
        response = client.response()
        assert (response.status, response.headers["retry-after"]) == (503, told)
        assert client.ended() and len(server.pool_handlers) == (1 if way == "cancelled" else 2)
        gate.open()
        assert first.body() == b"/wait"


def test_without_descriptors_the_longest_idle_connection_goes_first_and_the_slow_go_last() -> None:
    with porter(max_header_size=100) as keeper, ExitStack() as stack:
        door = keeper.door
        clients = [stack.enter_context(Client(keeper.server)) for _ in range(5)]
        filling, reading, answered, idle, younger = clients
        for count, client in enumerate((idle, younger), 1):
            assert keeper.answer(client.get()).status == 200
            keeper.hold(door.idle, count)
        filling.send(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\na")
        reading.send(b"GET")
        answered.send(b"x" * 200)
        assert keeper.answer(answered).status == 414
        keeper.hold(door.filling, 1)
        keeper.until(lambda: [bool(connection.data) for connection in door.reading.held] == [True])
        assert door.shed() and keeper.end(idle)
        assert len(door.idle.held) == 1
        for room in (door.idle, door.lingering, door.reading, door.filling):
            assert len(room.held) == 1
            assert door.shed()
            assert not room.held
            if room is door.lingering:
                # Nothing goes that has only just come.
                assert not door.shed()
                keeper.pass_time(frontdoor.GRACE + 0.1)
        assert not door.shed()
        assert keeper.end(reading) and keeper.end(filling)


def test_connections_leave_descriptors_to_the_handlers() -> None:
    pytest.importorskip("resource")
    with porter() as keeper, Client(keeper.server) as idle, Client(keeper.server) as late:
        assert keeper.answer(idle.get()).status == 200
        keeper.hold(keeper.door.idle, 1)
        keeper.until(lambda: keeper.door.reading.held)
        with no_collector():
            lowest = os.dup(0)
            os.close(lowest)
            keeper.door._most = lowest + 1
            keeper.door.check_room()
            keeper.door._most = lowest
            with pytest.raises(OSError, match="Too many open files"):
                keeper.door.check_room()
        # What is idle goes, and then new clients have to wait; those that are here are served.
        keeper.door._most = 0
        with Client(keeper.server) as new:
            new.get("/new")
            assert keeper.end(idle)
            assert keeper.answer(late.get("/late")).body == b"/late"
            keeper.hold(keeper.door.idle, 1)
            keeper.until(lambda: keeper.door._resume)
            keeper.pass_time(pollers.BACK_OFF)
            assert keeper.end(late)
            keeper.until(lambda: keeper.door._resume)
            keeper.door._most = math.inf
            keeper.pass_time(pollers.BACK_OFF)
            assert keeper.answer(new).body == b"/new"


@pytest.mark.parametrize(
    ("limit", "workers", "most"), [(1000, 100, 900), (1000, None, 744), (100, 100, 50), (None, 100, math.inf)]
)
def test_how_many_descriptors_connections_may_take(
    limit: int | None, workers: int | None, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    found = resource.RLIM_INFINITY if limit is None else limit
    monkeypatch.setattr(resource, "getrlimit", lambda _: (found, found))
    with porter(max_workers=workers) as keeper:
        assert keeper.door._most == most


def test_real_exhaustion_of_descriptors() -> None:
    resource = pytest.importorskip("resource")
    # What the collector closes would be a descriptor more.
    with no_collector(), serving(Echo) as server, Client(server) as kept:
        assert kept.get().body() == b"/"
        eventually(lambda: server._door.idle.held)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as late:
            late.settimeout(TIMEOUT)
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (late.fileno() + 1, hard))
                late.connect(server.server_address)
                late.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert late.recv(12) == b"HTTP/1.1 200"
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert kept.ended()


def test_an_event_that_comes_before_its_worker_has_let_go_is_not_lost() -> None:
    made = pollers.make_poller()
    lent, client = socket.socketpair()
    with porter(Echo, made) as keeper, client, client.makefile("rb") as file:
        connection = connections.Connection.adopt(lent)
        connection.door, connection.address = keeper.door, ("test", 0)
        connection.again = True
        client.sendall(b"GET /next HTTP/1.0\r\n\r\n")
        arm = made.arm

        def seen_at_once(armed: connections.Connection) -> None:
            arm(armed)
            keeper.door.turn(0)

        made.arm = seen_at_once  # type: ignore[method-assign]
        keeper.door.give_back(connection)
        assert keeper.during(file.read).endswith(b"/next")


def test_a_connection_that_the_loop_must_watch_wakes_it() -> None:
    lent, client = socket.socketpair()
    with porter(Echo, pollers.SelectorPoller()) as keeper, client:
        connection = connections.Connection.adopt(lent)
        connection.door = keeper.door
        connection.again = True
        assert not wait_for(keeper.bell.ear, False, 0)
        keeper.door.give_back(connection)
        assert wait_for(keeper.bell.ear, False, 0)
        keeper.hold(keeper.door.idle, 1)


# What waits for connections, some of which are closed behind its back.


def test_a_connection_that_somebody_closes_while_it_is_idle(poller: Any) -> None:
    with porter(Echo, poller, idle_timeout=60) as keeper:
        with Client(keeper.server) as client, Client(keeper.server) as other:
            for count, each in enumerate((client, other), 1):
                assert keeper.answer(each.get()).body == b"/"
                keeper.hold(keeper.door.idle, count)
            keeper.oldest(keeper.door.idle).close()
            assert keeper.end(client)
            assert keeper.answer(other.get("/b")).body == b"/b"
            keeper.until(lambda: any(held.fileno() >= 0 for held in keeper.door.idle.held))
            keeper.pass_time(61)
            assert keeper.end(other)
        assert not keeper.door._held and not keeper.door.idle.held


def test_a_descriptor_that_was_closed_and_is_used_again(poller: Any) -> None:
    # What the collector closes could be the descriptor that is used again.
    with no_collector(), porter(Echo, poller, idle_timeout=60) as keeper, Client(keeper.server) as old:
        door = keeper.door
        assert keeper.answer(old.get()).body == b"/"
        keeper.hold(door.idle, 1)
        lost = keeper.oldest(door.idle)
        descriptor = lost.fileno()
        with Client(keeper.server) as new:
            # As a stray timer does it.
            lost.close()
            keeper.hold(door.reading, 1)
            assert keeper.oldest(door.reading).fileno() == descriptor
            for _ in range(3):
                assert keeper.answer(new.get("/new")).body == b"/new"
            keeper.until(lambda: any(held.fileno() == descriptor for held in door.idle.held))
            keeper.pass_time(61)
            assert keeper.end(new)
        assert not door._held and not door.idle.held


def test_a_selector_that_fails_otherwise_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pollers.SelectorPoller()
    monkeypatch.setattr(made._system, "select", mock.Mock(side_effect=OSError("broken")))
    with pytest.raises(OSError, match="broken"):
        made.wait(0)
    made.close()


def test_a_poller_that_takes_no_more(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pollers.make_poller()
    with porter(Echo, made) as keeper:
        monkeypatch.setattr(made, "arm", mock.Mock(side_effect=OSError(errno.ENOMEM, "no room")))
        with Client(keeper.server) as waiting, caplog.at_level(logging.WARNING):
            assert keeper.end(waiting)
        assert "cannot watch the connection from" in caplog.text
        with Client(keeper.server) as client:
            # Its request is there when it is accepted; only then its connection cannot be kept.
            assert keeper.answer(client.get()).body == b"/"
            assert keeper.end(client)
        monkeypatch.undo()
        with Client(keeper.server) as client:
            assert keeper.answer(client.get()).body == b"/"


def test_a_bell_that_was_rung_often() -> None:
    bell = Bell()
    for times in (100_000, 1):
        for _ in range(times):
            bell.ring()
        assert wait_for(bell.ear, False, 0)
        bell.hear()
        assert not wait_for(bell.ear, False, 0)
    bell.close()
    bell.ring()


def test_watching_twice_and_forgetting_twice() -> None:
    for made in (pollers.make_poller(), pollers.SelectorPoller()):
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


def test_a_wait_longer_than_the_system_can_and_a_system_without_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert wait_for(one, True, 1e300)
        monkeypatch.setattr(stdio, "Selector", selectors.SelectSelector)
        assert not wait_for(one, False, 0)
        assert wait_for(one, True, math.inf)
        waiting = Background(lambda: wait_for(one, False, None))
        other.send(b"x")
        assert waiting.join()
