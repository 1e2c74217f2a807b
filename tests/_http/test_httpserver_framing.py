"""Where requests and responses end: bodies that are ignored, in chunks, large, late, of another length than said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.httpserver import Client, Echo, Quiet, framing, porter, serving

SMUGGLED = b"GET /smuggled HTTP/1.1\r\n\r\n"


class Recording(Echo):
    """Notes every path that a handler was asked for."""

    seen: list[str]

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        if parsed:
            self.seen.append(self.path)
        return parsed

    def do_PUT(self) -> None:
        """Ignores its body, or reads only a part of it."""
        self.reply(self.rfile.read(3) if self.path == "/part" else b"ignored")


@pytest.fixture
def handler() -> Any:
    return type("Handler", (Recording,), {"seen": []})


def test_what_a_handler_leaves_of_a_body_that_is_here_is_dropped(handler: Any) -> None:
    with serving(handler) as server, Client(server) as client:
        for _ in range(3):
            client.send(b"PUT /a HTTP/1.1\r\nContent-Length: 26\r\n\r\n" + SMUGGLED)
            assert client.body() == b"ignored"
        client.send(b"PUT /part HTTP/1.1\r\nContent-Length: 26\r\n\r\n" + SMUGGLED + b"GET /b HTTP/1.1\r\n\r\n")
        assert client.body() == b"GET"
        assert client.body() == b"/b"
    assert handler.seen == ["/a"] * 3 + ["/part", "/b"]


def test_an_ignored_body_that_is_not_here_ends_the_connection(handler: Any) -> None:
    with porter(handler, max_buffered_body=10) as keeper, Client(keeper.server) as client:
        client.send(b"PUT /a HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
        assert keeper.answer(client).body == b"ignored"
        # The client gets to send the rest, or most of it, and finds the response there.
        keeper.hold(keeper.door.lingering, 1)
        client.send(SMUGGLED * 100)
        assert keeper.end(client.half_close())
    assert handler.seen == ["/a"]


def test_a_body_that_is_read_after_the_response_began() -> None:
    class Late(Quiet):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", self.headers["Content-Length"])
            self.end_headers()
            while line := self.rfile.readline(1000):
                self.wfile.write(line)

    with serving(Late, max_buffered_body=5) as server, Client(server) as client:
        # The larger one is more than the door takes at once.
        for body in (b"a\nb", b"one\ntwo\n" * 2500, b"x", b"\0"):
            assert client.post(body).body() == body


TWO_ENDS = [
    b"Content-Length: 0\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 0",
    b"Content-Length: 0\r\nContent-Length: 26",
    b"Content-Length: 26\r\nContent-Length: 26",
    b"Content-Length: 0, 26",
    b"Content-Length: -26",
    b"Content-Length : 26",
    b"Content-Length: 2 6",
    b"Content-Length: 0x1a",
    b"X: a\r\n Content-Length: 26",
    b"X: a\rContent-Length: 26",
    b"Transfer-Encoding : chunked",
    b"X: a\r\n\tTransfer-Encoding: chunked",
    b"X : 5",
    b" Content-Length: 26",
    b"no field\r\nContent-Length: 26",
    b"\x0bTransfer-Encoding: chunked",
    b"Content-Length:",
    b"Content-Length: +26",
    b"Content-Length: 2_6",
    b"Content-Length: \xb2",
    b"Content-Length: 26\r\ncontent-length: 0",
    b"Content-Length: 000000000000000000026",
]
"""Fields of a head that can be read in two ways."""
NULS = [
    b"GET /a\0 HTTP/1.1\r\n\r\n",
    b"GET /a HTTP/1.1\r\nX: \0\r\n\r\n",
    b"GET /a HTTP/1.1\r\nX\0: a\r\n\r\n",
    b"GET /a HTTP/1.1\r\nX: a\0",
    b"GET /a\0\r\n",
]
NO_REQUEST_LINES = [b"GET /a", b"GET", b"GET / a HTTP/1.1", b"GET / XTTP/1.1", b"GET /\xa0a HTTP/1.1"]
"""The last is four words as text, which is how `http.server` splits it."""


@pytest.mark.parametrize(
    "head",
    [
        *(b"POST /a HTTP/1.1\r\n%b\r\n\r\n" % fields for fields in TWO_ENDS),
        *NULS,
        *(b"%b\r\nContent-Length: 26\r\n\r\n" % line for line in NO_REQUEST_LINES),
    ],
)
def test_a_request_with_two_ends_or_a_nul_is_refused(handler: Any, head: bytes) -> None:
    with serving(handler) as server, Client(server) as client:
        assert client.get("/first").body() == b"/first"
        client.send(head if head.endswith(b"\0") else head + SMUGGLED)
        response = client.response()
        assert (response.status, response.headers["connection"]) == (400, "close")
        assert client.ended()
    assert handler.seen == ["/first"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /a HTTP/1.1\r\nX: a\r\n folded: b\r\n\r\n",
        b"GET /a HTTP/1.1\r\nX: a\r\n\tfolded\r\n\r\n",
        b"GET /a HTTP/1.1\r\nX: a\rY: b\r\n\r\n",
        b"GET /a HTTP/1.1\r\nno field\r\n\r\n",
        b"GET /a HTTP/1.1\r\n: a\r\n\r\n",
        b"GET /a HTTP/1.1\r\nX\xff: a\r\n\r\n",
        b"GET /a HTTP/1.1\r\r\n\r\n",
        b"GET /a\r HTTP/1.1\r\n\r\n",
        b"GET /a\r\n\r\n",
    ],
)
def test_after_an_odd_request_nothing_is_served(handler: Any, head: bytes) -> None:
    with serving(handler) as server, Client(server) as client:
        client.send(head + SMUGGLED)
        assert b"/a" in client.file.read()
    assert handler.seen == ["/a"]


@pytest.mark.parametrize(
    "line",
    [
        b"X: a",
        b"X:",
        b"X-Content-Length-Of: 5",
        b"X: content-length",
        b"X: transfer-encoding: a",
        b"Content-Length:0",
        b"CONTENT-LENGTH:\t000 ",
    ],
)
@pytest.mark.parametrize(("end", "cut"), [(b"\r\n", False), (b"\n", True), (b"\n\r\n", False)])
def test_a_request_without_a_body_may_have_these_headers(handler: Any, line: bytes, end: bytes, cut: bool) -> None:
    head = b"GET /a HTTP/1.1" + end[:1].replace(b"\r", b"\r\n") + line + (end if len(end) == 3 else end * 2)
    with serving(handler) as server, Client(server) as client:
        parts = [head[number : number + 1] for number in range(len(head))] if cut else [head]
        for part in [*parts, b"GET /b HTTP/1.1\r\n\r\n"]:
            client.send(part)
        assert [client.body(), client.body()] == [b"/a", b"/b"]


@pytest.mark.parametrize("coding", [b"chunked", b"CHUNKED", b"gzip, chunked", b"identity", b"xchunked"])
def test_a_body_in_chunks_is_the_handlers_and_the_last(handler: Any, coding: bytes) -> None:
    class Chunks(handler):  # type: ignore[misc]
        def do_POST(self) -> None:
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            self.reply(b"".join(parts))

    with serving(Chunks) as server, Client(server) as client:
        client.send(b"POST /a HTTP/1.1\r\nTransfer-Encoding: " + coding + b"\r\n\r\n3\r\nabc\r\n")
        client.send(b"4\r\ndefg\r\n0\r\n\r\n" + SMUGGLED)
        assert client.body() == b"abcdefg"
        assert client.ended()
    assert handler.seen == ["/a"]


OK = b"HTTP/1.1 200 OK\r\n"
THREE = OK + b"Content-Length: 3\r\n\r\n"
CODED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
UNCHANGED = b"HTTP/1.1 304 Not Modified\r\ncontent-length:3\r\n\r\n"
NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "pieces", "sent", "kept"),
    [
        ("GET", [THREE + b"abc500 evil"], THREE + b"abc", True),
        ("GET", [THREE, b"ab", b"c500", b" evil"], THREE + b"abc", True),
        ("GET", [OK, b"Content-Length: 3\r\n", b"\r\nab", b"cd"], THREE + b"abc", True),
        ("GET", [b"", *(bytes([each]) for each in THREE + b"abcd")], THREE + b"abc", True),
        ("GET", [GO_ON + THREE + b"abcd"], GO_ON + THREE + b"abc", True),
        ("GET", [THREE, b"ab"], THREE + b"ab", False),
        ("GET", [THREE], THREE, False),
        ("GET", [OK, b"Content-Length: 3\r\n"], b"", False),
        ("HEAD", [THREE, b"abc"], THREE, True),
        ("GET", [UNCHANGED + b"abc"], UNCHANGED, True),
        ("GET", [NOTHING, b"abc"], NOTHING, True),
        ("GET", [CODED + b"3\r\nabc\r\n", b"0\r\n", b"\r\n"], CODED + b"3\r\nabc\r\n0\r\n\r\n", True),
        ("GET", [CODED, b"0\r\n\r\n"], CODED + b"0\r\n\r\n", True),
        ("GET", [CODED, b"3\r\nabc\r\n"], CODED + b"3\r\nabc\r\n", False),
        ("GET", [OK + b"\r\n", b"abc"], OK + b"\r\nabc", False),
        ("GET", [THREE[:-2] + b"Content-Length: 4\r\n\r\nabc"], THREE[:-2] + b"Content-Length: 4\r\n\r\nabc", False),
        ("GET", [b"no HTTP at all"], b"no HTTP at all", False),
    ],
)
@pytest.mark.parametrize("buffer", [0, 5])
def test_a_response_ends_where_its_head_says_and_otherwise_with_the_connection(
    method: str, pieces: list[bytes], sent: bytes, kept: bool, buffer: int
) -> None:
    class Raw(Quiet):
        wbufsize = buffer

        def do_GET(self) -> None:
            if self.path == "/next":
                self.reply(b"next")
            for piece in pieces * (self.path == "/"):
                assert self.wfile.write(piece) in (None, len(piece))

        do_HEAD = do_GET

    with serving(Raw) as server, Client(server) as client:
        client.send(f"{method} / HTTP/1.1\r\n\r\n".encode())
        assert client.file.read(len(sent)) == sent
        assert client.get("/next").body() == b"next" if kept else client.ended()


@pytest.mark.parametrize(
    ("count", "announced"), [(None, 600_000), (700_000, 600_000), (None, 1_000_000), (None, 1_000_001)]
)
def test_a_file_that_has_another_length_than_was_said(tmp_path: Path, count: int | None, announced: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"y" * 1_000_000)

    class Sending(Quiet):
        def do_PUT(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(announced))
            self.end_headers()
            with path.open("rb") as file:
                assert self.request.sendfile(file, 0, count) == (count or 1_000_000)

        def do_GET(self) -> None:
            self.reply(b"next")

    with serving(Sending) as server, Client(server) as client:
        client.send(b"PUT / HTTP/1.1\r\n\r\n")
        assert client.body() == b"y" * min(announced, 1_000_000)
        assert client.ended() if announced > 1_000_000 else client.get().body() == b"next"


def test_what_follows_an_upgrade_is_no_request() -> None:
    class Upgrading(Quiet):
        def do_GET(self) -> None:
            if "Upgrade" not in self.headers or self.path == "/no":
                self.reply(b"no")
                return
            self.send_response(101)
            self.end_headers()
            self.wfile.write(self.rfile.read(5) + self.rfile.readline() + self.rfile.read1())
            self.close_connection = True

    with serving(Upgrading) as server, Client(server) as client:
        assert client.get("/no", "Upgrade: h2c", "Connection: upgrade").body() == b"no"
        assert client.get("/").body() == b"no"
        client.send(b"GET / HTTP/1.1\r\nUpgrade: echo\r\n\r\nabc")
        assert client.response(to_head=True).status == 101
        client.send(b"defg\n").send(b"h")
        assert client.file.read() == b"abcdefg\nh"


def test_what_follows_a_connect_is_a_tunnel() -> None:
    class Tunnel(Quiet):
        def do_CONNECT(self) -> None:
            self.send_response(200)
            self.end_headers()
            while data := self.request.recv(1000):
                self.request.sendall(data.upper())

    with serving(Tunnel) as server, Client(server) as client:
        client.send(b"CONNECT a:1 HTTP/1.1\r\n\r\n")
        assert client.response(to_head=True).status == 200
        for word in (b"abc", b"def"):
            client.send(word)
            assert client.file.read(3) == word.upper()
        assert client.half_close().ended()


def test_a_handler_that_asks_for_lines_of_its_own_length_is_not_kept() -> None:
    class Other(Quiet):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline()
            if not self.raw_requestline:
                self.close_connection = True
            elif self.parse_request():
                self.reply(self.path.encode())

    with serving(Other) as server, Client(server) as client:
        assert client.get("/a").body() == b"/a"
        assert client.ended()


def test_a_client_that_sends_on_can_read_its_answer() -> None:
    class Old(Echo):
        protocol_version = "HTTP/1.0"

    with porter(Old) as keeper, Client(keeper.server) as client:
        client.send(b"GET /a HTTP/1.0\r\n\r\n" + b"x" * 60_000)
        assert keeper.answer(client).body == b"/a"
        keeper.hold(keeper.door.lingering, 1)
        client.close()
        keeper.hold(keeper.door.lingering, 0)


def test_blank_lines_around_a_request_are_dropped() -> None:
    with serving(Echo) as server, Client(server) as client:
        for blank in (b"\r\n" * 10, b"\n" * 5000):
            assert client.send(blank).get("/a").body() == b"/a"
        for blank in (b"\r\n", b"\r"):
            assert client.send(b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\na" + blank).body() == b"a"
        assert client.send(b"\n").get("/b").body() == b"/b"


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b":", b" "]), max_size=30).map(b"".join))
def test_looking_on_finds_what_looking_anew_finds(data: bytes) -> None:
    def look(data: bytes, scanned: int = 0) -> Any:
        try:
            return framing.measure(data, scanned, 100)
        except framing.BadRequest as error:
            return error.status

    data = b"GET / HTTP/1.1\r\n" + data
    for cut in range(len(data)):
        if look(data[:cut]) is None:
            assert look(data, cut) == look(data)


@given(st.binary(max_size=200))
def test_nothing_makes_it_fail_otherwise(data: bytes) -> None:
    try:
        head = framing.measure(data, 0, 100)
    except framing.BadRequest:
        return
    assert head is None or 0 < head.size <= len(data)
