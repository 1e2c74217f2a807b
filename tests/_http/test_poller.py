"""What waits for connections: pollers of each kind, and connections that are closed behind their back."""

from __future__ import annotations

import errno
import logging
import math
import select
import selectors
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.common import Background, no_collector
from support.httpserver import Bell, Client, Echo, pollers, porter, wait_for


@pytest.fixture(params=["best", "portable", "select"])
def poller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "select":
        monkeypatch.setattr(selectors, "DefaultSelector", selectors.SelectSelector)
    made = pollers.make_poller() if request.param == "best" else pollers.SelectorPoller()
    yield made
    made.close()


def other_is_idle(room: Any) -> bool:
    return any(held.fileno() >= 0 for held in room.held.values())


def test_a_connection_that_somebody_closes_while_it_is_idle(poller: Any) -> None:
    with porter(Echo, poller, idle_timeout=60) as keeper:
        with Client(keeper.server) as client, Client(keeper.server) as other:
            for count, each in enumerate((client, other), 1):
                assert keeper.answer(each.get()).body == b"/"
                keeper.hold(keeper.door.idle, count)
            keeper.oldest(keeper.door.idle).close()
            assert keeper.end(client)
            assert keeper.answer(other.get("/b")).body == b"/b"
            keeper.until(lambda: other_is_idle(keeper.door.idle))
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
            assert not door.idle.held
            for _ in range(3):
                assert keeper.answer(new.get("/new")).body == b"/new"
            keeper.hold(door.idle, 1)
            keeper.pass_time(61)
            assert keeper.end(new)
        assert not door._held


def test_a_connection_that_is_closed_while_it_goes_back(poller: Any) -> None:
    with porter(Echo, poller) as keeper, Client(keeper.server) as client:
        door = keeper.door
        keeper.hold(door.reading, 1)
        connection = keeper.oldest(door.reading)
        door._leave(connection)
        door._poller.drop(connection)
        connection.again = True
        door.give_back(connection)
        connection.close()
        door.turn(0)
        assert not door._held and not door.idle.held
        assert keeper.end(client)
        connection.again = True
        # Nor is it armed if that has happened already.
        door._arm(connection)
        assert not door._take_back(connection, door.idle) or not poller.shared
        door._returned.clear()


def test_a_selector_that_fails_otherwise_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pollers.SelectorPoller()

    def failing(_: float) -> Any:
        raise OSError("broken")

    monkeypatch.setattr(made._system, "select", failing)
    with pytest.raises(OSError, match="broken"):
        made.wait(0)
    made.close()


def failing(*_: object) -> Any:
    raise OSError(errno.ENOMEM, "no room")


def test_a_poller_that_takes_no_more(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pollers.make_poller()
    with porter(Echo, made) as keeper:
        monkeypatch.setattr(made, "arm", failing)
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


def test_blank_lines_behind_a_body_leave_a_connection_idle(poller: Any) -> None:
    with porter(Echo, poller, idle_timeout=60, header_timeout=10) as keeper, Client(keeper.server) as client:
        door = keeper.door
        assert keeper.answer(client.post(b"abc")).body == b"abc"
        keeper.hold(door.idle, 1)
        for part, left in ((b"\r", b"\r"), (b"\n", b""), (b"\r", b"\r")):
            client.send(part)
            keeper.until(lambda left=left: keeper.oldest(door.idle).data == left)
        assert not door.reading.held
        keeper.pass_time(11)
        assert keeper.answer(client.send(b"\nGET /b HTTP/1.1\r\n\r\n")).body == b"/b"
        # And so does half of one that came with the body.
        assert keeper.answer(client.send(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc\r")).body == b"abc"
        keeper.hold(door.idle, 1)
        keeper.pass_time(61)
        assert keeper.end(client)
