"""Bodies that handlers read from the socket or its descriptor, and the word that a client waits for."""

from __future__ import annotations

import os
import select
import socket
import sys

import pytest
import support
from support.common import TIMEOUT, needs_fork, output_of
from support.httpserver import Client, Quiet, porter, serving

from ebbpool._http import frontdoor
from ebbpool._http.connection import Connection
from ebbpool._http.reader import RequestReader


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


@needs_fork
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


def test_a_child_process_can_read_the_body_from_a_descriptor() -> None:
    class Child(Quiet):
        def do_POST(self) -> None:
            with open(self.rfile.fileno(), "rb", closefd=False) as file:
                body = file.read()
            assert self.rfile.read(1) == b""
            self.reply(body)

        def do_GET(self) -> None:
            assert self.rfile.fileno() == self.rfile.name == self.request.fileno()
            self.reply(b"none")

    with serving(Child, max_buffered_body=10) as server, Client(server) as client:
        for body in (b"short", b"long" * 100_000):
            assert client.post(body).body() == body
            assert client.get().body() == b"none"


def test_a_body_is_laid_out_for_handlers_that_want_no_buffer() -> None:
    class Unbuffered(Quiet):
        rbufsize = 0

        def do_POST(self) -> None:
            if self.path == "/child":
                with open(self.rfile.fileno(), "rb", closefd=False) as file:
                    body = file.read()
                # As http.server's CGI sees to it that nothing is left.
                assert self.rfile.read(1) == b""
            else:
                body = self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(body)

        def do_GET(self) -> None:
            self.reply(b"none")

    with serving(Unbuffered, max_buffered_body=10) as server, Client(server) as client:
        for path in (b"/child", b"/self"):
            for body in (b"short", b"long" * 100_000):
                client.send(b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (path, len(body), body))
                client.get()
                assert client.body() == body
                assert client.body() == b"none"
        client.send(b"POST /child HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" * 2)
        client.send(b"POST /self HTTP/1.1\r\nContent-Length: 40\r\n\r\n" + b"x" * 40)
        assert [client.body() for _ in range(3)] == [b"abc", b"abc", b"x" * 40]


def test_a_body_that_comes_short_is_no_whole_body() -> None:
    class Unbuffered(Quiet):
        rbufsize = 0
        timeout = 0.01

        def do_POST(self) -> None:
            self.reply(self.rfile.read())

    with serving(Unbuffered) as server, Client(server) as client:
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\nab")
        assert client.ended()


def test_the_end_of_the_connection_ends_the_body() -> None:
    lent, other = socket.socketpair()
    with Connection.adopt(lent) as connection, RequestReader(connection.request, connection) as file:
        other.sendall(b"one\ntwo")
        other.close()
        assert file.readline(None) == b"one\n"
        assert file.readline() == b"two"
        assert file.readline() == file.read() == b""
        assert connection.request.ended
