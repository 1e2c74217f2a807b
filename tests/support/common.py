"""What the tests share: gates, bounded waits, and scripts run in an interpreter of their own."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest

import ebbpool
from support import seams

TIMEOUT = 10.0
"""Seconds after which a wait that ought to end has failed."""
A_MOMENT = 0.05
"""Seconds for which a test watches that something does not happen. A short look can only miss a defect."""
COLLECTIONS = 50
"""How often the collector is asked to free something, where references are not counted."""
LONG = 600.0
"""A keep-alive, in seconds, that outlives every test."""
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
COUNTS_REFERENCES = sys.implementation.name == "cpython"
"""Whether the interpreter frees an object with its last reference, and not when the collector comes by."""

STACKS = seams.gil_enabled()
"""Whether the stacks of other threads are read."""
needs_stacks = pytest.mark.skipif(not STACKS, reason="without a GIL the frames of other threads are not read")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform cannot fork")
FORK = """
    import os, sys, threading, traceback
    from concurrent.futures.thread import BrokenThreadPool
    from ebbpool import AdaptiveExecutor

    def in_child(check):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                check()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            sys.stdout.flush()
            os._exit(0)
        return os.waitpid(pid, 0)[1]
"""
"""What a script that forks begins with."""

HOME = str(Path(ebbpool.__file__).parent.parent)
"""The folder that the package is imported from."""
TESTS = str(Path(__file__).parent.parent)
INSTALLED = importlib.metadata.entry_points(group="pytest11", name="ebbpool")
PLUGIN = [] if INSTALLED else ["-p", "_ebbpool_pytest"]
"""How a run of pytest gets our plugin: through its entry point where the package is installed."""


class Boom(Exception):
    """The error that tests raise on purpose."""


def fail(*args: object) -> None:
    raise Boom(*args)


def thread_name() -> str:
    return threading.current_thread().name


def raise_watched(references: list[weakref.ref[Any]]) -> NoReturn:
    """Raise an error that only its handlers hold, and add a reference to it."""
    error = Boom("on purpose")
    references.append(weakref.ref(error))
    try:
        raise error
    finally:
        del error


def no_thread(*_: object) -> None:
    """Stand in for the start of a thread, which the system refuses."""
    raise RuntimeError("can't start new thread")


@contextmanager
def starting(names: str, inside: Callable[[], object]) -> Iterator[None]:
    """Have `inside()` called in the middle of the start of each thread whose name is one of a pattern's."""
    start = threading.Thread.start

    def start_any(thread: threading.Thread) -> None:
        if re.fullmatch(names, thread.name):
            inside()
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_any)
        yield


class Thing:
    """An object that can be watched through a weak reference."""

    def method(self, *args: Any) -> int:
        return len(args)


class Gate:
    """A task to submit: it tells that it has begun, and waits until the gate is opened, on its exit at the latest."""

    def __init__(self) -> None:
        self._begun = threading.Semaphore(0)
        self._open = threading.Event()
        self._lock = threading.Lock()
        self._inside: list[threading.Thread] = []
        self.peak = 0
        self.threads: set[threading.Thread] = set()

    def __call__(self, value: Any = None) -> Any:
        thread = threading.current_thread()
        with self._lock:
            self._inside.append(thread)
            self.peak = max(self.peak, len(self._inside))
            self.threads.add(thread)
        try:
            # Longer than anybody waits for something else: a gate that gives up must not pass for one that opened. In
            # one line: a stack that is taken as soon as it tells that it has begun shows the wait.
            if not (self._begun.release() or self._open.wait(3 * TIMEOUT)):
                raise TimeoutError("nobody opened the gate")
        finally:
            with self._lock:
                self._inside.remove(thread)
        return value

    def await_begun(self, count: int = 1) -> None:
        """Wait until `count` more calls are inside."""
        for number in range(count):
            assert self._begun.acquire(timeout=TIMEOUT), f"only {number} of {count} calls began"

    def hold(self, executor: Any, count: int = 1) -> Any:
        """Have `executor` run the gate `count` times, wait until all have begun, and return the last future."""
        futures = [executor.submit(self) for _ in range(count)]
        self.await_begun(count)
        assert threading.current_thread() not in self.threads, "the caller ran the gate"
        return futures[-1]

    def nobody_begins(self, pool: Any) -> bool:
        """Tell whether no further call has begun, once no worker of `pool` is about to begin one."""
        eventually(lambda: not seams.comes_to(pool, self, list(self._inside)), "no worker is about to begin")
        return not self._begun.acquire(blocking=False)

    def open(self) -> None:
        self._open.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.open()


def eventually(condition: Callable[[], object], what: str = "", seconds: float = TIMEOUT) -> None:
    """Wait until `condition` holds; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    tick = threading.Event()
    tries = 0
    while not condition():
        assert time.monotonic() < deadline, f"did not come true: {what or condition}"
        tick.wait(0.001)
        tries += 1
        collect_at(tries)


def collect_at(tries: int) -> None:
    """Let the collector come by now and then while a test waits, where nothing else frees what nobody holds."""
    if not COUNTS_REFERENCES and tries % 50 == 0:
        gc.collect()


class Background:
    """A call in a thread of its own, whose outcome is collected with `join`."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, name="background", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:
            self._error = error
        finally:
            self.over.set()

    def waits_for(self, pool: Any, threads: int = 1) -> None:
        """Wait until the call waits for room in the queue of `pool`, or for it, or a lane, to be idle or to end.

        So many `threads` do so by then, others among them.
        """
        eventually(lambda: seams.waiters(pool) == threads, f"{threads} threads wait for the pool")

    def join(self, seconds: float = TIMEOUT) -> Any:
        """Return what the call returned, or raise what it raised."""
        assert self.over.wait(seconds), "the background call did not end"
        self.thread.join(TIMEOUT)
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error
        return self._outcome


def call_of(patch: pytest.MonkeyPatch, owner: Any, name: str) -> threading.Event:
    """Return an event that is set when a function of `owner` is called, before it does what it does."""
    called, call = threading.Event(), getattr(owner, name)

    def tell(*args: Any, **kwargs: Any) -> Any:
        called.set()
        return call(*args, **kwargs)

    patch.setattr(owner, name, tell)
    return called


class ToldLock:
    """A lock that tells how many have come to it, whether they got it or wait."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.came = threading.Semaphore(0)

    def __enter__(self) -> Any:
        self.came.release()
        return self._lock.__enter__()

    def __exit__(self, *exc_info: object) -> Any:
        return self._lock.__exit__(*exc_info)

    def await_all(self, count: int) -> None:
        """Wait until so many more have come."""
        for _ in range(count):
            assert self.came.acquire(timeout=TIMEOUT), "nobody comes to the lock"


def together(call: Callable[[int], object], threads: int = 4) -> list[Any]:
    """Call `call(number)` in several threads at the same time, and return what they returned."""
    ready = threading.Barrier(threads)

    def start(number: int) -> object:
        ready.wait(TIMEOUT)
        return call(number)

    backgrounds = [Background(lambda number=number: start(number)) for number in range(threads)]  # type: ignore[misc]
    return [background.join() for background in backgrounds]


def all_end(threads: Iterable[threading.Thread]) -> bool:
    """Join every thread, and tell whether all of them have ended."""
    joined = list(threads)
    for thread in joined:
        thread.join(TIMEOUT)
    return not any(thread.is_alive() for thread in joined)


@contextmanager
def tight_switching(seconds: float = 1e-6) -> Iterator[None]:
    """Let the interpreter change threads every so often, which opens every window there is."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def no_collector() -> Iterator[None]:
    """Keep the collector off: what is freed inside is freed by counting references, or else by `gone`."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def gone(*references: weakref.ref[Any], pool: Any = None) -> None:
    """Wait until every object behind `references` is freed: a worker drops its own after it has told the waiters.

    A free-threaded interpreter leaves it to the thread that made an object to free it, when that thread next runs
    bytecode: name the `pool`, or an executor on it, whose workers made it. Where references are not counted, the
    collector is asked, and the test skipped if that does not help: a frame whose loop was compiled keeps what it had.
    """
    for reference in references:
        for _ in range(COLLECTIONS):
            if COUNTS_REFERENCES or reference() is None:
                break
            gc.collect()
        else:
            pytest.skip(f"{reference} is not freed here: a compiled loop may keep it")

        def freed(reference: weakref.ref[Any] = reference) -> bool:
            if FREE_THREADED and pool is not None:
                # As many tasks as there are workers, none of which ends before all have begun.
                workers = pool.stats().workers if hasattr(pool, "stats") else pool._max_workers
                together = threading.Barrier(max(1, workers))
                for task in [pool.submit(together.wait, TIMEOUT) for _ in range(together.parties)]:
                    task.result(TIMEOUT)
            return reference() is None

        eventually(freed, f"{reference} is freed")


def collected(*references: weakref.ref[Any]) -> None:
    """Wait until every object behind `references` is freed, by the cyclic garbage collector if not sooner."""

    def freed(reference: weakref.ref[Any]) -> bool:
        gc.collect()
        return reference() is None

    for reference in references:
        eventually(lambda: freed(reference), f"{reference} is collected")  # noqa: B023  (used at once)


def forget_the_past() -> None:
    """Take all that is alive now out of the garbage collector's sight, where that makes its work less."""
    if hasattr(gc, "freeze") and not FREE_THREADED:
        gc.collect()
        gc.freeze()


def wait_for_idle(pool: Any) -> None:
    if not COUNTS_REFERENCES and not pool.wait_idle(0.2):
        gc.collect()  # what nobody holds any more may keep it at work
    assert pool.wait_idle(TIMEOUT), f"not idle: {pool.stats()}"


def environment() -> dict[str, str]:
    """Return the environment of a process that is to import the same ebbpool, whatever folder it runs in."""
    path = [HOME, TESTS, os.environ.get("PYTHONPATH", "")]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, path)))


def python(
    *arguments: str, cwd: Path | None = None, timeout: float = 50.0, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run an interpreter of its own, with the same ebbpool and the same core."""
    command = [sys.executable, *arguments]
    env = environment() | environ
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def run_script(script: str, prelude: str = "", *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run `prelude` and `script` in an interpreter of its own."""
    code = textwrap.dedent(prelude) + textwrap.dedent(script)
    # Without a buffer, `print` writes a line and its end in two calls, and another interpreter can write between them.
    return python("-W", "ignore", "-c", code, timeout=timeout, PYTHONUNBUFFERED="")


def output_of(script: str, prelude: str = "") -> list[str]:
    """Run `script` and return the lines it printed; fail if it failed or wrote to standard error."""
    done = run_script(script, prelude)
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stdout, done.stderr)
    return done.stdout.split("\n")[:-1]


def forked(script: str, prelude: str = "") -> list[str]:
    """The same for a script that begins with `FORK`, after the prelude; it is skipped where nothing can fork."""
    if not hasattr(os, "fork"):
        pytest.skip("the platform cannot fork")
    return output_of(script, prelude + FORK)
