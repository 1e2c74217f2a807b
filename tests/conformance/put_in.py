"""Puts executors, futures and servers in the place of the standard library's, and counts what tests make of them.

Nothing of CPython's tests is edited. What changes is what their names mean:
`ThreadPoolMixin.executor_type`, the names `futures`, `concurrent` and `Future` in the test modules, the
default executor of new event loops, the import line of the scripts that tests run in a fresh
interpreter, and names such as `socketserver` and `HTTPServer` in the modules on servers; the standard library's own
modules stay as they are, since our classes derive from theirs.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.tasks
import concurrent.futures
import concurrent.futures._base
import functools
import http.server
import importlib
import re
import socketserver
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ExecutorType = type[concurrent.futures.ThreadPoolExecutor]
FutureType = type[concurrent.futures.Future[Any]]

_IMPORT_LINE = re.compile(r"^(?P<indent> *)from concurrent\.futures import (?P<name>\w+) *$", re.MULTILINE)

THREADING = "threading"
PLAIN = "plain"
HTTP = "http"

_SERVERS = {
    THREADING: {
        "ThreadingMixIn": "AdaptivePoolMixIn",
        "ThreadingTCPServer": "AdaptivePoolTCPServer",
        "ThreadingUDPServer": "AdaptivePoolUDPServer",
        "ThreadingUnixStreamServer": "AdaptivePoolUnixStreamServer",
        "ThreadingUnixDatagramServer": "AdaptivePoolUnixDatagramServer",
    },
    PLAIN: {
        "TCPServer": "AdaptivePoolTCPServer",
        "UDPServer": "AdaptivePoolUDPServer",
        "UnixStreamServer": "AdaptivePoolUnixStreamServer",
        "UnixDatagramServer": "AdaptivePoolUnixDatagramServer",
    },
    HTTP: {"HTTPServer": "AdaptivePoolHTTPServer", "ThreadingHTTPServer": "AdaptivePoolHTTPServer"},
}
"""Which of our classes takes the place of which of the standard library's."""


class Counts:
    """How many executors, servers and futures of the kind under test a test made, and how many `strays`.

    Those are executors or servers of the standard library's although others were put in. A fresh interpreter writes a
    line to the file `scripts` for each executor it makes.
    """

    def __init__(self, scripts: Path) -> None:
        self.made = 0
        self.strays = 0
        self.scripts = scripts

    def total(self) -> int:
        """Return everything made up to now, fresh interpreters included."""
        made_by_scripts = len(self.scripts.read_text().splitlines()) if self.scripts.exists() else 0
        return self.made + made_by_scripts

    def note(self, *, ours: bool) -> None:
        self.made += ours
        self.strays += not ours


class _StandIn(type):
    """The metaclass of a name that makes futures of the kind under test and counts them."""

    made: FutureType
    counts: Counts

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        cls.counts.made += 1
        return cls.made(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, concurrent.futures._base.Future)


class Substitution:
    """What takes the place of ThreadPoolExecutor, and of Future where a test makes one; None leaves them alone."""

    def __init__(self, executor_type: ExecutorType | None, future_type: FutureType | None, counts: Counts) -> None:
        self.executor_type = executor_type
        self.counts = counts
        self.future: Any = None
        if executor_type is not None:
            standard = concurrent.futures.ThreadPoolExecutor
            _before_init(executor_type, lambda made: counts.note(ours=True))
            if executor_type is not standard:
                # Ours derives from it, but never runs its `__init__`.
                _before_init(standard, lambda made: counts.note(ours=False))
        if future_type is not None:
            self.future = _StandIn("Future", (), {"made": future_type, "counts": counts})
        replaced: dict[str, Any] = {"ThreadPoolExecutor": executor_type, "Future": self.future}
        self.futures = _like(concurrent.futures, {name: made for name, made in replaced.items() if made is not None})

    @contextmanager
    def while_importing(self) -> Iterator[None]:
        """Let test modules that are imported in this block bind `Future` to the future under test."""
        base = concurrent.futures._base
        original = base.Future
        try:
            if self.future is not None:
                setattr(base, "Future", self.future)  # noqa: B010
            yield
        finally:
            setattr(base, "Future", original)  # noqa: B010

    def put_into(self, module: types.ModuleType) -> None:
        """Put the classes under test into a module of tests, and into asyncio itself if it is one of test_asyncio.

        A module that lacks what there is to replace is an error: the standard library would be tested.
        """
        names = vars(module)
        if module.__name__.startswith("test.test_asyncio"):
            self._put_into_asyncio(names)
            return
        if "futures" in names:
            names["futures"] = self.futures
        if self.future is not None and names.get("Future", self.future) is not self.future:
            raise RuntimeError(f"{module.__name__}.Future was bound before the future under test was put in")
        if self.executor_type is None:
            return
        mixin = _shared(names, "ThreadPoolMixin")
        mixin.executor_type = self.executor_type
        if "assert_python_ok" in names:
            names["assert_python_ok"] = self._scripts_with_ours(names["assert_python_ok"])
        if "ExecutorDeadlockTest" in names:
            _add_thread_deadlock_tests(names, mixin, self.executor_type)

    def _put_into_asyncio(self, names: dict[str, Any]) -> None:
        package = types.SimpleNamespace(futures=self.futures)
        if "concurrent" in names:
            names["concurrent"] = package
        if self.future is not None:
            vars(asyncio.tasks)["concurrent"] = package
        if self.executor_type is not None:
            _make_it_the_default(self.executor_type)

    def seed(self, case: type[unittest.IsolatedAsyncioTestCase]) -> None:
        """Make each test of `case` run in a loop whose default executor is ours and has just been used."""
        executor_type = self.executor_type
        original = case.asyncSetUp

        async def with_ours_in_use(self: unittest.IsolatedAsyncioTestCase) -> None:
            if executor_type is not None:
                loop = asyncio.get_running_loop()
                loop.set_default_executor(executor_type(thread_name_prefix="asyncio"))
                assert await loop.run_in_executor(None, abs, -1) == 1
            await original(self)

        setattr(case, "asyncSetUp", with_ours_in_use)  # noqa: B010

    def _scripts_with_ours(self, assert_python_ok: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(assert_python_ok)
        def with_ours(*args: str, **env_vars: str) -> Any:
            flag, script = args
            if flag != "-c":
                raise RuntimeError(f"not a script, so our executor cannot be put in: {args!r}")
            return assert_python_ok(flag, self._script_with_ours(script), **env_vars)

        return with_ours

    def _script_with_ours(self, script: str) -> str:
        """Return a test's script that imports the executor under test instead of ThreadPoolExecutor."""
        executor_type = self.executor_type
        assert executor_type is not None
        source = sys.modules[executor_type.__module__.partition(".")[0]].__file__
        assert source is not None
        preamble = "\n".join(
            [
                "import sys, test",
                f"sys.path.append({str(Path(source).parent.parent)!r})",
                f"test.__path__[:] = {list(sys.modules['test'].__path__)!r}",
                f"from {executor_type.__module__} import {executor_type.__name__} as made",
                "def counted(self, *args, original=made.__init__, **kwargs):",
                f"    with open({str(self.counts.scripts)!r}, 'a') as made_here:",
                "        print('made', file=made_here)",
                "    original(self, *args, **kwargs)",
                "made.__init__ = counted",
            ]
        )

        def ours(line: re.Match[str]) -> str:
            if line["name"] not in {"ThreadPoolExecutor", executor_type.__name__}:
                raise RuntimeError(f"the script imports something else: {line[0]!r}")
            return f"{line['indent']}names = {{}}; exec({preamble!r}, names); {line['name']} = names['made']"

        rewritten, imports = _IMPORT_LINE.subn(ours, script)
        if imports != 1:
            raise RuntimeError(f"{imports} imports of an executor in a test's script, 1 expected:\n{script}")
        return rewritten


def _shared(names: dict[str, Any], name: str) -> Any:
    """Return what the test modules share: from the module itself, or from the package's `util`."""
    utilities = sys.modules.get(f"{names['__package__']}.util")
    shared = names.get(name, getattr(utilities, name, None))
    if shared is None:
        raise RuntimeError(f"no {name} found for {names['__name__']}")
    return shared


def _like(module: types.ModuleType, replaced: dict[str, Any]) -> types.ModuleType:
    """Return a module that is the given one but for what is replaced."""
    made = types.ModuleType(module.__name__)
    vars(made).update(replaced, __getattr__=lambda name: getattr(module, name))
    return made


def _before_init(kind: type, tell: Callable[[Any], None]) -> None:
    """Have `tell` called with every object of this kind that is made from now on, before its `__init__`."""
    original = vars(kind)["__init__"]

    @functools.wraps(original)
    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        tell(self)
        original(self, *args, **kwargs)

    setattr(kind, "__init__", counted)  # noqa: B010


def _make_it_the_default(executor_type: ExecutorType) -> None:
    """Give each loop our executor as its default one, through the public call, when it would make its own."""
    loop_type: Any = asyncio.base_events.BaseEventLoop
    original = loop_type.run_in_executor

    @functools.wraps(original)
    def run_in_executor(self: Any, executor: Any, func: Any, *args: Any) -> Any:
        ended = self.is_closed() or self._executor_shutdown_called
        if executor is None and self._default_executor is None and not ended:
            self.set_default_executor(executor_type(thread_name_prefix="asyncio"))
        return original(self, executor, func, *args)

    loop_type.run_in_executor = run_in_executor


def _add_thread_deadlock_tests(names: dict[str, Any], mixin: type, executor_type: ExecutorType) -> None:
    """Add the deadlock tests for threads, which CPython runs for processes alone.

    Its tests pass `mp_context` to whatever they make; threads have no use for one.
    """

    class WithoutContext(mixin):  # type: ignore[misc]
        get_context = staticmethod(lambda: None)

        @staticmethod
        def executor_type(max_workers: int, mp_context: None = None) -> concurrent.futures.Executor:
            return executor_type(max_workers=max_workers)

    bases = (names["ExecutorDeadlockTest"], WithoutContext, _shared(names, "BaseTestCase"))
    name = "ThreadPoolExecutorDeadlockTest"
    names[name] = type(name, bases, {"__module__": names["__name__"]})


class ServerSubstitution:
    """The servers that take the place of those of a `kind`: the standard library's own ones for the control."""

    def __init__(self, kind: str, counts: Counts, *, control: bool) -> None:
        home: Any = http.server if kind == HTTP else socketserver
        ours: Any = home if control else importlib.import_module("ebbpool.socketserver")
        names = _SERVERS[kind].items()
        self._made = {name: getattr(ours, name if control else own) for name, own in names if hasattr(home, name)}
        mixed_in: type = socketserver.BaseServer if control else ours.AdaptivePoolMixIn
        _before_init(socketserver.BaseServer, lambda made: counts.note(ours=isinstance(made, mixed_in)))

    @contextmanager
    def while_importing(self) -> Iterator[None]:
        """Let test modules that are imported in this block bind `socketserver` to one with the classes under test."""
        original = sys.modules["socketserver"]
        sys.modules["socketserver"] = _like(original, self._made)
        try:
            yield
        finally:
            sys.modules["socketserver"] = original

    def put_into(self, module: types.ModuleType) -> None:
        """Replace the names that the module has imported one by one; it is an error if it has none of them."""
        names = vars(module)
        if "socketserver" in names:
            return
        replaced = {name: made for name, made in self._made.items() if name in names}
        if not replaced:
            raise RuntimeError(f"{module.__name__} has none of {', '.join(self._made)}")
        names.update(replaced)
