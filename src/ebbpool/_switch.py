"""What `ebbpool.install` puts in place: import hooks, lanes for loops, leased threads; and how it is undone.

The finder and the loader here do not inherit from `importlib.abc`, which is slow to import and would add nothing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ebbpool.session import Line, Session

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from ebbpool.executor import AdaptiveExecutor
    from ebbpool.lane import Lane

UNLIMITED: Final = 1_000_000
"""The limit of a lane that is to have none but the pool's."""

_INHERITED: Final = object()


class Replacements:
    """Attributes of classes and modules that have been replaced.

    Attributes:
        replaced: The owner, the name, the old value and the new one of each.
    """

    def __init__(self) -> None:
        self.replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Replace an attribute by `new`, until `restore` puts the old value back."""
        self.replaced.append((owner, name, vars(owner).get(name, _INHERITED), new))
        setattr(owner, name, new)

    def restore(self) -> None:
        """Put all replaced attributes back.

        Raises:
            RuntimeError: Other code has replaced the same attributes since; nothing has changed.
        """
        for owner, name, _, new in self.replaced:
            if vars(owner).get(name) is not new:
                raise RuntimeError(f"{owner.__name__}.{name} has been replaced since; undo that first")
        while self.replaced:
            owner, name, old, _ = self.replaced.pop()
            if old is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


Action = Callable[[ModuleType], None]


class Watcher:
    """A finder for `sys.meta_path` that has the others find a module, and then has its action done.

    Attributes:
        wanted: The actions for modules that have not been imported, by name.
        here: The module that the calling thread asks the other finders for, by the way that leads here again.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, Action] = {}
        self.here = threading.local()

    def watch(self, name: str, action: Action) -> bool:
        """Do `action` with the module now if it is imported, else as soon as it is; return whether it was done."""
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            action(module)
            return True
        self.wanted[name] = action
        return False

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module that is watched for, by asking the other finders."""
        if fullname not in self.wanted or getattr(self.here, "name", None) == fullname:
            return None
        self.here.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.here.name = None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]  # it has what a loader has
        return spec


class _Loader:
    """A loader that has a module's action done once it is loaded; many ask for a loader and load nothing."""

    def __init__(self, loader: Any, watcher: Watcher) -> None:
        self.loader = loader
        self.watcher = watcher

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self.loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        # From here on nobody sees that we have been there.
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        action = self.watcher.wanted.pop(module.__name__, None)
        if action is not None:
            action(module)


class Loops:
    """The loops that have been given a lane of the pool. A loop that ends shuts its executor down: its own lane."""

    def __init__(self, executor: AdaptiveExecutor) -> None:
        self.executor = executor
        self.lanes: weakref.WeakKeyDictionary[Any, Lane] = weakref.WeakKeyDictionary()

    def give(self, loop: Any) -> None:
        """Make a lane of the pool the loop's default executor; this is what every user of a loop can do, too."""
        if not self.executor._pool.closed:
            lane = self.lanes[loop] = free_lane(self.executor)
            loop.set_default_executor(lane)

    def watch(self, replacements: Replacements, loop_class: Any) -> None:
        """Have each loop of a class given a lane when it is made."""
        make: Callable[..., None] = loop_class.__init__

        def __init__(loop: Any, *args: Any, **kwargs: Any) -> None:
            make(loop, *args, **kwargs)
            self.give(loop)

        replacements.replace(loop_class, "__init__", __init__)

    def take_back(self) -> None:
        """Have asyncio's loops make executors of their own again. uvloop's do not tell which one they have."""
        for loop, lane in list(self.lanes.items()):
            if getattr(loop, "_default_executor", None) is lane:
                loop._default_executor = None


def free_lane(executor: AdaptiveExecutor) -> Lane:
    """Return a lane without a limit, under the first name that is free."""
    for number in itertools.count(1):
        with contextlib.suppress(ValueError):
            return executor.lane("asyncio" if number == 1 else f"asyncio-{number}", limit=UNLIMITED)
    raise AssertionError


class Leasing(Session):
    """In place of a `ThreadPoolExecutor`: as many threads as it may have, of the pool's, while it has work for them.

    That they are the pool's shows in nothing but thread-local data. One thread stays: its users may count on that.
    """


def leasing(executor: AdaptiveExecutor) -> Callable[..., None]:
    """Return a replacement for `ThreadPoolExecutor.__init__`, after which what is made leases threads of the pool."""
    make: Callable[..., None] = ThreadPoolExecutor.__init__

    def __init__(
        self: Any, max_workers: Any = None, prefix: Any = "", initializer: Any = None, initargs: Any = (), **others: Any
    ) -> None:
        prefix = others.pop("thread_name_prefix", prefix)
        make(self, max_workers, prefix, initializer, initargs, **others)
        # Subclasses are left as they are, and so is what is made with arguments that are not known here.
        made: object = type(self)
        if made is ThreadPoolExecutor and not others and not executor._pool.closed:
            limit, prefix = self._max_workers, self._thread_name_prefix
            vars(self).clear()
            self.__class__ = Leasing
            self._max_workers, self._thread_name_prefix = limit, prefix
            self._lend(Line(executor, limit, limit == 1, None, initializer, initargs, prefix))

    return __init__


class PoolThreads:
    """What `trio.lowlevel.start_thread_soon` asks for a thread: one of the pool's.

    trio has limited the calls already, so they go beyond the pool's ceiling if need be.
    """

    def __init__(self, executor: AdaptiveExecutor) -> None:
        # Imported here, because it comes with trio.
        import outcome

        self.capture = outcome.capture
        self.executor = executor
        # trio forgets these in a forked child.
        self._idle_workers: dict[Any, None] = {}

    def start_thread_soon(self, fn: Callable[[], Any], deliver: Callable[[Any], object], name: Any = None) -> None:
        self.executor.hand_in(self.executor._unlimited, True, _perform, (fn, deliver, self.capture), {})


def _perform(fn: Callable[[], Any], deliver: Callable[[Any], object], capture: Callable[..., Any]) -> None:
    result = capture(fn)
    # What the caller handed over is not to live on while its result is on the way.
    del fn
    deliver(result)
