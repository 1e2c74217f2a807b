"""Where a request ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbpool._http.framing import (
    BadRequest,
    head_size,
    is_interim,
    measure,
)


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b":", b" "]), max_size=30).map(b"".join), st.integers(0, 30))
def test_looking_on_finds_what_looking_anew_finds(data: bytes, cut: int) -> None:
    cut = min(cut, len(data))
    if head_size(data[:cut]) == 0:
        assert head_size(data, cut) == head_size(data)


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


@given(st.binary(max_size=200))
def test_nothing_makes_it_fail_otherwise(data: bytes) -> None:
    try:
        head = measure(data, 0, 100)
    except BadRequest:
        return
    assert head is None or 0 < head.size <= len(data)
