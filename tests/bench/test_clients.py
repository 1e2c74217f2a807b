"""The clients and servers of `benchmarks/`: a wrong answer must never pass for a right one, and no process is left."""

from __future__ import annotations

import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any

import pytest
from support.benchmark import answering, talking
from support.common import A_MOMENT, TIMEOUT, Boom

from benchmarks import tcp as tcp_questions
from benchmarks import web
from benchmarks.engine.model import load_question
from benchmarks.load import ab, http, tcp
from benchmarks.load.http import Reconnecting, Tally, ask_steadily
from benchmarks.load.tcp import EchoClients, WrongEcho
from benchmarks.peers.table import peer_named

RIGHT = b"HTTP/1.1 200 OK\r\ndate: today\r\nContent-Length: 3\r\n\r\n042"


def test_a_response_is_taken_whole_or_not_at_all() -> None:
    for end in range(len(RIGHT)):
        assert http.take_response(RIGHT[:end]) is None
    assert http.take_response(RIGHT) == (200, b"042", b"")
    assert http.take_response(RIGHT + b"HTTP") == (200, b"042", b"HTTP")
    right = b"HTTP/1.1 200 OK\r\ncontent-length: 5"
    for old, new in {b"1.1": b"1.0", b"200": b"2x0", b"content": b"x-content", b"5": b"-5", b"length": b"type"}.items():
        with pytest.raises(http.BadResponse):
            http.take_response(right.replace(old, new) + b"\r\n\r\nright")


def test_http_clients_check_every_response(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {1: RIGHT.replace(b"042", b"041"), 2: RIGHT.replace(b"200", b"500"), 3: b"no http\r\n\r\n", 4: None}
    with answering(lambda number: wrong.get(number, RIGHT)) as port, http.Clients(port, 8, "/", b"042") as clients:
        answered = clients.burst(TIMEOUT)
        assert (len(answered.latencies), answered.errors) == (8, 4)
        answered = clients.burst(TIMEOUT)
        assert (len(answered.latencies), answered.errors) == (8, 0)
    with answering(lambda number: b"") as port, http.Clients(port, 2, "/", b"042") as clients:
        assert clients.burst(0.05).errors == 2
        assert clients.load(0.0, 0.05).seconds >= 0.05
    # It goes on after the first loss, and ends at the second. Each was asked for after others were answered.
    monkeypatch.setattr(http, "_MOST_ERRORS", 2)
    lost = {10: None, 20: None}
    with answering(lambda number: lost.get(number, RIGHT)) as port, http.Clients(port, 3, "/", b"042") as clients:
        answered = clients.load(0.0, TIMEOUT)
    assert answered.errors == 2 and answered.latencies


def test_clients_that_nobody_answers_count_with_their_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_questions, "LONG_WAIT_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = tcp_questions.Server(listener.getsockname()[1], 1)
        started = time.perf_counter()
        found = tcp_questions.ordinary(server, "kept", 0.01, 0.02)
    assert len(found.latencies) == tcp_questions.ORDINARY_CLIENTS
    assert 0.01 < min(found.latencies) <= max(found.latencies) <= time.perf_counter() - started


def steadily(port: int, patience: float = TIMEOUT) -> Tally:
    """Ask at least 12 times; all must meet with the same."""
    tally = ask_steadily(port, "/", fresh=100.0, kept=2, kept_rate=50.0, seconds=0.1, patience=patience)
    counts = len(tally.latencies), tally.refused, len(tally.lost), tally.wrong, tally.unanswered
    assert max(counts) == sum(counts) >= 12
    return tally


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        *((None, "lost"), (b"", "unanswered"), (b"\r\n" * 2, "wrong")),
        *((RIGHT.replace(b"200", b"503"), "wrong"), (RIGHT.replace(b"042", b"hey"), "wrong")),
    ],
)
def test_steady_clients_count_what_is_lost_wrong_or_never_answered(reply: bytes | None, kind: str) -> None:
    with answering(lambda number: reply) as port:
        assert getattr(steadily(port, A_MOMENT if reply == b"" else TIMEOUT), kind)


def test_steady_clients_count_what_is_right_or_refused() -> None:
    with answering(lambda number: RIGHT) as port:
        latencies = steadily(port).latencies
    assert 0 < min(latencies) <= max(latencies) < TIMEOUT
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert steadily(bound.getsockname()[1]).refused


def test_slow_clients_begin_never_end_and_come_back() -> None:
    for what in tcp.WHATS:
        beginning = tcp.beginning(what)
        assert (b"\r\n\r\n" in beginning) == (what in tcp.BODIES)
        with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
            listener.settimeout(TIMEOUT)
            port = listener.getsockname()[1]
            with pytest.raises(Boom), tcp.trickling(port, 1, what, 60.0, interval=0.01) as report:
                listener.accept()[0].close()
                raw = stack.enter_context(listener.accept()[0])
                raw.settimeout(TIMEOUT)
                received = b""
                while len(received) < len(beginning) + 3:
                    received += raw.recv(65_536)
                assert received.startswith(beginning + b"aaa")
                raise Boom
            assert report.dropped >= 1
            with suppress(ConnectionError):
                while raw.recv(65_536):
                    pass


@contextmanager
def echoing(answer: Callable[[bytes], bytes], at_the_end: bytes = b"") -> Iterator[int]:
    """Yield the port of a server that sends `answer(data)` for what came."""

    def talk(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            while data := connection.recv(1 << 20):
                if not (text := answer(data)):
                    return
                connection.sendall(text)
            connection.sendall(at_the_end)

    with talking(talk) as port:
        yield port


def test_a_right_echo_is_counted() -> None:
    watched = iter((1.0, 3.5))
    with echoing(bytes) as port, EchoClients(port, 3, 1000) as clients:
        echoed, messages = clients.load(0.0, 0.1, lambda: next(watched))
    assert messages >= 3 and messages % 3 == 0
    assert echoed.seconds >= 0.1 and echoed.watched_seconds == 2.5


def stale() -> Callable[[bytes], bytes]:
    """Return what sends once more what came first."""
    first: list[bytes] = []
    return lambda data: first.append(data) or first[0]  # type: ignore[func-returns-value]  # None is what is meant


@pytest.mark.parametrize(
    ("answer", "at_the_end", "complaint"),
    [
        (lambda data: data.ljust(4096, b"\0"), b"", "is wrong|more came back"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), b"", "byte 999 of 1000 is wrong"),
        (stale(), b"", "byte 0 of 1000 is wrong"),
        (lambda data: b"", b"", "0 of 1000 bytes came back"),
        (bytes, b"!", "more came back than was sent"),
    ],
    ids=["whole buffer", "last byte", "stale", "hangs up", "goes on"],
)
def test_a_wrong_echo_is_found_out(answer: Callable[[bytes], bytes], at_the_end: bytes, complaint: str) -> None:
    with (
        echoing(answer, at_the_end) as port,
        EchoClients(port, 1, 1000) as clients,
        pytest.raises((WrongEcho, ConnectionError), match=complaint),
    ):
        clients.load(0.0, 0.0 if at_the_end else TIMEOUT)


@contextmanager
def replying(*replies: bytes | None, after: threading.Event | None = None) -> Iterator[int]:
    """Yield the port of a server that sends one reply after the other, and resets the connection on None.

    After the last reply it sends that one again and again. It begins when `after` is set.
    """
    numbers = count()

    def talk(connection: socket.socket) -> None:
        if after is not None:
            after.wait(TIMEOUT)
        with connection, suppress(ConnectionError):
            reply = replies[min(next(numbers), len(replies) - 1)]
            if reply is None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                connection.sendall(reply)

    with talking(talk) as port:
        yield port


def replies_of(port: int, connections: int, seconds: float, patience: float, watch: Any = lambda: 0.0) -> http.Answered:
    with Reconnecting(port, connections, len(b"right!")) as clients:
        replies = clients.load(0.0, seconds, watch)
        clients.finish(replies, patience)
    return replies


def test_replies_are_right_wrong_refused_or_never_come_and_those_after_the_load_do_not_count() -> None:
    for wrong in (b"toolong", b"sho", None):
        # The load ends with the first error. Two clients ask for a fourth reply after two right ones.
        with replying(*[b"right!"] * 3, wrong, b"right!") as port, pytest.MonkeyPatch.context() as patch:
            patch.setattr(http, "_MOST_ERRORS", 1)
            replies = replies_of(port, 2, TIMEOUT, TIMEOUT)
        assert (replies.errors, replies.unanswered) == (1, 0)
        assert replies.latencies
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        replies = replies_of(bound.getsockname()[1], 4, TIMEOUT, 0.0)
    assert (replies.latencies, replies.errors >= 1_000) == ([], True)
    with pytest.raises(RuntimeError, match="not one right answer"):
        replies.rate()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert replies_of(listener.getsockname()[1], 3, 0.0, A_MOMENT).unanswered == 3
    looks, over = list[float](), threading.Event()

    def watch() -> float:
        looks.append(0.0)
        if len(looks) == 2:  # the seconds that count are over
            over.set()
        return 0.0

    with replying(b"right!", b"sho", after=over) as port:
        replies = replies_of(port, 3, 0.02, TIMEOUT, watch)
    assert (replies.latencies, replies.errors, replies.unanswered) == ([], 2, 0)


AB = """\
This is ApacheBench, Version 2.3 <$Revision: 1903618 $>

Time taken for tests:   0.502 seconds
Complete requests:      2000
Failed requests:        7
   (Connect: 0, Receive: 3, Length: 4, Exceptions: 0)
Non-2xx responses:      5
HTML transferred:       11976 bytes
Requests per second:    3984.06 [#/sec] (mean)

  50%      1
  99%     21
 100%     33 (longest request)
"""


def test_what_ab_reports() -> None:
    found = ab.parse_ab(AB, 0.25)
    assert found == ab.Ab(2000, 12, 11_976, 0.502, 3984.06, {50: 1.0, 99: 21.0, 100: 33.0}, 0.25)
    assert found.errors(6) == 12
    clean = AB.replace("Failed requests:        7", "Failed requests: 0").replace("Non-2xx responses:      5\n", "")
    # It takes a connection that ends without a response for a response: the bytes tell.
    for body_bytes, errors in {"12000": 0, "11976": 4, "11975": 5, "0": 2000, "13000": 167}.items():
        assert ab.parse_ab(clean.replace("11976", body_bytes)).errors(6) == errors
    with pytest.raises(ValueError, match="Complete requests"):
        ab.parse_ab(AB.replace("Complete requests", "Something else"))


def test_a_wrong_page_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "computed", lambda: b"something else\n")
    monkeypatch.setattr(shutil, "which", lambda name, **others: name)
    with pytest.raises(RuntimeError, match="no right answer at /computing"):
        load_question("web_server").measure(
            peer_named("web-threading"), {"page": "computing", "requests": 2, "at a time": 1}
        )
