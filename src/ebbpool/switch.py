"""`ebbpool.install` puts all thread work of a process on one pool, each library as soon as it is imported."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import sys
import threading
import traceback
import warnings
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from ebbpool._interpreter import daemon_threads
from ebbpool._pool import lifecycle
from ebbpool._replacements import Replacements
from ebbpool.executor import AdaptiveExecutor, must_be_open

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Self

    from ebbpool.lane import Lane

__all__ = ["Installed", "install"]

OURS: Final = "ebbpool.anyio"
ITERATE: Final = "iterate_in_threadpool"
NOT_YET: Final = "as soon as it is imported"
UNLIMITED: Final = 1_000_000
"""The limit of a lane that is to have none but the pool's."""

_lock = threading.RLock()
_installed: Installed | None = None


class Installed:
    """What `install` did, and how to undo it. As a context manager it does so at the end, that of the last `install`.

    Attributes:
        executor: The pool.
        parts: What was done with each library, by its name. A library that is not imported yet is changed when it is.
    """

    def __init__(self, executor: AdaptiveExecutor, explain: Callable[[str], object] | None) -> None:
        self.executor = executor
        self.parts: dict[str, str] = {}
        self._explain = explain
        self._replacements = Replacements()
        self._watcher = _Watcher()
        self._lanes: weakref.WeakKeyDictionary[Any, Lane] = weakref.WeakKeyDictionary()
        self._anyio: Any = None
        self._uses = 1

    def undo(self) -> None:
        """Restore everything. Calls in flight end on the pool, which stays open; a second call does nothing.

        uvloop's own loops that were made meanwhile stay on the pool.

        Raises:
            RuntimeError: Other code has replaced the same functions since; nothing has changed.
        """
        global _installed
        with _lock:
            if _installed is not self:
                return
            self._replacements.restore()
            if self._anyio is not None:
                self._anyio.__exit__(None, None, None)
            for loop, lane in list(self._lanes.items()):
                # Loops make executors of their own again. uvloop's do not tell which one they have.
                for name in ("_default", "_default_executor"):
                    if getattr(loop, name, None) is not lane:
                        continue
                    setattr(loop, name, None)
            sys.meta_path.remove(self._watcher)
            _installed = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            self._uses -= 1
            if self._uses <= 0:
                self.undo()

    def _tell(self, name: str, done: str) -> None:
        if self.parts.get(name) == done:
            return
        self.parts[name] = done
        if self._explain is not None:
            self._explain(f"{name}: {done}")

    def _watch(self, name: str, module: str, change: Callable[[Installed, ModuleType], str]) -> None:
        """Have `change` made to a module; it returns what was done, or raises if it knows no such module."""

        def act(found: ModuleType) -> None:
            with _lock:
                if self is not _installed:
                    return
                try:
                    self._tell(name, change(self, found))
                except Exception as error:
                    # Raised here, this would make the program's import fail. So the library keeps threads of its own.
                    self._tell(name, f"left as it is: {error}")
                    warnings.warn(f"ebbpool leaves {name} as it is: {error}", RuntimeWarning, stacklevel=2)

        if not self._watcher.watch(module, act):
            there = importlib.util.find_spec(module.partition(".")[0]) is not None
            self._tell(name, NOT_YET if there else "not installed")

    def _give_lane(self, loop: Any) -> None:
        """Make a lane of the pool the loop's default executor. A loop that ends shuts that down: so it has its own."""
        names = (f"asyncio-{number}" if number > 1 else "asyncio" for number in itertools.count(1))
        while loop not in self._lanes and not self.executor._pool.closed:
            # The first name that is free.
            with contextlib.suppress(ValueError):
                self._lanes[loop] = self.executor.lane(next(names), limit=UNLIMITED)
                loop.set_default_executor(self._lanes[loop])

    def _watch_loops(self, base: Any) -> None:
        """Watch every class of loops that derives from asyncio's abstract one, also those that are defined later."""

        def __init_subclass__(loop_class: type[Any], /, **kwargs: Any) -> None:
            super(base, loop_class).__init_subclass__(**kwargs)
            if base in loop_class.__bases__:
                self._watch_loop_class(loop_class)

        for loop_class in base.__subclasses__():
            self._watch_loop_class(loop_class)
        self._replacements.replace(base, "__init_subclass__", classmethod(__init_subclass__))

    def _watch_loop_class(self, loop_class: Any) -> None:
        make: Callable[..., None] = loop_class.__init__

        def __init__(loop: Any, *args: Any, **kwargs: Any) -> None:
            make(loop, *args, **kwargs)
            self._give_lane(loop)

        self._replacements.replace(loop_class, "__init__", __init__)


def install(
    executor: AdaptiveExecutor | None = None,
    *,
    streams: bool = True,
    explain: Callable[[str], object] | None = None,
) -> Installed:
    """Run on one pool everything that a process sends to threads, through whichever library.

    This covers `anyio.to_thread` (see `ebbpool.anyio.install`), and with it Starlette and FastAPI; `trio.to_thread`;
    the default executor of all event loops, of whichever library, that are made from now on, and of the one that runs
    here, and with it `asyncio.to_thread`, asyncio's `getaddrinfo`, and asgiref's
    ``sync_to_async(thread_sensitive=False)``. A library imported later is switched then; one in an unknown version is
    left as it is, with a `RuntimeWarning`. Calls of `trio.to_thread` run in daemon threads, as trio's own are: in a
    pool beside it, unless that has such threads.

    If it is installed already, on the same pool, nothing changes.

    Args:
        executor: The pool; None for the one that is installed, or a new one.
        streams: Whether sync iterators as bodies in Starlette are read in batches, up to 64 chunks or 256 KiB ahead of
            the client.
        explain: Called with one line per library: now, or later in the thread that imports it.

    Returns:
        A context manager that undoes it, and if it was installed several times does so at the end of the last.

    Raises:
        RuntimeError: `executor` has been shut down, or it is installed already, on another pool.
        TypeError: `executor` is not an `AdaptiveExecutor`.
    """
    global _installed
    if executor is not None:
        must_be_open(executor)
    with _lock:
        if _installed is not None:
            if executor not in (None, _installed.executor):
                raise RuntimeError(
                    f"already installed, on {_installed.executor!r}; undo that first, or give no executor"
                )
            _installed._uses += 1
            return _installed
        installed = Installed(executor or AdaptiveExecutor(thread_name_prefix="ebbpool"), explain)
        _installed = installed
        sys.meta_path.insert(0, installed._watcher)
        # So that the end of its import is noticed if `_anyio` finds it half imported.
        installed._watcher.watch(OURS, lambda _: None)
        installed._watch("anyio", "anyio", _anyio)
        installed._watch("trio", "trio", _trio)
        installed._watch("asyncio", "asyncio", _asyncio)
        if streams:
            installed._watch("starlette", "starlette.concurrency", _starlette)
    return installed


def _anyio(installed: Installed, _: ModuleType) -> str:
    from ebbpool import anyio as ours

    if not hasattr(ours, "install"):
        # The program imports `ebbpool.anyio` first. It is half imported, in the middle of its own import of anyio.
        installed._watch("anyio", OURS, _anyio)
        return NOT_YET
    installed._anyio = ours.install(installed.executor)
    if not installed._anyio.replaced:
        return "left as it is: it fails the self-test of ebbpool.anyio"
    return "to_thread, and with it Starlette and FastAPI"


def _trio(installed: Installed, trio: ModuleType) -> str:
    cache = sys.modules["trio._core._thread_cache"]
    if "THREAD_CACHE" not in trio.lowlevel.start_thread_soon.__code__.co_names or not hasattr(cache, "THREAD_CACHE"):
        raise RuntimeError("it has no THREAD_CACHE in this version")
    # Imported here, because it comes with trio.
    from outcome import capture

    stock = cache.THREAD_CACHE
    daemons = functools.cache(functools.partial(_daemons_beside, installed.executor))

    def start_thread_soon(fn: Callable[[], Any], deliver: Callable[[Any], object], name: Any = None) -> None:
        executor = daemons()
        try:
            # trio has limited the calls already, so they go beyond the pool's ceiling if need be.
            executor.hand_in(executor._unlimited, True, _perform, (fn, deliver, capture, name), {})
        except RuntimeError:
            if not lifecycle.exiting():
                raise
            stock.start_thread_soon(fn, deliver, name)

    # trio forgets the idle workers in a forked child.
    ours = SimpleNamespace(start_thread_soon=start_thread_soon, _idle_workers={})
    installed._replacements.replace(cache, "THREAD_CACHE", ours)
    return "to_thread"


def _daemons_beside(executor: AdaptiveExecutor) -> AdaptiveExecutor:
    """Return a pool of daemon threads, as trio's own are: the exit does not wait for a call that trio left behind."""
    crew = executor._crew
    if crew.daemon or not daemon_threads():
        return executor
    return AdaptiveExecutor(
        thread_name_prefix=f"{executor.name}-trio",
        initializer=crew.initializer,
        initargs=crew.initargs,
        finalizer=crew.finalizer,
        daemon=True,
        thread_stack_size=crew.stack_size,
        warn_after=crew.warn_after,
    )


def _perform(fn: Callable[[], Any], deliver: Callable[[Any], object], capture: Callable[..., Any], name: Any) -> None:
    thread = threading.current_thread()
    usual = thread.name
    if name is not None:
        thread.name = name
    result = capture(fn)
    thread.name = usual
    # What the caller handed over is not to live on while its result is on the way.
    del fn
    try:
        deliver(result)
    except BaseException:
        print("Exception while delivering result of thread", file=sys.stderr)
        traceback.print_exc()


def _asyncio(installed: Installed, asyncio: ModuleType) -> str:
    installed._watch_loops(asyncio.AbstractEventLoop)
    running = asyncio._get_running_loop()
    if running is None:
        return "the default executor of new loops"
    installed._give_lane(running)
    return "the default executor of new loops, and of the one that runs"


def _starlette(installed: Installed, concurrency: ModuleType) -> str:
    from ebbpool._anyio.streams import iterate_in_batches

    stock = getattr(concurrency, ITERATE)
    batches = iterate_in_batches(stock)
    # Modules that imported the function by name have a reference of their own.
    for module in [each for each in list(sys.modules.values()) if getattr(each, "__dict__", {}).get(ITERATE) is stock]:
        installed._replacements.replace(module, ITERATE, batches)
    return "sync iterators as bodies, in batches"


class _Watcher:
    """A finder for `sys.meta_path` that has the others find a module, and then has its action done.

    It does not inherit from `importlib.abc`, which is slow to import and would add nothing.
    """

    def __init__(self) -> None:
        # By the names of modules that have not been imported.
        self.wanted: dict[str, Callable[[ModuleType], None]] = {}
        # The module that the calling thread asks the other finders for, by the way that leads here again.
        self.here = threading.local()

    def watch(self, name: str, action: Callable[[ModuleType], None]) -> bool:
        """Do `action` with the module now if it is imported, else as soon as it is; return whether it was done."""
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            action(module)
            return True
        self.wanted[name] = action
        return False

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self.wanted or getattr(self.here, "name", None) == fullname:
            return None
        self.here.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.here.name = None
        if spec is not None and spec.loader is not None:
            loader = spec.loader

            def exec_module(module: ModuleType) -> None:
                # From here on nobody sees that we have been there.
                module.__loader__ = loader
                if module.__spec__ is not None:
                    module.__spec__.loader = loader
                loader.exec_module(module)
                # Only now: many ask for a loader and load nothing.
                if (action := self.wanted.pop(fullname, None)) is not None:
                    action(module)

            ours: Any = SimpleNamespace(create_module=loader.create_module, exec_module=exec_module)
            spec.loader = ours
        return spec
