"""A pytest plugin that puts executors, futures and servers in the place of the standard library's, for one suite.

Nothing of CPython's tests is edited. What changes is what names of the standard library mean in the process of a suite,
before it is imported, and in the scripts that tests run in a fresh interpreter. Our classes derive from those that had
the names. `run.py` starts a process of pytest for each suite.

A test fails as well if it leaves threads behind, or if it was to be run with our executor or server and made none, or
one of the standard library's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures._base
import functools
import http.server
import importlib
import inspect
import socketserver
import sys
import types
import unittest
from collections.abc import Callable, Generator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import not_applicable
import pytest
from suites import ASYNCIO, HTTP, PLAIN, THREADING, Suite, suites

ExecutorType = type[concurrent.futures.ThreadPoolExecutor]
FutureType = type[concurrent.futures.Future[Any]]

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


def imported(name: str, stand_in: Any) -> None:
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


def name_of(item: pytest.Item) -> str:
    """Return ``Class.method``, which is the same whether CPython keeps its tests in a module or a package."""
    assert isinstance(item, pytest.Function)
    return f"{item.cls.__qualname__}.{item.name}"


def names_a_future(item: Any) -> bool:
    """Tell whether the test's own code makes a future or uses one of the ready-made ones."""
    codes: list[types.CodeType] = [inspect.unwrap(getattr(item.cls, item.name)).__code__]
    while codes:
        code = codes.pop()
        if any(name in {"Future", "create_future"} or name.endswith("_FUTURE") for name in code.co_names):
            return True
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return False


def belongs(suite: Suite, item: Any) -> bool:
    """Tell whether a test of the suite's module is one of the suite's own."""
    if not any(fnmatchcase(name_of(item), pattern) for pattern in suite.select):
        return False
    if suite.servers or suite.module.startswith(ASYNCIO):
        return True
    if suite.future:
        if suite.executor and not hasattr(item.cls, "executor_type"):
            return False
        return not hasattr(item.cls, "ctx") and names_a_future(item)
    return not item.cls.__name__.startswith("FutureTest")


class EachTest:
    """Chooses the tests of a suite, and holds more against them than they do themselves."""

    def __init__(self, suite: Suite, counts: Counts, matched: Path, cluster: bool) -> None:
        self.suite, self.counts, self.matched, self.cluster = suite, counts, matched, cluster
        self.meets_ours = suite.executor or bool(suite.servers)
        self.ran = False
        self.support: Any = importlib.import_module("test.support")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if belongs(self.suite, item)]
        cases: set[Any] = {item.cls for item in items if isinstance(item, pytest.Function) and self.suite.seeded}
        for case in cases:
            seed(case)
        names = [name_of(item) for item in items]
        patterns = [pattern for pattern in self.suite.select if any(fnmatchcase(name, pattern) for name in names)]
        for item, name in zip(items, names, strict=True):
            if entry := not_applicable.find(name, cluster=self.cluster):
                item.add_marker(pytest.mark.skip(reason=f"not applicable: {entry.reason}"))
                patterns.append(entry.pattern)
        with self.matched.open("a") as file:
            file.writelines(f"{pattern}\n" for pattern in patterns)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        made, strays = self.counts.total(), self.counts.strays
        yield
        self.ran = True
        if self.meets_ours and self.counts.total() == made:
            pytest.fail("it never made the executor or the server under test", pytrace=False)
        if self.counts.strays > strays:
            pytest.fail("it made an executor or a server of the standard library's", pytrace=False)
        if self.support.environment_altered:
            self.support.environment_altered = False
            pytest.fail("it left threads or processes behind", pytrace=False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        told = ["nothing of what is under test was made"] * (self.ran and not self.counts.total())
        told += ["threads or processes are left behind"] * self.support.environment_altered
        if told:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            print("", *told, sep="\n")


def classes_under_test(config: pytest.Config) -> tuple[Any, Any]:
    """Return the executor and the future under test: ours, or for the control the standard library's."""
    if config.getoption("--control"):
        return concurrent.futures.ThreadPoolExecutor, concurrent.futures.Future
    ebbpool = importlib.import_module("ebbpool")
    if config.getoption("--cluster"):
        on_cluster = importlib.import_module("on_cluster")
        # Here, and not in the first test: its threads are none that a test has left behind.
        config.add_cleanup(on_cluster.client().close)
        return on_cluster.OnCluster, ebbpool.Future
    return ebbpool.AdaptiveExecutor, ebbpool.Future


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ebbpool")
    group.addoption("--suite", required=True)
    group.addoption("--notes", required=True, type=Path)
    group.addoption("--control", action="store_true")
    group.addoption("--cluster", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    (suite,) = [suite for suite in suites() if suite.name == config.getoption("--suite")]
    notes: Path = config.getoption("--notes")
    counts = Counts(notes / f"{suite.name} scripts")
    executor_type, future_type = classes_under_test(config)
    if suite.servers:
        put_in_servers(suite.servers, counts, control=config.getoption("--control"))
    if suite.executor:
        put_in_executor(executor_type, counts)
    try:
        imported(suite.module, put_in_future(future_type, counts) if suite.future else None)
    except unittest.SkipTest:
        # It is imported again, and says why.
        return
    config.pluginmanager.register(EachTest(suite, counts, notes / "matched", config.getoption("--cluster")))
