"""Where a request ends."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbpool._http.framing import (
    BadRequest,
    Head,
    head_size,
    is_interim,
    is_simple,
    measure,
    parse_head,
    response,
    skip_blank,
)

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def head_with(*lines: bytes, first: bytes = b"POST / HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"Host: a", *lines, b"", b""])


@pytest.mark.parametrize(
    "head", [GET, b"GET / HTTP/1.1\nHost: a\n\n", b"GET / HTTP/1.1\r\nHost: a\n\r\n", b"G / H\r\n\r\n"]
)
@pytest.mark.parametrize("rest", [b"", b"x", b"\r\n\r\n", b"\n\n", GET])
def test_a_head_ends_at_the_first_blank_line(head: bytes, rest: bytes) -> None:
    assert head_size(head + rest) == len(head)


@pytest.mark.parametrize("head", [GET, b"GET / HTTP/1.1\nHost: a\n\n", b"GET / HTTP/1.1\nHost: a\n\r\n"])
def test_a_head_is_found_however_it_is_cut(head: bytes) -> None:
    for cut in range(1, len(head)):
        assert head_size(head[:cut]) == 0
        assert head_size(head, cut) == len(head)


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b":", b" "]), max_size=30).map(b"".join), st.integers(0, 30))
def test_looking_on_finds_what_looking_anew_finds(data: bytes, cut: int) -> None:
    cut = min(cut, len(data))
    if head_size(data[:cut]) == 0:
        assert head_size(data, cut) == head_size(data)


@pytest.mark.parametrize(
    ("data", "size"),
    [(b"", 0), (b"\r\n", 2), (b"\n", 1), (b"\r", 0), (b"\r\n\n\r\nGET", 5), (b"GET", 0), (b"\r\r\n", 0)],
)
def test_blank_lines_are_skipped(data: bytes, size: int) -> None:
    assert skip_blank(data) == size


def test_blank_lines_without_end_are_refused() -> None:
    assert skip_blank(b"\r\n" * 10 + b"GET") == 20
    for line in (b"\n", b"\r\n"):
        with pytest.raises(BadRequest) as caught:
            skip_blank(line * 11)
        assert caught.value.status == HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize(
    ("data", "interim"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n", True),
        (b"HTTP/1.0 103 Early Hints\nLink: a\nLink: b\n\n", True),
        (b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n", True),
        (b"HTTP/1.1 100\r\n\r\n", True),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", False),
        (b"HTTP/1.1 100 Continue\r\n", False),
        (b"HTTP/1.1 200 OK\r\n\r\n", False),
        (b"100", False),
        (b"", False),
    ],
)
def test_a_response_that_announces_another_one(data: bytes, interim: bool) -> None:
    assert is_interim(data) is interim


@pytest.mark.parametrize("blank", [b"\x1c", b"\x1d", b"\x1e", b"\x1f", b"\x85", b"\xa0", b"\x0b", b"\x0c"])
def test_the_first_line_is_split_as_http_server_splits_it(blank: bytes) -> None:
    if len(str(b"a" + blank + b"b", "latin-1").split()) == 1:
        pytest.skip("no blank to this Python, and so to its http.server")
    assert is_simple(b"GET /" + blank + b"a HTTP/1.1\r\n")
    assert not is_simple(b"GET /" + blank + b"HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "line", [b"GET /\r\n", b"GET /\n", b"nonsense\r\n", b"GET / x HTTP/1.1\r\n", b"GET / XTTP/1.1\r\n"]
)
def test_a_line_that_is_no_request_line_is_all_there_is(line: bytes) -> None:
    assert is_simple(line)
    assert measure(line, 0, 100) == Head(len(line), last=True)


@pytest.mark.parametrize(
    "data", [b"", b"GET", b"GET / HTTP/1.1", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n"]
)
def test_part_of_a_request_is_none(data: bytes) -> None:
    assert not is_simple(data)
    assert measure(data, 0, 100) is None


@pytest.mark.parametrize(
    "data",
    [b"GET /\0 HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nX: \0\r\n\r\n", b"GET / HTTP/1.1\r\nX: \0", b"\0", b"GET /\0\n"],
)
def test_a_nul_is_refused_as_soon_as_it_comes(data: bytes) -> None:
    scanned = data.index(b"\0")
    assert scanned == 0 or measure(data[:scanned], 0, 100) is None
    with pytest.raises(BadRequest) as caught:
        measure(data, scanned, 100)
    assert caught.value.status == HTTPStatus.BAD_REQUEST


def test_a_nul_after_the_head_is_the_bodys() -> None:
    head = head_with(b"Content-Length: 1")
    assert measure(head + b"\0", 0, 100) == Head(len(head), 1)


def test_a_head_without_a_body() -> None:
    assert parse_head(GET) == Head(len(GET))


@pytest.mark.parametrize("name", [b"Content-Length", b"content-length", b"CONTENT-LENGTH"])
@pytest.mark.parametrize(
    ("value", "length"), [(b"0", 0), (b" 5", 5), (b"\t17 ", 17), (b"007", 7), (b"9" * 20, 10**20 - 1)]
)
def test_the_length_of_a_body(name: bytes, value: bytes, length: int) -> None:
    head = head_with(name + b":" + value)
    assert parse_head(head) == Head(len(head), length)


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: -1"],
        [b"Content-Length: +1"],
        [b"Content-Length: 1_0"],
        [b"Content-Length: 0x10"],
        [b"Content-Length: 5 5"],
        [b"Content-Length: 5, 5"],
        [b"Content-Length:"],
        [b"Content-Length: \xb2"],
        [b"Content-Length: " + b"9" * 21],
        [b"Content-Length: 5", b"Content-Length: 5"],
        [b"Content-Length: 5", b"content-length: 6"],
        [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
        [b"Content-Length : 5"],
        [b"Transfer-Encoding : chunked"],
        [b"X : 5"],
        [b" Content-Length: 5"],
        [b"X: a", b"\tContent-Length: 5"],
        [b"X: a\rContent-Length: 5"],
        [b"no field", b"Content-Length: 5"],
        [b"X: a", b" Transfer-Encoding: chunked"],
        [b"\x0bTransfer-Encoding: chunked"],
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_head(head_with(*lines))
    assert caught.value.status == HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize(
    "line", [b"X: a", b"X:", b"X-Content-Length-Of: 5", b"X: content-length", b"X: transfer-encoding: a"]
)
def test_other_fields_say_nothing(line: bytes) -> None:
    head = head_with(line)
    assert parse_head(head) == Head(len(head))


@pytest.mark.parametrize("line", [b" folded", b"\tfolded", b"no field", b"X: a\rb", b": a", b"X\xff: a"])
def test_after_an_odd_line_no_request_follows(line: bytes) -> None:
    head = head_with(b"Y: b", line)
    assert parse_head(head) == Head(len(head), last=True)


@pytest.mark.parametrize("first", [b"GET /\ra HTTP/1.1", b"GET / HTTP/1.1\r"])
def test_after_an_odd_first_line_no_request_follows(first: bytes) -> None:
    assert parse_head(head_with(first=first)).last


@pytest.mark.parametrize("first", [b"GET /", b"GET", b"GET / a HTTP/1.1"])
def test_a_bad_first_line_ends_it_all(first: bytes) -> None:
    head = head_with(first=first)
    assert parse_head(head) == Head(len(head), last=True)
    with pytest.raises(BadRequest):
        parse_head(head_with(b"Content-Length: 5", first=first))


def test_a_body_in_chunks_has_no_known_end() -> None:
    head = head_with(b"Transfer-Encoding: chunked")
    assert parse_head(head) == Head(len(head), None, last=True)


def test_what_may_become_something_else() -> None:
    assert parse_head(head_with(b"Connection: upgrade", b"Upgrade: websocket")).open_ended
    assert parse_head(head_with(first=b"CONNECT a:1 HTTP/1.1")).open_ended
    assert not parse_head(GET).open_ended
    assert not parse_head(head_with(b"Upgrade: a", b"Transfer-Encoding: chunked")).open_ended


def test_a_client_that_waits_for_a_word() -> None:
    assert parse_head(head_with(b"Expect: 100-continue", b"Content-Length: 5")).expects
    assert not parse_head(GET).expects


def test_a_head_that_is_too_large() -> None:
    assert measure(GET, 0, len(GET)) == Head(len(GET))
    for most in (len(GET) - 1, 20):
        with pytest.raises(BadRequest) as caught:
            measure(GET, 0, most)
        assert caught.value.status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    with pytest.raises(BadRequest) as caught:
        measure(GET, 0, 10)
    assert caught.value.status == HTTPStatus.REQUEST_URI_TOO_LONG
    with pytest.raises(BadRequest) as caught:
        measure(b"x" * 11, 0, 10)
    assert caught.value.status == HTTPStatus.REQUEST_URI_TOO_LONG
    assert measure(b"x" * 10, 0, 10) is None


@given(st.binary(max_size=200))
def test_nothing_makes_it_fail_otherwise(data: bytes) -> None:
    try:
        head = measure(data, 0, 100)
    except BadRequest:
        return
    assert head is None or 0 < head.size <= len(data)


def test_responses() -> None:
    assert response(HTTPStatus.SERVICE_UNAVAILABLE, retry_after=3) == (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 24\r\n"
        b"Connection: close\r\nRetry-After: 3\r\n\r\n503 Service Unavailable\n"
    )
    assert response(HTTPStatus.BAD_REQUEST, body=False).endswith(b"Connection: close\r\n\r\n")
