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
from typing import TYPE_CHECKING, Any, Self

from benchmarks.peers import package

if TYPE_CHECKING:
    from benchmarks.peers.ways import Offload

Task = Callable[[], object]


def stdlib(workers: int, keep_alive: float) -> Executor:
    return ThreadPoolExecutor(workers)


def adaptive(workers: int, keep_alive: float) -> Any:
    return package("ebbpool").AdaptiveExecutor(workers, keep_alive=keep_alive)


def plus(workers: int, keep_alive: float) -> Any:
    executor = package("ThreadPoolExecutorPlus").ThreadPoolExecutor(workers)
    executor.set_daemon_opts(keep_alive_time=keep_alive)
    return executor


def pebble(workers: int, keep_alive: float) -> Any:
    return package("pebble").ThreadPool(workers)


def betapool(workers: int, keep_alive: float) -> Any:
    """At least the four workers that it has by default."""
    return package("betapool").AdaptiveThreadPoolExecutor(min_workers=min(4, workers), max_workers=workers)


def flexexecutor(workers: int, keep_alive: float) -> Any:
    return package("flexexecutor").ThreadPoolExecutor(workers, idle_timeout=keep_alive)


def aiomisc(workers: int, keep_alive: float) -> Any:
    """Its `submit` is for the thread of an event loop."""
    return package("aiomisc").ThreadPoolExecutor(workers)


class Pool:
    """A peer's pool inside one cell.

    `threads` is asked after the last result and while the pool is open. Every peer keeps its threads for
    longer than a load lasts, so that count is the most there were; nothing is sampled while the clock runs.
    """

    sleep: Callable[[float], object] = staticmethod(time.sleep)
    submit: Callable[..., Any]

    def __init__(self) -> None:
        self._before = threading.active_count()

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

    def threads(self) -> int:
        return threading.active_count() - self._before

    def close(self) -> None:
        pass


def _mapped(fn: Callable[[int], object], items: Sequence[int]) -> list[object]:
    return list(map(fn, items))


class PlainLoop(Pool):
    """No pool: each call at once, in the thread that asks."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        super().__init__()

    def burst(self, fn: Task, count: int) -> list[Any]:
        return [fn() for _ in range(count)]

    def one(self, fn: Task) -> object:
        return fn()

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        return list(map(fn, items))


class BareQueue(Pool):
    """Fixed workers on one SimpleQueue, results on another: no futures, no order, and of all errors only the first."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        super().__init__()
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._errors: list[BaseException] = []
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
            try:
                put(fn())
            except BaseException as error:
                self._failed(error)

    def _call_with_items(self) -> None:
        get, put = self._calls.get, self._results.put
        while (call := get()) is not None:
            try:
                fn, item = call
                put(fn(item))
            except BaseException as error:
                self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self._errors.append(error)
        self._results.put(None)

    def _collected(self, count: int) -> list[Any]:
        get = self._results.get
        found = [get() for _ in range(count)]
        if self._errors:
            raise self._errors[0]
        return found

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
        super().__init__()
        self._there, self._back = threading.Lock(), threading.Lock()
        self._there.acquire()
        self._back.acquire()
        self._call: Task | None = None
        self._result: object = None
        self._error: BaseException | None = None
        self._worker = threading.Thread(target=self._work)
        self._worker.start()

    def _work(self) -> None:
        come, go = self._there.acquire, self._back.release
        while come() and (call := self._call) is not None:
            try:
                self._result = call()
            except BaseException as error:
                self._error = error
            go()

    def one(self, fn: Task) -> object:
        self._call = fn
        self._there.release()
        self._back.acquire()
        if self._error is not None:
            raise self._error
        return self._result

    def close(self) -> None:
        self._call = None
        self._there.release()
        self._worker.join()


class ExecutorPool(Pool):
    """Whatever has `submit` and gives futures."""

    def __init__(self, build: Callable[[int, float], Any], workers: int, keep_alive: float) -> None:
        super().__init__()
        self.executor = build(workers, keep_alive)
        self.submit = self.executor.submit

    def collect(self, handles: list[Any]) -> list[Any]:
        return [future.result() for future in handles]

    def one(self, fn: Task) -> object:
        result: object = self.executor.submit(fn).result()
        return result

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        return list(self.executor.map(fn, items))

    def close(self) -> None:
        self.executor.shutdown()


class EbbPool(ExecutorPool):
    """Ours."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        super().__init__(adaptive, workers, keep_alive)

    def threads(self) -> int:
        """Workers ever started, never less than there were at once; the timekeeper is none of them."""
        return max(int(self.executor.stats().started), len(self.executor._threads))


class PebblePool(ExecutorPool):
    """pebble's, with its own names."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        super().__init__(pebble, workers, keep_alive)
        self.submit = self.executor.schedule

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        return list(self.executor.map(fn, items).result())

    def close(self) -> None:
        self.executor.close()
        self.executor.join()


class Offloaded(Pool):
    """What is awaited, on one loop that lives as long as the pool.

    Args:
        offload: the way to its threads.
        workers: the most threads.
        keep_alive: not heeded.
    """

    def __init__(self, offload: Offload, workers: int, keep_alive: float) -> None:
        super().__init__()
        self._runner, self._way = asyncio.Runner(), offload(workers)
        self._run = self._runner.run
        self._call = self._run(self._open())

    async def _open(self) -> Any:
        return await self._way.__aenter__()

    async def _gather(self, fn: Task, count: int) -> list[object]:
        call = self._call
        results: list[object] = await asyncio.gather(*[call(fn) for _ in range(count)])
        return results

    def burst(self, fn: Task, count: int) -> list[Any]:
        return self._run(self._gather(fn, count))

    async def _close(self) -> None:
        await self._way.__aexit__(None, None, None)

    def close(self) -> None:
        self._run(self._close())
        self._runner.close()


class Hypertile(Offloaded):
    """hypertile's, whose threads are unknown to `threading`."""

    async def _map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[object]:
        results: list[object] = await package("hypertile").gather_to_thread(fn, items)
        return results

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        return self._run(self._map(fn, items))

    def threads(self) -> int:
        return int(package("hypertile").worker_count())


class _Getting(Pool):
    """What gives something to `get` a result from."""

    def collect(self, handles: list[Any]) -> list[Any]:
        return [result.get() for result in handles]


class MultiprocessingPool(_Getting):
    """The threads behind multiprocessing's names."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        super().__init__()
        self._pool = multiprocessing.pool.ThreadPool(workers)
        self.submit = self._pool.apply_async

    def each(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        apply_async = self._pool.apply_async
        return self.collect([apply_async(fn, (item,)) for item in items])

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        return self._pool.map(fn, items)

    def close(self) -> None:
        self._pool.close()
        self._pool.join()


class FastThreadPool(Pool):
    """fastthreadpool, or what has its names: no futures; results arrive on a deque, in any order.

    Whoever submits one by one has to look at that deque until all are there.
    """

    _LOOK_SECONDS = 0.0002
    _PATIENCE_SECONDS = 60.0

    def __init__(self, module: str, workers: int, keep_alive: float) -> None:
        super().__init__()
        self._pool = package(module).Pool(workers)
        self.submit = self._pool.submit

    def _collect(self, count: int) -> list[Any]:
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
        return self._collect(count)

    def each(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        submit = self._pool.submit
        for item in items:
            submit(fn, item)
        return self._collect(len(items))

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        self._pool.map(fn, items, unpack_args=False)
        return self._collect(len(items))

    def close(self) -> None:
        self._pool.shutdown(5)


class Greenlets(_Getting):
    """No threads: each call is a greenlet."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        super().__init__()
        gevent = package("gevent")
        self.sleep = gevent.sleep
        self.submit = gevent.spawn

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        return self.each(fn, items)

    def block(self) -> Callable[[], object]:
        return lambda: None  # a greenlet is pending until this thread gives way

    def threads(self) -> int:
        return 0


class GeventThreads(_Getting):
    """gevent's threads, unknown to `threading`."""

    def __init__(self, workers: int, keep_alive: float) -> None:
        super().__init__()
        self._pool = package("gevent.threadpool").ThreadPool(workers)
        self.submit = self._pool.spawn

    def map(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
        return list(self._pool.map(fn, items))

    def threads(self) -> int:
        return int(self._pool.size)

    def close(self) -> None:
        self._pool.kill()


class TaskThreads(Pool):
    """Tasks of one event loop that hand their calls to threads: every burst starts and ends a loop.

    Args:
        module: anyio, or trio.
        group: the name there of what makes a group of tasks.
        workers: the most threads.
        keep_alive: not heeded.
    """

    def __init__(self, module: str, group: str, workers: int, keep_alive: float) -> None:
        super().__init__()
        self._module, self._workers, self._most = package(module), workers, 0
        self._group = getattr(self._module, group)

    def burst(self, fn: Task, count: int) -> list[Any]:
        return list(self._module.run(self._burst, fn, count))

    async def _burst(self, fn: Task, count: int) -> list[object]:
        results: list[object] = []
        limiter = self._module.CapacityLimiter(self._workers)

        async def call() -> None:
            results.append(await self._module.to_thread.run_sync(fn, limiter=limiter))

        async with self._group() as group:
            for _ in range(count):
                group.start_soon(call)
        self._most = max(self._most, threading.active_count() - self._before)
        return results

    def threads(self) -> int:
        """The most there were at the end of a burst: the threads end with the loop."""
        return self._most
