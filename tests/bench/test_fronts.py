"""The asyncio fronts of docs/servers.md: what each keeps away from the pool's workers, and what it does not."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import support.benchmark  # noqa: F401  (makes `benchmarks` importable)
from support.common import A_MOMENT, TIMEOUT, Background, Boom, Gate, eventually, wait_for_idle

from benchmarks.servers import fronts
from ebbpool import AdaptiveExecutor

httpx = pytest.importorskip("httpx")
pytest.importorskip("h11")

A_LITTLE = 0.05
"""Seconds that a client is granted where it is to be too slow."""
ONCE = b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n"
HEAD = b"POST /upload HTTP/1.1\r\nhost: here\r\ncontent-length: 10\r\n\r\n"
LARGE = 32 * 1024 * 1024
"""Bytes: more than the sockets on both sides hold."""


def echo(method: str, target: str, body: bytes) -> bytes:
    return body or target.rstrip("?").encode("ascii")


@dataclass
class Front:
    """A front that serves in a thread of its own, and the pool behind it."""

    port: int
    pool: AdaptiveExecutor

    def client(self, **others: Any) -> Any:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=TIMEOUT, trust_env=False, **others)

    @contextmanager
    def connection(self, *text: bytes) -> Iterator[socket.socket]:
        """Yield a raw connection on which `text` has been sent."""
        with socket.socket() as raw:
            raw.settimeout(TIMEOUT)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            raw.connect(("127.0.0.1", self.port))
            for part in text:
                raw.sendall(part)
            yield raw


def all_of(raw: socket.socket) -> bytes:
    """Return what comes until the other side closes."""
    received = bytearray()
    with suppress(ConnectionResetError):
        while data := raw.recv(1_048_576):
            received += data
    return bytes(received)


Serve = Callable[[socket.socket, AdaptiveExecutor, Any, Any], Any]
"""Gets listener, pool, handler and limits; returns the coroutine that serves, and what ends it from another thread."""


def plain(listener: socket.socket, pool: AdaptiveExecutor, handler: Any, limits: Any) -> Any:
    over = threading.Event()

    async def serve() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        watcher = threading.Thread(target=lambda: (over.wait(), loop.call_soon_threadsafe(stopped.set)))
        watcher.start()
        server = await asyncio.start_server(fronts.PlainFront(pool, handler, limits), sock=listener)
        async with server:
            await stopped.wait()
        watcher.join()

    return serve(), over.set


def behind_uvicorn(listener: socket.socket, pool: AdaptiveExecutor, wsgi: Any, limits: Any) -> Any:
    """Serve a WSGI app in place of a handler."""
    for package in ("a2wsgi", "uvicorn"):
        pytest.importorskip(package)
    server = fronts.uvicorn_server(fronts.asgi(wsgi, pool, limits))

    def stop() -> None:
        server.should_exit = True

    return server.serve(sockets=[listener]), stop


def flask(listener: socket.socket, pool: AdaptiveExecutor, handler: Any, limits: Any) -> Any:
    pytest.importorskip("flask")
    return behind_uvicorn(listener, pool, fronts.flask_app(handler), limits)


def flask_without_limits(listener: socket.socket, pool: AdaptiveExecutor, handler: Any, limits: Any) -> Any:
    return flask(listener, pool, handler, None)


@contextmanager
def front(
    serve: Serve, handler: Any = echo, *, pool: Any = None, new_loop: Any = None, **limits: Any
) -> Iterator[Front]:
    granted = fronts.Limits(**limits)
    with pool or AdaptiveExecutor(keep_alive=600) as pool, socket.create_server(("127.0.0.1", 0)) as listener:
        serving, stop = serve(listener, pool, handler, granted)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            background = Background(lambda: runner.run(serving))
            try:
                yield Front(listener.getsockname()[1], pool)
            finally:
                stop()
                background.join()


@pytest.fixture(params=[plain, flask], ids=["plain", "flask"])
def serve(request: pytest.FixtureRequest) -> Serve:
    chosen: Serve = request.param
    return chosen


def test_requests_are_answered_by_the_pool(serve: Serve) -> None:
    with front(serve) as found, found.client() as client:
        for number in range(3):
            assert client.get(f"/{number}").text == f"/{number}"
        body = bytes(range(256)) * 1000
        assert client.post("/upload", content=body).content == body
        assert client.post("/upload", content=iter([b"in", b"pieces"])).content == b"inpieces"
        assert client.post("/upload", content=b"x", headers={"connection": "close"}).content == b"x"
        assert client.get("/again").text == "/again"
        wait_for_idle(found.pool)
        assert found.pool.stats().completed == 7


def test_blocking_handlers_run_side_by_side(serve: Serve) -> None:
    together = threading.Barrier(30)

    def handler(method: str, target: str, body: bytes) -> bytes:
        together.wait(TIMEOUT)
        return b"together"

    async def ask(port: int) -> set[str]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits, trust_env=False) as client:
            asked = (client.get(f"http://127.0.0.1:{port}/") for _ in range(together.parties))
            return {response.text for response in await asyncio.gather(*asked)}

    with front(serve, handler) as found:
        assert asyncio.run(ask(found.port)) == {"together"}


def test_a_head_that_trickles_in_takes_no_worker(serve: Serve) -> None:
    with front(serve) as found, ExitStack() as slow, found.client() as client:
        for _ in range(20):
            slow.enter_context(found.connection(b"GET /slow HTTP/1.1\r\n", b"host: he"))
        assert client.get("/quick").text == "/quick"
        assert found.pool.stats().submitted == 1


def test_a_body_that_trickles_in_takes_no_worker(serve: Serve) -> None:
    with front(serve) as found, found.connection(HEAD, b"01234") as slow, found.client() as client:
        assert client.get("/quick").text == "/quick"
        assert found.pool.stats().submitted == 1
        slow.sendall(b"56789")
        eventually(lambda: found.pool.stats().submitted == 2)
        assert b"\r\n\r\n" in slow.recv(65_536)


def test_without_limits_the_worker_waits_for_the_body() -> None:
    with front(flask_without_limits) as found, found.connection(HEAD, b"01234") as slow:
        eventually(lambda: found.pool.stats().running == 1)
        assert not found.pool.wait_idle(A_MOMENT)
        slow.sendall(b"56789")
        wait_for_idle(found.pool)


def test_too_slow_a_body(serve: Serve) -> None:
    with front(serve, body_seconds=A_LITTLE) as found, found.connection(HEAD + b"01234") as slow:
        assert all_of(slow).startswith(b"HTTP/1.1 408 ")
        assert found.pool.stats().submitted == 0


@pytest.mark.parametrize("content", [b"x" * 200, [b"x" * 90, b"x" * 90]], ids=["length", "chunked"])
def test_too_large_a_body(serve: Serve, content: Any) -> None:
    with front(serve, body_bytes=100) as found, found.client() as client:
        response = client.post("/upload", content=content if isinstance(content, bytes) else iter(content))
        assert (response.status_code, response.headers["connection"]) == (413, "close")
        assert found.pool.stats().submitted == 0


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_resets(serve: Serve, loop: str, caplog: pytest.LogCaptureFixture) -> None:
    new_loop = pytest.importorskip(loop).new_event_loop
    with Gate() as gate, front(serve, lambda *request: gate(b"late"), new_loop=new_loop) as found:
        for text in (b"GET / HT", HEAD + b"01234", ONCE):
            with found.connection(text) as raw:
                if text is ONCE:
                    gate.await_begun()
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gate.open()
        with found.client() as client:
            assert client.get("/").text == "late"
        wait_for_idle(found.pool)
    assert not caplog.records


def test_a_handler_that_raises(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    def handler(method: str, target: str, body: bytes) -> bytes:
        if target.startswith("/boom"):
            raise Boom
        return b"well"

    with front(serve, handler) as found, found.client() as client:
        assert client.get("/boom").status_code == 500
        assert client.get("/").text == "well"
    assert "Boom" in caplog.text


def test_a_response_that_nobody_reads_takes_no_worker(serve: Serve) -> None:
    with front(serve, lambda *request: bytes(LARGE)) as found, found.connection(ONCE) as slow:
        slow.recv(1, socket.MSG_PEEK)
        wait_for_idle(found.pool)
        assert len(all_of(slow).partition(b"\r\n\r\n")[2]) == LARGE


def test_a_streamed_response_that_nobody_reads_holds_its_worker() -> None:
    piece, closed = bytes(LARGE // 64), threading.Event()

    def wsgi(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("content-length", str(LARGE))])
        try:
            for _ in range(64):
                yield piece
        finally:
            closed.set()

    with front(behind_uvicorn, wsgi) as found, found.connection(ONCE) as slow:
        slow.recv(1, socket.MSG_PEEK)
        assert not closed.wait(A_MOMENT)
        assert len(all_of(slow).partition(b"\r\n\r\n")[2]) == LARGE
        assert closed.wait(TIMEOUT)
        wait_for_idle(found.pool)


class Ahead(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    seconds = 0.0

    def time(self) -> float:
        return super().time() + self.seconds

    def skip(self, seconds: float) -> None:
        self.seconds += seconds


def test_too_slow_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    read, reads = asyncio.StreamReader.read, threading.Semaphore(0)

    async def watched(reader: asyncio.StreamReader, count: int = -1) -> bytes:
        reads.release()
        return await read(reader, count)

    monkeypatch.setattr(asyncio.StreamReader, "read", watched)
    loop = Ahead()

    def too_late(raw: socket.socket, count: int) -> bytes:
        """Return what comes once the front waits in vain, which it does in its `count`-th read."""
        assert all(reads.acquire(timeout=TIMEOUT) for _ in range(count))
        loop.call_soon_threadsafe(loop.skip, fronts.Limits().head_seconds)
        return all_of(raw)

    with front(plain, new_loop=lambda: loop) as found:
        with found.connection(b"GET /slow HTTP/1.1\r\n") as slow:
            assert too_late(slow, 2).startswith(b"HTTP/1.1 408 ")
        with found.connection() as silent:
            assert too_late(silent, 1) == b""
        with found.connection(b"GET /one HTTP/1.1\r\nhost: here\r\n\r\n") as idle:
            assert too_late(idle, 2).endswith(b"\r\n\r\n/one")


def test_too_slow_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    talk, over = fronts.PlainFront.__call__, threading.Event()

    async def watched(*args: Any) -> None:
        await talk(*args)
        over.set()

    monkeypatch.setattr(fronts.PlainFront, "__call__", watched)
    with front(plain, lambda *request: bytes(LARGE), write_seconds=A_LITTLE) as found, found.connection(ONCE) as slow:
        slow.recv(1, socket.MSG_PEEK)
        assert over.wait(TIMEOUT)
        assert 0 < len(all_of(slow)) < LARGE


def test_a_full_queue() -> None:
    pool = AdaptiveExecutor(1, max_queue=1, when_full="reject")
    with Gate() as gate, ExitStack() as clients, front(plain, lambda *request: gate(b"let in"), pool=pool) as found:
        running = clients.enter_context(found.connection(ONCE))
        gate.await_begun()
        queued = clients.enter_context(found.connection(ONCE))
        eventually(lambda: pool.stats().queued == 1)
        with found.client() as client:
            response = client.get("/")
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            gate.open()
            assert all_of(running).endswith(b"let in")
            assert all_of(queued).endswith(b"let in")
            assert client.get("/").text == "let in"


def test_too_large_a_head(serve: Serve) -> None:
    with front(serve) as found, found.connection(b"GET / HTTP/1.1\r\nlong: " + b"x" * 66_000) as slow:
        assert all_of(slow)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400")
        assert found.pool.stats().submitted == 0


def test_a_client_that_waits_to_be_told_to_go_on() -> None:
    waiting = HEAD.replace(b"host: here", b"host: here\r\nexpect: 100-continue")
    with front(plain) as found, found.connection(waiting) as raw:
        assert raw.recv(65_536).startswith(b"HTTP/1.1 100 ")
        raw.sendall(b"0123456789")
        assert raw.recv(65_536).endswith(b"0123456789")
