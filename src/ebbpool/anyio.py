"""anyio and trio: a fast `run_sync`, and `install` for everything that calls `anyio.to_thread.run_sync`.

Starlette and FastAPI run their sync endpoints, dependencies, background tasks and file responses through anyio, which
never looks at the loop's executor. One line brings them all to a pool::

    import ebbpool.anyio

    ebbpool.anyio.install()

From then on the pool's ceiling (`max_workers`, 256 by default) is the limit wherever no limiter is given, in place of
anyio's forty tokens. Calls no longer borrow from anyio's default limiter, so its `borrowed_tokens` stay at 0, and
setting its `total_tokens` changes nothing; `keep_default_limiter=True` leaves it in force.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, TypeVarTuple

from ebbpool._core.accel import say_if_plain
from ebbpool._errors import lacking
from ebbpool._pool import lifecycle
from ebbpool._pool.cancelling import deadlines_elsewhere
from ebbpool._replacements import Replacements
from ebbpool.executor import AdaptiveExecutor, must_be_executor, must_be_open

try:
    from anyio import to_thread
except ImportError as _error:
    raise lacking("anyio", "anyio", _error) from _error

if TYPE_CHECKING:
    from anyio import CapacityLimiter

__all__ = ["Installation", "UnsupportedVersion", "install", "run_sync", "uninstall"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GET_BACKEND: Final = "get_async_backend"
TRIO: Final = "anyio._backends._trio"
"""The module of trio's backend, which is there once trio is in use."""


class UnsupportedVersion(RuntimeError):
    """The installed anyio or trio lacks a private part that `ebbpool.anyio` needs, or fails the self-test."""


def _lacking(*_: object) -> Any:
    raise UnsupportedVersion(f"anyio.to_thread of this version has no {GET_BACKEND}")


_backend: Callable[..., Any] = getattr(to_thread, GET_BACKEND, _lacking)
"""anyio's own function, which returns the class of the backend in use, or of the one that is named."""


class Installation(Replacements):
    """What `install` returns. As a context manager it uninstalls at the end of the last, unless that has been done.

    Attributes:
        keep_default_limiter: Whether calls without a limiter borrow from anyio's default one.
    """

    def __init__(self, executor: AdaptiveExecutor | None, keep_default_limiter: bool) -> None:
        super().__init__()
        self._executor = executor
        self.keep_default_limiter = keep_default_limiter
        self._uses = 1

    @property
    def executor(self) -> AdaptiveExecutor:
        """The executor that takes the calls."""
        return _shared_executor() if self._executor is None else self._executor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            self._uses -= 1
            if self._uses <= 0 and _installed is self:
                uninstall()

    def __repr__(self) -> str:
        executor = "the shared executor" if self._executor is None else repr(self._executor)
        return f"<ebbpool.anyio.Installation of {executor}, keep_default_limiter={self.keep_default_limiter}>"


_lock = threading.RLock()
_installed: Installation | None = None
_shared: AdaptiveExecutor | None = None
_run_sync_of: dict[Any, Callable[..., Coroutine[Any, Any, Any]]] = {}
"""The function that runs calls, for each of anyio's backend classes that has passed the self-test."""


async def run_sync(
    func: Callable[[*Ts], T],
    *args: *Ts,
    abandon_on_cancel: bool = False,
    limiter: CapacityLimiter | None = None,
    executor: AdaptiveExecutor | None = None,
) -> T:
    """Call `func(*args)` in a worker and wait for what it returns, as `anyio.to_thread.run_sync` does.

    It can be used with asyncio, uvloop and trio, and needs neither `install` nor a loop of ebbpool's. The call sees a
    copy of the caller's context variables, and may use ``anyio.from_thread``.

    A task that is cancelled while its call waits for capacity takes the call off the queue. Otherwise it waits for the
    end of the call, or leaves it behind if `abandon_on_cancel` is true; what an abandoned call returns or raises is
    dropped. A native ``asyncio.Task.cancel`` leaves the call behind in any case.

    Args:
        func: Called in a worker. With ``when_full="caller_runs"`` it may be called in the loop's own thread, in which
            ``anyio.from_thread`` does not work.
        args: Its arguments.
        abandon_on_cancel: Whether a cancelled task leaves a running call behind.
        limiter: The call borrows from it while it is queued and runs. It is then the only limit: such a call goes ahead
            of the queue, and beyond the executor's ceiling if necessary, so that it never waits for calls without one.
            If None, the executor's bounds are the limit.
        executor: The pool; if None the installed one, or one that is shared by the whole process.

    Raises:
        TypeError: `executor` is not an `AdaptiveExecutor`.
        RuntimeError: The executor was shut down. Its subclasses: `UnsupportedVersion`, `QueueFull`,
            `BrokenThreadPool`; of anyio's own, `NoEventLoopError` outside a loop.
        concurrent.futures.CancelledError: The executor cancelled the call before it began.
        BaseException: What `func` raised; a `RuntimeError` in place of a `StopIteration`.
    """
    if executor is None:
        installed = _installed
        executor = _shared_executor() if installed is None else installed.executor
    elif type(executor) is not AdaptiveExecutor:
        must_be_executor(executor)
    backend = _backend()
    run = _run_sync_of.get(backend) or _checked(backend)
    value: T = await run(executor, func, args, abandon_on_cancel, limiter, limiter is not None)
    return value


def install(executor: AdaptiveExecutor | None = None, *, keep_default_limiter: bool = False) -> Installation:
    """Make `anyio.to_thread.run_sync` run on a pool, for the whole process, on asyncio, uvloop and trio.

    That includes calls by code that imported it before, and with it Starlette's and FastAPI's sync endpoints,
    dependencies, background tasks and file responses, ``anyio.Path`` and ``anyio.open_file``. Calls under way are
    finished where they began. `trio.to_thread` is left alone. If it is installed already, in the same way, nothing
    changes.

    A self-test of some milliseconds, with calls on a loop and a pool of its own, shows whether this anyio can be used;
    another one is made when trio first is. What fails it is left alone: a `RuntimeWarning` says why, and its calls run
    in anyio's own threads.

    Args:
        executor: The pool; if None, the installed one, or one that is shared by the whole process, made on first use.
        keep_default_limiter: Whether calls without a limiter go on borrowing from the backend's default limiter. If
            not, the executor's bounds are the only limit.

    Returns:
        A context manager that uninstalls, and if it was installed several times does so at the end of the last.

    Raises:
        RuntimeError: `executor` has been shut down, or it is installed already with another one or with another
            `keep_default_limiter`.
        TypeError: `executor` is not an `AdaptiveExecutor`.
    """
    global _installed
    if executor is not None:
        must_be_open(executor)
    say_if_plain()
    installation = Installation(executor, bool(keep_default_limiter))
    with _lock:
        if _installed is not None:
            same = executor in (None, _installed._executor)
            if not same or installation.keep_default_limiter != _installed.keep_default_limiter:
                how = "call ebbpool.anyio.uninstall() first, end its `with`, or ask for the same"
                raise RuntimeError(f"already installed: {_installed!r}; {how}")
            _installed._uses += 1
            return _installed
        with _left_alone():
            _redirect(installation)
        _installed = installation
    return installation


def uninstall() -> None:
    """Give `anyio.to_thread.run_sync` back its own threads. Calls in flight finish on the pool, which stays as it is.

    Raises:
        RuntimeError: Nothing is installed, or other code has replaced the same functions since.
    """
    global _installed
    with _lock:
        if _installed is None:
            raise RuntimeError("ebbpool.anyio is not installed")
        _installed.restore()
        _installed = None


def _redirect(installation: Installation) -> None:
    """Have `anyio.to_thread` find backends that use the pool; nothing has changed if one in use is not supported."""
    # Within the import of anyio itself a trial, in threads of its own, might wait for that: the first call makes it.
    if not getattr(sys.modules["anyio"].__spec__, "_initializing", False):
        for library in ("asyncio", "trio") if TRIO in sys.modules else ("asyncio",):
            _checked(_backend(library))
    find: Callable[..., Any] = getattr(to_thread, GET_BACKEND)
    ours = functools.cache(functools.partial(_on_the_pool, installation))
    installation.replace(to_thread, GET_BACKEND, lambda *library: ours(find(*library)))


@contextlib.contextmanager
def _left_alone() -> Iterator[None]:
    """Turn an unsupported version into a warning at the line that called our function."""
    try:
        yield
    except UnsupportedVersion as error:
        why = f"{error}; so calls of anyio.to_thread.run_sync run in anyio's own threads, as without ebbpool"
        warnings.warn(why, RuntimeWarning, stacklevel=4)


def _on_the_pool(installation: Installation, backend: Any) -> Any:
    """Return a backend whose calls run on the pool; the given one, after a warning, if that is not supported."""
    run: Any = None
    with _left_alone():
        run = _checked(backend)
    if run is None:
        return backend

    class OnThePool(backend):  # type: ignore[misc]  # known at run time
        # It returns the coroutine itself: another one around it would have to be entered twice for each call.
        @classmethod
        def run_sync_in_worker_thread(
            cls,
            func: Callable[..., Any],
            args: tuple[Any, ...],
            abandon_on_cancel: bool = False,
            limiter: CapacityLimiter | None = None,
        ) -> Any:
            own = limiter is not None
            if not own and installation.keep_default_limiter:
                limiter = cls.current_default_thread_limiter()
            executor = installation._executor
            if executor is None:
                executor = _shared_executor()
            return run(executor, func, args, abandon_on_cancel, limiter, own)

    return OnThePool


def _shared_executor() -> AdaptiveExecutor:
    global _shared
    executor = _shared
    if executor is None or (executor._pool.closed and not lifecycle.exiting()):
        with _lock:
            executor = _shared
            if executor is None or executor._pool.closed:
                executor = _shared = AdaptiveExecutor(thread_name_prefix="ebbpool-anyio")
    return executor


def _checked(backend: Any) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the function that runs calls for `backend`, once it has passed a trial, which also asks for a deadline.

    A failure is not remembered, so the next call makes another trial; until one is passed, `time_left` does not ask.
    """
    with _lock:
        if backend not in _run_sync_of:
            library = backend.__module__.rpartition("_")[2]
            try:
                from ebbpool._anyio.trial import attempt

                way = importlib.import_module(f"ebbpool._anyio.on_{library}")
                attempt(way, library)
            except Exception as error:
                version = importlib.metadata.version("anyio")
                why = f"anyio {version} fails ebbpool's self-test on {library}: {error!r}"
                raise UnsupportedVersion(why) from error
            deadlines_elsewhere.append(way.deadline)
            _run_sync_of[backend] = way.run_sync
        return _run_sync_of[backend]
