"""The pools of ebbpool and its rivals behind one face: `table` says which rival has which."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing.pool
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

from benchmarks.peers import package

if TYPE_CHECKING:
    from benchmarks.peers.ways import Offload

Task = Callable[[], object]
Build = Callable[[int, float], Any]


def stdlib(workers: int, keep_alive: float) -> Executor:
    return ThreadPoolExecutor(workers)


def adaptive(workers: int, keep_alive: float) -> Any:
    return package("ebbpool").AdaptiveExecutor(workers, keep_alive=keep_alive)


def plus(workers: int, keep_alive: float) -> Any:
    executor = package("ThreadPoolExecutorPlus").ThreadPoolExecutor(workers)
    executor.set_daemon_opts(keep_alive_time=keep_alive)
    return executor


def betapool(workers: int, keep_alive: float) -> Any:
    """At least the four workers that it has by default."""
    return package("betapool").AdaptiveThreadPoolExecutor(min_workers=min(4, workers), max_workers=workers)


def flexexecutor(workers: int, keep_alive: float) -> Any:
    return package("flexexecutor").ThreadPoolExecutor(workers, idle_timeout=keep_alive)


def _sized(module: str, name: str) -> Build:
    """What takes its size alone."""
    return lambda workers, keep_alive: getattr(package(module), name)(workers)


pebble = _sized("pebble", "ThreadPool")
gevent_threads = _sized("gevent.threadpool", "ThreadPool")
aiomisc = _sized("aiomisc", "ThreadPoolExecutor")
"""Its `submit` is for the thread of an event loop."""


class Pool:
    """A peer's pool inside one cell."""

    sleep: Callable[[float], object] = staticmethod(time.sleep)
    submit: Callable[..., Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def collect(self, handles: list[Any]) -> list[Any]:
        """Waits for what `submit` gave, and returns the results, in any order."""
        raise NotImplementedError

    def burst(self, fn: Task, count: int) -> list[Any]:
        """Submits `fn` `count` times, then collects the results."""
        submit = self.submit
        return self.collect([submit(fn) for _ in range(count)])

    def each(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        """Submits `fn` with each of the items, one by one, then collects the results."""
        submit = self.submit
        return self.collect([submit(fn, item) for item in items])

    def one(self, fn: Task) -> object:
        """Submits `fn` and waits for it."""
        return self.burst(fn, 1)[0]

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        raise NotImplementedError

    def block(self) -> Callable[[], object]:
        """Occupies one worker; the call returned lets it go."""
        held, gate = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            gate.wait()

        self.submit(hold)
        held.wait()
        return gate.set

    def close(self) -> None:
        pass


def task_group(module: Any) -> Any:
    """Return what anyio calls a task group, and trio a nursery."""
    return module.open_nursery() if module.__name__ == "trio" else module.create_task_group()


def _mapped(fn: Callable[[int], object], items: Sequence[int]) -> list[object]:
    return list(map(fn, items))


class PlainLoop(Pool):
    """No pool: each call at once, in the thread that asks."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        pass

    def burst(self, fn: Task, count: int) -> list[Any]:
        return [fn() for _ in range(count)]

    def one(self, fn: Task) -> object:
        return fn()

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        return _mapped(fn, items)


class BareQueue(Pool):
    """Fixed workers on one SimpleQueue, results on another: no futures, no order, and a call must not raise."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.submit = self._calls.put
        self._count = workers
        self._workers: list[threading.Thread] = []

    def _start(self, work: Callable[[], None]) -> None:
        """Start workers that take calls of one kind: to look at each call would cost the floor."""
        if not self._workers:
            self._workers = [threading.Thread(target=work) for _ in range(self._count)]
            for worker in self._workers:
                worker.start()

    def _call(self) -> None:
        get, put = self._calls.get, self._results.put
        while (fn := get()) is not None:
            put(fn())

    def _call_with_items(self) -> None:
        get, put = self._calls.get, self._results.put
        while (call := get()) is not None:
            fn, item = call
            put(fn(item))

    def _collected(self, count: int) -> list[Any]:
        get = self._results.get
        return [get() for _ in range(count)]

    def block(self) -> Callable[[], object]:
        self._start(self._call)
        return super().block()

    def burst(self, fn: Task, count: int) -> list[Any]:
        self._start(self._call)
        put = self._calls.put
        for _ in range(count):
            put(fn)
        return self._collected(count)

    def each(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        self._start(self._call_with_items)
        put = self._calls.put
        for item in items:
            put((fn, item))
        return self._collected(len(items))

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        self._start(self._call)
        chunks = [items[start : start + 1000] for start in range(0, len(items), 1000)]
        for chunk in chunks:
            self._calls.put(functools.partial(_mapped, fn, chunk))
        return self._collected(len(chunks))

    def close(self) -> None:
        for _ in self._workers:
            self._calls.put(None)
        for worker in self._workers:
            worker.join()


class PingPong(Pool):
    """One thread that waits for a lock, and the submitter for another: a hand-over there and back, and nothing else."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        self._there, self._back = threading.Lock(), threading.Lock()
        self._there.acquire()
        self._back.acquire()
        self._call: Task | None = None
        self._result: object = None
        self._worker = threading.Thread(target=self._work)
        self._worker.start()

    def _work(self) -> None:
        come, go = self._there.acquire, self._back.release
        while come() and (call := self._call) is not None:
            self._result = call()
            go()

    def one(self, fn: Task) -> object:
        self._call = fn
        self._there.release()
        self._back.acquire()
        return self._result

    def close(self) -> None:
        self._call = None
        self._there.release()
        self._worker.join()


def _results(futures: list[Any]) -> list[Any]:
    return [future.result() for future in futures]


def _got(handles: list[Any]) -> list[Any]:
    return [handle.get() for handle in handles]


class ExecutorPool(Pool):
    """Whatever has a way to submit, called `submit`, that gives something of which to `collect` the results.

    `mapped` makes a list of what its map gave, and `close` names what ends it, one after another.
    """

    def __init__(
        self,
        build: Build,
        workers: int,
        keep_alive: float,
        *,
        submit: str = "submit",
        collect: Callable[[list[Any]], list[Any]] = _results,
        mapped: Callable[[Any], list[Any]] = list,
        close: str = "shutdown",
    ) -> None:
        self.executor = build(workers, keep_alive)
        self.submit = getattr(self.executor, submit)
        self.collect = collect  # type: ignore[method-assign,assignment]  # a method would be measured, too
        self._mapped, self._closing = mapped, close

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        return self._mapped(self.executor.map(fn, items))

    def close(self) -> None:
        for name in self._closing.split():
            getattr(self.executor, name)()


class FuturesPool(ExecutorPool):
    """The same, of what gives futures."""

    def one(self, fn: Task) -> object:
        result: object = self.submit(fn).result()
        return result


EbbPool = functools.partial(FuturesPool, adaptive)
PebblePool = functools.partial(
    FuturesPool, pebble, submit="schedule", mapped=lambda future: list(future.result()), close="close join"
)
GeventThreads = functools.partial(ExecutorPool, gevent_threads, submit="spawn", collect=_got, close="kill")


class MultiprocessingPool(ExecutorPool):
    """The threads behind multiprocessing's names."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        build = multiprocessing.pool.ThreadPool
        super().__init__(
            lambda workers, _: build(workers), workers, 0.0, submit="apply_async", collect=_got, close="close join"
        )

    def each(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        submit = self.submit
        return self.collect([submit(fn, (item,)) for item in items])


class Greenlets(Pool):
    """No threads: each call is a greenlet."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        gevent = package("gevent")
        self.sleep = gevent.sleep
        self.submit = gevent.spawn

    def collect(self, handles: list[Any]) -> list[Any]:
        return _got(handles)

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        return self.each(fn, items)

    def block(self) -> Callable[[], object]:
        return lambda: None  # a greenlet is pending until this thread gives way


class FastThreadPool(Pool):
    """fastthreadpool, or what has its names: no futures; results arrive on a deque, in any order.

    Whoever submits one by one has to look at that deque until all are there.
    """

    _LOOK_SECONDS = 0.0002
    _PATIENCE_SECONDS = 60.0

    def __init__(self, module: str, workers: int, keep_alive: float) -> None:
        self._pool = package(module).Pool(workers)
        self.submit = self._pool.submit

    def _collected(self, count: int) -> list[Any]:
        done, deadline = self._pool.done, time.monotonic() + self._PATIENCE_SECONDS
        while len(done) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count - len(done)} of {count} results never came")
            time.sleep(self._LOOK_SECONDS)
        return [done.popleft() for _ in range(count)]

    def burst(self, fn: Task, count: int) -> list[Any]:
        submit = self._pool.submit
        for _ in range(count):
            submit(fn)
        return self._collected(count)

    def each(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        submit = self._pool.submit
        for item in items:
            submit(fn, item)
        return self._collected(len(items))

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        self._pool.map(fn, items, unpack_args=False)
        return self._collected(len(items))

    def close(self) -> None:
        self._pool.shutdown(5)


class Offloaded(Pool):
    """What is awaited, on one loop that lives as long as the pool."""

    def __init__(self, offload: Offload, workers: int, keep_alive: float) -> None:
        self._runner, self._opened = asyncio.Runner(), AsyncExitStack()
        self._run = self._runner.run
        self._call = self._run(self._opened.enter_async_context(offload(workers)))

    async def _gather(self, fn: Task, count: int) -> list[object]:
        call = self._call
        results: list[object] = await asyncio.gather(*[call(fn) for _ in range(count)])
        return results

    def burst(self, fn: Task, count: int) -> list[Any]:
        return self._run(self._gather(fn, count))

    def close(self) -> None:
        self._run(self._opened.aclose())
        self._runner.close()


class Hypertile(Offloaded):
    """hypertile's, which has a map of its own."""

    async def _map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[object]:
        results: list[object] = await package("hypertile").gather_to_thread(fn, items)
        return results

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        return self._run(self._map(fn, items))


class TaskThreads(Pool):
    """Tasks of a loop, of anyio or trio, that hand their calls to threads: every burst starts and ends a loop."""

    def __init__(self, module: str, workers: int, keep_alive: float) -> None:
        self._module, self._workers = package(module), workers

    def burst(self, fn: Task, count: int) -> list[Any]:
        return list(self._module.run(self._burst, fn, count))

    async def _burst(self, fn: Task, count: int) -> list[object]:
        results: list[object] = []
        limiter = self._module.CapacityLimiter(self._workers)

        async def call() -> None:
            results.append(await self._module.to_thread.run_sync(fn, limiter=limiter))

        async with task_group(self._module) as group:
            for _ in range(count):
                group.start_soon(call)
        return results
