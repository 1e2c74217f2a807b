"""Real clients of the HTTP server: httpx, curl and ab, where they are installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from xmlrpc.client import ServerProxy
from xmlrpc.server import SimpleXMLRPCDispatcher, SimpleXMLRPCRequestHandler

import pytest
from support.common import TIMEOUT
from support.httpserver import Echo, serving

from ebbpool.socketserver import AdaptivePoolHTTPServer

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
needs_ab = pytest.mark.skipif(shutil.which("ab") is None, reason="ab is not installed")


def url(server: Any, path: str = "/") -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def test_http_client() -> None:
    with serving(Echo) as server:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=TIMEOUT)
        for number in range(5):
            connection.request("POST", "/", body=str(number))
            assert connection.getresponse().read() == str(number).encode()
            connection.request("GET", f"/{number}")
            assert connection.getresponse().read() == f"/{number}".encode()
        connection.close()


def test_httpx_from_many_threads() -> None:
    httpx = pytest.importorskip("httpx")
    with serving(Echo) as server:

        def ask(first: int) -> bool:
            # A client each: httpx's own pool of connections is not safe to share without a GIL.
            with httpx.Client(base_url=url(server), timeout=TIMEOUT, trust_env=False) as client:
                for number in range(first, 200, 8):
                    body = str(number).encode() * number
                    if client.get(f"/{number}").text != f"/{number}" or client.post("/", content=body).content != body:
                        return False
            return True

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(ask, range(8)))


def test_httpx_large_bodies() -> None:
    httpx = pytest.importorskip("httpx")
    with serving(Echo) as server, httpx.Client(timeout=TIMEOUT, trust_env=False) as client:
        for size in (0, 1, 65_536, 1_000_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000):
            body = bytes(size)
            assert client.post(url(server), content=body).content == body


def curl(*arguments: str) -> bytes:
    command = ["curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", str(TIMEOUT), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=2 * TIMEOUT).stdout


@needs_curl
def test_curl(tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"0123456789" * 300_000)
    with serving(Echo) as server:
        assert curl(url(server, "/a"), url(server, "/b"), url(server, "/c")) == b"/a/b/c"
        assert curl("--http1.0", url(server, "/a")) == b"/a"
        assert curl("--head", url(server)).startswith(b"HTTP/1.1 200 OK\r\n")
        assert curl("--data-binary", f"@{body}", url(server)) == body.read_bytes()
        expecting = curl("--header", "Expect: 100-continue", "--data-binary", f"@{body}", url(server))
        assert expecting == body.read_bytes()
        assert curl("--http2", url(server, "/a"), url(server, "/b")) == b"/a/b"


@needs_ab
@pytest.mark.parametrize("options", [(), ("-k",)])
def test_ab(options: tuple[str, ...]) -> None:
    class Telling(Echo):
        def end_headers(self) -> None:
            if not self.close_connection:
                # A client of HTTP/1.0 waits for the end of the connection without it.
                self.send_header("Connection", "keep-alive")
            super().end_headers()

    with serving(Telling) as server:
        command = ["ab", "-q", "-n", "2000", "-c", "500", "-s", str(int(TIMEOUT)), *options, url(server)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5 * TIMEOUT)
        assert done.returncode == 0, done.stderr
        assert re.search(r"^Complete requests: +2000$", done.stdout, re.MULTILINE), done.stdout
        assert re.search(r"^Failed requests: +0$", done.stdout, re.MULTILINE), done.stdout
        assert "Non-2xx" not in done.stdout


def test_xmlrpc() -> None:
    class Calls(SimpleXMLRPCDispatcher, AdaptivePoolHTTPServer):
        def __init__(self, *arguments: Any) -> None:
            SimpleXMLRPCDispatcher.__init__(self, allow_none=False, encoding=None, use_builtin_types=False)
            AdaptivePoolHTTPServer.__init__(self, *arguments)

        logRequests = False

    class Handler(SimpleXMLRPCRequestHandler):
        protocol_version = "HTTP/1.1"

    with serving(Handler, Calls) as server:
        server.register_function(pow, "pow")
        with ServerProxy(url(server)) as proxy:
            assert [proxy.pow(2, number) for number in range(10)] == [2**number for number in range(10)]
