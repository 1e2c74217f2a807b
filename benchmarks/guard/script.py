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
from dataclasses import dataclass

import ebbpool
from benchmarks.engine.model import nothing
from benchmarks.peers.floor import BareThread
from benchmarks.peers.pools import BareQueue, PingPong
from ebbpool._core.accel import LoopCall
from ebbpool._maps import map_run
from ebbpool._pool import growth
from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolTCPServer

_FAR_SECONDS = 3_600.0
_REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
_BODY = b"answer"

Work = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Load:
    """One of the loads.

    Attributes:
        label: What is counted.
        count: How often. The load is counted once, and once with twice that: the difference is free of what does not
            depend on the number.
        tolerance: How much more it may take, as a share: somewhat more than it differs from run to run on a busy
            machine; 0 of what is only counted beside some of the loads.
        script: Yields what does it so often.
    """

    label: str
    count: int
    tolerance: float
    script: Callable[[], AbstractContextManager[Work]]


ALL: dict[str, Load] = {}


def load(name: str, label: str, count: int, tolerance: float = 0.0) -> Callable[[Callable[[], Iterator[Work]]], None]:
    """Take what is decorated for the script of a load."""

    def take(script: Callable[[], Iterator[Work]]) -> None:
        ALL[name] = Load(label, count, tolerance, contextmanager(script))

    return take


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


@load("submit", "submit, run, collect", 2_000, 0.03)
def submit() -> Iterator[Work]:
    with ebbpool.AdaptiveExecutor(1) as pool:

        def burst(count: int) -> None:
            held = _Held(pool)
            futures = [pool.submit(nothing) for _ in range(count)]
            held.run()
            for future in futures:
                future.result()

        yield burst


@load("round_trip", "submit one, wait for it", 1_000, 0.05)
def round_trip() -> Iterator[Work]:
    with ebbpool.AdaptiveExecutor(1) as pool:

        def trips(count: int) -> None:
            for _ in range(count):
                pool.submit(nothing).result()

        yield trips


@load("later", "submit_later", 300, 0.03)
def later() -> Iterator[Work]:
    pending = []
    with ebbpool.AdaptiveExecutor(1) as pool:

        def delayed(count: int) -> None:
            for _ in range(count):
                pending.append(pool.submit_later(_FAR_SECONDS, nothing))

        yield delayed


@load("map", "map, an item", 20_000, 0.03)
def mapped() -> Iterator[Work]:
    # Claims are sized by the clock, and valgrind is slow: by this clock no item takes any time.
    clock = map_run.perf_counter
    map_run.perf_counter = lambda: 0.0
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
        map_run.perf_counter = clock


@load("run", "await pool.run(...)", 1_000, 0.03)
def run() -> Iterator[Work]:
    with ebbpool.AdaptiveExecutor(1) as pool, asyncio.Runner() as runner:

        async def awaits(count: int) -> None:
            for _ in range(count):
                await pool.run(nothing)

        yield lambda count: runner.run(awaits(count))


@load("gather", "the same, gathered", 2_000, 0.03)
def gather() -> Iterator[Work]:
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


@load("http", "one HTTP request", 200, 0.03)
def http_request() -> Iterator[Work]:
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


@load("tcp", "one accepted TCP connection", 100, 0.03)
def tcp_connection() -> Iterator[Work]:
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


@load("queue", "a worker on a SimpleQueue, without futures", 2_000)
def queue() -> Iterator[Work]:
    with BareQueue(1, 0.0) as pool:
        yield lambda count: pool.burst(nothing, count)


@load("stock_submit", "the same with ThreadPoolExecutor", 2_000)
def stock_submit() -> Iterator[Work]:
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


@load("locks", "two bare locks, there and back", 1_000)
def locks() -> Iterator[Work]:
    with PingPong(1, 0.0) as pair:
        yield _trips(lambda: pair.one(nothing))


@load("stock_round_trip", "the same with ThreadPoolExecutor", 1_000)
def stock_round_trip() -> Iterator[Work]:
    with ThreadPoolExecutor(1) as pool:
        yield _trips(lambda: pool.submit(nothing).result())


@load("bare_run", "await a bare thread on a SimpleQueue", 1_000)
def bare_run() -> Iterator[Work]:
    with asyncio.Runner() as runner, contextlib.closing(BareThread(runner.get_loop())) as thread:
        yield _awaits(runner, lambda: thread.call(nothing))


@load("stock_run", "await loop.run_in_executor(ThreadPoolExecutor)", 1_000)
def stock_run() -> Iterator[Work]:
    with ThreadPoolExecutor(1) as pool, asyncio.Runner() as runner:
        yield _awaits(runner, lambda: runner.get_loop().run_in_executor(pool, nothing))


LOADS = {name: each for name, each in ALL.items() if each.tolerance}
FLOORS = {name: each for name, each in ALL.items() if not each.tolerance}
"""What `--floors` counts beside some of the loads."""
ABOVE = {
    "submit": ("queue", "stock_submit"),
    "round_trip": ("locks", "stock_round_trip"),
    "run": ("bare_run", "stock_run"),
}
"""The floor of a load, and the standard library's way."""


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    gc.disable()
    # The timekeeper would look at the pool more often the slower the machine is.
    growth.CEILING_TICK = _FAR_SECONDS
    # Nor do results come in slices of time, or workers nap: how many, and how often, is the machine's.
    vars(sys.modules[LoopCall.__module__]).update(thread_time=float, KEPT_WAITING=_FAR_SECONDS)
    for name in sys.argv[1:] or LOADS:
        with ALL[name].script() as work:
            work(100)
            for times in (1, 2):
                os.getsid(0)
                work(times * ALL[name].count)
            os.getsid(0)


if __name__ == "__main__":
    main()
