"""The process that is counted: `python -m benchmarks.guard.script [LOAD ...]`. It calls `os.getsid` between its pieces.

Threads take turns here, and nothing depends on the time: a worker starts on what was queued when all of it is, and the
thread that waits for it sleeps until it is through. So the same script takes nearly the same instructions each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.server
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import ebbpool
from benchmarks.guard.figures import FLOORS, LOADS, WARM_UP
from benchmarks.peers.floor import BareThread
from benchmarks.peers.pools import BareQueue, PingPong
from ebbpool._core.accel import LoopCall
from ebbpool._maps import ledger
from ebbpool._pool import growth
from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolTCPServer

_FAR_SECONDS = 3_600.0
_REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
_BODY = b"answer"

Work = Callable[[int], object]


def nothing() -> None:
    """The trivial task."""


def itself(item: int) -> int:
    """The trivial item."""
    return item


class _Held:
    """Holds up the one worker of a pool, so that what is queued meanwhile runs in one go."""

    def __init__(self, pool: ebbpool.AdaptiveExecutor) -> None:
        self._pool, self._begun, self._gate, self._over = pool, threading.Lock(), threading.Lock(), threading.Lock()
        for lock in (self._begun, self._gate, self._over):
            lock.acquire()
        pool.submit(self._hold)
        self._begun.acquire()

    def _hold(self) -> None:
        self._begun.release()
        self._gate.acquire()

    def run(self) -> None:
        """Let the worker go on, and return when it has run what is queued."""
        self._pool.submit(self._over.release)
        self._gate.release()
        self._over.acquire()


@contextmanager
def submit() -> Iterator[Work]:
    """Submit calls, and collect their results."""
    with ebbpool.AdaptiveExecutor(1) as pool:

        def burst(count: int) -> None:
            held = _Held(pool)
            futures = [pool.submit(nothing) for _ in range(count)]
            held.run()
            for future in futures:
                future.result()

        yield burst


@contextmanager
def round_trip() -> Iterator[Work]:
    """Submit one and wait for it, again and again."""
    with ebbpool.AdaptiveExecutor(1) as pool:

        def trips(count: int) -> None:
            for _ in range(count):
                pool.submit(nothing).result()

        yield trips


@contextmanager
def later() -> Iterator[Work]:
    """Submit delayed calls, too few to have the timekeeper take them in."""
    pending = []
    with ebbpool.AdaptiveExecutor(1) as pool:

        def delayed(count: int) -> None:
            for _ in range(count):
                pending.append(pool.submit_later(_FAR_SECONDS, nothing))

        yield delayed


@contextmanager
def mapped() -> Iterator[Work]:
    """Map items."""
    # Claims are sized by the clock, and valgrind is slow: by this clock no item takes any time.
    clock = ledger.perf_counter
    ledger.perf_counter = lambda: 0.0
    try:
        with ebbpool.AdaptiveExecutor(1) as pool:

            def all_mapped(count: int) -> None:
                held = _Held(pool)
                results = pool.map(itself, range(count))
                held.run()
                for _ in results:
                    pass

            yield all_mapped
    finally:
        ledger.perf_counter = clock


@contextmanager
def run() -> Iterator[Work]:
    """Await calls from an event loop, one after another."""
    with ebbpool.AdaptiveExecutor(1) as pool, asyncio.Runner() as runner:

        async def awaits(count: int) -> None:
            for _ in range(count):
                await pool.run(nothing)

        yield lambda count: runner.run(awaits(count))


@contextmanager
def gather() -> Iterator[Work]:
    """Gather calls from an event loop."""
    with ebbpool.AdaptiveExecutor(1) as pool, asyncio.Runner() as runner:

        async def gathered(count: int) -> None:
            held = _Held(pool)
            calls = [pool.run(nothing) for _ in range(count)]
            held.run()
            await asyncio.gather(*calls)

        yield lambda count: runner.run(gathered(count))


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(_BODY)))
        self.end_headers()
        self.wfile.write(_BODY)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name there)
        pass


@contextmanager
def http_request() -> Iterator[Work]:
    """Ask the HTTP server over one connection; the client is counted as well."""
    with AdaptivePoolHTTPServer(("127.0.0.1", 0), _Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        host, port = server.server_address[:2]
        with socket.create_connection((str(host), port)) as client:

            def ask(count: int) -> None:
                for _ in range(count):
                    client.sendall(_REQUEST)
                    answer = b""
                    while not answer.endswith(_BODY):
                        answer += client.recv(65_536)

            yield ask
        server.shutdown()
        serving.join()


class _Silent(socketserver.BaseRequestHandler):
    """Closes the connection at once."""


@contextmanager
def tcp_connection() -> Iterator[Work]:
    """Hand accepted connections over, whose handlers do nothing. Accepting is left out: it depends on the time."""
    with ebbpool.AdaptiveExecutor(1) as pool:

        class Server(AdaptivePoolTCPServer):
            executor = pool

        with Server(("127.0.0.1", 0), _Silent) as server:

            def hand_over(count: int) -> None:
                pairs = [socket.socketpair() for _ in range(count)]
                held = _Held(pool)
                for accepted, _ in pairs:
                    server.process_request(accepted, "")
                held.run()
                for _, client in pairs:
                    client.close()

            yield hand_over


@contextmanager
def queue() -> Iterator[Work]:
    """Hand calls to a bare worker, and collect what they return."""
    with BareQueue(1, 0.0) as pool:
        yield lambda count: pool.burst(nothing, count)


@contextmanager
def stock_submit() -> Iterator[Work]:
    """Do what `submit` does, with the standard library's pool."""
    with ThreadPoolExecutor(1) as pool:

        def burst(count: int) -> None:
            for future in [pool.submit(nothing) for _ in range(count)]:
                future.result()

        yield burst


def _trips(one: Callable[[], object]) -> Work:
    """Do one thing again and again."""

    def work(count: int) -> None:
        for _ in range(count):
            one()

    return work


def _awaits(runner: asyncio.Runner, call: Callable[[], Awaitable[object]]) -> Work:
    """Await one call after another."""

    async def awaits(count: int) -> None:
        for _ in range(count):
            await call()

    return lambda count: runner.run(awaits(count))


@contextmanager
def locks() -> Iterator[Work]:
    """Go to another thread and back by two bare locks."""
    with PingPong(1, 0.0) as pair:
        yield _trips(lambda: pair.one(nothing))


@contextmanager
def stock_round_trip() -> Iterator[Work]:
    """Do what `round_trip` does, with the standard library's pool."""
    with ThreadPoolExecutor(1) as pool:
        yield _trips(lambda: pool.submit(nothing).result())


@contextmanager
def bare_run() -> Iterator[Work]:
    """Await calls that a bare thread runs, one after another."""
    with asyncio.Runner() as runner, contextlib.closing(BareThread(runner.get_loop())) as thread:
        yield _awaits(runner, lambda: thread.call(nothing))


@contextmanager
def stock_run() -> Iterator[Work]:
    """Do what `run` does, with the standard library's pool."""
    with ThreadPoolExecutor(1) as pool, asyncio.Runner() as runner:
        yield _awaits(runner, lambda: runner.get_loop().run_in_executor(pool, nothing))


SCRIPTS: dict[str, Callable[[], AbstractContextManager[Work]]] = {
    "submit": submit,
    "round_trip": round_trip,
    "run": run,
    "gather": gather,
    "map": mapped,
    "later": later,
    "http": http_request,
    "tcp": tcp_connection,
    "queue": queue,
    "stock_submit": stock_submit,
    "locks": locks,
    "stock_round_trip": stock_round_trip,
    "bare_run": bare_run,
    "stock_run": stock_run,
}


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    gc.disable()
    # The timekeeper would look at the pool more often the slower the machine is.
    growth.CEILING_TICK = _FAR_SECONDS
    # Nor do results come in slices of time, or workers nap: how many, and how often, is the machine's.
    vars(sys.modules[LoopCall.__module__]).update(thread_time=float, KEPT_WAITING=_FAR_SECONDS)
    for name in sys.argv[1:] or LOADS:
        load = (LOADS | FLOORS)[name]
        with SCRIPTS[name]() as work:
            work(WARM_UP)
            for times in (1, 2):
                os.getsid(0)
                work(times * load.count)
            os.getsid(0)


if __name__ == "__main__":
    main()
