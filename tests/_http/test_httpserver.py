"""The HTTP server: connections that are kept, and the hooks of its bases."""

from __future__ import annotations

import inspect
import shutil
import socket
import socketserver
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Gate, eventually
from support.httpserver import Client, Echo, gated, pollers, served, serving
from support.server import LOOPBACK, noting, over_tls, tls_client

from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolMixIn


@pytest.fixture(params=["best", "portable"])
def poller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with what this system has, and with what every system has."""
    if request.param == "portable":
        monkeypatch.setattr(pollers, "make_poller", pollers.SelectorPoller)
    return str(request.param)


def rooms(server: Any) -> dict[str, int]:
    door = server._door
    return {name: len(getattr(door, name).held) for name in ("reading", "filling", "idle", "lingering")}


@pytest.mark.usefixtures("poller")
def test_an_idle_connection_holds_no_worker() -> None:
    with serving(Echo, max_workers=1) as server:
        clients = [Client(server) for _ in range(20)]
        for client in clients:
            assert client.get().body() == b"/"
        eventually(lambda: rooms(server)["idle"] == 20)
        eventually(lambda: server.pool_handlers.executor.stats().running == 0)
        for client in reversed(clients):
            assert client.get("/again").body() == b"/again"
            client.close()


@pytest.mark.usefixtures("poller")
def test_pipelined_requests_are_answered_in_order_and_those_that_are_here_by_one_worker_in_one_turn() -> None:
    kind, turns = noting(AdaptivePoolHTTPServer, "process_request")
    with serving(Echo, kind) as server, Client(server) as client:
        client.send(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(50)))
        assert [client.body() for _ in range(50)] == [b"/%d" % number for number in range(50)]
        assert len(turns) == 1
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nonePOST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nt")
        assert client.body() == b"one"
        client.send(b"wo\r\n\r\nGET /th")
        assert client.body() == b"two"
        assert client.send(b"ree HTTP/1.1\r\n\r\n").body() == b"/three"
        client.send(b"GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: x\r\n\r\n")
        assert client.body() == b"/"
        assert client.response().status == 400, "a bad request behind a good one"
        assert client.ended()


def test_connections_end_when_client_or_handler_says_so() -> None:
    with serving(Echo) as server:
        with Client(server) as client:
            assert client.get("/", "Connection: close").body() == b"/"
            assert client.ended()
        with Client(server) as client:
            assert client.send(b"GET / HTTP/1.0\r\n\r\n").body() == b"/"
            assert client.ended()
        with Client(server) as client:
            client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert client.body() == b"/"
            assert client.get().body() == b"/"

    class Old(Echo):
        protocol_version = "HTTP/1.0"

    with serving(Old) as server, Client(server) as client:
        assert client.get().body() == b"/"
        assert client.ended()


def test_a_client_that_shuts_down_its_side_gets_its_answer() -> None:
    with Gate() as gate, serving(gated(gate)) as server, Client(server) as client:
        client.get("/wait").half_close()
        gate.await_begun()
        gate.open()
        assert client.body() == b"/wait"
        assert client.ended()


def test_a_client_that_leaves_in_the_middle_harms_nobody_and_its_request_is_not_run() -> None:
    with serving(Echo, max_workers=1) as server:
        for part in (b"", b"GET", b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"):
            with Client(server) as client:
                client.send(part)
            with Client(server) as client:
                client.send(part)
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            with Client(server) as client:
                client.send(part).half_close()
                assert not part or client.response().status == 400
                assert client.ended()
        assert server.pool_handlers.executor.stats().submitted == 0
        with Client(server) as client:
            assert client.get().body() == b"/"
            eventually(lambda: rooms(server) == {"reading": 0, "filling": 0, "idle": 1, "lingering": 0})


def test_hooks_are_called() -> None:
    once = ["process_request", "finish_request"]
    each = ["get_request", "verify_request", *once, "shutdown_request"]
    kind, calls = noting(AdaptivePoolHTTPServer, *each)
    with serving(Echo, kind) as server:
        with Client(server) as client:
            client.get().body()
            client.get().body()
        eventually(lambda: calls == [*each[:2], *once, *once, "shutdown_request"], str(calls))
        calls.clear()
        server.verify_request = lambda *_: False
        with Client(server) as client:
            assert client.ended()
        eventually(lambda: calls == ["get_request", "shutdown_request"])


@pytest.mark.parametrize("hook", ["get_request", "verify_request"])
def test_a_hook_may_read_what_comes_before_the_request(hook: str) -> None:
    lines: list[bytes] = []

    def read(request: Any) -> None:
        with request.makefile("rb", 0) as file:
            lines.append(file.readline())

    class Proxied(AdaptivePoolHTTPServer):
        def get_request(self) -> Any:
            request, address = super().get_request()
            if hook == "get_request":
                request.setblocking(True)
                read(request)
            return request, address

        def verify_request(self, request: Any, client_address: Any) -> bool:
            if hook == "verify_request":
                read(request)
            return True

    with serving(Echo, Proxied) as server, Client(server) as client:
        client.send(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n")
        assert client.get().body() == b"/"
        assert lines == [b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"]


def test_a_plain_get_request_and_one_that_waits_for_nobody() -> None:
    class Plain(AdaptivePoolHTTPServer):
        def get_request(self) -> Any:
            return self.socket.accept()

        # No pool, no keeping.
        process_request = socketserver.BaseServer.process_request

    with serving(Echo, Plain) as server, Client(server) as client:
        assert client.get().body() == b"/"
        assert client.ended()


def test_handle_request_serves_a_connection_the_plain_way() -> None:
    class Telling(Echo):
        def do_PUT(self) -> None:
            self.reply(str(self.connection.gettimeout()).encode())

    with AdaptivePoolHTTPServer(("127.0.0.1", 0), Telling) as server:
        # After a loop, too.
        server.service_actions = server.shutdown
        server.serve_forever(0.001)
        with Client(server) as client:
            server.handle_request()
            for number in range(3):
                assert client.get(f"/{number}").body() == f"/{number}".encode()
            assert client.post(b"body").body() == b"body"
            assert client.send(b"PUT / HTTP/1.1\r\n\r\n").body() == b"30.0"
            client.send(b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert [client.body(), client.body()] == [b"/1", b"/2"]
            assert client.ended()


def test_a_connection_outlives_the_pause_between_two_loops() -> None:
    with AdaptivePoolHTTPServer(("127.0.0.1", 0), Echo) as server, Client(server) as client:
        server.socket.settimeout(3)
        for number in range(2):
            loop = Background(lambda: server.serve_forever(0.01))
            assert client.get(f"/{number}").body() == f"/{number}".encode()
            eventually(lambda: rooms(server)["idle"] == 1)
            server.shutdown()
            loop.join()
            assert server.socket.gettimeout() == 3


def test_a_tls_listener_is_served_the_plain_way() -> None:
    with (
        served(over_tls(AdaptivePoolHTTPServer(LOOPBACK, Echo))) as server,
        closing(tls_client(server)) as client,
        client.makefile("rb") as file,
    ):
        client.sendall(b"GET /tls HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert b"/tls" in file.read()


@pytest.mark.parametrize("name", ["process_request", "process_request_thread", "refuse_request"])
def test_an_override_may_pass_its_arguments_on_by_name(name: str) -> None:
    ours, base = (inspect.signature(getattr(kind, name)) for kind in (AdaptivePoolHTTPServer, AdaptivePoolMixIn))
    assert list(ours.parameters) == list(base.parameters)


def url(server: Any, path: str = "/") -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def test_httpx_from_many_threads_with_bodies_of_all_sizes() -> None:
    httpx = pytest.importorskip("httpx")
    with serving(Echo) as server:

        def ask(first: int) -> bool:
            # A client each: httpx's own pool of connections is not safe to share without a GIL.
            with httpx.Client(base_url=url(server), timeout=TIMEOUT, trust_env=False) as client:
                for number in range(first, 200, 8):
                    body = str(number).encode() * number
                    if client.get(f"/{number}").text != f"/{number}" or client.post("/", content=body).content != body:
                        return False
                large = bytes((0, 1, 65_536, 1_000_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000)[first])
                return client.post("/", content=large).content == large

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(ask, range(8)))


def curl(*arguments: str) -> bytes:
    command = ["curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", str(TIMEOUT), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=2 * TIMEOUT).stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
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
