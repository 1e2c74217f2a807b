"""Puts executors, futures and servers in the place of the standard library's, and counts what tests make of them.

Nothing of CPython's tests is edited. What changes is what names of the standard library mean in the process of a suite,
before it is imported, and in the scripts that tests run in a fresh interpreter. Our classes derive from those that had
the names.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures._base
import functools
import http.server
import importlib
import socketserver
import sys
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

ExecutorType = type[concurrent.futures.ThreadPoolExecutor]
FutureType = type[concurrent.futures.Future[Any]]

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


def put_in_executor(executor_type: ExecutorType, counts: Counts) -> None:
    """Have `executor_type` made in the place of ThreadPoolExecutor: by tests, by loops and by scripts."""
    standard = concurrent.futures.ThreadPoolExecutor
    _before_init(executor_type, lambda made: counts.note(ours=True))
    if executor_type is not standard:
        # Ours derives from it, but never runs its `__init__`.
        _before_init(standard, lambda made: counts.note(ours=False))
    vars(concurrent.futures)["ThreadPoolExecutor"] = executor_type
    helper: Any = importlib.import_module("test.support.script_helper")
    run = helper.assert_python_ok

    def assert_python_ok(flag: str, script: str, **env_vars: str) -> Any:
        if flag != "-c":
            raise RuntimeError(f"not a script, so our executor cannot be put in: {script!r}")
        return run(flag, _preamble(executor_type, counts) + script, **env_vars)

    helper.assert_python_ok = assert_python_ok


def _preamble(executor_type: ExecutorType, counts: Counts) -> str:
    """Return what puts an executor in, in a fresh interpreter that sees no environment, and counts what is made."""
    source = sys.modules[executor_type.__module__.partition(".")[0]].__file__
    assert source is not None
    lines = [
        "import sys, test",
        f"sys.path.append({str(Path(source).parent.parent)!r})",
        f"test.__path__[:] = {list(sys.modules['test'].__path__)!r}",
        f"from {executor_type.__module__} import {executor_type.__name__} as made",
        "def counted(self, *args, original=made.__init__, **kwargs):",
        f"    with open({str(counts.scripts)!r}, 'a') as made_here:",
        "        print('made', file=made_here)",
        "    original(self, *args, **kwargs)",
        "made.__init__ = counted",
        "import concurrent.futures",
        # Tests write the name of the class under test into their scripts.
        f"concurrent.futures.ThreadPoolExecutor = concurrent.futures.{executor_type.__name__} = made",
    ]
    return "\n".join([*lines, ""])


def put_in_future(future_type: FutureType, counts: Counts) -> Any:
    """Have futures of this type made where asyncio makes one; return what takes the place of Future in tests."""
    stand_in: Any = _StandIn("Future", (), {"made": future_type, "counts": counts})
    vars(concurrent.futures)["Future"] = stand_in
    return stand_in


def put_in_servers(kind: str, counts: Counts, *, control: bool) -> None:
    """Have our servers made in the place of those of a `kind`; for the control only count them."""
    home: Any = http.server if kind == HTTP else socketserver
    ours: Any = home if control else importlib.import_module("ebbpool.socketserver")
    mixed_in: type = socketserver.BaseServer if control else ours.AdaptivePoolMixIn
    _before_init(socketserver.BaseServer, lambda made: counts.note(ours=isinstance(made, mixed_in)))
    for name, own in {} if control else _SERVERS[kind].items():
        if hasattr(home, name):
            setattr(home, name, getattr(ours, own))


def imported(name: str, stand_in: Any) -> types.ModuleType:
    """Import a module of tests, which binds `Future` to what stands in for it, if that is not None."""
    # Not for longer: executors of the standard library make futures by this name.
    base: Any = concurrent.futures._base
    original = base.Future
    try:
        base.Future = stand_in or original
        module = importlib.import_module(name)
    finally:
        base.Future = original
    if stand_in is not None and vars(module).get("Future", stand_in) is not stand_in:
        raise RuntimeError(f"{name}.Future was bound before the future under test was put in")
    return module


def seed(case: type[unittest.IsolatedAsyncioTestCase]) -> None:
    """Make each test of `case` run in a loop whose default executor has just been used."""
    original = case.asyncSetUp

    async def in_use(self: unittest.IsolatedAsyncioTestCase) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, abs, -1) == 1
        await original(self)

    setattr(case, "asyncSetUp", in_use)  # noqa: B010


def _before_init(kind: type, tell: Callable[[Any], None]) -> None:
    """Have `tell` called with every object of this kind that is made from now on, before its `__init__`."""
    original = vars(kind)["__init__"]

    @functools.wraps(original)
    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        tell(self)
        original(self, *args, **kwargs)

    setattr(kind, "__init__", counted)  # noqa: B010
