"""What a type checker has to make of the public names. Checked by mypy and pyright, never run."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import functools
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing
from http.server import HTTPServer, SimpleHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, StreamRequestHandler, TCPServer, ThreadingTCPServer
from typing import Any, ParamSpec, TypeVar, assert_type

from opentelemetry.metrics import get_meter_provider
from prometheus_client import REGISTRY

import ebbpool.anyio
import ebbpool.opentelemetry
import ebbpool.socketserver as served
from ebbpool import AdaptiveExecutor, Lane, Session, prefork
from ebbpool.aio import new_loop_factory
from ebbpool.prometheus import PoolCollector
from ebbpool.sync import BoundedSemaphore, Semaphore
from ebbpool.testing import no_thread_leaks


def add(first: int, second: int = 0) -> int:
    return first + second


P = ParamSpec("P")
T = TypeVar("T")


def are_the_standard_kinds(pool: AdaptiveExecutor, lane: Lane, future: ebbpool.Future[int]) -> None:
    executors: list[ThreadPoolExecutor] = [pool, lane]
    a_future: Future[int] = future
    full: type[RuntimeError] = ebbpool.QueueFull
    broken: type[concurrent.futures.thread.BrokenThreadPool] = ebbpool.BrokenThreadPool
    print(executors, a_future, full, broken)
    assert_type(ebbpool.COMPILED, bool)
    assert_type(ebbpool.__version__, str)
    with Semaphore(2), BoundedSemaphore():
        assert_type(Semaphore().acquire(timeout=1.0), bool)


def submits(pool: AdaptiveExecutor) -> None:
    assert_type(pool.submit(add, 1, second=2), Future[int])
    assert_type(pool.submit(add, 1).result(timeout=1.0), int)
    assert_type(pool.submit(add, 1).exception(), BaseException | None)
    assert_type(next(concurrent.futures.as_completed([pool.submit(str, 1)])).result(), str)
    # Arguments are checked against the function.
    pool.submit(add, "1")  # type: ignore[arg-type]
    pool.submit(add)  # type: ignore[call-arg]
    pool.submit(add, 1, third=3)  # type: ignore[call-arg]
    assert_type(pool.submit_first(add, 1), Future[int])
    assert_type(pool.submit_later(0.5, add, 1, second=2), Future[int])
    task = pool.schedule(1.0, add, 1, first=0, on_error="stop")
    assert_type(task, ebbpool.ScheduledTask)
    assert_type(task.runs, int)
    assert_type(task.last_error, BaseException | None)
    # Only the two policies there are.
    pool.schedule(1.0, add, 1, on_error="ignore")  # type: ignore[arg-type]
    lane = pool.lane("slow", limit=2, first=True)
    assert_type(lane, Lane)
    assert_type(lane.submit(add, 1), Future[int])
    assert_type(lane.stats(), ebbpool.LaneStats)


def does_what_programs_do(pool: AdaptiveExecutor, lane: Lane, session: Session) -> None:
    words = ["ebb", "flow"]
    lengths = {pool.submit(len, word): word for word in words}
    for future in as_completed(lengths):
        assert_type(lengths[future], str)
        assert_type(future.result(), int)
    for executor in (pool, lane, session):
        pending: set[Future[int]] = {executor.submit(len, word) for word in words}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            assert_type(done.pop().result(), int)
    futures: list[Future[int]] = [pool.submit(add, 1), lane.submit(add, 1), session.submit(add, 1)]
    futures += [pool.submit_first(add, 1), pool.submit_later(1.0, add, 1), pool.within(1.0).submit(add, 1)]
    futures += [executor.submit(add, number) for number in range(3)]
    by_name: dict[str, Future[int]] = {"one": pool.submit(add, 1)}
    print(futures, by_name)


class Counting(AdaptiveExecutor):
    """Overrides `submit` with the annotation of the standard library."""

    count = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self.count += 1
        return super().submit(fn, *args, **kwargs)


def maps(pool: AdaptiveExecutor, lane: Lane) -> None:
    results: Iterator[int] = pool.map(add, [1, 2], [3, 4], timeout=1.0)
    for number in results:
        assert_type(number, int)
    texts = pool.map(str, range(3), buffersize=2)
    assert_type(next(texts), str)
    assert_type(texts.close(), None)
    with closing(lane.map_unordered(add, [1, 2], chunksize=2)) as numbers:
        assert_type(next(numbers), int)
    for text in pool.stream(count, 3, buffersize=2):
        assert_type(text, str)


def constructs() -> None:
    AdaptiveExecutor(4, "name", print, ("one", 2))
    AdaptiveExecutor(max_workers=None, min_workers=1, min_spare_workers=2, keep_alive=0.5, max_queue=10)
    AdaptiveExecutor(daemon=True, leave_after=5.0)
    AdaptiveExecutor(when_full="reject", finalizer=lambda: None, propagate_context=True)
    # Only the three policies there are.
    AdaptiveExecutor(when_full="drop")  # type: ignore[arg-type]
    # What is not the standard library's is keyword-only.
    AdaptiveExecutor(4, "name", print, (), 1)  # type: ignore[call-arg]


def manages(pool: AdaptiveExecutor) -> None:
    stats = pool.stats()
    assert_type(stats, ebbpool.PoolStats)
    assert_type(stats.workers, int)
    assert_type(stats.oldest_wait, float)
    assert_type(stats.longest_running, float)
    # The figures are a snapshot.
    stats.workers = 3  # type: ignore[misc]
    assert_type(pool.wait_idle(1.0), bool)
    pool.resize(min_workers=1, max_workers=8, min_spare_workers=0, keep_alive=1.0, max_queue=None)
    pool.shutdown(wait=True, cancel_futures=True, timeout=5.0)
    with pool as entered:
        assert_type(entered, AdaptiveExecutor)
    with no_thread_leaks(grace=1.0, ignore=["mine"]):
        pass


async def works_with_asyncio() -> None:
    loop = asyncio.get_running_loop()
    async with AdaptiveExecutor() as pool:
        assert_type(pool, AdaptiveExecutor)
        loop.set_default_executor(pool)
        assert_type(await loop.run_in_executor(pool, add, 1), int)
        assert_type(await asyncio.wrap_future(pool.submit(add, 1)), int)
        assert_type(await asyncio.to_thread(add, 1, second=2), int)
        asyncio.Runner(loop_factory=new_loop_factory())
        assert_type(new_loop_factory(asyncio.SelectorEventLoop, pool)(), asyncio.AbstractEventLoop)


def count(start: int) -> Iterator[str]:
    yield str(start)


async def yields() -> AsyncIterator[str]:
    yield "a name"


async def runs(pool: AdaptiveExecutor) -> None:
    assert_type(await pool.run(add, 1, second=2), int)
    assert_type(pool.run(add, 1), asyncio.Future[int])
    # Arguments are checked against the function.
    pool.run(add, "1")  # type: ignore[arg-type]
    async for number in pool.amap(abs, [1, 2], ordered=False, buffersize=2):
        assert_type(number, int)
    async for length in pool.amap(len, yields()):
        assert_type(length, int)
    assert_type(await ebbpool.anyio.run_sync(add, 1, 2, abandon_on_cancel=True, executor=pool), int)
    with ebbpool.anyio.install(pool, keep_default_limiter=True) as installation:
        assert_type(installation.executor, AdaptiveExecutor)


def switches(pool: AdaptiveExecutor) -> None:
    with ebbpool.install(pool, streams=False, explain=print) as installed:
        assert_type(installed, ebbpool.Installed)
        assert_type(installed.executor, AdaptiveExecutor)
        assert_type(installed.parts, dict[str, str])
        installed.undo()
    with pool.session(finalizer=print) as session:
        assert_type(session, ebbpool.Session)
        assert_type(session.submit(add, 1).result(), int)
        session.submit(add, "1")  # type: ignore[arg-type]


def metrics() -> None:
    collector = PoolCollector(sample=1 / 64)
    REGISTRY.register(PoolCollector())
    collector.close()
    PoolCollector(sample="1/64")  # type: ignore[arg-type]

    with ebbpool.opentelemetry.instrument(get_meter_provider(), sample=1) as instrumentation:
        assert_type(instrumentation, ebbpool.opentelemetry.Instrumentation)
    assert_type(ebbpool.opentelemetry.instrument().uninstrument(), None)
    ebbpool.opentelemetry.instrument(REGISTRY)  # type: ignore[arg-type]


def in_child(child: prefork.Child) -> None:
    assert_type(child.listener, socket.socket)
    assert_type(child.number, int)
    assert_type(child.stopping, threading.Event)
    child.on_stop(child.stopping.clear)
    child.ready()
    child.beat()
    child.serve(HTTPServer(("", 0), SimpleHTTPRequestHandler, bind_and_activate=False))
    child.serve(ThreadingTCPServer(("", 0), StreamRequestHandler))
    child.serve(child)  # type: ignore[arg-type]
    child.on_stop(len)  # type: ignore[arg-type]


def configured(folder: str, child: prefork.Child) -> int:
    return len(folder) + child.number


def prefork_runs() -> int:
    assert_type(prefork.run(in_child, bind=("127.0.0.1", 8000)), int)
    prefork.run(functools.partial(configured, "."), bind="unix:/run/it", processes=2, preload=True, graceful_timeout=1)
    prefork.run(in_child, bind=socket.create_server(("", 0)), heartbeat_timeout=float("inf"))
    prefork.run(in_child, bind=("", 8000), preload=["json"])  # type: ignore[arg-type]
    prefork.run(configured, bind=("localhost", 8000))  # type: ignore[arg-type]
    prefork.run(in_child, bind=8000)  # type: ignore[arg-type]
    prefork.run(in_child)  # type: ignore[call-arg]
    return prefork.STOPPED or prefork.UNFINISHED or prefork.NEVER_STARTED


class Tuned(served.AdaptivePoolTCPServer):
    min_workers = 2
    max_workers = 200
    min_spare_workers = 20
    keep_alive = 5.0
    max_queue = 1000
    thread_stack_size = 256 * 1024
    daemon_threads = True
    shutdown_timeout = None
    block_on_close = False

    def refuse_request(self, request: Any, client_address: Any) -> None:
        request.sendall(b"busy\n")
        super().refuse_request(request, client_address)


class Mixed(served.AdaptivePoolMixIn, TCPServer):
    executor = AdaptiveExecutor(max_workers=64)


class Shared(served.AdaptivePoolTCPServer):
    executor: Executor | None = ThreadPoolExecutor()


class Web(served.AdaptivePoolHTTPServer):
    max_workers = 64


def servers() -> None:
    with Tuned(("127.0.0.1", 0), StreamRequestHandler) as server:
        assert_type(server, Tuned)
        assert_type(server.join(), bool)
        assert_type(server.join(1.5), bool)
        assert_type(server.pool_handlers.executor, Executor)
        server.serve_forever()
        server.serve_forever(0.1)
        server.shutdown()
        server.server_close()
    Mixed(("127.0.0.1", 0), StreamRequestHandler)
    served.AdaptivePoolUDPServer(("127.0.0.1", 0), BaseRequestHandler)
    served.AdaptivePoolUnixStreamServer("/run/echo", StreamRequestHandler)
    served.AdaptivePoolUnixDatagramServer(b"/run/echo", BaseRequestHandler)

    with Web(("", 8000), SimpleHTTPRequestHandler) as web:
        assert_type(web.server_port, int)
        web.serve_forever()
    assert_type(Tuned.from_socket(socket.socket(), StreamRequestHandler), Tuned)
    Tuned(("127.0.0.1", 0))  # type: ignore[call-arg]  # a handler class is needed
    Tuned.from_socket("127.0.0.1", StreamRequestHandler)  # type: ignore[arg-type]  # a socket, not an address
    ThreadingHTTPServer(("", 0), SimpleHTTPRequestHandler).join()  # type: ignore[attr-defined]  # the standard one has none
