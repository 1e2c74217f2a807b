"""What handlers and others may do to a connection behind the HTTP server's back."""

from __future__ import annotations

import os
import select
import selectors
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import support
from support.common import TIMEOUT, Background, eventually, output_of
from support.httpserver import Client, Echo, Quiet, porter, serving

from ebbpool._http import frontdoor
from ebbpool._http import poller as pollers
from ebbpool._http.connection import Connection
from ebbpool._http.reader import RequestReader


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


@pytest.mark.parametrize("thoroughly", [True, False])
def test_a_descriptor_that_was_closed_and_is_used_again(poller: Any, thoroughly: bool) -> None:
    if not thoroughly and isinstance(getattr(poller, "_selector", None), selectors.SelectSelector):
        pytest.skip("where only `select` is, a socket is no file descriptor")
    with porter(Echo, poller, idle_timeout=60) as keeper, Client(keeper.server) as old:
        door = keeper.door
        assert keeper.answer(old.get()).body == b"/"
        keeper.hold(door.idle, 1)
        lost = keeper.oldest(door.idle)
        descriptor = lost.fileno()
        with Client(keeper.server) as new:
            # As a stray timer does it, or somebody who has made a second socket of the number.
            if thoroughly:
                lost.close()
            else:
                os.close(descriptor)
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
        connection.request.again = True
        door.give_back(connection)
        connection.close()
        door.turn(0)
        assert not door._held and not door.idle.held
        assert keeper.end(client)
        connection.request.again = True
        # Nor is it armed if that has happened already.
        door._arm(connection)
        assert not door._take_back(connection, door.idle) or not poller.shared
        door._returned.clear()


def test_a_poller_watches_what_has_the_number_of_a_connection() -> None:
    made = pollers.SelectorPoller()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection.adopt(ours)
        connection.descriptor = connection.fileno()
        made.arm(connection)
        bare = socket.socket(fileno=connection.detach())
        with bare:
            made.watch(bare.fileno())
            made.drop(connection)
            theirs.send(b"x")
            assert made.wait(TIMEOUT) == [bare.fileno()]
            made.forget(bare.fileno())
    made.close()


def test_a_selector_that_fails_otherwise_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pollers.SelectorPoller()

    def failing(_: float) -> Any:
        raise OSError("broken")

    monkeypatch.setattr(made._selector, "select", failing)
    with pytest.raises(OSError, match="broken"):
        made.wait(0)
    made.close()


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


class Unbuffered(Quiet):
    rbufsize = 0

    def do_POST(self) -> None:
        self.reply(self.rfile.read(int(self.headers["Content-Length"])))


class Receiving(Quiet):
    """Takes the body from the socket itself, by one operation each."""

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        how = self.path[1:]
        found = b""
        while len(found) < length:
            left = length - len(found)
            into = bytearray(left)
            if how == "recv":
                part = self.connection.recv(left)
            elif how == "recv_into":
                part = into[: self.connection.recv_into(into)]
            elif how == "recvfrom":
                part, _ = self.connection.recvfrom(left)
            elif how == "recvfrom_into":
                part = into[: self.connection.recvfrom_into(into)[0]]
            elif how == "recvmsg":
                part = self.connection.recvmsg(left)[0]
            else:
                part = into[: self.connection.recvmsg_into([bytearray(), into])[0]]
            found += part
        if how == "recvfrom":
            assert self.connection.sendto(b"HTTP/1.1 103 Hints\r\n\r\n", self.client_address) == 22
        elif how.startswith("recvmsg"):
            assert self.connection.sendmsg([b"HTTP/1.1 103 ", b"Hints\r\n\r\n"]) == 22
            assert self.connection.sendmsg([]) == 0
        self.reply(found)


HOW = ["recv", "recv_into", "recvfrom", "recvfrom_into"]
if sys.platform != "win32":
    HOW += ["recvmsg", "recvmsg_into"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("rbufsize", [0, -1])
def test_a_body_that_is_received_from_the_socket(how: str, rbufsize: int) -> None:
    handler = type("Handler", (Receiving,), {"rbufsize": rbufsize})
    with serving(handler, max_buffered_body=10) as server:
        for body in (b"short", b"long" * 100_000):
            with Client(server) as client:
                client.send(b"POST /%b HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (how.encode(), len(body)) + body)
                answer = client.response(to_head=True)
                if answer.status == 103:
                    answer = client.response(to_head=True)
                assert answer.status == 200
                assert client.file.read() == body


def test_all_that_waits_has_the_time_out() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, Connection.adopt(ours) as connection:
        buffer = bytearray(1)
        connection.settimeout(0.01)
        calls = [lambda: connection.recvfrom(1), lambda: connection.recvfrom_into(buffer)]
        if sys.platform != "win32":
            calls += [lambda: connection.recvmsg(1), lambda: connection.recvmsg_into([buffer])]
            calls += [lambda: [connection.sendmsg([bytes(100_000)]) for _ in range(1000)]]
        calls += [lambda: [connection.send(bytes(100_000)) for _ in range(1000)]]
        for call in calls:
            with pytest.raises(TimeoutError):
                call()
        assert connection.request.answered


def test_without_a_buffer_too_a_client_gets_its_word() -> None:
    with serving(Unbuffered) as server, Client(server) as client:
        for _ in range(2):
            client.send(b"POST / HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
            assert client.response(to_head=True).status == 100
            assert client.send(b"hello").body() == b"hello"


def test_nothing_is_laid_out_for_a_client_that_waits() -> None:
    class Asking(Unbuffered):
        protocol_version = "HTTP/1.0"

        def do_POST(self) -> None:
            assert self.rfile.fileno() == self.connection.fileno()
            self.connection.sendall(bytearray(b"HTTP/1.1 100 Continue\r\n\r\n"))
            with open(self.rfile.fileno(), "rb", closefd=False) as file:
                assert self.rfile.fileno() != self.connection.fileno()
                self.reply(file.read())

    with serving(Asking) as server, Client(server) as client:
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert client.response(to_head=True).status == 100
        assert client.send(b"hello").body() == b"hello"


def test_what_was_laid_out_is_read_by_all_means() -> None:
    class Mixed(Unbuffered):
        def do_POST(self) -> None:
            assert select.select([self.rfile], [], [], 0)[0]
            found = self.rfile.read(2) + self.connection.recv(2)
            while len(found) < int(self.headers["Content-Length"]):
                found += self.connection.recv(1000)
            self.reply(found)

    with serving(Mixed, max_buffered_body=3) as server:
        for body in (b"abc", b"abcdefgh"):
            with Client(server) as client:
                assert client.post(body).response().body == body
                assert client.ended()


def test_a_body_that_is_late_can_be_read_after_all() -> None:
    class Late(Unbuffered):
        def do_POST(self) -> None:
            self.connection.settimeout(0.01)
            with pytest.raises(TimeoutError):
                self.rfile.fileno()
            self.connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\n")
            self.connection.settimeout(TIMEOUT)
            super().do_POST()

    with serving(Late, max_buffered_body=3) as server, Client(server) as client:
        for _ in range(2):
            client.send(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab")
            assert client.response(to_head=True).status == 102
            assert client.send(b"cde").body() == b"abcde"


CHILD = """
import os, select, warnings
from support.httpserver import Client, Quiet, serving
warnings.simplefilter("ignore", DeprecationWarning)

class Forking(Quiet):
    rbufsize = 0

    def do_POST(self):
        # As http.server's CGI does it.
        inside, outside = os.pipe()
        pid = os.fork()
        if not pid:
            if self.path == "/part":
                copy = self.rfile._copy
                copy.write(self.connection.request.data[self.connection.request.position:self.connection.request.end])
                os._exit(0)
            with open(self.rfile.fileno(), "rb", closefd=False) as file:
                body = file.read()
            os.write(outside, b"%d" % len(body))
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(outside)
        with open(inside, "rb") as file:
            found = file.read()
        if self.path != "/part":
            while select.select([self.rfile], [], [], 0)[0]:
                if not self.rfile.read(1):
                    break
        else:
            self.rfile.fileno()
        self.reply(found)

    def do_GET(self):
        self.reply(b"next")

with serving(Forking, max_buffered_body=10) as server:
    with Client(server) as client:
        for size in (5, 400_000):
            client.post(b"x" * size).get()
            print(client.body().decode(), client.body().decode())
    with Client(server) as client:
        client.send(b"POST /part HTTP/1.1\\r\\nContent-Length: 20\\r\\n\\r\\nabc")
        print(client.body().decode(), client.ended())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_what_a_forked_child_reads_its_parent_knows_to_be_read() -> None:
    prelude = f"import sys; sys.path.insert(0, {os.path.dirname(os.path.dirname(support.__file__))!r})\n"
    assert output_of(CHILD, prelude) == ["5 next", "400000 next", " True"]


def test_a_word_to_go_on_is_no_response() -> None:
    class Lines(Quiet):
        def do_POST(self) -> None:
            lines = [self.rfile.readline(65537) for _ in range(3)]
            self.reply(b"".join(lines))

    with serving(Lines) as server, Client(server) as client:
        for _ in range(2):
            client.send(b"POST / HTTP/1.1\r\nContent-Length: 8\r\nExpect: 100-continue\r\n\r\n")
            assert client.response(to_head=True).status == 100
            assert client.send(b"a\nb\n").send(b"cde\n").body() == b"a\nb\ncde\n"


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


def test_an_upgrade_does_not_stop_the_clock_of_a_body() -> None:
    ours, theirs = socket.socketpair()
    with porter() as keeper, ours, theirs, Connection.adopt(ours) as connection:
        connection.request.data = b"POST / HTTP/1.1\r\nUpgrade: a\r\nContent-Length: 9\r\n\r\n"
        connection.request.limits = keeper.server._limits
        assert connection.request.ready(connection.request.limits, patient=False)
        connection.limit = 10.0
        connection.request.waited = 11.0
        reader = RequestReader(connection.request, connection)
        with pytest.raises(TimeoutError):
            reader.read()
        theirs.send(b"body here")
        assert reader.read(9) == b"body here"
        # What follows may take its time.
        more = Background(lambda: reader.read(4))
        theirs.send(b"more")
        assert more.join() == b"more"


def test_bodies_are_waited_for_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontdoor, "MOST_BUFFERED", 1000)
    with porter() as keeper, Client(keeper.server) as first, Client(keeper.server) as second:
        door = keeper.door
        first.send(b"POST / HTTP/1.1\r\nContent-Length: 2000\r\n\r\n" + b"x" * 900)
        keeper.hold(door.filling, 1)
        assert 900 < door.buffered < 1000
        second.send(b"POST / HTTP/1.1\r\nContent-Length: 2000\r\n\r\n" + b"x" * 900)
        keeper.hold(door.filling, 2)
        assert 1800 < door.buffered < 2000
        assert not keeper.server.pool_handlers
        first.send(b"x")
        # Its worker reads on.
        keeper.hold(door.filling, 1)
        assert len(keeper.server.pool_handlers) == 1
        assert 900 < door.buffered < 1000
        assert keeper.answer(first.send(b"x" * 1099)).body == b"x" * 2000
        assert keeper.answer(second.send(b"x" * 1100)).body == b"x" * 2000
        assert not door.buffered


def test_a_client_that_sends_on_can_read_its_answer() -> None:
    class Old(Echo):
        protocol_version = "HTTP/1.0"

    with porter(Old) as keeper, Client(keeper.server) as client:
        client.send(b"GET /a HTTP/1.0\r\n\r\n" + b"x" * 60_000)
        assert keeper.answer(client).body == b"/a"
        keeper.hold(keeper.door.lingering, 1)
        client.close()
        keeper.hold(keeper.door.lingering, 0)


def test_blank_lines_behind_a_body_leave_a_connection_idle(poller: Any) -> None:
    with porter(Echo, poller, idle_timeout=60, header_timeout=10) as keeper, Client(keeper.server) as client:
        door = keeper.door
        assert keeper.answer(client.post(b"abc")).body == b"abc"
        keeper.hold(door.idle, 1)
        for part, left in ((b"\r", b"\r"), (b"\n", b""), (b"\r", b"\r")):
            client.send(part)
            keeper.until(lambda left=left: keeper.oldest(door.idle).request.data == left)
        assert not door.reading.held
        keeper.pass_time(11)
        assert keeper.answer(client.send(b"\nGET /b HTTP/1.1\r\n\r\n")).body == b"/b"
        # And so does half of one that came with the body.
        assert keeper.answer(client.send(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc\r")).body == b"abc"
        keeper.hold(door.idle, 1)
        keeper.pass_time(61)
        assert keeper.end(client)


def test_blank_lines_without_end_are_refused() -> None:
    with serving(Echo) as server, Client(server) as client:
        assert client.send(b"\r\n" * 10).get("/a").body() == b"/a"
        assert client.get("/b").body() == b"/b"
        assert client.send(b"\n" * 5000).response().status == 400
