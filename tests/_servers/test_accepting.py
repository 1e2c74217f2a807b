"""What a server accepts: how it is handed over, what a failure costs, and what the system runs out of."""

from __future__ import annotations

import errno
import logging
import socket
import socketserver
import threading
from contextlib import ExitStack, closing
from typing import Any
from unittest import mock

import pytest
from support.common import A_MOMENT, eventually
from support.httpserver import Clock
from support.server import (
    LOOPBACK,
    Echo,
    Server,
    accepting,
    ask,
    connect,
    failing_to_accept,
    looping,
    made,
    noting,
    read_all,
    reset,
    serving,
)

from ebbpool.socketserver import AdaptivePoolMixIn

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
    with made() as server, ExitStack() as stack:
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

    with made(verify_request=verify) as server, ExitStack() as stack:
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


class Looks(Clock):
    """Looks of a loop, by a clock of their own: how many there are until a nap is due."""

    def __init__(self) -> None:
        super().__init__()
        self.naps = accepting.Naps(self)

    def until_nap(self, found: int = 1, each: float = accepting.NAP / 2) -> int:
        for number in range(1, 2 * accepting.MOST_LOOKS):
            self.now += each
            if self.naps.due_after(found):
                return number
        return 0


def test_the_loop_naps_after_a_crowd_and_more_and_more_rarely_while_one_client_connects_again_and_again() -> None:
    looks = Looks()
    assert [looks.until_nap(accepting.CROWD) for _ in range(3)] == [1, 1, 1]
    naps = [looks.until_nap() for _ in range(9)]
    assert naps[:3] == [accepting.FEWEST_LOOKS, 2 * accepting.FEWEST_LOOKS, 4 * accepting.FEWEST_LOOKS]
    assert naps[-2:] == [accepting.MOST_LOOKS, accepting.MOST_LOOKS]
    # A crowd that falls apart is soon waited for again.
    assert looks.until_nap(accepting.CROWD) == 1
    assert looks.until_nap(accepting.CROWD - 1) == accepting.FEWEST_LOOKS


def test_the_loop_never_naps_while_connections_come_slowly_or_others_take_them() -> None:
    looks = Looks()
    assert looks.until_nap(each=2 * accepting.NAP) == 0
    assert looks.until_nap(found=0) == 0


def test_a_client_that_resets_before_it_is_accepted_holds_nobody() -> None:
    with made() as server:
        reset(connect(server))
        with looping(server):
            assert ask(server, b"hello") == b"hello"


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_system_that_has_run_out_is_left_alone_for_a_while(
    error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "FIRST_BACK_OFF", 0.0001)
    clock = Clock()
    server = failing_to_accept(Server)(LOOPBACK, Echo)
    door = accepting.Door(server)
    door._shortages._clock = clock
    server._entrance = lambda: door
    with caplog.at_level(logging.INFO, LOGGER), serving(server):
        for _ in range(4):
            server.error, server.failures = error, 5
            # The loop may still have been accepting when it was told to fail, and have taken the first one.
            while server.failures:
                assert ask(server, b"hello") == b"hello"
            eventually(lambda: not door._pause)
            clock.now += 0.4
    # Once per spell, and once a second at most.
    begin = f"cannot accept connections for now; new ones have to wait: [Errno {error}] out of something"
    again = "connections are accepted again"
    assert caplog.messages == [begin, again, f"{begin} (3 times since this was last logged)", again]
    assert not server.errors


def test_shutdown_does_not_wait_for_the_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "FIRST_BACK_OFF", 3600.0)
    with failing_to_accept(Server)(LOOPBACK, Echo) as server:
        server.failures = 1
        with looping(server, poll_interval=0.001), closing(connect(server)):
            eventually(lambda: server.attempts)
            threading.Event().wait(A_MOMENT)
            assert server.attempts == 1


def test_other_errors_of_accept_are_no_reason_to_wait(caplog: pytest.LogCaptureFixture) -> None:
    with serving(failing_to_accept(Server)(LOOPBACK, Echo), poll_interval=3600) as server:
        server.error, server.failures = errno.ECONNABORTED, 2
        assert ask(server, b"hello") == b"hello"
    assert not caplog.records


def test_the_pause_grows_to_a_second_and_begins_anew_with_each_success() -> None:
    door = accepting.Door(None, mock.Mock(), Clock())

    def pause() -> float:
        door.rest(OSError(errno.EMFILE, "too many"), False)
        return door._pause

    pauses = [pause() for _ in range(10)]
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0])
    door.go_on()
    assert pause() == pytest.approx(0.01)
